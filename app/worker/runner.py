"""Takes due jobs and runs them, a few at a time, until told to stop.

Hides leases and retries from the handlers: a handler gets a job and either returns or raises. What always holds: while
a job runs its lease is renewed, and one that is lost (to a cancel, or because this process stood still) is given up;
a stop finishes what it can in the time allowed and gives the rest back. Any number of workers may run, anywhere.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from uuid import UUID

from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from app.core.errors import AppError
from app.core.ids import format_id, new_uuid
from app.core.jobs import INSTALLATION, Job, JobKey, JobQueue
from app.core.telemetry import error_type, get_logger

_RENEWALS_PER_LEASE = 3


@dataclass(frozen=True, slots=True)
class Handling:
    """How jobs of one kind are done. A periodic kind is due again `every_s` after it was done.

    `at_start`: it is due besides whenever a worker starts.
    """

    run: Callable[[Job], Awaitable[None]]
    every_s: float | None = None
    at_start: bool = False


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Settings of a worker."""

    concurrency: int
    poll_s: float
    timeout_s: float
    grace_s: float


class Worker:
    """One worker of this process."""

    def __init__(self, queue: JobQueue, handlings: Mapping[str, Handling], *, options: WorkerOptions) -> None:
        self._queue = queue
        self._handlings = handlings
        self._options = options
        self._id: UUID = new_uuid()
        self._running: dict[JobKey, tuple[Job, asyncio.Task[None]]] = {}
        self._given_up: set[JobKey] = set()
        self._stopping = asyncio.Event()
        self._periodic_ensured = False
        self._log = get_logger()
        self.counts: Mapping[str, int] = {}
        """How many jobs the installation has in each state, as of the last renewal."""

    async def run(self) -> None:
        """Work until `stop`, then end in order."""
        renewing = asyncio.create_task(self._renew_forever())
        try:
            while not self._stopping.is_set():
                self._queue.enqueued.clear()
                if not await self._claim():
                    await self._wait()
        finally:
            await self._end()
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    def stop(self) -> None:
        """Take no more jobs, and let `run` end."""
        self._stopping.set()
        self._queue.enqueued.set()

    async def drain(self) -> int:
        """Run jobs until none is due; says how many were run. For tests and commands that wait."""
        done = 0
        while await self._claim():
            done += len(self._running)
            await asyncio.gather(*(task for _, task in self._running.values()))
        return done

    async def _claim(self) -> int:
        free = self._options.concurrency - len(self._running)
        if free <= 0:
            return 0
        try:
            if not self._periodic_ensured:
                await self._queue.ensure_periodic(
                    [kind for kind, how in self._handlings.items() if how.every_s],
                    at_once=[kind for kind, how in self._handlings.items() if how.at_start],
                )
                self._periodic_ensured = True
            jobs = await self._claim_fairly(free)
        except AppError as error:
            self._log.warning("jobs.claim_failed", code=error.code)
            return 0
        for job in jobs:
            task = asyncio.create_task(self._run_one(job))
            self._running[job.key] = (job, task)
            task.add_done_callback(lambda _done, key=job.key: self._running.pop(key, None))
        return len(jobs)

    async def _claim_fairly(self, free: int) -> list[Job]:
        """Take jobs for the free places: of tenants that have half of all places already, only what others leave."""
        kinds = list(self._handlings)
        most = max(1, self._options.concurrency // 2)
        held = Counter(job.tenant_id for job, _ in self._running.values() if job.tenant_id != INSTALLATION)
        jobs: list[Job] = []
        while len(jobs) < free:
            greedy = [tenant_id for tenant_id, count in held.items() if count >= most]
            # no more at once than the one with most places may still have, for they may all be of that one
            at_once = most - max((count for count in held.values() if count < most), default=0)
            some = await self._queue.claim(
                self._id, kinds=kinds, limit=min(at_once, free - len(jobs)), skipped_tenants=greedy
            )
            held.update(job.tenant_id for job in some if job.tenant_id != INSTALLATION)
            jobs += some
            if not some:
                return jobs + (await self._queue.claim(self._id, kinds=kinds, limit=free - len(jobs)) if greedy else [])
        return jobs

    async def _wait(self) -> None:
        """Until there is something to do: a job was enqueued here, a place is free again, or it is time to look."""
        if len(self._running) >= self._options.concurrency:
            ended: set[asyncio.Task[object]] = {task for _, task in self._running.values()}
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait({*ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.poll_s):
                await self._queue.enqueued.wait()

    def _tasks(self) -> list["asyncio.Task[None]"]:
        return [task for _, task in self._running.values()]

    async def _run_one(self, job: Job) -> None:
        how = self._handlings[job.kind]
        try:
            async with asyncio.timeout(self._options.timeout_s):
                await how.run(job)
        except AppError as error:
            await self._settle(job, how, error.code, not_before_s=error.retry_after_s or 0.0)
        except TimeoutError:
            await self._settle(job, how, "job_timeout")
        except asyncio.CancelledError:
            if job.key not in self._given_up:
                raise
            self._given_up.discard(job.key)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises, the worker goes on
            self._log.error("job.crashed", job_id=format_id(job.id), kind=job.kind, error_type=error_type(error),
                            exc_info=error)  # fmt: skip
            await self._settle(job, how, "internal_error")
        else:
            await self._settle(job, how, None)

    async def _settle(self, job: Job, how: Handling, code: str | None, *, not_before_s: float = 0.0) -> None:
        """Write how a job ended. If that fails the lease runs out, and the job is run again."""
        fields = {"job_id": format_id(job.id), "kind": job.kind, "attempt": job.attempts}
        try:
            if code is None:
                await self._queue.finish(self._id, job, again_in_s=how.every_s)
                self._log.debug("job.finished", **fields)
            elif await self._queue.fail(self._id, job, code=code, max_s=how.every_s, not_before_s=not_before_s):
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
                held = await self._queue.renew(self._id, mine) if mine else set[JobKey]()
                self.counts = await self._queue.counts()
            except AppError as error:
                self._log.warning("jobs.renewal_failed", code=error.code)
                continue
            for key in mine:
                # one that ended since is not ours any more either, and is not running
                if key not in held and key in self._running:
                    self._log.warning("job.lost", job_id=format_id(key.id))
                    self._given_up.add(key)
                    self._running[key][1].cancel()

    async def _end(self) -> None:
        if not self._running:
            return
        await asyncio.wait(self._tasks(), timeout=self._options.grace_s)
        left = list(self._running.values())
        for _, task in left:
            task.cancel()
        await asyncio.gather(*(task for _, task in left), return_exceptions=True)
        with suppress(AppError):  # a lease that is not given back runs out by itself
            await self._queue.release(self._id, [job for job, _ in left])


def add_job_metrics(registry: CollectorRegistry, worker: Worker) -> None:
    """Show the worker's counts as `turnkeep_jobs{state}`."""
    gauge = Gauge("turnkeep_jobs", "Jobs of the installation by state.", ["state"], registry=registry)
    for state in ("queued", "running", "parked", "cancelled"):
        gauge.labels(state).set_function(lambda state=state: worker.counts.get(state, 0))


class _Swept(Collector):
    """Reads what has been deleted when it is asked for."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """Give one counter with a sample for each name."""
        counter = CounterMetricFamily(
            "turnkeep_swept", "What sweeps and large deletions have deleted.", labels=["what"]
        )
        for what, count in self._counts.items():
            counter.add_metric([what], count)
        yield counter


def add_sweep_metrics(registry: CollectorRegistry, counts: Mapping[str, int]) -> None:
    """Show as `turnkeep_swept_total{what}` what this process has deleted: `expired` conversations, rows by table."""
    registry.register(_Swept(counts))


@asynccontextmanager
async def working(worker: Worker) -> AsyncGenerator[Worker]:
    """A worker that runs beside the block, and has ended after it."""
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.gather(task, return_exceptions=True)
