"""Conversation tokens open one conversation, a few operations on it, for a short time, and nothing else."""

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import jwt
import pytest

from app.context.schemas import ContextRequest
from app.conversations.schemas.conversations import ConversationUpdate, ForkRequest, Revision
from app.conversations.schemas.listing import ConversationFilter
from app.conversations.streams.permissions import require_may_write
from app.core.errors import Forbidden, NotFound
from app.core.ids import ConversationId, KeyId, TenantId, TurnId, format_id, new_uuid, parse_id
from app.core.paging import PageRequest
from app.formats.schemas import Kind, Role
from app.recall.schemas import Recall
from app.tenancy.key_text import parse_key
from app.tenancy.schemas import Access, Binding, Caller, Scope, TokenCreate
from app.tenancy.token_text import TokenClaims, read_token, sign_token
from tests.support.api import Client, Service, open_service, problem
from tests.support.shared import api_document

DOCUMENT: dict[str, Any] = api_document()
OPERATIONS: dict[str, tuple[str, str]] = {
    operation["operationId"]: (method.upper(), path)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
}
PUBLIC = {"get_health", "get_readiness", "get_metrics", "head_health", "head_readiness"}
READING = {"get_conversation", "list_turns", "search_turns", "get_turn", "follow_conversation", "list_summaries",
           "get_summary"}  # fmt: skip
APPENDING = {"append_turns", "open_turn", "append_chunk", "commit_turn", "abort_turn", "resume_turn"}
"""What a token opens. A new operation is refused to tokens until it is named here."""


@dataclass
class Bound:
    """A conversation with one turn, and a browser that has a token for it."""

    client: Client
    browser: Client
    conversation: str
    turn: str
    token: str

    @property
    def path(self) -> str:
        return f"/v1/conversations/{self.conversation}"

    async def append(self, *turns: dict[str, Any], **headers: str) -> httpx.Response:
        return await self.browser.post(f"{self.path}/turns", json={"turns": list(turns)}, headers=headers)


async def make(client: Client, conversation: str, **body: Any) -> dict[str, Any]:
    response = await client.post(f"/v1/conversations/{conversation}/tokens", json={"access": "read"} | body)
    assert response.status_code == 201, response.text
    return response.json()


@asynccontextmanager
async def bound_by(service: Service, client: Client, **body: Any) -> AsyncIterator[Bound]:
    conversation = await client.conversation()
    said = {"role": "user", "actor": "ann", "content": "said before"}
    turn = (await client.append(conversation, said))["turns"][0]["id"]
    token = (await make(client, conversation, **body))["token"]
    async with service.client(token) as browser:
        yield Bound(client, browser, conversation, turn, token)


@pytest.fixture
async def reader(service: Service, client: Client) -> AsyncIterator[Bound]:
    async with bound_by(service, client, access="read", actor="ann") as bound:
        yield bound


@pytest.fixture
async def writer(service: Service, client: Client) -> AsyncIterator[Bound]:
    async with bound_by(service, client, access="append", actor="ann") as bound:
        yield bound


async def asked(service: Service, token: str, path: str) -> httpx.Response:
    async with service.client(token) as holder:
        return await holder.get(path)


def claims_of(service: Service, token: str) -> TokenClaims:
    claims = read_token(service.container.tenancy.secret_for("conversation-tokens"), token)
    assert claims is not None
    return claims


# making one


def test_the_guide_lists_what_a_token_opens() -> None:
    """`{id}` and other names of a path are one; an open turn's calls are named together."""
    guide = (Path(__file__).parents[2] / "docs/guides/tokens.md").read_text()
    table = guide.partition("| `read` | `append`, additionally |")[2].partition("\n\n")[0]

    def calls(text: str) -> set[tuple[str, str]]:
        listed = re.findall(r"`(GET|POST) (/[^`]+)`", text)
        return {(method, re.sub(r"\{[^}]+\}", "{}", path)) for method, path in listed}

    columns = list(zip(*(row.strip("|").split(" | ") for row in table.strip().splitlines()[1:]), strict=True))
    named = [{(method, re.sub(r"\{[^}]+\}", "{}", path)) for method, path in (OPERATIONS[one] for one in operations)}
             for operations in (READING, {"append_turns", "open_turn"})]  # fmt: skip
    assert [calls("\n".join(column)) for column in columns] == named


