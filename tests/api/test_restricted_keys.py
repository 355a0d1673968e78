"""A key that is restricted to projects or owners finds nothing outside of them, whatever it calls.

Every operation, tool, resource and frame is called with ids of a tenant's objects outside of the restriction.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from app.tenancy.schemas import Restriction, Scope
from tests.support.api import Client, Service, problem
from tests.support.live import events_on, serving, socket_on
from tests.support.marked import (
    CONVERSATION,
    EXTERNAL_ID,
    FRAMES,
    MARKER,
    MEMORY,
    REQUESTS,
    TOOL_ARGUMENTS,
    Marked,
    marked_tenant,
)
from tests.support.mcp import call, message, post
from tests.support.rows import row_digests
from tests.support.shared import api_document
from tests.support.statements import counted_statements, first_words

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
ELSEWHERE = {
    "projects": (Restriction(projects=frozenset({"elsewhere", "nowhere"})), None),
    "owners": (Restriction(owners=frozenset({"somebody"})), "default"),
    "both": (Restriction(projects=frozenset({"default"}), owners=frozenset({"somebody"})), "default"),
}
"""Restrictions outside of which the marked tenant's objects are, and the agents of the keys."""
OWN: dict[str, Any] = {"store_memory": {"content": "of the key itself"}, "create_openai_conversation": {}}
"""Requests that store something inside of the restriction, without the marker."""
ENDLESS = {"follow_conversations"}
CREATES = {"create_conversation", "store_memory", "create_fact", "create_openai_conversation", "ask_agent",
           "create_embedding", "create_chat_completion", "create_response", "generate"}  # fmt: skip
"""Operations that may store something new, inside of the restriction, or whose request names the marker."""


@pytest.fixture(scope="module")
async def outside(service: Service) -> AsyncIterator[tuple[Client, Marked]]:
    async with await service.new_tenant() as opened:
        yield opened, await marked_tenant(service, opened)


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    async with serving(service.app, service.settings) as listening:
        yield listening


@pytest.fixture(scope="module")
async def digest(service: Service) -> AsyncIterator[Callable[[Client], Any]]:
    async with row_digests(service) as read:
        yield read


async def restricted(service: Service, client: Client, kind: str = "projects", **more: Any) -> str:
    restriction, agent = ELSEWHERE[kind]
    given: dict[str, Any] = {"restriction": restriction, "agent_id": agent} | more
    scopes = [Scope.READ, Scope.WRITE]
    made = await service.container.tenancy.create_key(client.tenant_id, name="restricted", scopes=scopes, **given)
    return str(made)


def require_nothing_of_it(name: str, text: str) -> None:
    assert MARKER not in text, f"{name}: {text}"
    assert EXTERNAL_ID not in text, f"{name}: {text}"


async def send(sender: httpx.AsyncClient, name: str, marked: Marked, **headers: str) -> httpx.Response:
    method, path, _ = OPERATIONS[name]
    sent = REQUESTS[name](marked)
    path = path.format_map(vars(marked) | dict(sent.path))
    body = {} if sent.json is None else {"json": OWN.get(name, sent.json)}
    return await sender.request(method, path, params=sent.params, headers=headers, **body)


@pytest.mark.parametrize("kind", ELSEWHERE)
async def test_no_operation_finds_or_changes_an_object_outside(
    kind: str, service: Service, outside: tuple[Client, Marked], digest: Callable[[Client], Any]
) -> None:
    client, marked = outside
    key = await restricted(service, client, kind)
    before = await digest(client)
    async with service.client(key) as intruder:
        for name, (_, path, _) in OPERATIONS.items():
            if name in ENDLESS:
                continue
            answer = await send(intruder, name, marked)
            require_nothing_of_it(name, f"{answer.headers!r} {answer.text}")
            assert answer.status_code != 500, name
            if "{" in path and "{model}" not in path:
                assert answer.status_code in {403, 404}, f"{name}: {answer.status_code} {answer.text}"
            if name not in CREATES:
                assert await digest(client) == before, name
            before = await digest(client)
    listed = (await client.get(f"/v1/conversations/{marked.conversation_id}/turns")).json()["data"]
    assert listed, "the objects are there"


async def test_no_repeated_request_finds_an_object_outside(service: Service, client: Client) -> None:
    marked = await marked_tenant(service, client)
    key = await restricted(service, client)
    async with service.client(key) as intruder:
        for name, (_, _, takes_key) in OPERATIONS.items():
            if takes_key:
                await send(client, name, marked, **{"Idempotency-Key": f"once {name}"})
                again = await send(intruder, name, marked, **{"Idempotency-Key": f"once {name}"})
                require_nothing_of_it(name, again.text)
                assert "Idempotent-Replayed" not in again.headers, name


