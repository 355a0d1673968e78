"""Changes of Markdown text that leave code as it is."""

import re
from collections.abc import Callable, Iterator
from typing import Final

_FENCE: Final = re.compile(r"^(?P<mark>```+|~~~+).*?^(?P=mark)[ ]*$", re.MULTILINE | re.DOTALL)
_CODE: Final = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_LINK: Final = re.compile(r"(?P<before>\]\()(?P<target>[^)\s]+)(?P<after>\))")
_ITEM: Final = re.compile(r"\s*([-*]|\d+\.) ")


def split_code(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a text with whether they are fenced code."""
    at = 0
    for found in _FENCE.finditer(text):
        yield text[at : found.start()], False
        yield found[0], True
        at = found.end()
    yield text[at:], False


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change a text, but not its fenced code."""
    return "".join(part if is_code else change(part) for part, is_code in split_code(text))


def replace_links(text: str, replace: Callable[[str], str | None]) -> str:
    """Give every link that is outside of code another target. None keeps the text of the link alone."""

    def change(part: str) -> str:
        code = [(found.start(), found.end()) for found in _CODE.finditer(part)]
        pieces: list[str] = []
        at = 0
        for found in _LINK.finditer(part):
            if any(start <= found.start() < end and found.end() <= end for start, end in code):
                continue
            target = replace(found["target"])
            if target is None:
                opened = _opening(part, found.start())
                pieces += [part[at:opened], part[opened + 1 : found.start()]]
            else:
                pieces += [part[at : found.start()], found["before"], target, found["after"]]
            at = found.end()
        return "".join([*pieces, part[at:]])

    return outside_code(text, change)


def _opening(text: str, closing: int) -> int:
    """Return where the bracket begins that ends at `closing`."""
    depth = 0
    for at in range(closing, -1, -1):
        depth += {"]": 1, "[": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise ValueError(f"no bracket is opened before {text[closing : closing + 40]!r}")


def separate_lists(text: str) -> str:
    """Add the empty line before a list that Python-Markdown needs and GitHub does not."""

    def change(part: str) -> str:
        lines: list[str] = []
        for line in part.split("\n"):
            former = lines[-1] if lines else ""
            begins = _ITEM.match(line) and former.strip() and not former.startswith((" ", "#", "|", ">"))
            if begins and not _ITEM.match(former):
                lines.append("")
            lines.append(line)
        return "\n".join(lines)

    return outside_code(text, change)


def title_of(text: str) -> str:
    """Return the first heading of a page."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else ""
