"""Recall across tenants of uneven size: how near to exact, how fast, and what the vector index costs appends.

    .venv/bin/python bench/recall.py /path/for/scratch/data

Builds its own installation there (embedded Postgres; used again when it is there already): 200 tenants, 200 000 entries
with vectors around low-rank topics and words after Zipf, the largest tenants with 60 000 and 24 000. Then measures the
search as the service does it, without the model and without reading the turns found. Each search is followed by the
exact one for the same query, and appends with and without the tier take turns: other load falls on both alike.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Final
from uuid import UUID, uuid4

import asyncpg
import numpy as np
import typer
from figures import percentile
from numpy.typing import NDArray
from pgvector.asyncpg import register_vector
from rich.console import Console
from rich.table import Table

from app.container import Container, build_container, make_bus
from app.conversations.schemas.conversations import ConversationCreate, TurnInput
from app.core.database import schema
from app.core.embedded_postgres.server import EmbeddedPostgres
from app.core.ids import ConversationId, KeyId, TenantId, parse_id
from app.core.telemetry import configure_logging
from app.foundation import open_foundation
from app.index.analyser.terms import pack_terms
from app.index.schemas import EntryKind, Mode, SearchResult, SearchScope
from app.index.search.ann_maintenance import AnnMaintenance
from app.index.service import PreparedQuery
from app.index.spaces.runtime import ensure_space
from app.providers.schemas import EmbeddingSpaceName, Purpose, Vectors
from app.recall.ranking import Question, estimate, rank
from app.settings import Settings
from app.tenancy.schemas import Caller
from app.tenancy.schemas import Scope as KeyScope

TENANTS: Final = 200
ENTRIES: Final = 200_000
LARGEST: Final = (60_000, 24_000)
WIDE: Final = 20_000
DIMENSIONS: Final = 384
_ANY_VECTOR: Final = np.zeros(DIMENSIONS, np.float32)
TOPICS, TOPICS_OF_TENANT, RANK = 500, 25, 12
VOCABULARY: Final = 20_000
WORDS: Final = 14
CONVERSATION: Final = 100
WRITERS: Final = 4
INGEST_S: Final = 4.0
SIZES: Final = (1, 50)
START: Final = datetime(2025, 1, 1, tzinfo=UTC)
CLASSES: Final = (
    (500, "up to 500"), (2_000, "up to 2 000"), (20_000, "up to 20 000"), (24_000, "24 000"), (60_000, "60 000"),
)  # fmt: skip
FILTERS: Final[dict[str, dict[str, object]]] = {
    "none": {}, "actor": {"actors": ["a1"]}, "two actors": {"actors": ["a0", "a2"]}, "role": {"roles": ["user"]},
    "project": {"project": "p3"}, "owner": {"owner": "o5"},
    "half of the time": {"occurred_after": START + timedelta(minutes=20_000)},
    "an hour": {"occurred_before": START + timedelta(minutes=60)}, "metadata": {"metadata": '{"m": 7}'},
    "actor and role": {"actors": ["a0", "a2"], "roles": ["user"]},
    "actor, owner, metadata": {"actors": ["a0"], "owner": "o3", "metadata": '{"m": 8}'},
}  # fmt: skip


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

    def reads(self, text: str) -> bool:
        """Return whether there is a text: all are read."""
        return bool(text)

    def split(self, text: str, *, max_pieces: int | None = None) -> list[str]:
        """The text itself."""
        del max_pieces
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
        rest = 1 / np.arange(3, TENANTS + 1) ** 1.1
        sizes = (rest / rest.sum() * (ENTRIES - sum(LARGEST))).astype(int) + 5
        self.sizes = [*LARGEST, *sizes.tolist()]

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
            " ".join(f"{word}:{i + 1}" for i, word in enumerate(words[n])), pack_terms(Counter(words[n])),
        )
        for n, entry in enumerate(tenant.ids)
    ]  # fmt: skip
    await connection.execute(
        "create temp table if not exists incoming (tenant_id uuid, entry_id uuid, kind text, conversation_id uuid,"
        " project text, owner text, actor text, role text, position bigint, session bigint, occurred_at timestamptz,"
        " metadata text, doc_length int, lexemes text, terms bytea)"
    )
    await connection.copy_records_to_table("incoming", records=entries)
    await connection.execute(
        "insert into index_entries (tenant_id, entry_id, kind, conversation_id, project, owner, actor, role, position,"
        " session, occurred_at, metadata, doc_length, lexemes, terms, cues, language) select tenant_id, entry_id, kind,"
        " conversation_id, project, owner, actor, role, position, session, occurred_at, metadata::jsonb, doc_length,"
        " lexemes::tsvector, terms, 0, 'en' from incoming"
    )
    await connection.execute("truncate incoming")
    await connection.copy_records_to_table(
        "vectors",
        # wide tenants are in the tier from the start: their index is made at once, in seconds instead of minutes
        records=[
            (tenant.id, entry, space_id, 0, vector, size > WIDE)
            for entry, vector in zip(tenant.ids, tenant.vectors, strict=True)
        ],
        columns=["tenant_id", "entry_id", "space_id", "part", "embedding", "tiered"],
    )


@dataclass
class Bench:
    """What is measured, and on what."""

    container: Container
    ann: AnnMaintenance
    tenants: list[Tenant]
    world: World
    console: Console

    def caller(self, tenant: Tenant) -> Caller:
        """The tenant's own key."""
        return Caller(tenant.id, KeyId(uuid4()), frozenset(KeyScope), agent_id=None, long_term_enabled=True)

    async def search(
        self, tenant: Tenant, scope: SearchScope, query: PreparedQuery, k: int = 10
    ) -> tuple[SearchResult, float]:
        """One search as the service does it, and its milliseconds."""
        caller, match = self.caller(tenant), partial(estimate, Question(query))
        started = time.perf_counter()
        async with self.container.database.transaction(tenant.id, read_only=True) as tx:
            found = await self.container.index.search(
                caller, tx, scope=scope, query=query, min_candidates=k, rank=lambda found: found, estimate=match
            )
        return found, 1000 * (time.perf_counter() - started)

    async def pair(self, tenant: Tenant, scope: SearchScope, query: PreparedQuery, k: int = 10) -> "Pair":
        """One search as the service does it, and the exact one."""
        found, ms = await self.search(tenant, scope, query, k)
        self.exactly(True)
        exact, exact_ms = await self.search(tenant, scope, query, k)
        self.exactly(False)
        return Pair(found, ms, exact, exact_ms)

    def exactly(self, on: bool) -> None:  # noqa: FBT001
        """Search exactly whatever the size, or as the service is set."""
        most = 10**6 if on else WIDE
        self.ann.settings = self.ann.settings.model_copy(update={"exact_scope_entries": most})

    def query(self, tenant: Tenant) -> PreparedQuery:
        """A query near one of the tenant's topics."""
        vector = self.world.around(self.world.random.choice(tenant.topics, 1))[0]
        return PreparedQuery(" ".join(self.world.lexemes(1)[0][:5]), max_words=64, vector=vector)


