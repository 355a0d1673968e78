"""`/mcp` against clients that are broken, in a hurry or ill-willed."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp.shared.exceptions import MCPError

from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, open_service, problem
from tests.support.live import serving
from tests.support.mcp import ACCEPT, call, mcp_client, message, post
from tests.support.postgres import TestDatabase

MARKER = "s3cret-marker"
_UNSPOKEN = {
    "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2031-01-01",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
}
MODERN = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    """The app on a real socket."""
    async with serving(service.app, service.settings) as listening:
        yield listening


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client that sends what it is told."""
    async with httpx.AsyncClient(timeout=60) as opened:
        yield opened


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("key", [None, "-", "tk_nonsense", "tkc_nonsense", "a b c"])
async def test_without_a_good_key_the_answer_is_a_problem_with_401(
    http: httpx.AsyncClient, port: int, key: str | None
) -> None:
    for headers in ({}, MODERN):
        answer = await post(http, port, key, b"{not even json", **headers)
        problem(answer, 401, "unauthenticated")
        assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_key_in_a_header_of_its_own_is_read_too(http: httpx.AsyncClient, port: int, client: Client) -> None:
    answer = await post(http, port, None, message("tools/list"), **{"X-API-Key": client.key})
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b'"\xff"', -32700),
        (b"null", -32600),
        (b"[]", -32600),
        (json.dumps([call("recall", {"query": MARKER}), call("recall", {"query": MARKER})]).encode(), -32600),
        (json.dumps({"id": 1, "method": MARKER}).encode(), -32600),
        (json.dumps({"jsonrpc": "1.0", "id": 1, "method": MARKER}).encode(), -32600),
        (json.dumps({"jsonrpc": "2.0", "id": {"a": MARKER}, "method": "ping"}).encode(), -32600),
        (json.dumps({"jsonrpc": "2.0", "id": None, "method": "ping"}).encode(), -32600),
        (json.dumps({"jsonrpc": "2.0", "id": True, "method": "ping"}).encode(), -32600),
        (json.dumps({"jsonrpc": "2.0", "id": 1, "method": 5}).encode(), -32600),
        (json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [MARKER]}).encode(), -32600),
        (json.dumps({"jsonrpc": "2.0", "id": 1, "result": {MARKER: 1}}).encode(), -32600),
        (json.dumps(call("recall", {"query": MARKER + "\0"})).encode(), -32600),
        (json.dumps(call("recall", {"query": "x", "k": 2**70})).encode(), -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","method":"ping"}', -32600),
        (json.dumps(call("append_turns", {MARKER: nested(100)})).encode(), -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 100_000, -32600),
    ],
    ids=range(19),
)
async def test_what_is_no_message_is_refused_by_an_error_of_the_protocol(
    http: httpx.AsyncClient, port: int, client: Client, body: bytes, code: int
) -> None:
    for headers in ({}, MODERN):
        answer = await post(http, port, client.key, body, **headers)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["code"] == code
        assert answer.json()["id"] is None
        assert MARKER not in answer.text


async def test_a_fault_in_the_text_of_a_message_is_pointed_to(
    http: httpx.AsyncClient, port: int, client: Client
) -> None:
    answer = await post(http, port, client.key, call("recall", {"query": "x\0", MARKER: 1}))
    assert answer.json()["error"]["data"]["code"] == "text_not_storable"
    assert answer.json()["error"]["data"]["errors"][0]["pointer"] == "/params/arguments/query"


@pytest.mark.parametrize("arguments", [[], [MARKER], MARKER, 5, True])
async def test_arguments_that_are_no_object_are_invalid_parameters(
    http: httpx.AsyncClient, port: int, client: Client, arguments: object
) -> None:
    answer = await post(http, port, client.key, call("recall", arguments))
    assert answer.json()["error"]["code"] == -32602
    assert MARKER not in answer.text


async def test_arguments_are_as_deep_as_a_body_over_rest_may_be(
    http: httpx.AsyncClient, port: int, client: Client
) -> None:
    conversation = await client.conversation()

    def turns(depth: int) -> dict[str, Any]:
        return {"turns": [{"role": "user", "content": "x", "metadata": {"deep": nested(depth)}}]}

    for depth, works in ((28, True), (29, False)):
        over_rest = await client.post(f"/v1/conversations/{conversation}/turns", json=turns(depth))
        assert (over_rest.status_code == 201) is works
        answer = await post(
            http, port, client.key, call("append_turns", turns(depth) | {"conversation_id": conversation})
        )
        assert ("result" in answer.json()) is works, answer.text


