"""Queries for those who follow conversations. Each names the tenant."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from app.core.db import Transaction
from app.core.ids import ConversationId, TenantId


async def find_head(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> tuple[int, int] | None:
    """Where a conversation stands: its last seq, and its rev."""
    row = await tx.fetchrow(
        "select last_seq, rev from conversation_heads where tenant_id = $1 and conversation_id = $2",
        tenant_id,
        conversation_id,
    )
    return None if row is None else (row["last_seq"], row["rev"])


async def durable_lengths(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> dict[UUID, dict[str, int]]:
    """How much of each part of open turns is durable; the texts are not read for it."""
    rows = await tx.fetch(
        """
        select turn_id, part, max(start + length) as durable from turn_chunks
        where tenant_id = $1 and turn_id = any($2::uuid[]) group by turn_id, part
        """,
        tenant_id,
        turn_ids,
    )
    found: dict[UUID, dict[str, int]] = {}
    for row in rows:
        found.setdefault(row["turn_id"], {})[row["part"]] = row["durable"]
    return found


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a followed conversation stands: its rev, its open turns with their epochs, how much of them is durable."""

    rev: int
    opened: Sequence[tuple[UUID, int]]
    durable: int


async def list_standings(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]
) -> dict[UUID, Standing]:
    """Where conversations stand, of those that there are."""
    rows = await tx.fetch(
        """
        select h.conversation_id, h.rev, o.turn_ids, o.epochs,
               coalesce((
                   select sum(c.length) from turn_chunks c
                   where c.tenant_id = h.tenant_id and c.turn_id = any(o.turn_ids)
               ), 0) as durable
        from conversation_heads h cross join lateral (
            select array_agg(s.turn_id) as turn_ids, array_agg(s.epoch) as epochs from turn_streams s
            where s.tenant_id = h.tenant_id and s.conversation_id = h.conversation_id
        ) o
        where h.tenant_id = $1 and h.conversation_id = any($2::uuid[])
        """,
        tenant_id,
        conversation_ids,
    )
    return {
        row["conversation_id"]: Standing(
            row["rev"], list(zip(row["turn_ids"] or (), row["epochs"] or (), strict=True)), int(row["durable"])
        )
        for row in rows
    }
