"""A key without the scope `read` is answered without content, whatever it calls: REST, MCP and WebSocket."""

import json
from collections.abc import AsyncIterator
from typing import Any, get_args

import httpx
import pytest

from app.agents.tools.service import all_tools
from app.conversations.schemas.frames import ClientFrame
from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, problem
from tests.support.live import serving, socket_on
from tests.support.marked import (
    CONVERSATION,
    EXTERNAL_ID,
    FACT,
    FRAMES,
    ITEM,
    MARKER,
    MEMORY,
    REQUESTS,
    TOOL_ARGUMENTS,
    TURN,
    Marked,
    marked_tenant,
)
from tests.support.mcp import call, message, post
from tests.support.shared import api_document

DOCUMENT: dict[str, Any] = api_document()
OPERATIONS: dict[str, tuple[str, str, bool]] = {
    operation["operationId"]: (
        method,
        path,
        any(one["name"] == "Idempotency-Key" for one in operation.get("parameters", [])),
    )
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}
WITHOUT_READ = {
    "admin": [Scope.ADMIN],
    "operator": [Scope.OPERATOR],
    "write": [Scope.WRITE],
    "all others": [Scope.WRITE, Scope.ADMIN, Scope.OPERATOR],
}
READS = {
    "list_conversations", "search_conversations", "get_conversation", "verify_conversation", "list_turns", "get_turn",
    "list_summaries", "create_conversation_token", "follow_conversation", "follow_conversations", "build_context",
    "recall", "recall_in_conversation", "list_facts", "get_fact", "list_memories", "search_memories", "before_turn",
    "search_turns", "search_facts", "filter_memories",
    "get_memory", "get_summary", "run_turn", "list_memory_tree", "generate", "create_chat_completion", "list_models",
    "get_model",
    "get_openai_conversation", "list_openai_items", "get_openai_item", "delete_openai_item", "ask_agent",
    "create_response", "get_response", "delete_response", "cancel_response", "list_response_input_items",
    "dry_run_conversation", "list_operations", "get_operation", "cancel_operation", "look_up_owner",
    "export_conversation", "export_data",
}  # fmt: skip
"""Operations that are refused to every key without the scope `read`."""
ADMINISTERS = {"import_data", "delete_memory", "create_erasure", "list_erasures", "get_erasure", "verify_erasure"} | {
    name for name, (_, path, _) in OPERATIONS.items() if path.startswith(("/v1/admin/", "/v1/webhooks"))
}
NEEDS_A_MODEL = {"create_embedding"}
NAMES_IT = {"create_conversation"}
"""Operations whose request names the external id, so the answer may too."""


@pytest.fixture
async def marked(service: Service, client: Client) -> Marked:
    return await marked_tenant(service, client)


@pytest.fixture(scope="module")
async def unchanged(service: Service) -> AsyncIterator[tuple[Client, Marked]]:
    """A marked tenant for requests that take nothing of it away."""
    async with await service.new_tenant() as opened:
        yield opened, await marked_tenant(service, opened)


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    async with serving(service.app, service.settings) as listening:
        yield listening


async def key_with(service: Service, client: Client, scopes: list[Scope]) -> str:
    return str(await service.container.tenancy.create_key(client.tenant_id, name="blind", scopes=scopes))


def require_blank(name: str, answer: httpx.Response) -> None:
    """Fail where any part of an answer has content."""
    whole = f"{answer.reason_phrase} {answer.headers!r} {answer.text}"
    assert MARKER not in whole, f"{name}: {whole}"
    if name not in NAMES_IT:
        assert EXTERNAL_ID not in whole, f"{name}: {whole}"


async def send(sender: httpx.AsyncClient, name: str, marked: Marked, **headers: str) -> httpx.Response:
    method, path, _ = OPERATIONS[name]
    sent = REQUESTS[name](marked)
    path = path.format_map(vars(marked) | dict(sent.path))
    body = {} if sent.json is None else {"json": sent.json}
    return await sender.request(method, path, params=sent.params, headers=headers, **body)


