"""Queries that delete entries and their vectors from the index. Each names the tenant.

Literal SQL: its deletions walk by key with CTEs.
"""

from collections.abc import Sequence
from uuid import UUID

from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId


async def delete_entries(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> dict[str, int]:
    """Delete all entries and vectors of a conversation; return the counts."""
    vectors = await tx.execute(
        """
        delete from vectors v using index_entries e
        where e.tenant_id = $1 and e.conversation_id = $2 and v.tenant_id = $1 and v.entry_id = e.entry_id
        """,
        tenant_id,
        conversation_id,
    )
    entries = await tx.execute(
        "delete from index_entries where tenant_id = $1 and conversation_id = $2", tenant_id, conversation_id
    )
    return {"vectors": vectors, "index_entries": entries}


async def list_entries(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID], *, limit: int
) -> list[UUID]:
    """List the keys of some entries of conversations."""
    rows = await tx.fetch(
        "select entry_id from index_entries where tenant_id = $1 and conversation_id = any($2::uuid[]) limit $3",
        tenant_id,
        conversation_ids,
        limit,
    )
    return [row["entry_id"] for row in rows]


async def delete_by_id(tx: Transaction, tenant_id: TenantId, entry_ids: Sequence[UUID]) -> dict[str, int]:
    """Delete entries by their keys, with their vectors; return the counts."""
    if not entry_ids:
        return {"vectors": 0, "index_entries": 0}
    vectors = await tx.execute(
        "delete from vectors where tenant_id = $1 and entry_id = any($2::uuid[])", tenant_id, entry_ids
    )
    entries = await tx.execute(
        "delete from index_entries where tenant_id = $1 and entry_id = any($2::uuid[])", tenant_id, entry_ids
    )
    return {"vectors": vectors, "index_entries": entries}


async def delete_without_conversation(tx: Transaction, keys: Sequence[tuple[TenantId, UUID]]) -> dict[str, int]:
    """Delete entries without a conversation, with their vectors; each key is given with its tenant."""
    tenant_ids, entry_ids = [tenant_id for tenant_id, _ in keys], [entry_id for _, entry_id in keys]
    vectors = await tx.execute(
        """
        delete from vectors v using unnest($1::uuid[], $2::uuid[]) as u (tenant_id, entry_id)
        where v.tenant_id = u.tenant_id and v.entry_id = u.entry_id
        """,
        tenant_ids,
        entry_ids,
    )
    entries = await tx.execute(
        """
        delete from index_entries e using unnest($1::uuid[], $2::uuid[]) as u (tenant_id, entry_id)
        where e.tenant_id = u.tenant_id and e.entry_id = u.entry_id and e.conversation_id is null
        """,
        tenant_ids,
        entry_ids,
    )
    return {"vectors": vectors, "index_entries": entries}
