"""Queries for subscribers of conversations. Each names the tenant.

Literal SQL: these statements run with every frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from app.conversations.schemas.conversations import TurnStatus
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId


class SubscriptionHead(NamedTuple):
    """The latest seq and rev of a conversation, of its summaries and of its facts."""

    seq: int
    rev: int
    summary_rev: int
    fact_rev: int


async def find_head(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> SubscriptionHead | None:
    """Return the head of a conversation; None when it does not exist or is being deleted."""
    row = await tx.fetchrow(
        """
        select h.last_seq, h.rev, coalesce((
            select max(s.rev) from summaries s where s.tenant_id = $1 and s.conversation_id = $2
        ), 0), h.facts_rev
        from conversation_heads h where h.tenant_id = $1 and h.conversation_id = $2 and h.deleting_at is null
        """,
        tenant_id,
        conversation_id,
    )
    return None if row is None else SubscriptionHead(*row)


async def read_texts_after(
    tx: Transaction,
    tenant_id: TenantId,
    turn_ids: Sequence[UUID],
    *,
    confirmed: Sequence[tuple[UUID, str, int]],
    max_bytes: int,
) -> tuple[dict[UUID, dict[str, str]], bool]:
    """Return the durable text of each part of open turns after the `confirmed` lengths (turn, part, length).

    The texts have at most `max_bytes` together, shared by all parts. The flag is true if there is more text.
    """
    rows = await tx.fetch(
        """
        select c.turn_id, c.part, bool_or(c.bytes > $6) as cut,
               coalesce(string_agg(c.text, '' order by c.start) filter (where c.bytes <= $6), '') as text
        from (
            select c.turn_id, c.part, c.start, c.text,
                   sum(octet_length(c.text)) over (order by c.start, c.turn_id, c.part) as bytes
            from turn_chunks c left join unnest($3::uuid[], $4::text[], $5::integer[]) k (turn_id, part, length)
                on k.turn_id = c.turn_id and k.part = c.part
            where c.tenant_id = $1 and c.turn_id = any($2::uuid[]) and c.start >= coalesce(k.length, 0)
        ) c
        group by c.turn_id, c.part
        """,
        tenant_id,
        turn_ids,
        [turn_id for turn_id, _, _ in confirmed],
        [part for _, part, _ in confirmed],
        [length for _, _, length in confirmed],
        max_bytes,
    )
    texts: dict[UUID, dict[str, str]] = {}
    for row in rows:
        texts.setdefault(row["turn_id"], {})[row["part"]] = row["text"]
    return texts, any(row["cut"] for row in rows)


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """The status of a turn that was open, and the length of its content in characters if it was aborted."""

    status: TurnStatus
    length: int = 0


async def find_ended(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> dict[UUID, EndedTurn]:
    """Return the status of turns that were open, without their content; deleted turns are left out."""
    rows = await tx.fetch(
        """
        select id, status,
               case when status = 'aborted' and json_typeof(content) = 'string' then char_length(content #>> '{}')
                    else 0 end as length
        from turns where tenant_id = $1 and id = any($2::uuid[])
        """,
        tenant_id,
        turn_ids,
    )
    return {row["id"]: EndedTurn(row["status"], row["length"]) for row in rows}


@dataclass(frozen=True, slots=True)
class ConversationState:
    """The rev of a conversation, its open turns with their epochs, and the length of their durable text."""

    rev: int
    opened: Sequence[tuple[UUID, int]]
    durable: int


async def list_states(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]
) -> dict[UUID, ConversationState]:
    """Return the state of each conversation that exists."""
    rows = await tx.fetch(
        """
        select h.conversation_id, h.rev, o.turn_ids, o.epochs,
               coalesce((
                   select sum(c.length) from turn_chunks c
                   where c.tenant_id = $1 and c.turn_id = any(o.turn_ids)
               ), 0) as durable
        from conversation_heads h cross join lateral (
            select array_agg(s.turn_id) as turn_ids, array_agg(s.epoch) as epochs from turn_streams s
            where s.tenant_id = $1 and s.conversation_id = h.conversation_id
        ) o
        where h.tenant_id = $1 and h.conversation_id = any($2::uuid[]) and h.deleting_at is null
        """,
        tenant_id,
        conversation_ids,
    )
    return {
        row["conversation_id"]: ConversationState(
            row["rev"], list(zip(row["turn_ids"] or (), row["epochs"] or (), strict=True)), int(row["durable"])
        )
        for row in rows
    }
