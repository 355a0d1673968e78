"""Redacts personal data in a text, before anything derived from it is stored. Pure.

Personal data is replaced by a placeholder with its kind, such as `[email]`. The rest of the text is unchanged, byte for
byte. Precision goes before recall: years, prices and order numbers are kept, and personal data without a recognisable
shape is left to the model that reads the text afterwards. Redacting a redacted text changes nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from app.memory.pii.deobfuscation import deobfuscate
from app.memory.pii.numbers import Found, find_numbers
from app.memory.pii.patterns import PATTERNS
from app.memory.schemas import PersonalKind

# a replacement can uncover adjacent data; only texts made for this need more than two rounds
_MAX_ROUNDS = 12
_MAX_LOCAL_PART = 64
_IN_LOCAL_PART = frozenset(".+%'_-")


@dataclass(frozen=True, slots=True)
class Span:
    """Personal data of one kind: its offsets in the given text, in code points."""

    start: int
    end: int
    kind: PersonalKind


@dataclass(frozen=True, slots=True)
class Redaction:
    """The text with placeholders, and the spans that were replaced, in order."""

    text: str
    spans: tuple[Span, ...]

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the number of replaced spans by kind."""
        return Counter(span.kind.value for span in self.spans)


def redact(text: str) -> Redaction:
    """Replace the personal data in a text by placeholders."""
    plain = deobfuscate(text)
    spans: list[Span] = []
    for _ in range(_MAX_ROUNDS):
        matches = _merged((*plain.whole(start, end), kind) for start, end, kind in _candidates(plain.characters))
        if not matches:
            break
        spans += (Span(plain.starts[start], plain.ends[end - 1], kind) for start, end, kind in matches)
        plain = plain.without([(start, end) for start, end, _ in matches])
    spans.sort(key=lambda span: span.start)
    pieces: list[str] = []
    at = 0
    for span in spans:
        pieces += (text[at : span.start], f"[{span.kind.value}]")
        at = span.end
    return Redaction("".join((*pieces, text[at:])), tuple(spans))


def _candidates(characters: str) -> Iterator[Found]:
    for pattern in PATTERNS:
        for match in pattern.expression.finditer(characters):
            span = pattern.span(match)
            if span is not None and span[0] < span[1]:
                yield *span, pattern.kind
    yield from _emails(characters)
    yield from find_numbers(characters)


def _emails(characters: str) -> Iterator[Found]:
    """Yield email addresses, found from the `@` outwards, since any character may surround an address."""
    at = characters.find("@")
    while at >= 0:
        start = at
        while start > max(0, at - _MAX_LOCAL_PART) and _is_local(characters[start - 1]):
            start -= 1
        end = _host_end(characters, at + 1)
        if start < at and end:
            yield start, end, PersonalKind.EMAIL
        at = characters.find("@", max(end, at + 1))


def _is_local(character: str) -> bool:
    return character.isalnum() or character in _IN_LOCAL_PART


def _host_end(characters: str, start: int) -> int:
    """Return the end of a host name that has a dot and ends in letters; 0 if there is none."""
    end = start
    while end < min(len(characters), start + 253) and (characters[end].isalnum() or characters[end] in ".-_"):
        end += 1
    host = characters[start:end].rstrip(".-_")
    name, dot, top_level = host.rpartition(".")
    return start + len(host) if name and dot and len(top_level) > 1 and not top_level.isdigit() else 0


def _merged(spans: Iterable[Found]) -> list[Found]:
    """Return the spans in order. Overlapping spans become one, of the kind of the longest."""
    merged: list[Found] = []
    longest = 0
    for start, end, kind in sorted(spans, key=lambda span: (span[0], -span[1])):
        if merged and start < merged[-1][1]:
            before = merged[-1]
            merged_kind = before[2] if longest >= end - start else kind
            # a URL that contains a password is a secret
            merged_kind = PersonalKind.SECRET if PersonalKind.SECRET in {before[2], kind} else merged_kind
            longest = max(longest, end - start)
            merged[-1] = (before[0], max(before[1], end), merged_kind)
        else:
            merged.append((start, end, kind))
            longest = end - start
    return merged
