"""Appends of several megabytes, many at a time: the memory that the server takes, and how it answers meanwhile.

    .venv/bin/python bench/inflight.py --appends 50 --parallel 8

Starts a server on a database in a folder of its own and appends turns of about 1 MiB each over HTTP. A 503 is repeated
after its `Retry-After`, until every append is stored. Another process asks `/healthz` all the while. Memory is the
resident set of the server's process, from /proc (Linux only).

Prints the memory at the start, at its peak and a minute after the last append; p50, p95 and the longest time of
`/healthz` and of an append; and the number of 503 answers. Exits with 1 where a turn is missing or a goal is not
reached.
"""

import asyncio
import http.client
import itertools
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import typer
from client import Client, RequestFailedError
from figures import percentile
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from server import Server, serve
from suite import processes

MS: Final = 1000.0
READY_S: Final = 90.0
PROBE_EVERY_S: Final = 0.05
SAMPLE_EVERY_S: Final = 0.05
TEXT_BYTES: Final = 2**20 - 2048
MAX_PEAK_MIB: Final = 150.0
MAX_LATER_MIB: Final = 40.0
MAX_HEALTH_MS: Final = 250.0

Script = Literal["latin", "cjk"]


class _Identified(BaseModel):
    id: str


class _Counted(BaseModel):
    turn_count: int


@dataclass(slots=True)
class Figures:
    """What was measured. Times in seconds, memory in MiB."""

    start_mib: float = 0.0
    peak_mib: float = 0.0
    later_mib: float = 0.0
    health_s: list[float] = field(default_factory=list[float])
    append_s: list[float] = field(default_factory=list[float])
    stored_s: list[float] = field(default_factory=list[float])
    """From the first attempt to the answer that stored, waits included."""
    refused: Counter[str] = field(default_factory=Counter[str])
    took_s: float = 0.0
    cpu_s: float = 0.0
    missing: int = 0


