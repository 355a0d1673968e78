"""Memory and processor time of live windows that follow a conversation each and receive nothing.

    .venv/bin/python bench/windows.py --windows 2000

Starts a server on a database in a folder of its own, makes a conversation with some turns for each window, and opens a
WebSocket to each, which subscribes. Prints the memory of the server's process before and after (resident set, from
/proc, Linux only) and its processor time while nothing happens: heartbeats, and the comparisons with the rows. One
process can open about as many as `ulimit -n`.
"""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Final

import typer
from client import Client
from pydantic import BaseModel, JsonValue
from server import Server, serve
from suite import processes
from websockets.asyncio.client import ClientConnection, connect

TURNS: Final = 20
_AT_ONCE: Final = 20
_SETTLE_S: Final = 5.0
_KIB: Final = 1024


class _Identified(BaseModel):
    id: str


async def make_conversations(server: Server, windows: int) -> list[str]:
    """Make a conversation with some turns for each window."""
    made: list[str] = []
    turns: list[JsonValue] = [
        {"role": "user", "content": f"remark {number} of a conversation that a page shows"} for number in range(TURNS)
    ]
    async with Client(server.url, server.key) as client:
        for _ in range(windows):
            answer = await client.demand("create", "/v1/conversations", {})
            made.append(_Identified.model_validate_json(answer.body).id)
            await client.demand("append", f"/v1/conversations/{made[-1]}/turns", {"turns": turns})
    return made


async def open_window(server: Server, conversation: str) -> ClientConnection:
    """Open a window, and return when it has its snapshot."""
    url = f"{server.url.replace('http', 'ws', 1)}/v1/conversations/{conversation}/live"
    window = await connect(
        url, additional_headers={"Authorization": f"Bearer {server.key}"}, max_size=None, proxy=None, open_timeout=60,
        ping_interval=None,
    )  # fmt: skip
    await window.send(json.dumps({"type": "subscribe"}))
    while json.loads(await window.recv())["type"] != "snapshot":
        pass
    return window


async def open_windows(server: Server, conversations: Sequence[str], stack: AsyncExitStack) -> None:
    """Open a window to each conversation, some at a time."""
    for start in range(0, len(conversations), _AT_ONCE):
        some = conversations[start : start + _AT_ONCE]
        for window in await asyncio.gather(*(open_window(server, one) for one in some)):
            stack.push_async_callback(window.close)


async def measure(root: Path, windows: int, idle_s: float) -> None:
    """Measure, and print the result."""
    limits = ("live_max_connections", "live_max_connections_per_tenant")
    # a key has half of the connections of its tenant
    async with serve(root, embedder="none", **dict.fromkeys(limits, str(2 * windows + 20))) as server:
        conversations = await make_conversations(server, windows + _AT_ONCE)
        async with AsyncExitStack() as stack:
            await open_windows(server, conversations[:_AT_ONCE], stack)  # code and caches of the first ones
        await asyncio.sleep(_SETTLE_S)
        before = processes.memory_mib(server.pid)
        async with AsyncExitStack() as stack:
            await open_windows(server, conversations[_AT_ONCE:], stack)
            await asyncio.sleep(_SETTLE_S)
            after, cpu_s = processes.memory_mib(server.pid), processes.cpu_s(server.pid)
            await asyncio.sleep(idle_s)
            cpu_s = processes.cpu_s(server.pid) - cpu_s
        each = (after - before) * _KIB / windows
    print(f"{windows:,} windows: {before:.0f} MiB before, {after:.0f} MiB after, {each:.1f} KiB each")
    print(f"idle: {cpu_s / idle_s:.3f} cores, {1e6 * cpu_s / idle_s / windows:.0f} microseconds a second for each")


def main(
    windows: Annotated[int, typer.Option(min=1, help="Windows that are opened.")] = 2000,
    idle_s: Annotated[float, typer.Option(min=1, help="Seconds without events.")] = 60.0,
) -> None:
    """Measure the memory of live windows."""
    with tempfile.TemporaryDirectory(prefix="turnkeep-windows-") as folder:
        root = Path(folder)
        root.chmod(0o711)  # as root, Postgres runs as another user
        asyncio.run(measure(root, windows, idle_s))


if __name__ == "__main__":
    typer.run(main)
