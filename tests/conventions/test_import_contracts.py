"""The contracts of import-linter break where they should: each on an import that goes against it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

_PLANTED = {
    "Direction of packages": ("app/core/ids.py", "import app.conversations.service"),
    "Order inside a capability": ("app/conversations/schemas/append.py", "import app.conversations.turns.append"),
    "Order inside the transports": (
        "app/routers/http/routing/strict_route.py",
        "import app.routers.rest.conversations.turns",
    ),
    "A capability is entered through its service or its schemas": (
        "app/recall/service.py",
        "import app.conversations.stores.turn_store",
    ),
    "HTTP clients live in providers": ("app/context/service.py", "import httpx2"),
    "Nothing under the transports knows HTTP": ("app/governance/service.py", "import starlette"),
}


def test_each_contract_is_kept_and_breaks_on_an_import_against_it(tmp_path: Path) -> None:
    for name in ("app", "scripts", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    assert _broken(tmp_path) == set()
    for path, line in _PLANTED.values():
        with (tmp_path / path).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    assert _broken(tmp_path) == set(_PLANTED)


def _broken(folder: Path) -> set[str]:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    found = re.findall(r"^(.+) (KEPT|BROKEN)(?: \(\d+ ignored imports?\))?$", result.stdout, re.MULTILINE)
    assert {name for name, _ in found} == set(_PLANTED), result.stdout + result.stderr
    return {name for name, verdict in found if verdict == "BROKEN"}
