"""Passages: runs of a long turn's plain text between sentence or line bounds. Pure.

A text is divided into blocks of whole sentences or lines; a passage is as many neighbouring blocks as fit. Passages are
compared by the words of the query, of which those that are rare in this text count more, and by the cosine of the
pieces that the index has embedded. Behind these pieces, words alone decide. All of it is done by arrays and by calls
that take a block at a time, since a turn may have a mebibyte.

Lengths are estimated: a character costs one, one that is not ASCII three. The tokens of the whole turn were counted
when it was stored, so `token_cost` is what a token of this turn costs on average.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.index.analyser.analyser import Analyser
from app.index.analyser.languages import DEFAULT
from app.index.analyser.query_words import PreparedQuery, WordGroup, languages_of_words
from app.index.analyser.words import is_spaceless, marked_words

MAX_PASSAGES: Final = 8
"""Passages of one turn: further ones say little about it, and the work for them has to be bounded."""
_GOOD: Final = 0.5
"""A further passage has at least this share of the score of the best one."""
_OTHER_COST: Final = 3
_MARGIN: Final = 0.95
"""Of a passage's room: parts of a text have more tokens than it has on average."""
_SHOWN_LANGUAGE: Final = 4_000
"""Characters that show the language of a text."""
_MIN_BLOCKS: Final = 8
"""In a text of fewer blocks, how many of them have a word says little about the word."""
_SATURATION: Final = 0.3
_TOGETHER: Final = 0.3
"""Weight of the words that stand together in one block of a passage."""
_MEANING: Final = 0.5
_MEANING_OF_WORDS: Final = 0.5
_MEANING_OF_ALL_WORDS: Final = 0.3
"""Where no vector is known, the meaning is estimated from the share of the words as in `scoring`."""

_BOUND: Final = re.compile(
    r"[\r\n]+\s*|[.!?\u2026\u061f]+[\"'\u201d\u2019\u00bb)\]]*\s+|[\u3002\uff01\uff1f\uff61\u0964\u0965]+[\u300d\u300f\u201d\u2019\uff09]*\s*"
)
_SPACES: Final = " \t\u3000"
_WEAK_BOUNDS: Final = ",;|&}])>\u3001\uff0c\uff1b"

Floats: TypeAlias = NDArray[np.float64]
Places: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Passage:
    """A run of a turn's plain text: `start` to `end` in code points, `end` excluded. `score`: how well it matches."""

    start: int
    end: int
    score: float


@dataclass(frozen=True, slots=True)
class PieceCosine:
    """A piece of a text that was embedded, and the cosine of its vector and that of the query."""

    start: int
    end: int
    cosine: float


def cost_of(text: str) -> int:
    """Return the cost of a text: its characters, of which those beyond ASCII count three times."""
    if text.isascii():
        return len(text)
    return len(text) + (_OTHER_COST - 1) * (len(text) - len(text.encode("ascii", "ignore")))


def token_cost(source: str, tokens: int) -> float:
    """Return what a token of a text costs that has this many of them."""
    return max(cost_of(source), 1) / tokens if tokens > 0 else float(_OTHER_COST)


def locate_pieces(text: str, pieces: Sequence[str], cosines: Sequence[float]) -> list[PieceCosine]:
    """Return where embedded pieces are in a text. They are in its order, and may overlap.

    What was embedded may have more than the text: the calls of tools. Of a piece that is not in the text, its longest
    line counts.
    """
    located: list[PieceCosine] = []
    after = 0
    for piece, cosine in zip(pieces, cosines, strict=False):
        run = piece
        start = text.find(run, after)
        if start < 0 and (run := max(piece.split("\n"), key=len)).strip():
            start = text.find(run, after)
        if start >= 0:
            located.append(PieceCosine(start, start + len(run), cosine))
            after = start + 1
    return located


