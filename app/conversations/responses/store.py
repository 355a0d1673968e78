"""Queries on responses. Each takes the open transaction first and names the tenant.

Literal SQL: most of these queries compare turns with each other.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import select

from app.conversations.schemas.responses import ResponseRequest
from app.conversations.tables import responses
from app.core.database.queries import Query, columns, equals, is_any
from app.core.database.transactions import Transaction, row_as
from app.core.ids import ConversationId, TenantId


@dataclass(frozen=True, slots=True)
class ResponseRow:
    """A response as it is stored; `request` is JSON text."""

    turn_id: UUID
    conversation_id: UUID
    previous_turn_id: UUID | None
    input_turn_ids: Sequence[UUID]
    owns_conversation: bool
    request: str
    created_at: datetime


_ROWS = select(*columns(responses, ResponseRow)).where(*equals(responses, "tenant_id"))
_FIND = Query(_ROWS.where(*equals(responses, "turn_id")))
_LIST = Query(_ROWS.where(is_any(responses.c.turn_id, "turn_ids")))


async def insert(tx: Transaction, tenant_id: TenantId, row: ResponseRow) -> None:
    """Insert a response."""
    await tx.execute(
        """
        insert into responses (
            tenant_id, turn_id, conversation_id, previous_turn_id, input_turn_ids, owns_conversation, request,
            created_at
        ) values ($1, $2, $3, $4, $5::uuid[], $6, $7::json, $8)
        """,
        tenant_id,
        row.turn_id,
        row.conversation_id,
        row.previous_turn_id,
        row.input_turn_ids,
        row.owns_conversation,
        row.request,
        row.created_at,
    )


async def find(tx: Transaction, tenant_id: TenantId, turn_id: UUID) -> ResponseRow | None:
    """Return the response of an answer's turn."""
    row = await _FIND.fetchrow(tx, tenant_id=tenant_id, turn_id=turn_id)
    return None if row is None else row_as(ResponseRow, row)


async def list_of(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> dict[UUID, ResponseRow]:
    """Return the responses of those turns that are the answer of one, by turn."""
    rows = await _LIST.fetch(tx, tenant_id=tenant_id, turn_ids=turn_ids)
    return {row["turn_id"]: row_as(ResponseRow, row) for row in rows}


async def delete(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> int:
    """Delete the responses of these answers; return their number."""
    return await tx.execute(
        "delete from responses where tenant_id = $1 and turn_id = any($2::uuid[])", tenant_id, turn_ids
    )


async def find_live_position(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, turn_id: UUID
) -> int | None:
    """Return the position of a committed turn, if a live turn is there: this one, or a revision of it."""
    row = await tx.fetchrow(
        """
        select t.position from turns t
        where t.tenant_id = $1 and t.conversation_id = $2
          and t.status = 'committed' and t.superseded_by is null and t.position = (
            select a.position from turns a where a.tenant_id = $1 and a.conversation_id = $2 and a.id = $3
        )
        """,
        tenant_id,
        conversation_id,
        turn_id,
    )
    return None if row is None else int(row["position"])


async def is_last(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, position: int, lease_s: float
) -> bool:
    """Return whether no live turn comes after a position, and no turn is open within its lease.

    Turns that a process left when it died are aborted one after the other; they do not count.
    """
    row = await tx.fetchrow(
        """
        select not exists (
            select from turns t
            where t.tenant_id = $1 and t.conversation_id = $2
              and t.status = 'committed' and t.superseded_by is null and t.position > $3
        ) and not exists (
            select from (
                select extract(epoch from clock_timestamp() - greatest(s.renewed_at, (
                    select max(c.created_at) from turn_chunks c where c.tenant_id = $1 and c.turn_id = s.turn_id
                )))::float8 as age_s
                from turn_streams s where s.tenant_id = $1 and s.conversation_id = $2
            ) open where open.age_s <= $4
        ) as last
        """,
        tenant_id,
        conversation_id,
        position,
        lease_s,
    )
    return row is not None and bool(row["last"])


async def is_used(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> bool:
    """Return whether a conversation has responses, open turns, or live turns that are not erased.

    The turns that a fork was created with do not count.
    """
    row = await tx.fetchrow(
        """
        select exists (
            select from responses r where r.tenant_id = $1 and r.conversation_id = $2
        ) or exists (
            select from turn_streams s where s.tenant_id = $1 and s.conversation_id = $2
        ) or exists (
            select from turns t
            where t.tenant_id = $1 and t.conversation_id = $2
              and t.status = 'committed' and t.superseded_by is null and t.erased_at is null
              and (t.origin_turn_id is null or not exists (
                  select from conversations c where c.tenant_id = $1 and c.id = $2 and c.forked_from is not null
              ))
        ) as used
        """,
        tenant_id,
        conversation_id,
    )
    return row is not None and bool(row["used"])


def response_row(
    turn_id: UUID,
    conversation_id: ConversationId,
    request: ResponseRequest,
    *,
    input_turn_ids: Sequence[UUID],
    created_at: datetime,
) -> ResponseRow:
    """Return the row of a response."""
    return ResponseRow(
        turn_id=turn_id,
        conversation_id=conversation_id,
        previous_turn_id=request.previous_turn_id,
        input_turn_ids=input_turn_ids,
        owns_conversation=request.owns_conversation,
        request=json.dumps(request.members, ensure_ascii=False, separators=(",", ":")),
        created_at=created_at,
    )