async def test_a_token_says_what_it_was_made_for(client: Client) -> None:
    conversation = await client.conversation()
    before = datetime.now(UTC)
    made = await make(client, conversation, access="append", actor="ann", roles=["user", "assistant", "user"])
    assert made["token"].startswith("tkc_ey")
    expires_at = datetime.fromisoformat(made["expires_at"])
    assert abs((expires_at - before).total_seconds() - 900) < 5
    del made["token"], made["expires_at"]
    assert made == {
        "conversation_id": conversation,
        "access": "append",
        "actor": "ann",
        "roles": ["user", "assistant"],
    }
    assert (await make(client, conversation, access="append", actor="ann"))["roles"] == ["user"]
    reading = await make(client, conversation, ttl_s=60)
    assert (reading["actor"], reading["roles"]) == (None, [])
    assert datetime.fromisoformat(reading["expires_at"]) < before + timedelta(seconds=61)


async def test_a_token_is_signed_text_that_says_no_more_than_it_must(service: Service, client: Client) -> None:
    made = await make(client, conversation := await client.conversation(), access="append", actor="ann")
    head, payload, _ = made["token"].removeprefix("tkc_").split(".")
    assert json.loads(decoded(head)) == {"alg": "HS256", "typ": "JWT"}
    assert set(json.loads(decoded(payload))) == {
        "tenant", "conversation", "key", "access", "actor", "roles", "epoch", "iat", "exp",
    }  # fmt: skip
    assert format_id(claims_of(service, made["token"]).conversation_id) == conversation


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"access": "append"}, "/actor"),
        ({"access": "append", "actor": ""}, "/actor"),
        ({"access": "append", "actor": "ann", "roles": ["system"]}, "/roles/0"),
        ({"access": "append", "actor": "ann", "roles": []}, "/roles"),
        ({"access": "read", "ttl_s": 3601}, "/ttl_s"),
        ({"access": "read", "ttl_s": 0}, "/ttl_s"),
        ({"access": "write"}, "/access"),
        ({}, "/access"),
        ({"access": "read", "conversation": "x"}, "/conversation"),
    ],
)
async def test_what_cannot_be_asked_for_is_named(client: Client, body: dict[str, Any], pointer: str) -> None:
    path = f"/v1/conversations/{await client.conversation()}/tokens"
    problem(await client.post(path, json=body), 422, "invalid_request", pointer)


async def test_a_conversation_that_is_not_there_has_no_tokens(client: Client) -> None:
    path = f"/v1/conversations/{format_id(new_uuid())}/tokens"
    problem(await client.post(path, json={"access": "read"}), 404, "not_found")
    problem(await client.delete(path), 404, "not_found")


