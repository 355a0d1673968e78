"""Copies the pages and the files that they link to into one tree, with links that lead inside of it."""

import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from scripts.site.markdown import replace_links, separate_lists

PAGES_OUTSIDE: Final = {
    "README.md": "overview.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "bench/GROWTH.md": "benchmark/growth.md",
    "bench/RESULTS.md": "benchmark/results.md",
    "packages/turnkeep-minilm/README.md": "project/embedding-model.md",
}
"""Pages that are not in `docs`, and where the site has them."""
INSTEAD: Final = {"openapi/openapi.json": "api/index.md"}
"""What the site shows in the place of a file."""
FILES: Final = "files"
_SOURCES: Final = frozenset({".py"})
_EXTERNAL: Final = re.compile(r"[a-z][a-z0-9+.-]*:|/")


@dataclass(slots=True)
class Stage:
    """The tree that is rendered: pages of the repository at `root`, copied into `folder`."""

    root: Path
    folder: Path
    files: set[str] = field(default_factory=set)
    """Files that a page links to, by their path in the repository."""

    def copy(self) -> None:
        """Copy all pages, images and linked files."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for source, target in self.pages():
            self.write(target, self.staged(source))
        for name in sorted(self.files):
            place = self.folder / self.place(name)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / name, place)

    def pages(self) -> Iterable[tuple[str, str]]:
        """Yield each page: its path in the repository, and the one in the tree."""
        yield from PAGES_OUTSIDE.items()
        for path in sorted((self.root / "docs").rglob("*.md")):
            name = path.relative_to(self.root).as_posix()
            yield name, name.removeprefix("docs/")

    def staged(self, source: str, text: str | None = None) -> str:
        """Return a page, or another text in its place, as the tree has it.

        Raises ValueError for a link that leads to nothing.
        """
        text = (self.root / source).read_text() if text is None else text
        return replace_links(separate_lists(text), lambda link: self.target(source, link))

    def target(self, source: str, link: str) -> str | None:
        """Return where a link of a page leads in the tree; None if its file is not part of the site."""
        path, hash_mark, anchor = link.partition("#")
        if not path or _EXTERNAL.match(link):
            return link
        name = PurePosixPath(os.path.normpath(PurePosixPath(source).parent / path)).as_posix()
        if not (self.root / name).exists():
            raise ValueError(f"{source}: {link} leads to nothing")
        if PurePosixPath(name).suffix in _SOURCES and not name.startswith("docs/"):
            return None
        return f"{os.path.relpath(self.place(name), PurePosixPath(self.place(source)).parent)}{hash_mark}{anchor}"

    def place(self, name: str) -> str:
        """Return where the tree has a file of the repository, and note that it is needed."""
        if name in INSTEAD:
            return INSTEAD[name]
        if name in PAGES_OUTSIDE:
            return PAGES_OUTSIDE[name]
        if name.endswith(".md") and name.startswith("docs/"):
            return name.removeprefix("docs/")
        if (self.root / name).is_dir():
            raise ValueError(f"{name} is a folder; name what the site shows instead")
        self.files.add(name)
        return name.removeprefix("docs/") if name.startswith("docs/") else f"{FILES}/{name}"

    def write(self, target: str, text: str) -> None:
        """Write a page of the tree."""
        path = self.folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
