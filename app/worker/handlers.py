"""The handler of each kind of job. Each is idempotent."""

from collections.abc import Mapping
from contextlib import suppress

from app.agents.lifecycle.service import COMPACT_EARLY_JOB
from app.container import Container
from app.context.service import COMPACT_JOB, TITLE_JOB
from app.conversations.service import RETAIN_JOB
from app.core.errors import NotFound
from app.core.ids import ConversationId
from app.core.jobs import Job
from app.index.schemas import DATES_JOB, DROP_JOB, VECTORS_JOB
from app.index.service import EmbeddingSpaceRuntime
from app.memory.service import FACTS_JOB, WITHDRAW_JOB
from app.memory.service import VECTORS_JOB as FACT_VECTORS_JOB
from app.tenancy.schemas import job_caller
from app.worker.runner import JobHandler, Worker

SWEEP_JOB = "installation.sweep"
CONVERSATIONS_JOB = "conversations.sweep"
LEASES_JOB = "streams.sweep"
FACTS_SWEEP_JOB = "facts.sweep"
REFRESH_JOB = "summaries.refresh"
_CANCELLED_KEPT_S = 7 * 86_400.0
_SWEEP_LIMIT = 10_000


def job_handlers(container: Container) -> Mapping[str, JobHandler]:
    """Return the handlers of all kinds that this process can run. Other kinds are left to other workers."""
    return {**_housekeeping(container), **_index(container), **_summaries(container), **_facts(container)}


def _housekeeping(container: Container) -> dict[str, JobHandler]:
    """Return the periodic jobs that remove expired data."""
    settings = container.settings

    async def sweep(_job: Job) -> None:
        await container.tenancy.idempotency.delete_expired()
        await container.governance.sweep_memories()
        await container.queue.delete_cancelled(older_than_s=_CANCELLED_KEPT_S, limit=_SWEEP_LIMIT)

    async def sweep_conversations(_job: Job) -> None:
        await container.governance.purger.sweep()

    async def end_leases(_job: Job) -> None:
        await container.conversations.streams.abort_expired()

    return {
        SWEEP_JOB: JobHandler(sweep, every_s=settings.jobs.sweep_interval_s),
        CONVERSATIONS_JOB: JobHandler(sweep_conversations, every_s=settings.jobs.sweep_interval_s),
        LEASES_JOB: JobHandler(end_leases, every_s=settings.streams.stream_sweep_s),
    }


def _index(container: Container) -> dict[str, JobHandler]:
    indexing = container.conversations.indexing

    async def make_vectors(job: Job) -> None:
        await indexing.make_vectors(job_caller(job.tenant_id), turn_ids=job.subject_ids)

    async def drop_space(job: Job) -> None:
        await container.spaces.run_drop(job.subject_ids)

    async def resolve_dates(job: Job) -> None:
        await indexing.resolve_dates(job_caller(job.tenant_id), turn_ids=job.subject_ids)

    table = {DATES_JOB: JobHandler(resolve_dates), DROP_JOB: JobHandler(drop_space)}
    for runtime in container.index.spaces.runtimes.values():
        if runtime.embedder is not None:
            table[VECTORS_JOB] = JobHandler(make_vectors)
            table |= space_job_handlers(container, runtime)
    return table


def _facts(container: Container) -> dict[str, JobHandler]:
    async def extract_facts(job: Job) -> None:
        conversation_id = ConversationId(job.subject_ids[0])
        with suppress(NotFound):  # deleted meanwhile
            await container.facts.extractor.run(job_caller(job.tenant_id), conversation_id, attempt=job.attempts)

    async def withdraw_facts(job: Job) -> None:
        await container.facts.withdraw_superseded(job_caller(job.tenant_id), turn_ids=job.subject_ids)

    async def make_fact_vectors(job: Job) -> None:
        await container.facts.make_vectors(job_caller(job.tenant_id), fact_ids=job.subject_ids)

    async def sweep_facts(_job: Job) -> None:
        await container.facts.sweep()

    table = {
        FACTS_JOB: JobHandler(extract_facts),
        WITHDRAW_JOB: JobHandler(withdraw_facts),
        FACTS_SWEEP_JOB: JobHandler(sweep_facts, every_s=container.settings.jobs.sweep_interval_s),
    }
    if container.embedder is not None:
        table[FACT_VECTORS_JOB] = JobHandler(make_fact_vectors)
    return table


def _summaries(container: Container) -> dict[str, JobHandler]:
    async def compact(job: Job) -> None:
        conversation_id = ConversationId(job.subject_ids[0])
        with suppress(NotFound):  # deleted meanwhile
            await container.compactor.run(job_caller(job.tenant_id), conversation_id, attempt=job.attempts)

    async def refresh(_job: Job) -> None:
        await container.compactor.refresh()

    async def retain(job: Job) -> None:
        with suppress(NotFound):  # deleted meanwhile
            await container.governance.retain(job_caller(job.tenant_id), ConversationId(job.subject_ids[0]))

    async def compact_early(job: Job) -> None:
        with suppress(NotFound):  # deleted meanwhile
            await container.lifecycle.compact_early(job_caller(job.tenant_id), ConversationId(job.subject_ids[0]))

    async def write_title(job: Job) -> None:
        with suppress(NotFound):  # deleted meanwhile
            await container.title_writer.run(job_caller(job.tenant_id), ConversationId(job.subject_ids[0]))

    table = {
        COMPACT_JOB: JobHandler(compact),
        COMPACT_EARLY_JOB: JobHandler(compact_early),
        RETAIN_JOB: JobHandler(retain),
    }
    if container.chat is not None:
        every_s = container.settings.jobs.summary_refresh_interval_s
        table[TITLE_JOB] = JobHandler(write_title)
        table[REFRESH_JOB] = JobHandler(refresh, every_s=every_s, at_start=True)
    return table


def space_job_handlers(container: Container, runtime: EmbeddingSpaceRuntime) -> Mapping[str, JobHandler]:
    """Return the handlers that fill one embedding space."""
    indexing, backfill = container.conversations.indexing, runtime.backfill

    async def fill(job: Job) -> None:
        if await container.index.spaces.needs_vectors_now(runtime):
            after = job.subject_ids[0] if job.subject_ids else None
            await indexing.fill(job_caller(job.tenant_id), backfill, after=after)

    async def make_new(job: Job) -> None:
        if await container.index.spaces.needs_vectors_now(runtime):
            await indexing.make_new(job_caller(job.tenant_id), backfill, entry_ids=job.subject_ids)

    async def plan(_job: Job) -> None:
        await container.index.spaces.plan(runtime)

    return {
        backfill.fill_kind: JobHandler(fill),
        backfill.new_entries_kind: JobHandler(make_new),
        backfill.plan_kind: JobHandler(plan, every_s=container.settings.jobs.backfill_interval_s, at_start=True),
    }


def make_worker(container: Container, *, only: Mapping[str, JobHandler] | None = None) -> Worker:
    """Return a worker for all kinds of this process, or for some kinds only."""
    settings = container.settings
    table = job_handlers(container) if only is None else only
    return Worker(container.queue, table, settings=settings.jobs, grace_s=settings.server.graceful_shutdown_s)
