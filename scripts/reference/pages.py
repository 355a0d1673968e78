"""The pages with generated parts, and how a part is replaced."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from scripts.reference.database_tables import database_tables
from scripts.reference.errors import error_codes
from scripts.reference.round_trips import round_trips
from scripts.reference.settings import settings

ROOT: Final = Path(__file__).parents[2]
_PARTS: Final[Mapping[str, Mapping[str, Callable[[], str]]]] = {
    "docs/errors.md": {"error codes": error_codes},
    "docs/reference/internals.md": {"tables": database_tables},
    "docs/reference/request-paths.md": {"round trips": round_trips},
    "docs/settings.md": {"settings": settings},
}
"""The generated parts of each page, by the name in their comments."""


def page_names() -> Sequence[str]:
    """Return the pages with generated parts, by their paths in the repository."""
    return tuple(_PARTS)


def current_text(page: str) -> str:
    """Return a page with its generated parts as the code has them now."""
    text = (ROOT / page).read_text()
    for name, write in _PARTS[page].items():
        text = replace_part(text, name, write())
    return text


def replace_part(page: str, name: str, content: str) -> str:
    """Return a page with another content of one part. Raises ValueError unless the page has this part once."""
    begin, end = f"<!-- begin: {name} (written by `make reference`) -->", f"<!-- end: {name} -->"
    part = re.compile(rf"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    replaced, count = part.subn(lambda _: f"{begin}\n\n{content.strip()}\n\n{end}", page)
    if count != 1:
        raise ValueError(f"the page has {count} parts named {name!r}")
    return replaced
