"""Measures a server that is asked for more than it can do: `python bench/overload.py [--seconds 60]`.

1. *Sustainable*: 16 clients of one tenant append and read in a closed loop; their rate is what the server sustains.
2. *Alone*: one client of another tenant reads, appends and searches, with no other load.
3. *Fairness*: the same while 64 clients of the first tenant ask as fast as they can.
4. *Overload*: requests of the first tenant start at four times the sustainable rate, whether or not earlier ones were
   answered, while the other tenant's client and a probe of `/healthz` go on.
   The loads of 3 and 4 come from a process of their own, which gives way to the others where all share the processors:
   as if they came from another machine.
5. *Recovery*: the other tenant's client alone again; memory, and every append that was acknowledged is read back.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from client import Client, RequestFailedError
from server import Server, serve

CLIENTS = 16
FLOOD_CLIENTS = 64
OVERLOAD = 4
MOST_OPEN = 1500
PAUSE_S = 0.02
RETURN_S = 11
"""A server returns free memory to the system every ten seconds."""
GIVE_WAY = 10
"""How much less processor time the loads get than the server (`nice`)."""


@dataclass
class Figures:
    """Times of accepted calls, and statuses of all, of one phase."""

    times_s: list[float] = field(default_factory=list[float])
    statuses: Counter[int] = field(default_factory=Counter[int])

    def record(self, status: int, seconds: float) -> None:
        """Note an answer."""
        self.statuses[status] += 1
        if 0 < status < 400:  # noqa: PLR2004 - of HTTP
            self.times_s.append(seconds)

    def shown(self) -> str:
        """Return p50, p95 and the largest time in milliseconds, and the statuses."""
        if not self.times_s:
            return f"none accepted, {dict(self.statuses)}"
        p95 = statistics.quantiles(self.times_s, n=20)[-1] if len(self.times_s) > 1 else self.times_s[0]
        p50, most = statistics.median(self.times_s), max(self.times_s)
        statuses = dict(sorted(self.statuses.items()))
        return f"p50 {p50 * 1000:.1f} ms, p95 {p95 * 1000:.1f} ms, max {most * 1000:.0f} ms, {statuses}"


class Flood(NamedTuple):
    """The figures of a load, and how many calls were not started since too many were open."""

    figures: Figures
    skipped: int


@dataclass
class Tenant:
    """A tenant with a conversation, and the texts that were acknowledged."""

    url: str
    key: str
    conversations: list[str] = field(default_factory=list[str])
    acknowledged: dict[str, str] = field(default_factory=dict[str, str])
    number: "itertools.count[int]" = field(default_factory=itertools.count)

    async def fill(self, conversations: int) -> None:
        """Make conversations with a few turns."""
        async with Client(self.url, self.key) as client:
            for _ in range(conversations):
                made = await client.demand("create", "/v1/conversations", {})
                self.conversations.append(json.loads(made.body)["id"])
                await self.append(client, Figures(), self.conversations[-1])

    async def append(self, client: Client, figures: Figures, conversation: str) -> None:
        """Append a turn, and record it if it was acknowledged."""
        text = f"turn {next(self.number)} about overloaded bridges"
        body = json.dumps({"turns": [{"role": "user", "content": text}]}).encode()
        answer = await asked(client, figures, f"/v1/conversations/{conversation}/turns", body)
        if answer is not None:
            self.acknowledged[json.loads(answer)["turns"][0]["id"]] = conversation

    async def mixed(self, client: Client, figures: Figures, step: int) -> None:
        """Make one call: two of four read, one appends, one searches."""
        conversation = self.conversations[step % len(self.conversations)]
        if step % 4 == 0:
            await self.append(client, figures, conversation)
        elif step % 4 == 1:
            body = json.dumps({"query": "bridges", "k": 5}).encode()
            await asked(client, figures, f"/v1/conversations/{conversation}/recall", body)
        else:
            await asked(client, figures, f"/v1/conversations/{conversation}/turns?limit=20")


async def asked(client: Client, figures: Figures, path: str, body: bytes | None = None) -> bytes | None:
    """Send a request, record its answer, and return the body if it was accepted."""
    started = time.perf_counter()
    try:
        sent = client.get(path, path) if body is None else client.post_bytes(path, path, body)
        answer = await sent
    except RequestFailedError as error:
        figures.record(error.status, time.perf_counter() - started)
        return None
    figures.record(answer.status, answer.seconds)
    return answer.body if answer.status < 400 else None  # noqa: PLR2004 - of HTTP


async def many_clients(seconds: float, tenant: Tenant) -> Flood:
    """Let 64 clients call in a closed loop."""
    return Flood(await closed_loop(tenant, FLOOD_CLIENTS, seconds), 0)


async def closed_loop(tenant: Tenant, clients: int, seconds: float, *, pause_s: float = 0.0) -> Figures:
    """Let each client send its next call when the last one is answered."""
    figures, until = Figures(), time.perf_counter() + seconds

    async def run(offset: int) -> None:
        async with Client(tenant.url, tenant.key) as client:
            for step in itertools.count(offset):
                if time.perf_counter() >= until:
                    return
                await tenant.mixed(client, figures, step)
                if pause_s:
                    await asyncio.sleep(pause_s)

    await asyncio.gather(*(run(number) for number in range(clients)))
    return figures


async def open_loop(per_s: float, seconds: float, tenant: Tenant) -> Flood:
    """Start calls at a rate."""
    figures, open_calls, skipped = Figures(), set[asyncio.Task[None]](), 0
    idle: list[Client] = []
    started = time.perf_counter()

    async def one(step: int) -> None:
        client = idle.pop() if idle else await Client(tenant.url, tenant.key).__aenter__()
        await tenant.mixed(client, figures, step)
        idle.append(client)

    for step in range(int(per_s * seconds)):
        delay = started + step / per_s - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        if len(open_calls) >= MOST_OPEN:
            skipped += 1
            continue
        task = asyncio.create_task(one(step))
        open_calls.add(task)
        task.add_done_callback(open_calls.discard)
    await asyncio.gather(*open_calls, return_exceptions=True)
    for client in idle:
        with suppress(OSError):
            await client.__aexit__(None, None, None)
    return Flood(figures, skipped)


def flood(tenant: Tenant, load: Callable[[Tenant], Coroutine[None, None, Flood]]) -> tuple[Flood, dict[str, str]]:
    """Run a load in this process; return what came of it, and the acknowledged turns with their conversations."""
    return asyncio.run(load(tenant)), tenant.acknowledged


async def probing(url: str, stopped: asyncio.Event) -> Figures:
    """Ask for `/healthz` ten times a second."""
    figures = Figures()
    async with Client(url, "none") as client:
        while not stopped.is_set():
            await asked(client, figures, "/healthz")
            await asyncio.sleep(0.1)
    return figures


async def beside(
    flooding: Tenant, other: Tenant, load: Callable[[Tenant], Coroutine[None, None, Flood]]
) -> tuple[Flood, Figures, Figures]:
    """Run a load; return what came of it, and the figures of the other tenant's client and of the probe meanwhile."""
    stopped, figures = asyncio.Event(), Figures()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=os.nice, initargs=(GIVE_WAY,)) as process:
        probe = asyncio.create_task(probing(other.url, stopped))
        running = asyncio.get_running_loop().run_in_executor(process, flood, flooding, load)
        async with Client(other.url, other.key) as client:
            step = 0
            while not running.done():
                await other.mixed(client, figures, step)
                step += 1
                await asyncio.sleep(PAUSE_S)
        flooded, acknowledged = await running
    flooding.acknowledged |= acknowledged
    stopped.set()
    return flooded, figures, await probe


