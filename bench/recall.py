"""Recall across tenants of uneven size: how near to exact, how fast, and what the vector index costs appends.

    .venv/bin/python bench/recall.py /path/for/scratch/data

Builds its own installation there (embedded Postgres; used again when it is there already): 200 tenants, 200 000 entries
with vectors around low-rank topics and words after Zipf, the largest tenant with about 60 000. Then measures the search
as the service does it, without the model and without reading the turns found.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, Literal
from uuid import UUID, uuid4

import asyncpg
import numpy as np
import typer
from figures import percentile
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from app.container import Container, build_container, make_bus, open_foundation
from app.conversations.schemas import ConversationCreate, TurnInput
from app.core import schema
from app.core.db import encode_vector
from app.core.embedded_postgres import EmbeddedPostgres
from app.core.ids import ConversationId, KeyId, TenantId, parse_id
from app.core.telemetry import configure_logging
from app.index.schemas import EntryKind, Found, Scope
from app.index.service import Query, TierOptions, Tiers, ensure_space
from app.providers.schemas import EmbeddingSpaceName, Purpose, Vectors
from app.recall.ranking import Intent, rank
from app.settings import Settings
from app.tenancy.schemas import Caller
from app.tenancy.schemas import Scope as KeyScope

TENANTS: Final = 200
ENTRIES: Final = 200_000
LARGEST: Final = 60_000
DIMENSIONS: Final = 384
TOPICS, TOPICS_OF_TENANT, RANK = 500, 25, 12
VOCABULARY: Final = 20_000
WORDS: Final = 14
CONVERSATION: Final = 100
QUERIES: Final = 20
WRITERS: Final = 4
INGEST_S: Final = 4.0
START: Final = datetime(2025, 1, 1, tzinfo=UTC)
CLASSES: Final = ((500, "up to 500"), (2_000, "up to 2 000"), (20_000, "up to 20 000"), (10**9, "above 20 000"))


class Precomputed:
    """An embedder that has its vectors already."""

    def __init__(self, vectors: Vectors) -> None:
        self._vectors, self._next = vectors, 0

    space = EmbeddingSpaceName("bench", "low-rank", DIMENSIONS)
    max_batch = 100_000

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Vectors:
        """The next vectors, whatever the texts."""
        del purpose
        self._next += len(texts)
        return self._vectors[np.arange(self._next - len(texts), self._next) % len(self._vectors)]

    def split(self, text: str, *, most: int | None = None) -> list[str]:
        """The text itself."""
        del most
        return [text]

    def ready(self) -> bool:
        """Always."""
        return True


@dataclass
class Tenant:
    """One tenant, its entries' ids and vectors."""

    id: TenantId
    ids: list[UUID]
    vectors: Vectors
    topics: NDArray[np.int64]

    @property
    def size_class(self) -> str:
        """Which line of the table it counts in."""
        return next(name for most, name in CLASSES if len(self.ids) <= most)