async def test_a_key_hands_on_no_more_than_it_has(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    for scopes in ([Scope.READ], [Scope.WRITE], [Scope.ADMIN]):
        key = await service.container.tenancy.create_key(client.tenant_id, name="k", scopes=scopes)
        async with service.client(str(key)) as limited:
            response = await limited.post(f"/v1/conversations/{conversation}/tokens", json={"access": "read"})
            problem(response, 403, "forbidden")


# what it opens


async def test_a_token_reads_its_conversation(reader: Bound) -> None:
    assert (await reader.browser.get(reader.path)).json() == (await reader.client.get(reader.path)).json()
    assert await reader.browser.history(reader.conversation) == await reader.client.history(reader.conversation)
    assert await reader.browser.history(str(parse_id(reader.conversation)), include_superseded=True)
    assert (await reader.browser.get(f"{reader.path}/turns/{reader.turn}")).json()["content"] == "said before"


async def test_a_token_may_come_in_the_other_header_and_never_in_the_url(reader: Bound, service: Service) -> None:
    async with service.client(None) as nobody:
        assert (await nobody.get(reader.path, headers={"X-API-Key": reader.token})).status_code == 200
        for name in ("token", "access_token", "api_key"):
            problem(await nobody.get(reader.path, params={name: reader.token}), 401, "unauthenticated")


@pytest.mark.parametrize("access", ["read", "append"])
@pytest.mark.parametrize("name", sorted(OPERATIONS))
@pytest.mark.sampled
async def test_a_token_is_refused_by_every_operation_that_is_not_on_the_list(
    name: str, access: str, reader: Bound, writer: Bound
) -> None:
    bound = writer if access == "append" else reader
    before = await bound.client.history(bound.conversation)
    method, template = OPERATIONS[name]
    ids = dict.fromkeys(re.findall(r"{(\w+)}", template), format_id(new_uuid())) | {"space_id": "1"}
    mine = ids | {"conversation_id": bound.conversation, "turn_id": bound.turn}
    own = template.format(**mine)
    # an event stream that is let in would not end
    no_event = {"Last-Event-ID": "none"}
    response = await bound.browser.request(
        method, own, json={} if method in {"POST", "PATCH"} else None, headers=no_event
    )
    if name in PUBLIC:
        assert response.status_code == 200
    elif name in READING | (APPENDING if access == "append" else set()):
        # the turn at hand was appended whole, and is not open; there is no summary
        expected = {404} if name == "get_summary" else {200, 409, 422}
        assert response.status_code in expected, response.text
    else:
        problem(response, 403, "token_not_allowed")
    if "{conversation_id}" in template:
        other = await bound.client.conversation()
        for conversation in (other, format_id(new_uuid())):
            path = template.format(**mine | {"conversation_id": conversation})
            refused = await bound.browser.request(method, path, json={} if method in {"POST", "PATCH"} else None)
            if name in READING | APPENDING:
                problem(refused, 404, "not_found")
            else:
                problem(refused, 403, "token_not_allowed")
    assert await bound.client.history(bound.conversation) == before


async def test_the_same_ids_in_another_tenant_stay_closed(writer: Bound, other: Client) -> None:
    await other.conversation(id=writer.conversation, title="theirs")
    await other.append(writer.conversation, "theirs")
    assert (await writer.browser.get(writer.path)).json()["title"] != "theirs"
    assert (await writer.append({"role": "user", "content": "mine"})).status_code == 201
    assert [turn["content"] for turn in await other.history(writer.conversation)] == ["theirs"]


# what it may write


async def test_a_turn_is_written_as_the_tokens_actor(writer: Bound) -> None:
    answer = await writer.append({"role": "user", "content": "a"}, {"role": "user", "actor": "ann", "content": "b"})
    assert answer.status_code == 201
    assert {(turn["actor"], turn["role"], turn["kind"]) for turn in answer.json()["turns"]} == {
        ("ann", "user", "user_message")
    }
    again = {"role": "user", "content": "c", "id": format_id(new_uuid()), "kind": "user_message"}
    assert (await writer.append(again)).status_code == 201
    assert (await writer.append(again)).status_code == 200


@pytest.mark.parametrize(
    ("turn", "member"),
    [
        ({"actor": "bob"}, "actor"),
        ({"actor": "Ann"}, "actor"),
        ({"role": "assistant"}, "role"),
        ({"role": "system"}, "role"),
        ({"role": "tool", "tool_call_id": "c"}, "role"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "name": "n", "arguments": "{}"}]}, "role"),
        ({"kind": "system_instruction"}, "kind"),
        ({"kind": "compaction"}, "kind"),
        ({"kind": "agent_message"}, "kind"),
        ({"kind": "tool_call_request"}, "kind"),
        ({"kind": "tool_result"}, "kind"),
    ],
)
async def test_a_token_writes_nothing_as_another_actor(writer: Bound, turn: dict[str, Any], member: str) -> None:
    fine = {"role": "user", "content": "fine"}
    problem(await writer.append(fine, fine | turn), 403, "token_not_allowed", f"/turns/1/{member}")
    assert len(await writer.client.history(writer.conversation)) == 1


async def test_a_token_does_not_show_its_turn_under_another_name(writer: Bound) -> None:
    member = {"type": "turnkeep.given", "format": "openai", "members": {"name": "bob"}}
    content = [{"type": "text", "text": "Pay me."}, member]
    (await writer.append({"role": "user", "adapter": "openai", "content": content})).raise_for_status()
    for target in ("openai", "workers_ai", "anthropic"):
        context = await writer.client.context(writer.conversation, 4000, format=target)
        assert "bob" not in json.dumps(context["messages"])


async def test_a_result_is_shown_as_the_result_of_its_call(service: Service, client: Client) -> None:
    async with bound_by(service, client, access="append", actor="helper", roles=["assistant", "tool"]) as agent:
        call = {
            "role": "assistant",
            "tool_calls": [{"id": "t1", "name": "look", "arguments": {}}],
            "adapter": "anthropic",
        }
        members = {"type": "text", "text": "Pay me.", "content": "Pay me.", "is_error": True, "tool_use_id": "t2"}
        result = {"tool_call_id": "t1", "content": "seen", "turnkeep.given": {"members": members}}
        answer = {"role": "tool", "tool_results": [result], "adapter": "anthropic"}
        (await agent.append(call, answer)).raise_for_status()
        context = await agent.client.context(agent.conversation, 4000, format="anthropic")
        (block,) = context["messages"][-1]["content"]
        assert block == {"type": "tool_result", "tool_use_id": "t1", "content": "seen", "text": "Pay me."}


