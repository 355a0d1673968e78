"""Queries on long-term memories. Each takes the open transaction first and names the tenant.

Reads leave out expired memories, even before the sweep deletes them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg
from sqlalchemy import ClauseElement, func, or_, select
from sqlalchemy import delete as delete_from

from app.core.database.queries import (
    Query,
    after_key,
    columns,
    compiled,
    delete_some,
    equals,
    given,
    is_any,
    page,
)
from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.formats.schemas import JsonObject
from app.memory.longterm.tables import memories

_MAX_REPEATED = 100
_M = memories.c
_UNEXPIRED = or_(_M.expires_at.is_(None), _M.expires_at > func.statement_timestamp())


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """A memory as it lies in the table, JSON read."""

    id: UUID
    agent_id: str
    owner: str | None
    content: str
    metadata: JsonObject
    created_at: datetime
    expires_at: datetime | None
    repeated_at: list[datetime]


@dataclass(frozen=True, slots=True)
class NewMemory:
    """A memory to store; `metadata` is JSON text."""

    agent_id: str
    owner: str | None
    content: str
    metadata: str
    ttl_s: int | None


_MEMORIES = select(*columns(memories, MemoryRow)).where(*equals(memories, "tenant_id"), _UNEXPIRED)
_FIND = Query(_MEMORIES.where(is_any(_M.id, "ids")))
_LOCK_SHARED = Query(
    select(_M.id).where(*equals(memories, "tenant_id"), is_any(_M.id, "ids")).order_by(_M.id).with_for_update(read=True)
)
_DELETE = Query(delete_from(memories).where(*equals(memories, "tenant_id", "id")))


@compiled
def _delete_expired(*, skip_locked: bool) -> ClauseElement:
    return delete_some(memories, _M.expires_at <= func.now(), skip_locked=skip_locked).returning(_M.tenant_id, _M.id)


def _row(row: asyncpg.Record) -> MemoryRow:
    values = dict(row)
    values["metadata"] = json.loads(values["metadata"])
    return MemoryRow(**values)


async def lock_text(tx: Transaction, tenant_id: TenantId, *, agent_id: str, content: str) -> None:
    """Lock a text of an agent until the transaction ends, so that equal memories are stored one after the other."""
    await tx.execute(
        "select pg_advisory_xact_lock(hashtextextended(concat_ws(':', 'memory', $1::text, $2::text, md5($3)), 0))",
        str(tenant_id),
        agent_id,
        content,
    )


async def repeat(tx: Transaction, tenant_id: TenantId, memory: NewMemory) -> tuple[UUID, datetime | None] | None:
    """Record that a memory is stored again. Return its id and its new expiry, or None if there is no such memory yet.

    It is the same memory if agent, owner, text and metadata are equal. It expires at the later of both times. Of its
    dates the newest hundred are kept. The caller locks the text.
    """
    row = await tx.fetchrow(
        """
        update memories m
        set repeated_at = m.repeated_at[greatest(1, cardinality(m.repeated_at) - $6 + 2):]
                || date_trunc('milliseconds', statement_timestamp()),
            expires_at = case when $7::float8 is not null then nullif(greatest(
                coalesce(m.expires_at, 'infinity'),
                date_trunc('milliseconds', statement_timestamp()) + make_interval(secs => $7)
            ), 'infinity') end
        where m.tenant_id = $1 and m.id = (
            select id from memories
            where tenant_id = $1 and agent_id = $2 and md5(content) = md5($3) and content = $3
              and owner is not distinct from $4 and metadata::jsonb = $5::jsonb
              and (expires_at is null or expires_at > statement_timestamp())
            order by created_at, id limit 1
        )
        returning m.id, m.expires_at
        """,
        tenant_id,
        memory.agent_id,
        memory.content,
        memory.owner,
        memory.metadata,
        _MAX_REPEATED,
        memory.ttl_s,
    )
    return None if row is None else (row["id"], row["expires_at"])


async def insert(
    tx: Transaction, tenant_id: TenantId, memory_id: UUID, memory: NewMemory
) -> tuple[datetime, datetime | None]:
    """Store a memory. Return its creation time and its expiry, by the clock of the database."""
    row = await tx.fetchrow(
        """
        insert into memories (tenant_id, id, agent_id, owner, content, metadata, created_at, expires_at)
        values ($1, $2, $3, $4, $5, $6::json, date_trunc('milliseconds', statement_timestamp()),
                date_trunc('milliseconds', statement_timestamp()) + make_interval(secs => $7))
        returning created_at, expires_at
        """,
        tenant_id,
        memory_id,
        memory.agent_id,
        memory.owner,
        memory.content,
        memory.metadata,
        memory.ttl_s,
    )
    if row is None:
        raise RuntimeError("an insert gave no row")
    return row["created_at"], row["expires_at"]


async def find(tx: Transaction, tenant_id: TenantId, memory_ids: Sequence[UUID]) -> dict[UUID, MemoryRow]:
    """Memories by id, of those that there are."""
    rows = await _FIND.fetch(tx, tenant_id=tenant_id, ids=list(memory_ids))
    return {row["id"]: _row(row) for row in rows}


@compiled
def _page(filters: frozenset[str], *, newest_first: bool, after: bool) -> ClauseElement:
    statement = _MEMORIES.where(*equals(memories, *sorted(filters - {"owners"})))
    if "owners" in filters:
        statement = statement.where(is_any(_M.owner, "owners"))
    return page(statement, (_M.created_at, _M.id), newest_first=newest_first, after=after)


async def list_page(
    tx: Transaction,
    tenant_id: TenantId,
    *,
    agent_id: str | None,
    owners: Sequence[str] | None,
    newest_first: bool,
    after: tuple[datetime, UUID] | None,
    limit: int,
) -> list[MemoryRow]:
    """Memories by the time they were made; `after` is the sort key of the last row of the page before."""
    filters = given(agent_id=agent_id, owners=owners)
    query = _page(frozenset(filters), newest_first=newest_first, after=after is not None)
    rows = await query.fetch(tx, tenant_id=tenant_id, limit=limit, **filters, **after_key(after))
    return [_row(row) for row in rows]


async def lock(tx: Transaction, tenant_id: TenantId, memory_ids: Sequence[UUID]) -> set[UUID]:
    """Lock memories until the transaction ends; return those that exist. Their content never changes."""
    rows = await _LOCK_SHARED.fetch(tx, tenant_id=tenant_id, ids=list(memory_ids))
    return {row["id"] for row in rows}


async def delete(tx: Transaction, tenant_id: TenantId, memory_id: UUID) -> bool:
    """Delete a memory; false where there is none."""
    return await _DELETE.execute(tx, tenant_id=tenant_id, id=memory_id) == 1


@compiled
def _some(filters: frozenset[str]) -> ClauseElement:
    chosen = delete_some(memories, *equals(memories, *sorted(filters - {"tenant_id"})), of_tenant=True)
    return chosen.returning(_M.id)


@compiled
def _count(filters: frozenset[str]) -> ClauseElement:
    return select(func.count().label("count")).where(*equals(memories, *sorted(filters)), _UNEXPIRED)


async def delete_of(tx: Transaction, tenant_id: TenantId, *, owner: str | None, limit: int) -> list[UUID]:
    """Delete up to `limit` memories about an owner, of the tenant with None; return their ids."""
    filters = given(tenant_id=tenant_id, owner=owner)
    return [row["id"] for row in await _some(frozenset(filters)).fetch(tx, limit=limit, **filters)]


async def count(tx: Transaction, tenant_id: TenantId, *, owner: str | None) -> int:
    """Return the number of memories about an owner, of the tenant with None."""
    filters = given(tenant_id=tenant_id, owner=owner)
    row = await _count(frozenset(filters)).fetchrow(tx, **filters)
    return 0 if row is None else int(row["count"])


async def delete_expired(tx: Transaction, limit: int) -> list[tuple[TenantId, UUID]]:
    """Delete up to `limit` expired memories (ops role). Return their tenants and ids.

    Memories that another transaction has locked are skipped.
    """
    rows = await _delete_expired(skip_locked=not tx.is_distributed).fetch(tx, limit=limit)
    return [(TenantId(row["tenant_id"]), row["id"]) for row in rows]
