"""The embedding spaces that this process can embed for: which one it searches, and which it keeps up to date.

One row of the database says which space the installation searches. Each process follows it: it is told by the bus, and
looks besides every second where it knows several spaces. A search or an append takes the space once, at its beginning,
and ends in it, so a switch in between costs nobody an answer; nothing is read for it on their way. While the database
does not answer, what was known last holds.

A process that cannot embed for the space of that row searches the one that its settings name first, and says so.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError
from app.core.telemetry import get_logger
from app.index.backfill.vector_backfill import LateVectors
from app.index.schemas import SpaceState
from app.index.search.ann_maintenance import AnnMaintenance
from app.index.search.ann_search import Space
from app.index.spaces import store as space_store
from app.providers.schemas import Embedder, EmbeddingSpaceName

_FOLLOW_S = 1.0
# with one space there is nothing to change to: looking only tells whether the installation searches another
_FOLLOW_ALONE_S = 30.0
_KEPT_UP = (SpaceState.PREPARING, SpaceState.KEPT)


@dataclass(frozen=True, slots=True)
class EmbeddingSpaceRuntime:
    """One embedding space of this process: what embeds for it, its vector index, its vectors made later.

    Without an embedder it is the space of none, of id 0.
    """

    embedder: Embedder | None
    tiers: AnnMaintenance
    late: LateVectors

    @property
    def space(self) -> Space:
        """The space."""
        return self.tiers.space

    @property
    def name(self) -> str | None:
        """The space as `provider/model/dimensions`; None without an embedder."""
        if self.embedder is None:
            return None
        space = self.embedder.space
        return f"{space.provider}/{space.model}/{space.dimensions}"


@dataclass(frozen=True, slots=True)
class ChosenSpace:
    """The space that the installation searches, and where its endpoint was when it was chosen, if it has one."""

    name: EmbeddingSpaceName
    base_url: str | None


async def chosen_space(tx: Transaction) -> ChosenSpace | None:
    """The space that the installation searches; None where none was ever chosen, and settings decide (ops role)."""
    space_id = (await space_store.choice(tx)).space_id
    for row in await space_store.list_spaces(tx):
        if row.id == space_id:
            return ChosenSpace(EmbeddingSpaceName(row.provider, row.model, row.dimensions), row.base_url)
    return None


class Spaces:
    """The sides of this process. The first is what its settings name as the embedder."""

    def __init__(self, ops: Database, sides: Sequence[EmbeddingSpaceRuntime]) -> None:
        self.sides: Mapping[int, EmbeddingSpaceRuntime] = {side.space.id: side for side in sides}
        self.first = sides[0]
        self.current = self.first
        """The side that is searched, and that appends make vectors for at once."""
        self.chosen: int | None = None
        """The space that the installation searches, where one was ever chosen."""
        self._ops = ops
        self._kept_up: Sequence[EmbeddingSpaceRuntime] = ()
        self._wake = asyncio.Event()
        self._following = asyncio.Lock()
        self._log = get_logger()

    @property
    def misses_chosen(self) -> bool:
        """Whether the installation searches a space that this process cannot embed for."""
        return self.chosen is not None and self.chosen not in self.sides

    def others(self, space_id: int) -> list[EmbeddingSpaceRuntime]:
        """The sides besides a space that are to have the vectors of what is appended."""
        return [side for side in self.wanted() if side.space.id != space_id]

    def wanted(self) -> list[EmbeddingSpaceRuntime]:
        """The sides that are to have vectors: the one searched, and those filled or kept beside it."""
        return [side for side in (self.current, *self._kept_up) if side.embedder]

    def wants(self, side: EmbeddingSpaceRuntime) -> bool:
        """Whether a side is to have vectors: it is searched, being filled, or kept for a way back."""
        return side is self.current or side in self._kept_up

    async def wants_now(self, side: EmbeddingSpaceRuntime) -> bool:
        """The same, looked up before it is denied: a job may be here before the news of what it is for."""
        if not self.wants(side):
            await self.follow()
        return self.wants(side)

    def still_wants(self, late: LateVectors) -> bool:
        """Whether these vectors are still to be made."""
        return any(side.late is late for side in (self.current, *self._kept_up))

    def searches(self, late: LateVectors) -> bool:
        """Whether these are the vectors that are searched."""
        return late is self.current.late

    async def plan(self, side: EmbeddingSpaceRuntime) -> int:
        """Enqueue what makes the vectors that a side lacks, where it is to have them; says for how many tenants.

        A space that is not searched yet gets its vector index when it lacks nothing any more: built at once, over all
        that there is, it costs a fraction of what it would cost vector by vector. Raises as `LateVectors.plan` does.
        """
        if side.embedder is None or not await self.wants_now(side):
            return 0
        lacking = await side.late.plan(searched=side is self.current)
        if not lacking and side is not self.current:
            async with self._ops.across_tenants() as tx:
                wide = await space_store.wide_tenants(tx, entries=side.tiers.options.exact_scope_entries)
                await side.tiers.note(tx, wide)
        return lacking

    def wake(self) -> None:
        """Look at once: somebody has said that the rows changed."""
        self._wake.set()

    async def follow(self) -> None:
        """Look which space is searched and which are kept up to date. Raises Unavailable without a database."""
        async with self._following:
            async with self._ops.across_tenants() as tx:
                chosen = (await space_store.choice(tx)).space_id
                states = {row.id: row.state for row in await space_store.list_spaces(tx)}
            self._take(chosen, states)

    def _take(self, chosen: int | None, states: Mapping[int, str]) -> None:
        before, missed = self.current, self.misses_chosen
        self.chosen = chosen
        self.current = self.first if chosen is None else self.sides.get(chosen, self.first)
        self._kept_up = tuple(
            side for side in self.sides.values() if side is not self.current and states.get(side.space.id) in _KEPT_UP
        )
        if self.current is not before:
            self._log.info("space.searched", space=self.current.name)
        if self.misses_chosen and not missed:
            self._log.warning("space.not_configured", space_id=chosen, space=self.current.name)

    async def follow_forever(self) -> None:
        """Follow the rows, as soon as the bus tells of a change or the time has come."""
        every_s = _FOLLOW_S if len(self.sides) > 1 else _FOLLOW_ALONE_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.follow()
            except AppError as error:
                self._log.warning("space.follow_failed", code=error.code)