@dataclass(frozen=True)
class Pair:
    """The same search by the service and exactly, with the milliseconds of both."""

    found: SearchResult
    ms: float
    exact: SearchResult
    exact_ms: float

    def share(self, mode: Mode, k: int = 10) -> float:
        """How much of the exact search's first k the other has; what scores like the last of them is as good."""
        wanted = scores(self.exact, mode)
        first = sorted(wanted.values(), reverse=True)[:k]
        if not first:
            return 1.0
        got = scores(self.found, mode)
        mine = sorted(got, key=lambda entry_id: -got[entry_id])[:k]
        return sum(wanted.get(entry_id, -1.0) >= first[-1] - 1e-9 for entry_id in mine) / len(first)


def scores(found: SearchResult, mode: Mode) -> dict[UUID, float]:
    """What was found, by its score."""
    entries = found.entries(range(len(found.cosine)))
    match mode:
        case Mode.VECTOR:
            return {one.source_id: one.cosine for one in entries if one.cosine is not None}
        case Mode.TEXT:
            return {one.source_id: one.bm25 for one in entries if one.bm25 > 0}
        case Mode.HYBRID:
            ranking = rank(found, Question(PreparedQuery("", vector=_ANY_VECTOR)), is_calibrated=False)
            return {hit.source_id: hit.score for hit in ranking.best(len(found.cosine))}


def quantiles(values: Sequence[float]) -> list[str]:
    """Median and 95th percentile."""
    return [f"{percentile(values, share):,.0f}" for share in (0.5, 0.95)]


