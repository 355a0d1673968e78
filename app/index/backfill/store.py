"""Queries on entries that lack vectors in one embedding space. Each takes the open transaction first.

All walk by key in bounded steps, so that the duration of a statement does not grow with the installation.

Literal SQL: its walks use CTEs and lateral joins.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.index.schemas import VECTORS_JOB, EntryKind

_FILLED = [
    EntryKind.TURN.value,
    EntryKind.SUMMARY.value,
    EntryKind.MEMORY.value,
    EntryKind.FACT.value,
]
"""Kinds of entries whose missing vectors are made later: their owners can read the text again."""
_LAST_ID = UUID(int=2**128 - 1)


LackingSources: TypeAlias = Mapping[EntryKind, Sequence[UUID]]
"""The objects whose entries lack vectors, by kind."""


@dataclass(frozen=True, slots=True)
class BackfillStep:
    """One step of a walk over a tenant's entries: those without vectors, and the entry to continue after, if any."""

    lacking: LackingSources
    after: UUID | None


_OF_JOBS: Final = "select unnest(j.subject_ids) from jobs j where j.tenant_id = $1 and j.kind = $7"
_FIND_LACKING: Final = """
    with walked as materialized (
        select entry_id, kind, coalesce(source_id, entry_id) as source_id, vectors_due from index_entries
        where tenant_id = $1 and live and kind = any($3::text[]) and ($4::uuid is null or entry_id > $4)
        order by entry_id limit $5
    ),
    lacking as materialized (
        select s.entry_id, s.kind, s.source_id from walked s
        where not exists (
            select from vectors v where v.tenant_id = $1 and v.entry_id = s.entry_id and v.space_id = $2
        ) and (not s.vectors_due or s.kind <> 'turn' or s.source_id not in (
            select unnest(j.subject_ids) from jobs j where j.tenant_id = $1 and j.kind = $7
        ))
        order by s.entry_id limit $6
    )
    select array(select kind from lacking order by entry_id) as kinds,
           array(select source_id from lacking order by entry_id) as source_ids,
           (select entry_id from lacking order by entry_id desc limit 1) as last_lacking,
           (select count(*) from walked) as examined,
           (select entry_id from walked order by entry_id desc limit 1) as last
    """


async def find_lacking(
    tx: Transaction, tenant_id: TenantId, space_id: int, *, after: UUID | None, examine: int, limit: int
) -> BackfillStep:
    """Return up to `limit` live entries without a vector in the space, of the `examine` entries after an id.

    Entries that have their own job are left to it, in any state of the job: an operator may have cancelled it.
    """
    sql, jobs = _FIND_LACKING, VECTORS_JOB
    if tx.is_distributed:  # jobs are not on the node of the tenant
        rows = await tx.fetch(_OF_JOBS.replace("$7", "$2"), tenant_id, VECTORS_JOB)
        sql, jobs = sql.replace(_OF_JOBS, "select unnest($7::uuid[])"), [row[0] for row in rows]
    row = await tx.fetchrow(
        sql,
        tenant_id,
        space_id,
        _FILLED,
        after,
        examine,
        limit,
        jobs,
    )
    if row is None:
        return BackfillStep({}, None)
    lacking = _by_kind(zip(row["kinds"], row["source_ids"], strict=True))
    if len(row["source_ids"]) == limit:
        return BackfillStep(lacking, row["last_lacking"])
    return BackfillStep(lacking, row["last"] if row["examined"] == examine else None)


def _by_kind(sources: Iterable[tuple[str, UUID]]) -> LackingSources:
    by_kind: dict[EntryKind, list[UUID]] = {}
    for kind, source_id in sources:
        by_kind.setdefault(EntryKind(kind), []).append(source_id)
    return by_kind


async def find_lacking_of(
    tx: Transaction, tenant_id: TenantId, space_id: int, entry_ids: Sequence[UUID]
) -> LackingSources:
    """Return the objects of those entries that are live and lack a vector in the space."""
    keys = [entry_id for _, entry_id in await filter_lacking(tx, tenant_id, [space_id], entry_ids)]
    rows = await tx.fetch(
        """
        select e.kind, coalesce(e.source_id, e.entry_id) as source_id from index_entries e
        where e.tenant_id = $1 and e.entry_id = any($2::uuid[]) order by e.entry_id
        """,
        tenant_id,
        keys,
    )
    return _by_kind((row["kind"], row["source_id"]) for row in rows)


@dataclass(frozen=True, slots=True)
class TenantStep:
    """One step of a walk over all tenants' entries: tenants that lack vectors, and the entry to continue after."""

    tenants: Sequence[TenantId]
    after: tuple[UUID, UUID] | None