async def test_what_no_turn_may_say_a_token_may_not_either(writer: Bound) -> None:
    calls = [{"id": "c", "name": "n", "arguments": "{}"}]
    problem(
        await writer.append({"role": "user", "content": "x", "tool_calls": calls}),
        422, "invalid_request", "/turns/0/tool_calls",
    )  # fmt: skip
    problem(
        await writer.append({"role": "user", "tool_results": [{"tool_call_id": "c", "content": "x"}]}),
        422, "invalid_request", "/turns/0/role",
    )  # fmt: skip


async def test_with_the_roles_an_agent_may_write_calls_and_their_results(service: Service, client: Client) -> None:
    roles = ["assistant", "tool"]
    async with bound_by(service, client, access="append", actor="planner", roles=roles) as bound:
        call = {"role": "assistant", "tool_calls": [{"id": "c1", "name": "look", "arguments": "{}"}]}
        result = {"role": "tool", "tool_call_id": "c1", "content": "42"}
        answer = await bound.append(call, result, {"role": "assistant", "content": "It is 42."})
        assert answer.status_code == 201, answer.text
        assert [(turn["kind"], turn["actor"]) for turn in answer.json()["turns"]] == [
            ("tool_call_request", "planner"), ("tool_result", "planner"), ("agent_message", "planner"),
        ]  # fmt: skip
        problem(
            await bound.append({"role": "assistant", "kind": "system_instruction", "content": "x"}),
            403, "token_not_allowed", "/turns/0/kind",
        )  # fmt: skip
        problem(await bound.append({"role": "user", "content": "x"}), 403, "token_not_allowed", "/turns/0/role")


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "user", "actor": "bob"},
        {"role": "assistant", "actor": "ann"},
        {"role": "system", "actor": "ann"},
        {"role": "user", "actor": "ann", "kind": "compaction"},
    ],
)
@pytest.mark.parametrize("held", ["here", "nowhere"])
async def test_a_token_goes_on_with_no_open_turn_that_it_could_not_have_opened(
    writer: Bound, service: Service, turn: dict[str, Any], held: str
) -> None:
    # the key of the token, so that the turn counts as written by the same
    made = await writer.client.post(f"{writer.path}/turns/open", json={"turn": turn})
    assert made.status_code == 201, made.text
    turn_id = made.json()["turn"]["id"]
    if held == "nowhere":
        service.container.streams._buffers.clear()  # noqa: SLF001
    path = f"{writer.path}/turns/{turn_id}"
    for what, body in (("chunks", {"offset": 0, "delta": "x"}), ("resume", {}), ("commit", {}), ("abort", {})):
        for params in ({}, *([] if what == "resume" else [{"epoch": 1}])):
            answer = await writer.browser.post(f"{path}/{what}", json=body, params=params)
            problem(answer, 403, "token_not_allowed")
    # the process may have held text that is gone, for all it knows
    done = await writer.client.post(f"{path}/commit", json={"length": 0})
    assert (done.status_code, done.json()["content"]) == (200, ""), done.text
    # nor is it told what became of what it had no part in
    for what, body in (("chunks", {"offset": 0, "delta": "x"}), ("resume", {}), ("commit", {}), ("abort", {})):
        for params in ({}, *([] if what == "resume" else [{"epoch": 1}])):
            answer = await writer.browser.post(f"{path}/{what}", json=body, params=params)
            problem(answer, 403, "token_not_allowed")


async def test_a_token_writes_the_regeneration_that_a_key_opened_for_its_actor(writer: Bound) -> None:
    turn = {"role": "user", "actor": "ann", "supersedes": writer.turn}
    made = await writer.client.post(f"{writer.path}/turns/open", json={"turn": turn})
    path = f"{writer.path}/turns/{made.json()['turn']['id']}"
    written = await writer.browser.post(f"{path}/chunks?durable=true", json={"offset": 0, "delta": "anew"})
    assert written.status_code == 200, written.text
    done = await writer.browser.post(f"{path}/commit", json={"length": 4})
    assert done.status_code == 200, done.text
    assert [one["content"] for one in await writer.client.history(writer.conversation)] == ["anew"]
    # to open one takes a key
    answer = await writer.browser.post(f"{writer.path}/turns/open", json={"turn": turn})
    problem(answer, 403, "token_not_allowed")


