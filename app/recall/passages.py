"""Passages: runs of a long turn's plain text between sentence or line bounds. Pure.

A text is divided into units, its sentences or lines, and a passage is the best unit with as many of its neighbours as
fit. Units are compared by the words of the query, of which those that are rare in this text count more, and by the
cosine of the pieces around them that the index has embedded. Behind these pieces, words alone decide. It takes a call
for each unit and arrays for the rest, since a turn may have a mebibyte.

Lengths are estimated: a character costs one, one that is not ASCII three. The tokens of the whole turn were counted
when it was stored, so `token_cost` is what a token of this turn costs on average.
"""

import re
from bisect import bisect_left
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
_MIN_COST: Final = 30
"""Shorter sentences and lines are compared with those that follow."""
_PARTS: Final = 8
"""A run without bounds that is longer than a passage is divided into units of this part of a passage."""
_MIN_UNITS: Final = 8
"""In a text of fewer units, how many of them have a word says little about the word."""
_NEAR: Final = 2
"""Units before and after one whose words count with it."""
_NEIGHBOURS: Final = 0.3
"""Weight of the words of a unit and its neighbours, beside those of the unit itself."""
_MEANING: Final = 0.3
_OFF_CENTRE: Final = 0.01
"""Of units of one piece that are equal otherwise, that in its middle is the best: a passage then shows the piece."""
_MEANING_OF_WORDS: Final = 0.5
_MEANING_OF_ALL_WORDS: Final = 0.3
"""Where no vector is known, the meaning is estimated from the share of the words as in `scoring`."""

_BOUND: Final = re.compile(
    r"[\r\n]+\s*|[.!?\u2026\u061f]+[\"'\u201d\u2019\u00bb)\]]*\s+|[\u3002\uff01\uff1f\uff61\u0964\u0965]+[\u300d\u300f\u201d\u2019\uff09]*\s*"
)
_SPACES: Final = " \t\u3000"
_WEAK_BOUNDS: Final = ",;|&}])>\u3001\uff0c\uff1b"

Floats: TypeAlias = NDArray[np.float64]


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

    Of any text but an empty one there is a passage, also if nothing matches: then it is the first. `max_cost` is that
    of the longest passage.
    """
    if not text:
        return []
    ruler = _Ruler(text)
    room = max_cost * _MARGIN
    units = split_units(text, ruler, room)
    words = _word_scores(text, query, units)
    scores = (1 - _MEANING) * words + _MEANING * _meanings(units, words, pieces)
    passages: list[Passage] = []
    free = [True] * len(units)
    for at in np.argsort(-scores, kind="stable").tolist():
        score = float(scores[at])
        if passages and (len(passages) == MAX_PASSAGES or score < _GOOD * passages[0].score or score <= 0):
            break
        if not free[at]:
            continue
        first, behind = _grow(units, at, free, ruler, room)
        free[first:behind] = [False] * (behind - first)
        start, end = _trim(text, units[first][0], units[behind - 1][1])
        if start < end:
            passages.append(Passage(start, end, score))
    return passages or [Passage(0, units[0][1], 0.0)]


def shorten_to_passage(text: str, query: PreparedQuery, *, max_characters: int) -> str:
    """Return a text, or the best passage of a longer one with marks of what is left out. Blocking."""
    if len(text) <= max_characters:
        return text
    best = find_passages(text, query, max_cost=max_characters)[0]
    before = f"[… {best.start} characters] " if best.start else ""
    after = f" [… {len(text) - best.end} more characters]" if best.end < len(text) else ""
    return f"{before}{text[best.start : best.end]}{after}"


class _Ruler:
    """Measures the cost of runs of a text."""

    def __init__(self, text: str) -> None:
        self.length: Final = len(text)
        self._sums: NDArray[np.int64] | None = None
        if not text.isascii():
            codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
            costs = np.where(codes < 128, 1, _OTHER_COST)  # noqa: PLR2004 - ASCII
            self._sums = np.concatenate(([0], np.cumsum(costs)))

    def cost(self, start: int, end: int) -> int:
        """Return the cost of a run."""
        return end - start if self._sums is None else int(self._sums[end] - self._sums[start])

    def reach(self, start: int, cost: float) -> int:
        """Return the farthest end of a run from `start` that costs no more; at least one character."""
        if self._sums is None:
            return min(self.length, start + max(1, int(cost)))
        # a whole number, since the array would be converted for another one
        end = int(np.searchsorted(self._sums, int(self._sums[start]) + int(cost), side="right")) - 1
        return max(end, start + 1)


def split_units(text: str, ruler: _Ruler, max_cost: float) -> list[tuple[int, int]]:
    """Divide a text into sentences and lines; short ones are one unit with those that follow.

    One that is longer than a passage is divided between words, else behind a comma or a bracket, else anywhere. Its
    units are much shorter than a passage, so that a passage has text before and behind the best of them.
    """
    longest_part = min(max(max_cost / _PARTS, _MIN_COST), max_cost)
    bounds = [match.end() for match in _BOUND.finditer(text)]
    if not bounds or bounds[-1] < ruler.length:
        bounds.append(ruler.length)
    units: list[tuple[int, int]] = []
    start = place = 0
    while start < ruler.length:
        longest = ruler.reach(start, max_cost)
        place = bisect_left(bounds, min(ruler.reach(start, _MIN_COST), longest), place)
        end = bounds[place]
        if end > longest and place and bounds[place - 1] > start:
            end = bounds[place - 1]
        is_divided = end > longest
        while start < end:
            cut = _weak_cut(text, start, min(end, ruler.reach(start, longest_part))) if is_divided else end
            units.append((start, cut))
            start = cut
    return units


def _weak_cut(text: str, start: int, limit: int) -> int:
    """Return where to cut a run without bounds: behind the last space in its second half, comma or bracket."""
    middle = (start + limit) // 2
    for marks in (_SPACES, _WEAK_BOUNDS):
        cut = max(text.rfind(mark, middle, limit) for mark in marks)
        if cut >= 0:
            return cut + 1
    return limit


def _grow(
    units: Sequence[tuple[int, int]], at: int, free: Sequence[bool], ruler: _Ruler, max_cost: float
) -> tuple[int, int]:
    """Return a unit with those around it that fit into a passage, as a range of units: `(first, behind the last)`."""
    first, behind = at, at + 1
    is_growing = True
    while is_growing:
        is_growing = False
        if behind < len(units) and free[behind] and ruler.cost(units[first][0], units[behind][1]) <= max_cost:
            behind += 1
            is_growing = True
        if first and free[first - 1] and ruler.cost(units[first - 1][0], units[behind - 1][1]) <= max_cost:
            first -= 1
            is_growing = True
    return first, behind


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a run without the spaces and line breaks around it."""
    run = text[start:end]
    return end - len(run.lstrip()), start + len(run.rstrip())