async def measure_recall(bench: Bench, queries: int) -> None:
    """Recall@10 by size class against exact, and latencies of both."""
    table = Table("tenant's entries", "tenants", "recall@10 vector", "text", "hybrid", "p50 ms", "p95 ms",
                  "exact p50 ms", "exact p95 ms")  # fmt: skip
    scope = SearchScope(kinds=[EntryKind.TURN])
    by_class: dict[str, list[Tenant]] = defaultdict(list)
    for tenant in bench.tenants:
        by_class[tenant.size_class].append(tenant)
    for _, name in CLASSES:
        some = by_class[name]
        near, text, hybrid = list[float](), list[float](), list[float]()
        took, exact_took = list[float](), list[float]()
        for tenant in some[:queries]:
            await bench.pair(tenant, scope, bench.query(tenant))  # caches, plans, what the tenant has
        for number in range(queries):
            tenant = some[number % len(some)]
            query = bench.query(tenant)
            pair = await bench.pair(tenant, scope, query)
            # by meaning the truth is counted apart from all of the service
            order: list[int] = np.argsort(-(tenant.vectors @ np.asarray(query.vector)))[:10].tolist()
            found = scores(pair.found, Mode.VECTOR)
            mine = set(sorted(found, key=lambda entry_id: -found[entry_id])[:10])
            near.append(len(mine & {tenant.ids[n] for n in order}) / len(order))
            text.append(pair.share(Mode.TEXT))
            hybrid.append(pair.share(Mode.HYBRID))
            took.append(pair.ms)
            exact_took.append(pair.exact_ms)
        table.add_row(
            name, str(len(some)), *(f"{np.mean(shares):.4f}" for shares in (near, text, hybrid)),
            *quantiles(took), *quantiles(exact_took),
        )  # fmt: skip
    bench.console.print(table)


async def measure_filters(bench: Bench, rounds: int) -> None:
    """Give k of k under filters, in the largest tenants and some others; times are of the largest."""
    table = Table("filter", "k of k", "recall@10 vector", "text", "hybrid", "p50 ms", "p95 ms",
                  "exact p50 ms", "exact p95 ms")  # fmt: skip
    tenants = [*bench.tenants[:3], *bench.tenants[20:23]]
    for name, given in FILTERS.items():
        held, pairs, largest = 0, list[Pair](), list[Pair]()
        scope = SearchScope(kinds=[EntryKind.TURN], **given)  # type: ignore[arg-type]
        for tenant in tenants:
            for k in (10, 50, 200) * (rounds if len(tenant.ids) > WIDE else 1):
                pair = await bench.pair(tenant, scope, bench.query(tenant), k)
                held += min(len(pair.found.cosine), k) == min(len(pair.exact.cosine), k)
                pairs.append(pair)
                if tenant is bench.tenants[0]:
                    largest.append(pair)
        table.add_row(
            name, f"{held} of {len(pairs)}",
            *(f"{np.mean([pair.share(mode) for pair in pairs]):.4f}" for mode in (Mode.VECTOR, Mode.TEXT, Mode.HYBRID)),
            *quantiles([pair.ms for pair in largest]), *quantiles([pair.exact_ms for pair in largest]),
        )  # fmt: skip
    bench.console.print(table)


async def ingest(bench: Bench, turns: int, made: list[str]) -> float:
    """Turns a second that several writers append to the largest tenant, each to a conversation of its own."""
    caller = bench.caller(bench.tenants[0])
    words = bench.world.lexemes(200)
    stop = time.perf_counter() + INGEST_S
    count = 0

    async def write() -> None:
        nonlocal count
        conversation = (await bench.container.conversations.create(caller, body=ConversationCreate())).value
        made.append(conversation.id)
        body = [TurnInput.model_validate({"role": "user", "content": " ".join(words[n])}) for n in range(turns)]
        while time.perf_counter() < stop:
            await bench.container.conversations.append(caller, ConversationId(parse_id(conversation.id)), turns=body)
            count += turns

    started = time.perf_counter()
    await asyncio.gather(*(write() for _ in range(WRITERS)))
    return count / (time.perf_counter() - started)


class Appends:
    """Appends to the largest tenant, without the index and with the tier live and being filled."""

    def __init__(self, bench: Bench, connection: "asyncpg.Connection[asyncpg.Record]", space_id: int) -> None:
        self.bench, self.connection, self.index = bench, connection, schema.vector_index_name(space_id)
        self.made: list[str] = []
        self.filled = 0

    async def _tiered(self) -> int:
        return int(await self.connection.fetchval("select count(*) from vectors where tiered"))

    async def without(self) -> list[float]:
        """With no vector index."""
        await self.connection.execute(f"drop index if exists {self.index}")
        return [await ingest(self.bench, turns, self.made) for turns in SIZES]

    async def live(self) -> list[float]:
        """With the tier live, and filled meanwhile for as much of the time as the service would."""
        if not await self.connection.fetchval("select to_regclass($1)", self.index):
            await self.bench.ann.index_tenant(self.bench.tenants[0].id)
        before = await self._tiered()
        keeping = asyncio.create_task(self._keep())
        rates = [await ingest(self.bench, turns, self.made) for turns in SIZES]
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        self.filled += await self._tiered() - before
        return rates

    async def _keep(self) -> None:
        while True:
            await self.bench.ann.index_tenant(self.bench.tenants[0].id)
            await asyncio.sleep(0.2)

    async def delete_appended(self) -> None:
        """Delete what was appended, so that searches may be measured on the same world again."""
        await self.connection.execute(f"drop index if exists {self.index}")  # slow to delete from, soon made
        await self.connection.execute(
            "delete from conversations where tenant_id = $1 and id = any($2::uuid[])",
            self.bench.tenants[0].id,
            [parse_id(made) for made in self.made],
            timeout=600,
        )
        self.made.clear()
        for name in ("conversations", "turns", "index_entries", "vectors"):
            await self.connection.execute(f"vacuum analyze {name}", timeout=600)


