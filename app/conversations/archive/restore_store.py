"""Queries of imports of conversations. Each takes the open transaction first and names the tenant.

Literal SQL: rows are inserted with all their columns, and the links of all turns of a conversation are checked at once.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.conversations.archive.store import SUMMARY_COLUMNS, ExportedConversation, ExportedSummary, summary_row
from app.core.database.queries import NOW_SQL
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId


async def insert_conversation(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    row: ExportedConversation,
) -> bool:
    """Insert a conversation with its head; return false if its id or external id is already used."""
    made = await tx.fetchrow(
        """
        insert into conversations (
            tenant_id, id, project, external_id, owner, title, derived_title, derived_title_source,
            derived_title_turn_ids, derived_title_model, participants, tools, metadata, retention, compaction, facts,
            ttl_s, expires_at, created_at, updated_at, active_at, forked_from, chain_start, token_epoch,
            archived, pinned
        ) values ($1, $2, $3, $4, $5, $6, $7, $8, $9::uuid[], $10, $11::jsonb, $12::jsonb, $13::jsonb, $14, $15::jsonb,
                  $16::jsonb, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26)
        on conflict do nothing returning id
        """,
        tenant_id, conversation_id, row.project, row.external_id, row.owner, row.title, row.derived_title,
        row.derived_title_source, row.derived_title_turn_ids, row.derived_title_model, json.dumps(row.participants),
        json.dumps(row.tools), json.dumps(row.metadata), row.retention, json.dumps(row.compaction),
        json.dumps(row.facts), row.ttl_s, row.expires_at, row.created_at, row.updated_at, row.active_at,
        row.forked_from, row.chain_start, row.token_epoch, row.archived, row.pinned,
    )  # fmt: skip
    if made is None:
        return False
    await tx.execute(
        """
        insert into conversation_heads (
            tenant_id, conversation_id, last_seq, rev, chain_hash, summarized_through, summarized_position,
            summarized_turns, summarized_tokens, erased_position, facts_seq, facts_rev, facts_held, updated_at,
            active_at
        ) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
        """,
        tenant_id, conversation_id, row.last_seq, row.rev, row.chain_hash, row.summarized_through,
        row.summarized_position, row.summarized_turns, row.summarized_tokens, row.erased_position, row.facts_seq,
        row.facts_rev, row.facts_held, row.updated_at, row.active_at,
    )  # fmt: skip
    return True


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


async def filter_known(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> dict[UUID, UUID]:
    """Return those of the turns that exist, in any conversation of the tenant, each with its conversation."""
    rows = await tx.fetch(
        "select t.id, t.conversation_id from turns t where t.tenant_id = $1 and t.id = any($2::uuid[])",
        tenant_id,
        turn_ids,
    )
    return {row["id"]: row["conversation_id"] for row in rows}


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


async def update_counters(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, counters: HeadCounters
) -> None:
    """Count the live turns and their tokens, and write what the head counts.

    Later turns get no position of a superseded turn: turns at one position are revisions of each other.
    """
    await tx.execute(
        """
        update conversation_heads h set turn_count = n.turns, token_count = n.tokens, session = $3,
            reserved_positions = greatest(h.reserved_positions, n.last_position - h.last_seq),
            last_occurred_at = $4, language = coalesce($5, h.language)
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
        counters.session,
        counters.last_occurred_at,
        counters.language,
    )


async def advance_head(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, last_seq: int, rev: int, chain_hash: bytes
) -> None:
    """Write the end of the chain after turns were added to a locked head."""
    await tx.execute(
        f"""
        update conversation_heads set last_seq = $3, rev = $4, chain_hash = $5,
            updated_at = greatest(updated_at, {NOW_SQL})
        where tenant_id = $1 and conversation_id = $2
        """,  # noqa: S608
        tenant_id,
        conversation_id,
        last_seq,
        rev,
        chain_hash,
    )


async def insert_summaries(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, rows: Sequence[ExportedSummary]
) -> bool:
    """Insert summaries; return false if one of the ids is already used."""
    inserted = await tx.execute(
        """
        insert into summaries (tenant_id, conversation_id, id, kind, level, from_position, to_position, actors, text,
                               abstract, lines, tokens, model, prompt_version, refused_for, doubtful, replaced_by, rev,
                               created_at)
        select o.tenant_id, $2, u.* from tenants o cross join unnest(
            $3::uuid[], $4::text[], $5::integer[], $6::bigint[], $7::bigint[], $8::jsonb[], $9::text[], $10::text[],
            $11::json[], $12::integer[], $13::text[], $14::text[], $15::text[], $16::json[], $17::uuid[], $18::bigint[],
            $19::timestamptz[]
        ) as u where o.tenant_id = $1 on conflict do nothing
        """,
        tenant_id,
        conversation_id,
        [row.id for row in rows],
        [row.kind for row in rows],
        [row.level for row in rows],
        [row.from_position for row in rows],
        [row.to_position for row in rows],
        [json.dumps(row.actors) for row in rows],
        [row.text for row in rows],
        [row.abstract for row in rows],
        [json.dumps(row.lines, ensure_ascii=False) if row.lines else None for row in rows],
        [row.tokens for row in rows],
        [row.model for row in rows],
        [row.prompt_version for row in rows],
        [row.refused_for for row in rows],
        [json.dumps(row.doubtful) if row.doubtful else None for row in rows],
        [row.replaced_by for row in rows],
        [row.rev for row in rows],
        [row.created_at for row in rows],
    )
    return inserted == len(rows)


async def list_unindexed_summaries(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    after: tuple[int, UUID] | None,
    limit: int,
) -> list[ExportedSummary]:
    """Return valid summaries of a model that have no index entry, by the end of their range."""
    position, last_id = after if after is not None else (None, None)
    rows = await tx.fetch(
        f"""
        select {SUMMARY_COLUMNS} from summaries s
        where s.tenant_id = $1 and s.conversation_id = $2 and s.kind = 'summary' and s.replaced_by is null
          and s.text <> '' and ($3::bigint is null or (s.to_position, s.id) > ($3, $4::uuid))
          and not exists (
              select from index_entries e
              where e.tenant_id = $1 and e.kind = 'summary' and (e.entry_id = s.id or e.source_id = s.id)
          )
        order by s.to_position, s.id limit $5
        """,  # noqa: S608
        tenant_id,
        conversation_id,
        position,
        last_id,
        limit,
    )
    return [summary_row(row) for row in rows]
