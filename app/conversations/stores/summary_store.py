"""Queries on summaries. Each names the tenant. Callers that change summaries lock the conversation's head."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg
from sqlalchemy import ClauseElement, and_, bindparam, func, not_, or_, select, update
from sqlalchemy import delete as delete_from
from sqlalchemy import insert as insert_into

from app.conversations.schemas.summaries import DoubtfulSentence, HighlightLine, RefusedFor, SummaryDraft
from app.conversations.stores.conversation_store import not_deleting
from app.conversations.tables import LIVE, conversation_heads, conversations, summaries, turns
from app.core.database.queries import (
    NOW,
    Query,
    after_key,
    arguments,
    columns,
    compiled,
    equals,
    is_any,
    milliseconds,
    page,
)
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A row of the table `summaries`, JSON parsed."""

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
    refused_for: str | None
    doubtful: Sequence[DoubtfulSentence]
    attempts: int
    retry_at: datetime | None


_S, _T, _H = summaries.c, turns.c, conversation_heads.c
_OF_CONVERSATION = equals(summaries, "tenant_id", "conversation_id")
_GIVEN = (*equals(summaries, "tenant_id"), is_any(_S.id, "ids"))
_VALID = _S.replaced_by.is_(None)
_ROWS = select(*columns(summaries, SummaryRow))
_IN_ORDER = _ROWS.where(*_OF_CONVERSATION).order_by(_S.to_position, _S.id)
_INSERT = Query(
    insert_into(summaries).values(
        **arguments(*(column.name for column in _S if column.name not in {"replaced_by", "created_at"})),
        created_at=milliseconds(NOW),
    )
)
_LIST_VALID = Query(_IN_ORDER.where(_VALID))
_LIST_FROM_POSITION = Query(_IN_ORDER.where(_S.to_position >= bindparam("position")))
_FIND = Query(_ROWS.where(*_GIVEN, not_deleting(_S.conversation_id)))
_MADE = Query(
    _ROWS.where(*_OF_CONVERSATION, _S.rev > bindparam("after_rev"), _VALID)
    .order_by(_S.rev, _S.id)
    .limit(bindparam("limit"))
)
_REPLACE = Query(update(summaries).values(replaced_by=bindparam("by")).where(*_GIVEN))
_RESTORE = Query(
    update(summaries)
    .values(replaced_by=None)
    .where(*equals(summaries, "tenant_id"), is_any(_S.replaced_by, "ids"))
    .returning(_S.id)
)
_DELETE = Query(delete_from(summaries).where(*_GIVEN))
_HIGHLIGHTS = Query(_IN_ORDER.where(_S.kind == "highlights", _S.from_position <= bindparam("position")))
_TURNS = (*equals(turns, "tenant_id", "conversation_id"), *LIVE)
_THROUGH = _T.position <= bindparam("position")
_NEED_NO_SUMMARY = select(func.count()).where(*_TURNS, not_(_THROUGH), _T.erased_at.is_not(None)).scalar_subquery()
_LAST = select(_T.id).where(*_TURNS, _THROUGH).order_by(_T.position.desc()).limit(1).scalar_subquery()
_MEASURED = (
    select(func.count().label("turns"), func.coalesce(func.sum(_T.content_tokens), 0).label("tokens"))
    .where(*_TURNS, _THROUGH)
    .subquery("measured")
)
_MEASURE = Query(select((_MEASURED.c.turns + _NEED_NO_SUMMARY).label("turns"), _MEASURED.c.tokens, _LAST.label("last")))
_UNERASED = Query(
    select(_T.id).where(
        *_TURNS,
        _T.erased_at.is_(None),
        _T.position > bindparam("after"),
        _T.position <= bindparam("through"),
    )
)
_UPDATE_MARK = Query(
    update(conversation_heads)
    .values(
        arguments(
            "summarized_position",
            "summarized_through",
            "summarized_turns",
            "summarized_tokens",
            "rev",
            "erased_position",
        )
    )
    .where(*equals(conversation_heads, "tenant_id", "conversation_id"))
)
_MODEL = func.coalesce(conversations.c.compaction["summarizer_model"].astext, bindparam("model"))
_WRITTEN_BY = func.coalesce(conversations.c.compaction["summaries"].astext, bindparam("default"))
_HIGHLIGHTED = Query(
    page(
        select(_S.tenant_id, _S.conversation_id)
        .distinct()
        .join(conversations, and_(conversations.c.tenant_id == _S.tenant_id, conversations.c.id == _S.conversation_id))
        .where(
            _S.kind == "highlights",
            _VALID,
            _S.model.is_distinct_from(_MODEL),
            or_(_S.retry_at.is_(None), _S.retry_at <= func.now()),
            _WRITTEN_BY != "highlights",
        ),
        (_S.tenant_id, _S.conversation_id),
        newest_first=False,
        after=True,
    )
)


