"""Durable background jobs: a database table, claimed with SKIP LOCKED and a lease.

A job has a kind and the ids of its subjects, and never content. It is enqueued in the transaction that makes it due, so
both are stored or neither. Invariants: a job runs at least once, on one worker at a time while that worker renews its
lease. If a worker dies, its lease ends and the job runs again, so handlers are idempotent. A finished job is deleted. A
job that keeps failing is parked until an operator acts.

Statements that enqueue, claim, renew and requeue jobs are hot or have CTEs: they are literal SQL.

Two jobs of the same tenant, kind and dedupe key do not wait at once. A running job does not count, because it may have
read the data before the latest change: the new job is enqueued. The worker of the old one does not run it meanwhile.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    Boolean,
    ClauseElement,
    Interval,
    Text,
    all_,
    bindparam,
    case,
    delete,
    func,
    select,
    update,
)

from app.core.database.metadata import jobs
from app.core.database.queries import Query, columns, compiled, delete_some, equals, given, is_any, page
from app.core.database.transactions import Database, Transaction, row_as
from app.core.ids import JobId, TenantId, new_uuid
from app.core.paging import Window
from app.settings.database import JobSettings

INSTALLATION: Final = TenantId(UUID(int=0))
"""The tenant of jobs of the whole installation."""
_RETRY_BASE_S = 1.0  # most faults that pass do so within seconds
_PERIODIC: Final = "periodic"


class JobState(StrEnum):
    """State of a job: waiting or running, failed too often, or cancelled by an operator."""

    QUEUED = "queued"
    PARKED = "parked"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to enqueue. Higher priorities run first."""

    kind: str
    subject_ids: Sequence[UUID] = ()
    dedupe_key: str | None = None
    priority: int = 0
    delay_s: float = 0.0


class JobKey(NamedTuple):
    """The key of a job in a process: an id is unique in its tenant only."""

    tenant_id: TenantId
    id: JobId


@dataclass(frozen=True, slots=True)
class Job:
    """A row of the jobs table. `last_error` is a code."""

    tenant_id: TenantId
    id: JobId
    kind: str
    subject_ids: Sequence[UUID]
    dedupe_key: str | None
    priority: int
    state: str
    attempts: int
    max_attempts: int
    run_at: datetime
    locked_by: UUID | None
    locked_until: datetime | None
    last_error: str | None
    created_at: datetime

    @property
    def key(self) -> JobKey:
        """Return the key of the job."""
        return JobKey(self.tenant_id, self.id)


_J = jobs.c
_OLD = _J.run_at < func.now() - bindparam("age", type_=Interval)
_OF_PREFIX = func.starts_with(_J.kind, bindparam("prefix"), type_=Boolean)
_ANY_PARKED = Query(
    select(_J.tenant_id, _J.id)
    .where(_J.state == "parked", is_any(_J.kind, "kinds"), is_any(_J.last_error, "codes"))
    .limit(1)
)
_DELETE_UNCLAIMED = Query(
    delete_some(
        jobs,
        _OF_PREFIX,
        _J.kind != all_(bindparam("but", type_=ARRAY(Text))),
        _J.state != "cancelled",
        _J.locked_by.is_(None),
        _OLD,
    )
)
_DELETE = Query(delete(jobs).where(*equals(jobs, "tenant_id", "id", "locked_by")))
_DELETE_CANCELLED = Query(delete_some(jobs, _J.state == "cancelled", _OLD))
_STATE = case((_J.locked_by.is_(None), _J.state), else_="running")
_COUNTS = Query(select(_STATE.label("state"), func.count().label("count")).group_by(_STATE))
_NEXT_RUN_AT = func.min(case((_STATE == "queued", _J.run_at))).label("next_run_at")
_COUNT_BY_KIND = Query(
    select(_J.kind, _J.state, func.count().label("count")).where(_OF_PREFIX).group_by(_J.kind, _J.state)
)
_ERRORS_BY_KIND = Query(
    select(_J.kind, func.max(_J.last_error).label("code"))
    .where(_OF_PREFIX, _J.last_error.is_not(None), _J.state.in_(("queued", "parked")))
    .group_by(_J.kind)
)