def test_every_operation_has_a_request_here() -> None:
    assert set(REQUESTS) == set(OPERATIONS)


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - READS - ADMINISTERS))
@pytest.mark.sampled
async def test_no_operation_that_writes_gives_content_to_a_key_without_read(
    name: str, service: Service, client: Client, marked: Marked
) -> None:
    for called, scopes in WITHOUT_READ.items():
        async with service.client(await key_with(service, client, scopes)) as blind:
            answer = await send(blind, name, marked)
        require_blank(name, answer)
        if called == "write":
            expected = 5 if name in NEEDS_A_MODEL else 2
            assert answer.status_code // 100 == expected, answer.text


@pytest.mark.parametrize("name", sorted(READS | ADMINISTERS))
async def test_no_operation_that_reads_or_administers_gives_content_to_a_key_without_read(
    name: str, service: Service, unchanged: tuple[Client, Marked]
) -> None:
    client, marked = unchanged
    for called, scopes in WITHOUT_READ.items():
        if name in ADMINISTERS and called != "write":
            continue
        async with service.client(await key_with(service, client, scopes)) as blind:
            answer = await send(blind, name, marked)
        require_blank(name, answer)
        problem(answer, 403, "forbidden")


@pytest.mark.parametrize("name", sorted(ADMINISTERS))
@pytest.mark.sampled
async def test_no_administration_gives_content(name: str, service: Service, client: Client, marked: Marked) -> None:
    for scopes in WITHOUT_READ.values():
        async with service.client(await key_with(service, client, scopes)) as blind:
            require_blank(name, await send(blind, name, marked))


@pytest.mark.parametrize("name", sorted(name for name, (_, _, takes_key) in OPERATIONS.items() if takes_key))
@pytest.mark.sampled
async def test_no_repeated_request_gives_content_to_a_key_without_read(
    name: str, service: Service, client: Client, marked: Marked
) -> None:
    whole = await key_with(service, client, list(Scope))
    async with service.client(whole) as first:
        answer = await send(first, name, marked, **{"Idempotency-Key": "once"})
    for scopes in WITHOUT_READ.values():
        async with service.client(await key_with(service, client, scopes)) as blind:
            again = await send(blind, name, marked, **{"Idempotency-Key": "once"})
        require_blank(name, again)
        if scopes == [Scope.WRITE] and name not in READS | ADMINISTERS:
            assert answer.status_code == again.status_code, again.text
            assert again.headers["Idempotent-Replayed"] == "true"


TOOLS_THAT_WRITE = {
    "store_memory", "append_turns", "memory_after_turn", "memory_run_maintenance", "create_conversation", "summarize",
    "assert_fact",
}  # fmt: skip


def test_every_tool_has_arguments_here() -> None:
    assert set(TOOL_ARGUMENTS) == {tool.name for tool in all_tools()}


@pytest.mark.parametrize("tool", sorted(TOOL_ARGUMENTS))
@pytest.mark.sampled
async def test_no_tool_gives_content_to_a_key_without_read(
    tool: str, service: Service, unchanged: tuple[Client, Marked], port: int
) -> None:
    client, marked = unchanged
    async with httpx.AsyncClient(timeout=60) as http:
        for called, scopes in WITHOUT_READ.items():
            key = await key_with(service, client, scopes)
            answer = await post(http, port, key, call(tool, TOOL_ARGUMENTS[tool](marked)))
            require_blank(tool, answer)
            if called == "write":
                assert answer.json().get("result", {}).get("isError", True) is (tool not in TOOLS_THAT_WRITE)


async def test_no_resource_gives_content_to_a_key_without_read(
    service: Service, unchanged: tuple[Client, Marked], port: int
) -> None:
    client, marked = unchanged
    uris = [
        f"conversation://{marked.conversation_id}",
        f"conversation://{marked.conversation_id}/turns/{marked.turn_id}",
        f"memory://default/{EXTERNAL_ID}/context/summary",
    ]
    reads = [("resources/list", {}), *(("resources/read", {"uri": uri}) for uri in uris)]
    async with httpx.AsyncClient(timeout=60) as http:
        for scopes in WITHOUT_READ.values():
            key = await key_with(service, client, scopes)
            for method, params in reads:
                answer = await post(http, port, key, message(method, params))
                assert "error" in answer.json(), answer.text
                assert MARKER not in answer.text


