"""Requests that name another host than the server's are refused, whatever they ask for: REST, pages, MCP, WebSocket."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.api import Client, Service, open_service
from tests.support.live import serving
from tests.support.mcp import message, post
from tests.support.postgres import TestDatabase
from tests.support.raw_http import exchange, refused

EVIL = ["evil.example.com", "localhost.evil.example.com", "127.0.0.1.evil", "evil", "localhost.", "a..b", "[::2]:80"]
NO_HOST = [
    "", "[::1].evil", "evil@127.0.0.1", "127.0.0.1/x", "127.0.0.1, evil", "127.0.0.1,evil", "local host", "localhost:",
    "localhost:8o", "localhost:65536", "localhost:80:80", ":80", "[::1", "::1", "[]", "[127.0.0.1]", "[::1%25lo]",
    "[fg::]", "localhost?x", "localhost#x", "localhost\\x", "http://localhost", "%6cocalhost", "a" * 256,
    "l\u00f6calhost",
]  # fmt: skip
PATHS = [
    "/v1/conversations", "/v1/events", "/v1/nothing", "/openai/v1/models", "/docs", "/docs/errors", "/openapi.json",
    "/asyncapi.json", "/dashboard/demo", "/docs/assets/swagger-ui.css", "/nothing",
]  # fmt: skip
OF_ANY_HOST = ["/healthz", "/readyz", "/metrics"]


def handshake(conversation: str, client: Client, *, authority: str = "", **fields: str) -> bytes:
    """Return the head of a WebSocket with these headers."""
    target = (f"http://{authority}" if authority else "") + f"/v1/conversations/{conversation}/live"
    fields |= {
        "Authorization": f"Bearer {client.key}", "Connection": "Upgrade", "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
    }  # fmt: skip
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    async with serving(service.app, service.settings) as listening:
        yield listening


@pytest.fixture
async def http(port: int, client: Client) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {client.key}"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as opened:
        yield opened


@pytest.mark.parametrize("host", EVIL)
async def test_no_path_answers_to_another_host(host: str, http: httpx.AsyncClient) -> None:
    for path in PATHS:
        answer = await http.get(path, headers={"Host": host})
        assert (answer.status_code, answer.json()["code"]) == (403, "host_not_allowed"), path
        assert answer.headers["content-type"] == "application/problem+json"
        assert host not in answer.text
    stored = await http.post("/v1/conversations", headers={"Host": host}, json={"external_id": "rebound"})
    assert stored.status_code == 403
    listed = (await http.get("/v1/conversations")).json()
    assert listed["data"] == []


@pytest.mark.parametrize("host", EVIL)
async def test_probes_and_metrics_answer_to_any_host(host: str, http: httpx.AsyncClient) -> None:
    for path in OF_ANY_HOST:
        assert (await http.get(path, headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("host", EVIL)
async def test_mcp_answers_to_no_other_host(host: str, http: httpx.AsyncClient, port: int, client: Client) -> None:
    answer = await post(http, port, client.key, message("ping"), Host=host)
    assert (answer.status_code, answer.json()["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    "origin",
    ["http://evil@127.0.0.1", "http://[::1].evil", "null", "file://localhost", "localhost", "http://localhost.evil"],
)
async def test_mcp_refuses_origins_that_only_resemble_local_ones(
    origin: str, http: httpx.AsyncClient, port: int, client: Client
) -> None:
    answer = await post(http, port, client.key, message("ping"), Origin=origin)
    assert (answer.status_code, answer.json()["code"]) == (403, "origin_not_allowed")


@pytest.mark.parametrize("host", EVIL)
async def test_no_websocket_is_opened_for_another_host(host: str, port: int, client: Client) -> None:
    head = handshake(await client.conversation(), client, Host=host)
    refused(await exchange(port, head), 403, "host_not_allowed")


@pytest.mark.parametrize("path", ["/v1/conversations", "/docs", "/healthz", "/readyz", "/metrics", "/nothing", "/mcp"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_a_request_with_two_hosts_or_no_valid_one_is_refused_and_its_connection_ends(
    path: str, version: str, port: int, client: Client
) -> None:
    fields = [f"Host: {host}\r\n" for host in NO_HOST] + [
        "Host: localhost\r\nHost: localhost\r\n",
        "Host: a\r\nHost: b\r\n",
    ]
    more = f"Authorization: Bearer {client.key}\r\n\r\n"
    next_request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for field in [*fields, *([""] if version == "1.1" else [])]:
        head = f"GET {path} HTTP/{version}\r\n{field}{more}"
        answer = await exchange(port, head.encode("latin-1") + next_request)
        assert answer.count(b"HTTP/1.1 ") == 1, field
        problem = refused(answer, 400, "malformed_request")
        assert problem["request_id"]
        assert "localhost" not in problem["detail"]


async def test_a_websocket_with_two_hosts_or_no_valid_one_is_refused(port: int, client: Client) -> None:
    conversation = await client.conversation()
    for host in NO_HOST:
        refused(await exchange(port, handshake(conversation, client, Host=host)), 400, "malformed_request")
    whole = handshake(conversation, client, Host="localhost")
    for field in (b"", b"Host: localhost\r\nHost: localhost\r\n"):
        refused(await exchange(port, whole.replace(b"Host: localhost\r\n", field)), 400, "malformed_request")


async def test_http_1_0_needs_a_host_only_where_the_settings_name_hosts(port: int) -> None:
    assert (await exchange(port, b"GET /healthz HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200")
    refused(await exchange(port, b"GET /openapi.json HTTP/1.0\r\n\r\n"), 403, "host_not_allowed")


async def test_the_host_of_an_absolute_target_replaces_that_of_the_header(port: int, client: Client) -> None:
    more = f"Authorization: Bearer {client.key}\r\nConnection: close\r\n\r\n"
    for target, host, status in (
        ("http://127.0.0.1:1/v1/conversations?limit=1", "evil", 200),
        ("HTTPS://LocalHost/v1/conversations", "", 200),
        ("http://evil.example/v1/conversations", "127.0.0.1", 403),
        ("http://evil.example/docs", "127.0.0.1", 403),
        ("http://evil.example/healthz", "127.0.0.1", 200),
        ("http://u@127.0.0.1/v1/conversations", "127.0.0.1", 400),
        ("http:///v1/conversations", "127.0.0.1", 400),
        ("ftp://127.0.0.1/v1/conversations", "127.0.0.1", 400),
        ("http://127.0.0.1", "127.0.0.1", 200),
        ("http://127.0.0.1?a=b", "127.0.0.1", 200),
    ):
        answer = await exchange(port, f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{more}".encode())
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), target
    for version in ("1.1", "1.0"):
        for path in ("/healthz", "/v1/conversations"):
            for host in (*filter(str.strip, NO_HOST), "a b", "exa mple/"):
                request = f"GET http://127.0.0.1{path} HTTP/{version}\r\nHost: {host}\r\n{more}"
                refused(await exchange(port, request.encode("latin-1")), 400, "malformed_request")
        twice = f"GET http://127.0.0.1/healthz HTTP/{version}\r\nHost: a\r\nHost: b\r\n{more}"
        refused(await exchange(port, twice.encode()), 400, "malformed_request")
    refused(await exchange(port, b"GET http://127.0.0.1/healthz HTTP/1.1\r\n\r\n"), 400, "malformed_request")
    without = f"GET http://127.0.0.1/v1/conversations HTTP/1.{{}}\r\n{more}"
    refused(await exchange(port, without.format(1).encode()), 400, "malformed_request")
    assert (await exchange(port, without.format(0).encode())).startswith(b"HTTP/1.1 200")
    evil = without.replace("127.0.0.1", "evil").format(0)
    refused(await exchange(port, evil.encode()), 403, "host_not_allowed")


async def test_the_host_of_an_absolute_target_decides_for_a_websocket(port: int, client: Client) -> None:
    conversation = await client.conversation()
    evil = handshake(conversation, client, authority="evil.example", Host="127.0.0.1")
    refused(await exchange(port, evil), 403, "host_not_allowed")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(handshake(conversation, client, authority="127.0.0.1", Host="evil.example"))
    assert (await reader.readline()).startswith(b"HTTP/1.1 101")
    writer.close()


@pytest.mark.slow
async def test_a_server_that_listens_to_the_network_answers_to_any_host_until_settings_name_some(
    database: TestDatabase, tmp_path: Path, client: Client
) -> None:
    network = {"host": "0.0.0.0"}  # noqa: S104 - the setting alone; the test listens on a loopback address
    for settings, accepted, others in (
        (network, ["any.example.com", "10.1.2.3:80", "localhost"], []),
        (network | {"allowed_hosts": "memory.example.com"}, ["memory.example.com:443", "127.0.0.1"], ["10.1.2.3"]),
        ({"allowed_hosts": "*"}, ["any.example.com", "a..b"], []),
    ):
        async with (
            open_service(database, tmp_path, embedder="none", **settings) as narrow,
            serving(narrow.app, narrow.settings) as listening,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{listening}", timeout=60) as http,
        ):
            headers = {"Authorization": f"Bearer {client.key}"}
            for host in accepted:
                assert (await http.get("/v1/conversations", headers=headers | {"Host": host})).status_code == 200
            for host in others:
                assert (await http.get("/v1/conversations", headers=headers | {"Host": host})).status_code == 403
            for host in NO_HOST:
                answer = await http.get("/v1/conversations", headers=headers | {"Host": host.encode("latin-1")})  # type: ignore[dict-item]
                assert (answer.status_code, answer.json()["code"]) == (400, "malformed_request")
            old = await exchange(
                listening, f"GET /v1/conversations HTTP/1.0\r\nX-API-Key: {client.key}\r\n\r\n".encode()
            )
            assert old.startswith(b"HTTP/1.1 200" if accepted[0] == "any.example.com" else b"HTTP/1.1 403")


async def test_a_refused_host_is_counted_under_no_name_of_the_callers(http: httpx.AsyncClient) -> None:
    await http.get("/v1/conversations", headers={"Host": "evil.example.com"})
    assert "evil" not in (await http.get("/metrics")).text
