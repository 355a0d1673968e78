"""Cut a long text down to its beginning, its end and passages of it, with marks at the cuts. Pure.

The work depends on the tokens that are kept, not on the length of the text: what is cut away is never tokenised.
Invariant: without passages a cut depends on the text and the limit alone.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from app.recall.schemas import Passage

Span: TypeAlias = tuple[int, int]
"""A run of a text in code points, the end excluded."""
Count: TypeAlias = Callable[[str], int]

ELLIPSIS: Final = "[…]"
_MARK_TOKENS: Final = 14
"""At most so many tokens are in a mark with its line breaks."""
_MIN_SIDE_TOKENS: Final = 6
"""A beginning or an end of fewer tokens says nothing."""
_EXACT_CHARACTERS: Final = 40_000
"""Texts of up to so many characters are counted whole: that takes a few milliseconds."""
_TYPICAL_CHARACTERS: Final = 4
_MAX_CHARACTERS: Final = 16
"""Characters of a token: in most texts, and in runs of spaces and marks at most as far as they are kept."""
_TRIES: Final = 6
_CLOSE: Final = 0.95
_BOUND_SHARE: Final = 4
"""A cut moves by at most this part of what is kept to get to the bound of a line, a sentence or a word."""
_SENTENCE_END: Final = re.compile(r"[.!?…]['\")\]]*\s|[。！？]")  # noqa: RUF001 - other scripts' signs
_SPACE: Final = re.compile(r"\s")


@dataclass(frozen=True, slots=True)
class CutText:
    """A text as it is shown: its runs that are left, in order, and about how many tokens are left out."""

    text: str
    spans: Sequence[Span]
    left_out: int


def mark(tokens: int) -> str:
    """Return the mark of a cut in a turn."""
    return f"[… {f'{tokens:,}'.replace(',', ' ')} tokens left out …]"


def estimate_tokens(text: str, count: Count, stored: int = 0) -> int:
    """Return the tokens of a text: as stored, as counted if it is short, else estimated by its beginning."""
    if stored:
        return stored
    if len(text) <= _EXACT_CHARACTERS:
        return count(text)
    return round(count(text[:_EXACT_CHARACTERS]) * len(text) / _EXACT_CHARACTERS)


def is_longer(text: str, max_tokens: int, count: Count) -> bool:
    """Return whether a text has more tokens than `max_tokens`; of a long text only the beginning is counted."""
    if len(text) <= max_tokens // _TYPICAL_CHARACTERS:  # no character has more than four bytes
        return False
    head = text[: (max_tokens + 1) * 2 * _TYPICAL_CHARACTERS]
    return count(head) > max_tokens or (len(head) < len(text) and count(text) > max_tokens)


def cut(text: str, max_tokens: int, count: Count, *, total: int, wanted: Sequence[Passage] = ()) -> CutText:
    """Return a text of `total` tokens in about `max_tokens`; only a mark if not even a few words fit.

    `wanted`: passages of the text, the best first. They get at most half of the place.
    """
    if (max_tokens - _MARK_TOKENS) // 2 < _MIN_SIDE_TOKENS:
        return CutText(mark(total), [], total)
    room = max_tokens - _MARK_TOKENS

    def cost(start: int, end: int) -> int:
        return count(text[start:end]) + _MARK_TOKENS

    middle = choose_spans(wanted, room // 2, cost)
    room -= sum(cost(start, end) for start, end in middle)
    head, tail = head_within(text, room // 2, count), tail_within(text, room // 2, count)
    if head >= tail:
        return CutText(text, [(0, len(text))], 0)
    return _marked(text, merge([(0, head), (tail, len(text)), *middle]), total)


def choose_spans(wanted: Iterable[Passage], max_tokens: int, cost: Callable[[int, int], int]) -> list[Span]:
    """Return the best of some passages that fit together, the best first in the list that is given."""
    chosen: list[Span] = []
    for passage in wanted:
        tokens = cost(passage.start, passage.end)
        if tokens <= max_tokens:
            chosen.append((passage.start, passage.end))
            max_tokens -= tokens
    return chosen


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order, with those that overlap or touch as one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif start < end:
            merged.append((start, end))
    return merged


def without(passages: Iterable[Passage], spans: Sequence[Span]) -> list[Passage]:
    """Return the passages that some spans of the same text do not show already."""
    return [
        passage
        for passage in passages
        if not any(start <= passage.start and passage.end <= end for start, end in spans)
    ]


def excerpt(text: str, spans: Sequence[Span]) -> str:
    """Return the spans of a text in order, each with `[…]` where it is cut."""
    shown = " […] ".join(text[start:end].strip() for start, end in spans)
    before = f"{ELLIPSIS} " if spans and text[: spans[0][0]].strip() else ""
    after = f" {ELLIPSIS}" if spans and text[spans[-1][1] :].strip() else ""
    return f"{before}{shown}{after}"


def head_within(text: str, max_tokens: int, count: Count) -> int:
    """Return the end of the longest beginning of about at most `max_tokens`, at the bound of a line or sentence."""
    size = _size_within(len(text), max_tokens, lambda length: count(text[:length]))
    if size == len(text):
        return size
    floor = size - size // _BOUND_SHARE
    bound = text.rfind("\n", floor, size) + 1
    if not bound:
        ends = [match.end() for match in _SENTENCE_END.finditer(text, floor, size)]
        bound = ends[-1] if ends else text.rfind(" ", floor, size) + 1
    return bound or _whole_character(text, size)


def tail_within(text: str, max_tokens: int, count: Count) -> int:
    """Return the start of the longest end of about at most `max_tokens`, at the bound of a line or sentence."""
    size = _size_within(len(text), max_tokens, lambda length: count(text[len(text) - length :]))
    start = len(text) - size
    if not start:
        return start
    limit = start + size // _BOUND_SHARE
    line = text.find("\n", start, limit) + 1
    if line:
        return line
    match = _SENTENCE_END.search(text, start, limit) or _SPACE.search(text, start, limit)
    if match is not None:
        return match.end()
    while start < len(text) and unicodedata.combining(text[start]):
        start += 1
    return start


def _whole_character(text: str, end: int) -> int:
    while 0 < end < len(text) and unicodedata.combining(text[end]):
        end -= 1
    return end


def _size_within(length: int, max_tokens: int, tokens_of: Callable[[int], int]) -> int:
    """Return a size of at most `length` whose tokens are close to `max_tokens`, and not above it."""
    fits, too_long = 0, min(length, max_tokens * _MAX_CHARACTERS) + 1
    size = min(too_long - 1, max_tokens * _TYPICAL_CHARACTERS)
    for _ in range(_TRIES):
        tokens = tokens_of(size)
        if tokens <= max_tokens:
            fits = size
            if tokens >= _CLOSE * max_tokens:
                break
        else:
            too_long = size
        next_size = int(size * _CLOSE * max_tokens / max(1, tokens)) + 1
        size = min(max(next_size, fits + 1), too_long - 1)
        if size <= fits:
            break
    return fits


def _marked(text: str, spans: Sequence[Span], total: int) -> CutText:
    pieces: list[str] = []
    shown_before, left_out = 0, 0
    for start, end in [*spans, (len(text), len(text))]:
        if start > shown_before:
            tokens = round(total * (start - shown_before) / len(text))
            left_out += tokens
            pieces.append(mark(tokens))
        if end > start:
            pieces.append(text[start:end].strip("\n"))
        shown_before = end
    return CutText("\n".join(pieces), spans, left_out)
