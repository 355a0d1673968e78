"""Loads the tenants through the service's own path for appends, inside this process; continues where it was stopped.

Every turn is written by `Conversations.append`: counted, hashed into the chain of its conversation, analysed and
indexed, with one transaction for each batch. Only the vectors are made without the model. So the invariants of the
data hold as they do for turns that came over HTTP.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from growing.world import ConversationPlan, SentenceEmbedder, World
from pydantic import BaseModel

from app.container import Container, build_container, make_bus
from app.conversations.schemas.conversations import CompactionIn, ConversationCreate, TurnInput
from app.core.ids import ConversationId, TenantId, parse_id
from app.core.telemetry import configure_logging
from app.embedding import open_ann_maintenance
from app.foundation import open_foundation
from app.providers.local.embedder import LocalEmbedder
from app.providers.schemas import Vectors
from app.settings import Settings
from app.tenancy.key_text import generate_key
from app.tenancy.schemas import Caller

BATCH: Final = 200
_WRITERS: Final = 4
_REPORT_S: Final = 10.0
_STATE: Final = "growth.json"
_SENTENCE_VECTORS: Final = "growth-sentences.npy"
_MAX_VECTORS: Final = 10_000
_MANY: Final = 50_000
_TRIES: Final = 5


class LoadState(BaseModel):
    """What a folder was loaded with: the arguments, the keys of the tenants by rank, and the seconds of loading."""

    turns: int
    tenants: int
    seed: int
    operator_key: str
    keys: list[str] = []
    sizes: list[int] = []
    """Stored turns of each tenant by rank, after the last load."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    """Time of the processor that this process used while it loaded, without Postgres."""
    loaded: int = 0
    rates: list[float] = []
    """Turns a second of each tenth of the load; a tenth that was interrupted counts only what was written in it."""
    index_s: float | None = None
    model_texts_per_second: float = 0.0

    @classmethod
    def open(cls, root: Path, *, turns: int, tenants: int, seed: int) -> "LoadState":
        """Return the state of a folder, a new one at first. Raises ValueError if it was loaded with other arguments."""
        path = root / _STATE
        if not path.exists():
            return cls(turns=turns, tenants=tenants, seed=seed, operator_key=str(generate_key()))
        state = cls.model_validate_json(path.read_text())
        if (state.turns, state.tenants, state.seed) != (turns, tenants, seed):
            raise ValueError(f"{root} has {state.turns} turns of {state.tenants} tenants with seed {state.seed}")
        return state

    def save(self, root: Path) -> None:
        """Write the state."""
        (root / _STATE).write_text(self.model_dump_json(indent=1))


async def sentence_vectors(root: Path, world: World, state: LoadState) -> Vectors:
    """Return the vectors of all sentences, made by the bundled model at the first call."""
    path = root / _SENTENCE_VECTORS
    if not path.exists():
        model = LocalEmbedder()
        await model.start()
        started = time.perf_counter()
        vectors = await model.embed(world.sentences, purpose="document")
        state.model_texts_per_second = len(vectors) / (time.perf_counter() - started)
        await model.close()
        await asyncio.to_thread(np.save, path, vectors)
    return np.load(path)


@dataclass(slots=True)
class Progress:
    """How many turns are written, and how fast."""

    total: int
    report: Callable[[str], None]
    done: int
    state: LoadState
    started: float = field(default_factory=time.perf_counter)
    cpu_started: float = field(default_factory=time.process_time)
    _begun: int = 0
    _tenth_at: float = 0.0
    _tenth_done: int = 0
    _reported: float = 0.0

    def __post_init__(self) -> None:
        """Start the clocks."""
        self._begun, self._tenth_done, self._tenth_at, self._reported = self.done, self.done, self.started, self.started

    def add(self, turns: int) -> None:
        """Count written turns; report from time to time."""
        self.done += turns
        now = time.perf_counter()
        if self.done * 10 // self.total > self._tenth_done * 10 // self.total:
            self.state.rates.append((self.done - self._tenth_done) / (now - self._tenth_at))
            self._tenth_done, self._tenth_at = self.done, now
        if now - self._reported >= _REPORT_S:
            self._reported = now
            rate = (self.done - self._begun) / (now - self.started)
            left = (self.total - self.done) / rate
            self.report(f"{self.done:,} of {self.total:,} turns, {rate:,.0f} a second, {left:,.0f} s left")

    def finish(self) -> None:
        """Add the time and the turns of this run to the state."""
        self.state.seconds += time.perf_counter() - self.started
        self.state.cpu_s += time.process_time() - self.cpu_started
        self.state.loaded += self.done - self._begun


class Loader:
    """Writes what a world has and the installation does not have yet."""

    def __init__(self, root: Path, world: World, state: LoadState, container: Container) -> None:
        self._root, self._world, self._state, self._container = root, world, state, container
        self._callers: dict[int, Caller] = {}

    async def make_tenants(self) -> None:
        """Make the missing tenants; their keys are kept in the state."""
        while len(self._state.keys) < len(self._world.sizes):
            key = await self._container.tenancy.create_tenant(f"tenant {len(self._state.keys) + 1}")
            self._state.keys.append(str(key))
            if len(self._state.keys) % 50 == 0:
                self._state.save(self._root)
        self._state.save(self._root)

    async def load(self, report: Callable[[str], None], *, stop_after_s: float) -> None:
        """Write all conversations, several at a time. None is started after `stop_after_s`."""
        stored = await self._stored()
        if self._state.turns - sum(stored.values()) > _MANY:
            # to build the index again is faster than to insert many vectors one by one
            await self._container.server.drop_vector_index(space_id=self._container.ann.space.id)
        plans = self._world.conversations()
        progress = Progress(self._state.turns, report, sum(stored.values()), self._state)
        left = iter([plan for plan in plans if stored.get((plan.tenant, plan.number), 0) < plan.turns])
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_WRITERS):
                    group.create_task(self._write(left, stored, progress, until=progress.started + stop_after_s))
        finally:
            progress.finish()
            sizes = [0] * len(self._world.sizes)
            for (rank, _), turns in (await self._stored()).items():
                sizes[rank] += turns
            self._state.sizes = sizes
            self._state.save(self._root)

    async def _stored(self) -> dict[tuple[int, int], int]:
        """Return the stored turns of each conversation, by the rank of its tenant and its number."""
        async with self._container.ops.across_tenants() as tx:
            rows = await tx.fetch(
                "select c.tenant_id, c.external_id, h.turn_count from conversations c"
                " join conversation_heads h on h.tenant_id = c.tenant_id and h.conversation_id = c.id"
                " where c.external_id like 'growth-%'"
            )
        ranks = {tenant_id_of(key): rank for rank, key in enumerate(self._state.keys)}
        return {
            (ranks[row["tenant_id"]], int(row["external_id"].removeprefix("growth-"))): row["turn_count"]
            for row in rows
        }

    async def _write(
        self, plans: Iterator[ConversationPlan], stored: dict[tuple[int, int], int], progress: Progress, *,
        until: float,
    ) -> None:  # fmt: skip
        conversations = self._container.conversations
        for plan in plans:
            if time.perf_counter() > until:
                return
            caller = await self._caller(plan.tenant)
            # facts and summaries are made by jobs of their own, and depend on policies: see the guide
            body = ConversationCreate(
                external_id=f"growth-{plan.number}",
                owner=f"person {plan.number % 20}",
                compaction=CompactionIn(strategy="never"),
            )
            made = (await conversations.create(caller, body=body)).value
            texts = self._world.texts(plan)
            for at in range(stored.get((plan.tenant, plan.number), 0), plan.turns, BATCH):
                turns = [
                    TurnInput.model_validate({"role": "assistant" if (at + n) % 2 else "user", "content": text})
                    for n, text in enumerate(texts[at : at + BATCH])
                ]
                await conversations.append(caller, ConversationId(parse_id(made.id)), turns=turns)
                progress.add(len(turns))

    async def _caller(self, tenant: int) -> Caller:
        if tenant not in self._callers:
            self._callers[tenant] = await self._container.tenancy.authenticate(self._state.keys[tenant])
        return self._callers[tenant]

    async def index_large_tenants(self) -> int:
        """Fill and build the vector index for the tenants that need it, as the service does; return their number."""
        ann = self._container.ann
        most = ann.exact_entries
        large = [
            tenant_id_of(key) for key, size in zip(self._state.keys, self._state.sizes, strict=True) if size > most
        ]
        if large:
            started = time.perf_counter()
            for _ in range(_TRIES):  # on a busy machine, a step may fail: the next one goes on after it
                async with self._container.ops.across_tenants() as tx:
                    if not await ann.schedule(tx, large):
                        break
                await ann.index_due()
            else:
                raise RuntimeError(f"{len(large)} tenants are not in the vector index after {_TRIES} tries")
            self._state.index_s = (self._state.index_s or 0.0) + time.perf_counter() - started
            self._state.save(self._root)
        return len(large)


def tenant_id_of(key: str) -> TenantId:
    """Return the tenant of an API key."""
    return TenantId(parse_id(key.split("_")[1]))


async def load(
    root: Path, world: World, state: LoadState, *, exact_entries: int, stop_after_s: float,
    report: Callable[[str], None],
) -> int:  # fmt: skip
    """Load everything that is missing below `root`, and return the number of tenants with a vector index."""
    settings = Settings(
        data_dir=root, embedder="none", log_level="warning", exact_scope_entries=exact_entries,
        max_vectors_per_append=_MAX_VECTORS,
    )  # fmt: skip
    configure_logging(settings.telemetry)
    async with AsyncExitStack() as stack:
        base = await stack.enter_async_context(open_foundation(settings, migrate=True))
        vectors = await sentence_vectors(root, world, state)
        embedder = SentenceEmbedder(LocalEmbedder().space, world.sentences, vectors)
        ann = await open_ann_maintenance(settings.index, base.ops, base.server, embedder)
        bus = make_bus(settings.bus, base.server)
        container = build_container(settings, base, [(embedder, ann)], bus)
        await container.index.spaces.follow()
        loader = Loader(root, world, state, container)
        await loader.make_tenants()
        await loader.load(report, stop_after_s=stop_after_s)
        return await loader.index_large_tenants()
