"""What more than one server process costs: `python bench/replicas.py [--part processes] [--part windows]`.

- *processes*: processor time of a request with one and with two processes of `turnkeep serve` on one port, by turns.
  The time is that of all processes of the service (with their worker), and of Postgres. Clients append, read and search
  in a closed loop, as in `overload.py`.
- *windows*: three servers with NATS, and live windows that are spread over them, several to a conversation: the memory
  that an idle one takes, and the time of each delta from its writer to all windows, while some answers are streamed.

Linux only: processor time and memory are read from /proc. Needs `nats-server` for the second part.
"""

import asyncio
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import httpx
import typer
from client import Client
from figures import percentile
from live import Installation, Replica, install
from overload import Tenant, closed_loop
from server import Server, serve
from suite import processes
from websockets.asyncio.client import ClientConnection, connect

PARTS: Final = ("processes", "windows")
REPLICAS: Final = 3
CLIENTS: Final = 16
CONVERSATIONS: Final = 500
_WARM_S: Final = 5.0
_START_S: Final = 120.0
_AT_ONCE: Final = 30
_SETTLE_S: Final = 8.0
_WORDS: Final = "some words of an answer "
_KIB: Final = 1024
_LIMITS: Final = ("live_max_connections", "live_max_connections_per_tenant")


@contextmanager
def scratch_folder() -> Generator[Path]:
    """Give a folder for an installation."""
    with tempfile.TemporaryDirectory(prefix="turnkeep-replicas-") as folder:
        root = Path(folder)
        root.chmod(0o711)  # as root, Postgres runs as another user
        yield root


# processor time of a request


