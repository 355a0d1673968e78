"""Queries of imports and forks of conversations. Each takes the open transaction first and names the tenant.

Literal SQL: the links of all turns of a conversation are checked at once.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.conversations.schemas.fields import SUMMARY
from app.conversations.stores.summary_store import SummaryRow, doubtful_column, lines_column
from app.conversations.tables import summaries
from app.conversations.turns.hashes import TurnChain
from app.core.database.queries import InsertMany
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId

_SUMMARY_COLUMNS = ("conversation_id", *(field.column for field in SUMMARY))
_INSERT_SUMMARIES = InsertMany(summaries, _SUMMARY_COLUMNS, skips_existing=True)


async def find_hash_at(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, seq: int
) -> tuple[bool, bytes | None]:
    """Return whether a conversation has this id, hidden ones included, and its chain hash at a seq, or None."""
    row = await tx.fetchrow(
        """
        select case when $3 = 0 then coalesce(c.chain_start, $4) else (
            select t.chain_hash from turns t where t.tenant_id = $1 and t.conversation_id = $2 and t.seq = $3
        ) end as chain_hash
        from conversations c where c.tenant_id = $1 and c.id = $2
        """,
        tenant_id,
        conversation_id,
        seq,
        bytes(32),
    )
    return (False, None) if row is None else (True, row["chain_hash"])


async def is_deleting(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> bool:
    """Return whether the conversation is being deleted."""
    row = await tx.fetchrow(
        "select deleting_at from conversation_heads where tenant_id = $1 and conversation_id = $2",
        tenant_id,
        conversation_id,
    )
    return row is not None and row["deleting_at"] is not None


async def is_trashed(
    tx: Transaction, tenant_id: TenantId, conversation_id: UUID, project: str, external_id: str | None
) -> bool:
    """Return whether the conversation with this id, or with this external id, is in the trash."""
    row = await tx.fetchrow(
        "select exists (select from conversations c where c.tenant_id = $1 and c.trashed_at is not null"
        " and (c.id = $2 or c.project = $3 and c.external_id = $4)) as trashed",
        tenant_id,
        conversation_id,
        project,
        external_id,
    )
    return row is not None and bool(row["trashed"])


async def filter_stored(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> set[UUID]:
    """Return those of the turns that exist, in any conversation of the tenant."""
    rows = await tx.fetch(
        "select t.id from turns t where t.tenant_id = $1 and t.id = any($2::uuid[])", tenant_id, turn_ids
    )
    return {row["id"] for row in rows}


async def find_positions(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, turn_ids: Sequence[UUID]
) -> dict[UUID, int]:
    """Return the positions of live turns of a conversation, by id."""
    rows = await tx.fetch(
        "select t.id, t.position from turns t where t.tenant_id = $1 and t.conversation_id = $2"
        " and t.id = any($3::uuid[]) and t.status = 'committed' and t.superseded_by is null",
        tenant_id,
        conversation_id,
        turn_ids,
    )
    return {row["id"]: row["position"] for row in rows}


async def supersede(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    pairs: Sequence[tuple[UUID, UUID]],
    *,
    rev: int,
) -> None:
    """Set the successors of live turns: pairs are (old turn, new turn)."""
    await tx.execute(
        """
        update turns t set superseded_by = u.new, rev = $5, index_state = 'none'
        from unnest($3::uuid[], $4::uuid[]) as u (old, new)
        where t.tenant_id = $1 and t.conversation_id = $2 and t.id = u.old and t.superseded_by is null
        """,
        tenant_id,
        conversation_id,
        [old for old, _ in pairs],
        [new for _, new in pairs],
        rev,
    )


async def has_wrong_links(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, through: UUID | None
) -> bool:
    """Return whether links of turns are wrong.

    A successor is a later committed turn of the conversation, or for an aborted turn also itself. A replaced turn
    exists in it. Two live turns have different positions. The turn up to which it is summarised exists.
    """
    row = await tx.fetchrow(
        """
        select exists (
            select from turns t
            where t.tenant_id = $1 and t.conversation_id = $2 and t.superseded_by is not null
              and not (t.status = 'aborted' and t.superseded_by = t.id)
              and not exists (
                  select from turns n
                  where n.tenant_id = $1 and n.id = t.superseded_by and n.conversation_id = $2
                    and n.status = 'committed' and (t.seq is null or n.seq > t.seq)
              )
        ) or exists (
            select from turns t
            where t.tenant_id = $1 and t.conversation_id = $2 and t.supersedes is not null
              and not exists (
                  select from turns n
                  where n.tenant_id = $1 and n.id = t.supersedes and n.conversation_id = $2 and n.id <> t.id
                    and (t.seq is null or n.seq is null or n.seq < t.seq)
              )
        ) or exists (
            select from turns t
            where t.tenant_id = $1 and t.conversation_id = $2 and t.status = 'committed' and t.superseded_by is null
            group by t.position having count(*) > 1
        ) or $3::uuid is not null and not exists (
            select from turns t where t.tenant_id = $1 and t.conversation_id = $2 and t.id = $3
        ) as wrong
        """,
        tenant_id,
        conversation_id,
        through,
    )
    return row is not None and bool(row["wrong"])


@dataclass(frozen=True, slots=True)
class HeadCounters:
    """What a head counts of its live turns, and the language of the newest that was indexed and shows one."""

    session: int
    last_occurred_at: datetime | None
    language: str | None


async def write_head(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    chain: TurnChain,
    rev: int,
    counters: HeadCounters,
    updated_at: datetime | None = None,
    active_at: datetime | None = None,
) -> None:
    """Write the end of the chain into a locked head, and what it counts of its turns.

    Later turns get no position of a superseded turn: turns at one position are revisions of each other.
    """
    await tx.execute(
        """
        update conversation_heads h set last_seq = $3, rev = $4, chain_hash = $5,
            updated_at = greatest(h.updated_at, $6::timestamptz), turn_count = n.turns, token_count = n.tokens,
            session = $7, last_occurred_at = $8, language = coalesce($9, h.language),
            active_at = coalesce(h.active_at, $10::timestamptz),
            reserved_positions = greatest(h.reserved_positions, n.last_position - $3)
        from (
            select count(*) filter (where t.superseded_by is null) as turns,
                   coalesce(sum(t.content_tokens) filter (where t.superseded_by is null), 0)::bigint as tokens,
                   coalesce(max(t.position), 0) as last_position from turns t
            where t.tenant_id = $1 and t.conversation_id = $2 and t.status = 'committed'
        ) n
        where h.tenant_id = $1 and h.conversation_id = $2
        """,
        tenant_id,
        conversation_id,
        chain.seq,
        rev,
        chain.hash,
        updated_at,
        counters.session,
        counters.last_occurred_at,
        counters.language,
        active_at,
    )


async def insert_summaries(tx: Transaction, tenant_id: TenantId, rows: Sequence[SummaryRow]) -> bool:
    """Insert summaries; return false if one of the ids is already used."""
    columns = [
        {name: getattr(row, name) for name in _SUMMARY_COLUMNS}
        | {
            "actors": json.dumps(list(row.actors)),
            "lines": lines_column(row.lines),
            "doubtful": doubtful_column(row.doubtful),
        }
        for row in rows
    ]
    values = [list(row.values()) for row in columns]
    return await _INSERT_SUMMARIES.execute(tx, tenant_id, values) == len(rows)