@pytest.mark.slow
async def test_unknown_members_are_refused_and_cheap(http: httpx.AsyncClient, port: int, client: Client) -> None:
    many = {f"{MARKER}!{number}": number for number in range(100_000)}
    for arguments in ({"query": "x", f"{MARKER}!": 1}, many, {"query": "x", "filters": many}):
        answer = await post(http, port, client.key, call("recall", arguments))
        result = answer.json()["result"]
        assert result["isError"] is True
        assert result["structuredContent"]["code"] == "invalid_request"
        assert MARKER not in answer.text
        assert len(answer.text) < 20_000


async def test_a_body_over_the_limit_is_refused(http: httpx.AsyncClient, port: int, client: Client) -> None:
    for content in (b"x" * (8 * 2**20 + 1), json.dumps(call("recall", {"query": "x" * 9_000_000})).encode()):
        problem(await post(http, port, client.key, content), 413, "body_too_large")
    large = await post(http, port, client.key, call("recall", {"query": "x" * 8_000_000}))
    assert large.json()["result"]["structuredContent"]["errors"][0]["pointer"] == "/query"


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"])
async def test_only_posts_are_taken_since_there_are_no_sessions(
    http: httpx.AsyncClient, port: int, client: Client, method: str
) -> None:
    headers = ACCEPT | {"Authorization": f"Bearer {client.key}", "Mcp-Session-Id": "x"}
    answer = await http.request(method, f"http://127.0.0.1:{port}/mcp", headers=headers)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"


async def test_a_type_that_is_not_json_is_refused(http: httpx.AsyncClient, port: int, client: Client) -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = await post(http, port, client.key, message("ping"), **{"Content-Type": content_type})
        assert answer.status_code == 415


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:8765", "Origin": "http://evil.example:8765"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]:8765"}, 200),
        ({"Origin": "http://localhost:6274"}, 200),
    ],
)
async def test_pages_of_other_sites_are_refused_by_host_and_origin(
    http: httpx.AsyncClient, port: int, client: Client, headers: dict[str, str], status: int
) -> None:
    answer = await post(http, port, client.key, message("ping"), **headers)
    assert answer.status_code == status, answer.text
    if status == 403:
        assert answer.json()["code"] == ("host_not_allowed" if "Host" in headers else "origin_not_allowed")


@pytest.mark.slow
async def test_hosts_and_origins_are_allowed_by_settings(
    http: httpx.AsyncClient, client: Client, database: TestDatabase, tmp_path: Path
) -> None:
    named = {"allowed_hosts": "chat.example.com", "cors_origins": "https://chat.example.com"}
    for settings, host, origin, status in (
        (named, "chat.example.com", "https://chat.example.com", 200),
        (named, "chat.example.com:8443", None, 200),
        (named, "other.example.com", None, 403),
        (named, "localhost", "https://other.example.com", 403),
        ({"host": "192.0.2.1"}, "any.example.com", None, 200),
        ({"host": "192.0.2.1"}, "any.example.com", "https://any.example.com", 403),
        ({"allowed_hosts": "*"}, "any.example.com", None, 200),
    ):
        async with (
            open_service(database, tmp_path, embedder="none", **settings) as narrow,
            serving(narrow.app, narrow.settings) as listening,
        ):
            headers = {"Host": host} | ({"Origin": origin} if origin else {})
            answer = await post(http, listening, client.key, message("ping"), **headers)
            assert answer.status_code == status, (settings, host, origin)