async def measure_ingest(bench: Bench, superuser: str, space_id: int, rounds: int) -> None:
    """Appends with and without the tier, in turn; the share is that of each pair, whichever of it came first."""
    appends = Appends(bench, await asyncpg.connect(superuser), space_id)
    table = Table("appends to the largest tenant, turns a second", *(f"{size} a request" for size in SIZES))
    pairs: list[tuple[list[float], list[float]]] = []
    for number in range(rounds):
        if number % 2:
            live, without = await appends.live(), await appends.without()
            await appends.delete_appended()
        else:
            without, live = await appends.without(), await appends.live()
        pairs.append((without, live))
    await appends.delete_appended()
    await appends.connection.close()
    for name, of_pair in (("no vector index", 0), ("tier live, filled meanwhile", 1)):
        table.add_row(f"{name}, median", *(f"{rate:,.0f}" for rate in np.median([p[of_pair] for p in pairs], axis=0)))
    shares = np.array([live for _, live in pairs]) / np.array([without for without, _ in pairs])
    for name, row in (("share, median", np.median(shares, axis=0)), ("share, least", shares.min(axis=0))):
        table.add_row(name, *(f"{share:.0%}" for share in row))
    bench.console.print(table)
    bench.console.print(f"{rounds} pairs; {appends.filled:,} vectors went into the tier meanwhile")


async def build(world: World, superuser: str, space_id: int) -> list[Tenant]:
    """Make the world, and copy it in where it is not there yet."""
    tenants = [world.tenant(size) for size in world.sizes]
    connection = await asyncpg.connect(superuser)
    await register_vector(connection)
    if not await connection.fetchval("select 1 from tenants where tenant_id = $1", tenants[-1].id):
        for tenant in tenants:
            await load(connection, world, tenant, space_id)
        for name in ("tenants", "conversations", "index_entries", "vectors"):
            await connection.execute(f"vacuum analyze {name}")
    await connection.close()
    return tenants


async def run(root: Path, *, queries: int, rounds: int) -> None:
    """Build, measure, print."""
    console = Console(width=160)
    settings = Settings(data_dir=root, embedder="none", log_level="warning")
    configure_logging(settings.telemetry)
    world = World()
    async with AsyncExitStack() as stack:
        base = await stack.enter_async_context(open_foundation(settings, migrate=True))
        embedder = Precomputed(world.around(world.random.choice(TOPICS, 4000)))
        space = await ensure_space(base.ops, embedder)
        embedded = EmbeddedPostgres(root / "postgres", shared_buffers_mb=settings.database.embedded_shared_buffers_mb)
        await asyncio.to_thread(embedded.start)
        stack.push_async_callback(asyncio.to_thread, embedded.close)
        started = time.perf_counter()
        tenants = await build(world, embedded.url("postgres", schema.DATABASE), space.id)
        console.print(f"{sum(map(len, (t.ids for t in tenants))):,} entries in {time.perf_counter() - started:.0f} s")
        ann = AnnMaintenance(
            base.ops,
            space=space,
            settings=settings.index.model_copy(update={"exact_scope_entries": WIDE}),
            make_index=lambda: base.server.ensure_vector_index(space_id=space.id, dimensions=space.dimensions),
        )
        bench = Bench(
            build_container(settings, base, [(embedder, ann)], make_bus(settings.bus, base.server)),
            ann,
            tenants,
            world,
            console,
        )
        started = time.perf_counter()
        for tenant in tenants:
            if len(tenant.ids) > WIDE:
                await ann.index_tenant(tenant.id)
        console.print(f"the vector index in {time.perf_counter() - started:.0f} s")
        if queries:
            await measure_recall(bench, queries)
            await measure_filters(bench, max(1, queries // 20))
        if rounds:
            await measure_ingest(bench, embedded.url("postgres", schema.DATABASE), space.id, rounds)


def main(
    root: Annotated[Path, typer.Argument(help="Folder of the installation to measure on; made when missing.")],
    queries: Annotated[int, typer.Option(help="Searches of each size; 0: none.")] = 60,
    rounds: Annotated[int, typer.Option(help="Pairs of appends with and without the tier; 0: none.")] = 6,
) -> None:
    """Measure recall across tenants of uneven size."""
    asyncio.run(run(root.absolute(), queries=queries, rounds=rounds))


if __name__ == "__main__":
    typer.run(main)
