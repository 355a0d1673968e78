"""Queries that read the entries of segments, and what changed since. Each names the tenant.

A segment keeps the database snapshot that it was read in. An entry has changed since if the transaction that changed it
last was not visible in that snapshot. So nothing is missed of transactions that began earlier and committed later.

Columns are read as bytes, one value for many entries, because a Python object per entry and column would take several
times as long. Postgres groups entries whose texts are equal, so that it sends these texts once. Each value is of a
limited number of entries, because Postgres copies a very large one several times.

Literal SQL reads the entries: it is hot, and Core has no lateral union of arrays.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal, TypeAlias, TypeVar
from uuid import UUID

import asyncpg
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, ScalarSelect, Select, Text, bindparam, cast, func, literal_column, select, text
from sqlalchemy.dialects.postgresql import JSONB

from app.core.database.queries import Query, is_any
from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.index.analyser.languages import CODES
from app.index.analyser.terms import BYTES_PER_TERM, unpack_all_terms
from app.index.entry_ids import EntryIds
from app.index.schemas import EntryKind, SearchScope
from app.index.search.dictionaries import NONE, Rows
from app.index.search.segment import Columns, EntryBatch, Floats, microseconds
from app.index.tables import index_entries, index_removals

ValueT = TypeVar("ValueT")
SegmentFilter: TypeAlias = Literal["conversation_ids", "agent_id", "owner", "project"]
_SegmentQueries: TypeAlias = Mapping[SegmentFilter | None, Query]

_FILTERS: Final[tuple[SegmentFilter, ...]] = ("conversation_ids", "agent_id", "owner", "project")
_E: Final = index_entries.c
_TENANT: Final = bindparam("tenant_id", type_=_E.tenant_id.type)
# `kind <> ''` is the condition of the partial index, which other statements do not use
_CONDITIONS: Final[Mapping[SegmentFilter | None, ColumnElement[bool]]] = {
    None: _E.kind != "",
    "project": (_E.kind != "")
    & ((_E.project == bindparam("value")) | ((_E.kind == EntryKind.FACT.value) & (_E.project == ""))),
    "conversation_ids": is_any(_E.conversation_id, "value"),
    "owner": _E.owner == bindparam("value"),
    "agent_id": _E.agent_id == bindparam("value"),
}
# a crash of the server may use the numbers of lost transactions again; statistics are reset by its recovery. On Citus
# it is the node of the tenant, and the table there is another one whenever the tenant has moved.
_SERVER: Final = (
    cast(func.pg_postmaster_start_time(), Text)
    + func.coalesce(cast(func.pg_stat_get_bgwriter_stat_reset_time(), Text), "")
    + cast(func.shard_of_tenant(_TENANT), Text)
)
_STATE: Final = (
    cast(func.pg_current_snapshot(), Text).label("snapshot"),
    _SERVER.label("server"),
    func.statement_timestamp().label("now"),
)
# numbers above the current ones are of another server, from which the rows were restored
_UNSEEN: Final = text(
    "changed >= pg_snapshot_xmin(cast(:since as text)::pg_snapshot)"
    " and changed < pg_snapshot_xmax(pg_current_snapshot())"
    " and not pg_visible_in_snapshot(changed, cast(:since as text)::pg_snapshot)"
)


def _listed(condition: ColumnElement[bool]) -> Select[UUID]:
    return select(_E.entry_id).where(_E.tenant_id == _TENANT, condition, is_any(_E.kind, "kinds"))


def _as_bytes(listed: Select[UUID]) -> ScalarSelect[bytes]:
    """Return all ids in one value: the driver takes longer to read each one."""
    listed_ids = listed.subquery("listed").c.entry_id
    no_bytes: ColumnElement[bytes] = literal_column("''::bytea")
    return select(func.coalesce(func.string_agg(func.uuid_send(listed_ids), no_bytes), no_bytes)).scalar_subquery()


_REMOVED: Final = select(index_removals.c.removed_id).where(index_removals.c.tenant_id == _TENANT, _UNSEEN)
_LIMIT: Final[ColumnElement[int]] = bindparam("limit")
_LIST_ENTRIES: Final[_SegmentQueries] = {
    name: Query(select(*_STATE, _as_bytes(_listed(condition).where(_E.live).limit(_LIMIT)).label("entry_ids")))
    for name, condition in _CONDITIONS.items()
}
_LIST_CHANGES: Final[_SegmentQueries] = {
    name: Query(
        select(
            *_STATE,
            func.array(_listed(condition).where(_UNSEEN).limit(_LIMIT).scalar_subquery()).label("changed_ids"),
            func.array(_REMOVED.limit(_LIMIT).scalar_subquery()).label("removed_ids"),
        )
    )
    for name, condition in _CONDITIONS.items()
}
_JSON: Final[ColumnElement[object]] = cast(cast(bindparam("metadata"), Text), JSONB)
_LIST_WITH_METADATA: Final[_SegmentQueries] = {
    name: Query(select(_as_bytes(_listed(condition).where(_E.live, _E.metadata.contains(_JSON))).label("entry_ids")))
    for name, condition in _CONDITIONS.items()
}
_BYTES_PER_ID: Final = 16
_DATED: Final = 1
_REKEYED: Final = 2
_FIRST_IDS: Final = 512
_IDS_PER_READ: Final = 1024
_IDS_PER_VALUE: Final = 64
_BYTES_PER_READ: Final = 16 * 2**20
_UNPACKED_INLINE: Final = 500_000


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
    tx: Transaction, tenant_id: TenantId, scope: SearchScope, *, limit: int
) -> tuple[SegmentState, EntryIds]:
    """List up to `limit` live entries of the scope of a segment."""
    query, values = _in_segment(_LIST_ENTRIES, scope)
    row = await query.fetchrow(tx, tenant_id=tenant_id, limit=limit, **values)
    if row is None:
        raise RuntimeError("a statement that always returns a row returned none")
    return _read_state(row), np.frombuffer(row["entry_ids"], np.uint64).reshape(-1, 2)


async def list_changes(tx: Transaction, tenant_id: TenantId, scope: SearchScope, *, since: str, limit: int) -> Changes:
    """List the entries of a segment that changed since a snapshot, and those deleted: up to `limit` of each."""
    query, values = _in_segment(_LIST_CHANGES, scope)
    row = await query.fetchrow(tx, tenant_id=tenant_id, since=since, limit=limit, **values)
    if row is None:
        raise RuntimeError("a statement that always returns a row returned none")
    return Changes(_read_state(row), row["changed_ids"], row["removed_ids"])


async def list_in_scope(tx: Transaction, tenant_id: TenantId, scope: SearchScope, *, metadata: str) -> EntryIds:
    """List the live entries of a segment whose metadata contain a JSON object."""
    query, values = _in_segment(_LIST_WITH_METADATA, scope)
    row = await query.fetchrow(tx, tenant_id=tenant_id, metadata=metadata, **values)
    return np.frombuffer(b"" if row is None else row["entry_ids"], np.uint64).reshape(-1, 2)


def _in_segment(queries: _SegmentQueries, scope: SearchScope) -> tuple[Query, Mapping[str, object]]:
    """Return the query for the one filter of a segment's scope, and the arguments of its condition."""
    kinds = [kind.value for kind in scope.kinds]
    for name in _FILTERS:
        value: object = getattr(scope, name)
        if value is not None:
            return queries[name], {"kinds": kinds, "value": value}
    return queries[None], {"kinds": kinds}


