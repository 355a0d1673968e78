"""Queries of exports of facts and memories. Each takes the open transaction first and names the tenant.

Literal SQL: several keys are read at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg
from sqlalchemy import ClauseElement, ColumnElement, FromClause, and_, bindparam, exists, not_, or_, select

from app.conversations.tables import conversation_heads
from app.core.database.queries import Query, after_key, compiled, equals, is_any, page
from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.memory.facts.store import FactKey
from app.memory.facts.tables import fact_evidence, facts
from app.memory.fields import MEMORY
from app.memory.longterm.tables import memories

_H, _E, _M = conversation_heads.c, fact_evidence.c, memories.c
_MEMORY_COLUMNS = tuple(_M[field.column] for field in MEMORY)
_HIDDEN = Query(
    select(_H.conversation_id).where(
        *equals(conversation_heads, "tenant_id"), is_any(_H.conversation_id, "ids"), _H.deleting_at.is_not(None)
    )
)
_DECISIONS = """
    select d.id, d.owner, d.subject_key, d.predicate, d.fact_ids, d.decision
    from unnest($2::text[], $3::text[], $4::text[]) as k (owner, subject_key, predicate)
    join fact_decisions d on d.tenant_id = $1 and d.subject_key = k.subject_key and d.predicate = k.predicate
        and d.owner is not distinct from nullif(k.owner, '')
    order by d.id
"""
_DECISION_SOURCES = """
    select s.decision_id, s.turn_id, s.conversation_id from fact_decision_sources s
    where s.tenant_id = $1 and s.decision_id = any($2::uuid[]) order by s.decision_id, s.place
"""


@dataclass(frozen=True, slots=True)
class FactScope:
    """The evidence that an export shows: of a conversation, of a project, or all."""

    conversation_id: UUID | None = None
    project: str | None = None

    @property
    def is_tenant(self) -> bool:
        """Return whether all evidence is in the scope."""
        return self.conversation_id is None and self.project is None

    @property
    def column(self) -> str | None:
        """Return the column of evidence that the scope limits."""
        if self.conversation_id is not None:
            return "conversation_id"
        return None if self.project is None else "project"


@dataclass(frozen=True, slots=True)
class ExportedDecision:
    """A decision that can be undone, with its sources as (turn, conversation). `decision` is JSON text."""

    id: UUID
    key: FactKey
    fact_ids: Sequence[UUID]
    decision: str
    sources: Sequence[tuple[UUID | None, UUID | None]]


def _is_shown(fact: FromClause, scope_columns: frozenset[str]) -> ColumnElement[bool]:
    """Return the condition on a fact: it has evidence in the scope, and it is not hidden with its only conversation.

    The condition depends on the scope, so that the index of the evidence is used, and not all facts of the tenant are
    read for one conversation.
    """
    hidden = exists().where(
        *equals(conversation_heads, "tenant_id"),
        _H.conversation_id == fact.c.conversation_id,
        _H.deleting_at.is_not(None),
    )
    shown = or_(fact.c.conversation_id.is_(None), not_(hidden.correlate(fact)))
    for column in scope_columns:
        of_scope = select(_E.fact_id).where(*equals(fact_evidence, "tenant_id"), _E[column] == bindparam("scope"))
        shown = and_(shown, fact.c.id.in_(of_scope))
    return shown


@compiled
def _list_keys(*, scope_columns: frozenset[str], after: bool) -> ClauseElement:
    fact, earlier = facts.alias("f"), facts.alias("g")
    is_earlier = exists().where(
        *equals(earlier, "tenant_id"),
        earlier.c.subject_key == fact.c.subject_key,
        earlier.c.predicate == fact.c.predicate,
        earlier.c.owner.is_not_distinct_from(fact.c.owner),
        earlier.c.id < fact.c.id,
        _is_shown(earlier, scope_columns),
    )
    statement = select(fact.c.id, fact.c.owner, fact.c.subject_key, fact.c.predicate).where(
        *equals(fact, "tenant_id"), _is_shown(fact, scope_columns), not_(is_earlier.correlate(fact))
    )
    return page(statement, (fact.c.id,), newest_first=False, after=after)


@compiled
def _list_memories(*, after: bool) -> ClauseElement:
    return page(
        select(*_MEMORY_COLUMNS).where(*equals(memories, "tenant_id")), (_M.id,), newest_first=False, after=after
    )


async def list_keys(
    tx: Transaction, tenant_id: TenantId, *, scope: FactScope, after: UUID | None, limit: int
) -> list[tuple[UUID, FactKey]]:
    """Return keys of facts in the order of their first fact in the scope, each with the id of that fact."""
    column = scope.column
    query = _list_keys(scope_columns=frozenset(() if column is None else (column,)), after=after is not None)
    arguments: dict[str, object] = after_key(None if after is None else [after])
    if column is not None:
        arguments["scope"] = scope.conversation_id or scope.project
    rows = await query.fetch(tx, tenant_id=tenant_id, limit=limit, **arguments)
    return [(row["id"], _key(row)) for row in rows]


def _key(row: asyncpg.Record) -> FactKey:
    return FactKey(row["owner"] or "", row["subject_key"], row["predicate"])


async def list_hidden(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> set[UUID]:
    """Return which of these conversations are in the trash or being deleted."""
    rows = await _HIDDEN.fetch(tx, tenant_id=tenant_id, ids=conversation_ids)
    return {row["conversation_id"] for row in rows}


async def list_decisions(tx: Transaction, tenant_id: TenantId, keys: Sequence[FactKey]) -> list[ExportedDecision]:
    """Return the decisions of keys, by id."""
    owners, subjects, predicates = zip(*((key.owner, key.subject, key.predicate) for key in keys), strict=True)
    rows = await tx.fetch(_DECISIONS, tenant_id, owners, subjects, predicates)
    sources: dict[UUID, list[tuple[UUID | None, UUID | None]]] = {row["id"]: [] for row in rows}
    for row in await tx.fetch(_DECISION_SOURCES, tenant_id, list(sources)):
        sources[row["decision_id"]].append((row["turn_id"], row["conversation_id"]))
    return [
        ExportedDecision(row["id"], _key(row), row["fact_ids"], row["decision"], sources[row["id"]]) for row in rows
    ]


async def list_memories(
    tx: Transaction, tenant_id: TenantId, *, after: UUID | None, limit: int
) -> "list[asyncpg.Record]":
    """Return memories by id, with the columns of `fields.MEMORY`."""
    key = after_key(None if after is None else [after])
    return await _list_memories(after=after is not None).fetch(tx, tenant_id=tenant_id, limit=limit, **key)
