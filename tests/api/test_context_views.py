"""Contexts for one of several agents, and contexts that recall what was said in other conversations."""

import json
from typing import Any
from uuid import uuid4

import pytest

from app.core.ids import format_id
from app.formats.schemas import Format
from tests.support.api import Client, Service, open_service, problem
from tests.support.fake_chat import CHAT_MODEL, open_fake_chat, says
from tests.support.live import serving
from tests.support.mcp import mcp_client

TEAM = [
    {"role": "user", "actor": "ann", "content": "We need a flight to Oslo."},
    {
        "role": "assistant",
        "actor": "planner",
        "content": "Let me look.",
        "tool_calls": [{"id": "c1", "name": "search", "arguments": '{"to": "Oslo"}'}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "two flights"},
    {"role": "assistant", "actor": "planner", "content": "There are two."},
    {
        "role": "assistant",
        "actor": "booker",
        "tool_calls": [{"id": "c2", "name": "book", "arguments": "{}"}],
    },
    {"role": "tool", "tool_call_id": "c2", "content": "booked"},
    {"role": "assistant", "actor": "booker", "content": "It is booked, planner."},
]


async def texts(client: Client, conversation: str, **body: Any) -> str:
    return json.dumps((await client.context(conversation, 4000, **body))["messages"], ensure_ascii=False)


# as an actor


async def test_for_an_actor_its_turns_are_the_assistants_and_the_others_the_users(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *TEAM)
    made = await client.context(conversation, 4000, as_actor="planner")
    assert [(message["role"], message.get("name")) for message in made["messages"]] == [
        ("user", "ann"), ("assistant", None), ("tool", None), ("assistant", None), ("user", "booker"),
        ("user", "booker"),
    ]  # fmt: skip
    assert made["messages"][4]["content"] == "[calls book {}]\n[result of book] booked"
    assert len(made["included"]["turn_ids"]) == 7
    assert made["gap"] is None
    newcomer = await client.context(conversation, 4000, as_actor="critic")
    assert {message["role"] for message in newcomer["messages"]} == {"user"}


@pytest.mark.parametrize("target", list(Format))
async def test_in_every_format_the_calls_of_an_actor_are_whole_and_those_of_others_text(
    client: Client, target: Format
) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *TEAM, {"role": "user", "actor": "ann", "content": "Thanks!"})
    shown = await texts(client, conversation, as_actor="booker", format=target)
    for text in ("[calls search", "two flights", "There are two.", "It is booked", "Thanks!"):
        assert text in shown
    assert "[calls book" not in shown
    assert "c2" in shown
    assert "c1" not in shown


async def test_for_an_actor_the_query_is_what_another_said_last(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "The parrot is called Coco.", *["filler"] * 30)
    await client.append(
        conversation,
        {"role": "assistant", "actor": "planner", "content": "What is the parrot called?"},
        {"role": "assistant", "actor": "booker", "content": "Let me think."},
    )
    found = await texts(client, conversation, as_actor="booker", recent_turns=2, semantic_recall={"k": 1})
    assert "Coco" in found


async def test_a_generated_answer_may_be_that_of_an_actor(service: Service, tmp_path: Any) -> None:
    async with (
        open_fake_chat() as fake,
        open_service(
            service.database, tmp_path, embedder="none", llm_model=CHAT_MODEL, llm_base_url=fake.url
        ) as modelled,
        await modelled.new_tenant() as client,
    ):
        fake.reply = says("Done.")
        conversation = await client.conversation()
        await client.append(conversation, *TEAM)
        body = {
            "conversation_id": conversation,
            "messages": [{"role": "user", "content": "go on"}],
            "context": {"as_actor": "planner", "recent_turns": 4},
        }
        for stream in (False, True):
            response = await client.post("/v1/generate", json=body | {"stream": stream})
            assert response.status_code == 200, response.text
            answer = json.loads(response.text.rsplit("data: ", 1)[-1])
            assert answer["gap"]["from_position"] == 1
            shown = fake.chats[-1]["messages"]
            assert {message.get("name") for message in shown if message["role"] == "user"} >= {"booker"}
            body["messages"] = [{"role": "user", "content": "and on"}]


# recall beyond the conversation


async def week(client: Client) -> tuple[str, str]:
    """A conversation of last week, and the one of today, of the same owner."""
    before = await client.conversation(owner="ann", title="Pets and\nother things", project="home")
    old = {
        "role": "user",
        "actor": "ann",
        "content": "My parrot is called Coco.",
        "occurred_at": "2026-03-01T10:00:00Z",
    }
    await client.append(before, old, {"role": "assistant", "content": "A fine name."})
    today = await client.conversation(owner="ann", project="home")
    await client.append(today, {"role": "user", "actor": "ann", "content": "What is my parrot called?"})
    return before, today


async def test_a_context_recalls_what_its_owner_said_in_another_conversation(client: Client) -> None:
    before, today = await week(client)
    recall = {"k": 2}
    assert "Coco" not in await texts(client, today, semantic_recall=recall)
    for scope in ("owner", "project"):
        made = await client.context(today, 4000, semantic_recall=recall | {"scope": scope})
        block = made["messages"][0]["content"]
        label = "[2026-03-01 10:00 UTC, ann, in another conversation: Pets and other things] My parrot is called Coco."
        assert label in block
        assert (await client.history(before))[0]["id"] in made["included"]["turn_ids"]
        assert made["gap"] is None
    named = await client.conversation(owner="ann", project="home", external_id="room-7")
    await client.append(named, {"role": "user", "actor": "ann", "content": "The parrot bit the postman."})
    found = await texts(client, today, query="postman", semantic_recall={"k": 1, "scope": "owner"})
    assert "in another conversation: room-7]" in found