def test_every_frame_of_a_client_is_sent_here() -> None:
    frames = get_args(get_args(ClientFrame)[0])
    assert set(FRAMES) == {get_args(frame.model_fields["type"].annotation)[0] for frame in frames}


@pytest.mark.slow
async def test_no_frame_is_answered_with_content_to_a_key_without_read(
    service: Service, client: Client, marked: Marked, port: int
) -> None:
    key = await key_with(service, client, [Scope.WRITE])
    async with socket_on(port, marked.conversation_id, client.key) as reader:
        await reader.ask("append", **FRAMES["append"](marked))
    kinds = {}
    async with socket_on(port, marked.conversation_id, key) as blind:
        for kind, members in FRAMES.items():
            more = {"token": key} if kind == "auth" else members(marked)
            kinds[kind] = (await blind.ask(kind, **more))["type"]
        await client.append(marked.conversation_id, TURN)
        await blind.ask("ping")
    assert kinds == dict.fromkeys(FRAMES, "ack") | {"ping": "pong", "abort": "error", "subscribe": "error"}
    assert MARKER not in json.dumps(blind.received)


async def test_a_key_without_read_sees_ids_places_and_hashes(service: Service, client: Client, marked: Marked) -> None:
    """What is left of an object for such a key: all that says where it stands, and nothing that says what it is."""
    async with service.client(await key_with(service, client, [Scope.WRITE])) as blind:
        path = f"/v1/conversations/{marked.conversation_id}"
        whole, seen = (await client.get(path)).json(), (await blind.patch(path, json={})).json()
        gone = {
            "external_id": None,
            "owner": None,
            "title": None,
            "title_source": None,
            "participants": [],
            "metadata": {},
        }
        assert seen == whole | gone | {"rev": seen["rev"], "updated_at": seen["updated_at"]}
        named = await blind.post("/v1/conversations", json={"external_id": EXTERNAL_ID})
        assert (named.status_code, named.json()) == (200, seen | {"external_id": EXTERNAL_ID})
        revised = await blind.post(f"{path}/turns/{marked.turn_id}/revisions", json={"content": "other"})
        turn = (await client.get(f"{path}/turns/{revised.json()['turn']['id']}")).json()
        assert turn["actor"] == f"ann-{MARKER}"
        assert revised.json()["turn"] == turn | {"content": None, "actor": "user"}
        fact = (await client.get(f"/v1/facts/{marked.fact_id}")).json()
        told = (await blind.patch(f"/v1/facts/{marked.fact_id}", json={})).json()
        assert told["fact"] == fact | {"subject": "", "predicate": "", "object": "", "owner": None}
        ended = (await blind.post("/v1/facts", json=FACT | {"object": "Oslo", "replaces": True})).json()
        assert [one["id"] for one in ended["changed"]] == [marked.fact_id]
        made = await blind.post(f"{path}/summaries", json={"through": marked.turns[5]})
        listed = (await client.get(f"{path}/summaries")).json()["data"]
        assert made.json()["summaries"] == [
            one | {"text": "", "abstract": None, "lines": [], "actors": []} for one in listed[-1:]
        ]
        items = await blind.post(f"/openai/v1/conversations/{marked.conversation_id}/items", json={"items": [ITEM]})
        assert items.status_code == 200


async def test_a_key_without_read_deletes_a_conversation_in_openais_shape(
    service: Service, client: Client, marked: Marked
) -> None:
    async with service.client(await key_with(service, client, [Scope.WRITE])) as blind:
        gone = await blind.delete(f"/openai/v1/conversations/conv_{marked.conversation_id}")
        assert gone.json() == {
            "id": f"conv_{marked.conversation_id}",
            "object": "conversation.deleted",
            "deleted": True,
        }
    assert (await client.get(f"/v1/conversations/{marked.conversation_id}")).status_code == 404


def test_the_marker_is_in_every_member_that_is_content() -> None:
    """Else the tests above would pass over a member that is shown."""
    for stored in (TURN, FACT, MEMORY, ITEM, CONVERSATION):
        plain = {"role", "type", "predicate", "project", "usage", "metadata", "participants", "tool_calls"}
        assert all(MARKER in str(value) for name, value in stored.items() if name not in plain)
