"""Queries of imports of facts and memories. Each takes the open transaction first and names the tenant.

Literal SQL: sources are locked in the order of their ids, and those of a decision are inserted through `unnest`.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

from sqlalchemy.dialects.postgresql import insert

from app.core.database.queries import Query, arguments
from app.core.database.transactions import Transaction
from app.core.entity_fields import columns_of
from app.core.ids import TenantId
from app.core.times import truncate_ms
from app.memory.facts.store import FactKey
from app.memory.fields import MEMORY
from app.memory.longterm.tables import memories
from app.transfer.records import MemoryRecord

_INSERT_MEMORY = Query(
    insert(memories)
    .values(arguments("tenant_id", *(field.column for field in MEMORY)))
    .on_conflict_do_nothing()
    .returning(memories.c.created_at)
)


async def find_sources(
    tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]
) -> dict[UUID, tuple[UUID, bytes | None]]:
    """Return the conversation and the content hash of turns that are not erased, and lock them."""
    rows = await tx.fetch(
        "select t.id, t.conversation_id, t.content_hash from turns t"
        " where t.tenant_id = $1 and t.id = any($2::uuid[]) and t.erased_at is null order by t.id for share",
        tenant_id,
        turn_ids,
    )
    return {row["id"]: (row["conversation_id"], row["content_hash"]) for row in rows}


async def filter_conversations(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]
) -> frozenset[UUID]:
    """Return those of the conversations that exist and are not being deleted."""
    rows = await tx.fetch(
        "select h.conversation_id from conversation_heads h"
        " where h.tenant_id = $1 and h.conversation_id = any($2::uuid[]) and h.deleting_at is null",
        tenant_id,
        conversation_ids,
    )
    return frozenset(row["conversation_id"] for row in rows)


async def find_facts(tx: Transaction, tenant_id: TenantId, fact_ids: Sequence[UUID]) -> dict[UUID, FactKey]:
    """Return the keys of those of the facts that exist."""
    rows = await tx.fetch(
        "select f.id, f.owner, f.subject_key, f.predicate from facts f"
        " where f.tenant_id = $1 and f.id = any($2::uuid[])",
        tenant_id,
        fact_ids,
    )
    return {row["id"]: FactKey(row["owner"] or "", row["subject_key"], row["predicate"]) for row in rows}


async def read_memory_texts(
    tx: Transaction, tenant_id: TenantId, memory_ids: Sequence[UUID]
) -> dict[UUID, tuple[str, str | None, str]]:
    """Return the agent, the owner and the content of memories."""
    if not memory_ids:
        return {}
    rows = await tx.fetch(
        "select m.id, m.agent_id, m.owner, m.content from memories m where m.tenant_id = $1 and m.id = any($2::uuid[])",
        tenant_id,
        memory_ids,
    )
    return {row["id"]: (row["agent_id"], row["owner"], row["content"]) for row in rows}


async def insert_decision(
    tx: Transaction,
    tenant_id: TenantId,
    decision_id: UUID,
    *,
    key: FactKey,
    fact_ids: Sequence[UUID],
    decision: str,
    sources: Sequence[tuple[UUID | None, UUID | None]],
) -> int:
    """Insert a decision with its sources; return 0 if its id is already used, else 1."""
    inserted = await tx.execute(
        """
        insert into fact_decisions (tenant_id, id, owner, subject_key, predicate, fact_ids, decision)
        values ($1, $2, nullif($3, ''), $4, $5, $6::uuid[], $7::json) on conflict do nothing
        """,
        tenant_id,
        decision_id,
        key.owner,
        key.subject,
        key.predicate,
        fact_ids,
        decision,
    )
    if inserted:
        await tx.execute(
            """
            insert into fact_decision_sources (tenant_id, decision_id, place, turn_id, conversation_id)
            select o.tenant_id, $2, u.* from tenants o
            cross join unnest($3::integer[], $4::uuid[], $5::uuid[]) u where o.tenant_id = $1
            """,
            tenant_id,
            decision_id,
            list(range(len(sources))),
            [turn_id for turn_id, _ in sources],
            [conversation_id for _, conversation_id in sources],
        )
    return inserted


async def insert_memories(
    tx: Transaction, tenant_id: TenantId, records: Mapping[UUID, MemoryRecord]
) -> dict[UUID, datetime]:
    """Insert memories; return the ids of those that did not exist, each with its time."""
    now = truncate_ms(datetime.now(UTC))
    inserted: dict[UUID, datetime] = {}
    for memory_id, record in records.items():
        columns = columns_of(MEMORY, record)
        columns |= {"id": memory_id, "created_at": columns["created_at"] or now}
        row = await _INSERT_MEMORY.fetchrow(tx, tenant_id=tenant_id, **columns)
        if row is not None:
            inserted[memory_id] = row["created_at"]
    return inserted