async def lost_appends(tenant: Tenant) -> int:
    """Return how many acknowledged turns are not stored."""
    stored: set[str] = set()
    async with Client(tenant.url, tenant.key) as client:
        for conversation in tenant.conversations:
            cursor = ""
            while True:
                path = f"/v1/conversations/{conversation}/turns?limit=200&order=asc{cursor}"
                page = json.loads((await client.get("history", path)).body)
                stored |= {turn["id"] for turn in page["data"]}
                if not page["has_more"]:
                    break
                cursor = f"&cursor={page['next_cursor']}"
    return len(tenant.acknowledged.keys() - stored)


async def memory_mib(server: Server) -> tuple[float, float]:
    """Return the resident memory of a server in MiB, and that of its search index, which grows with what is stored."""
    async with Client(server.url, server.key) as client:
        metrics = (await client.get("metrics", "/metrics")).body.decode()
    found = re.search(r"^turnkeep_search_index_bytes (\S+)$", metrics, re.MULTILINE)
    index = 0.0 if found is None else float(found[1]) / 2**20
    return _resident_mib(server.pid), index


def _resident_mib(pid: int) -> float:
    resident = re.search(r"^VmRSS:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return 0.0 if resident is None else int(resident[1]) / 2**10


async def measure(server: Server, seconds: float) -> None:
    """Run all phases, and print their figures."""
    flooding = Tenant(server.url, server.key)
    async with Client(server.url, server.key) as client:
        made = await client.demand("create tenant", "/v1/admin/tenants", {"name": "other"})
    other = Tenant(server.url, json.loads(made.body)["first_key"]["key"])
    await flooding.fill(32)
    await other.fill(4)
    await closed_loop(flooding, CLIENTS, 3)
    sustained = await closed_loop(flooding, CLIENTS, 10)
    per_s = len(sustained.times_s) / 10
    print(f"sustainable, {CLIENTS} clients: {per_s:.0f} calls a second, {sustained.shown()}")
    before, index_before = await memory_mib(server)
    alone = await closed_loop(other, 1, 10, pause_s=PAUSE_S)
    print(f"other tenant alone: {alone.shown()}")
    _, fair, health = await beside(flooding, other, partial(many_clients, seconds / 2))
    print(f"other tenant beside {FLOOD_CLIENTS} clients: {fair.shown()}; healthz {health.shown()}")
    flooded, other_figures, health = await beside(flooding, other, partial(open_loop, OVERLOAD * per_s, seconds))
    print(f"overload at {OVERLOAD * per_s:.0f} a second: {flooded.figures.shown()}, {flooded.skipped} not sent")
    print(f"other tenant meanwhile: {other_figures.shown()}; healthz {health.shown()}")
    print(f"other tenant in the first 5 s after: {(await closed_loop(other, 1, 5, pause_s=PAUSE_S)).shown()}")
    await asyncio.sleep(RETURN_S)
    after, index_after = await memory_mib(server)
    print(
        f"memory: {before:.0f} MiB before, {index_before:.0f} of it search index; after {after:.0f}, {index_after:.0f}"
    )
    acknowledged = len(flooding.acknowledged) + len(other.acknowledged)
    print(f"acknowledged {acknowledged}, lost {await lost_appends(flooding) + await lost_appends(other)}")


async def main() -> None:
    """Start a server, and measure it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the overload lasts")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="turnkeep-overload-") as root:
        async with serve(Path(root)) as server:
            await measure(server, seconds)


if __name__ == "__main__":
    asyncio.run(main())