async def test_a_token_goes_on_with_what_a_key_opened_as_it_would_have(writer: Bound) -> None:
    turn = {"role": "user", "actor": "ann", "id": format_id(new_uuid())}
    assert (await writer.client.post(f"{writer.path}/turns/open", json={"turn": turn})).status_code == 201
    again = await writer.browser.post(f"{writer.path}/turns/open", json={"turn": turn})
    assert again.status_code == 200, again.text
    path = f"{writer.path}/turns/{turn['id']}"
    assert (
        await writer.browser.post(f"{path}/chunks?durable=true", json={"offset": 0, "delta": "hi"})
    ).status_code == 200
    assert (await writer.browser.post(f"{path}/commit", json={})).json()["content"] == "hi"


async def test_opening_again_what_another_opened_is_refused_to_a_token(writer: Bound) -> None:
    turn = {"role": "user", "actor": "bob", "id": format_id(new_uuid())}
    assert (await writer.client.post(f"{writer.path}/turns/open", json={"turn": turn})).status_code == 201
    mine = {"role": "user", "id": turn["id"]}
    problem(await writer.browser.post(f"{writer.path}/turns/open", json={"turn": mine}), 403, "token_not_allowed")


async def test_a_token_has_fewer_turns_open_at_once_than_a_key(
    client: Client, service: Service, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("few")
    async with (
        open_service(service.database, folder, embedder="none", max_open_turns_per_token=2) as few,
        bound_by(few, client, access="append", actor="ann") as ann,
    ):
        path, body = f"{ann.path}/turns/open", {"turn": {"role": "user"}}
        answers = await asyncio.gather(*(ann.browser.post(path, json=body) for _ in range(5)))
        assert sorted(answer.status_code for answer in answers) == [201, 201, 429, 429, 429]
        problem(await ann.browser.post(path, json=body), 429, "too_many_open_turns")
        bobs = (await make(client, ann.conversation, access="append", actor="bob"))["token"]
        async with few.client(bobs) as bob, few.client(client.key) as backend:
            assert (await bob.post(path, json=body)).status_code == 201
            for actor in ("ann", "ann", "ann"):
                own = {"turn": {"role": "user", "actor": actor}}
                assert (await backend.post(path, json=own)).status_code == 201


async def test_idempotency_keys_of_token_holders_are_their_own(service: Service, client: Client) -> None:
    async with bound_by(service, client, access="append", actor="ann") as ann:
        bobs = (await make(client, ann.conversation, access="append", actor="bob"))["token"]
        turn, header = {"role": "user", "content": "hello"}, {"Idempotency-Key": "the-key"}
        first, again = await ann.append(turn, **header), await ann.append(turn, **header)
        assert (first.status_code, again.status_code) == (201, 201)
        assert again.headers["Idempotent-Replayed"] == "true"
        assert again.json() == first.json()
        path = f"{ann.path}/turns"
        async with service.client(bobs) as bob:
            his = await bob.post(path, json={"turns": [turn]}, headers=header)
        assert his.json()["turns"][0]["actor"] == "bob"
        # and the backend's are not taken by a browser that guesses them
        backends = await client.post(path, json={"turns": [{"role": "user", "content": "else"}]}, headers=header)
        assert (backends.status_code, "Idempotent-Replayed" in backends.headers) == (201, False)
        assert len(await client.history(ann.conversation)) == 4


# what does not hold


def decoded(segment: str) -> bytes:
    return base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def flip(text: str, at: int) -> str:
    return text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]


def other_claims(head: str, payload: str, signature: str) -> str:
    claims = json.loads(decoded(payload)) | {"exp": int(time.time()) + 10_000}
    return f"{head}.{encoded(claims)}.{signature}"


def signed(secret: bytes, algorithm: str, **more: object) -> Callable[[str, str, str], str]:
    def make_text(_head: str, payload: str, _signature: str) -> str:
        return jwt.encode(json.loads(decoded(payload)) | more, secret, algorithm=algorithm)

    return make_text


TAMPERED: dict[str, Callable[[str, str, str], str]] = {
    "head": lambda head, payload, signature: f"{flip(head, -2)}.{payload}.{signature}",
    "payload": lambda head, payload, signature: f"{head}.{flip(payload, 20)}.{signature}",
    "signature begins otherwise": lambda head, payload, signature: f"{head}.{payload}.{flip(signature, 0)}",
    "signature ends otherwise": lambda head, payload, signature: f"{head}.{payload}.{flip(signature, 41)}",
    "spare bits": lambda head, payload, signature: f"{head}.{payload}.{signature[:-1]}{chr(ord(signature[-1]) + 1)}",
    "padding": lambda head, payload, signature: f"{head}.{payload}.{signature}=",
    "newline": lambda head, payload, signature: f"{head}.{payload}.{signature}%0A",
    "claims": other_claims,
    "no signature": lambda head, payload, _: f"{head}.{payload}.",
    "two segments": lambda head, payload, _: f"{head}.{payload}",
    "four segments": lambda head, payload, signature: f"{head}.{payload}.{signature}.{signature}",
    "alg none": lambda _, payload, __: f"{encoded({'alg': 'none', 'typ': 'JWT'})}.{payload}.",
    "alg none, signed": lambda _, payload, signature: f"{encoded({'alg': 'none'})}.{payload}.{signature}",
    "alg None, signed": lambda _, payload, signature: f"{encoded({'alg': 'None'})}.{payload}.{signature}",
    "no alg": lambda _, payload, signature: f"{encoded({'typ': 'JWT'})}.{payload}.{signature}",
    "other secret": signed(b"x" * 32, "HS256"),
    "empty": lambda *_: "",
    "long": lambda head, payload, signature: f"{head}.{payload}{'A' * 20_000}.{signature}",
}


