"""Subscribers over both transports: early and late, quick and slow, who come back when their replica dies."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake, WebSocketException

from tests.soak.live_view import View

_BACK_S: Final = (0.02, 0.4)
_SLOW_S: Final = (0.5, 1.5)


class Subscriber:
    """Follows a conversation for as long as it is let, over one connection after another."""

    def __init__(
        self, view: View, *, ports: list[int], key: str, conversation: str, over: str, slow: bool, chance: random.Random
    ) -> None:
        self.view = view
        self.conversation = conversation
        self.over = over
        self._ports = ports
        self._key = key
        self._chance = chance
        self._last_event: str | None = None
        self._first: dict[str, int] = chance.choice([{"after_rev": 0}, {"after_seq": 0}, {}])
        self._is_slow = slow
        self._leaves = not slow and chance.random() < 0.4
        self.stopping = False
        self.hurry = asyncio.Event()
        """Set when even who is slow reads on."""
        if self._is_slow:
            view.name += ", slow"

    async def run(self, late_s: float) -> None:
        """Follow until stopped."""
        await asyncio.sleep(late_s)
        while not self.stopping:
            began = False
            port = self._chance.choice(self._ports)
            follow = self._by_socket if self.over == "websocket" else self._by_events
            with suppress(OSError, EOFError, TimeoutError, InvalidHandshake, WebSocketException):
                leave_s = self._chance.uniform(2, 20) if self._leaves else None
                async with asyncio.timeout(leave_s):
                    async for frame in follow(port):
                        began = await self._take(frame) or began
            if not self.stopping:
                self.view.counts["connections made again" if began else "connections tried again"] += 1
                await asyncio.sleep(self._chance.uniform(*_BACK_S))

    async def _take(self, frame: dict[str, Any]) -> bool:
        kind = frame["type"]
        self.view.counts["frames received"] += 1
        if kind == "error":
            self.view.counts[f"error frames {frame['code']}"] += 1
            raise EOFError
        self.view.apply(frame)
        if self._is_slow:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.hurry.wait(), self._chance.uniform(*_SLOW_S))
        if kind == "reread":
            self.view.counts["rereads"] += 1
        return kind == "snapshot"

    def _place(self) -> dict[str, int]:
        return {"after_rev": self.view.rev} if self.view.lowest_seq is not None else self._first

    async def _by_socket(self, port: int) -> AsyncIterator[dict[str, Any]]:
        url = f"ws://127.0.0.1:{port}/v1/conversations/{self.conversation}/live"
        headers = {"Authorization": f"Bearer {self._key}"}
        small: dict[str, Any] = {"max_queue": 1} if self._is_slow else {}
        async with connect(
            url, additional_headers=headers, max_size=None, proxy=None, open_timeout=5, close_timeout=0.2,
            compression=None, ping_interval=None, sock=_connected(port, small=self._is_slow), **small,
        ) as connection:  # fmt: skip
            await connection.send(json.dumps({"type": "subscribe", **self._place()}))
            async for text in connection:
                frame = json.loads(text)
                if frame["type"] != "ack":
                    yield frame
                if frame["type"] == "reread":
                    await connection.send(json.dumps({"type": "subscribe", "after_rev": frame["after_rev"]}))

    async def _by_events(self, port: int) -> AsyncIterator[dict[str, Any]]:
        query = "" if self._last_event else "?" + "&".join(f"{name}={value}" for name, value in self._place().items())
        last = f"Last-Event-ID: {self._last_event}\r\n" if self._last_event else ""
        reader, writer = await asyncio.open_connection(
            sock=_connected(port, small=self._is_slow), limit=4096 if self._is_slow else 2**16
        )
        try:
            head = (
                f"GET /v1/conversations/{self.conversation}/events{query} HTTP/1.1\r\nHost: localhost\r\n{last}"
                f"Authorization: Bearer {self._key}\r\nAccept: text/event-stream\r\n\r\n"
            )
            writer.write(head.encode())
            async with asyncio.timeout(10):
                answer = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in answer.split(b"\r\n")[0]:
                raise EOFError
            async for event in _events(reader):
                # the id counts when its event has been applied, and not before
                yield json.loads(event["data"])
                self._last_event = event.get("id", self._last_event)
        finally:
            writer.close()


def _connected(port: int, *, small: bool) -> socket.socket:
    """A connection whose buffers are small for who is slow, so that it is felt soon."""
    made = socket.socket()
    if small:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # a loopback's own segments are so large that the sender's buffer would take megabytes
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    try:
        made.connect(("127.0.0.1", port))
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, str]]:
    """The events in a chunked body."""
    rest = b""
    while True:
        size = int(await reader.readline() or b"0", 16)
        if size == 0:
            raise EOFError
        rest += (await reader.readexactly(size + 2))[:-2]
        while b"\n\n" in rest:
            text, _, rest = rest.partition(b"\n\n")
            fields = dict(line.split(": ", 1) for line in text.decode().split("\n") if not line.startswith(":"))
            if "data" in fields:
                yield fields
