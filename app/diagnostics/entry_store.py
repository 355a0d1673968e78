"""Queries of the doctor on the search index: owners of entries and vectors."""

from uuid import UUID

from app.core.database.transactions import Transaction
from app.core.ids import TenantId


async def list_entry_owners(
    tx: Transaction, tenant_id: TenantId, *, after: UUID | None, limit: int
) -> list[tuple[UUID, bool]]:
    """Return index entries by id, and whether the owner of each exists."""
    rows = await tx.fetch(
        """
        select e.entry_id, case e.kind
            when 'turn' then exists (select from turns t where t.tenant_id = e.tenant_id and t.id = e.entry_id)
            when 'summary' then exists (select from summaries s where s.tenant_id = e.tenant_id and s.id = e.entry_id)
            when 'memory' then exists (select from memories m where m.tenant_id = e.tenant_id and m.id = e.entry_id)
            when 'fact' then exists (select from facts f where f.tenant_id = e.tenant_id and f.id = e.entry_id)
            else true end as owned
        from index_entries e
        where e.tenant_id = $1 and ($2::uuid is null or e.entry_id > $2) order by e.entry_id limit $3
        """,
        tenant_id,
        after,
        limit,
    )
    return [(row["entry_id"], row["owned"]) for row in rows]


async def list_vector_owners(
    tx: Transaction, tenant_id: TenantId, *, after: UUID | None, limit: int
) -> list[tuple[UUID, bool]]:
    """Return entry ids that have vectors, and whether the entry exists."""
    rows = await tx.fetch(
        """
        select v.entry_id, exists (
            select from index_entries e where e.tenant_id = $1 and e.entry_id = v.entry_id
        ) as owned
        from (
            select distinct entry_id from vectors
            where tenant_id = $1 and ($2::uuid is null or entry_id > $2) order by entry_id limit $3
        ) v order by v.entry_id
        """,
        tenant_id,
        after,
        limit,
    )
    return [(row["entry_id"], row["owned"]) for row in rows]