@pytest.mark.parametrize("kind", ELSEWHERE)
async def test_no_tool_or_resource_finds_an_object_outside(
    kind: str, service: Service, outside: tuple[Client, Marked], port: int
) -> None:
    client, marked = outside
    key = await restricted(service, client, kind)
    uris = [
        f"conversation://{marked.conversation_id}",
        f"conversation://{marked.conversation_id}/turns/{marked.turn_id}",
        f"memory://default/{EXTERNAL_ID}/context/summary",
    ]
    async with httpx.AsyncClient(timeout=60) as http:
        for tool, arguments in TOOL_ARGUMENTS.items():
            given = OWN.get(tool, arguments(marked))
            answer = await post(http, port, key, call(tool, given))
            require_nothing_of_it(tool, answer.text)
        for uri in uris:
            answer = await post(http, port, key, message("resources/read", {"uri": uri}))
            assert "error" in answer.json()
            assert MARKER not in answer.text


async def test_a_restricted_key_does_not_connect_to_a_conversation_outside(
    service: Service, outside: tuple[Client, Marked], port: int
) -> None:
    client, marked = outside
    key = await restricted(service, client)
    async with socket_on(port, marked.conversation_id, key) as socket:
        assert await socket.closed() == (4404, "not_found")
    assert MARKER not in json.dumps(socket.received)
    # the same connection after a first frame that authenticates it
    async with socket_on(port, marked.conversation_id, None) as socket:
        await socket.send("auth", token=key)
        assert await socket.closed() == (4404, "not_found")
    assert set(FRAMES) > {"subscribe"}


async def test_a_connection_does_not_continue_with_a_key_that_is_restricted_to_others(
    service: Service, client: Client, port: int
) -> None:
    conversation = await client.conversation(project="here")
    here = await restricted(service, client, restriction=Restriction(projects=frozenset({"here"})))
    async with socket_on(port, conversation, here) as socket:
        assert (await socket.ask("subscribe"))["type"] == "ack"
        refused = await socket.ask("auth", token=await restricted(service, client))
        assert (refused["type"], refused["code"]) == ("error", "not_found")
        # it still has the first key, and another one that reaches the conversation is accepted
        await client.append(conversation, "later")
        assert (await socket.until("turn.committed"))["turn"]["content"] == "later"
        other = await restricted(service, client, restriction=Restriction(projects=frozenset({"here", "there"})))
        assert (await socket.ask("auth", token=other))["type"] == "ack"


async def test_an_epoch_does_not_let_a_restricted_key_write_to_an_open_turn_outside(
    service: Service, client: Client
) -> None:
    """The turn is in the memory of this process: no row is needed to take a chunk of it."""
    conversation = await client.conversation(project="here")
    opened = (await client.post(f"/v1/conversations/{conversation}/turns/open",
                                json={"turn": {"role": "assistant"}, "writer": "w"})).json()  # fmt: skip
    path = f"/v1/conversations/{conversation}/turns/{opened['turn']['id']}"
    elsewhere = await restricted(service, client)
    here = await restricted(service, client, restriction=Restriction(projects=frozenset({"here"})))
    async with service.client(elsewhere) as intruder, service.client(here) as writer:
        for operation, body in (("chunks", {"offset": 0, "delta": "x"}), ("commit", {}), ("abort", {})):
            problem(await intruder.post(f"{path}/{operation}", params={"epoch": 1}, json=body), 404, "not_found")
        chunk = await writer.post(f"{path}/chunks", params={"epoch": 1}, json={"offset": 0, "delta": "x"})
        assert chunk.json()["offset"] == 1
        problem(await intruder.post(f"{path}/chunks", params={"epoch": 1}, json={"offset": 1, "delta": "y"}), 404,
                "not_found")  # fmt: skip
        ended = await writer.post(f"{path}/commit", params={"epoch": 1}, json={"length": 1})
        assert ended.json()["content"] == "x"


async def test_a_conversation_outside_is_not_found_in_the_trash_either(service: Service, client: Client) -> None:
    conversation = await client.conversation(external_id="a", owner="ann")
    assert (await client.post(f"/v1/conversations/{conversation}/trash")).status_code == 200
    restriction = Restriction(frozenset({"default"}), frozenset({"eve"}))
    async with service.client(await restricted(service, client, restriction=restriction)) as intruder:
        path = f"/v1/conversations/{conversation}"
        for method, suffix in (
            ("GET", ""),
            ("POST", "/trash"),
            ("POST", "/restore"),
            ("DELETE", ""),
            ("GET", "/turns"),
        ):
            problem(await intruder.request(method, path + suffix), 404, "not_found")
        for body in ({"id": conversation}, {"external_id": "a"}):
            problem(await intruder.post("/v1/conversations", json=body), 404, "not_found")
        listed = await intruder.get("/v1/conversations", params={"trashed": "true"})
        assert listed.json()["data"] == []
    assert (await client.post(f"{path}/restore")).status_code == 200


