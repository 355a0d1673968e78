"""Normalises a text for pattern matching, with a mapping back to the original offsets. Pure.

Compatibility forms, digits of every script, dashes and spaces of every kind become ASCII. Invisible characters are
removed. A placeholder becomes a barrier, which no pattern crosses.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from app.memory.schemas import PersonalKind

BARRIER = "\x00"
_PLACEHOLDER = re.compile(rf"\[(?:{'|'.join(kind.value for kind in PersonalKind)})\]")
_ALIKE = {"\u3002": ".", "\uff61": ".", "\u2024": ".", "\u2212": "-"}
# joiners and variation selectors
_UNSEEN = frozenset("\u034f\u115f\u1160\u3164\uffa0" + "".join(map(chr, range(0xFE00, 0xFE10))))


@dataclass(frozen=True, slots=True)
class DeobfuscatedText:
    """Normalised characters. The original of the i-th is from `starts[i]` to before `ends[i]`."""

    characters: str
    starts: Sequence[int]
    ends: Sequence[int]

    def whole(self, start: int, end: int) -> tuple[int, int]:
        """Widen a span to all characters that come from its first and its last original character."""
        while start > 0 and self.starts[start - 1] == self.starts[start]:
            start -= 1
        while end < len(self.starts) and self.starts[end] == self.starts[end - 1]:
            end += 1
        return start, end

    def without(self, spans: Sequence[tuple[int, int]]) -> "DeobfuscatedText":
        """Replace each span by a barrier. The spans are in order and do not overlap."""
        pieces: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        at = 0
        for start, end in spans:
            pieces += (self.characters[at:start], BARRIER)
            starts += (*self.starts[at:start], self.starts[start])
            ends += (*self.ends[at:start], self.ends[end - 1])
            at = end
        pieces.append(self.characters[at:])
        return DeobfuscatedText("".join(pieces), [*starts, *self.starts[at:]], [*ends, *self.ends[at:]])


def deobfuscate(text: str) -> DeobfuscatedText:
    """Return the normalised form of a text."""
    if text.isascii():
        deobfuscated = DeobfuscatedText(text.replace(BARRIER, " "), range(len(text)), range(1, len(text) + 1))
    else:
        pieces = [_folded(character) for character in text]
        starts = [at for at, piece in enumerate(pieces) for _ in piece]
        deobfuscated = DeobfuscatedText("".join(pieces), starts, [at + 1 for at in starts])
    placeholders = [match.span() for match in _PLACEHOLDER.finditer(deobfuscated.characters)]
    return deobfuscated.without(placeholders) if placeholders else deobfuscated


@lru_cache(maxsize=4096)
def _folded(character: str) -> str:
    if character.isascii():
        return " " if character == BARRIER else character
    category = unicodedata.category(character)
    match category:
        case "Cf" | "Me":
            return ""
        case "Nd":
            return str(unicodedata.decimal(character))
        case "Pd" | "Zs":
            return "-" if category == "Pd" else " "
        case _:
            return _ALIKE.get(character) or ("" if character in _UNSEEN else unicodedata.normalize("NFKC", character))
