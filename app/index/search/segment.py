"""Segment: the entries of one scope in process memory, as arrays. Pure.

A segment has the columns that filters and ranking need, a vector per piece of text (in a compact form if there are
many), and an inverted list of terms: for each term the rows that have it, with its count. No text is kept. Rows are
only added; a changed entry gets a new row, and its old one is dead. When a quarter of the rows is dead, the segment is
rebuilt without them. The row of a removed entry is dead too, its vectors become zero at once, and names that no other
entry has are removed; its terms remain as hashes, without being found, until the segment is rebuilt.

A search reads a `SegmentView`. It does not change when entries are added, changed or removed meanwhile, except that the
vectors of removed entries become zero.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from app.index.entry_ids import EntryIds, rows_with
from app.index.schemas import PlaceOrder
from app.index.search.dictionaries import NAME_COLUMNS, NONE, Codes, Dictionaries, Rows
from app.index.search.piece_vectors import Floats, Numbers, PieceVectors, Signs

Flags: TypeAlias = NDArray[np.bool_]

_POSITION_BITS: Final = 40
_MIN_RECENT: Final = 256
_SEGMENT_BYTES: Final = 8192
"""Of a segment without entries: arrays, dictionaries and other objects of Python."""
_CODE_BYTES: Final = 250
"""About the bytes of a value in a dictionary."""
_DATES_BYTES: Final = 400
"""About the bytes of the resolved dates of an entry."""
_RECENT_SHARE: Final = 8
"""Terms of new rows are sorted into the list when the new rows are more than 1/8 of all."""
_DEAD_SHARE: Final = 4
_FIRST_BITS: Final = 4
_SORTED_AT_ONCE: Final = 4_000_000
_MAX_EXPECTED: Final = 2
"""Vectors per entry for which a new segment has room from the start, at most."""


def microseconds(time: datetime) -> int:
    """Return a time as in the columns of a segment."""
    return (time - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Columns:
    """One element per entry. Texts are codes of the segment's dictionaries; times are microseconds since 2000, UTC.

    `conversation`, `project`, `owner`, `agent`, `actor`, `role`: codes, -1 for none; `group` is the code of a session
    of a conversation. `position`: -1 for none. `expires_at`: the largest number for never. `text_hash`: that of
    `hash_text`. `language`: its place in `CODES`. `first_piece` and `pieces`: its rows among the vectors.
    """

    entry_id: EntryIds
    kind: NDArray[np.uint8]
    conversation: Rows
    project: Rows
    owner: Rows
    agent: Rows
    actor: Rows
    role: Rows
    group: Rows
    position: NDArray[np.int64]
    session: NDArray[np.int64]
    occurred_at: NDArray[np.int64]
    expires_at: NDArray[np.int64]
    length: Rows
    cues: NDArray[np.uint8]
    text_hash: NDArray[np.int64]
    language: NDArray[np.uint8]
    first_piece: Rows
    pieces: Rows

    def take(self, rows: "slice | NDArray[np.intp]") -> "Columns":
        """Return some rows of each column."""
        return Columns(*(array[rows] for array in _columns_of(self)))

    @property
    def nbytes(self) -> int:
        """Return the bytes of all columns."""
        return sum(array.nbytes for array in _columns_of(self))


_COLUMN_NAMES: Final = tuple(column.name for column in fields(Columns))
_COLUMN_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("kind", "cues", "language"), "u1"),
    **dict.fromkeys(("position", "session", "occurred_at", "expires_at", "text_hash"), "i8"),
}
"""Types of columns; the others are codes, counts and rows: int32."""
_columns_of = cast("Callable[[Columns], tuple[NDArray[Any], ...]]", attrgetter(*_COLUMN_NAMES))


@dataclass(frozen=True, slots=True)
class Postings:
    """Terms with the rows that have them: those of term `i` are `row[start[i]:start[i + 1]]`, with their counts."""

    terms: NDArray[np.uint64]
    start: NDArray[np.int64]
    row: Rows
    count: NDArray[np.uint8]

    @classmethod
    def sort(cls, terms: NDArray[np.uint64], row: Rows, count: NDArray[np.uint8]) -> "Postings":
        """Return the postings of parallel arrays in any order."""
        order = np.argsort(terms, kind="stable")
        ordered = terms[order]
        first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(terms)])
        return cls(ordered[first], np.append(first, len(terms)), row[order], count[order])

    def find(self, term: int) -> tuple[Rows, NDArray[np.uint8]]:
        """Return the rows that have a term, and its counts."""
        at = int(np.searchsorted(self.terms, np.uint64(term)))
        if at == len(self.terms) or self.terms[at] != np.uint64(term):
            return self.row[:0], self.count[:0]
        part = slice(int(self.start[at]), int(self.start[at + 1]))
        return self.row[part], self.count[part]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays."""
        return self.terms.nbytes + self.start.nbytes + self.row.nbytes + self.count.nbytes


