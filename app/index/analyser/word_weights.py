"""The weight (idf) of the words of a query, in scopes of any size. Pure.

In a scope of few entries the frequencies within it say little: the words of a single entry are in all entries and weigh
nothing. So a scope of fewer than 400 entries is filled up to 400 with short texts of everyday English. How many of
these have a word follows from its rank among common words (Zipf's law); words that are not common are in none of them.
In larger scopes the weights are those of BM25.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from app.index.analyser.analyser import Analyser
from app.index.analyser.languages import DEFAULT, read_file
from app.index.analyser.query_words import QueryWords, WordGroup

MIN_ENTRIES: Final = 400
"""Smaller scopes count as this many entries."""

# share of short texts that have the word of rank r: 2.4 / (r + 40), from 25 words per text
_SHARE: Final = 2.4
_SHARE_OFFSET: Final = 40
_NAME_SHARE: Final = 0.5


class WordWeights:
    """The weights of words. Holds the shares of common words in everyday English; make it once."""

    def __init__(self) -> None:
        self._shares = _common_shares()

    def weights(self, words: QueryWords, frequencies: Sequence[int], *, entries: int) -> list[float]:
        """Return the idf of each word of a query, which `frequencies` of the entries in scope have.

        Participants' names are in the headings of turns: each counts as in half of the texts added, and of all if no
        entry has it (names of roles are in no heading). Any other word in no entry has the highest weight: an entry has
        no share of it.
        """
        added = max(0, MIN_ENTRIES - entries)
        weights: list[float] = []
        for group, frequency in zip(words.groups, frequencies, strict=True):
            is_absent_name = not frequency and not words.names.isdisjoint(group)
            expected = _NAME_SHARE * entries if is_absent_name else frequency
            weights.append(_idf(expected + added * self._share(group, words), entries + added))
        return weights

    def _share(self, group: WordGroup, words: QueryWords) -> float:
        """Return the share of short texts that have a word. Only of English words it is known."""
        if not words.names.isdisjoint(group):
            return _NAME_SHARE
        return self._shares.get(group[0], 0.0) if words.is_english else 0.0


def _idf(frequency: float, entries: int) -> float:
    return math.log(1 + (entries - frequency + 0.5) / (frequency + 0.5))


def _common_shares() -> Mapping[str, float]:
    """Return the share of texts that have each common lexeme: the sum over the words with the same stem."""
    analyser = Analyser()
    shares: defaultdict[str, float] = defaultdict(float)
    for rank, word in enumerate(read_file(DEFAULT).common.split()):
        for lexeme in analyser.lexemes(word):
            shares[lexeme] += _SHARE / (rank + _SHARE_OFFSET)
    return dict(shares)
