"""A move to another embedding space under load: what it costs recall, and that none fails.

    .venv/bin/python bench/reembed.py /path/for/scratch/data

Starts two servers of its own on a new installation there, with the bundled model as the old space and, as the new one,
an endpoint in this process that answers at once with vectors made of words (1 536 dimensions). Stores turns, then
recalls on both servers without a pause while the space is added, filled, switched to, left and switched to again.
Prints how many recalls failed or gave fewer than k hits (0 is right), the times of recall before, during and after, how
long the filling took, how long after a switch the last server answered from the other space, and how many entries lack
vectors in either space when all has come to rest (0 is right). The exit code is 1 where anything is not right.
"""

import asyncio
import base64
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from client import Client, RequestFailedError
from figures import percentile
from pydantic import BaseModel, JsonValue
from rich.console import Console
from rich.table import Table

DIMENSIONS: Final = 1536
K: Final = 10
BATCH: Final = 100
START_S: Final = 90.0
LOOK_S: Final = 0.25
ASK_S: Final = 1.0
REST_S: Final = 60.0
SPACES: Final = "/v1/admin/embedding-spaces"
WORDS: Final = (
    "parrot", "tortoise", "kitten", "horse", "salmon", "owl", "beetle", "whale", "invoice", "meeting", "garden",
    "kitchen", "train", "ticket", "winter", "summer", "river", "doctor", "pepper", "bread", "bicycle", "window",
    "letter", "music", "market", "castle", "bridge", "forest", "island", "engine", "paper", "silver",
)  # fmt: skip


class _Request(BaseModel):
    input: list[str]


class _Made(BaseModel):
    id: str


class _Space(BaseModel):
    id: int
    provider: str
    model: str
    dimensions: int
    state: str
    entries: int
    covered: int

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.model}/{self.dimensions}"


class _Spaces(BaseModel):
    data: list[_Space]


class _Extracted(BaseModel):
    data: list[JsonValue]
    space: str | None
    degraded: list[str]