@dataclass(frozen=True, slots=True)
class RecentTerms:
    """Terms of rows that were added after `Postings` was sorted: one element per row and term."""

    terms: NDArray[np.uint64]
    row: Rows
    count: NDArray[np.uint8]

    @classmethod
    def joined(cls, parts: "Sequence[RecentTerms]") -> "RecentTerms":
        """Return the terms of all parts."""
        return cls(
            np.concatenate([part.terms for part in parts]),
            np.concatenate([part.row for part in parts]),
            np.concatenate([part.count for part in parts]),
        )

    def beginning_with(self, first_bits: int) -> "RecentTerms":
        """Return the elements of the terms that begin with these bits."""
        at = np.flatnonzero(self.terms >> np.uint64(64 - _FIRST_BITS) == np.uint64(first_bits))
        return RecentTerms(self.terms[at], self.row[at], self.count[at])

    def find(self, term: int) -> tuple[Rows, NDArray[np.uint8]]:
        """Return the rows that have a term, and its counts."""
        rows = np.flatnonzero(self.terms == np.uint64(term))
        return self.row[rows], self.count[rows]


def sort_parts(parts: "Sequence[RecentTerms]") -> Postings:
    """Return the postings of all parts. Of many terms, a sixteenth is sorted at a time: to sort takes much memory."""
    if sum(len(part.terms) for part in parts) <= _SORTED_AT_ONCE:
        joined = RecentTerms.joined(parts)
        return Postings.sort(joined.terms, joined.row, joined.count)
    shares: list[Postings] = []
    for first_bits in range(1 << _FIRST_BITS):
        joined = RecentTerms.joined([part.beginning_with(first_bits) for part in parts])
        shares.append(Postings.sort(joined.terms, joined.row, joined.count))
    sizes = np.concatenate([np.diff(share.start) for share in shares])
    return Postings(
        np.concatenate([share.terms for share in shares]),
        np.append(0, np.cumsum(sizes)),
        np.concatenate([share.row for share in shares]),
        np.concatenate([share.count for share in shares]),
    )


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """Entries to add, as they are stored: texts instead of codes, and all pieces and terms one after another.

    The first `repeats[0]` entries have the first of the texts, and so on. `dates` is JSON text. `sources` are ids
    of the objects of entries whose key is another id. `vectors` have any
    length and byte order; `first_piece` is a row among those of the batch. `terms`, `term_rows` (the number of the
    entry in the batch) and `counts` have one element per entry and term, in any order.
    """

    columns: Columns
    conversation_ids: Sequence[UUID | None]
    projects: Sequence[str | None]
    owners: Sequence[str | None]
    agents: Sequence[str | None]
    actors: Sequence[str | None]
    roles: Sequence[str | None]
    repeats: NDArray[np.int64]
    dates: dict[tuple[int, int], str]
    sources: dict[tuple[int, int], UUID]
    vectors: Sequence[Floats]
    terms: NDArray[np.uint64]
    term_rows: Rows
    counts: NDArray[np.uint8]

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.columns.entry_id)

    @property
    def pieces(self) -> int:
        """Return the number of vectors."""
        return sum(map(len, self.vectors))


