"""The handler of each kind of job. Each is idempotent."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from app.agents.lifecycle.service import COMPACT_EARLY_JOB
from app.container import Container
from app.context.service import COMPACT_JOB, TITLE_JOB
from app.conversations.service import RETAIN_JOB, TRASH_JOB
from app.core.errors import NotFound
from app.core.ids import ConversationId
from app.core.jobs import Job
from app.index.schemas import DATES_JOB, DROP_JOB, VECTORS_JOB
from app.index.service import EmbeddingSpaceRuntime
from app.memory.service import FACTS_AGAIN_JOB, FACTS_JOB, WITHDRAW_JOB
from app.memory.service import VECTORS_JOB as FACT_VECTORS_JOB
from app.operations.schemas import JOB_PREFIX
from app.tenancy.schemas import Caller, job_caller
from app.webhooks.service import PURGE_JOB
from app.worker.runner import JobHandler, Worker

SWEEP_JOB = "installation.sweep"
CONVERSATIONS_JOB = "conversations.sweep"
LEASES_JOB = "streams.sweep"
FACTS_SWEEP_JOB = "facts.sweep"
AUDIT_JOB = "audit.seal"
REFRESH_JOB = "summaries.refresh"
OPERATIONS_SWEEP_JOB = "operations.sweep"
WEBHOOKS_SWEEP_JOB = "webhooks.sweep"
_CANCELLED_KEPT_S = 7 * 86_400.0
_SWEEP_LIMIT = 10_000
# the time for which an entry of the audit has no proof; a pass is a few statements
_SEAL_EVERY_S = 10.0
# appends enqueue their missing vectors: this search finds those whose job was parked, and those of another embedder
_SWEEPS_PER_PLAN = 10


def job_handlers(container: Container) -> Mapping[str, JobHandler]:
    """Return the handlers of all kinds that this process can run. Other kinds are left to other workers."""
    return {
        **_housekeeping(container),
        **_operations(container),
        **_index(container),
        **_summaries(container),
        **_facts(container),
    }


def _housekeeping(container: Container) -> dict[str, JobHandler]:
    """Return the periodic jobs that remove expired data."""
    settings = container.settings

    async def sweep(_job: Job) -> None:
        await container.tenancy.idempotency.delete_expired()
        await container.governance.sweep_memories()
        await container.imports.sweep()
        await container.index.sweep()
        await container.queue.delete_cancelled(older_than_s=_CANCELLED_KEPT_S, limit=_SWEEP_LIMIT)

    async def seal(_job: Job) -> None:
        await container.audit.sealer.seal()
        await container.audit.sealer.delete_old()

    return {
        AUDIT_JOB: JobHandler(seal, every_s=_SEAL_EVERY_S),
        SWEEP_JOB: JobHandler(sweep, every_s=settings.jobs.sweep_interval_s),
        CONVERSATIONS_JOB: JobHandler(lambda _: container.purger.sweep(), every_s=settings.jobs.sweep_interval_s),
        LEASES_JOB: JobHandler(lambda _: container.streams.abort_expired(), every_s=settings.streams.sweep_s),
        FACTS_SWEEP_JOB: JobHandler(lambda _: container.facts.sweep(), every_s=settings.jobs.sweep_interval_s),
        OPERATIONS_SWEEP_JOB: JobHandler(
            lambda _: container.operations.sweep(), every_s=settings.jobs.sweep_interval_s
        ),
        WEBHOOKS_SWEEP_JOB: JobHandler(
            lambda _: container.webhooks.api.sweep(), every_s=settings.jobs.sweep_interval_s
        ),
        PURGE_JOB: JobHandler(container.webhooks.api.purge),
    }


def _operations(container: Container) -> dict[str, JobHandler]:
    """Return one handler for each kind of operation, so that a worker of another release leaves unknown kinds."""
    return {JOB_PREFIX + kind: JobHandler(container.operations.run_job) for kind in container.operations.handlers}


def _for_conversation(run: Callable[[Caller, ConversationId, Job], Awaitable[object]]) -> JobHandler:
    """Return the handler of a job of one conversation. It does nothing if the conversation was deleted meanwhile."""

    async def handle(job: Job) -> None:
        with suppress(NotFound):
            await run(job_caller(job.tenant_id), ConversationId(job.subject_ids[0]), job)

    return JobHandler(handle)


def _index(container: Container) -> dict[str, JobHandler]:
    indexing = container.indexing

    table = {
        DATES_JOB: JobHandler(lambda job: indexing.resolve_dates(job_caller(job.tenant_id), turn_ids=job.subject_ids)),
        DROP_JOB: JobHandler(lambda job: container.spaces.run_drop(job.subject_ids)),
    }
    for runtime in container.index.spaces.runtimes.values():
        if runtime.embedder is not None:
            table[VECTORS_JOB] = JobHandler(
                lambda job: indexing.make_vectors(job_caller(job.tenant_id), turn_ids=job.subject_ids)
            )
            table |= space_job_handlers(container, runtime)
    return table


def _facts(container: Container) -> dict[str, JobHandler]:
    facts = container.facts
    table = {
        FACTS_AGAIN_JOB: _for_conversation(lambda caller, id_, _: facts.extractor.read_again(caller, id_)),
        FACTS_JOB: _for_conversation(lambda caller, id_, job: facts.extractor.run(caller, id_, attempt=job.attempts)),
        WITHDRAW_JOB: JobHandler(
            lambda job: facts.withdraw_superseded(job_caller(job.tenant_id), turn_ids=job.subject_ids)
        ),
    }
    if container.embedder is not None:
        table[FACT_VECTORS_JOB] = JobHandler(
            lambda job: facts.make_vectors(job_caller(job.tenant_id), fact_ids=job.subject_ids)
        )
    return table


def _summaries(container: Container) -> dict[str, JobHandler]:
    compactor = container.compactor
    table = {
        COMPACT_JOB: _for_conversation(lambda caller, id_, job: compactor.run(caller, id_, attempt=job.attempts)),
        COMPACT_EARLY_JOB: _for_conversation(lambda caller, id_, _: container.lifecycle.compact_early(caller, id_)),
        TRASH_JOB: _for_conversation(lambda caller, id_, _: container.trash.change_entries(caller, id_)),
        RETAIN_JOB: _for_conversation(lambda caller, id_, _: container.governance.retain(caller, id_)),
    }
    if container.chat is not None:
        every_s = container.settings.jobs.summary_refresh_interval_s
        table[TITLE_JOB] = _for_conversation(lambda caller, id_, _: container.title_writer.run(caller, id_))
        table[REFRESH_JOB] = JobHandler(lambda _: compactor.refresh(), every_s=every_s, at_start=True)
    return table


def space_job_handlers(container: Container, runtime: EmbeddingSpaceRuntime) -> Mapping[str, JobHandler]:
    """Return the handlers that fill one embedding space."""
    indexing, backfill = container.indexing, runtime.backfill

    async def fill(job: Job) -> None:
        if await container.index.spaces.needs_vectors_now(runtime):
            after = job.subject_ids[0] if job.subject_ids else None
            await indexing.fill(job_caller(job.tenant_id), backfill, after=after)

    async def make_new(job: Job) -> None:
        if await container.index.spaces.needs_vectors_now(runtime):
            await indexing.make_new(job_caller(job.tenant_id), backfill, entry_ids=job.subject_ids)

    return {
        backfill.fill_kind: JobHandler(fill),
        backfill.new_entries_kind: JobHandler(make_new),
        backfill.plan_kind: JobHandler(
            lambda _: container.index.spaces.plan(runtime),
            every_s=_SWEEPS_PER_PLAN * container.settings.jobs.sweep_interval_s,
            at_start=True,
        ),
    }


def make_worker(container: Container, *, only: Mapping[str, JobHandler] | None = None) -> Worker:
    """Return a worker for all kinds of this process, or for some kinds only."""
    settings = container.settings
    table = job_handlers(container) if only is None else only
    return Worker(container.queue, table, settings=settings.jobs, grace_s=settings.server.graceful_shutdown_s)
