"""Peers that send slowly, or read nothing: none of them holds its connection."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from websockets.frames import Frame, Opcode

from app.routers.http import uvicorn_protocols
from tests.support.api import Client, Service
from tests.support.live import serving, socket_on
from tests.support.raw_http import refused

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
STALL_S = 2.0


@pytest.fixture
async def port(service: Service, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(uvicorn_protocols, "HEAD_TIMEOUT_S", 1.0)
    monkeypatch.setattr(uvicorn_protocols, "STALL_S", STALL_S)
    async with serving(service.app, service.settings) as listening:
        yield listening


async def _trickle(port: int, start: bytes, piece: bytes) -> bytes:
    """Send a piece every tenth of a second until the server ends the connection. Return all that it sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(start)
    answer, began = b"", time.monotonic()
    try:
        while True:
            assert time.monotonic() - began < 20
            writer.write(piece)
            try:
                async with asyncio.timeout(0.1):
                    data = await reader.read(65_536)
            except TimeoutError:
                continue
            if not data:
                return answer
            answer += data
    except ConnectionError:
        return answer
    finally:
        writer.close()


@pytest.mark.slow
async def test_a_slow_head_ends(port: int) -> None:
    refused(await _trickle(port, b"GET /healthz HTTP/1.1\r\nX-A: ", b"a"), 431, "head_too_large")


@pytest.mark.slow
async def test_empty_lines_between_requests_do_not_keep_a_connection(port: int) -> None:
    answer = await _trickle(port, GET, b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 431 " in answer


@pytest.mark.slow
async def test_a_connection_without_a_request_ends(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(20):
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
    writer.close()


async def _lost(writer: asyncio.StreamWriter) -> None:
    """Wait until the server has reset the connection, without reading from it."""
    async with asyncio.timeout(30):
        while not writer.is_closing():
            await asyncio.sleep(0.1)
            writer.write(GET)


@pytest.mark.slow
async def test_a_peer_that_reads_no_answers_is_disconnected(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 30)
    await _lost(writer)


@pytest.mark.slow
async def test_a_peer_that_reads_slowly_is_served(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = b""
    while data := await reader.read(65_536):
        answer += data
        await asyncio.sleep(0.1)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head


@pytest.mark.slow
async def test_a_websocket_that_pings_and_reads_nothing_is_disconnected(port: int, client: Client) -> None:
    conversation = await client.conversation()
    key = base64.b64encode(bytes(16)).decode()
    fields = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
    start = f"GET /v1/conversations/{conversation}/live HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {client.key}\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(f"{start}{fields}\r\n".encode())
    pings = Frame(Opcode.PING, b"a" * 125).serialize(mask=True) * 1000
    async with asyncio.timeout(60):
        while not writer.is_closing():
            writer.write(pings)
            with suppress(ConnectionError):
                await writer.drain()


async def test_a_websocket_that_is_silent_after_its_handshake_stays(port: int, client: Client) -> None:
    async with socket_on(port, await client.conversation(), client.key) as one:
        await asyncio.sleep(2.5)
        assert (await one.ask("ping"))["type"] == "pong"


@pytest.mark.slow
async def test_a_slow_upload_that_is_read_is_not_cut(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part has the time of a whole body."""
    monkeypatch.setattr(uvicorn_protocols, "_ANSWER_S", 0.5)
    requests = service.settings.requests.model_copy(update={"body_timeout_s": 1.0})
    conversation = await client.conversation()
    await client.append(conversation, "one", "two")
    exported = (await client.get(f"/v1/conversations/{conversation}/export")).content
    parts = [exported[at : at + len(exported) // 9] for at in range(0, len(exported), len(exported) // 9)]
    async with serving(service.app, service.settings.model_copy(update={"requests": requests})) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v1/import HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {client.key}\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        answering = asyncio.create_task(reader.readline())
        for part in parts:
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await asyncio.sleep(0.4)
            assert not answering.done(), await answering
        writer.write(b"0\r\n\r\n")
        assert (await answering).startswith(b"HTTP/1.1 202 ")
        writer.close()
