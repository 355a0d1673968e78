"""Requests that name another host than the server's are refused, whatever they ask for: REST, pages, MCP, WebSocket."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.support.api import Client, Service, open_service
from tests.support.live import serving, socket_on
from tests.support.mcp import message, post
from tests.support.postgres import TestDatabase

EVIL = ["evil.example.com", "[::1].evil", "evil@127.0.0.1", "localhost.evil.example.com", "127.0.0.1.evil", "evil", ""]
PATHS = [
    "/v1/conversations", "/v1/events", "/v1/nothing", "/openai/v1/models", "/docs", "/docs/errors", "/openapi.json",
    "/asyncapi.json", "/dashboard/demo", "/docs/assets/swagger-ui.css", "/nothing",
]  # fmt: skip
OF_ANY_HOST = ["/healthz", "/readyz", "/metrics"]


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
        assert not host or host not in answer.text
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


@pytest.mark.parametrize("host", EVIL[:-1])
async def test_no_websocket_is_opened_for_another_host(host: str, port: int, client: Client) -> None:
    conversation = await client.conversation()
    with pytest.raises(InvalidStatus) as refused:
        async with socket_on(port, conversation, client.key, headers={"Host": host}):
            pass
    assert refused.value.response.status_code == 403
    assert b"host_not_allowed" in (refused.value.response.body or b"")


async def test_a_request_without_a_host_and_one_with_two_are_refused(port: int) -> None:
    for head in (b"GET /openapi.json HTTP/1.0", b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nHost: localhost"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"\r\nConnection: close\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 60)
        assert answer.startswith((b"HTTP/1.1 403", b"HTTP/1.0 403")), answer
        writer.close()


@pytest.mark.slow
async def test_a_server_that_listens_to_the_network_answers_to_any_host_until_settings_name_some(
    database: TestDatabase, tmp_path: Path, client: Client
) -> None:
    network = {"host": "0.0.0.0"}  # noqa: S104 - the setting alone; the test listens on a loopback address
    for settings, accepted, refused in (
        (network, ["any.example.com", "10.1.2.3:80", "localhost"], []),
        (network | {"allowed_hosts": "memory.example.com"}, ["memory.example.com:443", "127.0.0.1"], ["10.1.2.3"]),
        ({"allowed_hosts": "*"}, ["any.example.com", "evil@127.0.0.1"], []),
    ):
        async with (
            open_service(database, tmp_path, embedder="none", **settings) as narrow,
            serving(narrow.app, narrow.settings) as listening,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{listening}", timeout=60) as http,
        ):
            headers = {"Authorization": f"Bearer {client.key}"}
            for host in accepted:
                assert (await http.get("/v1/conversations", headers=headers | {"Host": host})).status_code == 200
            for host in refused:
                assert (await http.get("/v1/conversations", headers=headers | {"Host": host})).status_code == 403


async def test_a_refused_host_is_counted_under_no_name_of_the_callers(http: httpx.AsyncClient) -> None:
    await http.get("/v1/conversations", headers={"Host": "evil.example.com"})
    assert "evil" not in (await http.get("/metrics")).text