@compiled
def _page(*, with_replaced: bool, newest_first: bool, after: bool) -> ClauseElement:
    statement = _ROWS.where(*_OF_CONVERSATION, not_deleting(bindparam("conversation_id")))
    if not with_replaced:
        statement = statement.where(_VALID)
    return page(statement, (_S.to_position, _S.id), newest_first=newest_first, after=after)


@compiled
def _list_recorded(*, after: bool) -> ClauseElement:
    statement = _ROWS.where(*_OF_CONVERSATION, _S.rev <= bindparam("rev"))
    return page(statement, (_S.to_position, _S.id), newest_first=False, after=after)


def _row(row: asyncpg.Record) -> SummaryRow:
    values = dict(row)
    values["actors"] = json.loads(values["actors"])
    values["lines"] = [
        HighlightLine(UUID(key), text, tokens) for key, text, tokens in json.loads(values["lines"] or "[]")
    ]
    values["doubtful"] = [
        DoubtfulSentence.model_construct(start=start, end=end, reason=reason)
        for start, end, reason in json.loads(values["doubtful"] or "[]")
    ]
    return SummaryRow(**values)


def doubtful_column(sentences: Sequence[DoubtfulSentence]) -> str | None:
    """Return doubtful sentences as they are stored."""
    return (
        json.dumps([[sentence.start, sentence.end, sentence.reason] for sentence in sentences]) if sentences else None
    )


def lines_column(lines: Sequence[HighlightLine]) -> str | None:
    """Return the lines of highlights as they are stored."""
    items = [[str(line.turn_id), line.text, line.tokens] for line in lines]
    return json.dumps(items, ensure_ascii=False) if items else None


async def insert(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    summary_id: UUID,
    draft: SummaryDraft,
    rev: int,
) -> None:
    """Store a summary; the text of highlights is stored only as their lines."""
    await _INSERT.execute(
        tx,
        tenant_id=tenant_id,
        id=summary_id,
        conversation_id=conversation_id,
        kind=draft.kind.value,
        level=draft.level,
        from_position=draft.from_position,
        to_position=draft.to_position,
        actors=json.dumps(list(draft.actors)),
        text=None if draft.lines else draft.text,
        abstract=draft.abstract,
        lines=lines_column(draft.lines),
        tokens=draft.tokens,
        model=draft.model,
        prompt_version=draft.prompt_version,
        rev=rev,
        refused_for=draft.refused_for,
        doubtful=doubtful_column(draft.doubtful),
        attempts=draft.attempts,
        retry_at=draft.retry_at,
    )


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
                               abstract, lines, tokens, model, prompt_version, refused_for, doubtful, rev, created_at)
        select s.tenant_id, u.copy_id, $2, s.kind, s.level, u.first, u.last, s.actors, coalesce(s.text, ''), s.abstract,
               null, s.tokens, s.model, s.prompt_version, s.refused_for, s.doubtful, $7,
               date_trunc('milliseconds', statement_timestamp())
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
    rows = await _LIST_VALID.fetch(tx, tenant_id=tenant_id, conversation_id=conversation_id)
    return [_row(row) for row in rows]


async def list_from_position(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, position: int
) -> list[SummaryRow]:
    """Return all summaries, replaced ones included, that end at a position or after it."""
    rows = await _LIST_FROM_POSITION.fetch(tx, tenant_id=tenant_id, conversation_id=conversation_id, position=position)
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
    query = _page(with_replaced=with_replaced, newest_first=newest_first, after=after is not None)
    key = after_key(after)
    rows = await query.fetch(tx, tenant_id=tenant_id, conversation_id=conversation_id, limit=limit, **key)
    return [_row(row) for row in rows]


async def list_recorded(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    rev: int,
    after: tuple[int, UUID] | None,
    limit: int,
) -> list[SummaryRow]:
    """Return summaries by the end of their range and id, replaced ones included, that were made up to a rev."""
    rows = await _list_recorded(after=after is not None).fetch(
        tx, tenant_id=tenant_id, conversation_id=conversation_id, rev=rev, limit=limit, **after_key(after)
    )
    return [_row(row) for row in rows]


