"""Administration of embedding spaces for operators: add, fill, switch, roll back, drop.

Invariants: one row names the searched space, and a switch is one update of it. A space that was searched is maintained
until it is dropped, so the roll-back is the same update. The searched space is never dropped. Changes exclude each
other. Every request may be repeated, and interrupted work continues.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.core.database.transactions import Database, Transaction
from app.core.errors import Conflict, NotFound
from app.core.jobs import INSTALLATION, JobQueue, NewJob
from app.core.telemetry import get_logger
from app.index.schemas import DROP_JOB, EmbeddingSpace, EmbeddingSpaces, SpaceAdd, SpaceState, SpaceSwitch
from app.index.spaces import store as space_store
from app.index.spaces.runtime import EmbeddingSpaceRegistry, EmbeddingSpaceRuntime
from app.index.spaces.store import SearchedSpace, SpaceCounts, SpaceRow
from app.tenancy.schemas import Caller, Scope

# the share of entries that may lack vectors at a switch, because estimates from a sample are not exact
_SMALL_SHARE = 0.001
_DROP_AFTER_S = 3.0
_DROP_AT_ONCE = 1000
_DROP_FOR_S = 20.0
_REST = 1.0  # times the duration of a step
_JOBS = "index.backfill_"
_FIRST = (UUID(int=0), UUID(int=0))

JobCounts: TypeAlias = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class _SpaceCatalogue:
    """All spaces, and the choice of the searched one."""

    rows: Sequence[SpaceRow]
    choice: SearchedSpace

    def row(self, space_id: int) -> SpaceRow:
        """Return a space by its id. Raises NotFound."""
        row = next((row for row in self.rows if row.id == space_id), None)
        if row is None:
            raise NotFound("not_found", "There is no such embedding space.")
        return row


class SpaceAdministration:
    """Public API of embedding spaces.

    `announce` notifies every process that they changed. `drop_index` drops a space's vector index as the owner.
    `base_urls` are the addresses of this process's embedders, by space.
    """

    def __init__(
        self,
        ops: Database,
        *,
        spaces: EmbeddingSpaceRegistry,
        jobs: JobQueue,
        announce: Callable[[], None],
        drop_index: Callable[[int], Awaitable[None]],
        base_urls: Mapping[int, str],
    ) -> None:
        self._ops = ops
        self._spaces = spaces
        self._jobs = jobs
        self._announce = announce
        self._drop_index = drop_index
        self._base_urls = base_urls
        self._log = get_logger()

    async def list_spaces(self, caller: Caller) -> EmbeddingSpaces:
        """List all spaces, the newest first, with how far each is filled (an estimate in a large installation)."""
        caller.require(Scope.OPERATOR)
        async with self._ops.across_tenants() as tx:
            catalogue = await _read(tx)
        return EmbeddingSpaces(
            object="list", data=await self._views(catalogue, catalogue.rows), has_more=False, next_cursor=None
        )

    async def space(self, caller: Caller, space_id: int) -> EmbeddingSpace:
        """Return one space. Raises NotFound."""
        caller.require(Scope.OPERATOR)
        async with self._ops.across_tenants() as tx:
            catalogue = await _read(tx)
        (view,) = await self._views(catalogue, [catalogue.row(space_id)])
        return view

    async def add(self, caller: Caller, *, body: SpaceAdd) -> EmbeddingSpace:
        """Start to fill the space of the settings' second embedder. From now on the database names the searched space.

        Raises Conflict `space_not_configured` if no setting names such a space, `space_dropping` if it is being
        deleted.
        """
        caller.require(Scope.OPERATOR)
        await self._spaces.follow()
        runtime = self._configured(body)
        async with self._ops.across_tenants() as tx:
            await space_store.lock_spaces(tx)
            catalogue = await _read(tx)
            row = catalogue.row(runtime.space.id)
            if row.state == SpaceState.DROPPING:
                raise Conflict("space_dropping", "The vectors of this space are being deleted; wait until it is idle.")
            if catalogue.choice.space_id is None:
                await space_store.set_searched_space(
                    tx, space_id=self._spaces.current.space.id or None, previous_id=None
                )
            if row.state == SpaceState.IDLE and self._searched(catalogue) != row.id:
                await self._set(tx, row.id, SpaceState.PREPARING)
            record(tx, caller, Action.SPACE_ADD, ObjectKind.SPACE, row.id)
            tx.after_commit.append(self._announce)
        await self._spaces.follow()
        await self._jobs.ensure_periodic([runtime.backfill.plan_kind], at_once=[runtime.backfill.plan_kind])
        self._log.info("space.added", space_id=runtime.space.id, space=runtime.name)
        return await self.space(caller, runtime.space.id)

    async def switch(self, caller: Caller, space_id: int, *, body: SpaceSwitch) -> EmbeddingSpace:
        """Search another space from now on: in this process at once, in every other process within a second.

        Raises NotFound, Conflict `space_not_configured`, `space_dropping`, and `space_incomplete` if too many entries
        have no vectors in it, unless `force`.
        """
        caller.require(Scope.OPERATOR)
        return await self._switch_to(caller, space_id, force=body.force)

    async def roll_back(self, caller: Caller) -> EmbeddingSpace:
        """Search the previously searched space again.

        Raises Conflict `space_no_previous` if there is none, else like `switch` without force.
        """
        caller.require(Scope.OPERATOR)
        async with self._ops.across_tenants() as tx:
            previous = (await space_store.read_searched_space(tx)).previous_id
        if previous is None:
            raise Conflict("space_no_previous", "No other space was searched before, or it has been dropped.")
        return await self._switch_to(caller, previous, force=False)

    async def drop(self, caller: Caller, space_id: int) -> EmbeddingSpace:
        """Delete a space's vectors and vector index in the background. Raises NotFound, Conflict `space_searched`."""
        caller.require(Scope.OPERATOR)
        async with self._ops.across_tenants() as tx:
            await space_store.lock_spaces(tx)
            catalogue = await _read(tx)
            row = catalogue.row(space_id)
            if space_id in {self._searched(catalogue), self._spaces.current.space.id}:
                raise Conflict("space_searched", "This space is searched: switch to another space first.")
            await self._set(tx, row.id, SpaceState.DROPPING)
            record(tx, caller, Action.SPACE_DROP, ObjectKind.SPACE, row.id)
            if catalogue.choice.previous_id == space_id:
                await space_store.set_searched_space(tx, space_id=catalogue.choice.space_id, previous_id=None)
            # delayed until every process knows and has stopped making vectors there
            await self._jobs.enqueue(tx, INSTALLATION, [_drop_job(space_id, None, delay_s=_DROP_AFTER_S)])
            tx.after_commit.append(self._announce)
        await self._spaces.follow()
        self._log.info("space.dropping", space_id=space_id)
        return await self.space(caller, space_id)

    async def run_drop(self, subjects: Sequence[UUID]) -> None:
        """Delete a space's vectors for a limited time, and enqueue the continuation."""
        space_id = subjects[0].int
        after: tuple[UUID, UUID] | None = (subjects[1], subjects[2]) if len(subjects) > 1 else None
        if not await self._is_dropping(space_id):
            return
        if after is None:  # drop the index first, so that the deleted vectors need not be removed from it
            await self._drop_index(space_id)
            after = _FIRST
        until = time.monotonic() + _DROP_FOR_S
        count = 0
        while after is not None:
            began = time.monotonic()
            async with self._ops.across_tenants() as tx:
                step = await space_store.drop_vectors(tx, space_id, after=after, limit=_DROP_AT_ONCE)
                if step.after is not None and began > until:
                    await self._jobs.enqueue(tx, INSTALLATION, [_drop_job(space_id, step.after)])
                    return
                if step.after is None:
                    await space_store.set_state(tx, space_id, SpaceState.IDLE)
                    tx.after_commit.append(self._announce)
            count += step.vectors
            after = step.after
            if after is not None:
                await asyncio.sleep(_REST * (time.monotonic() - began))
        self._log.info("space.dropped", space_id=space_id, count=count)

    async def _is_dropping(self, space_id: int) -> bool:
        async with self._ops.across_tenants() as tx:
            catalogue = await _read(tx)
        return any(row.id == space_id and row.state == SpaceState.DROPPING for row in catalogue.rows)

    async def _require_complete(self, tx: Transaction, runtime: EmbeddingSpaceRuntime) -> None:
        lacking, entries = await space_store.count_lacking(
            tx, runtime.space.id, job_kind=runtime.backfill.new_entries_kind
        )
        if lacking > _SMALL_SHARE * entries:
            raise Conflict(
                "space_incomplete",
                f"About {lacking} of {entries} entries have no vectors in this space yet. A switch with force"
                " succeeds anyway; then they are found by words until they have vectors.",
            )

    async def _switch_to(self, caller: Caller, space_id: int, *, force: bool) -> EmbeddingSpace:
        async with self._ops.across_tenants() as tx:
            await space_store.lock_spaces(tx)
            catalogue = await _read(tx)
            row, searched = catalogue.row(space_id), self._searched(catalogue)
            runtime = self._spaces.runtimes.get(space_id)
            if runtime is None:
                raise _unconfigured()
            if row.state == SpaceState.DROPPING:
                raise Conflict("space_dropping", "The vectors of this space are being deleted; wait until it is idle.")
            if searched != space_id:
                if not force:
                    await self._require_complete(tx, runtime)
                # both are maintained, so that a roll-back is possible
                for kept_id in (space_id, searched):
                    if kept_id:
                        await self._set(tx, kept_id, SpaceState.KEPT)
                await space_store.set_searched_space(tx, space_id=space_id, previous_id=searched)
            elif catalogue.choice.space_id is None:
                await space_store.set_searched_space(tx, space_id=space_id, previous_id=None)
            record(tx, caller, Action.SPACE_SWITCH, ObjectKind.SPACE, space_id)
            tx.after_commit.append(self._announce)
        await self._spaces.follow()
        kinds = [
            runtime.backfill.plan_kind
            for runtime in self._spaces.runtimes.values()
            if self._spaces.needs_vectors(runtime)
        ]
        await self._jobs.ensure_periodic(kinds, at_once=kinds)
        self._log.info("space.switched", space_id=space_id)
        return await self.space(caller, space_id)

    async def _set(self, tx: Transaction, space_id: int, state: SpaceState) -> None:
        await space_store.set_state(tx, space_id, state, base_url=self._base_urls.get(space_id))

    def _searched(self, catalogue: _SpaceCatalogue) -> int | None:
        """Return the space that the installation searches: the chosen one, else the first of the settings."""
        return catalogue.choice.space_id or self._spaces.current.space.id or None

    def _configured(self, body: SpaceAdd) -> EmbeddingSpaceRuntime:
        """Return the space that the body names: without members, the configured one that is not searched."""
        wanted = body.model_dump(exclude_none=True)
        for runtime in self._spaces.runtimes.values():
            if runtime.embedder is None or (not wanted and runtime is self._spaces.current):
                continue
            name = runtime.embedder.space
            members = {"provider": name.provider, "model": name.model, "dimensions": name.dimensions}
            if wanted.items() <= members.items():
                return runtime
        raise _unconfigured()

    async def _views(self, catalogue: _SpaceCatalogue, rows: Sequence[SpaceRow]) -> list[EmbeddingSpace]:
        ids = [row.id for row in rows]
        async with self._ops.across_tenants() as tx:
            figures = await space_store.count_contents(tx, ids)
            indexed = await space_store.list_indexed(tx, ids)
        jobs, errors = await self._jobs.count_by_kind(_JOBS), await self._jobs.errors_by_kind(_JOBS)
        return [
            self._view(
                catalogue,
                row,
                figures.get(row.id, SpaceCounts(0, 0, 0, exact=True)),
                jobs,
                errors,
                indexed=row.id in indexed,
            )
            for row in rows
        ]

    def _view(
        self,
        catalogue: _SpaceCatalogue,
        row: SpaceRow,
        figures: SpaceCounts,
        jobs: JobCounts,
        errors: Mapping[str, str],
        *,
        indexed: bool,
    ) -> EmbeddingSpace:
        searched = self._searched(catalogue) == row.id
        kinds = [f"{_JOBS}{part}{row.id}" for part in ("", "new_")]
        jobs_of_kinds = [jobs.get(kind, {}) for kind in kinds]
        failed = [errors[kind] for kind in (*kinds, f"{_JOBS}plan_{row.id}") if kind in errors]
        return EmbeddingSpace(
            id=row.id,
            provider=row.provider,
            model=row.model,
            dimensions=row.dimensions,
            base_url=row.base_url,
            state=SpaceState.SEARCHED if searched else SpaceState(row.state),
            configured=row.id in self._spaces.runtimes,
            searched_here=self._spaces.current.space.id == row.id,
            previous=catalogue.choice.previous_id == row.id,
            entries=figures.entries,
            covered=figures.covered,
            vectors=figures.vectors,
            share=round(figures.covered / figures.entries, 4) if figures.entries else 1.0,
            exact=figures.exact,
            index_ready=indexed,
            jobs_waiting=sum(states.get("queued", 0) for states in jobs_of_kinds),
            jobs_parked=sum(states.get("parked", 0) for states in jobs_of_kinds),
            jobs_error=failed[0] if failed else None,
            created_at=row.created_at,
        )


async def _read(tx: Transaction) -> _SpaceCatalogue:
    return _SpaceCatalogue(await space_store.list_spaces(tx), await space_store.read_searched_space(tx))


def _drop_job(space_id: int, after: tuple[UUID, UUID] | None, *, delay_s: float = 0.0) -> NewJob:
    subjects = [UUID(int=space_id), *(after or ())]
    return NewJob(DROP_JOB, subject_ids=subjects, dedupe_key=f"drop_{space_id}", priority=-1, delay_s=delay_s)


def _unconfigured() -> Conflict:
    return Conflict(
        "space_not_configured",
        "This process has no settings by which to embed for this space: TURNKEEP_EMBEDDER and what belongs to it, or"
        " TURNKEEP_NEXT_EMBEDDER, must name its provider, model and dimensions.",
    )
