"""Tools that acted in a conversation are among its participants, marked by their role, and are no speakers."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from app.core.ids import parse_id
from tests.support.api import Client, Service
from tests.support.statements import counted_statements

CALL = {"role": "assistant", "tool_calls": [{"id": "c1", "name": "forecast", "arguments": "{}"}]}
RESULT = {"role": "tool", "actor": "weather", "tool_call_id": "c1", "content": "rain"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}


async def shown(client: Client, conversation: str) -> list[dict[str, Any]]:
    return (await client.get(f"/v1/conversations/{conversation}")).json()["participants"]


async def roles(client: Client, conversation: str) -> dict[str, str | None]:
    """The participants in their order, each with its role."""
    found = await shown(client, conversation)
    assert len({one["actor"] for one in found}) == len(found)
    return {one["actor"]: one.get("role") for one in found}


async def columns(service: Service, conversation: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The speakers and the tools as they are stored."""
    connection = await asyncpg.connect(service.database.superuser)
    try:
        row = await connection.fetchrow(
            "select participants, tools from conversations where id = $1", parse_id(conversation)
        )
    finally:
        await connection.close()
    assert row is not None
    return json.loads(row["participants"]), json.loads(row["tools"])


async def tools_turn(client: Client) -> str:
    """A conversation of ann and an assistant, in which the tool weather acted."""
    conversation = await client.conversation(participants=[{"actor": "ann", "name": "Ann B."}])
    await client.append(conversation, {"role": "user", "actor": "ann", "content": "Rain?"}, CALL, RESULT)
    return conversation


async def appended(client: Client) -> str:
    return await tools_turn(client)


async def streamed(client: Client) -> str:
    conversation = await client.conversation(participants=["ann"])
    await client.append(conversation, CALL)
    path = f"/v1/conversations/{conversation}/turns"
    opening = {"turn": {"role": "tool", "actor": "weather", "tool_call_id": "c1"}, "writer": "w"}
    opened = (await client.post(f"{path}/open", json=opening)).json()["turn"]["id"]
    assert "weather" not in await roles(client, conversation), "a turn that is being written is in no view yet"
    assert (await client.post(f"{path}/{opened}/chunks", json={"offset": 0, "delta": "rain"})).status_code == 200
    assert (await client.post(f"{path}/{opened}/commit", json={})).status_code == 200
    return conversation


async def revised(client: Client) -> str:
    conversation = await client.conversation(participants=["ann"])
    [_, result] = (await client.append(conversation, CALL, RESULT | {"actor": "barometer"}))["turns"]
    path = f"/v1/conversations/{conversation}/turns/{result['id']}/revisions"
    again = {"actor": "weather", "tool_call_id": "c1", "content": "sun"}
    assert (await client.post(path, json=again)).status_code == 201
    return conversation


async def forked(client: Client) -> str:
    path = f"/v1/conversations/{await tools_turn(client)}/fork"
    return (await client.post(path, json={})).json()["id"]


@pytest.mark.parametrize("way", [appended, streamed, revised, forked])
async def test_a_tool_that_acted_is_listed_once_after_the_speakers(
    client: Client, service: Service, way: Callable[[Client], Awaitable[str]]
) -> None:
    conversation = await way(client)
    again = [RESULT | {"tool_call_id": f"c{number}"} for number in (2, 3)]
    calls = [{"role": "assistant", "tool_calls": [{"id": f"c{n}", "name": "x", "arguments": "{}"}]} for n in (2, 3)]
    await client.append(conversation, calls[0], again[0], calls[1], again[1])
    found = await roles(client, conversation)
    assert {actor: role for actor, role in found.items() if actor != "barometer"} == {
        "ann": None, "assistant": None, "weather": "tool",
    }  # fmt: skip
    assert list(found)[:2] == ["ann", "assistant"]
    speakers, tools = await columns(service, conversation)
    assert [one["actor"] for one in speakers] == ["ann", "assistant"]
    assert {"actor": "weather", "name": None, "aliases": []} in tools
    assert all(one.keys() == {"actor", "name", "aliases"} for one in (*speakers, *tools))


async def test_a_tool_of_a_session_and_of_given_items_is_listed_under_the_actor_of_its_turn(client: Client) -> None:
    items = [{"type": "function_call", "call_id": "c1", "name": "forecast", "arguments": "{}"}, OUTPUT]
    session = {"session_id": "s", "user_id": "ann", "turn_id": "t1"}
    answer = await client.post("/v1/lifecycle/after-turn", json=session | {"input_items": [], "output_items": items})
    assert answer.status_code == 200, answer.text
    [kept] = (await client.get("/v1/conversations", params={"external_id": "s"})).json()["data"]
    assert {one["actor"]: one.get("role") for one in kept["participants"]} == {"assistant": None, "tool": "tool"}
    made = (await client.post("/openai/v1/conversations", json={"items": items})).json()["id"]
    assert await roles(client, made.removeprefix("conv_")) == {"assistant": None, "tool": "tool"}


