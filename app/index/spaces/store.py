"""Queries on embedding spaces: their states, the searched one, and their contents. By the ops role.

No statement reads more than a bounded part of a table; figures of a whole table are estimated from a sample.

Literal SQL: samples and walks have no short form in Core.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import select

from app.core.database.queries import Query, columns
from app.core.database.schema import vector_index_name
from app.core.database.transactions import Transaction, row_as
from app.core.ids import TenantId
from app.index.tables import embedding_spaces

# up to this many entries are counted exactly; of more, about this many are sampled
_COUNTED = 20_000
_SAMPLED = 10_000.0
_ALL = 100.0
# an assumption for tables that were never analysed
_ROWS_PER_PAGE = 15
_LOCK = 0x73706163  # "spac"


@dataclass(frozen=True, slots=True)
class SpaceRow:
    """The row of a space."""

    id: int
    provider: str
    model: str
    dimensions: int
    base_url: str | None
    state: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SearchedSpace:
    """The row with the searched and the previously searched space; both None without such a row."""

    space_id: int | None = None
    previous_id: int | None = None


@dataclass(frozen=True, slots=True)
class SpaceCounts:
    """Counts of live entries, of those with vectors in a space, and of these vectors.

    `exact`, or estimated from a sample.
    """

    entries: int
    covered: int
    vectors: int
    exact: bool


_LIST: Final = Query(select(*columns(embedding_spaces, SpaceRow)).order_by(embedding_spaces.c.id.desc()))


async def list_spaces(tx: Transaction) -> list[SpaceRow]:
    """List all spaces, the newest first."""
    return [row_as(SpaceRow, row) for row in await _LIST.fetch(tx)]


async def ensure_space(tx: Transaction, *, provider: str, model: str, dimensions: int) -> int:
    """Return the id of an embedding space, created if it is new (ops role)."""
    for _attempt in range(2):
        row = await tx.fetchrow(
            "select id from embedding_spaces where provider = $1 and model = $2 and dimensions = $3",
            provider,
            model,
            dimensions,
        )
        if row is not None:
            return int(row["id"])
        await tx.execute(
            "insert into embedding_spaces (provider, model, dimensions) values ($1, $2, $3) on conflict do nothing",
            provider,
            model,
            dimensions,
        )
    raise RuntimeError("an embedding space was neither found nor made")


async def read_searched_space(tx: Transaction) -> SearchedSpace:
    """Return the searched and the previously searched space."""
    row = await tx.fetchrow("select space_id, previous_id from searched_space")
    return SearchedSpace() if row is None else SearchedSpace(row["space_id"], row["previous_id"])


async def lock_spaces(tx: Transaction) -> None:
    """Lock the spaces against other changes until the transaction ends."""
    await _use_one_connection_to_each_node(tx)
    await tx.execute("select pg_advisory_xact_lock($1::bigint)", _LOCK)


async def _use_one_connection_to_each_node(tx: Transaction) -> None:
    """Let the transaction change spaces after a statement of all tenants: Citus refuses that after a parallel one."""
    if tx.is_distributed:
        await tx.execute("set local citus.multi_shard_modify_mode = 'sequential'")


async def set_searched_space(tx: Transaction, *, space_id: int | None, previous_id: int | None) -> None:
    """Set the searched space: the one update of a switch."""
    await tx.execute(
        """
        insert into searched_space (space_id, previous_id) values ($1, $2)
        on conflict (id) do update set space_id = excluded.space_id, previous_id = excluded.previous_id,
            changed_at = excluded.changed_at
        """,
        space_id,
        previous_id,
    )


async def set_state(tx: Transaction, space_id: int, state: str, *, base_url: str | None = None) -> None:
    """Set the state of a space, and the address of its embedder if given."""
    await tx.execute(
        "update embedding_spaces set state = $2, base_url = coalesce($3, base_url) where id = $1",
        space_id,
        state,
        base_url,
    )


async def _sample_percent(tx: Transaction) -> float:
    """Return the percentage of entries to sample, 100 if there are not many."""
    sql = """
        select (select count(*) from (select 1 from index_entries limit $1) few) as counted,
               greatest(c.reltuples, 0)::float8 as known, pg_relation_size(c.oid) / 8192 * $2::bigint as guessed
        from pg_class c where c.oid = 'index_entries'::regclass
        """
    if tx.is_distributed:
        sql = sql.replace("pg_relation_size", "citus_relation_size")
    row = await tx.fetchrow(sql, _COUNTED + 1, _ROWS_PER_PAGE)
    if row is None or row["counted"] <= _COUNTED:
        return _ALL
    return min(_ALL, _ALL * _SAMPLED / max(row["known"] or row["guessed"], row["counted"]))


async def count_contents(tx: Transaction, space_ids: Sequence[int]) -> Mapping[int, SpaceCounts]:
    """Count the contents of each of these spaces (estimates in a large installation)."""
    percent = await _sample_percent(tx)
    return {space_id: await _count_space(tx, space_id, percent) for space_id in space_ids}


async def _count_space(tx: Transaction, space_id: int, percent: float) -> SpaceCounts:
    row = await tx.fetchrow(
        """
        select count(*) as entries, count(*) filter (where c.vectors > 0) as covered,
               coalesce(sum(c.vectors), 0)::bigint as vectors
        from (
            select (
                select count(*) from vectors v
                where v.tenant_id = e.tenant_id and v.entry_id = e.entry_id and v.space_id = $1
            ) as vectors
            from index_entries e tablesample system ($2::real) where e.live
        ) c
        """,
        space_id,
        percent,
    )
    counts = (0, 0, 0) if row is None else (row["entries"], row["covered"], row["vectors"])
    entries, covered, vectors = (round(count * _ALL / percent) for count in counts)
    return SpaceCounts(entries, covered, vectors, percent == _ALL)


async def count_lacking(tx: Transaction, space_id: int, *, job_kind: str) -> tuple[int, int]:
    """Count the live entries that have no vectors in a space, and all live entries (estimates in a large installation).

    Entries with a running job `job_kind` that has not failed are left out: they were stored a moment ago.
    """
    percent = await _sample_percent(tx)
    of_jobs = """
            select distinct j.tenant_id, u.entry_id from jobs j cross join unnest(j.subject_ids) u (entry_id)
            where j.kind = $1 and j.state = 'queued' and j.last_error is null
        """
    sql = """
        with under_way as materialized (
            select distinct j.tenant_id, u.entry_id from jobs j cross join unnest(j.subject_ids) u (entry_id)
            where j.kind = $1 and j.state = 'queued' and j.last_error is null
        )
        select count(*) as entries, count(*) filter (where not exists (
            select from vectors v where v.tenant_id = e.tenant_id and v.entry_id = e.entry_id and v.space_id = $2
        ) and not exists (
            select from under_way w where w.tenant_id = e.tenant_id and w.entry_id = e.entry_id
        )) as lacking
        from index_entries e tablesample system ($3::real) where e.live
        """
    jobs: list[object] = [job_kind]
    if tx.is_distributed:  # jobs are on the coordinator
        rows = await tx.fetch(of_jobs, job_kind)
        sql = sql.replace(of_jobs, "select * from unnest($1::uuid[], $4::uuid[]) u (tenant_id, entry_id)")
        jobs = [[row["tenant_id"] for row in rows], [row["entry_id"] for row in rows]]
    row = await tx.fetchrow(sql, jobs[0], space_id, percent, *jobs[1:])
    if row is None:
        return 0, 0
    return round(row["lacking"] * _ALL / percent), round(row["entries"] * _ALL / percent)


async def list_indexed(tx: Transaction, space_ids: Sequence[int]) -> set[int]:
    """Return the given spaces whose vector index exists."""
    rows = await tx.fetch(
        """
        select s.id from unnest($1::integer[], $2::text[]) s (id, name)
        join pg_index i on i.indexrelid = to_regclass(s.name) where i.indisvalid
        """,
        list(space_ids),
        [vector_index_name(space_id) for space_id in space_ids],
    )
    return {row["id"] for row in rows}


async def list_large_tenants(tx: Transaction, *, entries: int) -> list[TenantId]:
    """Return the tenants with too many live entries for the exact search."""
    rows = await tx.fetch(
        "select tenant_id from index_entries where live group by tenant_id having count(*) > $1", entries
    )
    return [TenantId(row["tenant_id"]) for row in rows]


@dataclass(frozen=True, slots=True)
class DropStep:
    """One step of deleting a space's vectors: the number deleted, and the entry to continue after; None at the end."""

    vectors: int
    after: tuple[UUID, UUID] | None


