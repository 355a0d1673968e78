"""What is wrong is refused with the right problem, names the field, repeats nothing of it, and changes nothing."""

import copy
import io
import json
import random
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.core.ids import format_id, parse_id
from app.core.telemetry import configure_logging
from app.routers.http.problems import internal_error_response
from app.settings import Settings
from app.tenancy.key_text import generate_key, parse_key
from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, problem
from tests.support.rows import row_digests
from tests.support.shared import api_document

MARK = "quokkamarker"
NUL, LONE_HIGH, LONE_LOW = "\0", "\ud800", "\udc00"
JSON = {"Content-Type": "application/json"}
DOCUMENT: dict[str, Any] = api_document()
CALL = {"role": "assistant", "tool_calls": [{"id": "call-1", "name": "look", "arguments": "{}"}]}

ITEM = {"role": "user", "content": "fine"}
NAMED = {"session_id": "fine", "user_id": "fine", "turn_id": "fine"}

# operation → method, path (c: the conversation), a body that would be taken
OPERATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "create": ("POST", "/v1/conversations", {"title": "fine"}),
    "update": ("PATCH", "/v1/conversations/{c}", {"title": "fine"}),
    "append": ("POST", "/v1/conversations/{c}/turns", {"turns": [{"role": "user", "content": "fine"}]}),
    "context": ("POST", "/v1/conversations/{c}/context", {"token_budget": 1000}),
    "search": ("POST", "/v1/conversations/search", {"title": "fine"}),
    "fork": ("POST", "/v1/conversations/{c}/fork", {"title": "fine"}),
    "revise": ("POST", "/v1/conversations/{c}/turns/{t}/revisions", {"content": "fine"}),
    "recall": ("POST", "/v1/recall", {"query": "fine"}),
    "recall_in": ("POST", "/v1/conversations/{c}/recall", {"query": "fine"}),
    "token": ("POST", "/v1/conversations/{c}/tokens", {"access": "append", "actor": "fine"}),
    "open": ("POST", "/v1/conversations/{c}/turns/open", {"turn": {"role": "assistant"}, "writer": "fine"}),
    "fact": ("POST", "/v1/facts", {"subject": "fine", "predicate": "is", "object": "fine"}),
    "extract": ("POST", "/v1/conversations/{c}/facts/extract", {}),
    "store": ("POST", "/v1/memories", {"content": "fine"}),
    "remember": ("POST", "/v1/memories/search", {"query": "fine"}),
    "before": ("POST", "/v1/lifecycle/before-turn", NAMED | {"current_input": [ITEM]}),
    "after": ("POST", "/v1/lifecycle/after-turn", NAMED | {"input_items": [ITEM], "output_items": [{**ITEM}]}),
    "run": ("POST", "/v1/lifecycle/run-turn", NAMED | {"current_input": [ITEM]}),
    "maintain": ("POST", "/v1/lifecycle/maintenance", {"session_id": "fine"}),
    "tree": ("POST", "/v1/lifecycle/tree", {"session_id": "fine"}),
    "ask": ("POST", "/v1/agent/ask", {"query": "fine"}),
}
SCHEMAS = {
    "create": "ConversationCreate",
    "update": "ConversationUpdate",
    "append": "Append",
    "context": "ContextRequest",
    "search": "ConversationSearch",
    "fork": "ForkRequest",
    "revise": "Revision",
    "recall": "EvaluatedRecall",
    "recall_in": "EvaluatedConversationRecall",
    "token": "TokenCreate",
    "open": "Opening",
    "fact": "FactCreate",
    "extract": "FactsExtract",
    "store": "MemoryStore",
    "remember": "MemoryQuery",
    "before": "BeforeTurn",
    "after": "AfterTurn",
    "run": "RunTurn",
    "maintain": "SessionRequest",
    "tree": "TreeRequest",
    "ask": "AskAgent",
}


@pytest.fixture(scope="module")
async def superuser(service: Service) -> AsyncIterator[Callable[[Client], Any]]:
    """Gives a digest of every row that a tenant has."""
    async with row_digests(service) as digest:
        yield digest


@dataclass
class Victim:
    """A tenant with one conversation of one turn, which nothing here may change."""

    client: Client
    conversation: str
    turn: str
    digest: Callable[[Client], Any]
    before: str

    async def send(self, operation: str, body: object, **more: Any) -> httpx.Response:
        """Send a body as JSON in pure ASCII, so that any code point can stand in it."""
        return await self.send_raw(operation, json.dumps(body).encode(), **more)

    async def send_raw(self, operation: str, content: Any, headers: dict[str, str] | None = None) -> httpx.Response:
        method, path, _ = OPERATIONS[operation]
        path = path.format(c=self.conversation, t=self.turn)
        return await self.client.request(method, path, content=content, headers=JSON if headers is None else headers)

    async def refused(
        self, response: httpx.Response, status: int, code: str, pointer: str | None = None, place: str | None = None
    ) -> dict[str, Any]:
        """Fail unless this is the problem, it holds nothing of what was sent, and nothing was written."""
        assert MARK not in response.text
        assert MARK not in str(response.headers)
        body = problem(response, status, code, pointer)
        if place is not None:
            assert {error["in"] for error in body["errors"]} == {place}
        assert await self.digest(self.client) == self.before, "something was written"
        return body


@pytest.fixture(scope="module")
async def kept() -> AsyncIterator[dict[str, Victim]]:
    """The victim of the test before, by its digest."""
    found: dict[str, Victim] = {}
    yield found
    for victim in found.values():
        await victim.client.aclose()


@pytest.fixture
async def victim(service: Service, superuser: Callable[[Client], Any], kept: dict[str, Victim]) -> Victim:
    """The same for all tests as long as it has just the rows that it was made with; after that a fresh one."""
    for digest, found in kept.items():
        if await superuser(found.client) == digest:
            found.before = digest
            return found
        await found.client.aclose()
    kept.clear()
    client = await service.new_tenant()
    conversation = await client.conversation(external_id="kept", title="kept")
    turn = (await client.append(conversation, "kept"))["turns"][0]["id"]
    digest = await superuser(client)
    kept[digest] = Victim(client, conversation, turn, superuser, digest)
    return kept[digest]


def put(body: dict[str, Any], pointer: str, value: object) -> dict[str, Any]:
    """A copy of a body with `value` at `pointer`; lists and objects on the way are made."""
    made: Any = copy.deepcopy(body)
    here, steps = made, pointer.split("/")[1:]
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        key: Any = int(step) if isinstance(here, list) else step
        missing: Any = value if following is None else ([] if following.isdigit() else {})
        if isinstance(here, list) and key == len(here):
            here.append(missing)
        elif following is None or isinstance(here, list) or key not in here:
            here[key] = here[key] if isinstance(here, list) and following is not None else missing
        here = here[key]
    return made


# who asks


async def key_of(service: Service, client: Client, *scopes: Scope, **more: Any) -> str:
    return str(await service.container.tenancy.create_key(client.tenant_id, name="k", scopes=scopes, **more))