def find_passages(
    text: str, query: PreparedQuery, *, max_cost: float, pieces: Sequence[PieceCosine] = ()
) -> list[Passage]:
    """Return the best passages of a text for a query, the best first, none of which overlap. Blocking.

    There is always one, also if nothing matches: then it is the first. `max_cost` is that of the longest passage.
    """
    ruler = _Ruler(text)
    blocks = split_blocks(text, ruler, max_cost * _MARGIN)
    windows = _windows(blocks, ruler, max_cost * _MARGIN)
    starts = np.array([blocks[first][0] for first, _ in windows])
    ends = np.array([blocks[behind - 1][1] for _, behind in windows])
    words = _word_scores(text, query, blocks, windows)
    scores = (1 - _MEANING) * words + _MEANING * _meanings(starts, ends, words, pieces)
    passages: list[Passage] = []
    for at in np.argsort(-scores, kind="stable").tolist():
        score = float(scores[at])
        if passages and (len(passages) == MAX_PASSAGES or score < _GOOD * passages[0].score or score <= 0):
            break
        start, end = _trim(text, int(starts[at]), int(ends[at]))
        if start < end and all(end <= other.start or start >= other.end for other in passages):
            passages.append(Passage(start, end, score))
    return passages or [Passage(0, int(ends[0]), 0.0)]


class _Ruler:
    """Measures the cost of runs of a text."""

    def __init__(self, text: str) -> None:
        self.length: Final = len(text)
        self._sums: Places | None = None
        if not text.isascii():
            codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
            costs = np.where(codes < 128, 1, _OTHER_COST)  # noqa: PLR2004 - ASCII
            self._sums = np.concatenate(([0], np.cumsum(costs)))

    def reach(self, start: int, cost: float) -> int:
        """Return the farthest end of a run from `start` that costs no more; at least one character."""
        if self._sums is None:
            return min(self.length, start + max(1, int(cost)))
        # a whole number, since the array would be converted for another one
        end = int(np.searchsorted(self._sums, int(self._sums[start]) + int(cost), side="right")) - 1
        return max(end, start + 1)


def split_blocks(text: str, ruler: _Ruler, max_cost: float) -> list[tuple[int, int]]:
    """Divide a text into blocks of whole sentences or lines, each about half as long as a passage.

    A longer sentence or line is one block if it fits into a passage; otherwise it is cut between words, else behind a
    comma or a bracket, else anywhere.
    """
    bounds = [match.end() for match in _BOUND.finditer(text)]
    blocks: list[tuple[int, int]] = []
    start = 0
    while start < ruler.length:
        near = ruler.reach(start, max_cost / 2)
        place = bisect_right(bounds, near)
        if near >= ruler.length:
            end = ruler.length
        elif place and bounds[place - 1] > start:
            end = bounds[place - 1]
        else:
            following = bounds[place] if place < len(bounds) else ruler.length
            end = following if following <= ruler.reach(start, max_cost) else _weak_cut(text, start, near)
        blocks.append((start, end))
        start = end
    return blocks


def _weak_cut(text: str, start: int, limit: int) -> int:
    """Return where to cut a run without bounds: behind the last space in its second half, comma or bracket."""
    middle = (start + limit) // 2
    for marks in (_SPACES, _WEAK_BOUNDS):
        cut = max(text.rfind(mark, middle, limit) for mark in marks)
        if cut >= 0:
            return cut + 1
    return limit