class JobQueue:
    """The jobs of the installation. `enqueue` uses the caller's transaction; all other methods use the ops role."""

    def __init__(self, ops: Database, *, settings: JobSettings, notify: Callable[[], None] | None = None) -> None:
        """`notify` informs other processes, whose workers would find new jobs by polling only."""
        self._ops = ops
        self._settings = settings
        self._notify = notify
        self.enqueued = asyncio.Event()
        """Set when a transaction that enqueued a job is durable, in this process or in another that announced it."""

    @property
    def lease_s(self) -> float:
        """Return the duration of a claim that is not renewed."""
        return self._settings.job_lease_s

    async def enqueue(self, tx: Transaction, tenant_id: TenantId, jobs: Sequence[NewJob]) -> None:
        """Enqueue jobs in an open transaction, in one statement; a waiting job with the same dedupe key is kept."""
        if not jobs:
            return
        await tx.execute(
            """
            insert into jobs (tenant_id, id, kind, subject_ids, dedupe_key, priority, run_at, max_attempts)
            select $1, u.id, u.kind, coalesce(string_to_array(nullif(u.subject_ids, ''), ',')::uuid[], '{}'),
                   u.dedupe_key, u.priority, now() + make_interval(secs => u.delay_s), $8
            from unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::smallint[], $7::float8[])
                as u (id, kind, subject_ids, dedupe_key, priority, delay_s)
            on conflict do nothing
            """,
            tenant_id,
            [new_uuid() for _ in jobs],
            [job.kind for job in jobs],
            # an array of arrays would have to be rectangular
            [",".join(map(str, job.subject_ids)) for job in jobs],
            [job.dedupe_key for job in jobs],
            [job.priority for job in jobs],
            [job.delay_s for job in jobs],
            self._settings.job_max_attempts,
        )
        tx.after_commit.append(self._notify_workers)

    def _notify_workers(self) -> None:
        self.enqueued.set()
        if self._notify is not None:
            self._notify()

    async def ensure_periodic(self, kinds: Sequence[str], *, at_once: Sequence[str] = ()) -> None:
        """Ensure that the installation has one job of each kind.

        `at_once`: kinds whose waiting job becomes due now.
        """
        async with self._ops.across_tenants() as tx:
            await tx.execute(
                """
                update jobs set run_at = now()
                where tenant_id = $1 and kind = any($2::text[]) and state = 'queued' and locked_by is null
                  and run_at > now()
                """,
                INSTALLATION,
                list(at_once),
            )
            await tx.execute(
                """
                insert into jobs (tenant_id, id, kind, dedupe_key, max_attempts)
                select $1, u.id, u.kind, $5, $4 from unnest($2::uuid[], $3::text[]) as u (id, kind)
                where not exists (select from jobs j where j.tenant_id = $1 and j.kind = u.kind and j.state = 'queued')
                on conflict do nothing
                """,
                INSTALLATION,
                [new_uuid() for _ in kinds],
                list(kinds),
                self._settings.job_max_attempts,
                _PERIODIC,
            )

    async def claim(
        self,
        worker: UUID,
        *,
        kinds: Sequence[str],
        limit: int,
        skipped_tenants: Sequence[TenantId] = (),
        running: Sequence[Job] = (),
    ) -> list[Job]:
        """Claim up to `limit` due jobs of these kinds; park jobs whose worker died on the last attempt.

        Jobs of `skipped_tenants` wait, and those for the same work as one of `running`. A periodic job is not
        parked, but retried after the longest delay: until a worker starts, no process would create it again.
        """
        async with self._ops.across_tenants() as tx:
            rows = await tx.fetch(
                """
                with due as materialized (
                    select tenant_id, id, attempts, max_attempts,
                           tenant_id = $6 and dedupe_key = $7 and not exists (
                               select from jobs other where other.tenant_id = j.tenant_id and other.kind = j.kind
                                   and other.dedupe_key = j.dedupe_key and other.id <> j.id
                                   and other.state = 'queued' and other.locked_by is null
                           ) as periodic
                    from jobs j
                    where state = 'queued' and run_at <= now() and (locked_until is null or locked_until < now())
                      and kind = any($2::text[]) and tenant_id <> all($9::uuid[])
                      and not exists (
                          select from unnest($10::uuid[], $11::text[], $12::text[]) r (tenant_id, kind, dedupe_key)
                          where r.tenant_id = j.tenant_id and r.kind = j.kind and r.dedupe_key = j.dedupe_key
                      )
                    order by priority desc, run_at, id limit $3 for update skip locked
                ), lost as (
                    update jobs j
                    set state = case when d.periodic then state else 'parked' end, last_error = $5,
                        locked_by = null, locked_until = null,
                        attempts = case when d.periodic then j.max_attempts / 2 else j.attempts end,
                        run_at = case when d.periodic then now() + make_interval(secs => $8) else run_at end
                    from due d where j.tenant_id = d.tenant_id and j.id = d.id and d.attempts >= d.max_attempts
                )
                update jobs j set locked_by = $1, locked_until = now() + make_interval(secs => $4),
                    attempts = j.attempts + 1
                from due d where j.tenant_id = d.tenant_id and j.id = d.id and d.attempts < d.max_attempts
                returning j.*
                """,
                worker,
                list(kinds),
                limit,
                self._settings.job_lease_s,
                "worker_lost",
                INSTALLATION,
                _PERIODIC,
                self._settings.job_retry_max_s,
                list(skipped_tenants),
                [job.tenant_id for job in running],
                [job.kind for job in running],
                [job.dedupe_key for job in running],
            )
        return [row_as(Job, row) for row in rows]

    async def renew(self, worker: UUID, jobs: Sequence[JobKey]) -> set[JobKey]:
        """Renew the leases of the given jobs that this worker still has, and return their keys."""
        async with self._ops.across_tenants() as tx:
            rows = await tx.fetch(
                """
                update jobs j set locked_until = now() + make_interval(secs => $4)
                from unnest($2::uuid[], $3::uuid[]) mine (tenant_id, id)
                where j.tenant_id = mine.tenant_id and j.id = mine.id and j.locked_by = $1 and j.state = 'queued'
                returning j.tenant_id, j.id
                """,
                worker,
                [job.tenant_id for job in jobs],
                [job.id for job in jobs],
                self._settings.job_lease_s,
            )
        return {row_as(JobKey, row) for row in rows}

    async def finish(self, worker: UUID, job: Job, *, again_in_s: float | None = None) -> None:
        """Finish a job: delete it, or make it due again later. Nothing happens if another worker has it now."""
        async with self._ops.across_tenants() as tx:
            if again_in_s is None:
                await _DELETE.execute(tx, tenant_id=job.tenant_id, id=job.id, locked_by=worker)
            else:
                await self._requeue(tx, worker, job, attempts=0, delay_s=again_in_s, error=None)

    async def fail(
        self, worker: UUID, job: Job, *, code: str, max_s: float | None = None, not_before_s: float = 0.0
    ) -> bool:
        """Record a failure: retry later, or park the job after its last attempt (return whether it was).

        A periodic job gives `max_s`, waits no longer than that, and is never parked. `not_before_s` is the delay that a
        refusing provider asked for; it overrides the other bounds.
        """
        delay_s = _RETRY_BASE_S * 2.0 ** min(job.attempts - 1, 32)
        delay_s = min(delay_s, self._settings.job_retry_max_s, max_s or self._settings.job_retry_max_s)
        # jitter, so that jobs that failed together do not return together
        spread = random.uniform(0.5, 1.0)  # noqa: S311 - no cryptography
        delay_s = max(delay_s * spread, not_before_s + min(delay_s, 1.0) * (spread - 0.5))
        async with self._ops.across_tenants() as tx:
            if max_s is None and job.attempts >= job.max_attempts:
                await tx.execute(
                    """
                    update jobs set state = 'parked', last_error = $4, locked_by = null, locked_until = null
                    where tenant_id = $1 and id = $2 and locked_by = $3
                    """,
                    job.tenant_id,
                    job.id,
                    worker,
                    code,
                )
                return True
            attempts = job.attempts if max_s is None else min(job.attempts, job.max_attempts // 2)
            await self._requeue(tx, worker, job, attempts=attempts, delay_s=delay_s, error=code)
        return False

    async def release(self, worker: UUID, jobs: Sequence[Job]) -> None:
        """Release jobs that were not tried: they are due at once, and this attempt does not count."""
        async with self._ops.across_tenants() as tx:
            for job in jobs:
                await self._requeue(tx, worker, job, attempts=job.attempts - 1, delay_s=0.0, error=job.last_error)

    async def _requeue(
        self, tx: Transaction, worker: UUID, job: Job, *, attempts: int, delay_s: float, error: str | None
    ) -> None:
        """Requeue a job; delete it if another job for the same work already waits.

        One statement deletes and inserts it, because an update after a check would fail on a duplicate that is enqueued
        meanwhile.
        """
        await tx.execute(
            """
            with own as (
                delete from jobs where tenant_id = $1 and id = $2 and locked_by = $3
                returning tenant_id, id, kind, subject_ids, dedupe_key, priority, max_attempts, created_at
            )
            insert into jobs (tenant_id, id, kind, subject_ids, dedupe_key, priority, max_attempts, created_at,
                              attempts, run_at, last_error)
            select own.*, $4::integer, clock_timestamp() + make_interval(secs => $5), $6::text from own
            on conflict do nothing
            """,
            job.tenant_id,
            job.id,
            worker,
            attempts,
            delay_s,
            error,
        )

    async def requeue_parked(self, kinds: Sequence[str], *, codes: Sequence[str], limit: int) -> int:
        """Make up to `limit` jobs due that were parked for one of these errors; return their number."""
        async with self._ops.across_tenants() as tx:
            return await tx.execute(
                """
                update jobs j set state = 'queued', attempts = 0, run_at = now()
                from (
                    select p.tenant_id, p.id from jobs p
                    where p.state = 'parked' and p.kind = any($1::text[]) and p.last_error = any($2::text[])
                      and not exists (
                          select from jobs other where other.tenant_id = p.tenant_id and other.kind = p.kind
                              and other.dedupe_key = p.dedupe_key and other.id <> p.id and other.locked_by is null
                              and (other.state = 'queued' or (other.state = 'parked' and other.id < p.id))
                      )
                    order by p.id limit $3 for update skip locked
                ) parked where j.tenant_id = parked.tenant_id and j.id = parked.id
                """,
                list(kinds),
                list(codes),
                limit,
            )

    async def has_parked(self, kinds: Sequence[str], *, codes: Sequence[str]) -> bool:
        """Return whether a job of these kinds was parked for one of these errors."""
        async with self._ops.across_tenants() as tx:
            return await _ANY_PARKED.fetchrow(tx, kinds=list(kinds), codes=list(codes)) is not None

    async def delete_unclaimed(self, prefix: str, *, but: Sequence[str], older_than_s: float, limit: int) -> int:
        """Delete jobs with this kind prefix that no worker has claimed for so long; return their number."""
        async with self._ops.across_tenants() as tx:
            return await _DELETE_UNCLAIMED.execute(
                tx, prefix=prefix, but=list(but), age=timedelta(seconds=older_than_s), limit=limit
            )

    async def counts(self) -> dict[str, int]:
        """Return the number of jobs: waiting, running, parked, cancelled."""
        async with self._ops.across_tenants() as tx:
            rows = await _COUNTS.fetch(tx)
        return {"queued": 0, "running": 0, "parked": 0, "cancelled": 0} | {row["state"]: row["count"] for row in rows}

    async def count_by_kind(self, prefix: str) -> dict[str, dict[str, int]]:
        """Return the number of jobs of each kind that starts with `prefix`, by state; running ones are queued."""
        async with self._ops.across_tenants() as tx:
            rows = await _COUNT_BY_KIND.fetch(tx, prefix=prefix)
        counts: dict[str, dict[str, int]] = {}
        for row in rows:
            counts.setdefault(row["kind"], {})[row["state"]] = row["count"]
        return counts

    async def errors_by_kind(self, prefix: str) -> dict[str, str]:
        """Return the last error of each kind that starts with `prefix`, of waiting and parked jobs."""
        async with self._ops.across_tenants() as tx:
            rows = await _ERRORS_BY_KIND.fetch(tx, prefix=prefix)
        return {row["kind"]: row["code"] for row in rows}

    async def delete_cancelled(self, *, older_than_s: float, limit: int) -> int:
        """Delete up to `limit` jobs that were cancelled long ago; return their number."""
        async with self._ops.across_tenants() as tx:
            return await _DELETE_CANCELLED.execute(tx, age=timedelta(seconds=older_than_s), limit=limit)


@compiled
def _jobs(filters: frozenset[str], *, newest_first: bool, after: bool) -> ClauseElement:
    statement = select(*columns(jobs, Job)).where(*equals(jobs, *sorted(filters)))
    return page(statement, (jobs.c.id,), newest_first=newest_first, after=after)


async def list_jobs(
    tx: Transaction, tenant_id: TenantId | None, window: Window, *, kind: str | None, state: str | None
) -> list[Job]:
    """Return jobs by id, in the order of creation; of all tenants with None (ops role)."""
    filters = given(tenant_id=tenant_id, kind=kind, state=state)
    rows = await _jobs(frozenset(filters), **window.shape).fetch(tx, **filters, **window.arguments)
    return [row_as(Job, row) for row in rows]


@dataclass(frozen=True, slots=True)
class JobCount:
    """The jobs of one kind in one state; a running one is `running`. `next_run_at`: the earliest of those that wait."""

    kind: str
    state: str
    count: int
    next_run_at: datetime | None


@compiled
def _count_jobs(filters: frozenset[str]) -> ClauseElement:
    counted = select(_J.kind, _STATE.label("state"), func.count().label("count"), _NEXT_RUN_AT)
    return counted.where(*equals(jobs, *sorted(filters))).group_by(_J.kind, _STATE).order_by(_J.kind, _STATE)


async def count_jobs(tx: Transaction, tenant_id: TenantId | None) -> list[JobCount]:
    """Return the number of jobs by kind and state; of all tenants with None (ops role)."""
    filters = given(tenant_id=tenant_id)
    return [row_as(JobCount, row) for row in await _count_jobs(frozenset(filters)).fetch(tx, **filters)]


@compiled
def _job(filters: frozenset[str], *, locked: bool) -> ClauseElement:
    statement = select(*columns(jobs, Job)).where(*equals(jobs, *sorted(filters)))
    return statement.with_for_update() if locked else statement


async def find_job(tx: Transaction, tenant_id: TenantId | None, job_id: JobId, *, locked: bool = False) -> Job | None:
    """Return a job, `locked` until the transaction ends; of any tenant with None (ops role)."""
    key = given(tenant_id=tenant_id, id=job_id)
    row = await _job(frozenset(key), locked=locked).fetchrow(tx, **key)
    return None if row is None else row_as(Job, row)


async def requeue_job(tx: Transaction, job: Job) -> Job | None:
    """Make a locked job due now with all its attempts; None if the same work already waits (ops role)."""
    row = await tx.fetchrow(
        """
        update jobs j set state = 'queued', attempts = 0, run_at = now(), locked_by = null, locked_until = null
        where j.tenant_id = $1 and j.id = $2 and not exists (
            select from jobs other where other.tenant_id = $1 and other.kind = j.kind and other.id <> j.id
                and other.dedupe_key = j.dedupe_key and other.state = 'queued' and other.locked_by is null
        ) returning j.*
        """,
        job.tenant_id,
        job.id,
    )
    return None if row is None else row_as(Job, row)


_CANCEL_JOB = Query(
    update(jobs)
    .values(state=JobState.CANCELLED.value, run_at=func.now(), locked_by=None, locked_until=None)
    .where(*equals(jobs, "tenant_id", "id"))
    .returning(*jobs.c)
)


async def cancel_job(tx: Transaction, job: Job) -> Job:
    """Cancel a locked job; a worker that runs it notices when it renews its lease (ops role)."""
    row = await _CANCEL_JOB.fetchrow(tx, tenant_id=job.tenant_id, id=job.id)
    return job if row is None else row_as(Job, row)
