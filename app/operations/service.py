"""Long operations: start, run in bounded steps, cancel, list.

A request starts an operation in its own transaction and answers 202. A job runs it, so another worker continues it if a
worker is killed.

Invariants: a step and its progress are stored in one transaction, or neither. Of two runs of one operation only the
later one can write, so no step is stored twice. When an operation ends, its parameters and its state are removed in the
same transaction.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.core.database.transactions import Database, Transaction
from app.core.error_codes import ERROR_CODES
from app.core.errors import AppError, Conflict, NotFound, RateLimited
from app.core.ids import KeyId, TenantId, new_uuid
from app.core.jobs import Job, JobQueue, NewJob
from app.core.paging import Cursors, Page, PageRequest, page_of_views
from app.core.telemetry import get_logger
from app.core.views import view_of
from app.formats.schemas import JsonObject
from app.operations import store
from app.operations.schemas import JOB_PREFIX, Operation, OperationProblem, OperationProgress, OperationStatus
from app.operations.store import OperationRow
from app.settings.database import JobSettings
from app.tenancy.schemas import Caller, Scope, job_caller

_SWEPT_AT_ONCE = 1_000
_LOST_AT_ONCE = 100
# open operations of one kind of a tenant: they run one after the other, so the last one waits for long already
_MAX_OPEN = 100
# results are read by who started the operation, mostly within minutes
_KEPT = timedelta(days=1)
# an operation pauses within its lease, and after this time, so that jobs that wait have their turn
_RUN_PER_LEASE, _RUN_S = 2 / 3, 20.0


class OperationStopped(Exception):
    """The run may not go on: the operation is being cancelled, or a later run has replaced it.

    Raised by `checkpoint` and `succeed` inside the transaction of a step, which is rolled back with it.
    """


class OperationRun:
    """One run of an operation, for its handler. `parameters` are those of the start.

    `state` is what the last `checkpoint` stored, None at first; a handler continues from it.
    """

    def __init__(self, row: OperationRow, *, step_s: float) -> None:
        self.tenant_id = row.tenant_id
        self.id = row.id
        self.key_id = row.key_id
        self.parameters: JsonObject = row.parameters or {}
        self.state = row.state
        self.done = row.done
        self.total = row.total
        self.created_at = row.created_at
        self.caller = job_caller(row.tenant_id)
        """The caller for services: it may read and write in the tenant."""
        self.has_ended = False
        self._run = row.run
        self._pause_at = time.monotonic() + step_s

    @property
    def pause_is_due(self) -> bool:
        """Return whether the handler should return soon; it is called again, after jobs that waited."""
        return time.monotonic() >= self._pause_at

    async def checkpoint(
        self, tx: Transaction, *, done: int, total: int | None = None, state: JsonObject | None = None
    ) -> None:
        """Store progress and state in the transaction of a step of the same tenant. Raises OperationStopped.

        `total` is kept if it is None, and never less than `done`. `state` is JSON of some kilobytes at most.
        """
        total = self.total if total is None else total
        total = None if total is None else max(total, done)
        is_stored = await store.checkpoint(
            tx, self.tenant_id, self.id, run=self._run, done=done, total=total, state=state
        )
        if not is_stored:
            raise OperationStopped
        self.done, self.total, self.state = done, total, state

    async def succeed(self, tx: Transaction, *, result: JsonObject, ended_at: datetime | None = None) -> None:
        """End the operation in the transaction of its last step. Raises OperationStopped.

        `result` has counts and ids, and no content. `ended_at`: default now.
        """
        # under the lock of the row: a cancel that came first stops this
        await self.checkpoint(tx, done=self.done, total=self.total, state=self.state)
        await self.end(tx, OperationStatus.SUCCEEDED, result=result, ended_at=ended_at)

    async def end(
        self,
        tx: Transaction,
        status: OperationStatus,
        *,
        result: JsonObject | None,
        error: str | None = None,
        ended_at: datetime | None = None,
    ) -> None:
        """End the operation with any final status. Handlers use `succeed`. Raises OperationStopped."""
        ended = await store.end(
            tx,
            self.tenant_id,
            self.id,
            run=self._run,
            status=status.value,
            result=result,
            error=error,
            ended_at=ended_at,
        )
        if not ended:
            raise OperationStopped
        self.has_ended = True


RunOperation = Callable[[OperationRun], Awaitable[None]]
StopOperation = Callable[[OperationRun, Transaction, OperationStatus], Awaitable[JsonObject | None]]


async def _no_result(_run: OperationRun, _tx: Transaction, _status: OperationStatus) -> None:
    return None


@dataclass(frozen=True, slots=True)
class OperationHandler:
    """How a kind of operation is run.

    `run` does bounded steps, each in a transaction with `checkpoint`, and ends with `succeed`. It returns before that
    if `pause_is_due`, and is called again. It may be repeated from the last checkpoint at any time. `stop` is called
    in the transaction that ends the operation as failed or cancelled, and returns its result.
    """

    run: RunOperation
    stop: StopOperation = _no_result


class Operations:
    """Public API of long operations."""

    def __init__(
        self, database: Database, ops: Database, *, queue: JobQueue, cursors: Cursors, settings: JobSettings
    ) -> None:
        self._database = database
        self._ops = ops
        self._queue = queue
        self._cursors = cursors
        self._settings = settings
        self.handlers: dict[str, OperationHandler] = {}
        """By kind (lower case and `_`). Each package registers its own when it is built."""
        self._log = get_logger()

    async def start(
        self, caller: Caller, tx: Transaction, *, kind: str, parameters: JsonObject, operation_id: UUID | None = None
    ) -> Operation:
        """Start an operation in the caller's transaction; it begins when that is durable.

        `parameters` may have personal data: they are never shown, and are removed at the end. Raises RateLimited
        `too_many_operations`.
        """
        if kind not in self.handlers:
            raise RuntimeError(f"there is no handler of {kind}")
        # of each kind, so that imports cannot keep a tenant from an erasure
        if await store.count_open(tx, caller.tenant_id, kind=kind) >= _MAX_OPEN:
            raise RateLimited(
                "too_many_operations",
                f"{_MAX_OPEN} operations of this kind have not ended; wait, or cancel some.",
                retry_after_s=10,
            )
        operation_id = operation_id or new_uuid()
        row = await store.insert_operation(
            tx, caller.tenant_id, operation_id, kind=kind, key_id=caller.key_id, parameters=parameters
        )
        await self._queue.enqueue(tx, caller.tenant_id, [_job(kind, operation_id)])
        return self._view(row)

    async def find(self, caller: Caller, tx: Transaction, *, operation_id: UUID) -> Operation:
        """Return an operation in an open transaction, for the repeat of a request. Raises NotFound."""
        return self._view(await self._row(caller, tx, operation_id))

    async def get(self, caller: Caller, operation_id: UUID) -> Operation:
        """Return an operation: any of the tenant for the scope `admin`, else one that this key started.

        Raises NotFound.
        """
        caller.require(Scope.READ)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            return self._view(await self._row(caller, tx, operation_id))

    async def is_open(self, tx: Transaction, tenant_id: TenantId, operation_id: UUID) -> bool:
        """Return whether an operation exists and has not ended."""
        row = await store.find(tx, tenant_id, operation_id, locked=False)
        return row is not None and row.ended_at is None

    async def list_page(
        self, caller: Caller, *, kind: str | None, status: OperationStatus | None, asked: PageRequest
    ) -> Page[Operation]:
        """Return a page of operations by creation: those of the tenant for the scope `admin`, else of this key."""
        caller.require(Scope.READ)
        key_id = _reach(caller)
        scope = f"operations|{caller.tenant_id}|{key_id}|{asked.order}|{kind}|{status}"
        window = self._cursors.window(scope, asked, UUID)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            rows = await store.list_page(tx, caller.tenant_id, window, key_id=key_id, kind=kind, status=status)
        page = self._cursors.page(rows, asked, scope=scope, key=lambda row: [str(row.id)])
        return page_of_views(page, Page[Operation], self._view)

    async def cancel(self, caller: Caller, operation_id: UUID) -> Operation:
        """Cancel an operation. What it has done so far stays. A cancelled one stays as it is.

        Raises NotFound; Conflict `operation_ended`.
        """
        caller.require(Scope.READ)
        async with self._database.transaction(caller.tenant_id) as tx:
            row = await self._row(caller, tx, operation_id, locked=True)
            cancelled = await store.request_cancel(tx, caller.tenant_id, operation_id)
            if cancelled is not None:
                # a job of its own, because the waiting one may be delayed; it replaces the present run
                job = NewJob(JOB_PREFIX + row.kind, [operation_id], dedupe_key=f"{operation_id}:cancel", priority=1)
                await self._queue.enqueue(tx, caller.tenant_id, [job])
                record(tx, caller, Action.OPERATION_CANCEL, ObjectKind.OPERATION, operation_id)
        if cancelled is None and row.status != OperationStatus.CANCELLED.value:
            raise Conflict("operation_ended", "The operation has ended; it cannot be cancelled any more.")
        return self._view(cancelled or row)

    async def cancel_in(self, tx: Transaction, tenant_id: TenantId, operation_ids: Sequence[UUID]) -> None:
        """End open operations of a tenant as cancelled, in the given transaction (ops role), without their jobs.

        What they have done so far stays; no run of them can write afterwards.
        """
        for operation_id in operation_ids:
            row = await store.begin(tx, tenant_id, operation_id)
            if row is not None:
                run = OperationRun(row, step_s=0)
                await self._end(tx, run, self.handlers[row.kind], OperationStatus.CANCELLED, None)

    async def _row(self, caller: Caller, tx: Transaction, operation_id: UUID, *, locked: bool = False) -> OperationRow:
        row = await store.find(tx, caller.tenant_id, operation_id, locked=locked)
        key_id = _reach(caller)
        if row is None or key_id not in {None, row.key_id}:
            raise NotFound("not_found", "There is no such operation. Ended operations are deleted after a time.")
        return row

    # by jobs

    async def run_job(self, job: Job) -> None:
        """Run an operation until it ends or pauses. Raises the handler's error while the job has attempts left."""
        tenant_id, (operation_id, *_) = job.tenant_id, job.subject_ids
        run = await self._begin(tenant_id, operation_id)
        if run is None:
            return
        handler = self.handlers[job.kind.removeprefix(JOB_PREFIX)]
        try:
            await handler.run(run)
        except OperationStopped:
            return
        except AppError as error:
            if error.retryable and job.attempts < job.max_attempts:
                raise
            self._log.warning("operation.failed", kind=job.kind, code=error.code)
            await self._stop(run, handler, OperationStatus.FAILED, error.code)
            return
        if not run.has_ended:
            async with self._database.transaction(tenant_id) as tx:
                await self._queue.enqueue(tx, tenant_id, [_job(job.kind.removeprefix(JOB_PREFIX), operation_id)])

    async def _begin(self, tenant_id: TenantId, operation_id: UUID) -> OperationRun | None:
        """Begin a run. None if the operation has ended, as it has after this if it is being cancelled."""
        async with self._database.transaction(tenant_id) as tx:
            row = await store.begin(tx, tenant_id, operation_id)
            if row is None:
                return None
            run = OperationRun(row, step_s=min(_RUN_PER_LEASE * self._settings.job_lease_s, _RUN_S))
            if row.status == OperationStatus.CANCELLING.value:
                await self._end(tx, run, self.handlers[row.kind], OperationStatus.CANCELLED, None)
                return None
        return run

    async def _stop(
        self, run: OperationRun, handler: OperationHandler, status: OperationStatus, error: str | None
    ) -> None:
        try:
            async with self._database.transaction(run.tenant_id) as tx:
                await self._end(tx, run, handler, status, error)
        except OperationStopped:
            return

    @staticmethod
    async def _end(
        tx: Transaction, run: OperationRun, handler: OperationHandler, status: OperationStatus, error: str | None
    ) -> None:
        result = await handler.stop(run, tx, status)
        await run.end(tx, status, result=result, error=error)

    async def sweep(self) -> int:
        """Delete operations that ended long ago, and end or continue those whose job was lost. Return the deleted."""
        kinds = [JOB_PREFIX + kind for kind in self.handlers]
        # the death of its workers is no fault of an operation
        await self._queue.requeue_parked(kinds, codes=["worker_lost"], limit=_LOST_AT_ONCE)
        async with self._ops.across_tenants() as tx:
            lost = [
                lost_operation
                for lost_operation in await store.list_lost(tx, limit=_LOST_AT_ONCE)
                if lost_operation.kind in self.handlers
            ]
        for lost_operation in lost:
            async with self._database.transaction(lost_operation.tenant_id) as tx:
                row = await store.begin(tx, lost_operation.tenant_id, lost_operation.id)
            if row is not None:
                run = OperationRun(row, step_s=0)
                failed = lost_operation.job_state == "parked" and row.status != OperationStatus.CANCELLING.value
                status = OperationStatus.FAILED if failed else OperationStatus.CANCELLED
                error = (lost_operation.error or "internal_error") if failed else None
                await self._stop(run, self.handlers[lost_operation.kind], status, error)
            async with self._ops.across_tenants() as tx:
                await store.delete_lost_jobs(tx, lost_operation)
        async with self._ops.across_tenants() as tx:
            return await store.delete_ended(tx, older_than=_KEPT, limit=_SWEPT_AT_ONCE)

    def _view(self, row: OperationRow) -> Operation:
        error = None
        if row.error is not None:
            title = ERROR_CODES.get(row.error, ERROR_CODES["internal_error"])
            error = OperationProblem(type=f"/docs/errors#{row.error}", title=title, code=row.error)
        return view_of(
            Operation,
            row,
            progress=OperationProgress(done=row.done, total=row.total),
            expires_at=None if row.ended_at is None else row.ended_at + _KEPT,
            error=error,
        )


def _job(kind: str, operation_id: UUID) -> NewJob:
    # below the work of single requests
    return NewJob(JOB_PREFIX + kind, [operation_id], dedupe_key=str(operation_id), priority=-1)


def _reach(caller: Caller) -> KeyId | None:
    """Return the key whose operations a caller may reach; None for all of the tenant."""
    return None if Scope.ADMIN in caller.scopes else caller.key_id
