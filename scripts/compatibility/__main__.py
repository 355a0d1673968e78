"""Compares `openapi/openapi.json` with the document of every release. Exits with 1 on a change that is not listed.

Usage: `python -m scripts.compatibility [FOLDER]`; FOLDER is `openapi` by default.
"""

import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, JsonValue

from scripts.compatibility.operations import breaking_changes

_ROOT: Final = Path(__file__).parents[2]


class ListedChange(BaseModel):
    """A breaking change that was made on purpose."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    since: str
    """Version of the release whose clients it breaks."""
    changes: list[str]
    reason: str


class Exceptions(BaseModel):
    """The content of `exceptions.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    exception: list[ListedChange] = []


def main(folder: Path) -> int:
    """Print what is not listed and what is listed without need; return the exit code."""
    current = read(folder / "openapi.json")
    listed = Exceptions.model_validate(tomllib.loads((folder / "released/exceptions.toml").read_text()))
    faults = 0
    for path in sorted((folder / "released").glob("*.json")):
        allowed = {line for one in listed.exception if one.since == path.stem for line in one.changes}
        found = {str(change) for change in breaking_changes(read(path), current)}
        for line in sorted(found - allowed):
            print(f"breaks clients of {path.stem}: {line}", file=sys.stderr)
        for line in sorted(allowed - found):
            print(f"listed for {path.stem}, but there is no such change: {line}", file=sys.stderr)
        faults += len(found ^ allowed)
    if faults:
        print(
            "Keep the former form beside the new one (docs/guides/deprecations.md), or list the change with its reason"
            " in openapi/released/exceptions.toml.",
            file=sys.stderr,
        )
    return min(faults, 1)


def read(path: Path) -> Mapping[str, JsonValue]:
    """Return a JSON document."""
    content: Mapping[str, JsonValue] = json.loads(path.read_text())
    return content


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT / "openapi"))