class World:
    """The same random world for the same seed."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(7)
        self.centres = self._unit(self.random.standard_normal((TOPICS, DIMENSIONS)))
        self.bases = self.random.standard_normal((TOPICS, RANK, DIMENSIONS)) / DIMENSIONS**0.5
        weights = 1 / np.arange(1, VOCABULARY + 1)
        self.words = weights / weights.sum()
        rest = 1 / np.arange(2, TENANTS + 1) ** 1.1
        sizes = (rest / rest.sum() * (ENTRIES - LARGEST)).astype(int) + 5
        self.sizes = [LARGEST, *sizes.tolist()]

    def _unit(self, matrix: np.ndarray) -> np.ndarray:
        return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)

    def around(self, topics: np.ndarray) -> Vectors:
        """Unit vectors around topics."""
        spread = np.einsum("nr,nrd->nd", self.random.standard_normal((len(topics), RANK)), self.bases[topics])
        noise = self.random.standard_normal((len(topics), DIMENSIONS)) * (0.3 / DIMENSIONS**0.5)
        return self._unit(self.centres[topics] + 0.6 * spread / RANK**0.5 * 1.5 + noise)

    def tenant(self, size: int) -> Tenant:
        """A tenant around some of the topics."""
        topics = self.random.choice(TOPICS, TOPICS_OF_TENANT, replace=False)
        vectors = np.concatenate(
            [self.around(self.random.choice(topics, min(5000, size - at))) for at in range(0, size, 5000)]
        )
        ids = [UUID(bytes=self.random.bytes(16), version=4) for _ in range(size)]
        return Tenant(TenantId(UUID(bytes=self.random.bytes(16), version=4)), ids, vectors, topics)

    def lexemes(self, count: int) -> list[list[str]]:
        """Words of texts."""
        drawn = self.random.choice(VOCABULARY, (count, WORDS), p=self.words)
        return [[f"w{word}" for word in row] for row in drawn.tolist()]


async def load(connection: "asyncpg.Connection[asyncpg.Record]", world: World, tenant: Tenant, space_id: int) -> None:
    """Copy a tenant in."""
    size = len(tenant.ids)
    conversations = [UUID(bytes=world.random.bytes(16), version=4) for _ in range(-(-size // CONVERSATION))]
    now = datetime.now(UTC)
    await connection.copy_records_to_table("tenants", records=[(tenant.id, "bench")], columns=["tenant_id", "name"])
    await connection.copy_records_to_table(
        "conversations",
        records=[(tenant.id, c, "p", "{}", "{}", now, now, now) for c in conversations],
        columns=["tenant_id", "id", "project", "compaction", "facts", "created_at", "updated_at", "active_at"],
    )
    words = world.lexemes(size)
    entries = [
        (
            tenant.id, entry, "turn", conversations[n // CONVERSATION], f"p{n // CONVERSATION % 7}",
            f"o{n // CONVERSATION % 97}", f"a{n % 3}", "user" if n % 2 else "assistant", n % CONVERSATION + 1, 1,
            START + timedelta(minutes=n), f'{{"m": {n % 50}}}', WORDS,
            " ".join(f"{word}:{i + 1}" for i, word in enumerate(words[n])),
        )
        for n, entry in enumerate(tenant.ids)
    ]  # fmt: skip
    await connection.execute(
        "create temp table if not exists incoming (tenant_id uuid, entry_id uuid, kind text, conversation_id uuid,"
        " project text, owner text, actor text, role text, position bigint, session bigint, occurred_at timestamptz,"
        " metadata text, doc_length int, lexemes text)"
    )
    await connection.copy_records_to_table("incoming", records=entries)
    await connection.execute(
        "insert into index_entries (tenant_id, entry_id, kind, conversation_id, project, owner, actor, role, position,"
        " session, occurred_at, metadata, doc_length, lexemes) select tenant_id, entry_id, kind, conversation_id,"
        " project, owner, actor, role, position, session, occurred_at, metadata::jsonb, doc_length, lexemes::tsvector"
        " from incoming"
    )
    await connection.execute("truncate incoming")
    await connection.copy_records_to_table(
        "vectors",
        records=[(tenant.id, e, space_id, 0, v) for e, v in zip(tenant.ids, tenant.vectors, strict=True)],
        columns=["tenant_id", "entry_id", "space_id", "part", "embedding"],
    )


@dataclass
class Bench:
    """What is measured, and on what."""

    container: Container
    tiers: Tiers
    tenants: list[Tenant]
    world: World
    console: Console

    def caller(self, tenant: Tenant) -> Caller:
        """The tenant's own key."""
        return Caller(tenant.id, KeyId(uuid4()), frozenset(KeyScope), agent_id=None, long_term_enabled=True)

    async def search(self, tenant: Tenant, scope: Scope, query: Query, k: int = 10) -> tuple[Found, float]:
        """One search as the service does it, and its milliseconds."""
        caller = self.caller(tenant)
        started = time.perf_counter()
        async with self.container.database.transaction(tenant.id, read_only=True) as tx:
            found = await self.container.index.search(caller, tx, scope=scope, query=query, at_least=k)
        return found, 1000 * (time.perf_counter() - started)

    def exactly(self, on: bool) -> None:  # noqa: FBT001
        """Search exactly whatever the size, or as the service is set."""
        self.tiers.options = replace(self.tiers.options, exact_scope_entries=10**6 if on else 20_000)

    def query(self, tenant: Tenant) -> Query:
        """A query near one of the tenant's topics."""
        vector = self.world.around(self.world.random.choice(tenant.topics, 1))[0]
        return Query(vector, list(dict.fromkeys(self.world.lexemes(1)[0][:5])), None)


def top(found: Found, mode: Literal["hybrid", "vector"], k: int = 10) -> set[UUID]:
    """The first k."""
    if mode == "vector":
        best = sorted(found.candidates, key=lambda one: -(one.cosine or -1))
        return {one.entry_id for one in best[:k]}
    return {item.candidate.entry_id for item in rank(found.candidates, Intent(), by_vector=True, by_text=True)[:k]}


