"""One answer streamed to many windows: how fast a delta is at the other replica, what it costs, what it leaves alone.

Starts two servers on one database in a folder of its own, and drives them over real sockets. Three measures:

- one writer at the first server, subscribers spread over both: each delta's way from the writer's call to the
  subscriber, all texts compared with the committed turn, row writes and WAL counted in Postgres;
- the floor in the same run: one message from socket to socket through a bare echo, so that a ratio can be given;
- many streams, of whose subscribers some stop reading: what becomes of the writers' acknowledgements and of memory.
"""

import asyncio
import itertools
import json
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import asyncpg
import httpx
import typer
from figures import percentile
from rich.console import Console
from rich.table import Table
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import serve

from app.core.database import schema
from app.core.embedded_postgres.server import EmbeddedPostgres
from app.tenancy.key_text import generate_key

READY_S: Final = 90.0
SETTLE_S: Final = 30.0
MS: Final = 1000.0
READERS: Final = 5
STREAM_RATE: Final = 5.0


@dataclass(slots=True)
class Replica:
    """A server of the installation."""

    port: int
    process: asyncio.subprocess.Process

    def url(self, conversation: str) -> str:
        """Where its live view of a conversation is."""
        return f"ws://127.0.0.1:{self.port}/v1/conversations/{conversation}/live"

    def memory_mib(self) -> float:
        """What it holds in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024


@dataclass(slots=True)
class Window:
    """A subscriber: the text that it has, put together from deltas alone, and when each came."""

    paths: int
    text: str = ""
    delays_s: list[float] = field(default_factory=list[float])
    committed: str | None = None
    rereads: int = 0


@dataclass(slots=True)
class Installation:
    """Servers on one Postgres."""

    replicas: Sequence[Replica]
    key: str
    postgres: str

    @property
    def headers(self) -> dict[str, str]:
        """What opens it."""
        return {"Authorization": f"Bearer {self.key}"}

    async def conversation(self) -> str:
        """A fresh conversation."""
        async with httpx.AsyncClient(headers=self.headers) as client:
            answer = await client.post(f"http://127.0.0.1:{self.replicas[0].port}/v1/conversations", json={})
            answer.raise_for_status()
            return str(answer.json()["id"])

    async def committed(self, conversation: str, turn: str) -> str:
        """What was stored of a turn."""
        async with httpx.AsyncClient(headers=self.headers) as client:
            path = f"http://127.0.0.1:{self.replicas[1].port}/v1/conversations/{conversation}/turns/{turn}"
            return str((await client.get(path)).json()["content"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def install(root: Path, *, nats: bool, replicas_wanted: int = 2, **settings: str) -> AsyncGenerator[Installation]:
    """Servers on one data folder; with their own NATS server, or over NOTIFY. `settings` have names in lower case."""
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(root.mkdir, parents=True, exist_ok=True)
        key = str(generate_key())
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEP_")} | {
            "TURNKEEP_DATA_DIR": str(root),
            "TURNKEEP_BOOTSTRAP_KEY": key,
            "TURNKEEP_LOG_LEVEL": "warning",
            "TURNKEEP_EMBEDDER": "none",
        }
        environment |= {f"TURNKEEP_{name.upper()}": value for name, value in settings.items()}
        if nats:
            port = _free_port()
            server = await asyncio.create_subprocess_exec(
                "nats-server", "-a", "127.0.0.1", "-p", str(port), stderr=asyncio.subprocess.DEVNULL
            )
            stack.push_async_callback(_end, server)
            environment["TURNKEEP_NATS_URL"] = f"nats://127.0.0.1:{port}"
        replicas: list[Replica] = []
        for number in range(replicas_wanted):
            port = _free_port()
            log = stack.enter_context((root / f"server-{number}.log").open("wb"))
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "app.cli", "serve", env=environment | {"TURNKEEP_PORT": str(port)},
                stdout=log, stderr=log,
            )  # fmt: skip
            stack.push_async_callback(_end, process)
            await _until_ready(port)
            replicas.append(Replica(port, process))
        embedded = EmbeddedPostgres(root / "postgres", shared_buffers_mb=64)
        await asyncio.to_thread(embedded.find)
        yield Installation(replicas, key, embedded.url("postgres", schema.DATABASE))


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    await process.wait()


async def _until_ready(port: int) -> None:
    async with asyncio.timeout(READY_S), httpx.AsyncClient() as client:
        while True:
            with suppress(httpx.TransportError):
                if (await client.get(f"http://127.0.0.1:{port}/readyz")).is_success:
                    return
            await asyncio.sleep(0.1)


# one answer, many windows


async def watch(installation: Installation, window: Window, conversation: str, sent: Sequence[float]) -> None:
    """Follow a conversation until its turn is committed. `sent` holds when each code point was sent."""
    url = installation.replicas[window.paths].url(conversation)
    async with connect(url, additional_headers=installation.headers, max_size=None, compression=None) as live:
        await live.send('{"type": "subscribe"}')
        async for raw in live:
            now = time.perf_counter()
            frame = json.loads(raw)
            match frame["type"]:
                case "turn.delta":
                    window.text = window.text[: frame["offset"]] + frame["delta"]
                    window.delays_s.append(now - sent[len(window.text) - 1])
                case "turn.committed":
                    window.committed = frame["turn"]["content"]
                    return
                case "reread":
                    window.rereads += 1
                    await live.send(json.dumps({"type": "subscribe", "after_rev": frame["after_rev"]}))
                case _:
                    pass


async def write(
    installation: Installation, conversation: str, chunks: Sequence[str], *, rate: float, sent: list[float]
) -> tuple[str, float, dict[str, float]]:
    """Stream an answer at so many chunks a second; gives its turn, how long it took, and what it cost Postgres."""
    url = installation.replicas[0].url(conversation)
    probe = await asyncpg.connect(installation.postgres)
    async with connect(url, additional_headers=installation.headers, compression=None) as live:
        await live.send(json.dumps({"type": "open", "id": "o", "turn": {"role": "assistant"}, "writer": "bench"}))
        opened = json.loads(await live.recv())
        turn = str(opened["turn_id"])
        before = await _counters(probe)
        started, offset = time.perf_counter(), 0
        acks = asyncio.create_task(_drain(live, "c"))
        for number, chunk in enumerate(chunks):
            await asyncio.sleep(started + number / rate - time.perf_counter())
            now = time.perf_counter()
            sent.extend(itertools.repeat(now, len(chunk)))
            await live.send(json.dumps({"type": "chunk", "turn_id": turn, "offset": offset, "delta": chunk}))
            offset += len(chunk)
        took = time.perf_counter() - started
        await asyncio.sleep(0.6)  # the last flush
        after = await _counters(probe)
        await live.send(json.dumps({"type": "commit", "id": "c", "turn_id": turn, "length": offset}))
        async with asyncio.timeout(SETTLE_S):
            await acks
    await probe.close()
    return turn, took, {name: after[name] - before[name] for name in before}


async def _drain(live: ClientConnection, until: str) -> None:
    async for raw in live:
        frame = json.loads(raw)
        if frame["type"] == "error":
            sys.exit(f"the writer was refused: {frame['code']}")
        if frame.get("id") == until:
            return


async def _counters(probe: "asyncpg.Connection[asyncpg.Record]") -> dict[str, float]:
    await probe.execute("select pg_stat_clear_snapshot()")
    # an idle backend tells its statistics ten seconds after its last transaction at the latest
    await asyncio.sleep(11)
    row = await probe.fetchrow(
        """
        select pg_current_wal_insert_lsn() - '0/0'::pg_lsn as wal,
               sum(n_tup_ins + n_tup_upd + n_tup_del)::float8 as rows,
               sum(n_tup_ins + n_tup_upd + n_tup_del) filter (
                   where relname in ('turns', 'turn_streams', 'turn_chunks'))::float8 as turn_rows
        from pg_stat_user_tables
        """
    )
    return {} if row is None else {name: float(row[name]) for name in ("wal", "rows", "turn_rows")}


async def floor(messages: int) -> list[float]:
    """One message from a client through a bare echo and back, in seconds: what sockets and JSON alone take."""

    async def echo(peer: object) -> None:
        async for raw in peer:  # type: ignore[attr-defined]
            await peer.send(raw)  # type: ignore[attr-defined]

    delays: list[float] = []
    port = _free_port()
    async with serve(echo, "127.0.0.1", port, compression=None), connect(f"ws://127.0.0.1:{port}") as live:
        for _ in range(messages):
            now = time.perf_counter()
            await live.send(json.dumps({"type": "chunk", "delta": "word "}))
            json.loads(await live.recv())
            delays.append(time.perf_counter() - now)
    return delays


async def one_answer(
    installation: Installation, console: Console, *, chunks: Sequence[str], rate: float, windows: int, name: str
) -> bool:
    """Measure one answer; says whether every window has it byte for byte."""
    conversation, sent = await installation.conversation(), list[float]()
    watched = [Window(number % 2) for number in range(windows)]
    watching = [asyncio.create_task(watch(installation, one, conversation, sent)) for one in watched]
    await asyncio.sleep(2.0 + windows / 200)
    turn, took, cost = await write(installation, conversation, chunks, rate=rate, sent=sent)
    done, late = await asyncio.wait(watching, timeout=SETTLE_S)
    for task in late:
        task.cancel()
    stored = await installation.committed(conversation, turn)
    whole = "".join(chunks)
    same = sum(one.text == one.committed == stored == whole for one in watched)
    table = Table(title=f"{name}: {len(chunks)} chunks in {took:.1f} s to {windows} windows", box=None)
    for head in ("from the writer to", "p50 ms", "p95 ms", "p99 ms", "worst ms"):
        table.add_column(head, justify="right")
    bare = await floor(1000)
    for label, delays in (
        ("its own replica", [d for one in watched if one.paths == 0 for d in one.delays_s]),
        ("the other replica", [d for one in watched if one.paths == 1 for d in one.delays_s]),
        ("floor: an echo", bare),
    ):
        shares = [percentile(delays, share) * MS for share in (0.5, 0.95, 0.99, 1.0)]
        table.add_row(label, *(f"{value:.1f}" for value in shares))
    console.print(table)
    kib = len(whole.encode()) / 1024
    rows, wal = cost["turn_rows"] / took, cost["wal"] / 1024 / kib
    console.print(
        f"identical to the committed turn: {same} of {windows}; {len(done)} ended; rereads"
        f" {sum(one.rereads for one in watched)}; row writes for the turn {rows:.2f} a second (all tables"
        f" {cost['rows'] / took:.2f}); WAL {wal:.1f} KiB for each KiB of text ({kib:.1f} KiB)"
    )
    return same == windows


# subscribers that stop reading


async def pace(installation: Installation, conversation: str, *, seconds: float, rate: float) -> list[float]:
    """Stream one turn and commit it; gives how long each chunk's acknowledgement took."""
    delays: list[float] = []
    asked: dict[str, float] = {}
    url = installation.replicas[0].url(conversation)
    async with connect(url, additional_headers=installation.headers, compression=None) as live:
        await live.send(json.dumps({"type": "open", "id": "o", "turn": {"role": "assistant"}, "writer": "bench"}))
        turn = json.loads(await live.recv())["turn_id"]

        async def listen() -> None:
            async for raw in live:
                frame = json.loads(raw)
                identity = frame.get("id")
                if identity in asked:
                    delays.append(time.perf_counter() - asked.pop(identity))
                if identity == "end":
                    return

        listening = asyncio.create_task(listen())
        started, text = time.perf_counter(), "some words of an answer "
        for number in range(int(seconds * rate)):
            await asyncio.sleep(started + number / rate - time.perf_counter())
            asked[str(number)] = time.perf_counter()
            chunk = {"type": "chunk", "id": str(number), "turn_id": turn, "offset": number * len(text), "delta": text}
            await live.send(json.dumps(chunk))
        await live.send(json.dumps({"type": "commit", "id": "end", "turn_id": turn}))
        async with asyncio.timeout(SETTLE_S):
            await listening
    return delays


