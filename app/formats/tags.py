"""Break tags inside stored text, so that it cannot end the block that delimits it in front of a model. Pure.

A model may read a tag where a parser sees none: with characters that have no width, or with characters that look like
the ASCII ones. Invariant: a text without such a tag is returned unchanged.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

_BRACKET: Final = re.compile(
    "[<\u02c2\u1438\u2039\u226e\u2329\u276c\u276e\u27e8\u29fc\u3008\ufe64\uff1c]|&lt;|&#0*60;|&#x0*3c;|\\\\u003c",
    re.IGNORECASE,
)
"""`<`, the characters that look like it, and the escapes that stand for it."""
_SLASHES: Final = "/\u2044\u2215\u2571\u27cb\u29f8"
_FILLERS: Final = frozenset("\u115f\u1160\u3164\uffa0")
"""Letters without a glyph."""


def break_tags(text: str, tag: str, *, bracket: str | None = None) -> str:
    """Return a text in which nothing reads as the closing tag of `tag`, which is lower-case ASCII.

    A space is put after the bracket of such a tag. With `bracket`, opening tags and tags with spaces are broken too: it
    replaces their bracket.
    """
    parts: list[str] = []
    copied = 0
    for match in _BRACKET.finditer(text):
        if _begins_tag(text, match.end(), tag, is_loose=bracket is not None):
            parts += [text[copied : match.start()], f"{match[0]} " if bracket is None else bracket]
            copied = match.end()
    return "".join([*parts, text[copied:]]) if parts else text


def _begins_tag(text: str, start: int, tag: str, *, is_loose: bool) -> bool:
    """Return whether a tag's slash and name follow a bracket; the slash may be missing if `is_loose`."""
    has_slash, matched = False, 0
    for character in _visible(text, start):
        if matched == len(tag):
            return not (character.isalnum() or character == "_")
        if matched == 0 and character.isspace() and (has_slash or is_loose):
            continue
        if matched == 0 and (character in _SLASHES or (is_loose and character == "\\")):
            has_slash = True
        elif character == tag[matched] and (has_slash or is_loose):
            matched += 1
        else:
            return False
    return matched == len(tag)


def _visible(text: str, start: int) -> Iterator[str]:
    """Yield the characters from `start` on as they look: decomposed, in lower case, without invisible ones."""
    for position in range(start, len(text)):
        character = text[position]
        if character.isascii() and character.isprintable():
            yield character.lower()
            continue
        for piece in unicodedata.normalize("NFKD", character).lower():
            is_hidden = unicodedata.category(piece)[0] in "CM" or piece in _FILLERS
            if piece.isspace() or not is_hidden:
                yield piece