async def cpu_of_a_call(count: int, seconds: float) -> tuple[float, float, float]:
    """Return milliseconds of the service and of Postgres for a call, and calls a second, of so many processes."""
    with scratch_folder() as root:
        async with serve(root, processes=str(count)) as server:
            await until_announced(server, count + (count > 1))
            tenant = Tenant(server.url, server.key)
            await tenant.fill(32)
            await closed_loop(tenant, CLIENTS, _WARM_S)
            postmaster = int((root / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
            before = _tree_s(server.pid, postmaster), processes.tree_cpu_s(postmaster)
            done = len((await closed_loop(tenant, CLIENTS, seconds)).times_s)
            after = _tree_s(server.pid, postmaster), processes.tree_cpu_s(postmaster)
    service, postgres = (1000 * (later - earlier) / done for earlier, later in zip(before, after, strict=True))
    return service, postgres, done / seconds


async def until_announced(server: Server, count: int) -> None:
    """Wait until so many processes have started; the port is open when the first one has."""
    async with asyncio.timeout(_START_S), Client(server.url, server.key) as client:
        while len(json.loads((await client.get("replicas", "/v1/admin/replicas")).body)["data"]) < count:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(1)


def _tree_s(pid: int, postmaster: int) -> float:
    """Return the CPU time of a process and of its running descendants, without Postgres."""
    children = [child for child in processes.children(pid) if child != postmaster]
    return processes.cpu_s(pid) + sum(_tree_s(child, postmaster) for child in children)


async def compare_processes(rounds: int, seconds: float) -> None:
    """Measure one and two processes by turns, and print medians and their ratio."""
    found: dict[int, list[tuple[float, float, float]]] = {1: [], 2: []}
    for _, count in itertools.product(range(rounds), found):
        found[count].append(await cpu_of_a_call(count, seconds))
        service, postgres, rate = found[count][-1]
        print(f"{count} process(es): service {service:.2f} ms, Postgres {postgres:.2f} ms a call, {rate:.0f} a second")
    one, two = ([statistics.median(column) for column in zip(*found[count], strict=True)] for count in found)
    print(
        f"medians of {rounds}: service {one[0]:.2f} and {two[0]:.2f} ms a call, {two[0] / one[0]:.2f} times;"
        f" with Postgres {(two[0] + two[1]) / (one[0] + one[1]):.2f} times; {one[2]:.0f} and {two[2]:.0f} a second"
    )


# live windows


@dataclass(slots=True)
class Followed:
    """A conversation with its windows: when each character of the answer was sent, and the delays of its deltas."""

    id: str
    sent: list[float] = field(default_factory=list[float])
    delays_s: list[float] = field(default_factory=list[float])
    committed: int = 0
    rereads: int = 0


async def follow(window: ClientConnection, followed: Followed) -> None:
    """Read the frames of a window until it is closed. One whose text is not the committed one ends the run."""
    text = 0
    async for raw in window:
        now = time.perf_counter()
        frame = json.loads(raw)
        if frame["type"] == "turn.delta":
            text = int(frame["offset"]) + len(frame["delta"])
            followed.delays_s.append(now - followed.sent[text - 1])
        elif frame["type"] == "turn.committed":
            if len(frame["turn"]["content"]) != len(followed.sent):
                raise RuntimeError("a window has another text than was sent")
            followed.committed += 1
        elif frame["type"] == "reread":
            followed.rereads += 1


async def open_window(installation: Installation, replica: Replica, conversation: str) -> ClientConnection:
    """Open a window, and return when it has its snapshot."""
    window = await connect(
        replica.url(conversation), additional_headers=installation.headers, compression=None, proxy=None,
        open_timeout=120, ping_interval=None,
    )  # fmt: skip
    await window.send(json.dumps({"type": "subscribe"}))
    while json.loads(await window.recv())["type"] != "snapshot":
        pass
    return window


async def stream_answer(
    installation: Installation, replica: Replica, followed: Followed, *, chunks: int, per_s: float
) -> None:
    """Stream an answer into a conversation and commit it."""
    async with connect(
        replica.url(followed.id), additional_headers=installation.headers, compression=None, proxy=None
    ) as writer:
        await writer.send(json.dumps({"type": "open", "id": "o", "turn": {"role": "assistant"}, "writer": "bench"}))
        turn = json.loads(await writer.recv())["turn_id"]
        started = time.perf_counter()
        for number in range(chunks):
            await asyncio.sleep(started + number / per_s - time.perf_counter())
            offset = len(followed.sent)
            followed.sent.extend([time.perf_counter()] * len(_WORDS))
            await writer.send(json.dumps({"type": "chunk", "turn_id": turn, "offset": offset, "delta": _WORDS}))
        await writer.send(json.dumps({"type": "commit", "id": "c", "turn_id": turn, "length": len(followed.sent)}))
        async for raw in writer:
            frame = json.loads(raw)
            if frame["type"] == "error":
                raise RuntimeError(f"the writer was refused: {frame['code']}")
            if frame.get("id") == "c":
                return


async def make_conversations(installation: Installation) -> list[Followed]:
    """Make the conversations that are followed."""
    url = f"http://127.0.0.1:{installation.replicas[0].port}/v1/conversations"
    async with httpx.AsyncClient(headers=installation.headers, timeout=60) as client:
        return [Followed(str((await client.post(url, json={})).json()["id"])) for _ in range(CONVERSATIONS)]


def memory_mib(installation: Installation) -> float:
    """Return the resident memory of all servers."""
    return sum(replica.memory_mib() for replica in installation.replicas)


async def measure_windows(root: Path, *, windows: int, streams: int, chunks: int, per_s: float) -> None:
    """Open the windows, stream answers, and print memory and times."""
    limits = dict.fromkeys(_LIMITS, str(2 * (windows + streams + 100)))
    async with install(root, nats=True, replicas_wanted=REPLICAS, **limits) as installation, AsyncExitStack() as stack:
        conversations = await make_conversations(installation)
        replicas = itertools.cycle(installation.replicas)
        wanted = [conversations[number % CONVERSATIONS] for number in range(windows + 3 * _AT_ONCE)]
        following = list[asyncio.Task[None]]()
        before = 0.0
        for start in range(0, len(wanted), _AT_ONCE):
            if start == 3 * _AT_ONCE:  # code and caches of the first ones
                await asyncio.sleep(_SETTLE_S)
                before = memory_mib(installation)
            some = wanted[start : start + _AT_ONCE]
            opened = await asyncio.gather(*(open_window(installation, next(replicas), one.id) for one in some))
            for one, window in zip(some, opened, strict=True):
                stack.push_async_callback(window.close)
                following.append(asyncio.create_task(follow(window, one)))
        await asyncio.sleep(_SETTLE_S)
        after = memory_mib(installation)
        print(
            f"{len(wanted):,} windows over {CONVERSATIONS} conversations at {REPLICAS} servers: {before:.0f} MiB before"
            f" the last {windows:,}, {after:.0f} after, {(after - before) * _KIB / windows:.1f} KiB each"
        )
        written = conversations[:: CONVERSATIONS // streams][:streams]
        await asyncio.gather(
            *(stream_answer(installation, next(replicas), one, chunks=chunks, per_s=per_s) for one in written)
        )
        await asyncio.sleep(_SETTLE_S)
        ended = [task.exception() for task in following if task.done()]
        if ended:
            raise RuntimeError(f"{len(ended)} windows ended, the first with {ended[0]!r}")
        _print_delays(written, wanted)


def _print_delays(written: Sequence[Followed], wanted: Sequence[Followed]) -> None:
    delays = [delay for one in written for delay in one.delays_s]
    having = {one.id: 0 for one in written}
    for one in wanted:
        if one.id in having:
            having[one.id] += 1
    whole = sum(one.committed for one in written)
    shares = (percentile(delays, share) * 1000 for share in (0.5, 0.95, 0.99, 1.0))
    p50, p95, p99, worst = shares
    print(
        f"{len(written)} answers: {len(delays):,} deltas at windows, p50 {p50:.1f} ms, p95 {p95:.1f}, p99 {p99:.1f},"
        f" worst {worst:.0f}; {whole} of {sum(having.values())} windows have the whole answer,"
        f" {sum(one.rereads for one in written)} rereads"
    )


def main(
    part: Annotated[list[str] | None, typer.Option(help=f"Only these parts of: {', '.join(PARTS)}.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds with one and two processes.")] = 3,
    seconds: Annotated[float, typer.Option(min=1, help="Length of a round.")] = 15.0,
    windows: Annotated[int, typer.Option(min=1, help="Live windows, ten to a conversation by default.")] = 5000,
    streams: Annotated[int, typer.Option(min=1, max=CONVERSATIONS, help="Answers streamed at the same time.")] = 25,
    chunks: Annotated[int, typer.Option(min=1, help="Chunks of an answer.")] = 120,
    per_s: Annotated[float, typer.Option(min=0.1, help="Chunks a second of an answer.")] = 4.0,
) -> None:
    """Measure more than one server process."""
    wanted = part or PARTS
    if "processes" in wanted:
        asyncio.run(compare_processes(rounds, seconds))
    if "windows" in wanted:
        with scratch_folder() as root:
            asyncio.run(measure_windows(root, windows=windows, streams=streams, chunks=chunks, per_s=per_s))


if __name__ == "__main__":
    typer.run(main)
