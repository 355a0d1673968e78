"""Queries on summaries. Each names the tenant. Callers that change summaries lock the conversation's head."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from app.conversations.schemas.summaries import HighlightLine, SummaryDraft
from app.conversations.stores.conversation_store import NOT_DELETING, OF_NOT_DELETING
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId

_COLUMNS = (
    "id, conversation_id, kind, level, from_position, to_position, actors, text, abstract, lines, tokens, model,"
    " prompt_version, replaced_by, rev, created_at"
)
_LIVE = "t.status = 'committed' and t.superseded_by is null"


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A row of the table `summaries`, JSON parsed. The field order is the order of `_COLUMNS`."""

    id: UUID
    conversation_id: UUID
    kind: str
    level: int
    from_position: int
    to_position: int
    actors: Sequence[str]
    text: str | None
    abstract: str | None
    lines: Sequence[HighlightLine]
    tokens: int
    model: str | None
    prompt_version: str
    replaced_by: UUID | None
    rev: int
    created_at: datetime


def _row(row: asyncpg.Record) -> SummaryRow:
    values = dict(row)
    values["actors"] = json.loads(values["actors"])
    values["lines"] = [
        HighlightLine(UUID(key), text, tokens) for key, text, tokens in json.loads(values["lines"] or "[]")
    ]
    return SummaryRow(**values)


def _lines(lines: Sequence[HighlightLine]) -> str | None:
    items = [[str(line.turn_id), line.text, line.tokens] for line in lines]
    return json.dumps(items, ensure_ascii=False) if items else None


async def insert(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, summary_id: UUID, draft: SummaryDraft,
    rev: int,
) -> None:  # fmt: skip
    """Store a summary; the text of highlights is stored only as their lines."""
    await tx.execute(
        """
        insert into summaries (tenant_id, id, conversation_id, kind, level, from_position, to_position, actors, text,
                               abstract, lines, tokens, model, prompt_version, rev, created_at)
        values ($1, $2, $3, $4, $5, $6, $7, $8::jsonb, $9, $10, $11::json, $12, $13, $14, $15,
                date_trunc('milliseconds', clock_timestamp()))
        """,
        tenant_id, summary_id, conversation_id, draft.kind.value, draft.level, draft.from_position, draft.to_position,
        json.dumps(list(draft.actors)), None if draft.lines else draft.text, draft.abstract, _lines(draft.lines),
        draft.tokens, draft.model, draft.prompt_version, rev,
    )  # fmt: skip


async def copy(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    places: Sequence[tuple[UUID, UUID, int, int]],
    rev: int,
) -> None:
    """Copy summaries into another conversation, without lines.

    `places` are (summary id, id of the copy, first position, last position).
    """
    await tx.execute(
        """
        insert into summaries (tenant_id, id, conversation_id, kind, level, from_position, to_position, actors, text,
                               abstract, lines, tokens, model, prompt_version, rev, created_at)
        select s.tenant_id, u.copy_id, $2, s.kind, s.level, u.first, u.last, s.actors, coalesce(s.text, ''), s.abstract,
               null, s.tokens, s.model, s.prompt_version, $7, date_trunc('milliseconds', clock_timestamp())
        from unnest($3::uuid[], $4::uuid[], $5::bigint[], $6::bigint[]) as u (id, copy_id, first, last)
        join summaries s on s.tenant_id = $1 and s.id = u.id
        """,
        tenant_id,
        conversation_id,
        *([place[number] for place in places] for number in range(4)),
        rev,
    )


