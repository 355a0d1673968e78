"""A request that names an owner never gets the conversation of another one, whichever call names the conversation."""

import asyncio
import json
from typing import Any

import httpx

from app.core.ids import new_uuid
from app.tenancy.schemas import Restriction, Scope
from app.transfer.lines import write_foreign
from tests.api.test_imports import CREATED_AT, imported
from tests.support.api import Client, Service, problem
from tests.support.fake_chat import CHAT_MODEL, FakeChat
from tests.support.mcp import mcp_client

SECRET = "Mia is allergic to peanuts."
CHAT: dict[str, Any] = {"model": CHAT_MODEL, "messages": [{"role": "user", "content": "hi"}]}
RESPONSE: dict[str, Any] = {"model": CHAT_MODEL, "input": "hi"}
CHAT_PATH, RESPONSES = "/openai/v1/chat/completions", "/openai/v1/responses"


async def owned(client: Client, owner: str = "mia", **more: Any) -> str:
    conversation = await client.conversation(external_id="ticket", owner=owner, **more)
    await client.append(conversation, SECRET)
    return conversation


def requests_of(conversation: str) -> list[tuple[str, dict[str, Any], dict[str, str], str]]:
    """Return the requests that name a conversation: path, body, headers, and the member that names the owner."""
    name, by_id = {"X-Conversation-Id": "ticket"}, {"X-Conversation-Id": conversation}
    messages = {"messages": CHAT["messages"]}
    return [
        ("/v1/conversations", {"external_id": "ticket"}, {}, "owner"),
        ("/v1/conversations", {"id": conversation}, {}, "owner"),
        ("/v1/conversations", {"id": conversation, "external_id": "ticket"}, {}, "owner"),
        ("/v1/generate", messages | {"external_id": "ticket"}, {}, "owner"),
        ("/v1/generate", messages | {"conversation_id": conversation}, {}, "owner"),
        ("/v1/generate", messages | {"external_id": "ticket", "stream": True}, {}, "owner"),
        (CHAT_PATH, CHAT | {"conversation_id": "ticket"}, {}, "user"),
        (CHAT_PATH, CHAT | {"conversation_id": conversation}, {}, "user"),
        (CHAT_PATH, CHAT | {"conversation_id": f"conv_{conversation}", "stream": True}, {}, "user"),
        (CHAT_PATH, CHAT | {"metadata": {"conversation_id": "ticket"}}, {}, "user"),
        (CHAT_PATH, CHAT, name, "user"),
        (CHAT_PATH, CHAT, by_id, "user"),
        (RESPONSES, RESPONSE, name, "user"),
        (RESPONSES, RESPONSE, by_id, "user"),
        (RESPONSES, RESPONSE | {"store": False}, name, "user"),
        (RESPONSES, RESPONSE | {"store": False, "stream": True}, by_id, "user"),
        (RESPONSES, RESPONSE | {"conversation": f"conv_{conversation}"}, {}, "user"),
        (RESPONSES, RESPONSE | {"conversation": {"id": f"conv_{conversation}"}, "store": False}, {}, "user"),
    ]


def refused(response: httpx.Response, field: str) -> None:
    """Fail unless the response is 409, names the field, and says nothing about the owner or what is stored."""
    assert response.status_code == 409, response.text
    body = response.json()
    if "error" in body:  # OpenAI's form
        assert body["error"]["code"] == "conversation_owned", body
        assert body["error"]["param"] in {field, f"/{field}"}, body
    else:
        problem(response, 409, "conversation_owned", f"/{field}")
    assert not {word for word in ("mia", "peanuts") if word in response.text}


async def test_no_call_gives_the_conversation_of_another_owner(tenant: Client, fake: FakeChat) -> None:
    conversation = await owned(tenant)
    before = (await tenant.get(f"/v1/conversations/{conversation}")).json()
    for path, body, headers, member in requests_of(conversation):
        refused(await tenant.post(path, json=body | {member: "eve"}, headers=headers), member)
    assert fake.chats == []
    after = (await tenant.get(f"/v1/conversations/{conversation}")).json()
    assert (after["last_seq"], after["rev"], after["owner"]) == (before["last_seq"], before["rev"], "mia")


async def test_its_own_owner_and_a_request_without_one_get_the_conversation(tenant: Client) -> None:
    conversation = await owned(tenant)
    for path, body, headers, member in requests_of(conversation):
        for more in ({}, {member: "mia"}):
            response = await tenant.post(path, json=body | more, headers=headers)
            assert response.status_code == 200, (path, body, response.text)
    assert (await tenant.post("/v1/conversations", json={"external_id": "ticket", "owner": None})).status_code == 200


