"""Queries on derived titles, and on the messages that they are derived from. Each names the tenant.

Callers that write derived titles lock the head of the conversation first.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy import Uuid, bindparam, update
from sqlalchemy.dialects.postgresql import ARRAY

from app.conversations.tables import conversations
from app.core.database.queries import Query, arguments, equals, is_any
from app.core.database.transactions import Transaction, row_as
from app.core.ids import ConversationId, TenantId

MESSAGE_TEXT: Final = r"""
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
"""
"""Lateral subquery: the text of a turn `t`, or null if it has none."""

HAS_TEXT: Final = r"t.erased_at is null and said.text ~ '\S'"
"""SQL condition: a turn `t`, with its `MESSAGE_TEXT` as `said`, has text and is not erased."""

_TURNS: Final = 200
"""Number of live turns that are searched for a question, and for the answer after it."""

_READ: Final = 5000
"""Number of characters of a message that are read."""


@dataclass(frozen=True, slots=True)
class MessageText:
    """The beginning of the text of a live message."""

    id: UUID
    position: int
    content_hash: bytes
    text: str


async def find_message(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, kind: str, after: int
) -> MessageText | None:
    """Return the first live message of a kind that has text, among the next `_TURNS` turns after a position."""
    row = await tx.fetchrow(
        f"""
        select t.id, t.position, t.content_hash, left(said.text, {_READ}) as text
        from (
            select t.id, t.position, t.kind, t.content, t.content_hash, t.erased_at from turns t
            where t.tenant_id = $1 and t.conversation_id = $2 and t.status = 'committed' and t.superseded_by is null
              and t.position > $4
            order by t.position limit {_TURNS}
        ) t cross join lateral ({MESSAGE_TEXT}) said
        where t.kind = $3 and {HAS_TEXT} order by t.position limit 1
        """,  # noqa: S608
        tenant_id,
        conversation_id,
        kind,
        after,
    )
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
        tx, tenant_id=tenant_id, id=conversation_id, derived_title=title, derived_title_source=source,
        derived_title_turn_ids=turn_ids, derived_title_model=model,
    )  # fmt: skip


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
