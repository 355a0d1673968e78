"""Backfill of vectors after the append, in one embedding space.

An entry lacks vectors because its embedder failed, because there were too many at once, or because it was stored with
another embedder or none. The first two cases have a job, enqueued with the entry. For the third, `plan` walks over the
entries of all tenants and enqueues one job for each tenant that lacks vectors. That job makes some hundred and enqueues
its continuation, so that no tenant occupies a worker for long. `plan` also requeues jobs that were parked while the
embedder was unavailable.

A backfill does not know whether its space is the searched one: each space has its own. The job kinds contain the space,
so that a worker with another embedder does not take them. In a maintained space that is not searched, an append
enqueues a job for its entries too.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from app.core.database.transactions import Database, FloatVector, Transaction
from app.core.errors import AppError, Unavailable
from app.core.jobs import JobQueue, NewJob
from app.core.telemetry import get_logger
from app.core.threads import map_in_threads
from app.index.backfill import store as backfill_store
from app.index.backfill.store import BackfillStep, LackingSources
from app.index.schemas import VECTORS_JOB, EntryKind
from app.index.search.ann_search import Space
from app.index.write import store
from app.index.write.batch_analyser import MAX_VECTORS_PER_ENTRY
from app.index.write.key_store import find_keys
from app.providers.schemas import Embedder
from app.tenancy.schemas import Caller
from app.tenancy.service import Tenancy

VectorMaker: TypeAlias = Callable[[Caller, "VectorBackfill", Sequence[UUID]], Awaitable[int]]
"""A function that makes and stores the vectors of objects of its kind, by their ids, and returns their number.

Raises embedder errors.
"""

_KINDS: Final = "index.backfill_"
_PASSING: Final = (
    "embedder_closed",
    "embedder_failed",
    "embedder_invalid",
    "embedder_overloaded",
    "embedder_rate_limited",
    "embedder_unavailable",
    "database_unavailable",
    "resource_busy",
    "job_timeout",
)
"""Errors that end by themselves or by an operator's action.

