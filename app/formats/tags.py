"""Break tags inside stored text, so that it cannot end the block that delimits it, nor start another one. Pure.

A model may read a tag where a parser sees none: with characters that have no width, or with characters that look like
the ASCII ones. Invariant: a text without such a tag is returned unchanged.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

_BRACKET: Final = re.compile(
    "[<\u02c2\u1438\u2039\u226e\u2329\u276c\u276e\u27e8\u29fc\u3008\ufe64\uff1c]|&lt;?|&#0*60;?|&#x0*3c;?|\\\\u003c",
    re.IGNORECASE,
)
"""`<`, the characters that look like it, and the escapes that stand for it."""
_ASCII_STARTS: Final = "<&\\"
"""What a bracket of ASCII begins with."""
_SLASHES: Final = "/\u2044\u2215\u2571\u27cb\u29f8\u29f9"
_ESCAPED_SLASH: Final = re.compile(r"&sol;?|&#0*47;?|&#x0*2f;?|\\u002f|\\(?=[/\u2044\u2215])", re.IGNORECASE)
"""Escapes that stand for a slash, and the backslash that JSON puts before one."""
_LOOK_ALIKES: Final = str.maketrans(
    "\u0430\u0251\u03b1\u1d00\u044c\u0432\u0299\u0185\u13cf\u0441\u03f2\u1d04\u0501\u0257\u1d05\u0435"
    "\u04bd\u212e\u1d07\u03b5\u0192\u0584\ua730\u0261\u0581\u0262\u04bb\u0570\u029c\u0456\u03b9\u0131"
    "\u026a\u0458\u03f3\u1d0a\u043a\u03ba\u1d0b\u04cf\u01c0\u029f\u043c\u1d0d\u043f\u0578\u057c\u0274"
    "\u03b7\u043e\u03bf\u0585\u03c3\u1d0f\u0440\u03c1\u1d18\u051b\u0566\u0433\u0280\u0455\ua731\u01bd"
    "\u0442\u03c4\u1d1b\u03c5\u057d\u0446\u1d1c\u028b\u03bd\u0475\u1d20\u051d\u0461\u03c9\u1d21\u0445"
    "\u03c7\u0443\u03b3\u04af\u028f\u1d22\u0290",
    "aaaabbbbbcccdddeeeeefffggghhhiiiijjjkkklllmmnnnnnooooopppqqrrssstttuuuuuvvvwwwwxxyyyyzz",
)
"""Letters of other scripts that look like ASCII ones, in lower case."""
_FILLERS: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters without a glyph."""


def break_tags(text: str, tag: str, *, bracket: str | None = None) -> str:
    """Return a text in which nothing reads as an opening or closing tag of `tag`, which is lower-case ASCII.

    A space is put after the bracket of such a tag. With `bracket`, tags with spaces are broken too: it replaces their
    bracket.
    """
    if text.isascii() and not any(start in text for start in _ASCII_STARTS):  # most texts, in a tenth of the time
        return text
    parts: list[str] = []
    copied = 0
    for match in _BRACKET.finditer(text):
        if _begins_tag(text, match.end(), tag, is_loose=bracket is not None):
            parts += [text[copied : match.start()], f"{match[0]} " if bracket is None else bracket]
            copied = match.end()
    return "".join([*parts, text[copied:]]) if parts else text


def _begins_tag(text: str, start: int, tag: str, *, is_loose: bool) -> bool:
    """Return whether a tag's name follows a bracket, with a slash or without; with spaces before it if `is_loose`."""
    has_slash, matched = False, 0
    if (escape := _ESCAPED_SLASH.match(text, start)) is not None:
        has_slash, start = True, escape.end()
    for character in _visible(text, start):
        if matched == len(tag):
            return not (character.isalnum() or character == "_")
        if matched == 0 and character.isspace() and (has_slash or is_loose):
            continue
        if matched == 0 and (character in _SLASHES or (is_loose and character == "\\")):
            has_slash = True
        elif character == tag[matched]:
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
        for piece in unicodedata.normalize("NFKD", character).lower().translate(_LOOK_ALIKES):
            is_hidden = unicodedata.category(piece)[0] in "CM" or piece in _FILLERS
            if piece.isspace() or not is_hidden:
                yield piece
