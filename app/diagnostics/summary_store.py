"""Queries for the check of summaries. They read tables of several capabilities, and never write (ops role)."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from app.core.database.transactions import Transaction
from app.core.ids import TenantId


@dataclass(frozen=True, slots=True)
class MarkRow:
    """The head's marks of summarised and erased turns."""

    through: UUID | None
    position: int
    turns: int
    tokens: int
    erased_position: int


@dataclass(frozen=True, slots=True)
class CheckedSummary:
    """A summary with its index state, without its content.

    `is_valid`: no summary has replaced it. `replaced_well`: its replacement exists. `lines_lost`: those of its `lines`
    whose turns are outside of its range or erased. `entry_live` is None without an index entry.
    """

    id: UUID
    kind: str
    from_position: int
    to_position: int
    is_valid: bool
    replaced_well: bool
    lines: int
    lines_lost: int
    entry_live: bool | None


@dataclass(frozen=True, slots=True)
class Covered:
    """Live turns through the head's mark: count, tokens, the last turn; and the last position of all turns.

    `turns` also counts tombstones after the mark, which need no summary.
    """

    turns: int
    tokens: int
    last: UUID | None
    last_position: int


async def find_mark(tx: Transaction, tenant_id: TenantId, conversation_id: UUID) -> MarkRow | None:
    """Return the head's marks."""
    row = await tx.fetchrow(
        """
        select summarized_through as through, summarized_position as position, summarized_turns as turns,
               summarized_tokens as tokens, erased_position
        from conversation_heads where tenant_id = $1 and conversation_id = $2
        """,
        tenant_id,
        conversation_id,
    )
    return None if row is None else MarkRow(**dict(row))


async def list_summaries(tx: Transaction, tenant_id: TenantId, conversation_id: UUID) -> Sequence[CheckedSummary]:
    """Return all summaries by range, replaced ones too."""
    rows = await tx.fetch(
        """
        select s.id, s.kind, s.from_position, s.to_position, s.replaced_by is null as is_valid,
               s.replaced_by is null or exists (
                   select from summaries r where r.tenant_id = $1 and r.id = s.replaced_by
                     and r.conversation_id = s.conversation_id
               ) as replaced_well,
               json_array_length(coalesce(s.lines, '[]')) as lines,
               (select count(*) from json_array_elements(coalesce(s.lines, '[]')) l (item) where not exists (
                   select from turns t where t.tenant_id = $1 and t.id = (l.item ->> 0)::uuid
                     and t.conversation_id = s.conversation_id and t.superseded_by is null and t.erased_at is null
                     and t.position between s.from_position and s.to_position
               ))::integer as lines_lost,
               (
                   select e.live from index_entries e
                   where e.tenant_id = $1 and e.kind = 'summary' and (e.entry_id = s.id or e.source_id = s.id)
               ) as entry_live
        from summaries s where s.tenant_id = $1 and s.conversation_id = $2 order by s.from_position, s.to_position, s.id
        """,
        tenant_id,
        conversation_id,
    )
    return [CheckedSummary(**dict(row)) for row in rows]


async def measure(tx: Transaction, tenant_id: TenantId, conversation_id: UUID, *, position: int) -> Covered:
    """Measure the turns through a position."""
    row = await tx.fetchrow(
        """
        select count(*) filter (
                   where t.superseded_by is null and (t.position <= $3 or t.erased_at is not null)
               ) as turns,
               coalesce(sum(t.content_tokens) filter (where t.superseded_by is null and t.position <= $3), 0)::bigint
                   as tokens,
               (array_agg(t.id order by t.position desc) filter (
                   where t.superseded_by is null and t.position <= $3
               ))[1] as last,
               coalesce(max(t.position), 0) as last_position
        from turns t where t.tenant_id = $1 and t.conversation_id = $2 and t.status = 'committed'
        """,
        tenant_id,
        conversation_id,
        position,
    )
    return Covered(0, 0, None, 0) if row is None else Covered(**dict(row))
