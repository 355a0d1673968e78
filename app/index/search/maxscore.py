"""Which entries of a wide scope can be among the best by words, told before they are read. Pure.

Method: MaxScore (Turtle and Flood, "Query evaluation: strategies and optimizations", 1995). What a word can add to a
BM25 score at most follows from how rare it is. The rarest words find entries, whose scores are counted; the last of
the best so far is the score to reach. What has none of these words can only be among the best when the bounds of its
other words reach that score together, which is a question for the text index: `gate` asks it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from app.index.analyser.analyser import any_of, quote
from app.index.schemas import BM25_B, BM25_K1

# of a query on the text index; with more, fewer words at once are asked for, and it finds more than it need
_MAX_PARTS = 64
_DEPTHS = (4, 3, 2, 1, 0)
# bounds are counted in another order than scores
_SLACK = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Corpus:
    """What BM25 counts in: entries in scope, their mean length, and how many have each word of the query."""

    entries: int
    mean_length: float
    frequencies: Sequence[int] = ()

    @property
    def weights(self) -> list[float]:
        """What each word of the query weighs: what BM25 multiplies with."""
        return [weight(self.entries, frequency) for frequency in self.frequencies]


class Word(NamedTuple):
    """A word of the query that some entry has, and the most that it adds to a score."""

    lexeme: str
    frequency: int
    bound: float


def weight(entries: int, frequency: int) -> float:
    """What a word weighs that so many entries of all have."""
    return (BM25_K1 + 1) * math.log(1 + (entries - frequency + 0.5) / (frequency + 0.5))


def words_by_rarity(lexemes: Sequence[str], corpus: Corpus) -> list[Word]:
    """The words that any entry has, the rarest first."""
    # a word stands in an entry at most as often as the entry is long; this is the limit for the longest
    most = 1 / (1 + BM25_K1 * BM25_B / corpus.mean_length)
    words: list[Word] = []
    for lexeme, frequency in zip(lexemes, corpus.frequencies, strict=True):
        if frequency:
            words.append(Word(lexeme, frequency, most * weight(corpus.entries, frequency) * _SLACK))
    return sorted(words, key=lambda word: (word.frequency, word.lexeme))


def first_words(words: Sequence[Word], *, matches: int) -> int:
    """How many of the rarest words together find at most `matches` entries; the rarest in any case."""
    found = 0
    for count, word in enumerate(words):
        found += word.frequency
        if count and found > matches:
            return count
    return len(words)


def gate(words: Sequence[Word], *, without: Sequence[Word], score: float) -> str | None:
    """The tsquery of entries whose words (the rarest first) may reach `score` together, with none of `without`.

    None where no entry can.
    """
    if score <= 0:
        parts: list[str] = [quote(word.lexeme) for word in words]
    else:
        parts = next(
            parts for depth in _DEPTHS if len(parts := _parts(words, score, depth)) <= _MAX_PARTS or depth == 0
        )
    if not parts:
        return None
    asked = " | ".join(parts)
    return f"({asked}) & !({any_of([word.lexeme for word in without])})" if without else asked


def _parts(words: Sequence[Word], score: float, depth: int) -> list[str]:
    """Conjunctions of which an entry has one where its words reach `score`, by up to `depth` + 1 words at once.

    Each starts with the rarest of its words, so that what follows may be sought among the commoner ones.
    """
    parts: list[str] = []
    left = sum(word.bound for word in words)
    for at, word in enumerate(words):
        if left < score:
            break
        if word.bound >= score or depth == 0:
            parts.append(quote(word.lexeme))
        else:
            more = _parts(words[at + 1 :], score - word.bound, depth - 1)
            parts.extend(f"{quote(word.lexeme)} & {part}" for part in more)
        if len(parts) > _MAX_PARTS and depth:
            break
        left -= word.bound
    return parts


@dataclass
class Best:
    """The best entries by words so far, at most `most`, and what scores like the last of them."""

    most: int
    scores: dict[UUID, float] = field(default_factory=dict)

    def add(self, found: Mapping[UUID, float]) -> None:
        """Take in what was found; keep the best."""
        scores = sorted((self.scores | dict(found)).items(), key=lambda item: -item[1])
        least = scores[self.most - 1][1] if len(scores) >= self.most else 0.0
        self.scores = {entry_id: score for entry_id, score in scores if score >= least}

    @property
    def least(self) -> float:
        """The score to reach; 0 where there is room."""
        return min(self.scores.values()) if len(self.scores) >= self.most else 0.0
