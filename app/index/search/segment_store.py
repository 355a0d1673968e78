"""Queries that read the entries of segments, and what changed since. Each names the tenant.

A segment keeps the database snapshot that it was read in. An entry has changed since if the transaction that changed it
last was not visible in that snapshot. So nothing is missed of transactions that began earlier and committed later.

Columns are read as bytes, one value for all entries, because a Python object per entry and column would take several
times as long. Vectors are read in several values, because Postgres copies a very large one several times.

Literal SQL: search is hot.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from uuid import UUID

import asyncpg
import numpy as np
from numpy.typing import NDArray

from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.index.analyser.cues import Cue
from app.index.analyser.terms import BYTES_PER_TERM, pack_terms, parse_tsvector, unpack_all_terms
from app.index.schemas import EntryKind
from app.index.search.dictionaries import NONE, Rows
from app.index.search.search_statement import LANGUAGE_PLACE
from app.index.search.segment import Columns, EntryBatch, EntryIds, Floats, microseconds

SegmentColumn: TypeAlias = Literal["tenant", "project", "conversations", "owner", "agent"]

_CONDITIONS: Final[dict[SegmentColumn, str]] = {
    # the condition of the partial index, which other statements do not use
    "tenant": "e.kind <> '' and $2::text is null",
    "project": "e.kind <> '' and (e.project = $2::text or (e.kind = 'fact' and e.project = ''))",
    "conversations": "e.conversation_id = any($2::uuid[])",
    "owner": "e.owner = $2::text",
    "agent": "e.agent_id = $2::text",
}
_KIND_CODES: Final = "array_position(array['turn', 'summary', 'fact', 'memory'], e.kind) - 1"

# a crash of the server may use the numbers of lost transactions again; statistics are reset by its recovery. On Citus
# it is the node of the tenant, and the table there is another one whenever the tenant has moved.
_SERVER: Final = (
    "pg_postmaster_start_time()::text || coalesce(pg_stat_get_bgwriter_stat_reset_time()::text, '')"
    " || shard_of_tenant($1)::text"
)

_TERMS_UNKNOWN: Final = -1
_FIRST_IDS: Final = 512
_IDS_PER_READ: Final = 1024
_IDS_PER_VALUE: Final = 64
_SMALL_PAGE: Final = 256
"""Up to this many entries are read with their vectors in one round trip."""
_BYTES_PER_READ: Final = 16 * 2**20
_UNPACKED_INLINE: Final = 500_000


@dataclass(frozen=True, slots=True)
class SegmentScope:
    """The entries of one segment: those of some kinds with one of the values in a column."""

    column: SegmentColumn
    values: tuple[UUID, ...] | str | None
    kinds: tuple[EntryKind, ...]

    @property
    def condition(self) -> str:
        """Return the condition of its entries `e`; the values are $2, the kinds $3."""
        return f"{_CONDITIONS[self.column]} and e.kind = any($3::text[])"

    @property
    def arguments(self) -> tuple[object, list[str]]:
        """Return the arguments of the condition."""
        values = list(self.values) if isinstance(self.values, tuple) else self.values
        return values, [kind.value for kind in self.kinds]


@dataclass(frozen=True, slots=True)
class SegmentState:
    """The state of a scope in the database: its snapshot, the mark of its server, and its time in microseconds."""

    snapshot: str
    server: str
    now: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Entries that were added or changed since an earlier state, and those of the tenant that were deleted."""

    state: SegmentState
    changed_ids: Sequence[UUID]
    removed_ids: Sequence[UUID]


async def list_entries(
    tx: Transaction, tenant_id: TenantId, scope: SegmentScope, *, limit: int
) -> tuple[SegmentState, list[UUID]]:
    """List up to `limit` live entries of a scope."""
    row = await tx.fetchrow(
        f"""
        select pg_current_snapshot()::text as snapshot, {_SERVER} as server, statement_timestamp() as now, array(
            select e.entry_id from index_entries e
            where e.tenant_id = $1 and e.live and {scope.condition} limit $4
        ) as entry_ids
        """,  # noqa: S608
        tenant_id,
        *scope.arguments,
        limit,
    )
    if row is None:
        raise RuntimeError("a statement that always returns a row returned none")
    return SegmentState(row["snapshot"], row["server"], microseconds(row["now"])), row["entry_ids"]


