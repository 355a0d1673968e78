"""Shorten a text to its beginning, on one line. Pure."""

from typing import Final

PREVIEW_CHARACTERS: Final = 200
_ELLIPSIS: Final = "…"
_MIN_KEPT: Final = 0.6
"""Minimum part of the length that a cut at a word boundary keeps; else the cut is inside a word."""


def first_words(text: str, *, max_characters: int) -> str:
    """Return the first words of a text with whitespace collapsed, at most `max_characters`.

    A longer text is cut at a word boundary and ends with an ellipsis.
    """
    line = " ".join(text.split())
    if len(line) <= max_characters:
        return line
    cut = line[: max_characters - 1]
    if line[len(cut)] != " ":
        boundary = cut.rfind(" ")
        if boundary >= _MIN_KEPT * max_characters:
            cut = cut[:boundary]
    return cut.rstrip() + _ELLIPSIS