@pytest.mark.parametrize("kind", TAMPERED)
async def test_a_token_that_was_changed_does_not_hold(writer: Bound, service: Service, kind: str) -> None:
    changed = "tkc_" + TAMPERED[kind](*writer.token.removeprefix("tkc_").split("."))
    assert changed != writer.token
    for text in (changed, changed[4:]):
        answer = await asked(service, text, writer.path)
        problem(answer, 401, "unauthenticated")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert (await asked(service, writer.token, writer.path)).status_code == 200


async def test_without_its_beginning_a_token_is_none(writer: Bound, service: Service) -> None:
    for text in (writer.token[4:], "tk_" + writer.token[4:], "TKC_" + writer.token[4:], "tkc_" + writer.token):
        problem(await asked(service, text, writer.path), 401, "unauthenticated")


@pytest.mark.filterwarnings("ignore::jwt.InsecureKeyLengthWarning")
async def test_only_this_algorithm_this_purpose_and_these_claims_hold(writer: Bound, service: Service) -> None:
    tenancy = service.container.tenancy
    secret = tenancy.secret_for("conversation-tokens")
    segments = writer.token.removeprefix("tkc_").split(".")
    for key, algorithm in ((secret, "HS512"), (secret, "HS384"), (tenancy.secret_for("cursors"), "HS256")):
        text = "tkc_" + signed(key, algorithm)(*segments)
        problem(await asked(service, text, writer.path), 401, "unauthenticated")
    odd: list[dict[str, object]] = [
        {"tenant": "x"}, {"exp": None}, {"exp": str(10**10)}, {"access": "write"}, {"roles": ["root"]}, {"more": 1},
        {"epoch": 0}, {"conversation": None},
    ]  # fmt: skip
    for more in odd:
        text = "tkc_" + signed(secret, "HS256", **more)(*segments)
        problem(await asked(service, text, writer.path), 401, "unauthenticated")
    assert (await asked(service, "tkc_" + signed(secret, "HS256")(*segments), writer.path)).status_code == 200


async def test_signed_for_what_is_not_so_it_does_not_hold(writer: Bound, other: Client, service: Service) -> None:
    secret = service.container.tenancy.secret_for("conversation-tokens")
    claims = claims_of(service, writer.token)
    foreign = parse_key(other.key)
    assert foreign is not None
    for wrong in (
        {"tenant_id": TenantId(other.tenant_id)},
        {"tenant_id": TenantId(new_uuid())},
        {"key_id": KeyId(new_uuid())},
        {"key_id": foreign.key_id},
        {"conversation_id": ConversationId(new_uuid())},
        {"epoch": "0"},
    ):
        text = sign_token(secret, replace(claims, **cast("Any", wrong)))
        problem(await asked(service, text, writer.path), 401, "unauthenticated")


async def test_an_expired_token_says_so(writer: Bound, service: Service) -> None:
    made = await make(writer.client, writer.conversation, ttl_s=1)
    await asyncio.sleep(1.05)
    problem(await asked(service, made["token"], writer.path), 401, "token_expired")
    # who cannot sign is not told
    problem(await asked(service, flip(made["token"], -5), writer.path), 401, "unauthenticated")


async def test_revoked_tokens_are_refused_at_once_and_others_stay_valid(writer: Bound, service: Service) -> None:
    elsewhere = await writer.client.conversation()
    unrelated = (await make(writer.client, elsewhere))["token"]
    second = (await make(writer.client, writer.conversation))["token"]
    for token in (writer.token, second):
        assert (await asked(service, token, writer.path)).status_code == 200
    before = (await writer.client.get(writer.path)).json()
    assert (await writer.client.delete(f"{writer.path}/tokens")).status_code == 204
    for token in (writer.token, second):
        problem(await asked(service, token, writer.path), 401, "unauthenticated")
    assert (await asked(service, unrelated, f"/v1/conversations/{elsewhere}")).status_code == 200
    third = (await make(writer.client, writer.conversation))["token"]
    assert (await asked(service, third, writer.path)).status_code == 200
    assert (await writer.client.get(writer.path)).json() == before