def texts(script: Script, count: int) -> list[str]:
    """So many texts of about 1 MiB in UTF-8: sentences of words from a vocabulary, or of CJK characters."""
    draw = random.Random(7)  # noqa: S311 - repeatable, not secret
    if script == "latin":
        letters = "abcdefghijklmnopqrstuvwxyz"
        vocabulary = ["".join(draw.choices(letters, k=draw.randint(2, 10))) for _ in range(20_000)]
        return [" ".join(draw.choices(vocabulary, k=200_000))[:TEXT_BYTES] for _ in range(count)]
    vocabulary = [chr(draw.randint(0x4E00, 0x9000)) for _ in range(3000)]
    return ["".join(draw.choices(vocabulary, k=TEXT_BYTES // 3)) for _ in range(count)]


def probe_health(port: int | None, seconds: "Queue[list[float]]", stopping: "Event") -> None:
    """Ask `/healthz` by a timetable over one connection, until `stopping` is set.

    Times count from when a request was due: those that had to wait for a slow answer before them count as slow too.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    due = time.perf_counter()
    found: list[float] = []
    while not stopping.wait(max(0.0, due - time.perf_counter())):
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"/healthz answered {answer.status}")
        found.append(time.perf_counter() - due)
        due += PROBE_EVERY_S
    connection.close()
    seconds.put(found)


@asynccontextmanager
async def probing(url: str, figures: Figures) -> AsyncGenerator[None]:
    """Ask `/healthz` from a process of its own as long as the block lasts."""
    port = urlsplit(url).port
    spawning = get_context("spawn")
    seconds = spawning.Queue()
    stopping = spawning.Event()
    process = spawning.Process(target=probe_health, args=(port, seconds, stopping), daemon=True)
    process.start()
    try:
        yield
    finally:
        stopping.set()
        figures.health_s = await asyncio.to_thread(seconds.get, timeout=READY_S)
        process.join()


async def sample_memory(server: Server, figures: Figures) -> None:
    """Keep the highest resident set that is seen, until cancelled."""
    while True:
        figures.peak_mib = max(figures.peak_mib, processes.memory_mib(server.pid))
        await asyncio.sleep(SAMPLE_EVERY_S)


async def append_all(
    server: Server, conversation: str, body: bytes, numbers: "itertools.count[int]", appends: int, figures: Figures
) -> None:
    """Append one body after the other to a conversation, until there have been enough in all."""
    async with Client(server.url, server.key) as client:
        while next(numbers) < appends:
            began = time.perf_counter()
            while True:
                answer = await client.post_bytes("append", f"/v1/conversations/{conversation}/turns", body)
                if answer.status != http.HTTPStatus.SERVICE_UNAVAILABLE:
                    break
                figures.refused[json.loads(answer.body)["code"]] += 1
                await asyncio.sleep(1.0 if answer.retry_after_s is None else answer.retry_after_s)
            if answer.status != http.HTTPStatus.CREATED:
                raise RequestFailedError("append", answer.status, answer.body[:300].decode())
            figures.append_s.append(answer.seconds)
            figures.stored_s.append(time.perf_counter() - began)


async def measure(server: Server, *, appends: int, parallel: int, turns: int, script: Script, rest_s: float) -> Figures:
    """Warm up, append everything, wait."""
    figures = Figures()
    contents = texts(script, turns)
    body = json.dumps(
        {"turns": [{"role": "user", "content": content} for content in contents]}, ensure_ascii=False
    ).encode()
    async with Client(server.url, server.key) as client:
        conversations: list[str] = []
        for number in range(parallel):
            made = await client.demand("create", "/v1/conversations", {"external_id": f"large {number}"})
            conversations.append(_Identified.model_validate_json(made.body).id)
        small = await client.demand("create", "/v1/conversations", {"external_id": "small"})
        path = f"/v1/conversations/{_Identified.model_validate_json(small.body).id}/turns"
        await client.demand("append", path, {"turns": [{"role": "user", "content": "Good morning."}]})
        await asyncio.sleep(2.0)
        processes.reset_peak_memory(server.pid)
        figures.start_mib = figures.peak_mib = processes.memory_mib(server.pid)
        sampling = asyncio.create_task(sample_memory(server, figures))
        began, cpu_s, numbers = time.perf_counter(), processes.cpu_s(server.pid), itertools.count()
        async with probing(server.url, figures):
            await asyncio.gather(*(append_all(server, one, body, numbers, appends, figures) for one in conversations))
            figures.took_s, figures.cpu_s = time.perf_counter() - began, processes.cpu_s(server.pid) - cpu_s
        await asyncio.sleep(rest_s)
        sampling.cancel()
        figures.later_mib = processes.memory_mib(server.pid)
        figures.peak_mib = max(figures.peak_mib, processes.memory_mib(server.pid, "VmHWM"))
        stored = 0
        for one in conversations:
            answer = await client.get("read", f"/v1/conversations/{one}")
            stored += _Counted.model_validate_json(answer.body).turn_count
        figures.missing = appends * turns - stored
    return figures


def _row(table: Table, name: str, seconds: Sequence[float]) -> None:
    table.add_row(name, str(len(seconds)), *(f"{percentile(seconds, share) * MS:.0f}" for share in (0.5, 0.95, 1.0)))


def report(console: Console, figures: Figures, rest_s: float) -> bool:
    """Print the figures; says whether the goals are reached."""
    table = Table("ms", "count", "p50", "p95", "longest")
    _row(table, "/healthz", figures.health_s)
    _row(table, "append, the answer that stored", figures.append_s)
    _row(table, "append, waits included", figures.stored_s)
    console.print(table)
    peak, later = figures.peak_mib - figures.start_mib, figures.later_mib - figures.start_mib
    console.print(
        f"memory: {figures.start_mib:.0f} MiB at the start, {figures.peak_mib:.0f} at the peak ({peak:+.0f}),"
        f" {figures.later_mib:.0f} after {rest_s:.0f} s ({later:+.0f})"
    )
    console.print(
        f"{figures.took_s:.1f} s in all, {figures.cpu_s:.1f} s of processor time of the server;"
        f" 503: {dict(figures.refused) or 'none'}; turns missing: {figures.missing}"
    )
    health_ms = percentile(figures.health_s, 0.95) * MS
    return figures.missing == 0 and peak <= MAX_PEAK_MIB and later <= MAX_LATER_MIB and health_ms <= MAX_HEALTH_MS


async def _main(*, appends: int, parallel: int, turns: int, script: Script, rest_s: float) -> int:
    with tempfile.TemporaryDirectory(prefix="tk-inflight-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        await asyncio.to_thread(root.chmod, 0o711)
        async with serve(root) as server:
            figures = await measure(
                server, appends=appends, parallel=parallel, turns=turns, script=script, rest_s=rest_s
            )
        log = await asyncio.to_thread((root / "server.log").read_text)
        if log:
            Console(stderr=True).print(log[-4000:])
    return 0 if report(Console(width=120), figures, rest_s) else 1


def main(
    appends: Annotated[int, typer.Option(help="Appends in all.")] = 50,
    parallel: Annotated[int, typer.Option(help="Appends at a time.")] = 8,
    turns: Annotated[int, typer.Option(help="Turns of about 1 MiB in each.")] = 7,
    script: Annotated[Script, typer.Option(help="What the texts are written in.")] = "latin",
    rest_s: Annotated[float, typer.Option(help="Seconds from the last append to the last look at the memory.")] = 60.0,
) -> None:
    """Measure."""
    raise SystemExit(asyncio.run(_main(appends=appends, parallel=parallel, turns=turns, script=script, rest_s=rest_s)))


if __name__ == "__main__":
    typer.run(main)