def _read_state(row: asyncpg.Record) -> SegmentState:
    return SegmentState(row["snapshot"], row["server"], microseconds(row["now"]))


class SegmentTooLargeError(Exception):
    """Entries take more memory than is allowed."""


async def read_entries(
    tx: Transaction,
    tenant_id: TenantId,
    entry_ids: EntryIds,
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
    if page.entries:
        add(_unpack(page, dimensions))


@dataclass(frozen=True, slots=True)
class _Page:
    """Entries as the database sends them: rows of entries with equal texts, and rows of vectors."""

    entries: Sequence[asyncpg.Record]
    vectors: Sequence[asyncpg.Record]

    @property
    def nbytes(self) -> int:
        """Return about the bytes of the entries in memory."""
        packed = sum(len(row["numbers"]) + len(row["terms"]) for row in self.entries)
        return packed + sum(len(row["vectors"]) for row in self.vectors)


_READ_PAGE: Final = """
    select read.* from unnest($2::text[]) chunk(ids) cross join lateral (
        select
            string_agg(uuid_send(entry_id), '') as entry_ids, null::bytea as vectors,
            string_agg(
                int8send(coalesce(position, -1)) || int8send(coalesce(session, -1))
                || timestamptz_send(occurred_at) || timestamptz_send(coalesce(expires_at, 'infinity'))
                || int8send(text_hash)
                || int4send(doc_length)
                || int4send(length(terms))
                || int4send(
                    ((dates is not null)::int << 24) + ((source_id is not null)::int << 25)
                    + ((array_position(array['turn', 'summary', 'fact', 'memory'], kind) - 1) << 16)
                    + ((array_position($4::text[], language) - 1) << 8) + (cues & 255)
                ),
                ''
            ) as numbers,
            string_agg(terms, '') as terms,
            array_agg(dates::text) filter (where dates is not null) as dates,
            array_agg(source_id) filter (where source_id is not null) as sources,
            conversation_id, project, owner, agent_id, actor, role
        from index_entries where tenant_id = $1 and entry_id = any(chunk.ids::uuid[]) and live
        group by conversation_id, project, owner, agent_id, actor, role
        union all
        select
            string_agg(uuid_send(entry_id), ''), string_agg(vector_send(embedding), ''),
            null, null, null, null, null, null, null, null, null, null
        from vectors where tenant_id = $1 and space_id = $3 and entry_id = any(chunk.ids::uuid[])
    ) read
    """
"""Entries and their vectors in the space $3. The ids are $2, each value the text of an array; $4 are all languages."""


async def _read_page(tx: Transaction, tenant_id: TenantId, entry_ids: EntryIds, *, space_id: int) -> _Page:
    # as text, because the driver takes longer to encode each id
    digits = [
        entry_ids[start : start + _IDS_PER_VALUE].tobytes().hex(",", _BYTES_PER_ID)
        for start in range(0, len(entry_ids), _IDS_PER_VALUE)
    ]
    rows = await tx.fetch(_READ_PAGE, tenant_id, [f"{{{ids}}}" for ids in digits], space_id, CODES)
    return _Page(
        [row for row in rows if row["numbers"] is not None], [row for row in rows if row["vectors"] is not None]
    )


def _unpack(page: _Page, dimensions: int) -> EntryBatch:
    entry_ids, _, packed, terms, dates, sources, conversations, projects, owners, agents, actors, roles = zip(
        *page.entries, strict=True
    )
    numbers = np.frombuffer(b"".join(packed), _numbers_type())
    ids = np.frombuffer(b"".join(entry_ids), np.uint64).reshape(-1, 2)
    vectors, first_piece, pieces = _unpack_vectors(page.vectors, ids, dimensions)
    hashes, term_rows, counts = unpack_all_terms(b"".join(terms), numbers["terms"].astype(np.int64) // BYTES_PER_TERM)
    # the segment sorts all terms, which is faster if those of each batch are sorted already. There is a fast method to
    # sort by 16 bits, after which little is left to do.
    order = np.argsort((hashes >> np.uint64(48)).astype(np.uint16), kind="stable")
    order = order[np.argsort(hashes[order], kind="stable")]
    dated = zip(ids[numbers["marks"] & _DATED != 0].tolist(), _chained(dates), strict=True)
    rekeyed = zip(ids[numbers["marks"] & _REKEYED != 0].tolist(), _chained(sources), strict=True)
    return EntryBatch(
        _columns(ids, numbers, first_piece, pieces),
        conversations,
        projects,
        owners,
        agents,
        actors,
        roles,
        np.fromiter(map(len, entry_ids), np.int64, len(entry_ids)) // _BYTES_PER_ID,
        {(high, low): text for (high, low), text in dated},
        {(high, low): source_id for (high, low), source_id in rekeyed},
        vectors,
        hashes[order],
        term_rows[order],
        counts[order],
    )


def _chained(values: Iterable[Sequence[ValueT] | None]) -> Iterable[ValueT]:
    return chain.from_iterable(part for part in values if part)


def _columns(ids: EntryIds, numbers: NDArray[np.void], first_piece: Rows, pieces: Rows) -> Columns:
    """Return the columns of numbers; the segment fills in the codes of texts."""
    nothing = np.zeros(len(ids), dtype=np.int32)
    return Columns(
        entry_id=ids,
        kind=numbers["kind"],
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
        cues=numbers["cues"],
        text_hash=numbers["text_hash"].astype(np.int64),
        language=numbers["language"],
        first_piece=first_piece,
        pieces=pieces,
    )


def _numbers_type() -> np.dtype[np.void]:
    """Return the layout of `numbers` in the statement, in network byte order."""
    long = [(name, ">i8") for name in ("position", "session", "occurred_at", "expires_at", "text_hash")]
    bytes_ = [("marks", "u1"), ("kind", "u1"), ("language", "u1"), ("cues", "u1")]
    return np.dtype([*long, ("length", ">i4"), ("terms", ">i4"), *bytes_])


def _unpack_vectors(
    read: Sequence[asyncpg.Record], ids: EntryIds, dimensions: int
) -> tuple[Sequence[Floats], Rows, Rows]:
    """Return vectors as they were read, the first one of each entry, and how many vectors each entry has.

    They are in any order, but those of an entry are one after another. Vectors of other entries are left out.
    """
    keys = ids.view("V16").ravel().tolist()
    place = dict(zip(keys, range(len(keys)), strict=True))
    of_entry = np.frombuffer(b"".join([row["entry_ids"] for row in read]), "V16").tolist()
    entry = np.array([place.get(entry_id, NONE) for entry_id in of_entry], dtype=np.int32)
    # 2 bytes for the dimensions and 2 unused ones before each
    packed_type = np.dtype([("header", ">i2", 2), ("values", ">f4", dimensions)])
    vectors = [np.frombuffer(row["vectors"], packed_type)["values"] for row in read]
    is_first = np.append(True, entry[1:] != entry[:-1])[: len(entry)]
    pieces = np.bincount(entry[entry != NONE], minlength=len(keys)).astype(np.int32)
    if np.count_nonzero(is_first) != np.count_nonzero(pieces) or NONE in entry:
        order = np.argsort(entry, kind="stable")[np.count_nonzero(entry == NONE) :]
        vectors, entry = [np.concatenate(vectors)[order]], entry[order]
        is_first = np.append(True, entry[1:] != entry[:-1])[: len(entry)]
    first_piece = np.zeros(len(keys), dtype=np.int32)
    first_piece[entry[is_first]] = np.flatnonzero(is_first)
    return vectors, first_piece, pieces


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
