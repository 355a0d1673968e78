"""What never reaches the application: heads that are too large, requests and frames that cannot be read.

Each is answered, ends its connection, and is no error of the server in its log.
"""

import base64
import io
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from websockets.frames import Frame, Opcode

from app.core.telemetry import configure_logging
from app.routers.http import uvicorn_protocols
from app.settings import Settings
from tests.support.api import Client, Service
from tests.support.live import serving, socket_on
from tests.support.raw_http import exchange, refused
from tests.support.shared import api_document

DOCUMENT: dict[str, Any] = api_document()
OPERATIONS = [
    (method.upper(), path.replace("{", "").replace("}", ""), operation)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
]
HANDSHAKE = (
    "GET /v1/conversations/{}/live HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n"
)


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    async with serving(service.app, service.settings) as listening:
        yield listening


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """All that is logged at level `error` and above."""
    written = io.StringIO()
    configure_logging(Settings(log_level="error").telemetry, written)
    yield written
    configure_logging(Settings(log_level="error").telemetry)


@pytest.mark.parametrize(
    "frames",
    [
        [Frame(Opcode.TEXT, b'{"type":"ping"\xff}')],
        [Frame(Opcode.TEXT, b"\xed\xa0\x80")],
        [Frame(Opcode.TEXT, b"\xe2\x82", fin=False), Frame(Opcode.CONT, b"\xff")],
        [Frame(Opcode.TEXT, b"\xc3\x28"), Frame(Opcode.TEXT, b"\xff")],
    ],
    ids=["byte", "surrogate", "pieces", "twice"],
)
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
async def test_text_that_is_not_utf8_ends_the_connection_with_1007(
    client: Client, port: int, log: io.StringIO, frames: list[Frame], *, known: bool
) -> None:
    conversation = await client.conversation()
    async with socket_on(port, conversation, client.key if known else None) as one:
        one.connection.transport.write(b"".join(frame.serialize(mask=True) for frame in frames))
        assert (await one.closed())[0] == 1007
    assert client.key not in log.getvalue()


async def test_a_character_may_be_cut_in_two_pieces(client: Client, port: int) -> None:
    conversation = await client.conversation()
    text = '{"type":"ping","id":"€"}'.encode()
    cut = text.index("€".encode()) + 1
    async with socket_on(port, conversation, client.key) as one:
        pieces = [Frame(Opcode.TEXT, text[:cut], fin=False), Frame(Opcode.CONT, text[cut:])]
        one.connection.transport.write(b"".join(piece.serialize(mask=True) for piece in pieces))
        assert await one.next() == {"type": "pong", "id": "€"}


@pytest.mark.parametrize("more", ["Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"], ids=["body", "chunked"])
async def test_a_websocket_with_a_body_is_refused(client: Client, port: int, log: io.StringIO, more: str) -> None:
    conversation = await client.conversation()
    answer = await exchange(port, f"{HANDSHAKE.format(conversation)}{more}\r\n".encode())
    refused(answer, 400, "malformed_request")
    assert log.getvalue() == ""


@pytest.mark.parametrize(
    ("conversation", "more"),
    [
        ("a", "".join(f"X-{number}: a\r\n" for number in range(200))),
        ("a", f"X-A: {'a' * 20_000}\r\n"),
        ("a" * 9000, ""),
    ],
    ids=["many", "long", "path"],
)
async def test_a_websocket_whose_head_is_over_the_limits_of_the_library_does_not_hold_its_connection(
    port: int, monkeypatch: pytest.MonkeyPatch, conversation: str, more: str
) -> None:
    monkeypatch.setattr(uvicorn_protocols, "HEAD_TIMEOUT_S", 1.0)
    assert await exchange(port, f"{HANDSHAKE.format(conversation)}{more}\r\n".encode()) == b""


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=[f"{one[0]} {one[1]}" for one in OPERATIONS])
async def test_a_head_over_64_kib_is_answered_by_every_operation_as_its_document_says(
    port: int, method: str, path: str, operation: dict[str, Any]
) -> None:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-Filler: {'a' * 70_000}\r\n\r\n"
    problem = refused(await exchange(port, head.encode()), 431, "head_too_large")
    schema = operation["responses"]["431"]["content"]["application/problem+json"]["schema"]
    Draft202012Validator(schema | {"components": DOCUMENT["components"]}).validate(problem)


async def test_the_bytes_of_a_head_are_counted_without_the_bytes_after_it(port: int, client: Client) -> None:
    large = b"X-Filler: " + b"a" * 60_000 + b"\r\n"
    start, close = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", b"Connection: close\r\n\r\n"
    for pieces in (
        [start + large + close],
        [start + large, close],
        [start + large + close[:-2], close[-2:]],
        [start + b"\r\n" + start + large + close],
        [start + large + b"\r\n", start + large + close],
    ):
        answer = await exchange(port, *pieces)
        assert answer.count(b"HTTP/1.1 200") == b"".join(pieces).count(b"GET "), answer[:300]
    body = b"{}" + b" " * 199_998
    post = b"POST /v1/conversations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n"
    post += f"Authorization: Bearer {client.key}\r\nContent-Type: application/json\r\n".encode()
    for pieces in ([post + close + body], [post + close[:-1], close[-1:] + body]):
        assert (await exchange(port, *pieces)).startswith(b"HTTP/1.1 201")
    for pieces in (
        [start + large + large + close],
        [start + large, large + close],
        [start + b"\r\n", start + large + large + close],
        [b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"],
    ):
        assert b"HTTP/1.1 431" in await exchange(port, *pieces)


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: a\x00b\r\n\r\n",
        b"POST /v1/conversations HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/conversations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["tls", "nul", "length", "lengths", "framing"],
)
async def test_what_is_no_http_request_is_refused_by_the_server(port: int, request_: bytes) -> None:
    answer = await exchange(port, request_)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"Invalid HTTP request received.")
