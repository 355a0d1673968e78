"""A proxy between a client and a server that records the requests of the client, and the files that keep them.

A file has no key, and of the headers only `KEPT_HEADERS`. Its `tools` stand for the tools of each chat completion that
sends the same ones.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent / "recorded"
KEPT_HEADERS: Final = re.compile("accept|content-type|mcp-.*|x-conversation-id|x-project|x-stainless-.*|user-agent")


@dataclass
class Request:
    """One request of HTTP; `body` is its JSON, None if it has none."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Recorder:
    """Forwards what comes in at `port` to `target`; `requests` are those that it has seen, in their order."""

    target: int
    port: int = 0
    requests: list[Request] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the client, on a connection of its own to the server."""
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        answering = asyncio.create_task(_pump(there, writer))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head.decode().rstrip().split("\r\n")
                headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                method, path, _ = first.split(" ")
                self.requests.append(Request(method, path, headers, json.loads(body) if body else None))
                back.write(head + body)
                await back.drain()
        back.close()
        await answering


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def recording(port: int) -> AsyncIterator[Recorder]:
    """A recorder before the server at a port of this machine."""
    recorder = Recorder(port)
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0)
    recorder.port = server.sockets[0].getsockname()[1]
    try:
        yield recorder
    finally:
        server.close()


def write(name: str, requests: list[Request]) -> None:
    """Write requests to the file of a name."""
    tools = next(one.body["tools"] for one in requests if one.body and "tools" in one.body)
    lines: list[str] = []
    for one in requests:
        headers = {name: value for name, value in one.headers.items() if KEPT_HEADERS.fullmatch(name)}
        body = one.body | {"tools": "tools"} if one.body and one.body.get("tools") == tools else one.body
        shown = {"method": one.method, "path": one.path, "headers": headers, "body": body}
        lines.append(json.dumps(shown, ensure_ascii=False))
    text = '{"tools": ' + json.dumps(tools, ensure_ascii=False) + ',\n"requests": [\n' + ",\n".join(lines) + "\n]}\n"
    (FOLDER / f"{name}.json").write_text(text)


def read(name: str) -> list[Request]:
    """The requests in the file of a name."""
    recorded = json.loads((FOLDER / f"{name}.json").read_text())
    requests = [Request(**one) for one in recorded["requests"]]
    for one in requests:
        if one.body and one.body.get("tools") == "tools":
            one.body["tools"] = recorded["tools"]
    return requests