Jobs that crash their worker or fail by a bug stay parked.
"""
_EXAMINE = 5_000
_AT_ONCE = 200
_REVIVE = 10_000
_UNCLAIMED_S = 86_400.0
_FIRST = (UUID(int=0), UUID(int=0))
# waiting requests, and jobs with their own due time, have a higher priority
_PRIORITY = -1
_AWAITED_PRIORITY = 1


class VectorBackfill:
    """Backfill of vectors in one space, separate from the append."""

    def __init__(
        self, ops: Database, embedder: Embedder | None, *, space: Space, jobs: JobQueue, tenancy: Tenancy
    ) -> None:
        self._ops = ops
        self._embedder = embedder
        self._space = space
        self._jobs = jobs
        self._quotas = tenancy.quotas
        self._log = get_logger()

    @property
    def space(self) -> Space:
        """Return the space of the vectors."""
        return self._space

    @property
    def new_entries_kind(self) -> str:
        """Return the kind of the jobs for entries that were stored with vectors of another space."""
        return f"{_KINDS}new_{self._space.id}"

    @property
    def plan_kind(self) -> str:
        """Return the kind of the periodic job that runs `plan`."""
        return f"{_KINDS}plan_{self._space.id}"

    @property
    def fill_kind(self) -> str:
        """Return the kind of the jobs for a tenant's missing vectors. The subject is the entry to continue after."""
        return f"{_KINDS}{self._space.id}"

    async def plan(self, *, searched: bool = True) -> int:
        """Enqueue a job for every tenant that lacks vectors; return the number.

        `searched`: the space is the searched one, so jobs may have been parked with their entries. Raises embedder
        errors and then enqueues nothing, because failing jobs would only use up their attempts.
        """
        asked = False
        tenants = 0
        after: tuple[UUID, UUID] | None = _FIRST
        while after is not None:
            async with self._ops.across_tenants() as tx:
                tour = await backfill_store.find_lacking_tenants(
                    tx, self._space.id, after=after, examine=_EXAMINE, job_kind=self.fill_kind
                )
            if tour.tenants and not asked:
                asked = await self._ask()
            async with self._ops.across_tenants() as tx:
                for tenant_id in tour.tenants:
                    await self._jobs.enqueue(tx, tenant_id, [self._fill_job(None)])
            tenants += len(tour.tenants)
            after = tour.after
        await self._requeue_parked(asked=asked, searched=searched)
        await self._jobs.delete_unclaimed(
            _KINDS,
            but=[self.plan_kind, self.fill_kind, self.new_entries_kind],
            older_than_s=_UNCLAIMED_S,
            limit=_REVIVE,
        )
        return tenants

    async def _requeue_parked(self, *, asked: bool, searched: bool) -> None:
        kinds = [self.fill_kind, self.new_entries_kind, *([VECTORS_JOB] if searched else [])]
        if await self._jobs.has_parked(kinds, codes=_PASSING):
            if not asked:
                await self._ask()
            count = await self._jobs.requeue_parked(kinds, codes=_PASSING, limit=_REVIVE)
            self._log.info("vectors.revived", count=count)

    async def _ask(self) -> bool:
        """Return True if the embedder works, else raise its error."""
        if self._embedder is not None:
            await self._embedder.embed(["probe"], purpose="backlog")
        return True

    def _fill_job(self, after: UUID | None) -> NewJob:
        subjects = () if after is None else (after,)
        return NewJob(self.fill_kind, subject_ids=subjects, dedupe_key="fill", priority=_PRIORITY)

    async def find_lacking(self, caller: Caller, tx: Transaction, *, after: UUID | None) -> BackfillStep:
        """Return the next entries of a tenant that lack vectors, and the entry to continue after."""
        return await backfill_store.find_lacking(
            tx, caller.tenant_id, self._space.id, after=after, examine=_EXAMINE, limit=_AT_ONCE
        )

    async def lacking_of(self, caller: Caller, tx: Transaction, *, entry_ids: Sequence[UUID]) -> LackingSources:
        """Return the objects of those entries that lack vectors here."""
        return await backfill_store.find_lacking_of(tx, caller.tenant_id, self._space.id, entry_ids)

    async def enqueue_continuation(self, caller: Caller, tx: Transaction, *, after: UUID) -> None:
        """Enqueue the job that continues after an entry."""
        await self._jobs.enqueue(tx, caller.tenant_id, [self._fill_job(after)])

    async def waiting_turns(
        self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID], limit: int
    ) -> list[UUID]:
        """Return up to `limit` turns of conversations that wait for vectors in the searched space."""
        return await backfill_store.list_waiting_turns(tx, caller.tenant_id, conversation_ids, limit=limit)

    async def hasten(self, caller: Caller, *, turn_ids: Sequence[UUID]) -> None:
        """Let the jobs that make vectors of these turns go before others: a caller waits for them."""
        async with self._ops.across_tenants() as tx:
            await backfill_store.raise_priority(tx, caller.tenant_id, turn_ids, priority=_AWAITED_PRIORITY)

    def split(self, text: str) -> Sequence[str]:
        """Split a text into pieces, each of which gets a vector. Blocking."""
        if self._embedder is None or not text.strip():
            return ()
        return self._embedder.split(text, max_pieces=MAX_VECTORS_PER_ENTRY)

    async def split_each(self, texts: Mapping[UUID, str]) -> dict[UUID, Sequence[str]]:
        """Split texts into pieces, by entry."""
        return dict(zip(texts, await map_in_threads(self.split, list(texts.values()), size=len), strict=True))

    async def embed(self, pieces: Sequence[Sequence[str]]) -> list[Sequence[FloatVector]]:
        """Embed the pieces of each text, in order. Raises embedder errors."""
        if self._embedder is None:
            raise Unavailable("embedder_unavailable", "There is no embedder in this process.")
        wanted = [piece for of_text in pieces for piece in of_text]
        vectors: list[FloatVector] = []
        for start in range(0, len(wanted), self._embedder.max_batch):
            vectors.extend(
                await self._embedder.embed(wanted[start : start + self._embedder.max_batch], purpose="backlog")
            )
        remaining = iter(vectors)
        return [[next(remaining) for _ in of_text] for of_text in pieces]

    async def embed_each(
        self, pieces: Mapping[UUID, Sequence[str]], refused: list[AppError]
    ) -> dict[UUID, Sequence[FloatVector]]:
        """Return the vectors by entry.

        A text that the embedder always refuses does not prevent the vectors of the others.

        The errors of refused texts are added to `refused`. Raises embedder errors.
        """
        try:
            return dict(zip(pieces, await self.embed(list(pieces.values())), strict=True))
        except AppError as error:
            if len(pieces) == 1 or not _may_be_caused_by_text(error):
                raise
        vectors: dict[UUID, Sequence[FloatVector]] = {}
        for entry_id, of_text in pieces.items():
            try:
                (vectors[entry_id],) = await self.embed([of_text])
            except AppError as error:
                if not _may_be_caused_by_text(error):
                    raise
                refused.append(error)
        if len(vectors) < len(pieces):
            self._log.warning("embedder.refused_texts", code=refused[-1].code, count=len(pieces) - len(vectors))
            if not vectors:  # no text could be embedded, so the texts are not the cause
                raise refused[-1]
        return vectors

    async def write(
        self,
        caller: Caller,
        tx: Transaction,
        *,
        kind: EntryKind,
        vectors: Mapping[UUID, Sequence[FloatVector]],
        searched: bool,
    ) -> None:
        """Store vectors by source, of one kind. The caller has locked the sources and found them unchanged.

        `searched`: the space is the searched one, whose vectors an entry may be waiting for.
        """
        keys = await find_keys(tx, caller.tenant_id, kind, list(vectors))
        vectors = {keys[source_id]: own for source_id, own in vectors.items() if source_id in keys}
        await store.insert_vectors(tx, caller.tenant_id, self._space.id, vectors)
        await backfill_store.record_vectors(tx, caller.tenant_id, list(vectors), searched=searched)
        if searched:  # a move to another space is the operator's
            self._quotas.count(tx, caller.tenant_id, vectors=sum(map(len, vectors.values())))


def _may_be_caused_by_text(error: AppError) -> bool:
    """Return whether the text may be the cause of the error, and not the embedder."""
    return not error.retryable or error.code == "embedder_invalid"