async def measure_recall(bench: Bench) -> None:
    """Recall@10 by size class against exact, and latencies of both."""
    table = Table("tenant's entries", "tenants", "recall@10 vector", "recall@10 hybrid", "p50 ms", "p95 ms",
                  "exact p50 ms", "exact p95 ms")  # fmt: skip
    scope = Scope(kinds=[EntryKind.TURN])
    by_class: dict[str, list[Tenant]] = defaultdict(list)
    for tenant in bench.tenants:
        by_class[tenant.size_class].append(tenant)
    for _, name in CLASSES:
        some = by_class[name]
        if not some:
            continue
        near, hybrid = list[float](), list[float]()
        took, exact_took = list[float](), list[float]()
        for number in range(QUERIES):
            tenant = some[number % len(some)]
            query = bench.query(tenant)
            asked = np.asarray(query.vector)
            nearest: list[int] = np.argsort(-(tenant.vectors @ asked))[:10].tolist()
            truth = {tenant.ids[n] for n in nearest}
            found, ms = await bench.search(tenant, scope, query)
            bench.exactly(True)
            exact, exact_ms = await bench.search(tenant, scope, query)
            bench.exactly(False)
            k = min(10, len(tenant.ids))
            near.append(len(top(found, "vector") & truth) / k)
            hybrid.append(len(top(found, "hybrid") & top(exact, "hybrid")) / k)
            if number >= len(some) or number >= QUERIES // 4:
                took.append(ms)
                exact_took.append(exact_ms)
        table.add_row(
            name, str(len(some)), f"{np.mean(near):.4f}", f"{np.mean(hybrid):.4f}",
            *(f"{percentile(values, share):.1f}" for values in (took, exact_took) for share in (0.5, 0.95)),
        )  # fmt: skip
    bench.console.print(table)


async def measure_filters(bench: Bench) -> None:
    """Give k of k under filters, in the largest tenants and some others."""
    table = Table("filter", "k of k", "recall@10 vector", "p50 ms", "p95 ms")
    filters: dict[str, dict[str, object]] = {
        "none": {}, "actor": {"actors": ["a1"]}, "project": {"project": "p3"}, "owner": {"owner": "o5"},
        "half of the time": {"occurred_after": START + timedelta(minutes=20_000)},
        "an hour": {"occurred_before": START + timedelta(minutes=60)}, "metadata": {"metadata": '{"m": 7}'},
        "actor and role": {"actors": ["a0", "a2"], "roles": ["user"]},
        "actor, owner, metadata": {"actors": ["a0"], "owner": "o3", "metadata": '{"m": 8}'},
    }  # fmt: skip
    tenants = [*bench.tenants[:3], *bench.tenants[20:23]]
    for name, given in filters.items():
        held, asked = 0, 0
        took, near = list[float](), list[float]()
        for tenant in tenants:
            scope = Scope(kinds=[EntryKind.TURN], **given)  # type: ignore[arg-type]
            for k in (10, 50, 200):
                query = bench.query(tenant)
                found, ms = await bench.search(tenant, scope, query, k)
                bench.exactly(True)
                exact, _ = await bench.search(tenant, scope, query, k)
                bench.exactly(False)
                asked += 1
                held += min(len(found.candidates), k) == min(len(exact.candidates), k)
                truth = top(exact, "vector")
                near.append(len(top(found, "vector") & truth) / len(truth) if truth else 1.0)
                if tenant is bench.tenants[0]:
                    took.append(ms)
        table.add_row(name, f"{held} of {asked}", f"{np.mean(near):.4f}",
                      f"{percentile(took, 0.5):.1f}", f"{percentile(took, 0.95):.1f}")  # fmt: skip
    bench.console.print(table)


async def ingest(bench: Bench, turns: int) -> float:
    """Turns a second of the largest tenant, appended by the service, several writers."""
    caller = bench.caller(bench.tenants[0])
    words = bench.world.lexemes(200)
    stop = time.perf_counter() + INGEST_S
    made = 0

    async def write() -> None:
        nonlocal made
        conversation, *_ = await bench.container.conversations.create(caller, body=ConversationCreate(), repeat=None)
        body = [TurnInput.model_validate({"role": "user", "content": " ".join(words[n])}) for n in range(turns)]
        while time.perf_counter() < stop:
            await bench.container.conversations.append(caller, ConversationId(parse_id(conversation.id)), turns=body)
            made += turns

    started = time.perf_counter()
    await asyncio.gather(*(write() for _ in range(WRITERS)))
    return made / (time.perf_counter() - started)


