"""A receiver of webhooks on real HTTP, which answers as a test says."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Received:
    """One request of a receiver."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        return json.loads(self.body)

    @property
    def type(self) -> str:
        return self.event["type"]

    @property
    def data(self) -> dict[str, Any]:
        return self.event["data"]


class Receiver:
    """Answers `statuses` one a request, then `status`. `hold` delays every answer until it is set."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.status = 204
        self.statuses: list[int] = []
        self.headers = ""
        self.body = b""
        self.drips = False
        self.connections = 0
        self.under_way = 0
        self.max_under_way = 0
        self.hold: asyncio.Event | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def types(self) -> list[str]:
        return [one.type for one in self.received]

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.received]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.received.append(Received(headers, body))
                self.under_way += 1
                self.max_under_way = max(self.max_under_way, self.under_way)
                try:
                    if self.hold is not None:
                        await self.hold.wait()
                    await self._answer(writer)
                finally:
                    self.under_way -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        status = self.statuses.pop(0) if self.statuses else self.status
        length = 10**9 if self.drips else len(self.body)
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n{self.headers}\r\n".encode() + self.body)
        await writer.drain()
        while self.drips:
            writer.write(b"x" * 1024)
            await writer.drain()
            await asyncio.sleep(0.01)


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver that listens during the block."""
    receiver = Receiver()
    server = await asyncio.start_server(receiver.handle, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        if receiver.hold is not None:
            receiver.hold.set()
        receiver.drips = False
        server.close()
