"""The long form: imports that are killed five times each, into fresh installations.

Settings of a run, by environment: TURNKEEP_SOAK_SEED; TURNKEEP_SOAK_IMPORTS, how many imports (6).
"""

import os
import time
from collections import Counter

import pytest

from tests.soak.import_crash import run_round

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
IMPORTS = int(os.environ.get("TURNKEEP_SOAK_IMPORTS", "6"))
_KILLS = 5


@pytest.mark.soak
@pytest.mark.timeout(14_000)
async def test_imports_go_on_after_five_kills_and_give_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    counts, started = Counter[str](), time.monotonic()
    for number in range(IMPORTS):
        counts += await run_round(SEED + number, kills=_KILLS, conversations=120, turns=40)
        with capsys.disabled():
            print(f"{time.monotonic() - started:.0f} s, {dict(sorted(counts.items()))}")  # noqa: T201
    assert counts["kills"] == IMPORTS * _KILLS
    assert counts["chains verified"] == IMPORTS * 120
