"""Selection of the entries of a large scope that can be among the best by words, before they are read. Pure.

Method: MaxScore (Turtle and Flood, "Query evaluation: strategies and optimizations", 1995). The rarity of a word bounds
the BM25 score that it can add. The entries of the rarest words are scored; the last of the best so far sets the score
to reach. An entry without these words can only be among the best if the bounds of its other words reach that score
together. `candidate_query` returns this condition for the text index.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from app.index.analyser.analyser import match_any, quote_lexeme
from app.index.schemas import BM25_B, BM25_K1

# bounds the query on the text index; above it fewer words are combined, and the query finds more than necessary
_MAX_PARTS = 64
_DEPTHS = (4, 3, 2, 1, 0)
# bounds are summed in another order than scores
_SLACK = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class CorpusStatistics:
    """Statistics of BM25: entries in scope, their mean length, and the frequency of each word of the query."""

    entries: int
    mean_length: float
    frequencies: Sequence[int] = ()

    @property
    def weights(self) -> list[float]:
        """Return the BM25 weight of each word of the query."""
        return [weight(self.entries, frequency) for frequency in self.frequencies]


class QueryWord(NamedTuple):
    """A word of the query that some entry has, and the maximum that it adds to a score."""

    lexeme: str
    frequency: int
    bound: float


def weight(entries: int, frequency: int) -> float:
    """Return the weight of a word that `frequency` of all entries have."""
    return (BM25_K1 + 1) * math.log(1 + (entries - frequency + 0.5) / (frequency + 0.5))


def words_by_rarity(lexemes: Sequence[str], corpus: CorpusStatistics, *, by_share: bool = False) -> list[QueryWord]:
    """Return the words that any entry has, the rarest first. `by_share`: a score is the sum of the words' weights."""
    # a word occurs in an entry at most as often as the entry is long; this is the limit for the longest
    max_size = 1.0 if by_share else 1 / (1 + BM25_K1 * BM25_B / corpus.mean_length)
    words: list[QueryWord] = []
    for lexeme, frequency in zip(lexemes, corpus.frequencies, strict=True):
        if frequency:
            words.append(QueryWord(lexeme, frequency, max_size * weight(corpus.entries, frequency) * _SLACK))
    return sorted(words, key=lambda word: (word.frequency, word.lexeme))


def first_words(words: Sequence[QueryWord], *, matches: int) -> int:
    """Return how many of the rarest words together find at most `matches` entries; at least one."""
    matched = 0
    for count, word in enumerate(words):
        matched += word.frequency
        if count and matched > matches:
            return count
    return len(words)


def candidate_query(words: Sequence[QueryWord], *, without: Sequence[QueryWord], score: float) -> str | None:
    """Return the tsquery of entries without words of `without` whose `words` (the rarest first) may reach `score`.

    Returns None if no entry can.
    """
    if score <= 0:
        parts: list[str] = [quote_lexeme(word.lexeme) for word in words]
    else:
        parts = next(
            parts for depth in _DEPTHS if len(parts := _parts(words, score, depth)) <= _MAX_PARTS or depth == 0
        )
    if not parts:
        return None
    query = " | ".join(parts)
    return f"({query}) & !({match_any([word.lexeme for word in without])})" if without else query


def _parts(words: Sequence[QueryWord], score: float, depth: int) -> list[str]:
    """Return conjunctions of up to `depth` + 1 words. An entry whose words reach `score` matches at least one of them.

    Each starts with its rarest word, so that the others are chosen among the more common ones.
    """
    parts: list[str] = []
    left = sum(word.bound for word in words)
    for at, word in enumerate(words):
        if left < score:
            break
        if word.bound >= score or depth == 0:
            parts.append(quote_lexeme(word.lexeme))
        else:
            more = _parts(words[at + 1 :], score - word.bound, depth - 1)
            parts.extend(f"{quote_lexeme(word.lexeme)} & {part}" for part in more)
        if len(parts) > _MAX_PARTS and depth:
            break
        left -= word.bound
    return parts


@dataclass
class TopEntries:
    """The best entries by words so far, at most `max_size`, and ties with the last of them."""

    max_size: int
    scores: dict[UUID, float] = field(default_factory=dict)

    def add(self, scored: Mapping[UUID, float]) -> None:
        """Add scored entries and keep the best."""
        scores = sorted((self.scores | dict(scored)).items(), key=lambda item: -item[1])
        threshold = scores[self.max_size - 1][1] if len(scores) >= self.max_size else 0.0
        self.scores = {entry_id: score for entry_id, score in scores if score >= threshold}

    @property
    def threshold(self) -> float:
        """Return the score to reach; 0 if there are not enough entries yet."""
        return min(self.scores.values()) if len(self.scores) >= self.max_size else 0.0