async def measure_ingest(bench: Bench, owner: str, space_id: int) -> None:
    """Appends to the largest tenant without the index, with the tier live and being filled, and with all in it."""
    tenant, index = bench.tenants[0], schema.vector_index_name(space_id)
    connection = await asyncpg.connect(owner)
    filled = 0

    async def keep() -> None:
        nonlocal filled
        while True:
            filled += await bench.tiers.keep(tenant.id)
            await asyncio.sleep(0.2)

    table = Table("appends to the largest tenant, turns a second", "1 turn", "50 turns")
    figures: dict[str, list[list[float]]] = defaultdict(list)
    for _round in range(2):
        await connection.execute(f"drop index if exists {index}, bench_all")
        figures["no vector index"].append([await ingest(bench, turns) for turns in (1, 50)])
        await bench.tiers.keep(tenant.id)
        filled = 0
        keeping = asyncio.create_task(keep())
        figures["tier live, filled meanwhile"].append([await ingest(bench, turns) for turns in (1, 50)])
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        bench.console.print(f"{filled} vectors went into the tier meanwhile: {dict(figures)}")
        await bench.tiers.keep(tenant.id)
    await connection.execute(f"drop index if exists {index}")
    await connection.execute("set maintenance_work_mem = '256MB'")
    await connection.execute(
        f"create index bench_all on vectors using hnsw ((embedding::vector({DIMENSIONS})) vector_cosine_ops)"
        f" where space_id = {space_id} and tenant_id = '{tenant.id}'"
    )
    figures["an index that appends insert into"].append([await ingest(bench, turns) for turns in (1, 50)])
    await connection.execute("drop index bench_all")
    await connection.close()
    base = np.mean(figures["no vector index"], axis=0)
    for name, rows in figures.items():
        mean = np.mean(rows, axis=0)
        table.add_row(name, *(f"{rate:,.0f} ({rate / whole:.0%})" for rate, whole in zip(mean, base, strict=True)))
    bench.console.print(table)


async def build(world: World, superuser: str, space_id: int) -> list[Tenant]:
    """Make the world, and copy it in where it is not there yet."""
    tenants = [world.tenant(size) for size in world.sizes]
    connection = await asyncpg.connect(superuser)
    await connection.set_type_codec("vector", schema="public", encoder=encode_vector, decoder=bytes, format="binary")
    if not await connection.fetchval("select 1 from tenants where tenant_id = $1", tenants[-1].id):
        for tenant in tenants:
            await load(connection, world, tenant, space_id)
        for name in ("tenants", "conversations", "index_entries", "vectors"):
            await connection.execute(f"vacuum analyze {name}")
    await connection.close()
    return tenants


async def run(root: Path, *, with_recall: bool, with_ingest: bool) -> None:
    """Build, measure, print."""
    console = Console(width=160)
    settings = Settings(data_dir=root, embedder="none", log_level="warning")
    configure_logging(settings)
    world = World()
    async with AsyncExitStack() as stack:
        base = await stack.enter_async_context(open_foundation(settings, migrate=True))
        embedder = Precomputed(world.around(world.random.choice(TOPICS, 4000)))
        space = await ensure_space(base.ops, embedder)
        embedded = EmbeddedPostgres(root / "postgres", shared_buffers_mb=settings.embedded_shared_buffers_mb)
        await asyncio.to_thread(embedded.start)
        stack.push_async_callback(asyncio.to_thread, embedded.close)
        started = time.perf_counter()
        tenants = await build(world, embedded.url("postgres", schema.DATABASE), space.id)
        console.print(f"{sum(map(len, (t.ids for t in tenants))):,} entries in {time.perf_counter() - started:.0f} s")
        tiers = Tiers(
            base.ops,
            space=space,
            options=TierOptions(
                settings.exact_scope_entries, settings.text_candidates, fresh_vectors=settings.tier_fresh_vectors
            ),
            make_index=lambda: base.server.ensure_vector_index(space_id=space.id, dimensions=space.dimensions),
        )
        bench = Bench(
            build_container(settings, base, embedder, tiers, make_bus(settings, base.server)),
            tiers,
            tenants,
            world,
            console,
        )
        started = time.perf_counter()
        moved = sum(
            [await tiers.keep(tenant.id) for tenant in tenants if len(tenant.ids) > settings.exact_scope_entries]
        )
        console.print(f"{moved:,} vectors into the tier, with its index, in {time.perf_counter() - started:.0f} s")
        if with_recall:
            await measure_recall(bench)
            await measure_filters(bench)
        if with_ingest:
            await measure_ingest(bench, embedded.url(schema.OWNER_ROLE, schema.DATABASE), space.id)


def main(
    root: Annotated[Path, typer.Argument(help="Folder of the installation to measure on; made when missing.")],
    recall: Annotated[bool, typer.Option(help="Measure searches.")] = True,  # noqa: FBT002
    ingest: Annotated[bool, typer.Option(help="Measure appends too.")] = True,  # noqa: FBT002
) -> None:
    """Measure recall across tenants of uneven size."""
    asyncio.run(run(root.absolute(), with_recall=recall, with_ingest=ingest))


if __name__ == "__main__":
    typer.run(main)