@dataclass(frozen=True, slots=True)
class SegmentView:
    """The entries of a segment at one moment. `live` are the rows that were neither removed nor replaced.

    `by_place` are all rows in order of conversation and position. `signs`: those of compact `vectors`, else None.
    """

    columns: Columns
    live: Flags
    by_place: PlaceOrder
    vectors: Numbers
    signs: Signs | None
    postings: Postings
    recent: RecentTerms
    texts: Dictionaries
    dates: dict[tuple[int, int], str]
    sources: dict[tuple[int, int], UUID]

    def __len__(self) -> int:
        """Return the number of rows, dead ones included."""
        return len(self.live)

    def find_term(self, term: int) -> tuple[Rows, NDArray[np.uint8]]:
        """Return the rows that have a term (dead ones, too), and its counts."""
        old, new = self.postings.find(term), self.recent.find(term)
        if not len(new[0]):
            return old
        return np.concatenate((old[0], new[0])), np.concatenate((old[1], new[1]))

    def stored_terms(self, terms: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return those of some terms that any row has."""
        sorted_terms = self.postings.terms
        at = np.minimum(np.searchsorted(sorted_terms, terms), max(len(sorted_terms) - 1, 0))
        is_stored = np.isin(terms, self.recent.terms)
        if len(sorted_terms):
            is_stored |= sorted_terms[at] == terms
        return np.unique(terms[is_stored])

    def contains(self, entry_ids: EntryIds) -> Flags:
        """Return for each row whether it is of one of the entries."""
        return rows_with(self.columns.entry_id, entry_ids)


class Segment:
    """The owner of a scope's entries. Not thread-safe: one task changes it at a time."""

    def __init__(self, dimensions: int, *, room: int = 0, is_compact: bool = False) -> None:
        """Make an empty segment. `room`: how many entries will be added, about."""
        self._room = room
        self.is_compact = is_compact
        self._texts = Dictionaries.empty()
        self._dates: dict[tuple[int, int], str] = {}
        self._sources: dict[tuple[int, int], UUID] = {}
        self._count = self._recent = 0
        self._columns = _empty_columns(0)
        self._vectors = PieceVectors(dimensions, is_compact=is_compact)
        self._live = np.empty(0, dtype=np.bool_)
        self._by_place = PlaceOrder(np.empty(0, dtype=np.int64))
        self._postings = Postings.sort(*_no_terms())
        self._recent_terms = RecentTerms(*_no_terms())
        self._unsorted: list[RecentTerms] = []

    @property
    def view(self) -> SegmentView:
        """Return the entries as they are now."""
        count = slice(0, self._count)
        return SegmentView(
            self._columns.take(count),
            self._live,
            self._by_place,
            self._vectors.numbers,
            self._vectors.signs,
            self._postings,
            self._recent_terms,
            self._texts,
            self._dates,
            self._sources,
        )

    @property
    def nbytes(self) -> int:
        """Return about the bytes that the segment takes."""
        recent = self._recent_terms
        arrays = (self._vectors, self._live, self._by_place, recent.terms, recent.row, recent.count)
        array_bytes = self._columns.nbytes + self._postings.nbytes + sum(array.nbytes for array in arrays)
        codes = len(self._texts) + len(self._sources)
        return _SEGMENT_BYTES + array_bytes + _DATES_BYTES * len(self._dates) + _CODE_BYTES * codes

    def __len__(self) -> int:
        """Return the number of rows, dead ones included."""
        return self._count

    @property
    def live_count(self) -> int:
        """Return the number of live entries."""
        return int(np.count_nonzero(self._live))

    def put(self, batch: EntryBatch) -> None:
        """Add entries; those that the segment has already are replaced. The ids of a batch are distinct."""
        self.mark_dead(batch.columns.entry_id)
        self._recent_terms = RecentTerms.joined([self._recent_terms, self._append(batch)])
        self._order(self._count - len(batch), self._count)
        if self._recent > max(_MIN_RECENT, self._count // _RECENT_SHARE):
            self._sort_terms()

    def add(self, batch: EntryBatch) -> None:
        """Add entries to a new segment, which is searched only after `sort`. The ids of all batches are distinct."""
        if self._room > self._count == 0:
            # about as many vectors for each of the others; room that is not written to takes no memory
            pieces = batch.pieces * self._room // len(batch)
            self._grow(self._room)
            self._vectors.reserve(max(batch.pieces, min(pieces, _MAX_EXPECTED * self._room)))
        self._unsorted.append(self._append(batch))

    def sort(self) -> None:
        """Make a new segment ready for searches."""
        self._vectors.trim()
        self._order(0, self._count)
        self._postings = sort_parts([self._recent_terms, *self._unsorted])
        self._recent_terms, self._recent = RecentTerms(*_no_terms()), 0
        self._unsorted.clear()

    def _append(self, batch: EntryBatch) -> RecentTerms:
        """Add rows, and return their terms."""
        added = self._coded(batch)
        start, stop = self._count, self._count + len(batch)
        self._grow(stop)
        for name in _COLUMN_NAMES:
            getattr(self._columns, name)[start:stop] = getattr(added, name)
        self._vectors.reserve(len(self._vectors) + batch.pieces)
        for vectors in batch.vectors:
            self._vectors.add(vectors)
        self._live = np.concatenate((self._live, np.ones(len(batch), dtype=np.bool_)))
        self._count, self._recent = stop, self._recent + len(batch)
        if batch.dates:
            self._dates = self._dates | batch.dates
        if batch.sources:
            self._sources = self._sources | batch.sources
        return RecentTerms(batch.terms, batch.term_rows + np.int32(start), batch.counts)

    def remove(self, entry_ids: EntryIds) -> EntryIds:
        """Remove entries; return the ids of those that the segment had.

        All their vectors become zero at once, and the names that no other live entry has are removed.
        """
        is_own = rows_with(self._columns.entry_id[: self._count], entry_ids)
        rows = np.flatnonzero(is_own)
        self._vectors.clear(piece_rows(self._columns.first_piece[rows], self._columns.pieces[rows]))
        removed = self._columns.entry_id[: self._count][is_own & self._live]
        self._mark_rows_dead(np.flatnonzero(is_own & self._live))
        if len(rows):
            self._remove_unused_names()
        return removed

    def _remove_unused_names(self) -> None:
        """Remove the names that no live entry has. Views keep their own dictionaries."""
        live = self._live[: self._count]
        self._texts = self._texts.with_names_of(
            {name: getattr(self._columns, name)[: self._count][live] for name in NAME_COLUMNS}
        )

    def mark_dead(self, entry_ids: EntryIds) -> None:
        """Mark the rows of changed entries as dead; a search that has begun still compares their vectors."""
        self._mark_rows_dead(np.flatnonzero(rows_with(self._columns.entry_id[: self._count], entry_ids) & self._live))

    def _mark_rows_dead(self, rows: NDArray[np.intp]) -> None:
        """Mark live rows as dead, and rebuild the segment if too many rows are dead."""
        if not len(rows):
            return
        self._live = self._live.copy()  # a view keeps its own
        self._live[rows] = False
        if self._dates or self._sources:
            dead_ids = {(high, low) for high, low in self._columns.entry_id[rows].tolist()}
            self._dates = {key: text for key, text in self._dates.items() if key not in dead_ids}
            self._sources = {key: source_id for key, source_id in self._sources.items() if key not in dead_ids}
        if self._count - self.live_count > max(_MIN_RECENT, self._count // _DEAD_SHARE):
            self._rebuild()

    def entries_of(self, conversation_id: UUID) -> EntryIds:
        """Return the live entries of a conversation."""
        code = self._texts.conversation.get(conversation_id)
        is_own = self._columns.conversation[: self._count] == (NONE - 1 if code is None else code)
        return self._columns.entry_id[: self._count][is_own & self._live]

    def _order(self, start: int, stop: int) -> None:
        """Insert new rows into the order by place."""
        places = (self._columns.conversation[:stop].astype(np.int64) << _POSITION_BITS) + self._columns.position[:stop]
        added = start + np.argsort(places[start:], kind="stable")
        placed = self._by_place.rows
        at = np.searchsorted(places[placed], places[added], side="right")
        self._by_place = PlaceOrder(np.insert(placed, at, added))

    def _coded(self, batch: EntryBatch) -> Columns:
        texts, columns = self._texts, batch.columns

        def coded(codes: Codes, values: Sequence[object | None]) -> Rows:
            return np.repeat(codes.add_all(values), batch.repeats)

        conversation = coded(texts.conversation, batch.conversation_ids)
        # most entries are in the same session as the one before
        is_other = (conversation[1:] != conversation[:-1]) | (columns.session[1:] != columns.session[:-1])
        first = np.flatnonzero(np.append(True, is_other)[: len(batch)])
        sessions = zip(conversation[first].tolist(), columns.session[first].tolist(), strict=True)
        group = texts.group.add_all([None if session[1] == NONE else session for session in sessions])
        return replace(
            columns,
            conversation=conversation,
            group=np.repeat(group, np.diff(first, append=len(batch))),
            project=coded(texts.project, batch.projects),
            owner=coded(texts.owner, batch.owners),
            agent=coded(texts.agent, batch.agents),
            actor=coded(texts.actor, batch.actors),
            role=coded(texts.role, batch.roles),
            first_piece=len(self._vectors) + columns.first_piece,
        )

    def _grow(self, count: int) -> None:
        """Make room for entries. Views keep the old arrays."""
        if count > len(self._columns.kind):
            # a load of everything at once gets no more than it needs
            room = count if self._count == 0 else max(count, self._count + self._count // 4 + 64)
            columns = _empty_columns(room)
            for name in _COLUMN_NAMES:
                getattr(columns, name)[: self._count] = getattr(self._columns, name)[: self._count]
            self._columns = columns

    def _sort_terms(self) -> None:
        terms, row, count = self._all_terms()
        self._postings, self._recent_terms = Postings.sort(terms, row, count), RecentTerms(*_no_terms())
        self._recent = 0

    def _all_terms(self) -> tuple[NDArray[np.uint64], Rows, NDArray[np.uint8]]:
        old, new = self._postings, self._recent_terms
        if not len(old.terms):
            return new.terms, new.row, new.count
        return (
            np.concatenate((np.repeat(old.terms, np.diff(old.start)), new.terms)),
            np.concatenate((old.row, new.row)),
            np.concatenate((old.count, new.count)),
        )

    def _rebuild(self) -> None:
        """Leave out dead rows, their vectors, and their terms."""
        live = np.flatnonzero(self._live)
        pieces = self._columns.pieces[live]
        first = np.cumsum(pieces, dtype=np.int32) - pieces
        kept_pieces = piece_rows(self._columns.first_piece[live], pieces)
        new_row = np.full(self._count, NONE, dtype=np.int32)
        new_row[live] = np.arange(len(live), dtype=np.int32)
        terms, row, count = self._all_terms()
        is_kept = new_row[row] != NONE
        self._columns = replace(self._columns.take(live), first_piece=first)
        self._vectors.keep(kept_pieces)
        self._live = np.ones(len(live), dtype=np.bool_)
        self._count, self._recent = len(live), 0
        by_place = new_row[self._by_place.rows]
        self._by_place = PlaceOrder(by_place[by_place != NONE].astype(np.int64))
        self._postings = Postings.sort(terms[is_kept], new_row[row[is_kept]], count[is_kept])
        self._recent_terms = RecentTerms(*_no_terms())


def piece_rows(first: Rows, pieces: Rows) -> NDArray[np.intp]:
    """Return the rows of vectors of some entries."""
    start = np.cumsum(pieces) - pieces
    return (np.repeat(first - start, pieces) + np.arange(int(pieces.sum()))).astype(np.intp)


def _no_terms() -> tuple[NDArray[np.uint64], Rows, NDArray[np.uint8]]:
    return np.empty(0, np.uint64), np.empty(0, np.int32), np.empty(0, np.uint8)


def _empty_columns(count: int) -> Columns:
    columns: dict[str, Any] = {name: np.empty(count, _COLUMN_TYPES.get(name, "i4")) for name in _COLUMN_NAMES}
    columns["entry_id"] = np.empty((count, 2), np.uint64)
    return Columns(**columns)
