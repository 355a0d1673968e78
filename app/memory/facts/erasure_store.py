"""Queries that find and delete the facts of an owner, or about a subject. Each names the tenant."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import ClauseElement, bindparam, exists, func, not_, or_, select

from app.core.database.queries import compiled, equals, given
from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.memory.facts import decision_store
from app.memory.facts.store import FactKey
from app.memory.facts.tables import fact_decisions, fact_evidence, facts

_F, _E, _D = facts.c, fact_evidence.c, fact_decisions.c
_OF_PROJECT = exists().where(*equals(fact_evidence, "tenant_id", "project"), _E.fact_id == _F.id, not_(_E.denies))
_IN_PROJECT = exists().where(*equals(fact_evidence, "tenant_id", "project"), _E.fact_id == _F.id)


@compiled
def _keys(filters: frozenset[str], *, in_project: bool) -> ClauseElement:
    statement = select(_F.owner, _F.subject_key, _F.predicate).distinct().where(*equals(facts, *sorted(filters)))
    return (statement.where(_IN_PROJECT) if in_project else statement).limit(bindparam("limit"))


@compiled
def _decisions(filters: frozenset[str]) -> ClauseElement:
    return select(_D.id).where(*equals(fact_decisions, *sorted(filters))).limit(bindparam("limit"))


@compiled
def _count(filters: frozenset[str], *, in_project: bool) -> ClauseElement:
    statement = select(func.count().label("count")).where(
        *equals(facts, *sorted(filters)), not_(_F.retracted), or_(_F.expires_at.is_(None), _F.expires_at > func.now())
    )
    return statement.where(_OF_PROJECT) if in_project else statement


async def list_keys(
    tx: Transaction, tenant_id: TenantId, *, owner: str | None, subject_key: str | None, project: str | None, limit: int
) -> list[FactKey]:
    """Return keys of facts, retracted and expired ones included; with `project` those with evidence of it."""
    filters = given(tenant_id=tenant_id, owner=owner, subject_key=subject_key)
    query = _keys(frozenset(filters), in_project=project is not None)
    rows = await query.fetch(tx, limit=limit, **filters, **given(project=project))
    return sorted(FactKey(row["owner"] or "", row["subject_key"], row["predicate"]) for row in rows)


async def delete_decisions(tx: Transaction, tenant_id: TenantId, keys: Sequence[FactKey]) -> dict[str, int]:
    """Delete all decisions of locked keys; return the deleted rows by table."""
    rows = await tx.fetch(
        """
        select d.id from unnest($2::text[], $3::text[], $4::text[]) as k (owner, subject_key, predicate)
        join fact_decisions d on d.tenant_id = $1 and d.subject_key = k.subject_key and d.predicate = k.predicate
            and d.owner is not distinct from nullif(k.owner, '')
        """,
        tenant_id,
        [key.owner for key in keys],
        [key.subject for key in keys],
        [key.predicate for key in keys],
    )
    return await _delete(tx, tenant_id, [row["id"] for row in rows])


async def delete_decisions_of(
    tx: Transaction, tenant_id: TenantId, *, owner: str | None, subject_key: str | None, limit: int
) -> dict[str, int]:
    """Delete up to `limit` decisions whose facts are gone; return the deleted rows by table."""
    filters = given(tenant_id=tenant_id, owner=owner, subject_key=subject_key)
    rows = await _decisions(frozenset(filters)).fetch(tx, limit=limit, **filters)
    return await _delete(tx, tenant_id, [row["id"] for row in rows])


async def _delete(tx: Transaction, tenant_id: TenantId, ids: Sequence[UUID]) -> dict[str, int]:
    decisions, sources = await decision_store.delete_decisions(tx, tenant_id, ids)
    return {"fact_decisions": decisions, "fact_decision_sources": sources}


async def count_facts(tx: Transaction, tenant_id: TenantId, *, owner: str | None, project: str | None) -> int:
    """Return the number of facts that are not retracted and have not expired, ended ones included."""
    filters = given(tenant_id=tenant_id, owner=owner)
    query = _count(frozenset(filters), in_project=project is not None)
    row = await query.fetchrow(tx, **filters, **given(project=project))
    return 0 if row is None else int(row["count"])
