"""Heads of requests that have two readings, or name what the server does not have; and answers of the framework."""

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx
import pytest

from app.routers.http import uvicorn_protocols
from tests.support.api import Client, Service
from tests.support.live import serving
from tests.support.mcp import message
from tests.support.raw_http import exchange, refused

NEXT = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
CHUNKS = b"2\r\n{}\r\n0\r\n\r\n"


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    async with serving(service.app, service.settings) as listening:
        yield listening


@pytest.fixture
async def http(port: int, client: Client) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {client.key}"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as opened:
        yield opened


def head(client: Client, start: str, *fields: str) -> bytes:
    lines = [start, "Host: localhost", f"Authorization: Bearer {client.key}", "Content-Type: application/json", *fields]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize("path", ["/v1/conversations", "/openai/v1/responses", "/mcp", "/v1/import", "/docs"])
async def test_a_body_in_another_transfer_coding_than_chunked_ends_the_connection(
    path: str, port: int, client: Client
) -> None:
    for field in (
        "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked, chunked", "Transfer-Encoding: gzip", "Transfer-Encoding: chunked;a=b",
    ):  # fmt: skip
        answer = await exchange(port, head(client, f"POST {path} HTTP/1.1", field) + CHUNKS + NEXT)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert answer.startswith(b"HTTP/1.1 400 ")
    old = head(client, f"POST {path} HTTP/1.0", "Transfer-Encoding: chunked")
    assert (await exchange(port, old + CHUNKS + NEXT)).startswith(b"HTTP/1.1 400 ")


async def test_the_name_of_the_chunked_coding_may_be_in_capitals(port: int, client: Client) -> None:
    chunked = head(client, "POST /v1/conversations HTTP/1.1", "Transfer-Encoding: Chunked", "Connection: close")
    assert (await exchange(port, chunked + CHUNKS)).startswith(b"HTTP/1.1 201")


async def test_http_1_0_gets_no_upgrade_and_no_100(port: int, client: Client) -> None:
    conversation = await client.conversation()
    key = base64.b64encode(bytes(16)).decode()
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}")
    answer = await exchange(port, head(client, f"GET /v1/conversations/{conversation}/live HTTP/1.0", *upgrade))
    refused(answer, 404, "route_not_found")
    answer = await exchange(port, head(client, f"GET /v1/conversations/{conversation} HTTP/1.0", *upgrade))
    assert answer.startswith(b"HTTP/1.1 200")
    old = head(client, "POST /v1/conversations HTTP/1.0", "Expect: 100-continue", "Content-Length: 2")
    answer = await exchange(port, old + b"{}")
    assert answer.startswith(b"HTTP/1.1 201")
    assert b" 100 " not in answer


async def test_the_body_of_a_request_for_another_protocol_is_not_read_as_a_request(port: int, client: Client) -> None:
    upgrade = ("Connection: Upgrade", "Upgrade: h2c")
    for version, fields in (("1.1", upgrade), ("1.0", (upgrade[0], "Upgrade: websocket"))):
        start = head(client, f"POST /v1/conversations HTTP/{version}", *fields, f"Content-Length: {len(NEXT)}")
        answer = await exchange(port, start, NEXT)
        assert answer.count(b"HTTP/1.1 ") == 1
        refused(answer, 400, "malformed_request")
    without_body = head(client, "GET /v1/conversations HTTP/1.1", "Connection: Upgrade, close", "Upgrade: h2c")
    assert (await exchange(port, without_body)).startswith(b"HTTP/1.1 200")


async def test_only_options_asks_about_the_server_itself(port: int, client: Client) -> None:
    answer = await exchange(port, head(client, "OPTIONS * HTTP/1.1", "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 204")
    assert b"allow: DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT" in answer
    refused(await exchange(port, head(client, "GET * HTTP/1.1")), 400, "malformed_request")
    assert (await exchange(port, head(client, "CONNECT evil:80 HTTP/1.1"))).startswith(b"HTTP/1.1 400 ")
    refused(await exchange(port, b"OPTIONS * HTTP/1.1\r\n\r\n"), 400, "malformed_request")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/conversations", "/v1/recall", "/v1/import", "/openai/v1/responses", "/openai/v1/chat/completions",
        "/openai/v1/conversations", "/openai/v1/embeddings", "/mcp",
    ],
)  # fmt: skip
async def test_a_body_in_a_content_coding_that_is_not_undone_is_415(path: str, http: httpx.AsyncClient) -> None:
    accepted = "gzip, identity" if path == "/v1/import" else "identity"
    body = gzip.compress(json.dumps(message("ping")).encode())
    for coding in ("br", "identity, br", "BR", *(() if path == "/v1/import" else ("gzip", "x-gzip"))):
        headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
        answer = await http.post(path, content=body, headers=headers)
        assert (answer.status_code, answer.headers["accept-encoding"]) == (415, accepted)
        assert "unsupported_media_type" in answer.text