async def test_the_owner_scope_stays_with_the_owner_and_both_scopes_within_the_project(client: Client) -> None:
    _, today = await week(client)
    for owner, project, text in (
        ("bob", "home", "My parrot is called Bobby."),
        ("ann", "work", "My parrot is called Worky."),
    ):
        other = await client.conversation(owner=owner, project=project)
        await client.append(other, {"role": "user", "content": text})
    own = await texts(client, today, semantic_recall={"k": 10, "scope": "owner"})
    assert "Coco" in own
    assert "Bobby" not in own
    assert "Worky" not in own
    everyone = await texts(client, today, semantic_recall={"k": 10, "scope": "project"})
    assert "Bobby" in everyone
    assert "Worky" not in everyone


async def test_without_an_owner_the_owner_scope_is_the_conversation(client: Client) -> None:
    await week(client)
    nobodys = await client.conversation(project="home")
    await client.append(nobodys, "What is my parrot called?")
    made = await client.context(nobodys, 4000, semantic_recall={"k": 5, "scope": "owner"})
    assert "Coco" not in json.dumps(made["messages"])
    assert made["degraded"] == []
    assert "Coco" in await texts(client, nobodys, semantic_recall={"k": 5, "scope": "project"})


async def test_no_scope_reaches_another_tenant_and_no_token_has_contexts(
    service: Service, client: Client, other: Client
) -> None:
    await week(other)
    mine = await client.conversation(owner="ann", project="home")
    await client.append(mine, {"role": "user", "actor": "ann", "content": "What is my parrot called?"})
    made = await client.post(f"/v1/conversations/{mine}/tokens", json={"access": "append", "actor": "ann"})
    async with service.client(made.json()["token"]) as holder:
        for scope in ("conversation", "owner", "project"):
            recall = {"k": 5, "scope": scope}
            assert "Coco" not in await texts(client, mine, semantic_recall=recall)
            body = {"token_budget": 1000, "semantic_recall": recall}
            problem(await holder.post(f"/v1/conversations/{mine}/context", json=body), 403, "token_not_allowed")


async def test_two_tenants_with_the_same_ids_recall_their_own_turns_alone(client: Client, other: Client) -> None:
    ids = [format_id(uuid4()) for _ in range(4)]
    for who, name in ((client, "Coco"), (other, "Polly")):
        for at, text in ((0, f"My parrot is called {name}."), (2, "What is my parrot called?")):
            conversation = await who.conversation(
                id=ids[at], owner="ann", project="home", external_id=f"room-{at}", title=f"Pets of {name}"
            )
            await who.append(conversation, {"id": ids[at + 1], "role": "user", "actor": "ann", "content": text})
    for who, own, foreign in ((client, "Coco", "Polly"), (other, "Polly", "Coco")):
        for scope in ("owner", "project"):
            made = await who.context(ids[2], 2000, semantic_recall={"k": 10, "scope": scope}, include_facts=True)
            shown = json.dumps(made)
            assert f"Pets of {own}] My parrot is called {own}." in shown
            assert foreign not in shown
            assert made["included"]["turn_ids"] == [ids[3], ids[1]]
    # what is deleted of one tenant stays with the other
    await other.delete(f"/v1/conversations/{ids[0]}")
    recall = {"k": 10, "scope": "owner"}
    assert "Coco" in await texts(client, ids[2], semantic_recall=recall)
    assert "Polly" not in await texts(other, ids[2], semantic_recall=recall)


async def test_recall_beyond_the_conversation_needs_the_scope_read(service: Service, client: Client) -> None:
    _, today = await week(client)
    for scopes in (["write"], ["read"]):
        key = (await client.post("/v1/admin/keys", json={"name": "k", "scopes": scopes})).json()["key"]
        async with service.client(key) as holder:
            for scope in ("owner", "project"):
                body = {"token_budget": 1000, "semantic_recall": {"scope": scope}}
                answer = await holder.post(f"/v1/conversations/{today}/context", json=body)
                assert answer.status_code == (403 if scopes == ["write"] else 200), answer.text
                assert ("Coco" in answer.text) == (scopes == ["read"])


async def test_what_was_erased_in_another_conversation_is_not_recalled(client: Client) -> None:
    before, today = await week(client)
    first = (await client.history(before))[0]["id"]
    await client.delete(f"/v1/conversations/{before}/turns/{first}")
    assert "Coco" not in await texts(client, today, semantic_recall={"k": 5, "scope": "owner"})
    await client.delete(f"/v1/conversations/{before}")
    assert "A fine name" not in await texts(client, today, semantic_recall={"k": 5, "scope": "owner"})


async def test_an_unknown_scope_is_refused_by_name(client: Client) -> None:
    conversation = await client.conversation()
    body = {"token_budget": 100, "semantic_recall": {"scope": "tenant"}}
    response = await client.post(f"/v1/conversations/{conversation}/context", json=body)
    problem(response, 422, "invalid_request", "/semantic_recall/scope")


async def test_the_tool_takes_the_same_fields(client: Client, service: Service) -> None:
    _, today = await week(client)
    asked = {"token_budget": 2000, "as_actor": "ann", "semantic_recall": {"k": 3, "scope": "owner"}}
    async with serving(service.app, service.settings) as port, mcp_client(port, client.key) as mcp:
        result = await mcp.call_tool("build_context", {"conversation_id": today, "query": "parrot"} | asked)
    made = result.structured_content
    assert made == await client.context(today, query="parrot", **asked)
    assert "Coco" in json.dumps(made)
