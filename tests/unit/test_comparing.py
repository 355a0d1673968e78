"""How alike two orders of hits are."""

import pytest

from app.recall.rank_overlap import overlap, rank_agreement


@pytest.mark.parametrize(
    ("one", "other", "same", "agreement"),
    [
        ("", "", 1, 1),
        ("abc", "abc", 1, 1),
        ("abc", "xyz", 0, 0),
        ("ab", "ba", 1, 0.5),
        ("abcd", "abxy", 0.5, (1 + 1 + 2 / 3 + 1 / 2) / 4),
        ("abcd", "xycd", 0.5, (0 + 0 + 1 / 3 + 2 / 4) / 4),
        ("ab", "abcd", 0.5, (1 + 1 + 2 / 3 + 2 / 4) / 4),
        ("abc", "", 0, 0),
    ],
)
def test_the_same_hits_count_and_the_first_places_most(one: str, other: str, same: float, agreement: float) -> None:
    assert overlap(one, other) == overlap(other, one) == same
    assert rank_agreement(one, other) == rank_agreement(other, one) == pytest.approx(agreement)