def embedding(text: str) -> str:
    """A vector of the words of a text, packed as clients ask for it."""
    total = np.full(DIMENSIONS, 1e-3, dtype=np.float32)
    for word in re.findall(r"\w+", text.lower()):
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
        total += np.random.default_rng(seed).standard_normal(DIMENSIONS).astype(np.float32)
    return base64.b64encode(total.astype("<f4").tobytes()).decode()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection of an embeddings client."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = re.search(r"content-length: (\d+)", head)
            request = _Request.model_validate_json(await reader.readexactly(int(length[1]) if length else 0))
            data = [
                {"object": "embedding", "index": index, "embedding": embedding(text)}
                for index, text in enumerate(request.input)
            ]
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            body = json.dumps({"object": "list", "data": data, "model": "words", "usage": usage}).encode()
            shown = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(shown.encode() + body)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def serving(folder: Path, endpoint: str) -> AsyncGenerator[str]:
    """A server of its own; its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEP_")}
    settings = {
        "DATA_DIR": str(folder), "PORT": str(port), "LOG_LEVEL": "error", "NEXT_EMBEDDER": "openai",
        "NEXT_EMBEDDINGS_BASE_URL": endpoint, "NEXT_EMBEDDINGS_MODEL": "words",
        "NEXT_EMBEDDINGS_DIMENSIONS": str(DIMENSIONS),
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app.cli", "serve", stderr=subprocess.DEVNULL,
        env=kept | {f"TURNKEEP_{name}": value for name, value in settings.items()},
    )  # fmt: skip
    try:
        async with asyncio.timeout(START_S):
            while not await _ready(port):
                if process.returncode is not None:
                    raise RuntimeError("the server did not start")
                await asyncio.sleep(LOOK_S)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _ready(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    line = await reader.readline()
    writer.close()
    return b" 200 " in line


@dataclass
class Load:
    """Recalls without a pause, on all servers in turn; their times by phase."""

    conversations: list[str]
    phase: str = "before"
    failed: int = 0
    short: int = 0
    degraded: int = 0
    ended: bool = False
    appended: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    spaces: dict[str, int] = field(default_factory=dict[str, int])

    async def recall(self, client: Client, number: int) -> None:
        """One recall after the other, until the end."""
        asked = number
        while not self.ended:
            asked += 1
            query = f"where is the {WORDS[asked % len(WORDS)]} of the {WORDS[asked // 7 % len(WORDS)]}"
            within = self.conversations[asked % len(self.conversations)]
            path = f"/v1/conversations/{within}/recall" if asked % 2 else "/v1/recall"
            body: dict[str, JsonValue] = {"query": query, "k": K, "mode": "vector" if asked % 3 else "hybrid"}
            phase = self.phase
            try:
                got = await client.post("recall", path, body)
            except RequestFailedError:
                self.failed += 1
                continue
            if got.status != 200:  # noqa: PLR2004 - HTTP's
                self.failed += 1
                continue
            found = _Extracted.model_validate_json(got.body)
            self.short += len(found.data) < K
            self.degraded += bool(found.degraded)
            self.seconds.setdefault(phase, []).append(got.seconds)
            self.spaces[found.space or "none"] = self.spaces.get(found.space or "none", 0) + 1

    async def append(self, client: Client, pause_s: float) -> None:
        """Appends go on besides."""
        count = 0
        while not self.ended:
            count += 1
            await store(client, self.conversations[count % len(self.conversations)], count, 1)
            self.appended += 1
            await asyncio.sleep(pause_s)


async def store(client: Client, conversation: str, start: int, count: int) -> None:
    """Append turns made of words."""
    turns: list[JsonValue] = [
        {"role": "user", "content": " ".join(WORDS[(n * step + step) % len(WORDS)] for step in range(3, 15))}
        for n in range(start, start + count)
    ]
    await client.demand("append", f"/v1/conversations/{conversation}/turns", {"turns": turns})


async def run(folder: Path, turns: int, phase_s: float, recallers: int) -> bool:
    """The whole move; says whether no recall failed."""
    async with AsyncExitStack() as stack:
        endpoint = await asyncio.start_server(answer, "127.0.0.1", 0)
        stack.callback(endpoint.close)
        url = f"http://127.0.0.1:{endpoint.sockets[0].getsockname()[1]}/v1"
        servers = [await stack.enter_async_context(serving(folder, url)) for _ in range(2)]
        key = (folder / "admin-key").read_text().strip()
        operator = await stack.enter_async_context(Client(servers[0], key))
        conversations = [
            _Made.model_validate_json((await operator.demand("create", "/v1/conversations", {})).body).id
            for _ in range(max(1, turns // (5 * BATCH)))
        ]
        for number in range(turns // BATCH):
            await store(operator, conversations[number % len(conversations)], number * BATCH, BATCH)
        load = Load(conversations)
        clients = [
            await stack.enter_async_context(Client(servers[n % len(servers)], key)) for n in range(recallers + 1)
        ]
        tasks = [asyncio.create_task(load.recall(one, 1000 * n)) for n, one in enumerate(clients[1:])]
        tasks.append(asyncio.create_task(load.append(clients[0], 0.1)))
        probes = [await stack.enter_async_context(Client(server, key)) for server in servers]
        moved = await move(operator, probes, load, phase_s)
        load.ended = True
        await asyncio.gather(*tasks)
        lacking = await rest(operator)
    show(load, moved, lacking, turns)
    return not (load.failed or load.short or any(lacking.values()))


async def rest(operator: Client) -> dict[str, int]:
    """How many entries lack vectors, by space, when what is under way has been done."""
    deadline = time.monotonic() + REST_S
    while True:
        spaces = _Spaces.model_validate_json((await operator.get("list", SPACES)).body).data
        lacking = {space.name: space.entries - space.covered for space in spaces}
        if not any(lacking.values()) or time.monotonic() > deadline:
            return lacking
        await asyncio.sleep(ASK_S)


async def followed(clients: Sequence[Client], space: _Space) -> float:
    """Seconds until every one of these has been answered from a space."""
    began = time.monotonic()
    for client in clients:
        while True:
            got = await client.post("recall", "/v1/recall", {"query": "silver", "k": 1})
            if _Extracted.model_validate_json(got.body).space == space.name:
                break
            await asyncio.sleep(0.01)
    return time.monotonic() - began


@dataclass
class Moved:
    """How long the filling took, and how long after each switch the last server answered from the other space."""

    filled_s: float
    followed_s: list[float]


async def move(operator: Client, clients: Sequence[Client], load: Load, phase_s: float) -> Moved:
    """Add, fill, switch, roll back, switch again."""
    await asyncio.sleep(phase_s)
    load.phase = "while filling"
    began = time.monotonic()
    space = _Space.model_validate_json((await operator.demand("add", SPACES, {})).body)
    while space.covered < 0.999 * space.entries:
        await asyncio.sleep(ASK_S)
        space = _Space.model_validate_json((await operator.demand("add", SPACES, {})).body)
    filled_s = time.monotonic() - began
    load.phase = "around the switches"
    moved = Moved(filled_s, [])
    for path in (f"/{space.id}/switch", "/rollback", f"/{space.id}/switch"):
        after = _Space.model_validate_json((await operator.demand("switch", SPACES + path, {})).body)
        moved.followed_s.append(await followed(clients, after))
        await asyncio.sleep(phase_s / 3)
    load.phase = "after"
    await asyncio.sleep(phase_s)
    return moved


def show(load: Load, moved: Moved, lacking: dict[str, int], turns: int) -> None:
    """Print the figures."""
    console = Console()
    table = Table("recall, ms", "p50", "p95", "p99", "n")
    for phase, values in load.seconds.items():
        shown = (f"{1000 * percentile(values, share):.1f}" for share in (0.5, 0.95, 0.99))
        table.add_row(phase, *shown, str(len(values)))
    console.print(table)
    console.print(
        f"filled in {moved.filled_s:.1f} s: {turns} turns, and what was appended meanwhile ({load.appended} in all);"
        f" answers by space: {load.spaces}"
    )
    seconds = ", ".join(f"{one:.2f}" for one in moved.followed_s)
    console.print(f"every server has followed the switch, the rollback and the second switch after {seconds} s")
    bad = load.failed or load.short or any(lacking.values())
    console.print(
        f"{load.failed} recalls failed, {load.short} gave fewer than {K} hits, {load.degraded} were degraded;"
        f" entries that lack vectors at rest: {lacking}",
        style="red" if bad else "green",
    )


def main(
    folder: Annotated[Path, typer.Argument(help="A new folder for the installation.")],
    turns: Annotated[int, typer.Option(min=BATCH, help="Turns stored before.")] = 5000,
    phase_s: Annotated[float, typer.Option(min=1, help="Seconds of each phase that has no end of its own.")] = 10.0,
    recallers: Annotated[int, typer.Option(min=1, help="Recalls under way at once.")] = 2,
) -> None:
    """Move a new installation to another embedding space under load."""
    if not asyncio.run(run(folder.absolute(), turns, phase_s, recallers)):
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