async def test_the_events_of_a_list_are_those_inside(service: Service, client: Client, port: int) -> None:
    inside = await client.conversation(project="here", owner="ann")
    outside = await client.conversation(project="here", owner=f"ann {MARKER}")
    key = await restricted(service, client, restriction=Restriction(frozenset({"here"}), frozenset({"ann"})))
    async with events_on(port, "/v1/events", key) as events:
        await asyncio.sleep(0.2)
        await client.append(outside, MARKER)
        await client.append(inside, "hello")
        changed = await events.until("conversation.updated")
        assert changed["conversation"]["id"] == inside
        assert (await client.delete(f"/v1/conversations/{outside}")).status_code == 204
        # it is not known any more whose conversation this was
        assert await events.until("reread") == {"type": "reread"}


async def test_restricted_keys_with_the_same_idempotency_key_create_conversations_of_their_own(
    service: Service, client: Client
) -> None:
    names: set[str] = set()
    for owner in ("ann", "eve"):
        key = await restricted(service, client, restriction=Restriction(owners=frozenset({owner})))
        async with service.client(key) as one:
            items = [{"type": "message", "role": "user", "content": "hi"}]
            body, headers = {"items": items}, {"Idempotency-Key": "k"}
            made = await one.post("/openai/v1/conversations", json=body, headers=headers)
            assert made.status_code == 200, made.text
            names.add(made.json()["id"])
    assert len(names) == 2


async def test_a_restricted_key_works_inside(service: Service, client: Client) -> None:
    restriction = Restriction(frozenset({"red", "blue"}), frozenset({"ann"}))
    key = await restricted(service, client, restriction=restriction, agent_id="helper")
    async with service.client(key) as ann:
        made = await ann.post("/v1/conversations", json={"project": "red", "external_id": "a"})
        assert (made.status_code, made.json()["owner"]) == (201, "ann")
        red = made.json()["id"]
        await ann.append(red, "My name is Ann and I live in Berlin.", "I work at the harbour.")
        blue = await ann.conversation(project="blue", owner="ann")
        foreign = await client.conversation(project="red", owner="bob")
        await client.append(foreign, "Bob lives in Berlin as well.")
        assert {one["id"] for one in (await ann.get("/v1/conversations")).json()["data"]} == {red, blue}
        named = await ann.get("/v1/conversations", params={"project": "blue"})
        assert [one["id"] for one in named.json()["data"]] == [blue]
        assert (await ann.get("/v1/conversations", params={"owner": "bob"})).json()["data"] == []
        hits = await ann.recall(None, "Who lives in Berlin?", project="red")
        assert {hit["conversation_id"] for hit in hits} == {red}
        assert await ann.recall(None, "Berlin", project="green") == []
        context = await ann.context(red, 2000, semantic_recall={"k": 5, "scope": "project"}, include_facts=True)
        assert "Bob" not in json.dumps(context)
        fact = await ann.post(
            "/v1/facts", json={"subject": "Ann", "predicate": "likes", "object": "tea", "project": "red"}
        )
        assert fact.status_code == 201
        assert (await ann.get("/v1/facts")).json()["data"][0]["owner"] == "ann"
        assert (await ann.post("/v1/memories", json={"content": "likes tea"})).status_code == 201
        assert (await ann.get("/v1/memories")).json()["data"][0]["owner"] == "ann"


async def test_what_is_created_outside_is_refused(service: Service, client: Client) -> None:
    key = await restricted(service, client, restriction=Restriction(frozenset({"red"}), frozenset({"ann", "eve"})))
    async with service.client(key) as ann:
        problem(await ann.post("/v1/conversations", json={"owner": "ann"}), 403, "key_restricted", "/project")
        problem(await ann.post("/v1/conversations", json={"project": "red"}), 403, "key_restricted", "/owner")
        made = await ann.conversation(project="red", owner="ann")
        fork = await ann.post(f"/v1/conversations/{made}/fork", json={"owner": "bob"})
        problem(fork, 403, "key_restricted", "/owner")
        problem(await ann.post("/v1/recall", json={"query": "tea"}), 422, "invalid_request", "/owner")
        fact = {"subject": "Ann", "predicate": "likes", "object": "tea", "owner": "ann"}
        problem(await ann.post("/v1/facts", json=fact), 403, "key_restricted", "/project")
        problem(await ann.post("/v1/facts", json=fact | {"owner": "bob", "project": "red"}), 403, "key_restricted")
        # without an agent of its own, such a key could name that of any other program
        problem(await ann.post("/v1/memories", json={"content": "x"}), 403, "long_term_disabled")
    assert (await client.get("/v1/facts")).json()["data"] == []


