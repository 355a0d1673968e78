"""Queries that read the entries of segments, and what changed since. Each names the tenant.

A segment keeps the database snapshot that it was read in. An entry has changed since if the transaction that changed it
last was not visible in that snapshot. So nothing is missed of transactions that began earlier and committed later.

Columns are read as bytes, one value for all entries, because a Python object per entry and column would take several
times as long.

Literal SQL: search is hot.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from uuid import UUID

import asyncpg
import numpy as np
from numpy.typing import NDArray

from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.index.analyser.cues import Cue
from app.index.analyser.terms import BYTES_PER_TERM, pack_terms, parse_tsvector, unpack_terms
from app.index.schemas import EntryKind
from app.index.search.segment import NONE, Columns, EntryBatch, EntryIds, Floats, Rows, microseconds

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

# a crash of the server may use the numbers of lost transactions again; statistics are reset by its recovery
_SERVER: Final = "pg_postmaster_start_time()::text || coalesce(pg_stat_get_bgwriter_stat_reset_time()::text, '')"

_TERMS_UNKNOWN: Final = -1
_FIRST_IDS: Final = 512
_IDS_PER_READ: Final = 2048
_BYTES_PER_READ: Final = 16 * 2**20
_UNPACKED_INLINE: Final = 256


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
    *,
    space_id: int,
    dimensions: int,
    max_bytes: float = math.inf,
) -> list[EntryBatch]:
    """Read entries by id with their vectors in a space, in batches. Those that are not live any more are left out.

    Raises SegmentTooLargeError if they take more than `max_bytes`: an entry may have many vectors.
    """
    batches: list[EntryBatch] = []
    start = nbytes = 0
    limit = _FIRST_IDS
    while start < len(entry_ids):
        ids = entry_ids[start : start + limit]
        batch = await _read_batch(tx, tenant_id, ids, space_id=space_id, dimensions=dimensions)
        start += len(ids)
        if len(batch):
            batches.append(batch)
            nbytes += batch.nbytes
        if nbytes > max_bytes:
            raise SegmentTooLargeError
        limit = min(_IDS_PER_READ, max(1, _BYTES_PER_READ * start // max(nbytes, 1)))
    return batches


def _entries_sql(space_id: int) -> str:
    """Return the statement that reads entries with their vectors, in the order of ids."""
    return f"""
    with e as materialized (
        select * from index_entries e where e.tenant_id = $1 and e.entry_id = any($2::uuid[]) and e.live
        order by e.entry_id
    ),
    v as materialized (
        select v.entry_id, v.embedding from vectors v
        where v.tenant_id = $1 and v.space_id = {space_id} and v.entry_id = any($2::uuid[])
          and v.entry_id in (select entry_id from e)
        order by v.entry_id, v.part
    )
    select
        coalesce((select string_agg(vector_send(embedding), '') from v), '') as vectors,
        coalesce((select string_agg(uuid_send(entry_id), '') from v), '') as piece_ids,
        coalesce(string_agg(uuid_send(entry_id), ''), '') as entry_ids,
        coalesce(string_agg(
            int8send(coalesce(position, {NONE})) || int8send(coalesce(session, {NONE}))
            || timestamptz_send(occurred_at) || timestamptz_send(coalesce(expires_at, 'infinity'))
            || int4send(doc_length)
            || int4send(coalesce(length(terms) / {BYTES_PER_TERM}, {_TERMS_UNKNOWN}))
            || int2send(coalesce(cues, case when asks then {int(Cue.ASKS)} else 0 end)::smallint)
            || int2send(({_KIND_CODES})::smallint) || boolsend(vectors_due) || boolsend(dates is not null),
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
    from e
    """  # noqa: S608


async def _read_batch(
    tx: Transaction, tenant_id: TenantId, entry_ids: Sequence[UUID], *, space_id: int, dimensions: int
) -> EntryBatch:
    row = await tx.fetchrow(_entries_sql(space_id), tenant_id, list(entry_ids))
    if row is None:
        raise RuntimeError("a statement that always returns a row returned none")
    if len(entry_ids) <= _UNPACKED_INLINE:
        return _unpack(row, dimensions)
    return await asyncio.to_thread(_unpack, row, dimensions)


def _unpack(row: asyncpg.Record, dimensions: int) -> EntryBatch:
    numbers = np.frombuffer(row["numbers"], _numbers_type())
    ids = np.frombuffer(row["entry_ids"], np.uint64).reshape(-1, 2)
    vectors, pieces = _unpack_vectors(row["vectors"], row["piece_ids"], row["entry_ids"], dimensions)
    dates, lexemes, packed = iter(row["dates"]), iter(row["lexemes"]), iter(row["terms"])
    terms = [
        pack_terms(parse_tsvector(next(lexemes))) if count == _TERMS_UNKNOWN else next(packed)
        for count in numbers["terms"].tolist()
    ]
    unpacked = [unpack_terms(one) for one in terms]
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
        np.array([len(one) // BYTES_PER_TERM for one in terms], dtype=np.int32),
        np.concatenate([found for found, _ in unpacked]) if unpacked else np.empty(0, np.uint64),
        np.concatenate([counts for _, counts in unpacked]) if unpacked else np.empty(0, np.uint8),
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
        waits=numbers["waits"],
        first_piece=nothing,
        pieces=pieces,
    )


def _numbers_type() -> np.dtype[np.void]:
    """Return the layout of `numbers` in the statement, in network byte order."""
    return np.dtype(
        [
            ("position", ">i8"), ("session", ">i8"), ("occurred_at", ">i8"), ("expires_at", ">i8"), ("length", ">i4"),
            ("terms", ">i4"), ("cues", ">i2"), ("kind", ">i2"), ("waits", "?"), ("dated", "?"),
        ]
    )  # fmt: skip


def _unpack_vectors(packed: bytes, piece_ids: bytes, entry_ids: bytes, dimensions: int) -> tuple[Floats, Rows]:
    """Return vectors of length 1 in the order of the entries, and the number of vectors of each entry."""
    # 2 bytes for the dimensions and 2 unused ones before each
    of_vector = np.dtype([("header", ">i2", 2), ("values", ">f4", dimensions)])
    count = len(piece_ids) // 16
    if not count:
        return np.empty((0, dimensions), np.float32), np.zeros(len(entry_ids) // 16, np.int32)
    vectors = np.frombuffer(packed, of_vector, count)["values"].astype(np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    vectors /= np.where(lengths > 0, lengths, 1)[:, None]
    # both are in the order of ids
    own, having = (np.frombuffer(ids, "V16") for ids in (entry_ids, piece_ids))
    _, first, pieces = np.unique(having, return_index=True, return_counts=True)
    counts = np.zeros(len(own), dtype=np.int32)
    counts[np.isin(own, having[np.sort(first)])] = pieces
    return vectors, counts


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
    """Delete notes of deletions; return the number (ops role)."""
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
