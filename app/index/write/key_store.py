"""Keys of index entries: the one place that knows which entry belongs to which source.

Invariant: an entry is identified by its tenant, its kind and the id of its source. Its key is that id too, unless an
entry of another kind had this key when the entry was stored: then the key is a new random id, and `source_id` is the id
of the source. So a turn, a fact and a memory may have the same id.

Literal SQL: its conditions fit the primary key and the partial index on `source_id`.
"""

from collections.abc import Sequence
from uuid import UUID

from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.index.schemas import EntryKind, IndexEntry


async def find_keys(
    tx: Transaction, tenant_id: TenantId, kind: EntryKind, source_ids: Sequence[UUID]
) -> dict[UUID, UUID]:
    """Return the keys of the entries that sources of one kind have, by source."""
    if not source_ids:
        return {}
    rows = await tx.fetch(
        """
        select e.entry_id, coalesce(e.source_id, e.entry_id) as source_id from index_entries e
        where e.tenant_id = $1 and e.kind = $2 and (e.entry_id = any($3::uuid[]) or e.source_id = any($3))
          and coalesce(e.source_id, e.entry_id) = any($3)
        """,
        tenant_id,
        kind.value,
        list(source_ids),
    )
    return {row["source_id"]: row["entry_id"] for row in rows}


async def find_keys_of_tenants(
    tx: Transaction, kind: EntryKind, sources: Sequence[tuple[TenantId, UUID]]
) -> list[tuple[TenantId, UUID]]:
    """Return the keys of the entries that sources of one kind have, each with its tenant (ops role)."""
    rows = await tx.fetch(
        """
        select e.tenant_id, e.entry_id from unnest($2::uuid[], $3::uuid[]) as u (tenant_id, source_id)
        join index_entries e on e.tenant_id = u.tenant_id and (e.entry_id = u.source_id or e.source_id = u.source_id)
        where e.kind = $1 and coalesce(e.source_id, e.entry_id) = u.source_id
        """,
        kind.value,
        [tenant_id for tenant_id, _ in sources],
        [source_id for _, source_id in sources],
    )
    return [(TenantId(row["tenant_id"]), row["entry_id"]) for row in rows]


async def filter_taken(tx: Transaction, tenant_id: TenantId, entries: Sequence[IndexEntry]) -> set[UUID]:
    """Return the sources of those entries whose id is the key of an entry of another kind."""
    rows = await tx.fetch(
        """
        select u.source_id from unnest($2::uuid[], $3::text[]) as u (source_id, kind)
        join index_entries e on e.tenant_id = $1 and e.entry_id = u.source_id and e.kind <> u.kind
        """,
        tenant_id,
        [entry.source_id for entry in entries],
        [entry.kind.value for entry in entries],
    )
    return {row["source_id"] for row in rows}
