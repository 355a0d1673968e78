"""Queries on the audit. Those of the ops role read and write across tenants."""

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import cast
from uuid import UUID

import asyncpg

from app.audit.schemas import AuditFilter, ChainedEntry, ChainEnd, Entry
from app.core.database.transactions import Transaction, row_as
from app.core.ids import TenantId

_SEALER_LOCK = 0x61756469  # "audi"
_COLUMNS = (
    "tenant_id, id, recorded_at, key_id, actor, action, object_kind, object_id, conversation_id, first_seq, last_seq,"
    " head_hash, counts, request_id"
)
_TYPES = (
    "uuid", "uuid", "timestamptz", "uuid", "text", "text", "text", "text", "uuid", "bigint", "bigint", "bytea", "text",
    "uuid",
)  # fmt: skip
_ARRAYS = ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(_TYPES, start=1))
_INSERT = (
    "insert into audit_unsealed (tenant_id, id, key_id, actor, action, object_kind, object_id, conversation_id,"
    " first_seq, last_seq, head_hash, counts, request_id) values "
)
_CHAIN_END = "tenant_id, day, ordinal, entries, hash, previous_day, previous_entries, previous_hash, entries_deleted_at"


def insert_literals(values: Sequence[str]) -> str:
    """Return the statement that inserts one entry; the database gives its time.

    `values` are SQL, in the order of the columns: tenant_id, id, key_id, actor, action, object_kind, object_id,
    conversation_id, first_seq, last_seq, head_hash, counts, request_id.
    """
    return f"{_INSERT}({', '.join(values)})"


async def insert_unsealed(tx: Transaction, entries: Sequence[Entry]) -> None:
    """Insert entries with their own times, of several tenants; with the ops role."""
    await tx.execute(
        f"insert into audit_unsealed ({_COLUMNS}) select a, b, c, d, e, f, g, h, i, j, k, l, m::jsonb, n"  # noqa: S608
        f" from unnest({_ARRAYS}) as t(a, b, c, d, e, f, g, h, i, j, k, l, m, n)"
        # an attempt whose answer was lost may have stored them
        " on conflict do nothing",
        *_arrays(entries),
    )


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
        f"insert into audit_entries ({_COLUMNS}, day, number, hash)"  # noqa: S608
        f" select a, b, c, d, e, f, g, h, i, j, k, l, m::jsonb, n, o, p, q"
        f" from unnest({_ARRAYS}, $15::date[], $16::bigint[], $17::bytea[])"
        " as t(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q)"
        # with a returned column, Citus does not copy the rows to the nodes, which row-level security refuses
        " returning number",
        *_arrays([one.entry for one in chained]),
        [one.day for one in chained],
        [one.number for one in chained],
        [one.hash for one in chained],
    )


async def find_chain_ends(tx: Transaction, tenant_ids: Sequence[UUID], days: Sequence[date]) -> list[ChainEnd]:
    """Return the chain ends of these (tenant, day) pairs, and the end of the newest chain of each tenant."""
    rows = await tx.fetch(
        f"""
        select {_CHAIN_END} from audit_days d
        where (tenant_id, day) in (select * from unnest($1::uuid[], $2::date[]))
        union
        select {_CHAIN_END} from audit_days d
        where tenant_id = any($1::uuid[])
            and ordinal = (select max(ordinal) from audit_days l where l.tenant_id = d.tenant_id)
        """,  # noqa: S608
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
    of_entries = """
        with recursive one as (
            (select tenant_id from audit_entries order by tenant_id limit 1)
            union all
            select (select e.tenant_id from audit_entries e where e.tenant_id > one.tenant_id order by 1 limit 1)
            from one where one.tenant_id is not null
        )
        select tenant_id from one where tenant_id is not null
        """
    if tx.is_distributed:  # a step from tenant to tenant would go to all nodes
        of_entries = "select distinct tenant_id from audit_entries"
    rows = await tx.fetch(
        f"{of_entries} union select tenant_id from audit_days union select tenant_id from audit_unsealed"  # noqa: S608
        " order by tenant_id"
    )
    return [TenantId(row["tenant_id"]) for row in rows]


async def list_chain_ends(tx: Transaction, tenant_id: TenantId) -> list[ChainEnd]:
    """Return the ends of all chains of a tenant, in the order of their ordinals."""
    rows = await tx.fetch(f"select {_CHAIN_END} from audit_days where tenant_id = $1 order by ordinal", tenant_id)  # noqa: S608
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


async def page_entries(
    tx: Transaction,
    tenant_id: TenantId,
    *,
    where: AuditFilter,
    newest_first: bool,
    after: tuple[datetime, UUID] | None,
    limit: int,
) -> list[tuple[Entry, date | None, int | None]]:
    """List entries by time, sealed or not, each with its day and number; these are None for an entry not yet sealed."""
    given: list[object] = [tenant_id]
    conditions = ["tenant_id = $1"]
    for column, compared, value in (
        ("action", "=", where.action), ("key_id", "=", where.key_id), ("object_kind", "=", where.object_kind),
        ("object_id", "=", where.object_id), ("conversation_id", "=", where.conversation_id),
        ("request_id", "=", where.request_id), ("recorded_at", ">=", where.after), ("recorded_at", "<", where.before),
    ):  # fmt: skip
        if value is not None:
            given.append(value)
            conditions.append(f"{column} {compared} ${len(given)}")
    direction, beyond = ("desc", "<") if newest_first else ("asc", ">")
    if after is not None:
        given.extend(after)
        conditions.append(f"(recorded_at, id) {beyond} (${len(given) - 1}, ${len(given)})")
    given.append(limit)
    order = f"order by recorded_at {direction}, id {direction} limit ${len(given)}"
    filtered = " and ".join(conditions)
    rows = await tx.fetch(
        f"select * from ((select {_COLUMNS}, null::date as day, null::bigint as number from audit_unsealed"  # noqa: S608
        f" where {filtered} {order}) union all"
        f" (select {_COLUMNS}, day, number from audit_entries where {filtered} {order})) found {order}",
        *given,
    )
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
    counts = cast("Mapping[str, int]", json.loads(row["counts"]))
    return Entry(
        row["tenant_id"], row["id"], row["recorded_at"], row["key_id"], row["actor"], row["action"],
        row["object_kind"], row["object_id"], row["conversation_id"], row["first_seq"], row["last_seq"],
        row["head_hash"], counts, row["request_id"],
    )  # fmt: skip


def _arrays(entries: Sequence[Entry]) -> list[list[object]]:
    rows = [
        (
            one.tenant_id, one.id, one.recorded_at, one.key_id, one.actor, one.action, one.object_kind, one.object_id,
            one.conversation_id, one.first_seq, one.last_seq, one.head_hash, json.dumps(one.counts), one.request_id,
        )
        for one in entries
    ]  # fmt: skip
    return [list(column) for column in zip(*rows, strict=True)]