async def list_changes(tx: Transaction, tenant_id: TenantId, scope: SegmentScope, *, since: str, limit: int) -> Changes:
    """List the entries of a scope that changed since a snapshot, and those deleted: up to `limit` of each."""
    # numbers above the current ones are of another server, from which the rows were restored
    unseen = """changed >= pg_snapshot_xmin($4::text::pg_snapshot)
              and changed < pg_snapshot_xmax(pg_current_snapshot())
              and not pg_visible_in_snapshot(changed, $4::text::pg_snapshot)"""
    row = await tx.fetchrow(
        f"""
        select pg_current_snapshot()::text as snapshot, {_SERVER} as server, statement_timestamp() as now,
        array(
            select e.entry_id from index_entries e
            where e.tenant_id = $1 and {scope.condition} and {unseen} limit $5
        ) as changed_ids,
        array(
            select removed_id from index_removals where tenant_id = $1 and {unseen} limit $5
        ) as removed_ids
        """,  # noqa: S608
        tenant_id,
        *scope.arguments,
        since,
        limit,
    )
    if row is None:
        raise RuntimeError("a statement that always returns a row returned none")
    return Changes(
        SegmentState(row["snapshot"], row["server"], microseconds(row["now"])), row["changed_ids"], row["removed_ids"]
    )


class SegmentTooLargeError(Exception):
    """Entries take more memory than is allowed."""