def filled_path(path: str, conversation: str, turn: str, tenant: str) -> str:
    """A path with the ids of these in it; the id of the turn stands for an id of any other kind."""
    names = re.findall(r"{(\w+)}", path)
    own = {"conversation_id": conversation, "tenant_id": tenant, "space_id": 1}
    return path.format(**dict.fromkeys(names, turn) | own)


def path_to(victim: Victim, path: str) -> str:
    return filled_path(path, victim.conversation, victim.turn, format_id(victim.client.tenant_id))


def good_query(operation_id: str) -> dict[str, str]:
    return {"ids": "01BX5ZZKBKACTAV9WEVGEMMVRZ"} if operation_id == "erase_turns" else {}


def private_operations() -> Iterator[Any]:
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            if path.startswith("/v1"):
                yield pytest.param(method.upper(), path, operation, id=operation["operationId"])


BODIES: dict[str, dict[str, Any]] = {
    "append_chunk": {"offset": 0, "delta": "fine"},
    "commit_turn": {},
    "abort_turn": {},
    "resume_turn": {},
    "generate": {"messages": [{"role": "user", "content": "fine"}]},
    "create_fact": OPERATIONS["fact"][2],
    "update_fact": {"object": "fine"},
    "search_turns": {"actors": ["user:fine"]},
    "update_webhook": {"url": "https://hooks.example.com/turnkeep"},
    "replay_deliveries": {"since": "2026-01-01T00:00:00Z"},
    "rotate_webhook_secret": {},
}


def good_body(operation_id: str) -> dict[str, Any] | None:
    if operation_id in BODIES:
        return BODIES[operation_id]
    name = operation_id.split("_", maxsplit=1)[0]
    if operation_id == "recall_in_conversation":
        name = "recall_in"
    if operation_id == "create_conversation_token":
        name = "token"
    empty = {"rotate_key", "summarise_turns", "compact_conversation", "add_space", "switch_space"}
    if operation_id in empty | {"set_key_limits", "set_tenant_limits"}:
        return {}
    if operation_id == "compare_space":
        return {"queries": ["fine"]}
    named = {"search_memories": "remember", "run_maintenance": "maintain", "list_memory_tree": "tree"}
    name = named.get(operation_id, name)
    name = {"build": "context"}.get(name, name)
    return OPERATIONS[name][2] if name in OPERATIONS else None


BAD_KEYS = {
    "none": "",
    "empty bearer": "Bearer ",
    "basic": "Basic dGs6dGs=",
    "not a key": f"Bearer {MARK}",
    "prefix only": "Bearer tk_",
    "lower case": "Bearer tk_{lower}",
    "cut": "Bearer {key_cut}",
    "longer": "Bearer {key}x",
    "ids too large": "Bearer tk_" + "Z" * 26 + "_" + "Z" * 26 + "_" + "a" * 43,
    "unknown tenant": "Bearer {unknown_tenant}",
    "unknown key": "Bearer {unknown_key}",
    "wrong secret": "Bearer {wrong_secret}",
    "token scheme": "Token {key}",
}


@pytest.mark.parametrize("kind", BAD_KEYS)
@pytest.mark.parametrize("operation", ["create", "append", "recall"])
async def test_without_a_key_that_holds_nothing_happens(
    victim: Victim, service: Service, operation: str, kind: str
) -> None:
    key = victim.client.key
    parsed = parse_key(key)
    assert parsed is not None
    header = BAD_KEYS[kind].format(
        lower=key[3:].lower(),
        key=key,
        key_cut=key[:-1],
        unknown_tenant=generate_key(),
        unknown_key=generate_key(parsed.tenant_id),
        wrong_secret=key[:-5] + ("aaaaa" if key[-5:] != "aaaaa" else "bbbbb"),
    )
    method, path, body = OPERATIONS[operation]
    async with service.client(None) as nobody:
        headers = {"Authorization": header} if header else {}
        response = await nobody.request(method, path.format(c=victim.conversation), json=body, headers=headers)
    await victim.refused(response, 401, "unauthenticated")
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert key[-43:] not in response.text


async def test_every_wrong_key_gets_the_same_answer(victim: Victim, service: Service) -> None:
    key = parse_key(victim.client.key)
    assert key is not None
    wrong = [generate_key(), generate_key(key.tenant_id), f"{victim.client.key[:-5]}aaaaa", MARK]
    bodies = set()
    for text in wrong:
        async with service.client(str(text)) as nobody:
            bodies.add(json.dumps((await nobody.get("/v1/conversations")).json() | {"request_id": ""}))
    assert len(bodies) == 1


@pytest.mark.parametrize(("method", "path", "operation"), list(private_operations()))
async def test_every_operation_under_v1_needs_a_key(
    victim: Victim, service: Service, method: str, path: str, operation: dict[str, Any]
) -> None:
    async with service.client(None) as nobody:
        response = await nobody.request(method, path_to(victim, path), json=good_body(operation["operationId"]))
    await victim.refused(response, 401, "unauthenticated")


@pytest.mark.parametrize("body", [b"{", b'{"a":1,"a":2}', b'"\\u0000"', b"[" * 100], ids=repr)
async def test_who_has_no_key_learns_nothing_about_a_body(victim: Victim, service: Service, body: bytes) -> None:
    async with service.client(None) as nobody:
        response = await nobody.post("/v1/conversations", content=body, headers=JSON)
    await victim.refused(response, 401, "unauthenticated")


@pytest.mark.parametrize("kind", ["revoked", "expired"])
async def test_a_key_that_was_good_once_says_why_it_is_not(victim: Victim, service: Service, kind: str) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    text = await key_of(service, victim.client, *Scope, expires_at=past if kind == "expired" else None)
    key = parse_key(text)
    assert key is not None
    async with service.client(text) as former:
        if kind == "revoked":
            assert (await former.get("/v1/conversations")).status_code == 200
            await service.container.tenancy.revoke_key(key.tenant_id, key_id=key.key_id)
        for operation in ("create", "append", "recall"):
            method, path, body = OPERATIONS[operation]
            response = await former.request(method, path.format(c=victim.conversation), json=body)
            await victim.refused(response, 401, f"key_{kind}")
    # who does not know the secret is not told that there was such a key
    async with service.client(f"{text[:-5]}aaaaa") as guesser:
        await victim.refused(await guesser.get("/v1/conversations"), 401, "unauthenticated")


# every key may ask what it is itself
@pytest.mark.parametrize(
    ("method", "path", "operation"), [case for case in private_operations() if case.id != "get_own_key"]
)
async def test_every_operation_needs_its_scope(
    victim: Victim, service: Service, method: str, path: str, operation: dict[str, Any]
) -> None:
    name = operation["operationId"]
    writing = (
        "create",
        "update",
        "delete",
        "append",
        "ask",
        "fork",
        "revise",
        "erase",
        "void",
        "open",
        "commit",
        "abort",
        "resume",
        "extract",
        "retract",
        "store",
        "summarise",
        "compact",
        "undo",
        "after",
        "trash",
        "restore",
        "run",
        "generate",
    )
    writes = name.startswith(writing)
    text = await key_of(service, victim.client, Scope.READ if writes else Scope.WRITE)
    async with service.client(text) as limited:
        query = good_query(name)
        response = await limited.request(method, path_to(victim, path), params=query, json=good_body(name))
        await victim.refused(response, 403, "forbidden")
        # nor does it learn what exists
        unknown = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
        missing = filled_path(path, unknown, unknown, unknown)
        response = await limited.request(method, missing, params=query, json=good_body(name))
        await victim.refused(response, 403, "forbidden")