async def test_a_fact_that_other_projects_know_is_read_and_not_changed(service: Service, client: Client) -> None:
    everywhere = (await client.post("/v1/facts", json={"subject": "Ann", "predicate": "likes", "object": "tea"})).json()
    path = f"/v1/facts/{everywhere['fact']['id']}"
    key = await restricted(service, client)
    async with service.client(key) as intruder:
        assert (await intruder.get(path)).json()["object"] == "tea"
        problem(await intruder.patch(path, json={"object": "coffee"}), 403, "key_restricted")
        problem(await intruder.delete(path), 403, "key_restricted")


async def test_keys_are_restricted_over_the_api_and_shown_so(client: Client) -> None:
    body = {"name": "of red", "projects": ["red"], "owners": ["bob", "ann"]}
    made = await client.post("/v1/admin/keys", json=body)
    assert (made.json()["projects"], made.json()["owners"]) == (["red"], ["ann", "bob"])
    listed = (await client.get("/v1/admin/keys")).json()["data"][0]
    assert (listed["projects"], listed["owners"]) == (["red"], ["ann", "bob"])
    for scope in ("admin", "operator"):
        refused = await client.post("/v1/admin/keys", json=body | {"scopes": ["read", scope]})
        assert refused.status_code in {403, 422}
    problem(await client.post("/v1/admin/keys", json=body | {"scopes": ["admin"]}), 422, "invalid_request", "/scopes")
    problem(await client.post("/v1/admin/keys", json=body | {"owners": []}), 422, "invalid_request", "/owners")


async def test_a_token_of_a_restricted_key_is_for_a_conversation_inside(service: Service, client: Client) -> None:
    outside = await client.conversation(project="default")
    key = await restricted(service, client)
    async with service.client(key) as sender:
        inside = await sender.conversation(project="elsewhere")
        problem(await sender.post(f"/v1/conversations/{outside}/tokens", json={"access": "read"}), 404, "not_found")
        token = (await sender.post(f"/v1/conversations/{inside}/tokens", json={"access": "read"})).json()["token"]
    async with service.client(token) as browser:
        assert (await browser.get(f"/v1/conversations/{inside}")).status_code == 200
        problem(await browser.get(f"/v1/conversations/{outside}"), 404, "not_found")


async def test_an_append_of_a_restricted_key_takes_no_statement_more(service: Service, client: Client) -> None:
    conversation = await client.conversation(project="elsewhere")
    key = await restricted(service, client)
    sent: list[list[str]] = []
    async with service.client(key) as inside:
        for sender in (client, inside):
            await sender.append(conversation, "warm")
            appends: list[list[str]] = []
            for _ in range(3):  # the notice of the new key may come between, and then one of them reads it again
                with counted_statements() as statements:
                    await sender.append(conversation, "hello")
                appends.append(first_words(statements))
            sent.append(min(appends, key=len))
    assert sent[0] == sent[1]


@pytest.mark.slow
async def test_the_erasure_of_an_owner_removes_the_name_from_keys(service: Service, client: Client) -> None:
    only, both = [
        (await client.post("/v1/admin/keys", json={"name": "k", "owners": owners})).json()["id"]
        for owners in (["ann"], ["ann", "eve"])
    ]
    assert (await client.post("/v1/erasures", json={"owner": "ann"})).status_code == 202
    await service.run_jobs()
    keys = {key["id"]: key for key in (await client.get("/v1/admin/keys")).json()["data"]}
    assert (keys[only]["owners"], keys[only]["state"]) == ([], "revoked")
    assert (keys[both]["owners"], keys[both]["state"]) == (["eve"], "valid")


async def test_the_use_of_a_key_that_expires_soon_is_logged_once_a_day(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = datetime.now(UTC) + timedelta(days=3, hours=1)
    keys = [await restricted(service, client, expires_at=soon + timedelta(days=later)) for later in (0, 30)]
    log = Mock()
    monkeypatch.setattr(service.container.tenancy, "_log", log)
    for key in keys:
        async with service.client(key) as sender:
            await sender.get("/v1/conversations")
            service.container.tenancy.clear_checked()
            await sender.get("/v1/conversations")
    warned = [(one.args[0], one.kwargs["count"]) for one in log.warning.call_args_list]
    assert warned == [("key.expires_soon", 3)]


def test_the_marked_objects_are_outside_of_every_restriction() -> None:
    for restriction, _ in ELSEWHERE.values():
        assert not restriction.includes("default", CONVERSATION["owner"])
    assert "owner" not in MEMORY