async def drop_vectors(tx: Transaction, space_id: int, *, after: tuple[UUID, UUID], limit: int) -> DropStep:
    """Delete the vectors that the next `limit` entries of the installation have in a space."""
    if tx.is_distributed:
        return await _drop_on_nodes(tx, space_id, after=after, limit=limit)
    row = await tx.fetchrow(
        """
        with walked as materialized (
            select tenant_id, entry_id from index_entries where (tenant_id, entry_id) > ($2::uuid, $3::uuid)
            order by tenant_id, entry_id limit $4
        ), gone as (
            delete from vectors v using walked w
            where v.tenant_id = w.tenant_id and v.entry_id = w.entry_id and v.space_id = $1 returning v.part
        )
        select (select count(*) from gone) as vectors, l.tenant_id, l.entry_id,
               (select count(*) from walked) as examined
        from (select tenant_id, entry_id from walked order by tenant_id desc, entry_id desc limit 1) l
        """,
        space_id,
        *after,
        limit,
    )
    if row is None:
        return DropStep(0, None)
    return DropStep(row["vectors"], None if row["examined"] < limit else (row["tenant_id"], row["entry_id"]))


async def _drop_on_nodes(tx: Transaction, space_id: int, *, after: tuple[UUID, UUID], limit: int) -> DropStep:
    """Delete as `drop_vectors`, where the entries are on several nodes: find them on all nodes first."""
    await _use_one_connection_to_each_node(tx)
    walked = await tx.fetch(
        """
        select tenant_id, entry_id from index_entries where (tenant_id, entry_id) > ($1::uuid, $2::uuid)
        order by tenant_id, entry_id limit $3
        """,
        *after,
        limit,
    )
    vectors = await tx.execute(
        """
        delete from vectors v using unnest($2::uuid[], $3::uuid[]) w (tenant_id, entry_id)
        where v.tenant_id = w.tenant_id and v.entry_id = w.entry_id and v.space_id = $1
        """,
        space_id,
        [row["tenant_id"] for row in walked],
        [row["entry_id"] for row in walked],
    )
    last_row = walked[-1] if len(walked) == limit else None
    return DropStep(vectors, None if last_row is None else (last_row["tenant_id"], last_row["entry_id"]))
