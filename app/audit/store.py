"""Queries on the audit. Those of the ops role read and write across tenants."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date
from typing import Final, cast
from uuid import UUID

import asyncpg
from sqlalchemy import BigInteger, ClauseElement, Date, bindparam, null, select, union_all
from sqlalchemy import cast as sql_cast

from app.audit.schemas import AuditFilter, ChainedEntry, ChainEnd, Entry
from app.audit.tables import audit_entries, audit_unsealed
from app.core.database.queries import columns, compiled, equals, given, page
from app.core.database.transactions import Transaction, field_names, row_as
from app.core.ids import TenantId
from app.core.paging import Window

_SEALER_LOCK: Final = 0x61756469  # "audi"
_INSERT: Final = (
    "insert into audit_unsealed (tenant_id, id, key_id, actor, action, object_kind, object_id, conversation_id,"
    " first_seq, last_seq, head_hash, counts, request_id) values "
)
_INSERT_UNSEALED: Final = """
    insert into audit_unsealed (tenant_id, id, recorded_at, key_id, actor, action, object_kind, object_id,
                                conversation_id, first_seq, last_seq, head_hash, counts, request_id)
    select a, b, c, d, e, f, g, h, i, j, k, l, m::jsonb, n
    from unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[],
                $9::uuid[], $10::bigint[], $11::bigint[], $12::bytea[], $13::text[], $14::uuid[])
        as t (a, b, c, d, e, f, g, h, i, j, k, l, m, n)
    on conflict do nothing
"""
# with a returned column, Citus does not copy the rows to the nodes, which row-level security refuses
_INSERT_SEALED: Final = """
    insert into audit_entries (tenant_id, id, recorded_at, key_id, actor, action, object_kind, object_id,
                               conversation_id, first_seq, last_seq, head_hash, counts, request_id, day, number, hash)
    select a, b, c, d, e, f, g, h, i, j, k, l, m::jsonb, n, o, p, q
    from unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[],
                $9::uuid[], $10::bigint[], $11::bigint[], $12::bytea[], $13::text[], $14::uuid[],
                $15::date[], $16::bigint[], $17::bytea[])
        as t (a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q)
    returning number
"""
_AUDITED_TENANTS: Final = """
    with recursive one as (
        (select tenant_id from audit_entries order by tenant_id limit 1)
        union all
        select (select e.tenant_id from audit_entries e where e.tenant_id > one.tenant_id order by 1 limit 1)
        from one where one.tenant_id is not null
    )
    select tenant_id from one where tenant_id is not null
    union select tenant_id from audit_days union select tenant_id from audit_unsealed order by tenant_id
"""
# on several nodes, a step from tenant to tenant would go to all of them
_AUDITED_TENANTS_OF_NODES: Final = """
    select tenant_id from audit_entries
    union select tenant_id from audit_days union select tenant_id from audit_unsealed order by tenant_id