def _word_scores(text: str, query: PreparedQuery, units: Sequence[tuple[int, int]]) -> Floats:
    """Return the share of the query's words that each unit and its neighbours have, from 0 to 1.

    Words that few units have count more.
    """
    analyser = Analyser()
    language = analyser.detect(text[:_SHOWN_LANGUAGE]) or query.language or DEFAULT
    groups = query.words([language]).groups
    if not groups:
        return np.zeros(len(units))
    latin = languages_of_words(query.language, [language]).latin
    finder = _WordFinder(groups, lambda word: [analyser.stem(word, code) for code in latin])
    has = np.zeros((len(units), len(groups)), dtype=np.bool_)
    for row, (start, end) in enumerate(units):
        places = finder.places(text[start:end])
        if places:
            has[row, list(places)] = True
    frequencies = has.sum(axis=0)
    size = max(len(units), _MIN_UNITS)
    weights = np.log1p((size - frequencies + 0.5) / (frequencies + 0.5))
    weights /= weights.sum()
    near = has.copy()
    for distance in range(1, _NEAR + 1):
        near[distance:] |= has[:-distance]
        near[:-distance] |= has[distance:]
    return (1 - _NEIGHBOURS) * (has @ weights) + _NEIGHBOURS * (near @ weights)


class _WordFinder:
    """Finds which words of a query a text has, in any inflection."""

    def __init__(self, groups: Sequence[WordGroup], stems: Callable[[str], Sequence[str | None]]) -> None:
        self._stems = stems
        self._places: dict[str, set[int]] = {}
        for place, group in enumerate(groups):
            for lexeme in group:
                self._places.setdefault(lexeme, set()).add(place)
        self._spaceless = [(lexeme, places) for lexeme, places in self._places.items() if is_spaceless(lexeme)]
        self._of_words: dict[str, frozenset[int]] = {}

    def places(self, text: str) -> set[int]:
        """Return the places of the words that a text has."""
        present: set[int] = set()
        words = set(marked_words(text))
        for word in words:
            places = self._of_words.get(word)
            if places is None:
                places = self._of_words[word] = self._places_of(word)
            if places:
                present |= places
        if self._spaceless and not text.isascii():
            runs = [word for word in words if is_spaceless(word)]
            for lexeme, places in self._spaceless:
                if any(lexeme in run for run in runs):
                    present |= places
        return present

    def _places_of(self, word: str) -> frozenset[int]:
        """Return which words of the query a word is; runs of scripts without spaces are searched for its pairs."""
        if is_spaceless(word):
            return frozenset()
        return frozenset(place for stem in self._stems(word) if stem for place in self._places.get(stem, ()))


def _meanings(units: Sequence[tuple[int, int]], words: Floats, pieces: Sequence[PieceCosine]) -> Floats:
    """Return how near in meaning each unit is: the cosine of the nearest piece around it.

    Behind the pieces it is their mean, so that words decide. If none is known, it is estimated from the words.
    """
    if not pieces:
        return _MEANING_OF_WORDS * words + _MEANING_OF_ALL_WORDS * words**2
    cosines = np.maximum([piece.cosine for piece in pieces], 0.0)
    if len(pieces) == 1:
        return np.full(len(units), float(cosines[0]))
    middles = np.array(units).sum(axis=1) // 2
    starts, ends = np.array([(piece.start, piece.end) for piece in pieces]).T
    is_around = (starts <= middles[:, None]) & (middles[:, None] < ends)
    distances = np.abs(2 * middles[:, None] - starts - ends) / (ends - starts)
    nearest: Floats = np.where(is_around, cosines * (1 - _OFF_CENTRE * distances), 0.0).max(axis=1)
    return np.where(is_around.any(axis=1), nearest, float(cosines.mean()))