async def test_no_content_coding_has_a_name_too(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/conversations", json={}, headers={"Content-Encoding": "Identity"})
    assert answer.status_code == 201


@pytest.mark.parametrize("path", ["/", "/dashboard", "/dashboard/demo", "/docs/errors", "/docs/assets/swagger-ui.css"])
async def test_a_page_is_sent_whole_to_a_request_with_a_range(path: str, http: httpx.AsyncClient) -> None:
    whole = await http.get(path, headers={"Accept": "text/html"})
    for value in ("bytes=a-b", "bytes=99999999999-", "bytes=0-9", "bytes=0-1,3-4", "lines=1-2", ""):
        answer = await http.get(
            path, headers={"Accept": "text/html", "Range": value, "If-Range": whole.headers["etag"]}
        )
        assert (answer.status_code, answer.content) == (200, whole.content)
        assert "accept-ranges" not in answer.headers


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/docs/assets/nothing.js", 404),
        ("GET", "/docs/assets/a%00b", 404),
        ("GET", f"/docs/assets/{'a' * 3000}", 404),
        ("GET", f"/dashboard/assets/{'a' * 3000}", 404),
        ("GET", "/dashboard/assets/a%00b", 404),
        ("POST", "/docs/assets/swagger-ui.css", 405),
        ("POST", "/dashboard/demo", 405),
        ("GET", "/mcp", 405),
        ("TRACE", "/v1/conversations", 405),
    ],
)
async def test_errors_of_pages_and_methods_are_problems(
    method: str, path: str, status: int, http: httpx.AsyncClient
) -> None:
    answer = await http.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert (status == 405) == bool(answer.headers.get("allow"))


async def test_a_handshake_of_a_websocket_that_cannot_be_is_refused(port: int, client: Client) -> None:
    conversation = await client.conversation()
    live, upgrade = f"/v1/conversations/{conversation}/live", ("Connection: Upgrade", "Upgrade: websocket")
    key, version = f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}", "Sec-WebSocket-Version: 13"
    for path in ("/v1/nothing", "/v1/conversations"):
        answer = await exchange(port, head(client, f"GET {path} HTTP/1.1", *upgrade, key, version))
        assert answer.startswith(b"HTTP/1.1 403 ")
    for fields in (
        (key, "Sec-WebSocket-Version: 8"),
        (key,),
        (version,),
        ("Sec-WebSocket-Key: a", version),
        (key, key, version),
    ):
        answer = await exchange(port, head(client, f"GET {live} HTTP/1.1", *upgrade, *fields))
        assert answer.startswith(b"HTTP/1.1 400 ")
    answer = await exchange(port, head(client, f"POST {live} HTTP/1.1", *upgrade, "Connection: close", key, version))
    refused(answer, 404, "route_not_found")


def chunked(client: Client, path: str, *fields: str) -> bytes:
    return head(client, f"POST {path} HTTP/1.1", "Transfer-Encoding: chunked", *fields)


async def test_a_field_of_a_trailer_is_no_header(port: int, client: Client) -> None:
    """A proxy that removes or checks a header never sees it there."""
    request = chunked(client, "/v1/conversations", "Connection: close")
    request += b"2\r\n{}\r\n0\r\nIdempotency-Key: tr-1\r\n\r\n"
    for _ in range(2):
        answer = await exchange(port, request)
        assert answer.startswith(b"HTTP/1.1 201 "), answer
        assert b"idempotent-replayed" not in answer.lower()


@pytest.mark.parametrize(
    ("start", "piece"),
    [(b"0\r\n", b"a:b\r\n"), (b"0\r\na:", b"a"), (b"1", b";x=y")],
    ids=["fields", "one value", "extensions of a chunk"],
)
async def test_a_trailer_without_end_ends_the_connection(port: int, client: Client, start: bytes, piece: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(chunked(client, "/v1/conversations") + start)
    sent = 0
    async with asyncio.timeout(30):
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(piece * (16_384 // len(piece)))
                await writer.drain()
                await asyncio.sleep(0.01)
                sent += 16_384
                assert sent < 4 * 2**20, "the server reads on"
    writer.close()


async def test_a_body_of_many_chunks_is_read(port: int, client: Client) -> None:
    body = b"{}" + b" " * 300_000
    parts = [body[at : at + 100] for at in range(0, len(body), 100)]
    request = chunked(client, "/v1/conversations", "Connection: close")
    request += b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    assert (await exchange(port, request)).startswith(b"HTTP/1.1 201 ")


async def test_a_slow_head_after_an_answer_that_goes_on_writes_nothing_into_it(
    port: int, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_protocols, "HEAD_TIMEOUT_S", 0.5)
    conversation = await client.conversation()
    stream = head(client, f"GET /v1/conversations/{conversation}/events HTTP/1.1")
    answer = await exchange(port, stream, b"GET /healthz HT")
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    assert answer.count(b"HTTP/1.1") == 1
