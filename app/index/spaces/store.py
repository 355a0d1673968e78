"""Queries on embedding spaces: their states, which one is searched, what is in them. By the ops role.

None reads more than a bounded part of a table in one statement; what is asked of a whole table is told from a sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.core.database.schema import vector_index_name
from app.core.database.transactions import Transaction
from app.core.ids import TenantId

# so many entries are counted one by one; of more, about so many are looked at
_COUNTED = 20_000
_SAMPLED = 10_000.0
_ALL = 100.0
# of a table that was never analysed, for want of anything better
_ROWS_PER_PAGE = 15
_LOCK = 0x73706163  # "spac"


@dataclass(frozen=True, slots=True)
class SpaceRow:
    """A space as it lies in the table. Field order is the order of `_COLUMNS`."""

    id: int
    provider: str
    model: str
    dimensions: int
    base_url: str | None
    state: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Choice:
    """The row that says which space is searched, and which was before; neither where there is no such row."""

    space_id: int | None = None
    previous_id: int | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """Live entries, those that have vectors in a space, and those vectors. `exact`, or told from a sample."""

    entries: int
    covered: int
    vectors: int
    exact: bool


_COLUMNS = "id, provider, model, dimensions, base_url, state, created_at"


async def list_spaces(tx: Transaction) -> list[SpaceRow]:
    """All spaces, the newest first."""
    rows = await tx.fetch(f"select {_COLUMNS} from embedding_spaces order by id desc")  # noqa: S608
    return [SpaceRow(*row.values()) for row in rows]


async def choice(tx: Transaction) -> Choice:
    """Which space is searched."""
    row = await tx.fetchrow("select space_id, previous_id from searched_space")
    return Choice() if row is None else Choice(row["space_id"], row["previous_id"])


async def hold(tx: Transaction) -> None:
    """Let nobody else change spaces until the transaction ends."""
    await tx.execute("select pg_advisory_xact_lock($1::bigint)", _LOCK)


async def choose(tx: Transaction, *, space_id: int | None, previous_id: int | None) -> None:
    """Say which space is searched from now on: the one update that a switch is."""
    await tx.execute(
        """
        insert into searched_space (space_id, previous_id) values ($1, $2)
        on conflict (id) do update set space_id = excluded.space_id, previous_id = excluded.previous_id,
            changed_at = now()
        """,
        space_id,
        previous_id,
    )


async def set_state(tx: Transaction, space_id: int, state: str, *, base_url: str | None = None) -> None:
    """Give a space its state, and say where its embedder is if that is told."""
    await tx.execute(
        "update embedding_spaces set state = $2, base_url = coalesce($3, base_url) where id = $1",
        space_id,
        state,
        base_url,
    )


async def _looked_at(tx: Transaction) -> float:
    """How many per cent of the entries are looked at, all of them where there are not many."""
    row = await tx.fetchrow(
        """
        select (select count(*) from (select 1 from index_entries limit $1) few) as counted,
               greatest(c.reltuples, 0)::float8 as known, pg_relation_size(c.oid) / 8192 * $2::bigint as guessed
        from pg_class c where c.oid = 'index_entries'::regclass
        """,
        _COUNTED + 1,
        _ROWS_PER_PAGE,
    )
    if row is None or row["counted"] <= _COUNTED:
        return _ALL
    return min(_ALL, _ALL * _SAMPLED / max(row["known"] or row["guessed"], row["counted"]))


async def figures(tx: Transaction, space_ids: Sequence[int]) -> Mapping[int, Figures]:
    """What is in each of these spaces; of a large installation about."""
    percent = await _looked_at(tx)
    exact = percent == _ALL
    found = await tx.fetch(
        """
        with sampled as materialized (
            select tenant_id, entry_id from index_entries tablesample system ($2::real) where live
        )
        select s.id, count(e.entry_id) as entries, count(e.entry_id) filter (where n.vectors > 0) as covered,
               coalesce(sum(n.vectors), 0)::bigint as vectors
        from unnest($1::integer[]) s (id) left join sampled e on true
        left join lateral (
            select count(*) as vectors from vectors v
            where v.tenant_id = e.tenant_id and v.entry_id = e.entry_id and v.space_id = s.id
        ) n on true
        group by s.id
        """,
        list(space_ids),
        percent,
    )
    scale = _ALL / percent
    return {
        one["id"]: Figures(
            round(one["entries"] * scale), round(one["covered"] * scale), round(one["vectors"] * scale), exact
        )
        for one in found
    }


async def lacking(tx: Transaction, space_id: int, *, job_kind: str) -> tuple[int, int]:
    """How many live entries have no vectors in a space, and how many there are; of a large installation about.

    Those that a job `job_kind` has under way, which has not failed, are left out: they were stored a moment ago.
    """
    percent = await _looked_at(tx)
    row = await tx.fetchrow(
        """
        with under_way as materialized (
            select distinct j.tenant_id, u.entry_id from jobs j cross join unnest(j.subject_ids) u (entry_id)
            where j.kind = $2 and j.state = 'queued' and j.last_error is null
        )
        select count(*) as entries, count(*) filter (where not exists (
            select from vectors v where v.tenant_id = e.tenant_id and v.entry_id = e.entry_id and v.space_id = $1
        ) and not exists (
            select from under_way w where w.tenant_id = e.tenant_id and w.entry_id = e.entry_id
        )) as lacking
        from index_entries e tablesample system ($3::real) where e.live
        """,
        space_id,
        job_kind,
        percent,
    )
    if row is None:
        return 0, 0
    return round(row["lacking"] * _ALL / percent), round(row["entries"] * _ALL / percent)


async def indexed(tx: Transaction, space_ids: Sequence[int]) -> set[int]:
    """Those of these spaces whose vector index stands."""
    rows = await tx.fetch(
        """
        select s.id from unnest($1::integer[], $2::text[]) s (id, name)
        join pg_index i on i.indexrelid = to_regclass(s.name) where i.indisvalid
        """,
        list(space_ids),
        [vector_index_name(space_id) for space_id in space_ids],
    )
    return {row["id"] for row in rows}


async def wide_tenants(tx: Transaction, *, entries: int) -> list[TenantId]:
    """Tenants with more live entries than are searched exactly."""
    rows = await tx.fetch(
        "select tenant_id from index_entries where live group by tenant_id having count(*) > $1", entries
    )
    return [TenantId(row["tenant_id"]) for row in rows]


@dataclass(frozen=True, slots=True)
class Dropped:
    """One step of taking a space's vectors away: how many went, and the entry to go on after; None at the end."""

    vectors: int
    after: tuple[UUID, UUID] | None


async def drop_some(tx: Transaction, space_id: int, *, after: tuple[UUID, UUID], limit: int) -> Dropped:
    """Delete the vectors that the next `limit` entries of the installation have in a space."""
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
        return Dropped(0, None)
    return Dropped(row["vectors"], None if row["examined"] < limit else (row["tenant_id"], row["entry_id"]))