async def read_entries(
    tx: Transaction,
    tenant_id: TenantId,
    entry_ids: Sequence[UUID],
    add: Callable[[EntryBatch], None],
    *,
    space_id: int,
    dimensions: int,
    max_bytes: float = math.inf,
) -> None:
    """Read entries by id with their vectors in a space. Those that are not live any more are left out.

    `add` takes one batch at a time, if it is large in a thread, while the next one is read. Raises SegmentTooLargeError
    if they take more than `max_bytes`: an entry may have many vectors.
    """
    loop = asyncio.get_running_loop()
    adding: asyncio.Future[None] | None = None
    start = nbytes = 0
    limit = _FIRST_IDS
    try:
        while start < len(entry_ids):
            page = await _read_page(tx, tenant_id, entry_ids[start : start + limit], space_id=space_id)
            start += limit
            nbytes += page.nbytes
            if nbytes > max_bytes:
                raise SegmentTooLargeError
            if adding is not None:
                await adding
                adding = None
            if page.nbytes > _UNPACKED_INLINE:
                adding = loop.run_in_executor(None, _add, page, dimensions, add)
            else:
                _add(page, dimensions, add)
            limit = min(_IDS_PER_READ, max(1, _BYTES_PER_READ * start // max(nbytes, 1)))
    finally:
        if adding is not None:
            await adding


def _add(page: "_Page", dimensions: int, add: Callable[[EntryBatch], None]) -> None:
    batch = _unpack(page, dimensions)
    if len(batch):
        add(batch)


@dataclass(frozen=True, slots=True)
class _Page:
    """Entries as the database sends them: the columns of all entries, and the vectors of some in each value."""

    entries: asyncpg.Record
    vectors: Sequence[bytes]

    @property
    def nbytes(self) -> int:
        """Return about the bytes of the entries in memory."""
        packed = len(self.entries["numbers"]) + sum(map(len, self.entries["terms"]))
        return packed + sum(map(len, self.vectors))


_ENTRIES: Final = f"""
        coalesce(string_agg(uuid_send(entry_id), ''), '') as entry_ids,
        coalesce(string_agg(
            int8send(coalesce(position, {NONE})) || int8send(coalesce(session, {NONE}))
            || timestamptz_send(occurred_at) || timestamptz_send(coalesce(expires_at, 'infinity'))
            || int4send(doc_length)
            || int4send(coalesce(length(terms) / {BYTES_PER_TERM}, {_TERMS_UNKNOWN}))
            || int2send(coalesce(cues, case when asks then {int(Cue.ASKS)} else 0 end)::smallint)
            || int2send(({_KIND_CODES})::smallint) || int2send(({LANGUAGE_PLACE})::smallint)
            || boolsend(dates is not null) || boolsend(vectors_dropped),
            ''
        ), '') as numbers,
        coalesce(array_agg(conversation_id), '{{}}') as conversation_ids,
        coalesce(array_agg(project), '{{}}') as projects,
        coalesce(array_agg(owner), '{{}}') as owners,
        coalesce(array_agg(agent_id), '{{}}') as agents,
        coalesce(array_agg(actor), '{{}}') as actors,
        coalesce(array_agg(role), '{{}}') as roles,
        coalesce(array_agg(dates::text) filter (where dates is not null), '{{}}') as dates,
        coalesce(array_agg(terms) filter (where terms is not null), '{{}}') as terms,
        coalesce(array_agg(lexemes::text) filter (where terms is null), '{{}}') as lexemes
    from index_entries e where e.tenant_id = $1 and e.entry_id = any($2::uuid[]) and e.live
    """
"""Columns and origin of entries; a select with the ids of the entries as $2."""


def _vectors_sql(space_id: int, entry_ids: str) -> str:
    """Return a query of one value: the vectors of entries, each after the id of its entry."""
    return f"""
    select coalesce(string_agg(uuid_send(v.entry_id) || vector_send(v.embedding), ''), '') as packed from vectors v
    where v.tenant_id = $1 and v.space_id = {space_id} and v.entry_id = any({entry_ids})
    """  # noqa: S608


async def _read_page(tx: Transaction, tenant_id: TenantId, entry_ids: Sequence[UUID], *, space_id: int) -> _Page:
    is_small = len(entry_ids) <= _SMALL_PAGE
    vectors = f"({_vectors_sql(space_id, '$2::uuid[]')}) as vectors," if is_small else ""
    row = await tx.fetchrow(f"select {vectors} {_ENTRIES}", tenant_id, entry_ids)
    if row is None:
        raise RuntimeError("a statement that always returns a row returned none")
    if is_small:
        return _Page(row, [row["vectors"]])
    some_ids = f"($2::uuid[])[at : at + {_IDS_PER_VALUE - 1}]"
    values = await tx.fetch(
        f"""
        select read.packed from generate_series(1, cardinality($2::uuid[]), {_IDS_PER_VALUE}) at
        cross join lateral ({_vectors_sql(space_id, some_ids)}) read
        """,  # noqa: S608
        tenant_id,
        entry_ids,
    )
    # a vector of an entry that changed after the first statement is read again by the next search
    return _Page(row, [value["packed"] for value in values])


def _unpack(page: _Page, dimensions: int) -> EntryBatch:
    row = page.entries
    numbers = np.frombuffer(row["numbers"], _numbers_type())
    ids = np.frombuffer(row["entry_ids"], np.uint64).reshape(-1, 2)
    vectors, pieces = _unpack_vectors(page.vectors, row["entry_ids"], dimensions)
    dates, lexemes, packed = iter(row["dates"]), iter(row["lexemes"]), iter(row["terms"])
    hashes, term_rows, counts = unpack_all_terms([
        pack_terms(parse_tsvector(next(lexemes))) if count == _TERMS_UNKNOWN else next(packed)
        for count in numbers["terms"].tolist()
    ])  # fmt: skip
    # the segment sorts all terms, which is faster if those of each batch are sorted already
    order = np.argsort(hashes, kind="stable")
    return EntryBatch(
        _columns(ids, numbers, pieces),
        row["conversation_ids"],
        row["projects"],
        row["owners"],
        row["agents"],
        row["actors"],
        row["roles"],
        [next(dates) if dated else None for dated in numbers["dated"].tolist()],
        vectors,
        hashes[order],
        term_rows[order],
        counts[order],
    )


def _columns(ids: EntryIds, numbers: NDArray[np.void], pieces: Rows) -> Columns:
    """Return the columns of numbers; the segment fills in the codes of texts."""
    nothing = np.zeros(len(ids), dtype=np.int32)
    return Columns(
        entry_id=ids,
        kind=numbers["kind"].astype(np.uint8),
        conversation=nothing,
        project=nothing,
        owner=nothing,
        agent=nothing,
        actor=nothing,
        role=nothing,
        group=nothing,
        position=numbers["position"].astype(np.int64),
        session=numbers["session"].astype(np.int64),
        occurred_at=numbers["occurred_at"].astype(np.int64),
        expires_at=numbers["expires_at"].astype(np.int64),
        length=numbers["length"].astype(np.int32),
        cues=numbers["cues"].astype(np.uint8),
        language=numbers["language"].astype(np.uint8),
        dropped=numbers["dropped"].astype(np.bool_),
        first_piece=nothing,
        pieces=pieces,
    )


def _numbers_type() -> np.dtype[np.void]:
    """Return the layout of `numbers` in the statement, in network byte order."""
    return np.dtype(
        [
            ("position", ">i8"), ("session", ">i8"), ("occurred_at", ">i8"), ("expires_at", ">i8"), ("length", ">i4"),
            ("terms", ">i4"), ("cues", ">i2"), ("kind", ">i2"), ("language", ">i2"), ("dated", "?"),
            ("dropped", "?"),
        ]
    )  # fmt: skip


def _unpack_vectors(values: Sequence[bytes], entry_ids: bytes, dimensions: int) -> tuple[Floats, Rows]:
    """Return vectors of length 1 in the order of the entries, and the number of vectors of each entry.

    `values` have ids and vectors in any order. Vectors of other entries are left out.
    """
    own = np.frombuffer(entry_ids, "V16").tolist()
    place = dict(zip(own, range(len(own)), strict=True))
    # 2 bytes for the dimensions and 2 unused ones before each
    packed_type = np.dtype([("id", "V16"), ("header", ">i2", 2), ("values", ">f4", dimensions)])
    parts = [np.frombuffer(value, packed_type) for value in values]
    of_entry = [place.get(entry_id, NONE) for part in parts for entry_id in part["id"].tolist()]
    vectors = np.empty((len(of_entry), dimensions), dtype=np.float32)
    start = 0
    for part in parts:
        some = part["values"].astype(np.float32)
        lengths = np.sqrt(np.einsum("ij,ij->i", some, some))
        np.divide(some, np.where(lengths > 0, lengths, 1)[:, None], out=vectors[start : start + len(some)])
        start += len(some)
    entry = np.array(of_entry, dtype=np.int64)
    order = np.argsort(entry, kind="stable")[np.count_nonzero(entry == NONE) :]
    is_ordered = np.array_equal(order, np.arange(len(entry)))
    pieces = np.bincount(entry[order], minlength=len(own)).astype(np.int32)
    return vectors if is_ordered else vectors[order], pieces


async def list_in_scope(tx: Transaction, tenant_id: TenantId, scope: SegmentScope, *, metadata: str) -> EntryIds:
    """List the live entries of a scope whose metadata contain a JSON object."""
    row = await tx.fetchrow(
        f"""
        select coalesce(string_agg(uuid_send(e.entry_id), ''), '') as entry_ids from index_entries e
        where e.tenant_id = $1 and e.live and {scope.condition} and e.metadata @> $4::text::jsonb
        """,  # noqa: S608
        tenant_id,
        *scope.arguments,
        metadata,
    )
    return np.frombuffer(b"" if row is None else row["entry_ids"], np.uint64).reshape(-1, 2)


async def delete_old_removals(tx: Transaction, *, older_than_s: float, limit: int) -> int:
    """Delete old records of removed entries; return the number (ops role)."""
    return await tx.execute(
        """
        delete from index_removals r using (
            select tenant_id, changed, removed_id from index_removals
            where removed_at < now() - make_interval(secs => $1) limit $2
        ) old
        where r.tenant_id = old.tenant_id and r.changed = old.changed and r.removed_id = old.removed_id
        """,
        older_than_s,
        limit,
    )
