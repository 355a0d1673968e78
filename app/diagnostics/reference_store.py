"""Invariants of rows that refer to other rows: entries, vectors, open turns, facts, idempotency records.

One list of read-only queries over the tables of all capabilities (ops role).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.diagnostics.schemas import Fault


@dataclass(frozen=True, slots=True)
class Invariant:
    """A condition on a row: its boolean column, the code of the fault, and a detail that may name columns."""

    column: str
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Listing:
    """A query for rows of a tenant ($1) by `id`, after $2, at most $3. `first`, or null, is before all rows."""

    invariants: Sequence[Invariant]
    sql: str
    first: str | None = None
    max_page: int = 5000

    def faults(self, tenant_id: TenantId, row: asyncpg.Record) -> list[Fault]:
        """Return the faults of a row."""
        object_id = row["id"] if isinstance(row["id"], UUID) else None
        broken = (invariant for invariant in self.invariants if not row[invariant.column])
        return [
            Fault(invariant.code, invariant.detail.format_map(dict(row)), tenant_id, object_id=object_id)
            for invariant in broken
        ]


LISTINGS: Sequence[Listing] = (
    Listing(
        [Invariant("owned", "entry_orphan", "an index entry without its object")],
        """
        select e.entry_id as id, case e.kind
            when 'turn' then exists (select from turns t where t.tenant_id = $1 and t.id = e.source_id)
            when 'summary' then exists (select from summaries s where s.tenant_id = $1 and s.id = e.source_id)
            when 'memory' then exists (select from memories m where m.tenant_id = $1 and m.id = e.source_id)
            when 'fact' then exists (select from facts f where f.tenant_id = $1 and f.id = e.source_id)
            else true end as owned
        from (
            select entry_id, kind, coalesce(source_id, entry_id) as source_id from index_entries
            where tenant_id = $1 and ($2::uuid is null or entry_id > $2) order by entry_id limit $3
        ) e order by e.entry_id
        """,
    ),
    Listing(
        [Invariant("owned", "vector_orphan", "a vector without its entry")],
        """
        select v.entry_id as id, exists (
            select from index_entries e where e.tenant_id = $1 and e.entry_id = v.entry_id
        ) as owned
        from (
            select distinct entry_id from vectors
            where tenant_id = $1 and ($2::uuid is null or entry_id > $2) order by entry_id limit $3
        ) v order by v.entry_id
        """,
    ),
    # a response has the turn of its answer, with content
    Listing(
        [Invariant("sound", "erased_remains", "a response without the turn of its answer, or of an erased one")],
        """
        select r.turn_id as id, exists (
            select from turns t
            where t.tenant_id = $1 and t.id = r.turn_id and t.conversation_id = r.conversation_id
              and t.erased_at is null
        ) as sound
        from responses r where r.tenant_id = $1 and ($2::uuid is null or r.turn_id > $2) order by r.turn_id limit $3
        """,
    ),
    # an open turn has a row, one writer, and text without gaps
    Listing(
        [Invariant("sound", "stream_torn", "an open turn without writer or text")],
        """
        select o.id, exists (
            select from turns t join turn_streams s on s.tenant_id = t.tenant_id and s.turn_id = t.id
            where t.tenant_id = $1 and t.id = o.id and t.status = 'pending' and s.conversation_id = t.conversation_id
        ) and not exists (
            select from turn_chunks c where c.tenant_id = $1 and c.turn_id = o.id
            group by c.part
            having min(c.start) <> 0 or sum(c.length) <> max(c.start + c.length)
                or bool_or(c.length <> char_length(c.text))
        ) as sound
        from (
            select t.id from turns t where t.tenant_id = $1 and t.status = 'pending'
            union select s.turn_id from turn_streams s where s.tenant_id = $1
            union select c.turn_id from turn_chunks c where c.tenant_id = $1
        ) o
        where $2::uuid is null or o.id > $2 order by o.id limit $3
        """,
    ),
    # every source turn of an undoable decision exists and is not erased
    Listing(
        [Invariant("sound", "erased_remains", "a decision with text of erased turns")],
        """
        select d.id, not exists (
            select from fact_decision_sources s
            where s.tenant_id = $1 and s.decision_id = d.id and s.turn_id is not null and not exists (
                select from turns t where t.tenant_id = $1 and t.id = s.turn_id and t.erased_at is null
            )
        ) as sound
        from fact_decisions d where d.tenant_id = $1 and ($2::uuid is null or d.id > $2) order by d.id limit $3
        """,
    ),
    Listing(
        [Invariant("sound", "mark_wrong", "facts_seq or facts_rev is ahead")],
        """
        select h.conversation_id as id, h.facts_seq <= h.last_seq and h.facts_rev <= h.rev as sound
        from conversation_heads h where h.tenant_id = $1 and ($2::uuid is null or h.conversation_id > $2)
        order by h.conversation_id limit $3
        """,
    ),
    # evidence of superseded turns is removed by a job, so it is not lost
    Listing(
        [
            Invariant("supported", "fact_unsupported", "a fact without evidence"),
            Invariant("kept", "erased_remains", "{lost} pieces of evidence from erased or changed turns"),
            Invariant("indexed", "fact_unfound", "the index finds an ended fact, or does not find a valid one"),
        ],
        """
        select o.id, o.supported, o.lost, o.lost = 0 as kept, o.indexed
        from (
            select f.id,
                exists (select from fact_evidence e where e.tenant_id = $1 and e.fact_id = f.id) as supported,
                (select count(*) from fact_evidence e where e.tenant_id = $1 and e.fact_id = f.id
                   and e.turn_id is not null and not exists (
                     select from turns t where t.tenant_id = $1 and t.id = e.turn_id and t.erased_at is null
                       and t.conversation_id = e.conversation_id and t.content_hash = e.content_hash
                )) as lost,
                f.listed = exists (
                    select from index_entries i
                    where i.tenant_id = $1 and i.kind = 'fact' and (i.entry_id = f.id or i.source_id = f.id) and i.live
                ) as indexed
            from facts f where f.tenant_id = $1 and ($2::uuid is null or f.id > $2) order by f.id limit $3
        ) o order by o.id
        """,
    ),
    # all turns that a request created exist, or none
    Listing(
        [Invariant("sound", "repeat_torn", "{found} of the {ids} turns of a stored request exist")],
        """
        select o.id, o.ids, o.found, o.found in (0, o.ids) as sound
        from (
            select r.key as id, cardinality(r.result_ids) as ids, (
                select count(*) from turns t
                join conversation_heads h on h.tenant_id = t.tenant_id and h.conversation_id = t.conversation_id
                where t.tenant_id = $1 and t.id = any(r.result_ids) and h.deleting_at is null
            ) as found
            from idempotency_records r where r.tenant_id = $1 and r.key > $2 order by r.key limit $3
        ) o order by o.id
        """,
        first="",
        max_page=1000,
    ),
)


async def list_rows(
    tx: Transaction, listing: Listing, tenant_id: TenantId, *, after: UUID | str | None, limit: int
) -> Sequence[asyncpg.Record]:
    """Return the next page of a listing."""
    return await tx.fetch(listing.sql, tenant_id, after, limit)