async def test_the_key_may_come_in_a_header_of_its_own(victim: Victim, service: Service) -> None:
    async with service.client(None) as client:
        answer = await client.get("/v1/conversations", headers={"X-API-Key": victim.client.key})
        assert [item["id"] for item in answer.json()["data"]] == [victim.conversation]
        refused = await client.get("/v1/conversations", headers={"X-API-Key": MARK})
        await victim.refused(refused, 401, "unauthenticated")
        # a bearer token is the one that counts: a wrong one is not made good by the other header
        headers = {"X-API-Key": victim.client.key, "Authorization": f"Bearer {MARK}"}
        await victim.refused(await client.get("/v1/conversations", headers=headers), 401, "unauthenticated")


async def test_of_two_keys_the_bearer_token_counts(victim: Victim, other: Client, service: Service) -> None:
    async with service.client(other.key) as client:
        answer = await client.get("/v1/conversations", headers={"X-API-Key": victim.client.key})
        assert answer.json()["data"] == []


async def test_non_ascii_in_a_key_is_a_wrong_key(victim: Victim, service: Service) -> None:
    async with service.client(None) as client:
        for name, value in (("Authorization", "Bearer tk_é"), ("X-API-Key", "tk_é\xff")):
            response = await client.get("/v1/conversations", headers=[(name.encode(), value.encode("latin-1"))])
            await victim.refused(response, 401, "unauthenticated")


# which conversation and turn


@pytest.mark.parametrize("whose", ["nobody's", "another tenant's"])
@pytest.mark.parametrize(("method", "path", "operation"), list(private_operations()))
@pytest.mark.sampled
async def test_what_is_not_ones_own_is_not_there(
    victim: Victim, other: Client, whose: str, method: str, path: str, operation: dict[str, Any]
) -> None:
    conversation, turn = "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01BX5ZZKBKACTAV9WEVGEMMVRZ"
    if whose != "nobody's":
        conversation = await other.conversation(title=MARK)
        turn = (await other.append(conversation, MARK))["turns"][0]["id"]
    if "{" in path:
        response = await victim.client.request(
            method,
            filled_path(path, conversation, turn, format_id(other.tenant_id) if whose != "nobody's" else turn),
            params=good_query(operation["operationId"]),
            json=good_body(operation["operationId"]),
        )
        if operation["operationId"] == "delete_memory":  # what is not there is gone already
            assert (response.status_code, response.content) == (204, b"")
            assert await victim.digest(victim.client) == victim.before
            return
        # tenants and spaces are an operator's, there or not
        operators = "{tenant_id}" in path or "{space_id}" in path
        status, code = (403, "forbidden") if operators else (404, "not_found")
        await victim.refused(response, status, code)
    if "{turn_id}" in path:
        response = await victim.client.request(
            method,
            path.format(conversation_id=victim.conversation, turn_id=turn),
            json=good_body(operation["operationId"]),
        )
        await victim.refused(response, 404, "not_found")


async def test_a_turn_is_not_found_in_another_conversation_of_ones_own(client: Client) -> None:
    one, two = await client.conversation(), await client.conversation()
    turn = (await client.append(one, "hello"))["turns"][0]["id"]
    problem(await client.get(f"/v1/conversations/{two}/turns/{turn}"), 404, "not_found")


MALFORMED_IDS = {
    "short": MARK,
    "25 characters": "0" * 25,
    "27 characters": "0" * 27,
    "letters outside the alphabet": "ILOU" * 6 + "IL",
    "over 128 bits": "8" + "0" * 25,
    "far over 128 bits": "Z" * 26,
    "26 accents": "é" * 26,
    "letters that grow in upper case": "ß" * 26,
    "letters that become ASCII in upper case": "\u017f" * 26,
    "not hexadecimal": "g" * 32,
    "underscores": "1_" * 15 + "11",
    "a prefix of hexadecimal": "0x" + "1" * 30,
    "spaces around": " " + "1" * 30 + " ",
    "other digits": "\u0661" * 32,
    "a sign": "+" + "1" * 31,
    "braces": "{" + "1" * 34 + "}",
    "urn": "urn:uuid:" + "1" * 27,
    "hyphens anywhere": "1" * 30 + "-" * 4 + "11",
    "long": MARK * 500,
}


@pytest.mark.parametrize("name", MALFORMED_IDS)
@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        ("/v1/conversations/{bad}", "/conversation_id"),
        ("/v1/conversations/{bad}/turns", "/conversation_id"),
        ("/v1/conversations/{c}/turns/{bad}", "/turn_id"),
        ("/v1/memories/{bad}", "/memory_id"),
    ],
)
async def test_a_malformed_id_in_a_path_is_named(victim: Victim, path: str, pointer: str, name: str) -> None:
    bad = "".join(f"%{byte:02x}" for byte in MALFORMED_IDS[name].encode())
    method = "DELETE" if pointer == "/memory_id" else "GET"
    response = await victim.client.request(method, path.format(bad=bad, c=victim.conversation))
    await victim.refused(response, 422, "invalid_request", pointer, "path")


@pytest.mark.parametrize("name", MALFORMED_IDS)
@pytest.mark.parametrize(
    ("operation", "pointer"),
    [("create", "/id"), ("append", "/turns/0/id"), ("recall", "/conversation_ids/0")],
)
async def test_a_malformed_id_in_a_body_is_named(victim: Victim, operation: str, pointer: str, name: str) -> None:
    for value in (MALFORMED_IDS[name], "", NUL[1:] + "a"):
        response = await victim.send(operation, put(OPERATIONS[operation][2], pointer, value))
        await victim.refused(response, 422, "invalid_request", pointer, "body")


async def test_a_nul_in_a_path_is_a_malformed_id(victim: Victim) -> None:
    response = await victim.client.get(f"/v1/conversations/%00{MARK}")
    await victim.refused(response, 422, "invalid_request", "/conversation_id", "path")


# text that cannot be stored

