"""Tokens a second of a turn that is written over plain HTTP, one call after the other.

Starts two servers on one database in a folder of its own. Three ways to send the same chunks: each call waits until its
text is durable; each call waits until its text is taken; and the same with the calls going to both servers in turn. The
floor of the same run is a `GET /healthz` over the same connection. Every committed text is compared with what was sent.
"""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer
from client import Client
from live import Installation, install
from rich.console import Console
from rich.table import Table

DURABLE_SHARE: Final = 10
"""One in so many chunks is sent by the way that waits a quarter of a second for each."""


async def stream(installation: Installation, words: list[str], *, durable: bool, replicas: int) -> float:
    """Write one turn, the calls going to so many servers in turn; gives chunks a second."""
    conversation = await installation.conversation()
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client(f"http://127.0.0.1:{one.port}", installation.key))
            for one in installation.replicas[:replicas]
        ]
        path = f"/v1/conversations/{conversation}/turns"
        opened = await clients[0].post("open", f"{path}/open", {"turn": {"role": "assistant"}, "writer": "bench"})
        turn = str(json.loads(opened.body)["turn"]["id"])
        offset, started = 0, time.perf_counter()
        for number, word in enumerate(words):
            call = f"{path}/{turn}/chunks" + ("?durable=true" if durable else "")
            answer = await clients[number % replicas].post("chunk", call, {"offset": offset, "delta": word})
            offset += len(word)
            if answer.status != HTTPStatus.OK or json.loads(answer.body)["offset"] != offset:
                raise SystemExit(f"A chunk was answered with {answer.status}: {answer.body[:200]!r}")
        took_s = time.perf_counter() - started
        await clients[-1].post("commit", f"{path}/{turn}/commit", {"length": offset})
    if await installation.committed(conversation, turn) != "".join(words):
        raise SystemExit("The committed text is not the text that was sent.")
    return len(words) / took_s


async def floor(installation: Installation, calls: int) -> float:
    """Calls a second that do nothing."""
    async with Client(f"http://127.0.0.1:{installation.replicas[0].port}", installation.key) as client:
        started = time.perf_counter()
        for _ in range(calls):
            await client.get("health", "/healthz")
        return calls / (time.perf_counter() - started)


async def run(folder: Path, chunks: int) -> None:
    """Measure and print."""
    words = [f"{n} wörter " for n in range(chunks)]
    async with install(folder, nats=False) as installation:
        base = await floor(installation, chunks)
        table = Table("chunks over HTTP, one after the other", "a second", "of the floor")
        table.add_row("floor: GET /healthz", f"{base:.0f}", "1.00")
        for name, some, durable, replicas in (
            ("each waits until it is durable, one server", words[: max(1, chunks // DURABLE_SHARE)], True, 1),
            ("each waits until it is taken, one server", words, False, 1),
            ("each waits until it is taken, two servers in turn", words, False, 2),
        ):
            speed = await stream(installation, some, durable=durable, replicas=replicas)
            table.add_row(name, f"{speed:.1f}", f"{speed / base:.3f}")
    Console().print(table)


def main(chunks: Annotated[int, typer.Option(min=10, max=10_000, help="Chunks of the turn.")] = 200) -> None:
    """Measure chunks a second over plain HTTP."""
    with TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)  # as root, Postgres runs as another user
        asyncio.run(run(Path(folder) / "data", chunks))


if __name__ == "__main__":
    typer.run(main)