async def list_valid(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> list[SummaryRow]:
    """Return the valid summaries of a conversation, by the end of their range."""
    rows = await tx.fetch(
        f"""
        select {_COLUMNS} from summaries
        where tenant_id = $1 and conversation_id = $2 and replaced_by is null
        order by to_position, id
        """,  # noqa: S608
        tenant_id,
        conversation_id,
    )
    return [_row(row) for row in rows]


async def list_from_position(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, position: int
) -> list[SummaryRow]:
    """Return all summaries, replaced ones included, that end at a position or after it."""
    rows = await tx.fetch(
        f"""
        select {_COLUMNS} from summaries
        where tenant_id = $1 and conversation_id = $2 and to_position >= $3 order by to_position, id
        """,  # noqa: S608
        tenant_id,
        conversation_id,
        position,
    )
    return [_row(row) for row in rows]


async def list_page(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    with_replaced: bool,
    newest_first: bool,
    after: tuple[int, UUID] | None,
    limit: int,
) -> list[SummaryRow]:
    """Return a page of summaries by the end of their range."""
    direction, beyond = ("desc", "<") if newest_first else ("asc", ">")
    args: list[object] = [tenant_id, conversation_id, limit]
    conditions = ["tenant_id = $1", "conversation_id = $2", NOT_DELETING]
    if not with_replaced:
        conditions.append("replaced_by is null")
    if after is not None:
        args.extend(after)
        conditions.append(f"(to_position, id) {beyond} ($4, $5)")
    rows = await tx.fetch(
        f"select {_COLUMNS} from summaries where {' and '.join(conditions)}"  # noqa: S608
        f" order by to_position {direction}, id {direction} limit $3",
        *args,
    )
    return [_row(row) for row in rows]


async def find(tx: Transaction, tenant_id: TenantId, summary_ids: Sequence[UUID]) -> dict[UUID, SummaryRow]:
    """Return summaries by id, without those of conversations that are being deleted.

    The index still has entries of such conversations.
    """
    rows = await tx.fetch(
        f"select {_COLUMNS} from summaries t where t.tenant_id = $1 and t.id = any($2::uuid[]) and {OF_NOT_DELETING}",  # noqa: S608
        tenant_id,
        summary_ids,
    )
    return {row["id"]: _row(row) for row in rows}


async def list_made(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, after_rev: int, limit: int = 20
) -> list[SummaryRow]:
    """Return valid summaries that were made after a rev, by rev."""
    rows = await tx.fetch(
        f"""
        select {_COLUMNS} from summaries
        where tenant_id = $1 and conversation_id = $2 and rev > $3 and replaced_by is null order by rev, id limit $4
        """,  # noqa: S608
        tenant_id,
        conversation_id,
        after_rev,
        limit,
    )
    return [_row(row) for row in rows]


async def replace(tx: Transaction, tenant_id: TenantId, summary_ids: Sequence[UUID], *, by: UUID) -> None:
    """Mark summaries as replaced by another one."""
    await tx.execute(
        "update summaries set replaced_by = $3 where tenant_id = $1 and id = any($2::uuid[])",
        tenant_id,
        summary_ids,
        by,
    )


async def restore(tx: Transaction, tenant_id: TenantId, *, replaced_by: Sequence[UUID]) -> list[UUID]:
    """Make the summaries valid again that these had replaced; return their ids."""
    rows = await tx.fetch(
        """
        update summaries set replaced_by = null
        where tenant_id = $1 and replaced_by = any($2::uuid[]) returning id
        """,
        tenant_id,
        replaced_by,
    )
    return sorted(row["id"] for row in rows)


async def delete(tx: Transaction, tenant_id: TenantId, summary_ids: Sequence[UUID]) -> None:
    """Delete summaries."""
    await tx.execute("delete from summaries where tenant_id = $1 and id = any($2::uuid[])", tenant_id, summary_ids)


async def list_highlights(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, through: int
) -> list[SummaryRow]:
    """Return all highlights, replaced ones included, that start at a position or before it."""
    rows = await tx.fetch(
        f"""
        select {_COLUMNS} from summaries
        where tenant_id = $1 and conversation_id = $2 and kind = 'highlights' and from_position <= $3
        order by to_position, id
        """,  # noqa: S608
        tenant_id,
        conversation_id,
        through,
    )
    return [_row(row) for row in rows]


async def set_lines(
    tx: Transaction,
    tenant_id: TenantId,
    summary_id: UUID,
    *,
    lines: Sequence[HighlightLine],
    from_position: int | None = None,
) -> None:
    """Set the lines of highlights, and their first position if given."""
    await tx.execute(
        """
        update summaries set lines = $3::json, tokens = $4, text = case when $3::json is null then '' end,
            from_position = coalesce($5::bigint, from_position)
        where tenant_id = $1 and id = $2
        """,
        tenant_id,
        summary_id,
        _lines(lines),
        sum(line.tokens for line in lines),
        from_position,
    )


async def measure_through(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, position: int
) -> tuple[int, int, UUID | None]:
    """Return the number of live turns up to a position, their tokens, and the id of the last one.

    Tombstones after the position are counted too, because they need no summary.
    """
    some = f"from turns t where t.tenant_id = $1 and t.conversation_id = $2 and {_LIVE}"
    row = await tx.fetchrow(
        f"""
        select m.turns + (select count(*) {some} and t.position > $3 and t.erased_at is not null) as turns, m.tokens,
               (select t.id {some} and t.position <= $3 order by t.position desc limit 1) as last
        from (
            select count(*) as turns, coalesce(sum(t.content_tokens), 0) as tokens {some} and t.position <= $3
        ) m
        """,  # noqa: S608
        tenant_id,
        conversation_id,
        position,
    )
    return (0, 0, None) if row is None else (int(row["turns"]), int(row["tokens"]), row["last"])


async def list_unerased(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, after: int, through: int
) -> set[UUID]:
    """Return the live turns with content in a range of positions."""
    rows = await tx.fetch(
        f"""
        select t.id from turns t
        where t.tenant_id = $1 and t.conversation_id = $2 and {_LIVE} and t.erased_at is null
          and t.position > $3 and t.position <= $4
        """,  # noqa: S608
        tenant_id,
        conversation_id,
        after,
        through,
    )
    return {row["id"] for row in rows}


async def update_mark(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, position: int, through: UUID | None,
    turns: int, tokens: int, erased_position: int, rev: int,
) -> None:  # fmt: skip
    """Write to a locked head the positions up to which its turns are summarized, and erased by retention."""
    await tx.execute(
        """
        update conversation_heads set summarized_position = $3, summarized_through = $4, summarized_turns = $5,
            summarized_tokens = $6, rev = $7, erased_position = $8
        where tenant_id = $1 and conversation_id = $2
        """,
        tenant_id,
        conversation_id,
        position,
        through,
        turns,
        tokens,
        rev,
        erased_position,
    )


async def list_highlighted(
    tx: Transaction, *, model: str, after: tuple[UUID, UUID], limit: int
) -> list[tuple[TenantId, ConversationId]]:
    """Return conversations of all tenants with valid highlights that their model has not refused to replace (ops role).

    Their model is the one that their compaction policy names, else `model`.
    """
    rows = await tx.fetch(
        """
        select distinct s.tenant_id, s.conversation_id
        from summaries s join conversations c on c.tenant_id = s.tenant_id and c.id = s.conversation_id
        where s.kind = 'highlights' and s.replaced_by is null
          and s.model is distinct from coalesce(c.compaction ->> 'summarizer_model', $1)
          and (s.tenant_id, s.conversation_id) > ($2, $3)
        order by s.tenant_id, s.conversation_id limit $4
        """,
        model,
        *after,
        limit,
    )
    return [(TenantId(row["tenant_id"]), ConversationId(row["conversation_id"])) for row in rows]
