"""The vectors of a segment's pieces: as floats, or in a compact form for large scopes. Pure.

The compact form has a byte per number, scaled to the largest number of its vector, and a bit per number: its sign. The
signs of all vectors are compared with those of a query first, in a few milliseconds for a million. The share of equal
signs tells the angle between two vectors, give or take some degrees; the bytes tell the cosine to three digits.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Numbers: TypeAlias = NDArray[np.float32 | np.int8]
Signs: TypeAlias = NDArray[np.uint64]
"""One column per vector; a row has 64 signs of each."""

_LENGTH_TOLERANCE: Final = 2e-6
"""A vector whose squared length differs from 1 by less is not divided by its length again."""
_MAX_BYTE: Final = 127
_BITS: Final = 64
_BLOCK: Final = 16_384
"""Entries or signs compared at a time: their temporary arrays stay in the cache of the processor."""
_COMPARED_BLOCK: Final = 1024
"""Vectors compared at a time."""
_MIN_ROOM: Final = 64


class PieceVectors:
    """Vectors in the order in which they were added. Those that a view has do not change, except for `clear`."""

    def __init__(self, dimensions: int, *, is_compact: bool) -> None:
        self._dimensions = dimensions
        self._numbers: Numbers = np.empty((0, dimensions), np.int8 if is_compact else np.float32)
        self._signs: Signs | None = np.empty((-(-dimensions // _BITS), 0), np.uint64) if is_compact else None
        self._count = 0

    def __len__(self) -> int:
        """Return the number of vectors."""
        return self._count

    @property
    def numbers(self) -> Numbers:
        """Return all vectors, of the length 1 if they are floats."""
        return self._numbers[: self._count]

    @property
    def signs(self) -> Signs | None:
        """Return the signs of all vectors; None if these are floats."""
        return None if self._signs is None else self._signs[:, : self._count]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays."""
        return self._numbers.nbytes + (0 if self._signs is None else self._signs.nbytes)

    def reserve(self, count: int) -> None:
        """Make room for `count` vectors together, and for some more if there are any. Views keep the old arrays."""
        if count > len(self._numbers):
            self._resize(max(count, self._count + self._count // 4 + _MIN_ROOM) if self._count else count)

    def trim(self) -> None:
        """Give back the room that is not used, if it is much."""
        if len(self._numbers) > self._count + self._count // 4 + _MIN_ROOM:
            self._resize(self._count)

    def _resize(self, room: int) -> None:
        numbers = np.empty((room, self._dimensions), self._numbers.dtype)
        numbers[: self._count] = self.numbers
        self._numbers = numbers
        if self._signs is not None:
            signs = np.empty((len(self._signs), room), np.uint64)
            signs[:, : self._count] = self._signs[:, : self._count]
            self._signs = signs

    def add(self, vectors: Floats) -> None:
        """Add vectors of any length and byte order, for which there is room."""
        added = slice(self._count, self._count + len(vectors))
        self._count = added.stop
        plain = np.array(vectors, np.float32)
        if self._signs is None:
            _normalise(plain)
            self._numbers[added] = plain
        else:
            self._numbers[added] = _as_bytes(plain)
            self._signs[:, added] = read_signs(plain)

    def clear(self, rows: NDArray[np.intp]) -> None:
        """Make some vectors zero, in views too."""
        self._numbers[rows] = 0
        if self._signs is not None:
            self._signs[:, rows] = 0

    def keep(self, rows: NDArray[np.intp]) -> None:
        """Leave out all other vectors."""
        self._numbers, self._count = self._numbers[rows], len(rows)
        if self._signs is not None:
            self._signs = np.ascontiguousarray(self._signs[:, rows])


def read_signs(vectors: Floats) -> Signs:
    """Return the signs of vectors. The last row ends in zeros if the dimensions are no multiple of 64."""
    packed = np.packbits(vectors > 0, axis=1)
    padded = np.zeros((len(vectors), -(-vectors.shape[1] // _BITS) * 8), np.uint8)
    padded[:, : packed.shape[1]] = packed
    return np.ascontiguousarray(padded.view(np.uint64).T)


def cosines(vectors: Numbers, rows: NDArray[np.intp], vector: Floats) -> Floats:
    """Return the cosines of some vectors and another one of the length 1; 0 for one that has no length."""
    cosine = np.empty(len(rows), np.float32)
    for block in blocks_of(len(rows), size=_COMPARED_BLOCK):
        plain = vectors[rows[block]].astype(np.float32, copy=False)
        np.vecdot(plain, vector, out=cosine[block])
        if vectors.dtype == np.int8:
            cosine[block] /= np.maximum(np.sqrt(np.vecdot(plain, plain)), np.float32(1))
    return cosine


def expected_cosines(signs: Signs, vector: Floats) -> Floats:
    """Return the cosine of each vector and another one that the share of their equal signs lets expect."""
    dimensions = len(vector)
    query = read_signs(vector[None])[:, 0]
    of_count = np.cos(np.pi / dimensions * np.arange(dimensions + 1)).astype(np.float32)
    cosine = np.empty(signs.shape[1], np.float32)
    different, bits = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint8)
    for block in blocks_of(len(cosine)):
        size = block.stop - block.start
        unequal = np.zeros(size, np.uint16)
        for row, word in zip(signs, query, strict=True):
            np.bitwise_xor(row[block], word, out=different[:size])
            unequal += np.bitwise_count(different[:size], out=bits[:size])
        cosine[block] = of_count[unequal]
    return cosine


def blocks_of(count: int, *, size: int = _BLOCK) -> Iterator[slice]:
    """Return slices of all of `count` elements, some at a time.

    In one thread: two that take turns after each of so many short steps wait for each other on a busy machine.
    """
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _as_bytes(vectors: Floats) -> NDArray[np.int8]:
    """Return vectors scaled so that the largest number of each is a whole byte."""
    largest = np.abs(vectors).max(axis=1, initial=0, keepdims=True)
    scaled = vectors * (np.float32(_MAX_BYTE) / np.where(largest > 0, largest, np.float32(1)))
    return np.rint(scaled).astype(np.int8)


def _normalise(vectors: Floats) -> None:
    """Give vectors the length 1, except those that have no length."""
    squares = np.vecdot(vectors, vectors)
    unequal = np.flatnonzero((np.abs(squares - 1) > _LENGTH_TOLERANCE) & (squares > 0))
    if len(unequal):
        vectors[unequal] /= np.sqrt(squares[unequal])[:, None]
