"""Queries on conversations whose time is over, and on those that are being deleted.

A conversation is being deleted from the moment its head says so (`deleting_at`): every query of the other stores passes
it over. `conversations.expires_at` is what the sweep finds it by: a time at or before the one it expires at, since
appends move that one and not the column; and the past, of one that is being deleted. Each names the tenant, but for
those of the sweep.
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
    """A conversation that may have expired, or is being deleted."""

    expires_at: datetime
    tenant_id: TenantId
    id: UUID


async def list_candidates(tx: Transaction, *, after: tuple[datetime, UUID, UUID] | None, limit: int) -> list[Candidate]:
    """The next conversations of any tenant that may have expired, those due longest first (ops role)."""
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
    """Whether a conversation has turns, open ones too, and not only such as were given up."""
    row = await tx.fetchrow(
        "select 1 from turns where tenant_id = $1 and conversation_id = $2 and status <> 'aborted' limit 1",
        tenant_id,
        conversation_id,
    )
    return row is not None


async def lock_heads(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> list[UUID]:
    """Hold the heads of those of these conversations that nobody else holds, until the transaction ends."""
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
    """Which of these conversations, whose heads are held, have expired and have no open turn."""
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
    """Say of these conversations, whose heads are held, when they expire as things are."""
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
    """Let conversations whose heads are held be gone for everybody; the sweep finds them. Their names are free."""
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
    """Hold those of these conversations that are being deleted; whether each has had facts.

    Unless `waiting`, those that somebody else is at are left out.
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
    """Those of these conversations that are being deleted."""
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
    """Some turns of conversations, held: nothing is derived from them until the transaction ends."""
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
    """Delete turns of conversations that are being deleted; says how many."""
    return await tx.execute("delete from turns where tenant_id = $1 and id = any($2::uuid[])", tenant_id, turn_ids)


async def delete_summaries(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID], *, limit: int
) -> int:
    """Delete some summaries of conversations; says how many."""
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
    """Delete conversations of which nothing else is left, with their heads; says how many."""
    await tx.execute(
        "delete from conversation_heads where tenant_id = $1 and conversation_id = any($2::uuid[])",
        tenant_id,
        conversation_ids,
    )
    return await tx.execute(
        "delete from conversations where tenant_id = $1 and id = any($2::uuid[])", tenant_id, conversation_ids
    )


async def find_size(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> int:
    """How many turns a conversation was given."""
    row = await tx.fetchrow(
        "select last_seq from conversation_heads where tenant_id = $1 and conversation_id = $2",
        tenant_id,
        conversation_id,
    )
    return 0 if row is None else int(row["last_seq"])
