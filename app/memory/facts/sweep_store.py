"""Queries that find facts that have ended or expired, for the sweep."""

from uuid import UUID

import asyncpg
from sqlalchemy import ClauseElement, bindparam, func, select

from app.core.database.queries import Query, compiled, equals, given
from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.memory.facts.store import FactKey
from app.memory.facts.tables import facts

_F = facts.c
_KEY = (_F.owner, _F.subject_key, _F.predicate)
_IS_DUE = _F.due_at <= func.now()
_DUE = select(_F.tenant_id, *_KEY).where(_IS_DUE).order_by(_F.due_at).limit(bindparam("limit")).subquery("due")
_LIST_DUE = Query(select(_DUE).distinct())


def _key(row: asyncpg.Record) -> FactKey:
    return FactKey(row["owner"] or "", row["subject_key"], row["predicate"])


@compiled
def _list_due_of(key: frozenset[str]) -> ClauseElement:
    return select(*_KEY).distinct().where(*equals(facts, *sorted(key)), _IS_DUE).limit(bindparam("limit"))


async def list_due(tx: Transaction, *, limit: int) -> list[tuple[TenantId, FactKey]]:
    """Return keys of facts that have ended or expired (ops role)."""
    return [(TenantId(row["tenant_id"]), _key(row)) for row in await _LIST_DUE.fetch(tx, limit=limit)]


async def list_due_of(
    tx: Transaction, tenant_id: TenantId, *, owner: str | None, conversation_id: UUID, limit: int
) -> list[FactKey]:
    """Return keys of facts that have ended or expired: of the owner, or of the conversation if `owner` is None."""
    key = given(tenant_id=tenant_id, owner=owner, conversation_id=conversation_id if owner is None else None)
    return [_key(row) for row in await _list_due_of(frozenset(key)).fetch(tx, limit=limit, **key)]