async def find(tx: Transaction, tenant_id: TenantId, summary_ids: Sequence[UUID]) -> dict[UUID, SummaryRow]:
    """Return summaries by id, without those of conversations that are being deleted.

    The index still has entries of such conversations.
    """
    rows = await _FIND.fetch(tx, tenant_id=tenant_id, ids=summary_ids)
    return {row["id"]: _row(row) for row in rows}


async def list_made(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, after_rev: int, limit: int = 20
) -> list[SummaryRow]:
    """Return valid summaries that were made after a rev, by rev."""
    rows = await _MADE.fetch(tx, tenant_id=tenant_id, conversation_id=conversation_id, after_rev=after_rev, limit=limit)
    return [_row(row) for row in rows]


async def replace(tx: Transaction, tenant_id: TenantId, summary_ids: Sequence[UUID], *, by: UUID) -> None:
    """Mark summaries as replaced by another one."""
    await _REPLACE.execute(tx, tenant_id=tenant_id, ids=summary_ids, by=by)


async def restore(tx: Transaction, tenant_id: TenantId, *, replaced_by: Sequence[UUID]) -> list[UUID]:
    """Make the summaries valid again that these had replaced; return their ids."""
    rows = await _RESTORE.fetch(tx, tenant_id=tenant_id, ids=replaced_by)
    return sorted(row["id"] for row in rows)


async def delete(tx: Transaction, tenant_id: TenantId, summary_ids: Sequence[UUID]) -> None:
    """Delete summaries."""
    await _DELETE.execute(tx, tenant_id=tenant_id, ids=summary_ids)


async def list_highlights(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, through: int
) -> list[SummaryRow]:
    """Return all highlights, replaced ones included, that start at a position or before it."""
    rows = await _HIGHLIGHTS.fetch(tx, tenant_id=tenant_id, conversation_id=conversation_id, position=through)
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
        lines_column(lines),
        sum(line.tokens for line in lines),
        from_position,
    )


async def postpone(
    tx: Transaction,
    tenant_id: TenantId,
    summary_id: UUID,
    *,
    refused_for: RefusedFor | None,
    attempts: int,
    retry_at: datetime | None,
) -> None:
    """Set why a model has not replaced highlights, and when a job asks it again."""
    await tx.execute(
        "update summaries set refused_for = $3, attempts = $4, retry_at = $5 where tenant_id = $1 and id = $2",
        tenant_id,
        summary_id,
        refused_for,
        attempts,
        retry_at,
    )


async def measure_through(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, position: int
) -> tuple[int, int, UUID | None]:
    """Return the number of live turns up to a position, their tokens, and the id of the last one.

    Tombstones after the position are counted too, because they need no summary.
    """
    row = await _MEASURE.fetchrow(tx, tenant_id=tenant_id, conversation_id=conversation_id, position=position)
    return (0, 0, None) if row is None else (int(row["turns"]), int(row["tokens"]), row["last"])


async def list_unerased(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, after: int, through: int
) -> set[UUID]:
    """Return the live turns with content in a range of positions."""
    rows = await _UNERASED.fetch(tx, tenant_id=tenant_id, conversation_id=conversation_id, after=after, through=through)
    return {row["id"] for row in rows}


async def update_mark(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    position: int,
    through: UUID | None,
    turns: int,
    tokens: int,
    erased_position: int,
    rev: int,
) -> None:
    """Write to a locked head the positions up to which its turns are summarized, and erased by retention."""
    await _UPDATE_MARK.execute(
        tx,
        tenant_id=tenant_id,
        conversation_id=conversation_id,
        summarized_position=position,
        summarized_through=through,
        summarized_turns=turns,
        summarized_tokens=tokens,
        erased_position=erased_position,
        rev=rev,
    )


async def list_highlighted(
    tx: Transaction, *, model: str, default: str, after: tuple[UUID, UUID], limit: int
) -> list[tuple[TenantId, ConversationId]]:
    """Return conversations of all tenants with valid highlights that a model is to replace now (ops role).

    Their model is the one that their compaction policy names, else `model`. It has not refused to replace them, and no
    wait after a failure runs. `default`: who writes summaries, where the policy does not say it.
    """
    rows = await _HIGHLIGHTED.fetch(tx, model=model, default=default, limit=limit, **after_key(after))
    return [(TenantId(row["tenant_id"]), ConversationId(row["conversation_id"])) for row in rows]
