"""A running installation to measure: Postgres, Turnkeep, the bare application, and conversations of the wanted sizes.

Postgres is kept running while Turnkeep is restarted. Every measurement reads the CPU time of the measured server's
process and of all processes of Postgres before and after, and divides by the requests.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final
from uuid import uuid4

import asyncpg
from client import Client
from figures import percentile
from pydantic import BaseModel, JsonValue
from server import Server, free_port, running, serve
from suite import floor, processes
from suite.figure import Figure
from suite.load import Request, RequestsOf, Span, Target, closed_loop, open_loop, warm_up
from suite.texts import Message, TextSource

from app.core.database import schema
from app.core.embedded_postgres.server import EmbeddedPostgres

MS: Final = 1000.0
FILL_BATCH: Final = 100
_FILLERS: Final = 2
_QUIET_S: Final = 300.0
_BENCH: Final = Path(__file__).parents[1]
_DUE: Final = "select exists (select from jobs where state = 'queued' and (locked_by is not null or run_at <= now()))"


class _Identified(BaseModel):
    id: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    conversations: Sequence[int]
    tenant: int
    session: int
    rounds: int
    span: Span
    batch: int = 50
    bulk: int = 500
    cold: int = 3
    many: Sequence[int] = (8, 32)
    settle_s: float = 1.0

    @property
    def middle(self) -> int:
        """The conversation that is measured under load, cold and by contexts."""
        return self.conversations[len(self.conversations) // 2]


FULL: Final = Sizes((500, 6_000, 20_000), 60_000, 5_000, 3, Span(2.0, 40))
QUICK: Final = Sizes(
    (20, 40), 100, 20, 1, Span(0.0, 4, 8, warm_up=1), batch=5, bulk=10, cold=1, many=(2,), settle_s=0.0
)


@dataclass(frozen=True, slots=True)
class Case:
    """One operation to measure. `requests_of` gives the requests of each client by its number."""

    name: str
    requests_of: RequestsOf
    clients: int = 1
    items: int = 1
    floor: str | None = None
    at_floor: bool = False
    open_rate: float | None = None


@dataclass(slots=True)
class Workbench:
    """The installation, and the figures of all rounds so far."""

    sizes: Sizes
    root: Path
    texts: TextSource
    server: Server
    bare: Target
    postgres_pid: int
    connection: floor.Connection
    report: Callable[[str], None]
    stack: AsyncExitStack
    figures: dict[str, list[Figure]] = field(default_factory=dict[str, list[Figure]])
    conversations: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    """Filled conversations, by size and number."""
    entries: int = 0
    is_vacuumed: bool = False
    session: str = field(default_factory=lambda: f"bench-{uuid4()}")
    session_turns: int = 0
    """The session of an agent, and how many turns it was filled with."""

    @property
    def turnkeep(self) -> Target:
        """The measured service."""
        return Target(self.server.url, self.server.key, self.server.pid)

    def client(self) -> Client:
        """Open a connection to the service."""
        return Client(self.server.url, self.server.key)

    async def create(self) -> str:
        """Create an empty conversation and return its id."""
        async with self.client() as client:
            answer = await client.demand("create", "/v1/conversations", {})
        return _Identified.model_validate_json(answer.body).id

    async def conversation(self, size: int, number: int = 0) -> str:
        """Return the id of a conversation with so many turns; fills it when it is first asked for."""
        if (size, number) not in self.conversations:
            self.conversations[size, number] = await self._fill(size)
        return self.conversations[size, number]

    async def fill_tenant(self, entries: int) -> None:
        """Add conversations of the smallest size until the tenant has so many entries."""
        smallest = min(self.sizes.conversations)
        number = 1
        while self.entries < entries:
            await self.conversation(smallest, number)
            number += 1

    async def _fill(self, size: int) -> str:
        created = await self.create()
        started = time.perf_counter()
        bodies = iter([
            append_body(list(islice(self.texts.messages(), min(FILL_BATCH, size - at))))
            for at in range(0, size, FILL_BATCH)
        ])  # fmt: skip

        async def work() -> None:
            async with self.client() as client:
                for body in bodies:
                    await client.demand_bytes("fill", f"/v1/conversations/{created}/turns", body)

        await asyncio.gather(*(work() for _ in range(_FILLERS)))
        self.entries += size
        self.is_vacuumed = False
        self.report(f"filled {size} turns at {size / (time.perf_counter() - started):.0f} a second")
        return created

    async def quiet(self) -> None:
        """Wait until no job is due or running; after a fill, vacuum and checkpoint too."""
        async with asyncio.timeout(_QUIET_S):
            while await self.connection.fetchval(_DUE):  # noqa: ASYNC110 - another process decides
                await asyncio.sleep(0.1)
        if not self.is_vacuumed:
            await self.connection.execute("vacuum analyze")
            await self.connection.execute("checkpoint")
            self.is_vacuumed = True
        await asyncio.sleep(self.sizes.settle_s)

    async def measure(self, part: str, case: Case) -> Figure:
        """Measure one operation once, record its figure, and return it."""
        await self.quiet()
        target = self.bare if case.at_floor else self.turnkeep
        span = self.sizes.span
        await warm_up(target, case.requests_of, clients=case.clients, requests=span.warm_up)
        before = self._cpu_s(target)
        if case.open_rate is None:
            timings = await closed_loop(target, case.requests_of, clients=case.clients, span=span)
        else:
            timings = await open_loop(target, case.requests_of, per_second=case.open_rate, span=span)
        after = self._cpu_s(target)
        count = len(timings.seconds)
        server_ms, postgres_ms = (MS * (end - start) / count for start, end in zip(before, after, strict=True))
        figure = Figure(
            name=case.name,
            part=part,
            loop="closed" if case.open_rate is None else "open",
            clients=case.clients,
            items=case.items,
            requests=count,
            p50_ms=MS * percentile(timings.seconds, 0.5),
            p95_ms=MS * percentile(timings.seconds, 0.95),
            per_second=timings.per_second,
            server_cpu_ms=server_ms,
            postgres_cpu_ms=postgres_ms,
            floor=case.floor,
        )
        self.keep(figure)
        return figure

    def keep(self, figure: Figure) -> None:
        """Add the figure of one round."""
        self.figures.setdefault(figure.name, []).append(figure)
        self.report(f"{figure.name}: {_shown(figure)}")

    async def restart(self) -> None:
        """Restart Turnkeep; Postgres goes on."""
        await self.stack.aclose()
        self.server = await self.stack.enter_async_context(serve(self.root, key=self.server.key))

    def _cpu_s(self, target: Target) -> tuple[float, float]:
        return processes.cpu_s(target.pid), processes.tree_cpu_s(self.postgres_pid)


def append_body(messages: Sequence[Message]) -> bytes:
    """Encode an append, for the service and for the bare application."""
    turns: list[JsonValue] = [{"role": message.role, "content": message.content} for message in messages]
    return encode({"turns": turns})


def encode(body: dict[str, JsonValue]) -> bytes:
    """Encode a body as JSON."""
    return json.dumps(body, ensure_ascii=False).encode()


def same_for_all(requests: Callable[[], Iterator[Request]]) -> RequestsOf:
    """Let all clients send requests of one kind."""
    return lambda _: requests()


def _shown(figure: Figure) -> str:
    if figure.mib is not None:
        return f"{figure.mib:.0f} MiB"
    shown = [] if figure.p50_ms is None else [f"p50 {figure.p50_ms:.2f} ms"]
    if figure.per_second is not None:
        shown.append(f"{figure.value('per_second'):.0f} a second")
    if figure.server_cpu_ms is not None:
        shown.append(f"CPU {figure.server_cpu_ms:.2f} + {figure.postgres_cpu_ms or 0:.2f} ms")
    return ", ".join(shown)


@asynccontextmanager
async def open_workbench(root: Path, sizes: Sizes, report: Callable[[str], None]) -> AsyncGenerator[Workbench]:
    """Start Postgres, Turnkeep and the bare application on a database below `root`."""
    async with AsyncExitStack() as outer:
        embedded = EmbeddedPostgres(root / "postgres", shared_buffers_mb=256)
        await asyncio.to_thread(embedded.start)
        outer.push_async_callback(asyncio.to_thread, embedded.close)
        stack = await outer.enter_async_context(AsyncExitStack())
        server = await stack.enter_async_context(serve(root))
        connection = await asyncpg.connect(embedded.url("postgres", schema.DATABASE))
        outer.push_async_callback(connection.close)
        await connection.execute("set statement_timeout = 0")
        # vacuums and checkpoints run between measurements, so that their CPU time is in none
        await connection.execute("alter system set autovacuum = off")
        await connection.execute("select pg_reload_conf()")
        await floor.create_tables(connection)
        bare = await outer.enter_async_context(_bare_application(root, server.postgres))
        backend = int(await connection.fetchval("select pg_backend_pid()") or 0)
        yield Workbench(sizes, root, TextSource(1), server, bare, processes.parent(backend), connection, report, stack)


@asynccontextmanager
async def _bare_application(root: Path, database: str) -> AsyncGenerator[Target]:
    port = free_port()
    command = (sys.executable, "-m", "suite.floor_app", str(port), database)
    environment = os.environ | {"PYTHONPATH": str(_BENCH)}
    async with running(command, environment, port=port, ready_path="/openapi.json", log=root / "floor.log") as pid:
        yield Target(f"http://127.0.0.1:{port}", "none", pid)
