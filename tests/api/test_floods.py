"""Floods of frames, sockets and requests: none of them keeps the event loop, or grows in memory."""

import asyncio
import base64
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from itertools import count

import pytest
from structlog.testing import capture_logs
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode

from app.routers.http.uvicorn_protocols import SLICE_BYTES, TURNS, BoundedProtocol
from app.routers.live import frames
from app.routers.live.connection_limits import Connections
from tests.support.api import Client, Service
from tests.support.live import serving, socket_on

READ_BYTES = 256 * 2**10
"""How much of a connection the event loop reads at a time."""


@pytest.fixture
async def port(service: Service) -> AsyncIterator[int]:
    async with serving(service.app, service.settings) as listening:
        yield listening


class Iterations:
    """Counts what happens in each iteration of the event loop."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self._now = 0
        self._counting = asyncio.create_task(self._count())

    async def _count(self) -> None:
        for number in count():
            self._now = number
            await asyncio.sleep(0)

    def note(self) -> None:
        self.counts[self._now] += 1

    def most(self) -> int:
        """The largest number of an iteration."""
        self._counting.cancel()
        return max(self.counts.values())


async def _opened(port: int, conversation: str, key: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [
        f"GET /v1/conversations/{conversation}/live HTTP/1.1", "Host: localhost", f"Authorization: Bearer {key}",
        "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}",
        "Sec-WebSocket-Version: 13",
    ]  # fmt: skip
    writer.write("\r\n".join([*lines, "", ""]).encode())
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer


def _frames(opcode: Opcode, data: bytes, number: int, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True) * number


async def _read(reader: asyncio.StreamReader, size: int) -> bytes:
    async with asyncio.timeout(60):
        return await reader.readexactly(size)


async def test_the_smallest_frames_are_parsed_a_few_at_a_time(
    client: Client, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    parse = WebSocketsSansIOProtocol.data_received

    def parse_noted(self: WebSocketsSansIOProtocol, data: bytes) -> None:
        sizes.append(len(data))
        iterations.note()
        parse(self, data)

    conversation = await client.conversation()
    peers = [await _opened(port, conversation, client.key) for _ in range(20)]
    monkeypatch.setattr(WebSocketsSansIOProtocol, "data_received", parse_noted)
    iterations = Iterations()
    for _, writer in peers:
        writer.write(_frames(Opcode.PING, b"", 5_000))
    for reader, writer in peers:
        assert await _read(reader, 2 * 5_000) == b"\x8a\x00" * 5_000
        writer.transport.abort()
    assert max(sizes) == SLICE_BYTES
    assert iterations.most() <= TURNS


async def test_frames_that_have_arrived_together_are_executed_one_by_one(
    client: Client, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await client.conversation()
    reader, writer = await _opened(port, conversation, client.key)
    monkeypatch.setattr(Connections, "received", lambda _self: iterations.note())
    iterations = Iterations()
    writer.write(_frames(Opcode.TEXT, b'{"type":"ping"}', 1_000))
    await _read(reader, 1_000 * len(b'..{"type":"pong","id":null}'))
    writer.transport.abort()
    assert iterations.counts.total() >= 1_000
    assert iterations.most() == 1


async def test_frames_before_the_end_of_a_connection_are_executed(client: Client, port: int) -> None:
    conversation = await client.conversation()
    floods = [await _opened(port, conversation, client.key) for _ in range(20)]
    peers = [await _opened(port, conversation, client.key) for _ in range(20)]
    for _, writer in floods:
        writer.write(_frames(Opcode.PING, b"", 20_000))
    for number, (_, writer) in enumerate(peers):
        frame = {"type": "append", "id": str(number), "turns": [{"role": "user", "content": f"Turn {number}."}]}
        writer.write(_frames(Opcode.TEXT, json.dumps(frame).encode(), 1))
        writer.write_eof()
    async with asyncio.timeout(60):
        while len(await client.history(conversation)) < len(peers):  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.05)
    for _, writer in [*floods, *peers]:
        writer.transport.abort()


async def test_a_handshake_with_a_long_header_ends_its_connection_and_no_other(client: Client, port: int) -> None:
    conversation = await client.conversation()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = [
        f"GET /v1/conversations/{conversation}/live HTTP/1.1", "Host: localhost", "Upgrade: websocket",
        "Connection: Upgrade", "X-A: " + "a" * 40_000,
    ]  # fmt: skip
    with capture_logs() as logs:
        writer.write("\r\n".join([*head, "", ""]).encode())
        opened = await _opened(port, conversation, client.key)
        opened[1].write(_frames(Opcode.PING, b"", 1))
        assert await _read(opened[0], 2) == b"\x8a\x00"
    writer.transport.abort()
    opened[1].transport.abort()
    assert not [entry for entry in logs if entry["log_level"] == "error"]


@pytest.mark.parametrize(("fragments", "is_served"), [(19_000, True), (21_000, False)])
async def test_a_message_has_a_limited_number_of_fragments(
    client: Client, port: int, fragments: int, *, is_served: bool
) -> None:
    reader, writer = await _opened(port, await client.conversation(), client.key)
    writer.write(_frames(Opcode.TEXT, b'{"type":', 1, fin=False))
    writer.write(_frames(Opcode.CONT, b"", fragments, fin=False))
    writer.write(_frames(Opcode.CONT, b'"ping"}', 1))
    async with asyncio.timeout(60):
        try:
            answer = await reader.read(4096)
        except ConnectionError:
            answer = b""
    writer.transport.abort()
    assert (b'"pong"' in answer) is is_served


async def test_no_more_pipelined_requests_are_read_than_are_answered(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[int] = []
    complete = BoundedProtocol.on_response_complete

    def complete_noted(self: BoundedProtocol) -> None:
        waiting.append(len(self.pipeline))
        complete(self)

    monkeypatch.setattr(BoundedProtocol, "on_response_complete", complete_noted)
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 4_000 + b"\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request * 1_000)
    async with asyncio.timeout(60):
        while len(waiting) < 1_000:
            assert await reader.read(65_536)
    writer.transport.abort()
    assert max(waiting) <= 2 * READ_BYTES // len(request)


async def test_large_frames_are_parsed_one_at_a_time(
    client: Client, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    active, most, parse = 0, 0, frames.read_message

    async def parse_noted(data: bytes, *, max_depth: int) -> object:
        nonlocal active, most
        active, most = active + 1, max(most, active + 1)
        await asyncio.sleep(0.05)
        active -= 1
        return await parse(data, max_depth=max_depth)

    monkeypatch.setattr("app.routers.live.connection.read_message", parse_noted)
    conversation = await client.conversation()
    text = "a" * frames.INLINE_BYTES
    async with AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(socket_on(port, conversation, client.key)) for _ in range(4)]
        answers: Sequence[dict[str, object]] = await asyncio.gather(
            *(one.ask("append", turns=[{"role": "user", "content": text}]) for one in sockets)
        )
    assert [answer["type"] for answer in answers] == ["ack"] * 4
    assert most == 1
