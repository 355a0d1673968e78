"""Load on an HTTP server: closed loop (each client waits for its answer) and open loop (requests at a fixed rate).

The requests are encoded before the clock starts. Nothing but `client.Client` runs inside the measured loop.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from client import Client

MAX_CONNECTIONS: Final = 64
"""Connections of the open loop. A request waits for a free one, and its time counts from when it was due."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `body` is JSON, or None for GET."""

    path: str
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A server: its root URL, the key, and the pid of its process."""

    url: str
    key: str
    pid: int


@dataclass(slots=True)
class Timings:
    """Seconds of each answered request, of the whole measurement, and of work that the server did after it."""

    seconds: list[float] = field(default_factory=list[float])
    elapsed_s: float = 0.0
    deferred_s: float = 0.0

    @property
    def per_second(self) -> float:
        """Requests answered in a second."""
        return len(self.seconds) / self.elapsed_s if self.elapsed_s else 0.0


@dataclass(frozen=True, slots=True)
class Span:
    """How long a measurement lasts: until both `seconds` and `min_requests` are reached, at most `max_requests`."""

    seconds: float
    min_requests: int
    max_requests: int = 1_000_000
    warm_up: int = 3


RequestsOf = Callable[[int], Iterator[Request]]
"""The requests of one client, by its number from 0. Endless."""


async def send(client: Client, request: Request) -> float:
    """Send one request and return the seconds until its answer was read; raises unless it is 2xx."""
    if request.body is None:
        return (await client.get("GET", request.path)).seconds
    return (await client.demand_bytes("POST", request.path, request.body)).seconds


async def warm_up(target: Target, requests_of: RequestsOf, *, clients: int, requests: int) -> None:
    """Send some requests of each client and discard the times."""

    async def work(number: int) -> None:
        requests_of_client = requests_of(number)
        async with Client(target.url, target.key) as client:
            for _ in range(requests):
                await send(client, next(requests_of_client))

    await asyncio.gather(*(work(number) for number in range(clients)))


async def closed_loop(target: Target, requests_of: RequestsOf, *, clients: int, span: Span) -> Timings:
    """Let each client send its next request when the last one is answered."""
    timings, sent = Timings(), count()

    async def work(number: int, ends_at: float) -> None:
        requests_of_client = requests_of(number)
        async with Client(target.url, target.key) as client:
            while (position := next(sent)) < span.max_requests:
                if position >= span.min_requests and time.perf_counter() >= ends_at:
                    return
                timings.seconds.append(await send(client, next(requests_of_client)))

    started = time.perf_counter()
    await asyncio.gather(*(work(number, started + span.seconds) for number in range(clients)))
    timings.elapsed_s = time.perf_counter() - started
    return timings


async def open_loop(target: Target, requests_of: RequestsOf, *, per_second: float, span: Span) -> Timings:
    """Send requests at even intervals, however slow the answers are; times count from when each was due."""
    timings = Timings()
    requests = requests_of(0)
    total = min(span.max_requests, max(span.min_requests, int(per_second * span.seconds)))
    free: asyncio.LifoQueue[Client] = asyncio.LifoQueue()

    async def one(due: float, request: Request) -> None:
        client = await free.get()
        try:
            await send(client, request)
            timings.seconds.append(time.perf_counter() - due)
        finally:
            free.put_nowait(client)

    async with AsyncExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            free.put_nowait(await stack.enter_async_context(Client(target.url, target.key)))
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(total):
                due = started + number / per_second
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(one(due, next(requests)))
        timings.elapsed_s = time.perf_counter() - started
    return timings