async def find_lacking_tenants(
    tx: Transaction, space_id: int, *, after: tuple[UUID, UUID], examine: int, job_kind: str
) -> TenantStep:
    """Return tenants that have live entries without a vector among the next ones, and no job `job_kind` (ops role).

    Waiting entries are left to their jobs, as long as their tenant has any.
    """
    rows = await tx.fetch(
        """
        select w.tenant_id, count(*) as examined, (array_agg(w.entry_id order by w.entry_id desc))[1] as last_id,
               coalesce(bool_or(w.is_lacking), false) as is_lacking,
               coalesce(bool_or(w.is_lacking and not w.vectors_due), false) as is_lacking_without_job
        from (
            select e.tenant_id, e.entry_id, e.vectors_due, not exists (
                select from vectors v
                where v.tenant_id = e.tenant_id and v.entry_id = e.entry_id and v.space_id = $1
            ) as is_lacking
            from index_entries e
            where e.live and e.kind = any($2::text[]) and (e.tenant_id, e.entry_id) > ($3::uuid, $4::uuid)
            order by e.tenant_id, e.entry_id limit $5
        ) w group by w.tenant_id order by w.tenant_id
        """,
        space_id,
        _FILLED,
        *after,
        examine,
    )
    if not rows:
        return TenantStep((), None)
    jobs = {
        (row["tenant_id"], row["kind"])
        for row in await tx.fetch(
            "select distinct tenant_id, kind from jobs where tenant_id = any($1::uuid[]) and kind = any($2::text[])",
            [row["tenant_id"] for row in rows if row["is_lacking"]],
            [job_kind, VECTORS_JOB],
        )
    }
    tenants = [
        TenantId(row["tenant_id"])
        for row in rows
        if row["is_lacking"]
        and (row["tenant_id"], job_kind) not in jobs
        and (row["is_lacking_without_job"] or (row["tenant_id"], VECTORS_JOB) not in jobs)
    ]
    if sum(row["examined"] for row in rows) < examine:
        return TenantStep(tenants, None)
    # the other entries of a tenant that was found need not be read
    tenant_id = rows[-1]["tenant_id"]
    return TenantStep(tenants, (tenant_id, _LAST_ID if tenant_id in tenants else rows[-1]["last_id"]))


async def filter_lacking(
    tx: Transaction, tenant_id: TenantId, space_ids: Sequence[int], entry_ids: Sequence[UUID]
) -> list[tuple[int, UUID]]:
    """Return the given entries that are live and lack a vector in a space, by space and id."""
    rows = await tx.fetch(
        """
        select s.id, e.entry_id from unnest($2::integer[]) s (id)
        join index_entries e on e.tenant_id = $1 and e.entry_id = any($3::uuid[]) and e.live
        where e.kind = any($4::text[]) and not exists (
            select from vectors v where v.tenant_id = $1 and v.entry_id = e.entry_id and v.space_id = s.id
        )
        order by s.id, e.entry_id
        """,
        tenant_id,
        list(space_ids),
        list(entry_ids),
        _FILLED,
    )
    return [(row["id"], row["entry_id"]) for row in rows]


async def list_waiting_turns(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID], *, limit: int
) -> list[UUID]:
    """Return turns of conversations that wait for vectors in the searched space: up to `limit`, in any order."""
    rows = await tx.fetch(
        """
        select coalesce(source_id, entry_id) as turn_id from index_entries
        where tenant_id = $1 and conversation_id = any($2::uuid[]) and live and vectors_due and kind = 'turn' limit $3
        """,
        tenant_id,
        list(conversation_ids),
        limit,
    )
    return [row["turn_id"] for row in rows]


async def raise_priority(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID], *, priority: int) -> None:
    """Raise the priority of the waiting jobs that make vectors of these turns (ops role)."""
    await tx.execute(
        """
        update jobs j set priority = $4
        from (
            select id from jobs
            where tenant_id = $1 and kind = $2 and subject_ids && $3::uuid[] and priority < $4
              and state = 'queued' and locked_by is null
            for update skip locked
        ) waiting where j.tenant_id = $1 and j.id = waiting.id
        """,
        tenant_id,
        VECTORS_JOB,
        list(turn_ids),
        priority,
    )


async def record_vectors(tx: Transaction, tenant_id: TenantId, entry_ids: Sequence[UUID], *, searched: bool) -> None:
    """Record that entries have vectors now. `searched`: they wait for none in the searched space any more.

    The update alone tells processes that keep the entries in memory to read them again.
    """
    await tx.execute(
        """
        update index_entries set vectors_due = vectors_due and not $3
        where tenant_id = $1 and entry_id = any($2::uuid[])
        """,
        tenant_id,
        list(entry_ids),
        searched,
    )
