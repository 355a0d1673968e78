"""Queries on expired conversations, and on conversations that are being deleted.

A conversation is being deleted from the moment its head has `deleting_at`; all queries of the other stores skip it. The
sweep finds conversations by `conversations.expires_at`. It is at or before the actual expiry time, because an append
moves that time and does not always write the column. For a conversation that is being deleted it is in the past. Each
query names the tenant, except those of the sweep.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId

_EXPIRES_AT = "greatest(c.updated_at, h.updated_at) + make_interval(secs => c.ttl_s)"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A conversation that may have expired, or that is being deleted."""

    expires_at: datetime
    tenant_id: TenantId
    id: UUID


async def list_candidates(tx: Transaction, *, after: tuple[datetime, UUID, UUID] | None, limit: int) -> list[Candidate]:
    """Return the next conversations of all tenants that may have expired, oldest `expires_at` first (ops role)."""
    moment, tenant_id, conversation_id = after or (None, None, None)
    rows = await tx.fetch(
        """
        select c.expires_at, c.tenant_id, c.id from conversations c
        where c.expires_at <= clock_timestamp()
          and ($1::timestamptz is null or (c.expires_at, c.tenant_id, c.id) > ($1, $2::uuid, $3::uuid))
        order by c.expires_at, c.tenant_id, c.id limit $4
        """,
        moment,
        tenant_id,
        conversation_id,
        limit,
    )
    return [Candidate(row["expires_at"], TenantId(row["tenant_id"]), row["id"]) for row in rows]


async def has_turns(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> bool:
    """Return whether a conversation has turns, open ones included, that are not aborted."""
    row = await tx.fetchrow(
        "select 1 from turns where tenant_id = $1 and conversation_id = $2 and status <> 'aborted' limit 1",
        tenant_id,
        conversation_id,
    )
    return row is not None


async def lock_heads(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> list[UUID]:
    """Lock the heads of those conversations that no other transaction has locked, and return their ids."""
    rows = await tx.fetch(
        """
        select conversation_id from conversation_heads where tenant_id = $1 and conversation_id = any($2::uuid[])
        order by conversation_id for update skip locked
        """,
        tenant_id,
        conversation_ids,
    )
    return [row["conversation_id"] for row in rows]


async def list_expired(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> list[UUID]:
    """Return which of these conversations, whose heads are locked, have expired and have no open turn."""
    rows = await tx.fetch(
        f"""
        select c.id from conversations c
        join conversation_heads h on h.tenant_id = c.tenant_id and h.conversation_id = c.id
        where c.tenant_id = $1 and c.id = any($2::uuid[]) and h.deleting_at is null
          and {_EXPIRES_AT} <= clock_timestamp()
          and not exists (
              select from turn_streams s where s.tenant_id = c.tenant_id and s.conversation_id = c.id
          )
        """,  # noqa: S608
        tenant_id,
        conversation_ids,
    )
    return [row["id"] for row in rows]


async def put_off(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> None:
    """Write the current expiry time of these conversations, whose heads are locked."""
    await tx.execute(
        f"""
        update conversations c set expires_at = {_EXPIRES_AT} from conversation_heads h
        where c.tenant_id = $1 and c.id = any($2::uuid[]) and h.tenant_id = c.tenant_id and h.conversation_id = c.id
          and h.deleting_at is null and c.expires_at is distinct from {_EXPIRES_AT}
        """,  # noqa: S608
        tenant_id,
        conversation_ids,
    )


async def hide(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> None:
    """Hide conversations whose heads are locked from all other queries, and delete their streams.

    The sweep finds them by `expires_at`. Their external ids are free for new conversations.
    """
    await tx.execute(
        """
        update conversation_heads set deleting_at = clock_timestamp()
        where tenant_id = $1 and conversation_id = any($2::uuid[])
        """,
        tenant_id,
        conversation_ids,
    )
    await tx.execute(
        """
        update conversations set external_id = null, expires_at = least(expires_at, clock_timestamp())
        where tenant_id = $1 and id = any($2::uuid[])
        """,
        tenant_id,
        conversation_ids,
    )
    await tx.execute(
        """
        select 1 from turn_streams where tenant_id = $1 and conversation_id = any($2::uuid[])
        order by turn_id for update
        """,
        tenant_id,
        conversation_ids,
    )
    await tx.execute(
        "delete from turn_streams where tenant_id = $1 and conversation_id = any($2::uuid[])",
        tenant_id,
        conversation_ids,
    )


async def lock_deleting(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID], *, waiting: bool
) -> dict[UUID, bool]:
    """Lock those of these conversations that are being deleted; return for each whether it has had facts.

    Unless `waiting`, conversations that another transaction has locked are left out.
    """
    rows = await tx.fetch(
        f"""
        select conversation_id, facts_held from conversation_heads
        where tenant_id = $1 and conversation_id = any($2::uuid[]) and deleting_at is not null
        order by conversation_id for update {"" if waiting else "skip locked"}
        """,  # noqa: S608
        tenant_id,
        conversation_ids,
    )
    return {row["conversation_id"]: row["facts_held"] for row in rows}


async def list_deleting(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> set[UUID]:
    """Return which of these conversations are being deleted."""
    rows = await tx.fetch(
        """
        select conversation_id from conversation_heads
        where tenant_id = $1 and conversation_id = any($2::uuid[]) and deleting_at is not null
        """,
        tenant_id,
        conversation_ids,
    )
    return {row["conversation_id"] for row in rows}


async def lock_turns_of(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID], *, limit: int
) -> list[UUID]:
    """Lock up to `limit` turns of conversations, so that nothing is derived from them until the transaction ends."""
    rows = await tx.fetch(
        """
        select id from turns where tenant_id = $1 and conversation_id = any($2::uuid[]) limit $3 for update
        """,
        tenant_id,
        conversation_ids,
        limit,
    )
    return [row["id"] for row in rows]


async def delete_turns(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> int:
    """Delete turns of conversations that are being deleted; return their number."""
    return await tx.execute("delete from turns where tenant_id = $1 and id = any($2::uuid[])", tenant_id, turn_ids)


async def delete_summaries(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID], *, limit: int
) -> int:
    """Delete up to `limit` summaries of conversations; return their number."""
    return await tx.execute(
        """
        delete from summaries where tenant_id = $1 and id in (
            select s.id from summaries s where s.tenant_id = $1 and s.conversation_id = any($2::uuid[]) limit $3
        )
        """,
        tenant_id,
        conversation_ids,
        limit,
    )


async def delete_conversations(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> int:
    """Delete conversations that have no other rows left, with their heads; return their number."""
    await tx.execute(
        "delete from conversation_heads where tenant_id = $1 and conversation_id = any($2::uuid[])",
        tenant_id,
        conversation_ids,
    )
    return await tx.execute(
        "delete from conversations where tenant_id = $1 and id = any($2::uuid[])", tenant_id, conversation_ids
    )


async def find_size(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> int:
    """Return the number of turns that were committed to a conversation."""
    row = await tx.fetchrow(
        "select last_seq from conversation_heads where tenant_id = $1 and conversation_id = $2",
        tenant_id,
        conversation_id,
    )
    return 0 if row is None else int(row["last_seq"])
