"""Writes the error codes: the title of each, where it is met, and what to do."""

import textwrap
from typing import Final

from app.core.error_codes import ERROR_CODES
from scripts.reference.error_advice import ERROR_ADVICE

_WIDTH: Final = 100


def error_codes() -> str:
    """Return the codes in Markdown, a heading for each, so that a link can lead to it.

    Raises KeyError for a code without advice.
    """
    return "\n\n".join(f"### {code}\n{_text(title, *ERROR_ADVICE[code])}" for code, title in ERROR_CODES.items())


def _text(title: str, where: str, advice: str) -> str:
    text = f"**{where[0].upper()}{where[1:]}.** {title} {advice}"
    return "\n".join(textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False))