TEXTS = [
    ("create", "/external_id", "/external_id"),
    ("create", "/title", "/title"),
    ("create", "/owner", "/owner"),
    ("create", "/project", "/project"),
    ("create", "/participants/0", "/participants/0"),
    ("create", "/participants/0/actor", "/participants/0/actor"),
    ("create", "/metadata/a", "/metadata"),
    ("create", "/metadata/a/b/0", "/metadata"),
    ("create", "/compaction/summarizer_model", "/compaction/summarizer_model"),
    ("update", "/title", "/title"),
    ("update", "/metadata/a", "/metadata"),
    ("append", "/turns/0/content", "/turns/0/content"),
    ("append", "/turns/1/content", "/turns/1"),
    ("append", "/turns/0/content/0/text", "/turns/0/content/0"),
    ("append", "/turns/0/actor", "/turns/0/actor"),
    ("append", "/turns/0/model", "/turns/0/model"),
    ("append", "/turns/0/adapter", "/turns/0/adapter"),
    ("append", "/turns/0/tool_call_id", "/turns/0/tool_call_id"),
    ("append", "/turns/0/metadata/a", "/turns/0/metadata"),
    ("append", "/turns/0/usage/a", "/turns/0/usage"),
    ("append", "/turns/0/tool_calls/0/arguments", "/turns/0/tool_calls/0"),
    ("append", "/turns/0/tool_results/0/content", "/turns/0/tool_results/0"),
    ("recall", "/query", "/query"),
    ("recall", "/project", "/project"),
    ("recall", "/owner", "/owner"),
    ("recall", "/agent_id", "/agent_id"),
    ("recall", "/filters/actors/0", "/filters/actors/0"),
    ("recall", "/filters/metadata/a", "/filters/metadata"),
    ("recall_in", "/query", "/query"),
    ("context", "/query", "/query"),
    ("context", "/system", "/system"),
    ("context", "/agent_id", "/agent_id"),
    ("context", "/filter_participants/0", "/filter_participants/0"),
    ("store", "/content", "/content"),
    ("store", "/owner", "/owner"),
    ("store", "/metadata/a/b/0", "/metadata"),
    ("remember", "/query", "/query"),
    ("remember", "/filters/owner", "/filters/owner"),
    ("ask", "/query", "/query"),
    ("remember", "/filters/metadata/a", "/filters/metadata"),
    ("before", "/session_id", "/session_id"),
    ("before", "/base_instructions", "/base_instructions"),
    ("before", "/current_input/0/content", "/current_input/0"),
    ("after", "/project", "/project"),
    ("after", "/turn_id", "/turn_id"),
    ("after", "/input_items/0/content", "/input_items/0"),
    ("after", "/output_items/0/a", "/output_items/0"),
    ("run", "/user_id", "/user_id"),
    ("run", "/operation_token", "/operation_token"),
    ("tree", "/path", "/path"),
]


@pytest.mark.parametrize("character", [NUL, LONE_HIGH, LONE_LOW, LONE_LOW + LONE_HIGH], ids=ascii)
@pytest.mark.parametrize(("operation", "at", "pointer"), TEXTS)
async def test_text_that_cannot_be_stored_is_refused_and_named(
    victim: Victim, operation: str, at: str, pointer: str, character: str
) -> None:
    base = OPERATIONS[operation][2]
    if "content/0" in at:
        base = {"turns": [{"role": "user", "content": []}]}
    response = await victim.send(operation, put(base, at, f"{MARK}{character}{MARK}"))
    body = await victim.refused(response, 422, "text_not_storable", place="body")
    assert body["errors"][0]["pointer"].startswith(pointer)


@pytest.mark.parametrize("character", [NUL, LONE_HIGH, LONE_LOW], ids=ascii)
@pytest.mark.parametrize(
    ("operation", "at"),
    [
        ("create", "/metadata"),
        ("create", ""),
        ("update", "/metadata"),
        ("append", "/turns/0/metadata"),
        ("append", "/turns/0"),
        ("recall", "/filters/metadata"),
        ("store", "/metadata"),
        ("remember", "/filters/metadata"),
    ],
)
async def test_names_of_members_that_cannot_be_stored_are_refused(
    victim: Victim, operation: str, at: str, character: str
) -> None:
    bad = {f"{MARK}{character}": 1}
    base = OPERATIONS[operation][2]
    body = bad if not at else put(base, at, base["turns"][0] | bad if at == "/turns/0" else bad)
    response = await victim.send(operation, body)
    await victim.refused(response, 422, "text_not_storable", at, "body")


@pytest.mark.parametrize("name", ["project", "external_id", "owner", "participant", "actors"])
async def test_a_nul_in_a_query_parameter_is_refused_and_named(victim: Victim, name: str) -> None:
    path = f"/v1/conversations/{victim.conversation}/turns" if name == "actors" else "/v1/conversations"
    response = await victim.client.get(path, params={name: f"{MARK}\0"})
    assert response.status_code == 422, response.status_code
    body = await victim.refused(response, 422, response.json()["code"], place="query")
    assert body["code"] in {"invalid_request", "text_not_storable"}
    assert body["errors"][0]["pointer"].startswith(f"/{name}")


async def test_what_is_not_utf_8_in_a_query_finds_nothing(victim: Victim) -> None:
    response = await victim.client.get("/v1/conversations?owner=%ff%ed%a0%80")
    assert (response.status_code, response.json()["data"]) == (200, [])


# the body as a whole


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (f'{{"title": "{MARK}"', "malformed_json"),
        (f"{MARK}", "malformed_json"),
        (f'{{"{MARK}": NaN}}', "malformed_json"),
        (f'{{"{MARK}": Infinity}}', "malformed_json"),
        (f'{{"{MARK}": -Infinity}}', "malformed_json"),
        (f"{{'{MARK}': 1}}", "malformed_json"),
        (f'{{"{MARK}": 01}}', "malformed_json"),
        (f'{{"{MARK}": 1}} {MARK}', "malformed_json"),
        (f"\ufeff{{}}{MARK}", "malformed_json"),
        (f'{{"a": "{MARK}\x00"}}', "malformed_json"),
        (b'{"title": "\xed\xa0\x80"}', "malformed_json"),
        (b'{"title": "\xff"}', "malformed_json"),
        (f'{{"title": "{MARK}"}}'.encode("utf-16"), "malformed_json"),
        ("title=" + MARK, "malformed_json"),
    ],
    ids=range(14),
)
async def test_what_is_not_json_is_400(victim: Victim, operation: str, body: str | bytes, code: str) -> None:
    response = await victim.send_raw(operation, body.encode() if isinstance(body, str) else body)
    await victim.refused(response, 400, code)


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_numbers_beyond_what_readers_agree_on_are_refused(victim: Victim, operation: str) -> None:
    for number in ("9007199254740992", "-9007199254740992", "1e999", "-1e400"):
        response = await victim.send_raw(operation, f'{{"metadata": {{"{MARK}": {number}}}}}'.encode())
        await victim.refused(response, 422, "number_not_interoperable", "/metadata", "body")
    response = await victim.send_raw(operation, f'{{"metadata": {{"{MARK}": {"1" + "0" * 5000}}}}}'.encode())
    await victim.refused(response, 422, "number_not_interoperable", "", "body")


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_body_is_required_and_an_object(victim: Victim, operation: str) -> None:
    response = await victim.send_raw(operation, b"")
    await victim.refused(response, 422, "invalid_request", "", "body")
    for body in ([], [OPERATIONS[operation][2]], MARK, 7, 1.5, True, None):
        await victim.refused(await victim.send(operation, body), 422, "invalid_request", "", "body")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", f"application/{MARK}", ""]
)
async def test_a_body_that_is_not_declared_as_json_is_415(victim: Victim, operation: str, media_type: str) -> None:
    content = json.dumps(OPERATIONS[operation][2]).encode()
    response = await victim.send_raw(operation, content, headers={"Content-Type": media_type} if media_type else {})
    await victim.refused(response, 415, "unsupported_media_type")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("chunked", [False, True], ids=["by length", "chunked"])
