"""Which entries of a wide scope may be among the best by words, told before they are read."""

import re
from itertools import combinations
from uuid import UUID

import numpy as np
import pytest

from app.index.schemas import BM25_B, BM25_K1
from app.index.search.maxscore import (
    CorpusStatistics,
    QueryWord,
    TopEntries,
    candidate_query,
    first_words,
    words_by_rarity,
)


def finds(query: str, present: set[str]) -> bool:
    """What the text index says to a tsquery, for an entry with these words."""
    python = re.sub(r"'(\w+)'", lambda match: str(match[1] in present), query)
    return bool(eval(python.replace("&", " and ").replace("|", " or ").replace("!", " not ")))  # noqa: S307 - our own text


def some_words(count: int, seed: int) -> list[QueryWord]:
    rarity = sorted(np.random.default_rng(seed).uniform(0.1, 9, count).tolist(), reverse=True)
    return [QueryWord(f"w{number}", number + 1, bound) for number, bound in enumerate(rarity)]


@pytest.mark.parametrize("seed", range(40))
def test_a_gate_lets_through_all_whose_words_can_reach_the_score_and_of_few_words_no_others(seed: int) -> None:
    words = some_words(5, seed)
    score = np.random.default_rng(seed + 1000).uniform(0.1, 25)
    query = candidate_query(words, without=[], score=score)
    for size in range(len(words) + 1):
        for some in combinations(words, size):
            reaches = sum(word.bound for word in some) >= score
            assert reaches == (query is not None and finds(query, {word.lexeme for word in some})), (query, some)


@pytest.mark.parametrize("seed", range(40))
def test_a_gate_of_many_words_stays_short_and_loses_nothing(seed: int) -> None:
    chance = np.random.default_rng(seed)
    words = some_words(int(chance.integers(20, 65)), seed)
    score = chance.uniform(1, sum(word.bound for word in words))
    query = candidate_query(words, without=[], score=score)
    assert query is not None
    assert query.count("|") <= 64
    for _ in range(200):
        some = [word for word, taken in zip(words, chance.random(len(words)) < chance.random(), strict=True) if taken]
        if sum(word.bound for word in some) >= score:
            assert finds(query, {word.lexeme for word in some})


def test_a_gate_passes_over_what_was_found_before_and_is_shut_when_no_words_are_enough() -> None:
    words = [QueryWord("a", 1, 4.0), QueryWord("b", 2, 2.0), QueryWord("c", 3, 1.0)]
    assert candidate_query(words, without=[], score=7.5) is None
    assert candidate_query([], without=words, score=0) is None
    assert candidate_query(words[1:], without=words[:1], score=2.5) == "('b' & 'c') & !('a')"
    assert candidate_query(words[2:], without=words[:2], score=0) == "('c') & !('a' | 'b')"


@pytest.mark.parametrize("seed", range(20))
def test_no_entry_scores_more_for_a_word_than_its_bound(seed: int) -> None:
    chance = np.random.default_rng(seed)
    frequencies = chance.integers(0, 50_000, 20).tolist()
    corpus = CorpusStatistics(50_000, chance.uniform(1, 400), frequencies)
    words = words_by_rarity([f"w{number}" for number in range(20)], corpus)
    assert [word.frequency for word in words] == sorted(frequency for frequency in frequencies if frequency)
    assert [word.bound for word in words] == sorted((word.bound for word in words), reverse=True)
    short = 1 + BM25_K1 * (1 - BM25_B + BM25_B / corpus.mean_length)
    for word in words:
        rarity = word.bound * (1 + BM25_K1 * BM25_B / corpus.mean_length) / (BM25_K1 + 1)
        for length in (1, 2, 14, 300, 100_000):
            often = length * (BM25_K1 + 1) / (length + BM25_K1 * (1 - BM25_B + BM25_B * length / corpus.mean_length))
            assert rarity * often <= word.bound
        assert rarity * (BM25_K1 + 1) / short <= word.bound


def test_the_rarest_words_are_looked_for_first_and_one_in_any_case() -> None:
    words = [QueryWord(lexeme, frequency, 1.0) for lexeme, frequency in (("a", 10), ("b", 50), ("c", 60))]
    assert first_words(words, matches=100) == 2
    assert first_words(words, matches=120) == 3
    assert first_words(words, matches=5) == 1
    assert first_words([], matches=5) == 0


def test_the_best_are_kept_with_all_that_score_like_the_last() -> None:
    ids = [UUID(int=number) for number in range(6)]
    best = TopEntries(3)
    best.add(dict(zip(ids[:2], (5.0, 1.0), strict=True)))
    assert best.threshold == 0
    best.add(dict(zip(ids[2:], (3.0, 2.0, 2.0, 1.0), strict=True)))
    assert best.threshold == 2.0
    assert set(best.scores) == {ids[0], ids[2], ids[3], ids[4]}
