"""Queries of exports of conversations. Each takes the open transaction first and names the tenant."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast
from uuid import UUID

import asyncpg
from sqlalchemy import ClauseElement, and_, func, select

from app.conversations.responses import store as response_store
from app.conversations.responses.store import ResponseRow
from app.conversations.schemas.fields import CONVERSATION
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.tables import conversation_heads, conversations, turns
from app.core.database.queries import Query, after_key, compiled, equals, given, is_any, page
from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.formats.schemas import Role

_C, _H, _T = conversations.c, conversation_heads.c, turns.c
_IN_BOTH = ("updated_at", "active_at")
_COLUMNS = tuple(
    func.greatest(_C[name], _H[name]).label(name) if name in _IN_BOTH else _C[name] if name in _C else _H[name]
    for name in (field.column for field in CONVERSATION)
)
_SEQS = Query(select(_T.id, _T.seq).where(*equals(turns, "tenant_id"), is_any(_T.id, "ids")))


@dataclass(frozen=True, slots=True)
class ExportedTurn:
    """A turn, and the seq of the turn that supersedes it: None without one, or if that has none.

    `response`: the response whose answer the turn is.
    """

    row: TurnRow
    superseder_seq: int | None
    response: ResponseRow | None


@compiled
def _list(*, filters: frozenset[str], after: bool) -> ClauseElement:
    is_of_head = and_(_H.tenant_id == _C.tenant_id, _H.conversation_id == _C.id, _H.deleting_at.is_(None))
    statement = (
        select(*_COLUMNS)
        .join_from(conversations, conversation_heads, is_of_head)
        .where(*equals(conversations, "tenant_id", *sorted(filters)))
    )
    return page(statement, (_C.id,), newest_first=False, after=after)


async def list_conversations(
    tx: Transaction,
    tenant_id: TenantId,
    *,
    conversation_id: UUID | None,
    project: str | None,
    after: UUID | None,
    limit: int,
) -> "list[asyncpg.Record]":
    """Return conversations by id, without those that are being deleted; of the whole tenant without a filter.

    They have the columns of `fields.CONVERSATION`.
    """
    filters = given(id=conversation_id, project=project)
    query = _list(filters=frozenset(filters), after=after is not None)
    key = after_key(None if after is None else [after])
    return await query.fetch(tx, tenant_id=tenant_id, limit=limit, **filters, **key)


async def with_links(tx: Transaction, tenant_id: TenantId, rows: Sequence[TurnRow]) -> list[ExportedTurn]:
    """Return turns with what else their records have."""
    ids = list({row.superseded_by for row in rows if row.superseded_by is not None})
    superseders = await _SEQS.fetch(tx, tenant_id=tenant_id, ids=ids) if ids else []
    seqs = {cast("UUID | None", row["id"]): cast("int | None", row["seq"]) for row in superseders}
    answers = [row.id for row in rows if row.role == Role.ASSISTANT.value]
    responses = await response_store.list_of(tx, tenant_id, answers) if answers else {}
    return [ExportedTurn(row, seqs.get(row.superseded_by), responses.get(row.id)) for row in rows]
