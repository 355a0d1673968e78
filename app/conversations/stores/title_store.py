"""Queries on derived titles, and on the messages that they are derived from. Each names the tenant.

Callers that write derived titles lock the head of the conversation first.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy import (
    ClauseElement,
    ColumnElement,
    FromClause,
    Select,
    Text,
    Uuid,
    bindparam,
    column,
    func,
    select,
    text,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY

from app.conversations.tables import LIVE, conversation_heads, conversations, turns
from app.core.database.queries import Query, arguments, equals, is_any
from app.core.database.transactions import Transaction, row_as
from app.core.ids import ConversationId, TenantId

_T = turns.c
_SAID: Final = (
    text(r"""
    select ltrim(case json_typeof(t.content)
        when 'string' then t.content #>> '{}'
        when 'array' then (
            select string_agg(said.text #>> '{}', ' ')
            from json_array_elements(t.content) part
            cross join lateral (select coalesce(
                part -> 'text', part -> 'transcript', part -> 'input_audio' -> 'transcript',
                part -> 'audio' -> 'transcript'
            ) as text) said
            where json_typeof(said.text) = 'string'
        )
    end, E' \n\r\t') as text
""")
    .columns(column("text", Text))
    .lateral("said")
)
"""The text of a turn `t`, or null if it has none."""

_HAS_TEXT: Final = text(r"t.erased_at is null and said.text ~ '\S'")
"""A turn `t`, with its text as `said`, has text and is not erased."""

_SEARCHED: Final = 200
"""Number of live turns that are searched for a question, and for the answer after it."""

_MAX_CHARS: Final = 5000
"""Number of characters of a message that are read."""


@dataclass(frozen=True, slots=True)
class MessageText:
    """The beginning of the text of a live message."""

    id: UUID
    position: int
    content_hash: bytes
    text: str


def first_message(
    *conditions: ColumnElement[bool], searched: int, max_chars: int, newest_first: bool = False
) -> tuple[Select[*tuple[object, ...]], FromClause]:
    """Return the statement that finds the first live message that has text, and its turns, for further conditions.

    `conditions` select the turns; of them the first `searched` are looked at, or the last with `newest_first`. The
    first `max_chars` characters of the text are returned.
    """
    names = ("id", "position", "kind", "role", "actor", "occurred_at", "content", "content_hash", "erased_at")
    looked_at = (
        select(*(_T[name] for name in names))
        .where(*equals(turns, "tenant_id"), *LIVE, *conditions)
        .correlate(conversations, conversation_heads)
        .order_by(_T.position.desc() if newest_first else _T.position)
        .limit(searched)
        .subquery("t")
    )
    position = looked_at.c.position.desc() if newest_first else looked_at.c.position
    names = ("id", "position", "role", "actor", "occurred_at", "content_hash")
    statement = (
        select(*(looked_at.c[name] for name in names), func.left(_SAID.c.text, max_chars).label("text"))
        .select_from(looked_at.join(_SAID, true()))
        .where(_HAS_TEXT)
        .order_by(position)
        .limit(1)
    )
    return statement, looked_at


def _find_message() -> ClauseElement:
    after = _T.position > bindparam("after")
    statement, looked_at = first_message(
        *equals(turns, "conversation_id"), after, searched=_SEARCHED, max_chars=_MAX_CHARS
    )
    return statement.where(looked_at.c.kind == bindparam("kind"))


_FIND = Query(_find_message())


async def find_message(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, kind: str, after: int
) -> MessageText | None:
    """Return the first live message of a kind that has text, among the next `_SEARCHED` turns after a position."""
    row = await _FIND.fetchrow(tx, tenant_id=tenant_id, conversation_id=conversation_id, kind=kind, after=after)
    return None if row is None else row_as(MessageText, row)


_THIS = equals(conversations, "tenant_id", "id")
_TITLE = ("derived_title", "derived_title_source", "derived_title_turn_ids", "derived_title_model")
_SET = Query(update(conversations).values(arguments(*_TITLE)).where(*_THIS))
_CLEAR = Query(
    update(conversations)
    .values(dict.fromkeys(_TITLE))
    .where(
        *_THIS,
        conversations.c.derived_title_turn_ids.overlap(bindparam("turn_ids", type_=ARRAY(Uuid))),
        is_any(conversations.c.derived_title_source, "sources"),
    )
)


async def set_title(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    title: str | None,
    source: str | None,
    turn_ids: Sequence[UUID] | None,
    model: str | None,
) -> None:
    """Write the derived title of a conversation, also over an existing one."""
    await _SET.execute(
        tx,
        tenant_id=tenant_id,
        id=conversation_id,
        derived_title=title,
        derived_title_source=source,
        derived_title_turn_ids=turn_ids,
        derived_title_model=model,
    )


async def clear_title(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    turn_ids: Collection[UUID],
    sources: Collection[str],
) -> bool:
    """Delete a title of these sources that was derived from one of these turns; return whether there was one."""
    values = {"turn_ids": list(turn_ids), "sources": list(sources)}
    return await _CLEAR.execute(tx, tenant_id=tenant_id, id=conversation_id, **values) > 0
