"""Queries on long-term memories. Each takes the open transaction first and names the tenant.

What has expired is nowhere to be seen, whether it has been swept or not.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from app.core.db import Transaction
from app.core.ids import TenantId
from app.formats.schemas import JsonObject

_COLUMNS = "id, agent_id, owner, content, metadata, created_at, expires_at"
_UNEXPIRED = "(expires_at is null or expires_at > statement_timestamp())"


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """A memory as it lies in the table, JSON read. Field order is the order of `_COLUMNS`."""

    id: UUID
    agent_id: str
    owner: str | None
    content: str
    metadata: JsonObject
    created_at: datetime
    expires_at: datetime | None


def _row(row: asyncpg.Record) -> MemoryRow:
    values = dict(row)
    values["metadata"] = json.loads(values["metadata"])
    return MemoryRow(**values)


async def insert(
    tx: Transaction,
    tenant_id: TenantId,
    memory_id: UUID,
    *,
    agent_id: str,
    owner: str | None,
    content: str,
    metadata: str,
    ttl_s: int | None,
) -> tuple[datetime, datetime | None]:
    """Store a memory; gives when it was made and when it expires, by the database's clock."""
    row = await tx.fetchrow(
        """
        insert into memories (tenant_id, id, agent_id, owner, content, metadata, created_at, expires_at)
        select $1, $2, $3, $4, $5, $6::json, n.now, n.now + make_interval(secs => $7)
        from (select date_trunc('milliseconds', clock_timestamp()) as now) n
        returning created_at, expires_at
        """,
        tenant_id,
        memory_id,
        agent_id,
        owner,
        content,
        metadata,
        ttl_s,
    )
    if row is None:
        raise RuntimeError("an insert gave no row")
    return row["created_at"], row["expires_at"]


async def find(tx: Transaction, tenant_id: TenantId, memory_ids: Sequence[UUID]) -> dict[UUID, MemoryRow]:
    """Memories by id, of those that there are."""
    rows = await tx.fetch(
        f"select {_COLUMNS} from memories where tenant_id = $1 and id = any($2::uuid[]) and {_UNEXPIRED}",  # noqa: S608
        tenant_id,
        list(memory_ids),
    )
    return {row["id"]: _row(row) for row in rows}


async def list_page(
    tx: Transaction,
    tenant_id: TenantId,
    *,
    agent_id: str | None,
    owner: str | None,
    newest_first: bool,
    after: tuple[datetime, UUID] | None,
    limit: int,
) -> list[MemoryRow]:
    """Memories by the time they were made; `after` is the sort key of the last row of the page before."""
    direction, beyond = ("desc", "<") if newest_first else ("asc", ">")
    args: list[object] = [tenant_id, limit]
    conditions = ["tenant_id = $1", _UNEXPIRED]
    for column, value in (("agent_id", agent_id), ("owner", owner)):
        if value is not None:
            args.append(value)
            conditions.append(f"{column} = ${len(args)}")
    if after is not None:
        args.extend(after)
        conditions.append(f"(created_at, id) {beyond} (${len(args) - 1}, ${len(args)})")
    rows = await tx.fetch(
        f"select {_COLUMNS} from memories where {' and '.join(conditions)}"  # noqa: S608
        f" order by created_at {direction}, id {direction} limit $2",
        *args,
    )
    return [_row(row) for row in rows]


async def hold(tx: Transaction, tenant_id: TenantId, memory_ids: Sequence[UUID]) -> set[UUID]:
    """Hold memories until the transaction ends; gives those that there are. What they say never changes."""
    rows = await tx.fetch(
        "select id from memories where tenant_id = $1 and id = any($2::uuid[]) order by id for share",
        tenant_id,
        list(memory_ids),
    )
    return {row["id"] for row in rows}


async def delete(tx: Transaction, tenant_id: TenantId, memory_id: UUID) -> bool:
    """Delete a memory; false where there is none."""
    return await tx.execute("delete from memories where tenant_id = $1 and id = $2", tenant_id, memory_id) == 1


async def delete_expired(tx: Transaction, limit: int) -> list[tuple[TenantId, UUID]]:
    """Delete up to `limit` memories whose time is over; gives whose they were (ops role).

    What somebody else is deleting is left to them.
    """
    rows = await tx.fetch(
        """
        delete from memories m using (
            select tenant_id, id from memories where expires_at <= now() limit $1 for update skip locked
        ) old
        where m.tenant_id = old.tenant_id and m.id = old.id
        returning m.tenant_id, m.id
        """,
        limit,
    )
    return [(TenantId(row["tenant_id"]), row["id"]) for row in rows]
