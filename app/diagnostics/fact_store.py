"""Queries for the check of facts. They read tables of several capabilities, and never write (ops role)."""

from dataclasses import dataclass
from uuid import UUID

from app.core.database.transactions import Transaction
from app.core.ids import TenantId


@dataclass(frozen=True, slots=True)
class CheckedFact:
    """A fact, without its content.

    `lost`: number of pieces of evidence, and of undoable decisions, whose turns do not support them any more. `found`:
    it has a live entry in the index; `listed`: it should have one.
    """

    id: UUID
    evidence: int
    lost: int
    listed: bool
    found: bool


async def list_facts(tx: Transaction, tenant_id: TenantId, *, after: UUID | None, limit: int) -> list[CheckedFact]:
    """Return facts by id. Evidence of superseded turns is removed by a job, so it is not counted as lost."""
    rows = await tx.fetch(
        """
        select f.id,
               (select count(*) from fact_evidence e where e.tenant_id = $1 and e.fact_id = f.id)::integer as evidence,
               (select count(*) from fact_evidence e where e.tenant_id = $1 and e.fact_id = f.id
                  and e.turn_id is not null and not exists (
                    select from turns t where t.tenant_id = $1 and t.id = e.turn_id and t.erased_at is null
                      and t.conversation_id = e.conversation_id and t.content_hash = e.content_hash
               ))::integer as lost,
               f.listed,
               exists (select from index_entries i where i.tenant_id = $1 and i.entry_id = f.id and i.live) as found
        from facts f where f.tenant_id = $1 and ($2::uuid is null or f.id > $2) order by f.id limit $3
        """,
        tenant_id,
        after,
        limit,
    )
    return [CheckedFact(*row.values()) for row in rows]


async def list_decisions(
    tx: Transaction, tenant_id: TenantId, *, after: UUID | None, limit: int
) -> list[tuple[UUID, bool]]:
    """Return undoable decisions by id, and whether every source turn exists and is not erased."""
    rows = await tx.fetch(
        """
        select d.id, not exists (
            select from fact_decision_sources s
            where s.tenant_id = $1 and s.decision_id = d.id and s.turn_id is not null and not exists (
                select from turns t where t.tenant_id = $1 and t.id = s.turn_id and t.erased_at is null
            )
        ) as sound
        from fact_decisions d where d.tenant_id = $1 and ($2::uuid is null or d.id > $2) order by d.id limit $3
        """,
        tenant_id,
        after,
        limit,
    )
    return [(row["id"], row["sound"]) for row in rows]


async def list_marks(
    tx: Transaction, tenant_id: TenantId, *, after: UUID | None, limit: int
) -> list[tuple[UUID, bool]]:
    """Return conversations by id, and whether their extraction marks are within their turns."""
    rows = await tx.fetch(
        """
        select h.conversation_id, h.facts_seq <= h.last_seq and h.facts_rev <= h.rev as sound
        from conversation_heads h where h.tenant_id = $1 and ($2::uuid is null or h.conversation_id > $2)
        order by h.conversation_id limit $3
        """,
        tenant_id,
        after,
        limit,
    )
    return [(row["conversation_id"], row["sound"]) for row in rows]
