"""Entries as the database sends them: vectors in another order than the entries, and terms that are not packed yet."""

from typing import Any
from uuid import UUID

import numpy as np
import pytest

from app.index.entry_ids import numbers_of_ids
from app.index.search import segment_store

A, B, C, OTHER = (UUID(int=number) for number in (1, 2, 3, 4))


def sent(*vectors: tuple[UUID, int]) -> dict[str, bytes]:
    """A row with vectors of two dimensions: the number of each is its first value."""
    header = np.array([2, 0], ">i2").tobytes()
    return {
        "entry_ids": b"".join(entry_id.bytes for entry_id, _ in vectors),
        "vectors": b"".join(header + np.array([number, 0], ">f4").tobytes() for _, number in vectors),
    }


@pytest.mark.parametrize(
    "read",
    [
        [sent((A, 1), (C, 2), (C, 3))],
        [sent((C, 2), (C, 3)), sent((A, 1))],
        [sent((C, 2), (A, 1), (C, 3))],
        [sent((C, 2)), sent((OTHER, 9), (A, 1)), sent((OTHER, 8), (C, 3))],
        [sent((OTHER, 9)), sent((A, 1), (C, 2)), sent((C, 3))],
    ],
)
def test_each_entry_has_its_vectors_in_their_order_however_they_are_sent(read: Any) -> None:
    parts, first, pieces = segment_store._unpack_vectors(read, numbers_of_ids([A, B, C]), 2)  # noqa: SLF001
    vectors = np.concatenate(parts)[:, 0]
    assert [
        vectors[start : start + count].tolist() for start, count in zip(first.tolist(), pieces.tolist(), strict=True)
    ] == [[1], [], [2, 3]]
    assert len(vectors) == 3


def test_entries_without_vectors_have_none() -> None:
    parts, _, pieces = segment_store._unpack_vectors([], numbers_of_ids([A, B]), 2)  # noqa: SLF001
    assert (sum(map(len, parts)), pieces.tolist()) == (0, [0, 0])
