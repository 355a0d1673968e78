"""Terms: the words of an entry as numbers, the form in which they are compared in process memory. Pure.

A term is a 64-bit hash of a lexeme, so that no dictionary of words is needed: neither a shared one, in which a tenant's
words would remain, nor one per scope. Two of a million words have the same hash with a probability of 3 in 100 million.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.index.analyser.words import fold

BYTES_PER_TERM: Final = 9
"""A term in packed form: 8 bytes of hash and 1 byte of count."""

_MAX_COUNT: Final = 255
_MAX_FOLDED: Final = 8_192
_MAX_HASHES: Final = 20_000
_LEXEME: Final = re.compile(r"'((?:[^']|'')*)'(?::([0-9A-D,]+))?")


def hash_term(lexeme: str) -> int:
    """Return the term of a lexeme, from 0 to 2^64 - 1."""
    return int.from_bytes(hashlib.blake2b(lexeme.encode(), digest_size=8).digest(), "little")


def hash_text(text: str) -> int:
    """Return a number that texts have in common if they say the same, except 0: the text has no word.

    Long texts are compared as they are, since copies of them differ in nothing.
    """
    folded = fold_short(text)
    return (
        int.from_bytes(hashlib.blake2b(folded.encode(), digest_size=8).digest(), "little", signed=True) if folded else 0
    )


def fold_short(text: str) -> str:
    """Return what texts have in common if they say the same; empty: the text has no word. Long texts are unchanged."""
    return fold(text) if len(text) <= _MAX_FOLDED else text


class TermHashes(dict[str, bytes]):
    """The hashes of lexemes: those of a batch of texts are made once, as most of its words are in several texts."""

    def __missing__(self, lexeme: str) -> bytes:
        """Return the hash of another lexeme, and keep it."""
        if len(self) >= _MAX_HASHES:
            self.clear()
        digest = self[lexeme] = hashlib.blake2b(lexeme.encode(), digest_size=8).digest()
        return digest


def pack_terms(counts: Mapping[str, int], hashes: TermHashes | None = None) -> bytes:
    """Return the terms of an entry: first all hashes (little-endian), then all counts, each at most 255.

    `hashes`: those of a batch of texts, to which new ones are added.
    """
    of_lexeme = TermHashes() if hashes is None else hashes
    packed = b"".join([of_lexeme[lexeme] for lexeme in counts])
    return packed + bytes([min(count, _MAX_COUNT) for count in counts.values()])


def unpack_all_terms(
    packed: bytes, sizes: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.uint8]]:
    """Return the hashes of several entries' packed terms, the number of the entry of each, and the counts.

    `sizes`: how many terms each entry has.
    """
    entry = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    ends = BYTES_PER_TERM * np.cumsum(sizes)
    starts, middles, stops = (ends - BYTES_PER_TERM * sizes).tolist(), (ends - sizes).tolist(), ends.tolist()
    hashes = b"".join([packed[start:middle] for start, middle in zip(starts, middles, strict=True)])
    counts = b"".join([packed[middle:stop] for middle, stop in zip(middles, stops, strict=True)])
    return np.frombuffer(hashes, "<u8"), entry, np.frombuffer(counts, np.uint8)


def pack_lexemes(tsvector: str) -> bytes:
    """Return the terms of an entry with these lexemes, a tsvector in its text form. Blocking."""
    return pack_terms(parse_tsvector(tsvector))


def parse_tsvector(text: str) -> dict[str, int]:
    """Return the lexemes of a tsvector in its text form, with the number of their positions."""
    return {
        quoted.replace("''", "'").replace("\\\\", "\\"): positions.count(",") + 1
        for quoted, positions in _LEXEME.findall(text)
    }
