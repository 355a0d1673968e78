"""The weights of words in scopes of any size."""

import math

import pytest

from app.index.analyser.query_words import plain_words
from app.index.analyser.word_weights import MIN_ENTRIES, WordWeights


@pytest.fixture(scope="module")
def words() -> WordWeights:
    return WordWeights()


def test_a_large_scope_has_the_weights_of_bm25(words: WordWeights) -> None:
    expected = [math.log(1 + (1000 - frequency + 0.5) / (frequency + 0.5)) for frequency in (0, 3, 1000)]
    assert words.weights(plain_words(["violin", "like", "mia"], {"mia"}), [0, 3, 1000], entries=1000) == pytest.approx(
        expected
    )


def test_a_rare_word_weighs_as_much_in_one_entry_as_in_many(words: WordWeights) -> None:
    [lone], [one_of_many] = (
        words.weights(plain_words(["violin"]), [1], entries=entries) for entries in (1, MIN_ENTRIES)
    )
    assert lone == pytest.approx(one_of_many)


def test_common_words_and_names_weigh_less_than_rare_words_in_a_small_scope(words: WordWeights) -> None:
    rare, common, name = words.weights(plain_words(["violin", "time", "mia"], {"mia"}), [1, 1, 1], entries=1)
    assert rare > common + 2
    assert common > name > 0


def test_common_words_are_found_by_their_stems(words: WordWeights) -> None:
    stemmed, unknown = words.weights(plain_words(["famili", "families"]), [1, 1], entries=1)
    assert stemmed < unknown


def test_no_words_have_no_weights(words: WordWeights) -> None:
    assert words.weights(plain_words([]), [], entries=0) == []
    assert words.weights(plain_words(["violin"]), [0], entries=0)[0] > 0
