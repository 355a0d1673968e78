"""Prepares the tree that Zensical renders. Usage: `python -m scripts.site FOLDER`.

FOLDER gets `pages`, the Markdown of the site, and `zensical.toml`, its configuration with the navigation.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Final

from scripts.site.api_reference import INDEX, Page, write_reference
from scripts.site.markdown import title_of
from scripts.site.navigation import Entry, as_toml, navigation, paths_of
from scripts.site.staging import Stage

ROOT: Final = Path(__file__).parents[2]
_HERE: Final = Path(__file__).parent
_DECISIONS: Final = "decisions/README.md"
_ARCHIVE: Final = "decisions/archive/README.md"


def prepare(folder: Path) -> list[Entry]:
    """Write pages and configuration; return the navigation. Raises ValueError for a page that it leaves out."""
    stage = Stage(ROOT, folder / "pages")
    stage.files |= {"openapi/openapi.json", "openapi/asyncapi.json"}
    stage.copy()
    reference = write_reference(json.loads((ROOT / "openapi/openapi.json").read_text()))
    for page in reference:
        stage.write(page.path, page.text)
    shutil.copyfile(_HERE / "site.css", stage.folder / "site.css")
    decisions: list[Entry] = [*_others(stage.folder, _DECISIONS)]
    decisions.append(("Archive", [("Overview", _ARCHIVE), *_others(stage.folder, _ARCHIVE)]))
    inside = {INDEX: _below(reference), _DECISIONS: decisions}
    entries = navigation((stage.folder / "index.md").read_text(), inside)
    written = {path.relative_to(stage.folder).as_posix() for path in stage.folder.rglob("*.md")}
    if missing := written - set(paths_of(entries)):
        raise ValueError(f"docs/index.md does not lead to {', '.join(sorted(missing))}")
    base = (_HERE / "zensical.toml").read_text()
    config = base.replace("[project]\n", f"[project]\nnav = {as_toml(entries)}\n", 1)
    (folder / "zensical.toml").write_text(config)
    return entries


def _others(pages: Path, index: str) -> list[Entry]:
    """Return the pages beside an index page, by name."""
    paths = sorted(path for path in (pages / index).parent.glob("*.md") if path != pages / index)
    return [(title_of(path.read_text()), path.relative_to(pages).as_posix()) for path in paths]


def _below(pages: list[Page]) -> list[Entry]:
    return [(page.title, page.path) for page in pages if page.path != INDEX]


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
