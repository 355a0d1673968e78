"""The dashboard has a text for every code of our own that `degraded` of a context or a recall can have."""

import re
from pathlib import Path

from app.context.assembly.report import ERASED_SOURCES, TURNS_SHORTENED

ROOT = Path(__file__).parents[2]
SOURCES = [
    ROOT / "app/recall/service.py",
    ROOT / "app/recall/ranking.py",
    ROOT / "app/recall/rerank.py",
    *sorted((ROOT / "app/context").rglob("*.py")),
]


def test_the_dashboard_has_a_text_for_every_code_of_degraded() -> None:
    codes = {ERASED_SOURCES, TURNS_SHORTENED}
    for source in SOURCES:
        codes |= set(re.findall(r'\["([a-z]+(?:_[a-z]+)+)"\]', source.read_text()))
    assert {"vectors_pending", "turns_too_large", "recall_failed"} <= codes
    strings = (ROOT / "dashboard/src/strings.ts").read_text()
    [texts] = re.findall(r"^    degraded: \{\n(.*?)^    \}", strings, re.DOTALL | re.MULTILINE)
    assert codes == set(re.findall(r"^ +([a-z_]+): \"", texts, re.MULTILINE))