@pytest.mark.slow
async def test_a_key_that_is_revoked_opens_nothing_more(
    http: httpx.AsyncClient, service: Service, client: Client, other: Client, port: int
) -> None:
    made = await service.container.tenancy.create_key(client.tenant_id, name="x", scopes=[Scope.READ])
    async with mcp_client(port, str(made)) as mcp:
        assert not (await mcp.call_tool("recall", {"query": "x"})).is_error
        await service.container.tenancy.revoke_key(client.tenant_id, key_id=made.key_id)
        await asyncio.sleep(service.settings.tenancy.key_cache_s + 0.1)
        with pytest.raises(MCPError):
            await mcp.call_tool("recall", {"query": "x"})
    problem(await post(http, port, str(made), call("recall", {"query": "x"})), 401, "key_revoked")
    async with mcp_client(port, other.key) as mcp:
        assert not (await mcp.call_tool("recall", {"query": "x"})).is_error


async def test_a_client_that_disconnects_during_a_call_affects_no_other_client(client: Client, port: int) -> None:
    conversation = await client.conversation()
    for number in range(20):
        arguments = {"conversation_id": conversation, "turns": [{"role": "user", "content": f"n{number}"}]}
        body = json.dumps(call("append_turns", arguments)).encode()
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {client.key}\r\n"
            f"Content-Type: application/json\r\nAccept: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + (body if number % 2 else body[:20]))
        await writer.drain()
        await asyncio.sleep(0.002 * number)
        writer.close()
    async with mcp_client(port, client.key, "legacy") as mcp:
        assert not (await mcp.call_tool("get_history", {"conversation_id": conversation})).is_error
    verified = (await client.get(f"/v1/conversations/{conversation}/verify")).json()
    assert verified["valid"]
    assert verified["turns"] <= 10


@pytest.mark.slow
async def test_two_hundred_calls_at_once_are_all_answered(client: Client, port: int) -> None:
    conversation = await client.conversation()
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(timeout=100, limits=limits) as http:

        async def append(number: int) -> int:
            turns = [{"role": "user", "content": f"number {number}"}]
            body = call("append_turns", {"conversation_id": conversation, "turns": turns}, number)
            # on a busy machine, some wait so long that they are refused: they did nothing, and are sent again
            while (answered := await post(http, port, client.key, body)).status_code == 503:
                problem(answered, 503, "overloaded")
            answer = answered.json()
            assert answer["id"] == number
            assert answer["result"]["structuredContent"]["turns"][0]["content"] == f"number {number}"
            return answer["result"]["structuredContent"]["seq"]

        assert sorted(await asyncio.gather(*map(append, range(200)))) == list(range(1, 201))


async def test_notifications_are_acknowledged_and_change_nothing(
    http: httpx.AsyncClient, port: int, client: Client
) -> None:
    for method in ("notifications/initialized", "notifications/cancelled", "tools/call", MARKER):
        answer = await post(http, port, client.key, {"jsonrpc": "2.0", "method": method, "params": {"requestId": 1}})
        assert answer.status_code == 202
        assert answer.content in {b"", b"null"}


@pytest.mark.parametrize("method", ["prompts/list", "resources/subscribe", "logging/setLevel", "tasks/list", MARKER])
async def test_methods_that_are_not_there_are_not_found(
    http: httpx.AsyncClient, port: int, client: Client, method: str
) -> None:
    params = {"uri": "conversation://x", "level": "debug"}
    answer = await post(http, port, client.key, message(method, params))
    assert answer.json()["error"]["code"] == -32601
    assert method not in answer.text
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
    answer = await post(http, port, client.key, message(method, params | {"_meta": meta}), **headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, -32601)
    assert method not in answer.text


async def test_spaces_around_a_header_are_not_part_of_it(client: Client, port: int) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "recall", "arguments": {"query": "x"}, "_meta": meta}
    body = json.dumps(message("tools/call", params)).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {client.key}\r\nConnection: close\r\n"
        "MCP-Protocol-Version: 2026-07-28\t\r\nMcp-Method:  tools/call \r\nMcp-Name:  recall  \r\n"
        f"Content-Type: application/json\r\nAccept: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"isError":false' in answer


async def test_an_unknown_protocol_revision_is_refused_with_a_list_of_the_supported_ones(
    http: httpx.AsyncClient, port: int, client: Client
) -> None:
    headers = {"MCP-Protocol-Version": "2031-01-01", "Mcp-Method": "tools/list"}
    answer = await post(http, port, client.key, message("tools/list", _UNSPOKEN), **headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == -32022
    assert "2026-07-28" in answer.text