async def test_ten_megabytes_are_too_many(victim: Victim, operation: str, *, chunked: bool) -> None:
    body = json.dumps({"title": MARK * (10 * 2**20 // len(MARK))}).encode()

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 2**16):
            yield body[start : start + 2**16]

    response = await victim.send_raw(operation, chunks() if chunked else body)
    await victim.refused(response, 413, "body_too_large")


@pytest.mark.parametrize(
    ("operation", "at"),
    [
        ("create", "/metadata"),
        ("append", "/turns/0/metadata"),
        ("append", "/turns/0/content"),
        ("recall", "/filters/metadata"),
        ("context", "/system"),
        ("store", "/metadata"),
        ("remember", "/filters/metadata"),
        ("before", "/current_input/0/content"),
        ("after", "/output_items/0/a"),
    ],
)
async def test_a_hundred_levels_are_too_deep(victim: Victim, operation: str, at: str) -> None:
    deep: Any = MARK
    for level in range(100):
        deep = [deep] if level % 2 else {MARK: deep}
    response = await victim.send(operation, put(OPERATIONS[operation][2], at, deep))
    await victim.refused(response, 422, "json_too_deep", place="body")


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_member_that_stands_twice_is_refused(victim: Victim, operation: str) -> None:
    response = await victim.send_raw(operation, f'{{"{MARK}": 1, "{MARK}": 2}}'.encode())
    await victim.refused(response, 422, "duplicate_key", "", "body")


@pytest.mark.parametrize(
    ("operation", "at"),
    [
        *((operation, "") for operation in OPERATIONS),
        ("create", "/participants/0"),
        ("create", "/compaction"),
        ("create", "/facts"),
        ("update", "/compaction"),
        ("append", "/turns/0"),
        ("recall", "/filters"),
        ("recall_in", "/filters"),
        ("remember", "/filters"),
        ("context", "/semantic_recall"),
    ],
)
async def test_an_unknown_member_is_an_error_and_its_name_is_repeated_only_if_it_is_plain(
    victim: Victim, operation: str, at: str
) -> None:
    base = put(OPERATIONS[operation][2], "/participants/0", {"actor": "a"}) if "participants" in at else None
    for name, pointer in ((f"{MARK}!", at), ("frobnicate", f"{at}/frobnicate")):
        response = await victim.send(operation, put(base or OPERATIONS[operation][2], f"{at}/{name}", MARK))
        await victim.refused(response, 422, "invalid_request", pointer, "body")


async def test_session_id_is_not_taken_where_it_means_nothing(victim: Victim) -> None:
    for operation, member in (("create", "tenant_id"), ("update", "external_id"), ("recall_in", "conversation_ids")):
        response = await victim.send(operation, OPERATIONS[operation][2] | {member: MARK})
        await victim.refused(response, 422, "invalid_request", f"/{member}", "body")


# wrong types, everywhere that the document declares a type

VALUES: dict[str, object] = {
    "null": None,
    "boolean": True,
    "integer": 7,
    "number": 7.5,
    "string": MARK,
    "array": [],
    "object": {},
}


def resolve(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
    return schema


def types_of(schema: dict[str, Any]) -> set[str]:
    """The JSON types that a schema takes."""
    schema = resolve(schema)
    if "anyOf" in schema:
        return set().union(*(types_of(branch) for branch in schema["anyOf"]))
    found = schema.get("type")
    if found is None:
        return set(VALUES)
    types = {found} if isinstance(found, str) else set(found)
    return types | {"integer"} if "number" in types else types


def typed_places(schema: dict[str, Any], at: str, depth: int = 0) -> Iterator[tuple[str, set[str]]]:
    """Every place below a schema, with the types that it takes there."""
    schema = resolve(schema)
    for branch in schema.get("anyOf", [schema]):
        branch = resolve(branch)  # noqa: PLW2901 - the same thing, followed
        if branch.get("additionalProperties") is True:
            continue  # an object of a provider, which is kept as given
        for name, member in branch.get("properties", {}).items():
            yield f"{at}/{name}", types_of(member)
            yield from typed_places(member, f"{at}/{name}", depth + 1)
        if "items" in branch and depth < 6:
            types = types_of(branch["items"])
            yield f"{at}/0", types | {"string"} if at == "/participants" else types
            yield from typed_places(branch["items"], f"{at}/0", depth + 1)


def all_typed_places() -> Iterator[Any]:
    for operation, name in SCHEMAS.items():
        for at, types in typed_places(DOCUMENT["components"]["schemas"][name], ""):
            wrong = sorted(set(VALUES) - types)
            if wrong:
                yield pytest.param(operation, at, wrong, id=f"{operation}{at}")


@pytest.mark.parametrize(("operation", "at", "wrong"), list(all_typed_places()))
@pytest.mark.sampled
async def test_a_wrong_type_is_refused_and_named(victim: Victim, operation: str, at: str, wrong: list[str]) -> None:
    base = OPERATIONS[operation][2]
    if at.startswith("/turns/0/content/0"):
        base = {"turns": [{"role": "user", "content": []}]}
    if operation == "revise" and at.startswith("/content/0"):
        base = {"content": []}
    if at.startswith("/participants/0/"):
        base = base | {"participants": [{"actor": "a"}]}
    for kind in wrong:
        response = await victim.send(operation, put(base, at, VALUES[kind]))
        assert response.status_code == 422, f"a {kind} at {at} was answered {response.status_code}"
        await victim.refused(response, 422, "invalid_request", at, "body")


@pytest.mark.parametrize(
    ("operation", "pointer", "value"),
    [
        ("create", "/retention", MARK),
        ("create", "/compaction/strategy", MARK),
        ("create", "/compaction/trigger_turns", 1),
        ("create", "/compaction/trigger_turns", -1),
        ("create", "/compaction/trigger_tokens", 0),
        ("create", "/ttl_s", 0),
        ("create", "/ttl_s", -1),
        ("create", "/ttl_s", 2**53 - 1),
        ("create", "/external_id", ""),
        ("create", "/external_id", MARK * 50),
        ("create", "/title", MARK * 100),
        ("create", "/owner", ""),
        ("create", "/owner", MARK * 50),
        ("create", "/project", ""),
        ("create", "/project", MARK * 50),
        ("create", "/participants", [MARK] * 201),
        ("create", "/participants/0", ""),
        ("create", "/participants/0", MARK * 50),
        ("create", "/metadata", {MARK: "x" * 2**14}),
        ("create", "/metadata", {MARK: "é" * 2**13}),
        ("update", "/title", MARK * 100),
        ("update", "/retention", None),
        ("update", "/metadata", {MARK: "x" * 2**14}),
        ("append", "/turns", []),
        ("append", "/turns", [{"role": "user", "content": MARK}] * 501),
        ("append", "/expected_seq", -1),
        ("append", "/turns/0/role", MARK),
        ("append", "/turns/0/role", "User"),
        ("append", "/turns/0/kind", MARK),
        ("append", "/turns/0/actor", ""),
        ("append", "/turns/0/actor", MARK * 50),
        ("append", "/turns/0/model", MARK * 50),
        ("append", "/turns/0/adapter", MARK * 50),
        ("append", "/turns/0/metadata", {MARK: "x" * 2**14}),
        ("append", "/turns/0/metadata", {MARK: "é" * 2**13}),
        ("append", "/turns/0/usage", {MARK: "x" * 2**14}),
        ("append", "/turns/0/content", None),
        ("append", "/turns/0/content/0", {}),
        ("append", "/turns/0/content/0/type", ""),
        ("append", "/turns/0/tool_calls", [{"id": "a", "name": MARK, "arguments": "{}"}]),
        ("append", "/turns/0/occurred_at", MARK),
        ("append", "/turns/0/occurred_at", ""),
        ("append", "/turns/0/occurred_at", 1_700_000_000),
        ("append", "/turns/0/occurred_at", 1_700_000_000.5),
        ("append", "/turns/0/occurred_at", "1700000000"),
        ("append", "/turns/0/occurred_at", "-1"),
        ("append", "/turns/0/occurred_at", "2026-01-01"),
        ("append", "/turns/0/occurred_at", "2026-01-01T00:00:00"),
        ("append", "/turns/0/occurred_at", "2026-13-01T00:00:00Z"),
        ("append", "/turns/0/occurred_at", "2026-02-30T00:00:00Z"),
        ("append", "/turns/0/occurred_at", "2126-01-01T00:00:00Z"),
        ("append", "/turns/0/occurred_at", "9999-12-31T23:59:59-10:00"),
        ("append", "/turns/0/occurred_at", "0001-01-01T00:00:00+10:00"),
        ("append", "/turns/0/occurred_at", "0001-01-01T00:00:00Z"),
        ("append", "/turns/0/occurred_at", "0001-01-01T00:00:00.000999Z"),
        ("append", "/turns/0/occurred_at", "0000-01-01T00:00:00Z"),
        ("recall", "/query", ""),
        ("recall", "/query", " \t\n\u00a0\u3000"),
        ("recall", "/query", MARK * 1000),
        ("recall", "/k", 0),
        ("recall", "/k", -1),
        ("recall", "/k", 201),
        ("recall", "/k", 10**9),
        ("recall", "/k", 2**53 - 1),
        ("recall", "/kinds", []),
        ("recall", "/kinds/0", MARK),
        ("recall", "/mode", MARK),
        ("recall", "/threshold", -0.1),
        ("recall", "/threshold", 1.1),
        ("recall", "/neighbours", -1),
        ("recall", "/neighbours", 6),
        ("recall", "/conversation_ids", []),
        ("recall", "/conversation_ids", ["01ARZ3NDEKTSV4RRFFQ69G5FAV"] * 1001),
        ("recall", "/filters/roles/0", MARK),
        ("recall", "/filters/actors/0", ""),
        ("recall", "/filters/actors", [MARK] * 201),
        ("recall", "/filters/occurred_after", 1_700_000_000),
        ("recall", "/filters/occurred_after", "1700000000"),
        ("recall", "/filters/occurred_after", "2026-01-01T00:00:00"),
        ("recall", "/filters/occurred_after", "9999-12-31T23:59:59-10:00"),
        ("recall", "/filters/occurred_before", "0001-01-01T00:00:00+10:00"),
        ("recall_in", "/query", ""),
        ("recall_in", "/query", "   "),
        ("recall_in", "/k", 0),
        ("recall_in", "/k", 10**9),
        ("context", "/token_budget", 0),
        ("context", "/token_budget", -1),
        ("context", "/token_budget", -(10**9)),
        ("context", "/token_budget", 10**9),
        ("context", "/token_budget", 100.5),
        ("context", "/token_budget", True),
        ("context", "/token_budget", "100"),
        ("context", "/token_budget", None),
        ("context", "/include_facts", "yes"),
        ("context", "/include_summary", 1),
        ("context", "/explain", "true"),
        ("context", "/recent_turns", 0),
        ("context", "/recent_turns", -1),
        ("context", "/query", ""),
        ("context", "/query", "   "),
        ("context", "/semantic_recall/k", 0),
        ("context", "/semantic_recall/k", -1),
        ("context", "/semantic_recall/threshold", 2),
        ("context", "/filter_participants", []),
        ("context", "/filter_participants/0", ""),
        ("context", "/format", MARK),
        ("context", "/tokenizer", MARK),
        ("context", "/agent_id", ""),
        ("fact", "/subject", ""),
        ("fact", "/subject", MARK * 100),
        ("fact", "/predicate", MARK * 100),
        ("fact", "/object", MARK * 1000),
        ("fact", "/owner", ""),
        ("fact", "/confidence", -0.1),
        ("fact", "/confidence", "1"),
        ("fact", "/tier", MARK),
        ("fact", "/valid_from", "2026-01-01"),
        ("fact", "/source_turn_ids/0", MARK),
        ("fact", "/source_turn_ids", ["01ARZ3NDEKTSV4RRFFQ69G5FAV"] * 101),
        ("fact", "/replaces", "yes"),
        ("extract", "/through", MARK),
        ("ask", "/query", ""),
        ("ask", "/query", " \t\n\u00a0\u3000"),
        ("ask", "/query", MARK * 4000),
        ("ask", "/conversation_id", MARK),
        ("store", "/content", ""),
        ("store", "/content", " \t\n\u00a0\u3000"),
        ("store", "/owner", ""),
        ("store", "/ttl_s", 0),
        ("store", "/ttl_s", -1),
        ("store", "/ttl_s", 10**12),
        ("store", "/ttl_s", 1.5),
        ("store", "/metadata", {"a": MARK * 2000}),
        ("remember", "/query", ""),
        ("remember", "/query", "   "),
        ("remember", "/query", MARK * 1000),
        ("remember", "/top_k", 0),
        ("remember", "/top_k", 21),
        ("remember", "/top_k", 5.5),
        ("remember", "/filters/owner", ""),
        ("remember", "/filters/created_after", "yesterday"),
        ("remember", "/filters/created_before", "0001-01-01T00:00:00+10:00"),
    ],
    ids=lambda value: ascii(value)[:40],
)
async def test_a_value_out_of_bounds_is_refused_and_named(
    victim: Victim, operation: str, pointer: str, value: object
) -> None:
    base = OPERATIONS[operation][2]
    if "/content/0" in pointer:
        base = {"turns": [{"role": "user", "content": [{"type": "text", "text": MARK}]}]}
        if pointer.endswith("/0"):
            base["turns"][0]["content"] = []
    at = f"{pointer}/type" if value == {} else pointer
    response = await victim.send(operation, put(base, pointer, value))
    assert response.status_code == 422, f"answered {response.status_code}"
    await victim.refused(response, 422, "invalid_request", at, "body")


async def test_more_than_five_minutes_ahead_is_the_future(victim: Victim) -> None:
    for ahead_s, status in ((301, 422), (3600, 422), (290, 201)):
        at = (datetime.now(UTC) + timedelta(seconds=ahead_s)).isoformat()
        response = await victim.send("append", put(OPERATIONS["append"][2], "/turns/0/occurred_at", at))
        if status == 422:
            await victim.refused(response, 422, "invalid_request", "/turns/0/occurred_at")
        assert response.status_code == status


@pytest.mark.parametrize(
    ("turn", "pointer"),
    [
        ({"content": MARK + "x" * 2**20}, "/turns/0/content"),
        ({"content": MARK + "é" * 2**19}, "/turns/0/content"),
        ({"content": [{"type": "text", "text": MARK + "x" * 2**20}]}, "/turns/0/content/0/text"),
        (
            {"role": "assistant", "tool_calls": [{"id": "a", "name": "b", "arguments": MARK + "x" * 2**20}]},
            "/turns/0/tool_calls/0",
        ),
        (
            {"role": "tool", "tool_results": [{"tool_call_id": "a", "content": MARK + "x" * 2**20}]},
            "/turns/0/tool_results/0",
        ),
    ],
    ids=["text", "wide text", "part", "arguments", "result"],
)
async def test_a_text_over_a_mebibyte_is_too_large(victim: Victim, turn: dict[str, Any], pointer: str) -> None:
    response = await victim.send("append", {"turns": [{"role": "user", **turn}]})
    body = await victim.refused(response, 413, "text_too_large", place="body")
    assert body["errors"][0]["pointer"].startswith(pointer)


async def test_a_memory_over_64_kibibytes_is_too_large(victim: Victim) -> None:
    for content in (MARK + "x" * 2**16, MARK + "é" * 2**15):
        response = await victim.send("store", {"content": content})
        await victim.refused(response, 413, "text_too_large", "/content", "body")


@pytest.mark.parametrize("name", ["", " ", "a ", "x" * 257, MARK * 50, "a\tb"])
async def test_the_name_of_an_agent_in_the_header_has_a_form(victim: Victim, name: str) -> None:
    for operation in ("store", "remember", "recall", "context"):
        headers = [*((key.encode(), value.encode()) for key, value in JSON.items()), (b"X-Agent-Id", name.encode())]
        response = await victim.send(operation, OPERATIONS[operation][2], headers=headers)
        body = await victim.refused(response, 422, "invalid_request", place="header")
        assert body["errors"][0]["pointer"].lower() == "/x-agent-id"


async def test_names_as_long_as_they_may_be_are_stored_in_any_script(client: Client) -> None:
    chance = random.Random(1)  # noqa: S311 - text that does not compress, four bytes a character
    members = DOCUMENT["components"]["schemas"]["ConversationCreate"]["properties"]
    body: dict[str, str] = {}
    for name in ("external_id", "project", "owner", "title"):
        branches = members[name].get("anyOf", [members[name]])
        longest = next(branch["maxLength"] for branch in branches if "maxLength" in branch)
        body[name] = "".join(chr(chance.randrange(0x10000, 0x1FFFF)) for _ in range(longest))
    made = await client.post("/v1/conversations", json=body)
    assert made.status_code == 201, made.status_code
    assert {name: made.json()[name] for name in body} == body


# turns that do not fit together


async def test_an_id_that_stands_twice_in_one_append_is_named(victim: Victim) -> None:
    ulid, uuid = "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01563e3a-b5d3-d676-4c61-efb99302bd5b"
    for first, second in ((ulid, ulid), (ulid, uuid), (ulid.lower(), uuid.upper())):
        turns = [{"id": one, "role": "user", "content": MARK} for one in (first, second)]
        await victim.refused(await victim.send("append", {"turns": turns}), 422, "invalid_request", "/turns/1/id")


async def test_a_turn_id_of_another_conversation_conflicts(client: Client, superuser: Callable[[Client], Any]) -> None:
    one, two = await client.conversation(), await client.conversation()
    turn = (await client.append(one, "the same"))["turns"][0]["id"]
    victim = Victim(client, two, turn, superuser, await superuser(client))
    turns = [{"role": "user", "content": MARK}, {"id": turn, "role": "user", "content": "the same"}]
    await victim.refused(await victim.send("append", {"turns": turns}), 409, "turn_id_conflict", "/turns/1/id")


RESULT = {"role": "tool", "tool_call_id": "call-1", "content": MARK}
RESULTS = {"role": "tool", "tool_results": [{"tool_call_id": "call-1", "content": MARK}]}


@pytest.mark.parametrize("result", [RESULT, RESULTS], ids=["tool_call_id", "tool_results"])
@pytest.mark.parametrize(
    ("before", "after"),
    [((), ()), (({"role": "user", "content": "hi"},), ()), ((), (CALL,)), ((CALL | {"tool_calls": [
        {"id": "call-2", "name": "look", "arguments": "{}"}]},), ())],
    ids=["alone", "after a message", "before its call", "after another call"],
)  # fmt: skip
async def test_a_tool_result_without_its_call_is_refused(
    victim: Victim, result: dict[str, Any], before: tuple[dict[str, Any], ...], after: tuple[dict[str, Any], ...]
) -> None:
    response = await victim.send("append", {"turns": [*before, result, *after]})
    at = "tool_call_id" if result is RESULT else "tool_results/0/tool_call_id"
    await victim.refused(response, 422, "tool_call_unknown", f"/turns/{len(before)}/{at}")


async def test_a_tool_result_does_not_answer_a_call_in_another_conversation(
    client: Client, superuser: Callable[[Client], Any]
) -> None:
    one, two = await client.conversation(), await client.conversation()
    await client.append(one, CALL)
    victim = Victim(client, two, "", superuser, await superuser(client))
    response = await victim.send("append", {"turns": [RESULT]})
    await victim.refused(response, 422, "tool_call_unknown", "/turns/0/tool_call_id")


@pytest.mark.parametrize(
    ("turn", "pointer"),
    [
        ({"role": "user"}, "/content"),
        ({"role": "assistant"}, "/content"),
        ({"role": "tool", "content": MARK}, "/tool_call_id"),
        ({"role": "tool", "tool_call_id": "a"}, "/content"),
        ({"role": "user", "content": MARK, "tool_call_id": "a"}, "/role"),
        ({"role": "user", "content": MARK, "tool_calls": CALL["tool_calls"]}, "/tool_calls"),
        (RESULT | {"tool_results": RESULTS["tool_results"]}, "/tool_results"),
        ({"role": "assistant", "tool_calls": [{"name": MARK}]}, "/tool_calls/0/id"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "/tool_calls/0/name"),
        ({"role": "assistant", "tool_calls": [{"id": "a", "name": MARK, "arguments": 7}]}, "/tool_calls/0"),
        ({"role": "assistant", "tool_calls": [{"id": "a", "name": MARK}] * 2}, "/tool_calls/1/id"),
        ({"role": "tool", "tool_results": [{"content": MARK}]}, "/tool_results/0/tool_call_id"),
        ({"role": "tool", "tool_results": [{"tool_call_id": "a"}]}, "/tool_results/0/content"),
        ({"role": "user", "content": [MARK]}, "/content/0"),
        ({"role": "user", "content": [{"type": "text"}]}, "/content/0/text"),
        ({"role": "user", "content": [{"type": "text", "text": 7}]}, "/content/0/text"),
    ],
    ids=range(16),
)
async def test_a_turn_that_makes_no_sense_is_refused_with_all_others(
    victim: Victim, turn: dict[str, Any], pointer: str
) -> None:
    response = await victim.send("append", {"turns": [{"role": "user", "content": "good"}, turn]})
    body = await victim.refused(response, 422, "invalid_request", place="body")
    assert body["errors"][0]["pointer"].startswith(f"/turns/1{pointer}")


async def test_a_refused_request_does_not_use_up_its_idempotency_key(victim: Victim) -> None:
    headers = {**JSON, "Idempotency-Key": "k"}
    for operation in ("create", "append"):
        bad = OPERATIONS[operation][2] | {f"{MARK}!": 1}
        await victim.refused(await victim.send(operation, bad, headers=headers), 422, "invalid_request", "")
    response = await victim.send("append", {"turns": [RESULT]}, headers=headers)
    await victim.refused(response, 422, "tool_call_unknown")
    assert (await victim.send("append", OPERATIONS["append"][2], headers=headers)).status_code == 201


@pytest.mark.parametrize("key", ["", "x" * 256, MARK * 50])
async def test_an_idempotency_key_has_a_length(victim: Victim, key: str) -> None:
    for operation in ("create", "append", "store"):
        response = await victim.send(operation, OPERATIONS[operation][2], headers={**JSON, "Idempotency-Key": key})
        body = await victim.refused(response, 422, "invalid_request", place="header")
        assert body["errors"][0]["pointer"].lower() == "/idempotency-key"


# query parameters


@pytest.mark.parametrize("value", ["-1", "0", "201", "1.5", "", "abc" + MARK, "1" + "0" * 30, "true", "0x10", "null"])
@pytest.mark.parametrize("path", ["/v1/conversations", "/v1/conversations/{c}/turns", "/v1/memories"])
async def test_a_limit_is_from_1_to_200(victim: Victim, path: str, value: str) -> None:
    response = await victim.client.get(path.format(c=victim.conversation), params={"limit": value})
    await victim.refused(response, 422, "invalid_request", "/limit", "query")


@pytest.mark.parametrize(
    ("name", "value"),
    [("after", "-1"), ("after", MARK), ("before", "9" * 30), ("before", "1.5"), ("order", MARK), ("order", "DESC")],
)
async def test_a_wrong_bound_or_order_of_a_history_is_named(victim: Victim, name: str, value: str) -> None:
    response = await victim.client.get(f"/v1/conversations/{victim.conversation}/turns", params={name: value})
    await victim.refused(response, 422, "invalid_request", f"/{name}", "query")


@pytest.mark.parametrize("name", ["project", "external_id", "owner", "participant"])
async def test_a_filter_has_a_length(victim: Victim, name: str) -> None:
    for value in ("", MARK * 50):
        response = await victim.client.get("/v1/conversations", params={name: value})
        await victim.refused(response, 422, "invalid_request", f"/{name}", "query")


async def test_a_cursor_of_another_list_or_of_nothing_is_refused(victim: Victim) -> None:
    second = await victim.client.conversation()
    for conversation in (victim.conversation, second):
        await victim.client.append(conversation, "one", "two")
    victim.before = await victim.digest(victim.client)
    mine, others = (f"/v1/conversations/{c}/turns" for c in (victim.conversation, second))
    cursor = (await victim.client.get(others, params={"limit": 1})).json()["next_cursor"]
    for params in (
        {"cursor": cursor},
        {"cursor": MARK},
        {"cursor": ""},
        {"cursor": cursor + "A"},
        {"cursor": f"{cursor[:-2]}AA"},
        {"cursor": "\0"},
        {"cursor": "=" * 10},
    ):
        response = await victim.client.get(mine, params=params)
        await victim.refused(response, 422, "cursor_invalid", "/cursor", "query")
    for changed in ({"order": "desc"}, {"after": 0}, {"actors": "user"}):
        response = await victim.client.get(others, params={"cursor": cursor, **changed})
        await victim.refused(response, 422, "cursor_invalid", "/cursor", "query")
    response = await victim.client.get(mine, params={"cursor": MARK * 100})
    await victim.refused(response, 422, "invalid_request", "/cursor", "query")


async def test_unknown_query_parameters_are_refused_and_named(victim: Victim) -> None:
    path = "/v1/conversations"
    for params, pointer in (({"user_email": MARK}, "/user_email"), ({"limt": MARK}, "/limt"), ({f"{MARK}!": MARK}, "")):
        await victim.refused(await victim.client.get(path, params=params), 422, "invalid_request", pointer, "query")


async def test_query_parameters_that_are_given_twice_are_refused(victim: Victim) -> None:
    listed = "/v1/conversations"
    for query, pointer in (("limit=1&limit=2", "/limit"), (f"owner={MARK}&owner=b", "/owner")):
        await victim.refused(await victim.client.get(f"{listed}?{query}"), 422, "invalid_request", pointer, "query")
    history = f"{listed}/{victim.conversation}/turns"
    assert (await victim.client.get(f"{history}?actors=a&actors=b")).status_code == 200
    await victim.refused(
        await victim.client.get(f"{history}?actors=a&order=asc&order=desc"), 422, "invalid_request", "/order", "query"
    )


# routes, and the answer to what nobody expected


async def test_unknown_routes_and_methods_are_problems(victim: Victim) -> None:
    await victim.refused(await victim.client.get(f"/v1/{MARK}"), 404, "route_not_found")
    for method in ("PUT", "DELETE"):
        response = await victim.client.request(method, "/v1/conversations", json={"title": MARK})
        await victim.refused(response, 405, "method_not_allowed")
        assert response.headers["Allow"] == "GET, POST"


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_an_unexpected_error_is_a_problem_in_every_log_format(log_format: Any) -> None:
    log = io.StringIO()
    configure_logging(Settings(log_format=log_format).telemetry, log)
    try:
        response = internal_error_response({"type": "http", "app": None, "state": {}}, ValueError(MARK))
    finally:
        configure_logging(Settings(log_level="error").telemetry, sys.__stderr__)
    assert response.status_code == 500
    assert MARK.encode() not in response.body
    assert "request.failed" in log.getvalue()
    assert MARK not in log.getvalue()


def test_put_is_what_these_tests_think_it_is() -> None:
    assert put({"a": [1]}, "/a/0", 2) == {"a": [2]}
    assert put({"a": [{"b": 1}]}, "/a/0/c/0", 2) == {"a": [{"b": 1, "c": [2]}]}
    assert put({}, "/a/0/b", 2) == {"a": [{"b": 2}]}
    assert put({"a": "x"}, "/a", None) == {"a": None}
    assert parse_id("01ARZ3NDEKTSV4RRFFQ69G5FAV")