async def test_an_actor_that_acts_as_a_tool_and_speaks_is_a_speaker(client: Client, service: Service) -> None:
    conversation = await tools_turn(client)
    path = f"/v1/conversations/{conversation}"
    named = [*(await shown(client, conversation))[:2], {"actor": "weather", "name": "Weather service", "role": "tool"}]
    await client.patch(path, json={"participants": named})
    await client.append(conversation, {"role": "assistant", "actor": "weather", "content": "It will rain."})
    found = await shown(client, conversation)
    assert found[-1] == {"actor": "weather", "name": "Weather service", "aliases": []}
    assert len(found) == 3
    both = await client.conversation()
    await client.append(both, CALL, RESULT, {"role": "assistant", "actor": "weather", "content": "It will rain."})
    assert await roles(client, both) == {"assistant": None, "weather": None}
    changed = await client.patch(
        f"/v1/conversations/{both}", json={"participants": [{"actor": "weather", "role": "tool"}]}
    )
    assert {one["actor"]: one.get("role") for one in changed.json()["participants"]} == {
        "weather": None, "assistant": None,
    }  # fmt: skip
    assert (await columns(service, both))[1] == []


async def test_participants_that_were_read_can_be_written_back(client: Client, service: Service) -> None:
    conversation = await tools_turn(client)
    path = f"/v1/conversations/{conversation}"
    before, stored = await shown(client, conversation), await columns(service, conversation)
    without_role = [{key: value for key, value in one.items() if key != "role"} for one in before]
    without_value = [{"role": None} | one for one in before]
    for given in (before, without_role, without_value, ["assistant", "weather"], []):
        changed = await client.patch(path, json={"participants": given})
        assert changed.status_code == 200, changed.text
        assert {one["actor"]: one.get("role") for one in changed.json()["participants"]} == {
            "ann": None, "assistant": None, "weather": "tool",
        }, given  # fmt: skip
    await client.patch(path, json={"participants": before})
    assert await shown(client, conversation) == before
    assert await columns(service, conversation) == stored
    copy = await client.conversation(participants=before)
    assert await shown(client, copy) == before


async def test_a_list_of_participants_leaves_out_a_tool_whose_turns_are_erased(client: Client) -> None:
    conversation = await tools_turn(client)
    [_, _, result] = await client.history(conversation)
    await client.delete(f"/v1/conversations/{conversation}/turns/{result['id']}")
    changed = await client.patch(f"/v1/conversations/{conversation}", json={"participants": ["ann"]})
    assert [one["actor"] for one in changed.json()["participants"]] == ["ann", "assistant"]


async def test_the_name_of_a_tool_stays_in_the_text_that_is_embedded(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await tools_turn(client)
    embedder = service.container.embedder
    assert embedder is not None
    asked: list[str] = []
    embed = embedder.embed

    async def recording(texts: Any, *, purpose: Any) -> Any:
        asked.extend(texts)
        return await embed(texts, purpose=purpose)

    monkeypatch.setattr(embedder, "embed", recording)
    query = "How is the weather where Ann lives?"
    for scope in (conversation, None):
        await client.recall(scope, query)
    assert asked == ["How is the weather where lives?"] * 2


async def test_facts_do_not_take_the_name_of_a_tool_for_that_of_an_actor(client: Client) -> None:
    conversation = await tools_turn(client)
    tool = {"actor": "weather", "name": "Bo", "aliases": [], "role": "tool"}
    speaker = {"actor": "user-7", "name": "Cy", "aliases": []}
    await client.patch(f"/v1/conversations/{conversation}", json={"participants": [tool, speaker]})
    for name, subject in (("Bo", "Bo"), ("Cy", "user-7")):
        body = {"subject": name, "predicate": "likes", "object": "tea", "conversation_id": conversation}
        fact = (await client.post("/v1/facts", json=body)).json()["fact"]
        assert fact["subject"] == subject


async def test_a_tool_finds_the_conversations_of_its_tenant(client: Client, other: Client) -> None:
    mine, theirs = await tools_turn(client), await tools_turn(other)
    await client.append(await client.conversation(), "hello")
    for who, conversation in ((client, mine), (other, theirs)):
        listed = (await who.get("/v1/conversations", params={"participant": "weather"})).json()["data"]
        searched = (await who.post("/v1/conversations/search", json={"participant": "weather"})).json()["data"]
        assert [one["id"] for one in listed] == [one["id"] for one in searched] == [conversation]
        assert listed[0]["participants"][-1] == {"actor": "weather", "name": None, "aliases": [], "role": "tool"}
        assert (await who.get("/v1/conversations", params={"participant": "forecast"})).json()["data"] == []


async def test_speakers_and_tools_are_bounded_together(client: Client) -> None:
    conversation = await client.conversation(participants=[f"p{number}" for number in range(198)])
    await client.append(conversation, CALL, RESULT, {"role": "user", "actor": "late", "content": "hello"})
    found = await roles(client, conversation)
    assert len(found) == 200
    assert list(found.items())[-2:] == [("assistant", None), ("weather", "tool")]
    changed = await client.patch(
        f"/v1/conversations/{conversation}", json={"participants": await shown(client, conversation)}
    )
    assert len(changed.json()["participants"]) == 200


async def test_an_append_writes_the_conversation_for_a_new_tool_alone(client: Client) -> None:
    conversation = await tools_turn(client)
    writes: list[int] = []
    for number, actor in ((2, "weather"), (3, "radar"), (4, "radar")):
        call = {"role": "assistant", "tool_calls": [{"id": f"c{number}", "name": "x", "arguments": "{}"}]}
        with counted_statements() as sent:
            await client.append(conversation, call, RESULT | {"actor": actor, "tool_call_id": f"c{number}"})
        writes.append(sum("update conversations" in statement for statement in sent))
    assert writes == [0, 1, 0]
