"""The embedding spaces that this process can embed for: the searched one, and the maintained ones.

One database row names the space that the installation searches, and each process follows it. The bus announces changes.
A process with several spaces also polls every second. A search or an append takes the space once, at its start, so a
switch interrupts no request and needs no extra read. While the database does not answer, the last known state applies.

A process that cannot embed for the space of that row searches the first one of its settings, and logs that.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError
from app.core.telemetry import get_logger
from app.index.backfill.vector_backfill import VectorBackfill
from app.index.schemas import SpaceState
from app.index.search.ann_maintenance import AnnMaintenance
from app.index.search.ann_search import Space
from app.index.spaces import store as space_store
from app.providers.schemas import Embedder, EmbeddingSpaceName

_FOLLOW_S = 1.0
# with one space there is nothing to switch to: polling only detects that the installation searches another one
_FOLLOW_ALONE_S = 30.0
_MAINTAINED = (SpaceState.PREPARING, SpaceState.KEPT)


@dataclass(frozen=True, slots=True)
class EmbeddingSpaceRuntime:
    """One embedding space of this process: its embedder, its vector index, and the backfill of its vectors.

    Without an embedder it is the empty space with id 0.
    """

    embedder: Embedder | None
    ann: AnnMaintenance
    backfill: VectorBackfill

    @property
    def space(self) -> Space:
        """Return the space."""
        return self.ann.space

    @property
    def name(self) -> str | None:
        """Return the space as `provider/model/dimensions`; None without an embedder."""
        if self.embedder is None:
            return None
        space = self.embedder.space
        return f"{space.provider}/{space.model}/{space.dimensions}"


@dataclass(frozen=True, slots=True)
class ChosenSpace:
    """The space that the installation searches, and the address of its endpoint when it was chosen, if it has one."""

    name: EmbeddingSpaceName
    base_url: str | None


async def read_chosen_space(tx: Transaction) -> ChosenSpace | None:
    """Return the space that the installation searches; None if none was chosen (ops role)."""
    space_id = (await space_store.read_searched_space(tx)).space_id
    for row in await space_store.list_spaces(tx):
        if row.id == space_id:
            return ChosenSpace(EmbeddingSpaceName(row.provider, row.model, row.dimensions), row.base_url)
    return None


async def ensure_space(ops: Database, embedder: Embedder | None) -> Space:
    """Return the embedder's space, created at first use; id 0 without an embedder."""
    if embedder is None:
        return Space(0, 0)
    space = embedder.space
    async with ops.across_tenants() as tx:
        space_id = await space_store.ensure_space(
            tx, provider=space.provider, model=space.model, dimensions=space.dimensions
        )
    return Space(space_id, space.dimensions)


class EmbeddingSpaceRegistry:
    """The embedding spaces of this process. The first is that of the embedder in the settings."""

    def __init__(self, ops: Database, runtimes: Sequence[EmbeddingSpaceRuntime]) -> None:
        self.runtimes: Mapping[int, EmbeddingSpaceRuntime] = {runtime.space.id: runtime for runtime in runtimes}
        self.first = runtimes[0]
        self.current = self.first
        """The space that is searched, and for which appends make vectors at once."""
        self.chosen: int | None = None
        """The id of the space that the installation searches, if one was chosen."""
        self._ops = ops
        self._maintained: Sequence[EmbeddingSpaceRuntime] = ()
        self._wake = asyncio.Event()
        self._following = asyncio.Lock()
        self._log = get_logger()

    @property
    def cannot_embed_for_chosen(self) -> bool:
        """Return whether the installation searches a space that this process cannot embed for."""
        return self.chosen is not None and self.chosen not in self.runtimes

    def others(self, space_id: int) -> list[EmbeddingSpaceRuntime]:
        """Return the spaces other than `space_id` that need the vectors of appended entries."""
        return [runtime for runtime in self.wanted() if runtime.space.id != space_id]

    def wanted(self) -> list[EmbeddingSpaceRuntime]:
        """Return the spaces that need vectors: the searched one, and those being filled or maintained."""
        return [runtime for runtime in (self.current, *self._maintained) if runtime.embedder]

    def needs_vectors(self, runtime: EmbeddingSpaceRuntime) -> bool:
        """Return whether a space needs vectors: it is searched, being filled, or maintained for a roll-back."""
        return runtime is self.current or runtime in self._maintained

    async def needs_vectors_now(self, runtime: EmbeddingSpaceRuntime) -> bool:
        """Return whether a space needs vectors; read the database first if the bus has not announced it yet."""
        if not self.needs_vectors(runtime):
            await self.follow()
        return self.needs_vectors(runtime)

    def still_needs(self, backfill: VectorBackfill) -> bool:
        """Return whether these vectors are still needed."""
        return any(runtime.backfill is backfill for runtime in (self.current, *self._maintained))

    def searches(self, backfill: VectorBackfill) -> bool:
        """Return whether these vectors are the searched ones."""
        return backfill is self.current.backfill

    async def plan(self, runtime: EmbeddingSpaceRuntime) -> int:
        """Enqueue the jobs for a space's missing vectors, if it needs them; return the number of tenants.

        A space that is not searched yet gets its vector index once it lacks nothing: one build over all vectors costs a
        fraction of inserting them one by one. Raises like `VectorBackfill.plan`.
        """
        if runtime.embedder is None or not await self.needs_vectors_now(runtime):
            return 0
        lacking = await runtime.backfill.plan(searched=runtime is self.current)
        if not lacking and runtime is not self.current:
            async with self._ops.across_tenants() as tx:
                large = await space_store.list_large_tenants(tx, entries=runtime.ann.exact_entries)
                await runtime.ann.schedule(tx, large)
        return lacking

    def wake(self) -> None:
        """Poll now, because the rows have changed."""
        self._wake.set()

    async def follow(self) -> None:
        """Read the searched and the maintained spaces. Raises Unavailable without a database."""
        async with self._following:
            async with self._ops.across_tenants() as tx:
                chosen = (await space_store.read_searched_space(tx)).space_id
                states = {row.id: row.state for row in await space_store.list_spaces(tx)}
            self._take(chosen, states)

    def _take(self, chosen: int | None, states: Mapping[int, str]) -> None:
        before, missed = self.current, self.cannot_embed_for_chosen
        self.chosen = chosen
        self.current = self.first if chosen is None else self.runtimes.get(chosen, self.first)
        self._maintained = tuple(
            runtime
            for runtime in self.runtimes.values()
            if runtime is not self.current and states.get(runtime.space.id) in _MAINTAINED
        )
        if self.current is not before:
            self._log.info("space.searched", space=self.current.name)
        if self.cannot_embed_for_chosen and not missed:
            self._log.warning("space.not_configured", space_id=chosen, space=self.current.name)

    async def follow_forever(self) -> None:
        """Read the rows whenever the bus announces a change, and at intervals."""
        every_s = _FOLLOW_S if len(self.runtimes) > 1 else _FOLLOW_ALONE_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.follow()
            except AppError as error:
                self._log.warning("space.follow_failed", code=error.code)
