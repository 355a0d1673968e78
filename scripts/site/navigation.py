"""Takes the navigation from `docs/index.md`: its headings are the sections, its links the pages, in their order."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from scripts.site.markdown import split_code

Entry: TypeAlias = "tuple[str, str | list[Entry]]"
"""A title with the path of a page, or with the entries of a section."""

_HEADING: Final = re.compile(r"(#{2,3}) (.+)")
_ENTRY: Final = re.compile(r"(?:\| |- )\[([^\]]+)\]\(([^)#]+\.md)(?:#[^)]*)?\)")


@dataclass(slots=True)
class Section:
    """A heading with what is under it."""

    title: str
    depth: int
    entries: list["Section | tuple[str, str]"] = field(default_factory=list)


def navigation(index: str, inside: Mapping[str, Sequence[Entry]]) -> list[Entry]:
    """Return the entries of the site. `inside`: further pages of a page, by its path, shown in a section with it."""
    top = Section("", 1)
    open_sections = [top]
    for line in _lines(index):
        if (heading := _HEADING.fullmatch(line)) is not None:
            section = Section(heading[2], len(heading[1]))
            open_sections = [one for one in open_sections if one.depth < section.depth]
            open_sections[-1].entries.append(section)
            open_sections.append(section)
        elif (entry := _ENTRY.match(line)) is not None:
            open_sections[-1].entries.append((_capitalised(entry[1]), entry[2]))
    return [("Home", "index.md"), *_entries(top, inside)]


def paths_of(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the paths of all pages in a navigation."""
    for _, content in entries:
        if isinstance(content, str):
            yield content
        else:
            yield from paths_of(content)


def as_toml(entries: Sequence[Entry]) -> str:
    """Return a navigation as a value in TOML, on one line."""
    parts = [
        f"{{ {_quoted(title)} = {_quoted(content) if isinstance(content, str) else as_toml(content)} }}"
        for title, content in entries
    ]
    return f"[{', '.join(parts)}]"


def _lines(text: str) -> Iterator[str]:
    for part, is_code in split_code(text):
        if not is_code:
            yield from part.splitlines()


def _entries(section: Section, inside: Mapping[str, Sequence[Entry]]) -> list[Entry]:
    found: list[Entry] = []
    for one in section.entries:
        if isinstance(one, Section):
            entries = _entries(one, inside)
            if entries:
                found.append((one.title, entries))
        elif one[1] in inside:
            found.append((one[0], [("Overview", one[1]), *inside[one[1]]]))
        else:
            found.append(one)
    return found


def _capitalised(title: str) -> str:
    return title[:1].upper() + title[1:]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("`", "")
    return f'"{escaped}"'