async def test_a_conversation_without_an_owner_is_given_to_any_until_it_has_one(tenant: Client) -> None:
    conversation = await tenant.conversation(external_id="ticket")
    body = {"external_id": "ticket", "owner": "mia"}
    answer = await tenant.post("/v1/conversations", json=body)
    assert (answer.status_code, answer.json()["owner"]) == (200, None)
    assert (await tenant.patch(f"/v1/conversations/{conversation}", json={"owner": "eve"})).status_code == 200
    refused(await tenant.post("/v1/conversations", json=body), "owner")
    # an erasure of its owner deletes it, and the name is free again
    assert (await tenant.delete(f"/v1/conversations/{conversation}")).status_code == 204
    assert (await tenant.post("/v1/conversations", json=body)).json()["owner"] == "mia"


async def test_other_participants_do_not_get_the_conversation(client: Client) -> None:
    create = {"external_id": "room", "participants": ["mia", {"actor": "bot", "name": "Helper"}]}
    conversation = await client.conversation(**create)
    await client.append(conversation, {"role": "user", "actor": "mia", "content": SECRET})
    await client.append(conversation, {"role": "assistant", "actor": "clerk", "content": "Noted."})
    for same in (create["participants"], ["bot", "mia"], ["mia"], [{"actor": "mia", "name": "Mia"}], ["clerk"], []):
        answer = await client.post("/v1/conversations", json={"external_id": "room", "participants": same})
        assert (answer.status_code, answer.json()["id"]) == (200, conversation)
    for other, at in ((["eve"], 0), (["bot", "eve"], 1), (["mia", "bot", "clerk", {"actor": "eve"}], 3)):
        response = await client.post("/v1/conversations", json={"external_id": "room", "participants": other})
        problem(response, 409, "conversation_owned", f"/participants/{at}")
        assert "eve" not in response.text
    await client.patch(f"/v1/conversations/{conversation}", json={"participants": ["mia", "eve"]})
    assert await client.conversation(external_id="room", participants=["eve"]) == conversation
    empty = await client.conversation(external_id="empty")
    assert await client.conversation(external_id="empty", participants=["eve"]) == empty


async def test_of_creations_at_once_with_different_owners_one_succeeds(client: Client) -> None:
    for number in range(5):
        bodies = [{"external_id": f"race-{number}", "owner": f"owner-{each % 4}"} for each in range(12)]
        answers = await asyncio.gather(*(client.post("/v1/conversations", json=body) for body in bodies))
        [created] = [answer for answer in answers if answer.status_code == 201]
        for body, answer in zip(bodies, answers, strict=True):
            if body["owner"] == created.json()["owner"]:
                assert (answer.status_code in {200, 201}, answer.json()["id"]) == (True, created.json()["id"])
            else:
                problem(answer, 409, "conversation_owned", "/owner")


async def test_a_repeated_request_is_answered_as_the_first_one(client: Client) -> None:
    key, body = {"Idempotency-Key": "k"}, {"external_id": "ticket", "owner": "mia", "participants": ["mia"]}
    first = await client.post("/v1/conversations", json=body, headers=key)
    await client.patch(f"/v1/conversations/{first.json()['id']}", json={"participants": ["bot"]})
    again = await client.post("/v1/conversations", json=body, headers=key)
    assert (first.status_code, again.status_code, again.json()["id"]) == (201, 201, first.json()["id"])
    stranger = {"external_id": "ticket", "owner": "eve"}
    for _ in range(2):  # a refusal is not stored under its key
        refused(await client.post("/v1/conversations", json=stranger, headers={"Idempotency-Key": "e"}), "owner")


async def test_names_of_another_tenant_are_not_compared(client: Client, other: Client) -> None:
    same_id = str(new_uuid())
    for one, owner in ((client, "mia"), (other, "eve")):
        assert await owned(one, owner, id=same_id) == await one.conversation(external_id="ticket", owner=owner)
    refused(await client.post("/v1/conversations", json={"external_id": "ticket", "owner": "eve"}), "owner")