async def deaf(installation: Installation, conversation: str, ended: asyncio.Event) -> None:
    """Subscribe, and read nothing any more."""
    url = installation.replicas[0].url(conversation)
    with suppress(Exception):
        async with connect(
            url, additional_headers=installation.headers, compression=None, max_queue=1, ping_interval=None
        ) as live:
            await live.send('{"type": "subscribe"}')
            live.transport.pause_reading()
            await ended.wait()
            live.transport.abort()


async def stalled(
    installation: Installation, console: Console, *, streams: int, deaf_ones: int, seconds: float, rounds: int
) -> None:
    """Measure acknowledgements of many streams with all subscribers reading, and with some that do not, in turns."""
    table = Table(title=f"{streams} streams, {deaf_ones} subscribers that stop reading, by turns", box=None)
    for head in ("", "ack p50 ms", "ack p95 ms", "memory before MiB", "memory after MiB"):
        table.add_column(head, justify="right")
    p95: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * rounds):
        some_deaf = number % 2 == 1
        conversation = await installation.conversation()
        ended, sent = asyncio.Event(), [0.0] * 10_000_000
        reading = READERS if some_deaf else READERS + deaf_ones
        others = [asyncio.create_task(watch(installation, Window(0), conversation, sent)) for _ in range(reading)]
        if some_deaf:
            others += [asyncio.create_task(deaf(installation, conversation, ended)) for _ in range(deaf_ones)]
        await asyncio.sleep(1.0)
        before = installation.replicas[0].memory_mib()
        took = await asyncio.gather(
            *(pace(installation, conversation, seconds=seconds, rate=STREAM_RATE) for _ in range(streams))
        )
        delays = [one for some in took for one in some]
        after = installation.replicas[0].memory_mib()
        ended.set()
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        p95[some_deaf].append(percentile(delays, 0.95))
        table.add_row(
            "some read nothing" if some_deaf else "all read",
            *(f"{percentile(delays, share) * MS:.2f}" for share in (0.5, 0.95)),
            f"{before:.0f}",
            f"{after:.0f}",
        )
    console.print(table)
    calm, strained = (sorted(p95[which])[len(p95[which]) // 2] for which in (False, True))
    console.print(f"p95 of acknowledgements with deaf subscribers: {strained / calm:.2f} of that without (medians)")


def cut(text: str, chunks: int, characters: int) -> list[str]:
    """A long answer out of a text, in so many chunks."""
    long = text * (1 + chunks * characters // len(text))
    return [long[number * characters : (number + 1) * characters] for number in range(chunks)]


async def run(root: Path, text: str, *, nats: bool, chunks: int, rate: float, windows: int, seconds: float) -> None:
    """Install, measure, print."""
    console = Console(width=150)
    name = "NATS" if nats else "NOTIFY"
    async with install(root / name.lower(), nats=nats) as installation:
        same = await one_answer(
            installation, console, chunks=cut(text, chunks, 6), rate=rate, windows=windows, name=name
        )
        if seconds:
            await stalled(installation, console, streams=50, deaf_ones=10, seconds=seconds, rounds=3)
    if not same:
        sys.exit("some windows have another text than was committed")


def main(
    root: Annotated[Path, typer.Argument(help="Folder for the installations; made when missing.")],
    text: Annotated[Path, typer.Option(help="A text to stream.")] = Path("ARCHITECTURE.md"),
    nats: Annotated[bool, typer.Option(help="Over NATS too (needs nats-server).")] = True,  # noqa: FBT002
    chunks: Annotated[int, typer.Option(help="Chunks of the answer.")] = 2000,
    rate: Annotated[float, typer.Option(help="Chunks a second.")] = 50.0,
    windows: Annotated[int, typer.Option(help="Subscribers, half at each replica.")] = 200,
    seconds: Annotated[float, typer.Option(help="Length of a round with deaf subscribers; 0: none.")] = 10.0,
) -> None:
    """Measure live conversations across two replicas."""
    for over_nats in (False, True) if nats else (False,):
        asyncio.run(
            run(root.absolute(), text.read_text(), nats=over_nats, chunks=chunks, rate=rate, windows=windows,
                seconds=seconds)
        )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