def _windows(blocks: Sequence[tuple[int, int]], ruler: _Ruler, max_cost: float) -> list[tuple[int, int]]:
    """Return the passages to compare as ranges of blocks, `(first, behind the last)`: from each block, all that fit."""
    windows: list[tuple[int, int]] = []
    behind = 0
    for first, (start, _) in enumerate(blocks):
        limit = ruler.reach(start, max_cost)
        before, behind = behind, max(behind, first + 1)
        while behind < len(blocks) and blocks[behind][1] <= limit:
            behind += 1
        if behind > before:
            windows.append((first, behind))
    return windows or [(0, 0)]


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a run without the spaces and line breaks around it."""
    run = text[start:end]
    return end - len(run.lstrip()), start + len(run.rstrip())


def _word_scores(
    text: str, query: PreparedQuery, blocks: Sequence[tuple[int, int]], windows: Sequence[tuple[int, int]]
) -> Floats:
    """Return the share of the query's words that each passage has, from 0 to 1; words that are rare here count more."""
    analyser = Analyser()
    language = analyser.detect(text[:_SHOWN_LANGUAGE]) or query.language or DEFAULT
    groups = query.words([language]).groups
    if not groups:
        return np.zeros(len(windows))
    latin = languages_of_words(query.language, [language]).latin
    count = _WordCounter(groups, lambda word: [analyser.stem(word, code) for code in latin])
    counts = np.array([count(text[start:end]) for start, end in blocks], dtype=np.float64)
    frequencies = (counts > 0).sum(axis=0)
    size = max(len(blocks), _MIN_BLOCKS)
    weights = np.log1p((size - frequencies + 0.5) / (frequencies + 0.5))
    weights /= weights.sum()
    shares = counts / (counts + _SATURATION) @ weights
    sums = np.concatenate((np.zeros((1, len(groups))), np.cumsum(counts, axis=0)))
    firsts, behinds = np.array(windows).T
    in_window = sums[behinds] - sums[firsts]
    whole = in_window / (in_window + _SATURATION) @ weights
    together = np.array([shares[first:behind].max() for first, behind in windows])
    return (1 - _TOGETHER) * whole + _TOGETHER * together


class _WordCounter:
    """Counts how often a text has each word of a query, in any inflection."""

    def __init__(self, groups: Sequence[WordGroup], stems: Callable[[str], Sequence[str | None]]) -> None:
        self._size = len(groups)
        self._stems = stems
        self._places: dict[str, list[int]] = {}
        for place, group in enumerate(groups):
            for lexeme in group:
                self._places.setdefault(lexeme, []).append(place)
        self._spaceless = [(lexeme, places) for lexeme, places in self._places.items() if is_spaceless(lexeme)]
        self._of_words: dict[str, frozenset[int]] = {}

    def __call__(self, text: str) -> list[int]:
        counts = [0] * self._size
        words = Counter(marked_words(text))
        for word, times in words.items():
            places = self._of_words.get(word)
            if places is None:
                places = self._of_words[word] = self._places_of(word)
            for place in places:
                counts[place] += times
        if self._spaceless and not text.isascii():
            runs = " ".join(word for word in words.elements() if is_spaceless(word))
            for lexeme, places in self._spaceless:
                for place in places:
                    counts[place] += runs.count(lexeme)
        return counts

    def _places_of(self, word: str) -> frozenset[int]:
        """Return which words of the query a word is; runs of scripts without spaces are counted by their pairs."""
        if is_spaceless(word):
            return frozenset()
        return frozenset(place for stem in self._stems(word) if stem for place in self._places.get(stem, ()))


def _meanings(
    starts: NDArray[np.int64], ends: NDArray[np.int64], words: Floats, pieces: Sequence[PieceCosine]
) -> Floats:
    """Return how near in meaning each passage is: the cosine of the piece that is most of it.

    Where the text was not embedded, it is estimated from the words.
    """
    estimate = _MEANING_OF_WORDS * words + _MEANING_OF_ALL_WORDS * words**2
    if not pieces:
        return estimate
    piece_starts = np.array([piece.start for piece in pieces])
    piece_ends = np.array([piece.end for piece in pieces])
    cosines = np.maximum([piece.cosine for piece in pieces], 0.0)
    common = np.minimum(ends[:, None], piece_ends) - np.maximum(starts[:, None], piece_starts)
    shorter = np.maximum(np.minimum((ends - starts)[:, None], piece_ends - piece_starts), 1)
    shares = np.clip(common / shorter, 0, 1)
    nearest = (shares * cosines).max(axis=1)
    embedded_from, embedded_to = piece_starts.min(), piece_ends.max()
    inside = np.minimum(ends, embedded_to) - np.maximum(starts, embedded_from)
    return np.where(inside * 2 >= ends - starts, nearest, estimate)