async def test_a_key_restricted_to_owners_does_not_learn_of_the_conversation(service: Service, client: Client) -> None:
    conversation = await owned(client)
    scopes = frozenset({Scope.READ, Scope.WRITE})
    for owners, status in (({"eve"}, 404), ({"eve", "mia"}, 409)):
        restriction = Restriction(owners=frozenset(owners))
        made = await service.container.tenancy.create_key(
            client.tenant_id, name="restricted", scopes=scopes, restriction=restriction
        )
        async with service.client(str(made)) as eve:
            for name in ({"external_id": "ticket"}, {"id": conversation}):
                answer = await eve.post("/v1/conversations", json=name | {"owner": "eve"})
                problem(answer, status, "not_found" if status == 404 else "conversation_owned")


async def test_a_fork_of_another_owner_is_not_given(client: Client) -> None:
    conversation = await owned(client)
    path = f"/v1/conversations/{conversation}/fork"
    assert (await client.post(path, json={"external_id": "copy", "owner": "ann"})).status_code == 201
    assert (await client.post(path, json={"external_id": "copy"})).status_code == 200
    refused(await client.post(path, json={"external_id": "copy", "owner": "eve"}), "owner")


async def test_a_response_of_another_owner_is_not_continued(tenant: Client, fake: FakeChat) -> None:
    first = (await tenant.post(RESPONSES, json={"model": CHAT_MODEL, "input": SECRET, "user": "mia"})).json()
    fake.chats.clear()
    follow = RESPONSE | {"previous_response_id": first["id"]}
    for more in ({}, {"store": False}, {"stream": True}):
        refused(await tenant.post(RESPONSES, json=follow | more | {"user": "eve"}), "user")
    assert fake.chats == []
    assert (await tenant.post(RESPONSES, json=follow | {"user": "mia"})).status_code == 200
    assert (await tenant.post(RESPONSES, json=follow)).status_code == 200


async def test_tools_do_not_give_the_conversation_of_another_owner(tenant: Client, port: int) -> None:
    conversation = await owned(tenant)
    turns = [{"role": "user", "content": "eve was here"}]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("create_conversation", {"external_id": "ticket", "owner": "eve"}),
        ("create_conversation", {"id": conversation, "owner": "eve"}),
        ("append_turns", {"external_id": "ticket", "owner": "eve", "turns": turns}),
        ("append_turns", {"conversation_id": conversation, "owner": "eve", "turns": turns}),
    ]
    async with mcp_client(port, tenant.key) as mcp:
        for name, arguments in calls:
            result = await mcp.call_tool(name, arguments)
            assert (result.is_error, result.structured_content["code"]) == (True, "conversation_owned"), result
            assert "mia" not in str(result.content)
            result = await mcp.call_tool(name, arguments | {"owner": "mia"})
            assert not result.is_error, result
        item = {"type": "message", "role": "user", "content": "hi"}
        turn = {"session_id": "ticket", "user_id": "eve", "turn_id": "t1"}
        for name, more in (
            ("memory_before_turn", {"current_input": [item]}),
            ("memory_after_turn", {"input_items": [item]}),
            ("memory_run_turn", {"current_input": [item]}),
        ):
            result = await mcp.call_tool(name, turn | more)
            assert result.structured_content["code"] == "conversation_owned", result
    assert "eve was here" in json.dumps(await tenant.history(conversation))


async def test_a_session_that_two_users_begin_at_once_is_of_one_of_them(client: Client) -> None:
    item = {"type": "message", "role": "user", "content": "hi"}
    for number in range(5):
        named = {"session_id": f"s{number}", "turn_id": "t1", "input_items": [item]}
        answers = await asyncio.gather(
            *(client.post("/v1/lifecycle/after-turn", json=named | {"user_id": f"u{user}"}) for user in range(4))
        )
        stored = [answer for answer in answers if answer.status_code == 200]
        assert len(stored) == 1
        for answer in answers:
            if answer not in stored:
                assert answer.json()["code"] in {"conversation_owned", "resource_busy"}, answer.text


async def test_an_import_adds_nothing_to_the_conversation_of_another_owner(service: Service, client: Client) -> None:
    conversation = await owned(client)
    turn = {"type": "turn", "external_id": "1", "role": "user", "content": "eve was here"}
    for owner, skipped in (("eve", 2), ("mia", 1), (None, 1)):
        head = {"type": "conversation", "external_id": "ticket", "owner": owner}
        mine = turn | {"external_id": str(owner), "content": f"{owner} was here"}
        content = b"".join(write_foreign("chatgpt", [head, mine], created_at=CREATED_AT))
        result = await imported(service, client, content)
        assert result["skipped_records"] == skipped, result
        assert ("/owner" in str(result)) is (owner == "eve"), result
    texts = [turn["content"] for turn in await client.history(conversation)]
    assert texts == [SECRET, "mia was here", "None was here"]