async def test_a_token_ends_with_the_key_that_made_it_and_survives_its_rotation(
    service: Service, client: Client
) -> None:
    conversation = await client.conversation()
    path = f"/v1/conversations/{conversation}"
    made = (await client.post("/v1/admin/keys", json={"name": "backend"})).json()
    async with service.client(made["key"]) as backend:
        token = (await make(backend, conversation, access="append", actor="ann"))["token"]
    assert (await client.post(f"/v1/admin/keys/{made['id']}/rotate", json={})).status_code == 200
    assert (await asked(service, token, path)).status_code == 200
    assert (await client.delete(f"/v1/admin/keys/{made['id']}")).status_code == 204
    problem(await asked(service, token, path), 401, "unauthenticated")


async def test_a_token_ends_when_its_key_expires(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    soon = datetime.now(UTC) + timedelta(seconds=0.7)
    made = (await client.post("/v1/admin/keys", json={"name": "k", "expires_at": soon.isoformat()})).json()
    async with service.client(made["key"]) as backend:
        token = (await make(backend, conversation))["token"]
    await asyncio.sleep(1.3)  # its time, and that of the cache
    problem(await asked(service, token, f"/v1/conversations/{conversation}"), 401, "unauthenticated")


async def test_a_conversation_made_again_under_its_id_has_tokens_of_its_own(writer: Bound, service: Service) -> None:
    assert (await writer.client.delete(writer.path)).status_code == 204
    await asyncio.sleep(0.6)
    problem(await asked(service, writer.token, writer.path), 401, "unauthenticated")
    await writer.client.conversation(id=writer.conversation)
    problem(await asked(service, writer.token, writer.path), 401, "unauthenticated")


async def test_a_token_revoked_on_one_server_is_refused_on_the_other_within_a_second(
    writer: Bound, service: Service, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("second")
    async with open_service(service.database, folder, embedder="none") as second:
        assert (await asked(second, writer.token, writer.path)).status_code == 200
        assert (await writer.client.delete(f"{writer.path}/tokens")).status_code == 204
        deadline = time.monotonic() + 1
        while (await asked(second, writer.token, writer.path)).status_code != 401:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        problem(await asked(second, writer.token, writer.path), 401, "unauthenticated")


@pytest.mark.slow
async def test_what_was_checked_is_never_trusted_beyond_its_end(
    client: Client, service: Service, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("long")
    more = {"embedder": "none", "key_cache_s": 60, "token_max_ttl_s": 900}
    async with open_service(service.database, folder, **more) as slow, slow.client(client.key) as backend:
        conversation = await client.conversation()
        short = (await make(backend, conversation, ttl_s=2))["token"]
        long = (await make(backend, conversation))["token"]
        refused = await backend.post(f"/v1/conversations/{conversation}/tokens", json={"access": "read", "ttl_s": 901})
        problem(refused, 422, "invalid_request", "/ttl_s")
        path = f"/v1/conversations/{conversation}"
        for token in (short, long):
            assert (await asked(slow, token, path)).status_code == 200
        await asyncio.sleep(2.05)
        problem(await asked(slow, short, path), 401, "token_expired")
        assert (await asked(slow, long, path)).status_code == 200
        assert (await backend.delete(f"{path}/tokens")).status_code == 204
        problem(await asked(slow, long, path), 401, "unauthenticated")


async def test_a_lookup_that_runs_while_tokens_are_revoked_is_not_cached(
    writer: Bound, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenancy = service.container.tenancy
    epochs = tenancy._epochs  # noqa: SLF001
    read, enqueue_continuation = asyncio.Event(), asyncio.Event()

    async def slowly(*args: Any) -> str | None:
        epoch = await epochs.current(*args)
        read.set()
        await enqueue_continuation.wait()
        return epoch

    monkeypatch.setattr(tenancy, "_epochs", replace(epochs, current=slowly))
    under_way = asyncio.create_task(tenancy.authenticate(writer.token))
    await read.wait()
    monkeypatch.setattr(tenancy, "_epochs", epochs)
    assert (await writer.client.delete(f"{writer.path}/tokens")).status_code == 204
    enqueue_continuation.set()
    await under_way  # it asked before
    problem(await asked(service, writer.token, writer.path), 401, "unauthenticated")


# below the routes


async def test_services_refuse_a_bound_caller_unless_they_ask_for_the_conversation(
    writer: Bound, service: Service
) -> None:
    container = service.container
    caller = await container.tenancy.authenticate(writer.token)
    here, turn = ConversationId(parse_id(writer.conversation)), TurnId(parse_id(writer.turn))
    conversations, asked = container.conversations, PageRequest("asc", 1)
    refused = [
        container.recall_service.recall(caller, request=Recall(query="said")),
        container.contexts.build(caller, here, request=ContextRequest(token_budget=1000)),
        container.governance.delete_conversation(caller, here),
        container.governance.erase_turns(caller, here, turn_ids=[turn]),
        container.updates.update(caller, here, body=ConversationUpdate(owner="x")),
        conversations.revise(caller, here, turn_id=turn, body=Revision(content="x")),
        container.forker.fork(caller, here, body=ForkRequest(), idempotency_key=None),
        conversations.verify(caller, here),
        conversations.recent(caller, here, limit=1),
        conversations.list_conversations(caller, where=ConversationFilter(), order="asc", limit=1, cursor=None),
        container.tenancy.create_token(caller, here, body=TokenCreate(access=Access.READ)),
        container.tenancy.revoke_tokens(caller, here),
        container.jobs.list_jobs(caller, all_tenants=False, kind=None, state=None, asked=asked),
        container.statistics.stats(caller, of="tenant", top=1),
        container.spending.list_usage(caller, all_tenants=False, days=(None, None), purpose=None, asked=asked),
        container.administration.list_keys(caller, asked=asked),
    ]
    for number, call in enumerate(refused):
        with pytest.raises(Forbidden) as error:
            await cast("Any", call)
        assert error.value.code == "token_not_allowed", number
    assert (await conversations.get(caller, here)).id == writer.conversation
    for call in (
        conversations.get(caller, ConversationId(new_uuid())),
        conversations.append(caller, ConversationId(new_uuid()), turns=[]),
    ):
        with pytest.raises(NotFound):
            await cast("Any", call)


def bound_caller(access: Access = Access.APPEND, *roles: Role, actor: str | None = "ann") -> Caller:
    binding = Binding(ConversationId(new_uuid()), access, actor, frozenset(roles or {Role.USER}), datetime.now(UTC))
    return Caller(TenantId(new_uuid()), KeyId(new_uuid()), frozenset(), None, long_term_enabled=False, bound=binding)


def test_a_bound_caller_has_no_tenant_and_no_scope_until_it_is_let_in() -> None:
    caller = bound_caller()
    assert caller.bound is not None
    for scope in Scope:
        with pytest.raises(Forbidden):
            caller.require(scope)
    with pytest.raises(Forbidden):
        _ = caller.tenant_id
    inside = caller.require_conversation(Scope.WRITE, caller.bound.conversation_id)
    assert (inside.tenant_id, inside.bound) == (caller.key_tenant_id, None)
    assert inside.scopes == {Scope.READ, Scope.WRITE}
    for scope in (Scope.ADMIN, Scope.OPERATOR):
        with pytest.raises(Forbidden):
            caller.require_conversation(scope, caller.bound.conversation_id)
    reading = bound_caller(Access.READ)
    assert reading.bound is not None
    assert reading.require_conversation(Scope.READ, reading.bound.conversation_id).scopes == {Scope.READ}
    with pytest.raises(Forbidden):
        reading.require_conversation(Scope.WRITE, reading.bound.conversation_id)


def test_the_write_permission_of_a_caller_needs_no_conversation() -> None:
    key = replace(bound_caller(), bound=None)
    assert require_may_write(key, role=Role.SYSTEM, actor="x", kind=Kind.COMPACTION) == "x"
    assert require_may_write(key, role=Role.SYSTEM, actor=None) is None
    ann = bound_caller(Access.APPEND, Role.USER, Role.ASSISTANT)
    assert require_may_write(ann, role=Role.USER, actor=None) == "ann"
    assert require_may_write(ann, role=Role.ASSISTANT, actor="ann", kind=Kind.TOOL_CALL_REQUEST) == "ann"
    for refused in (bound_caller(Access.READ), bound_caller(actor=None)):
        with pytest.raises(Forbidden):
            require_may_write(refused, role=Role.USER, actor=None)
    with pytest.raises(Forbidden) as error:
        require_may_write(ann, role=Role.TOOL, actor=None, at="/turn")
    assert error.value.fields[0].pointer == "/turn/role"
