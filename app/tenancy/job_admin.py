"""Administration of jobs: list, read, retry, cancel.

A key with the scope `admin` reaches the jobs of its own tenant; one with `operator` also those of all tenants and of
the installation. Jobs of one tenant are read under row-level security; changes use the ops role, and name the tenant.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from pydantic import BaseModel

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.core.database.transactions import Database, Transaction, read_transaction
from app.core.errors import Conflict, NotFound
from app.core.ids import JobId, TenantId
from app.core.jobs import Job, JobCount, JobQueue, JobState, cancel_job, count_jobs, find_job, list_jobs, requeue_job
from app.core.paging import Cursors, Page, PageRequest, page_of_views
from app.core.times import TimeOut
from app.core.views import IdOut, view_of
from app.tenancy.schemas import Caller, Scope

_STATES: Final[Sequence[str]] = ("queued", "running", "parked", "cancelled")


class JobView(BaseModel):
    """A job that has not finished; finished ones are deleted.

    `state` is `queued` (waits for `run_at`, or for a worker), `running`, `parked` (failed `max_attempts` times, and
    waits for a retry) or `cancelled`. `last_error` is an error code. `subject_ids` are the ids of its subjects.
    """

    id: IdOut
    tenant_id: IdOut
    kind: str
    state: Literal["queued", "running", "parked", "cancelled"]
    subject_ids: list[IdOut]
    priority: int
    attempts: int
    max_attempts: int
    run_at: TimeOut
    last_error: str | None
    created_at: TimeOut


class JobsOfKind(BaseModel):
    """The unfinished jobs of one kind, by state. `next_run_at`: when the first of those that wait is due.

    A time in the past means that no worker has a free place for it.
    """

    kind: str
    queued: int
    running: int
    parked: int
    cancelled: int
    next_run_at: TimeOut | None


class JobCounts(BaseModel):
    """The unfinished jobs by state, and the same of each kind that has some."""

    queued: int
    running: int
    parked: int
    cancelled: int
    kinds: list[JobsOfKind]


class JobAdministration:
    """Public API of jobs."""

    def __init__(self, database: Database, ops: Database, *, queue: JobQueue, cursors: Cursors) -> None:
        self._database = database
        self._ops = ops
        self._queue = queue
        self._cursors = cursors

    async def list_jobs(
        self, caller: Caller, *, all_tenants: bool, kind: str | None, state: JobState | None, asked: PageRequest
    ) -> Page[JobView]:
        """List unfinished jobs by age."""
        tenant_id = _reach(caller, all_tenants)
        scope = f"jobs|{tenant_id}|{asked.order}|{kind}|{state}"
        window = self._cursors.window(scope, asked, UUID)
        async with read_transaction(self._database, self._ops, tenant_id) as tx:
            rows = await list_jobs(tx, tenant_id, window, kind=kind, state=state)
        page = self._cursors.page(rows, asked, scope=scope, key=lambda job: [str(job.id)])
        return page_of_views(page, Page[JobView], _view)

    async def count(self, caller: Caller, *, all_tenants: bool) -> JobCounts:
        """Return the number of unfinished jobs, by kind and state."""
        tenant_id = _reach(caller, all_tenants)
        async with read_transaction(self._database, self._ops, tenant_id) as tx:
            return _counts(await count_jobs(tx, tenant_id))

    async def job(self, caller: Caller, job_id: JobId, *, all_tenants: bool) -> JobView:
        """Return an unfinished job. Raises NotFound."""
        tenant_id = _reach(caller, all_tenants)
        async with read_transaction(self._database, self._ops, tenant_id) as tx:
            job = await find_job(tx, tenant_id, job_id)
        if job is None:
            raise _missing()
        return _view(job)

    async def retry(self, caller: Caller, job_id: JobId, *, all_tenants: bool) -> JobView:
        """Make a parked, cancelled or waiting job due now.

        Conflict if it runs, or if another job for the same work waits.
        """
        async with self._ops.across_tenants() as tx:
            job = await self._lock(caller, tx, job_id, all_tenants)
            if _state(job) == "running":
                raise Conflict("job_running", "This job is running; it is retried automatically if it fails.")
            again = await requeue_job(tx, job)
            if again is None:
                raise Conflict("job_waiting", "Another job waits that will do the same work.")
            record(tx, caller, Action.JOB_RETRY, ObjectKind.JOB, job_id, counts={"jobs": 1})
            tx.after_commit.append(self._queue.enqueued.set)
        return _view(again)

    async def cancel(self, caller: Caller, job_id: JobId, *, all_tenants: bool) -> JobView:
        """Cancel a job; a running one stops when its worker next renews its lease."""
        async with self._ops.across_tenants() as tx:
            job = await self._lock(caller, tx, job_id, all_tenants)
            record(tx, caller, Action.JOB_CANCEL, ObjectKind.JOB, job_id, counts={"jobs": 1})
            return _view(await cancel_job(tx, job))

    @staticmethod
    async def _lock(caller: Caller, tx: Transaction, job_id: JobId, all_tenants: bool) -> Job:  # noqa: FBT001
        job = await find_job(tx, _reach(caller, all_tenants), job_id, locked=True)
        if job is None:
            raise _missing()
        return job


def _missing() -> NotFound:
    return NotFound("not_found", "There is no such job, or it has finished.")


def _reach(caller: Caller, all_tenants: bool) -> TenantId | None:  # noqa: FBT001
    """Return the tenant whose jobs the caller may reach; None for all, which needs an operator."""
    if all_tenants:
        caller.require(Scope.OPERATOR)
        return None
    caller.require(Scope.ADMIN)
    return caller.tenant_id


def _state(job: Job) -> Literal["queued", "running", "parked", "cancelled"]:
    match JobState(job.state):
        case JobState.QUEUED:
            return "queued" if job.locked_by is None else "running"
        case JobState.PARKED:
            return "parked"
        case JobState.CANCELLED:
            return "cancelled"


def _counts(rows: Sequence[JobCount]) -> JobCounts:
    totals: dict[str, int] = dict.fromkeys(_STATES, 0)
    kinds: dict[str, dict[str, int]] = {}
    next_run_at: dict[str, datetime] = {}
    for row in rows:
        totals[row.state] += row.count
        kinds.setdefault(row.kind, dict[str, int].fromkeys(_STATES, 0))[row.state] = row.count
        if row.next_run_at is not None:
            next_run_at[row.kind] = row.next_run_at
    of_kinds = [JobsOfKind(kind=kind, **by, next_run_at=next_run_at.get(kind)) for kind, by in kinds.items()]
    return JobCounts(**totals, kinds=of_kinds)


def _view(job: Job) -> JobView:
    return view_of(JobView, job, state=_state(job))
