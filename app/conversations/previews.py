"""The beginning of a text, on one line. Pure."""

from typing import Final

PREVIEW_CHARACTERS: Final = 200
_ELLIPSIS: Final = "…"
_MIN_KEPT: Final = 0.6
"""A cut at a word boundary keeps at least this part of the length; a text without spaces is cut within a word."""


def first_words(text: str, *, max_characters: int) -> str:
    """The first words of a text with whitespace collapsed, at most so many characters.

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