"""


def insert_literals(values: Sequence[str]) -> str:
    """Return the statement that inserts one entry; the database gives its time.

    `values` are SQL, in the order of the columns: tenant_id, id, key_id, actor, action, object_kind, object_id,
    conversation_id, first_seq, last_seq, head_hash, counts, request_id.
    """
    return f"{_INSERT}({', '.join(values)})"


async def insert_unsealed(tx: Transaction, entries: Sequence[Entry]) -> None:
    """Insert entries with their own times, of several tenants; with the ops role.

    Those that an attempt has stored whose answer was lost stay as they are.
    """
    await tx.execute(_INSERT_UNSEALED, *_arrays(entries))


async def try_lock_sealing(tx: Transaction) -> bool:
    """Return whether this transaction is the only one that seals; until it ends."""
    row = await tx.fetchrow("select pg_try_advisory_xact_lock($1) as locked", _SEALER_LOCK)
    return row is not None and bool(row["locked"])


async def take_unsealed(tx: Transaction, *, limit: int) -> list[Entry]:
    """Delete up to `limit` committed entries that are not sealed, and return them; with the ops role."""
    rows = await tx.fetch(
        """
        delete from audit_unsealed u
        using (select tenant_id, id from audit_unsealed order by tenant_id, id limit $1) taken
        where u.tenant_id = taken.tenant_id and u.id = taken.id
        returning u.*
        """,
        limit,
    )
    return [_entry(row) for row in rows]


async def insert_sealed(tx: Transaction, chained: Sequence[ChainedEntry]) -> None:
    """Insert sealed entries, with the ops role."""
    await tx.execute(
        _INSERT_SEALED,
        *_arrays([sealed.entry for sealed in chained]),
        [sealed.day for sealed in chained],
        [sealed.number for sealed in chained],
        [sealed.hash for sealed in chained],
    )


async def find_chain_ends(tx: Transaction, tenant_ids: Sequence[UUID], days: Sequence[date]) -> list[ChainEnd]:
    """Return the chain ends of these (tenant, day) pairs, and the end of the newest chain of each tenant."""
    rows = await tx.fetch(
        """
        select d.* from audit_days d
        where (tenant_id, day) in (select * from unnest($1::uuid[], $2::date[]))
        union
        select d.* from audit_days d
        where tenant_id = any($1::uuid[])
            and ordinal = (select max(ordinal) from audit_days l where l.tenant_id = d.tenant_id)
        """,
        tenant_ids,
        days,
    )
    return [row_as(ChainEnd, row) for row in rows]


async def store_chain_ends(tx: Transaction, ends: Sequence[ChainEnd]) -> None:
    """Insert or update chain ends."""
    await tx.execute(
        """
        insert into audit_days
            (tenant_id, day, ordinal, entries, hash, previous_day, previous_entries, previous_hash, sealed_at)
        select u.*, now() from unnest(
            $1::uuid[], $2::date[], $3::integer[], $4::bigint[], $5::bytea[], $6::date[], $7::bigint[], $8::bytea[]) u
        on conflict (tenant_id, day) do update
        set entries = excluded.entries, hash = excluded.hash, sealed_at = excluded.sealed_at
        """,
        [end.tenant_id for end in ends],
        [end.day for end in ends],
        [end.ordinal for end in ends],
        [end.entries for end in ends],
        [end.hash for end in ends],
        [end.previous_day for end in ends],
        [end.previous_entries for end in ends],
        [end.previous_hash for end in ends],
    )


async def today(tx: Transaction) -> date:
    """Return the day in UTC, by the clock of the database."""
    row = await tx.fetchrow("select (now() at time zone 'UTC')::date as day")
    return cast("date", (row or {"day": date.min})["day"])


# reading


async def list_audited_tenants(tx: Transaction) -> list[TenantId]:
    """Return all tenants with entries or chains, with the ops role."""
    rows = await tx.fetch(_AUDITED_TENANTS_OF_NODES if tx.is_distributed else _AUDITED_TENANTS)
    return [TenantId(row["tenant_id"]) for row in rows]


async def list_chain_ends(tx: Transaction, tenant_id: TenantId) -> list[ChainEnd]:
    """Return the ends of all chains of a tenant, in the order of their ordinals."""
    rows = await tx.fetch("select * from audit_days where tenant_id = $1 order by ordinal", tenant_id)
    return [row_as(ChainEnd, row) for row in rows]


async def list_days(tx: Transaction, tenant_id: TenantId) -> list[date]:
    """Return the days with sealed entries of a tenant, by one look into the index for each."""
    rows = await tx.fetch(
        """
        with recursive one as (
            (select day from audit_entries where tenant_id = $1 order by day limit 1)
            union all
            select (select e.day from audit_entries e where e.tenant_id = $1 and e.day > one.day order by e.day limit 1)
            from one where one.day is not null
        )
        select day from one where day is not null
        """,
        tenant_id,
    )
    return [row["day"] for row in rows]


async def list_day(tx: Transaction, tenant_id: TenantId, day: date, *, after: int, limit: int) -> list[ChainedEntry]:
    """Return the sealed entries of a day with a number above `after`, in order."""
    rows = await tx.fetch(
        "select * from audit_entries where tenant_id = $1 and day = $2 and number > $3 order by number limit $4",
        tenant_id,
        day,
        after,
        limit,
    )
    return [ChainedEntry(row["day"], row["number"], _entry(row), row["hash"]) for row in rows]


async def count_unsealed(tx: Transaction, tenant_id: TenantId) -> int:
    """Return the number of entries of a tenant that are not sealed."""
    row = await tx.fetchrow("select count(*) as entries from audit_unsealed where tenant_id = $1", tenant_id)
    return 0 if row is None else int(row["entries"])


@compiled
def _page(filters: frozenset[str], *, newest_first: bool, after: bool) -> ClauseElement:
    """Return the statement that lists entries of both tables, each part of it limited."""
    nowhere = (sql_cast(null(), Date).label("day"), sql_cast(null(), BigInteger).label("number"))
    places = {audit_unsealed: nowhere, audit_entries: (audit_entries.c.day, audit_entries.c.number)}
    parts = [
        page(
            select(*columns(table, Entry), *place).where(
                *equals(table, "tenant_id", *sorted(filters - {"since", "until"})),
                *(
                    [table.c.recorded_at >= bindparam("since", type_=table.c.recorded_at.type)]
                    if "since" in filters
                    else []
                ),
                *(
                    [table.c.recorded_at < bindparam("until", type_=table.c.recorded_at.type)]
                    if "until" in filters
                    else []
                ),
            ),
            (table.c.recorded_at, table.c.id),
            newest_first=newest_first,
            after=after,
        )
        for table, place in places.items()
    ]
    entries = union_all(*parts).subquery("entries")
    return page(select(entries), (entries.c.recorded_at, entries.c.id), newest_first=newest_first, after=False)


async def page_entries(
    tx: Transaction, tenant_id: TenantId, window: Window, *, where: AuditFilter
) -> list[tuple[Entry, date | None, int | None]]:
    """List entries by time, sealed or not, each with its day and number; these are None for an entry not yet sealed."""
    filters = given(**asdict(where))
    query = _page(frozenset(filters), **window.shape)
    rows = await query.fetch(tx, tenant_id=tenant_id, **filters, **window.arguments)
    return [(_entry(row), row["day"], row["number"]) for row in rows]


# deleting


async def lock_expired_day(tx: Transaction, *, before: date) -> tuple[TenantId, date] | None:
    """Lock one day before the given one whose entries are still there, with the ops role; None if there is none."""
    oldest = "select tenant_id, day from audit_days where day < $1 and entries_deleted_at is null order by day limit 1"
    if not tx.is_distributed:
        row = await tx.fetchrow(f"{oldest} for update skip locked", before)
    else:  # no lock is possible in a statement of all nodes
        row = await tx.fetchrow(oldest, before)
        row = row and await tx.fetchrow(
            "select tenant_id, day from audit_days where tenant_id = $1 and day = $2 and entries_deleted_at is null"
            " for update skip locked",
            row["tenant_id"],
            row["day"],
        )
    return None if row is None else (TenantId(row["tenant_id"]), cast("date", row["day"]))


async def delete_entries(tx: Transaction, tenant_id: TenantId, day: date, *, limit: int) -> int:
    """Delete up to `limit` sealed entries of a day, and return their number."""
    return await tx.execute(
        "delete from audit_entries where tenant_id = $1 and day = $2 and number in"
        " (select number from audit_entries where tenant_id = $1 and day = $2 order by number limit $3)",
        tenant_id,
        day,
        limit,
    )


async def mark_deleted(tx: Transaction, tenant_id: TenantId, day: date) -> None:
    """Store that retention has deleted the entries of a day."""
    await tx.execute(
        "update audit_days set entries_deleted_at = now() where tenant_id = $1 and day = $2", tenant_id, day
    )


def _entry(row: asyncpg.Record) -> Entry:
    return replace(row_as(Entry, row), counts=json.loads(row["counts"]))


def _arrays(entries: Sequence[Entry]) -> list[list[object]]:
    """Return the values of each field of entries, in the order of the fields."""
    return [
        [json.dumps(entry.counts) if name == "counts" else getattr(entry, name) for entry in entries]
        for name in field_names(Entry)
    ]
