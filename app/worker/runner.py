"""The worker: claims due jobs and runs a few at a time, until it is stopped.

Hides leases and retries from the handlers: a handler gets a job and returns or raises. Invariants: a running job's
lease is renewed. A job whose lease is lost (by a cancel, or because this process did not run for a while) is cancelled.
A stop finishes jobs within its time limit and releases the others. Any number of workers may run, on any machine.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from uuid import UUID

from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry, Gauge

from app.core.errors import AppError
from app.core.ids import format_id, new_uuid
from app.core.jobs import INSTALLATION, Job, JobKey, JobQueue
from app.core.telemetry import error_type, get_logger
from app.core.threads import running
from app.core.tracing.metrics import counter, export
from app.core.tracing.spans import root_span
from app.settings.database import JobSettings

_RENEWALS_PER_LEASE = 3
# new jobs are announced: only repeated ones, and those whose message was lost, wait for a poll
_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class JobHandler:
    """The handler of a kind of job. A periodic kind is due again `every_s` after its end.

    `at_start`: it is also due whenever a worker starts.
    """

    run: Callable[[Job], Awaitable[object]]
    every_s: float | None = None
    at_start: bool = False


class Worker:
    """One worker of this process."""

    def __init__(
        self, queue: JobQueue, job_handlers: Mapping[str, JobHandler], *, settings: JobSettings, grace_s: float
    ) -> None:
        self._queue = queue
        self._handlings = job_handlers
        self._settings = settings
        self._grace_s = grace_s
        self._id: UUID = new_uuid()
        self._running: dict[JobKey, tuple[Job, asyncio.Task[None]]] = {}
        self._given_up: set[JobKey] = set()
        self._stopping = asyncio.Event()
        self._periodic_ensured = False
        self._log = get_logger()
        self.counts: Mapping[str, int] = {}
        """Number of the installation's jobs in each state, at the last renewal."""

    async def run(self) -> None:
        """Run jobs until `stop`, then finish or release the running ones."""
        renewing = asyncio.create_task(self._renew_forever())
        try:
            while not self._stopping.is_set():
                self._queue.enqueued.clear()
                free = self._free
                # with a slot left, no more jobs are due; one that is enqueued meanwhile sets the event
                if await self._claim() < free or not free:
                    await self._wait()
        finally:
            await self._end()
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    def stop(self) -> None:
        """Stop claiming jobs, and let `run` end."""
        self._stopping.set()
        self._queue.enqueued.set()

    async def drain(self) -> int:
        """Run jobs until none is due; return their number. For tests."""
        done = 0
        while await self._claim():
            done += len(self._running)
            await asyncio.gather(*(task for _, task in self._running.values()))
        return done

    @property
    def _free(self) -> int:
        return self._settings.worker_concurrency - len(self._running)

    async def _claim(self) -> int:
        free = self._free
        if free <= 0:
            return 0
        try:
            if not self._periodic_ensured:
                await self._queue.ensure_periodic(
                    [kind for kind, handler in self._handlings.items() if handler.every_s],
                    at_once=[kind for kind, handler in self._handlings.items() if handler.at_start],
                )
                self._periodic_ensured = True
            jobs = await self._claim_fairly(free)
        except AppError as error:
            self._log.warning("jobs.claim_failed", code=error.code)
            return 0
        for job in jobs:
            task = asyncio.create_task(self._run_one(job))
            self._running[job.key] = (job, task)
            task.add_done_callback(lambda _done, job=job: self._ended(job))
        return len(jobs)

    def _ended(self, job: Job) -> None:
        self._running.pop(job.key, None)
        if job.dedupe_key is not None:  # another job for the same work may wait for this one
            self._queue.enqueued.set()

    async def _claim_fairly(self, free: int) -> list[Job]:
        """Claim jobs for the free slots. A tenant with half of all slots gets only slots that others leave."""
        kinds = list(self._handlings)
        most = max(1, self._settings.worker_concurrency // 2)
        running = [job for job, _ in self._running.values()]
        busy_slots = Counter(job.tenant_id for job in running if job.tenant_id != INSTALLATION)
        jobs: list[Job] = []
        while len(jobs) < free:
            greedy = [tenant_id for tenant_id, count in busy_slots.items() if count >= most]
            # claim at most the free share of the busiest tenant, because all jobs may belong to it
            at_once = most - max((count for count in busy_slots.values() if count < most), default=0)
            limit = min(at_once, free - len(jobs))
            claimed = await self._queue.claim(
                self._id, kinds=kinds, limit=limit, skipped_tenants=greedy, running=running + jobs
            )
            busy_slots.update(job.tenant_id for job in claimed if job.tenant_id != INSTALLATION)
            jobs += claimed
            if len(claimed) < limit:  # no more are due
                if greedy:
                    jobs += await self._queue.claim(
                        self._id, kinds=kinds, limit=free - len(jobs), running=running + jobs
                    )
                return jobs
        return jobs

    async def _wait(self) -> None:
        """Wait until a job is enqueued here, a slot is free, or the next poll is due."""
        if self._free <= 0:
            ended: set[asyncio.Task[object]] = {task for _, task in self._running.values()}
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait({*ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_S):
                await self._queue.enqueued.wait()

    async def _run_handler(self, handler: JobHandler, job: Job) -> None:
        named: dict[str, str | int] = {
            "turnkeep.job_kind": job.kind,
            "turnkeep.job_id": format_id(job.id),
            "turnkeep.attempt": job.attempts,
            "turnkeep.tenant_id": format_id(job.tenant_id),
        }
        with root_span(f"job {job.kind}", named, kind=SpanKind.CONSUMER):
            async with asyncio.timeout(self._settings.job_timeout_s):
                await handler.run(job)

    async def _run_one(self, job: Job) -> None:
        handler = self._handlings[job.kind]
        try:
            await self._run_handler(handler, job)
        except AppError as error:
            await self._end_attempt(job, handler, error.code, not_before_s=error.retry_after_s or 0.0)
        except TimeoutError:
            await self._end_attempt(job, handler, "job_timeout")
        except asyncio.CancelledError:
            if job.key not in self._given_up:
                raise
            self._given_up.discard(job.key)
        except Exception as error:  # noqa: BLE001 - the worker continues after any exception of a handler
            self._log.error(
                "job.crashed", job_id=format_id(job.id), kind=job.kind, error_type=error_type(error), exc_info=error
            )
            await self._end_attempt(job, handler, "internal_error")
        else:
            await self._end_attempt(job, handler, None)

    async def _end_attempt(self, job: Job, handler: JobHandler, code: str | None, *, not_before_s: float = 0.0) -> None:
        """Store the result of a job. If that fails, the lease expires and the job runs again."""
        fields = {"job_id": format_id(job.id), "kind": job.kind, "attempt": job.attempts}
        try:
            if code is None:
                await self._queue.finish(self._id, job, again_in_s=handler.every_s)
                self._log.debug("job.finished", **fields)
            elif await self._queue.fail(self._id, job, code=code, max_s=handler.every_s, not_before_s=not_before_s):
                self._log.error("job.parked", code=code, **fields)
            else:
                self._log.warning("job.failed", code=code, **fields)
        except AppError as error:
            self._log.warning("job.settling_failed", code=error.code, **fields)

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._queue.lease_s / _RENEWALS_PER_LEASE)
            try:
                mine = list(self._running)
                renewed = await self._queue.renew(self._id, mine) if mine else set[JobKey]()
                self.counts = await self._queue.counts()
            except AppError as error:
                self._log.warning("jobs.renewal_failed", code=error.code)
                continue
            for key in mine:
                # an ended job is not leased any more either, but it is not running
                if key not in renewed and key in self._running:
                    self._log.warning("job.lost", job_id=format_id(key.id))
                    self._given_up.add(key)
                    self._running[key][1].cancel()

    async def _end(self) -> None:
        if not self._running:
            return
        await asyncio.wait([task for _, task in self._running.values()], timeout=self._grace_s)
        left = list(self._running.values())
        for _, task in left:
            task.cancel()
        await asyncio.gather(*(task for _, task in left), return_exceptions=True)
        with suppress(AppError):  # a lease that is not released expires
            await self._queue.release(self._id, [job for job, _ in left])


def add_job_metrics(registry: CollectorRegistry, worker: Worker) -> None:
    """Export the worker's counts as `turnkeep_jobs{state}`."""
    gauge = Gauge("turnkeep_jobs", "Jobs of the installation by state.", ["state"], registry=registry)
    for state in ("queued", "running", "parked", "cancelled"):
        gauge.labels(state).set_function(lambda state=state: worker.counts.get(state, 0))


def add_sweep_metrics(registry: CollectorRegistry, counts: Mapping[str, int]) -> None:
    """Export the deletions of this process as `turnkeep_swept_total{what}`: `expired` conversations, rows by table."""
    name, text = "turnkeep_swept", "What sweeps and large deletions have deleted."
    export(registry, lambda: [counter(name, text, "what", counts)])


def working(worker: Worker) -> AbstractAsyncContextManager[None]:
    """Run a worker during the block, and stop it afterwards."""
    return running(worker.run(), worker.stop)
