"""Vectors of pieces in both forms, and the lists of many terms."""

import numpy as np
import pytest

from app.index.search import segment
from app.index.search.piece_vectors import PieceVectors, cosines, expected_cosines
from app.index.search.segment import Postings, RecentTerms, sort_parts

DIMENSIONS = 130
"""No multiple of 64."""


def unit_vectors(count: int, seed: int = 1) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    vectors = np.random.default_rng(seed).standard_normal((count, DIMENSIONS), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1)[:, None]


def stored(count: int, *, is_compact: bool) -> PieceVectors:
    vectors = PieceVectors(DIMENSIONS, is_compact=is_compact)
    for start in range(0, count, 7):
        part = unit_vectors(count)[start : start + 7]
        vectors.reserve(len(vectors) + len(part))
        vectors.add(part * 3)
    return vectors


def test_compact_vectors_have_the_cosines_of_floats_to_three_digits() -> None:
    query, rows = unit_vectors(1, seed=2)[0], np.arange(3000)[::-1]
    compact, floats = (stored(3000, is_compact=is_compact) for is_compact in (True, False))
    exact = unit_vectors(3000)[rows] @ query
    np.testing.assert_allclose(cosines(floats.numbers, rows, query), exact, atol=1e-6)
    np.testing.assert_allclose(cosines(compact.numbers, rows, query), exact, atol=4e-3)
    assert compact.nbytes * 3 < floats.nbytes


def test_the_share_of_equal_signs_tells_the_angle() -> None:
    vectors = unit_vectors(20_000)
    compact = PieceVectors(DIMENSIONS, is_compact=True)
    compact.reserve(len(vectors))
    compact.add(vectors)
    assert compact.signs is not None
    near = vectors[5] + 0.5 * unit_vectors(1, seed=3)[0]
    near /= np.linalg.norm(near)
    expected = expected_cosines(compact.signs, near)
    assert expected[5] == pytest.approx(vectors[5] @ near, abs=0.12)
    assert expected.argmax() == 5
    np.testing.assert_allclose(expected_cosines(compact.signs, vectors[8])[8], 1, atol=1e-6)


@pytest.mark.parametrize("is_compact", [True, False])
def test_cleared_vectors_are_zero_in_what_was_read_before_and_the_others_stay(*, is_compact: bool) -> None:
    vectors = stored(20, is_compact=is_compact)
    before, signs = vectors.numbers, vectors.signs
    vectors.clear(np.array([3]))
    assert not before[3].any()
    assert before[4].any()
    assert signs is None or not signs[:, 3].any()
    assert cosines(before, np.array([3]), unit_vectors(1)[0]).tolist() == [0]
    vectors.keep(np.array([0, 4]))
    assert len(vectors) == 2
    np.testing.assert_array_equal(vectors.numbers[1], before[4])
    assert signs is None or (vectors.signs is not None and vectors.signs[:, 1].tolist() == signs[:, 4].tolist())


def test_many_terms_are_sorted_a_share_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(4)
    parts = [
        RecentTerms(
            chance.choice(chance.integers(0, 2**64, 40, dtype=np.uint64), 300),
            chance.integers(0, 1000, 300).astype(np.int32),
            chance.integers(1, 9, 300).astype(np.uint8),
        )
        for _ in range(5)
    ]
    joined = RecentTerms.joined(parts)
    at_once = Postings.sort(joined.terms, joined.row, joined.count)
    monkeypatch.setattr(segment, "_SORTED_AT_ONCE", 100)
    by_shares = sort_parts(parts)
    for name in ("terms", "start", "row", "count"):
        np.testing.assert_array_equal(getattr(by_shares, name), getattr(at_once, name))
