"""Items that a client sends back with the ids that they were given: stored once, and shown to the model once."""

from typing import Any

import pytest

from tests.support.api import Client, Service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply, says

RESPONSES = "/openai/v1/responses"


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text} | more


async def respond(tenant: Client, given: Any, status: int = 200, **more: Any) -> dict[str, Any]:
    response = await tenant.post(RESPONSES, json={"model": CHAT_MODEL, "input": given} | more)
    assert response.status_code == status, response.text
    return response.json()


async def items_of(tenant: Client, conversation: str) -> list[dict[str, Any]]:
    response = await tenant.get(f"/openai/v1/conversations/{conversation}/items?order=asc&limit=100")
    return response.json()["data"]


def sent(fake: FakeChat) -> list[tuple[str, Any]]:
    return [(message["role"], message.get("content")) for message in fake.chats[-1]["messages"]]


async def start_exchange(tenant: Client, fake: FakeChat) -> tuple[str, list[dict[str, Any]]]:
    """A conversation with a question, a call, its result and an answer; and its items."""
    conversation = await tenant.conversation()
    fake.replies = [Reply("Let me see.", tool_calls=(("call_1", "weather", '{"city": "Kiel"}'),)), says("Rain.")]
    await respond(tenant, [user("Weather?")], conversation=conversation)
    result = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
    await respond(tenant, [result], conversation=conversation)
    return conversation, await items_of(tenant, conversation)


KNOWN = [("user", "Weather?"), ("assistant", "Let me see."), ("tool", "rain"), ("assistant", "Rain.")]


def all_of(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return given


def backwards(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return given[::-1]


def only_answers_named(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As a client that has ids of what it received, not of what it sent."""
    return [
        {name: value for name, value in item.items() if name != "id" or item["type"] != "function_call_output"}
        if item.get("role") != "user"
        else {"role": "user", "content": item["content"][0]["text"]}
        for item in given
    ]


def references(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the AI SDK sends them: references to answers, and the user's messages as they are."""
    return [
        user(item["content"][0]["text"]) if item.get("role") == "user" else {"type": "item_reference", "id": item["id"]}
        for item in given
    ]


def reshaped(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the members that clients leave out, and with texts in place of parts."""
    left = [{name: value for name, value in item.items() if name != "status"} for item in given]
    return [item | {"content": item["content"][0]["text"]} if item["type"] == "message" else item for item in left]


@pytest.mark.parametrize("way", [all_of, backwards, only_answers_named, references, reshaped])
async def test_items_with_known_ids_are_stored_once_and_shown_once(tenant: Client, fake: FakeChat, way: Any) -> None:
    conversation, given = await start_exchange(tenant, fake)
    new = [user("And tomorrow?")]
    await respond(tenant, [*way(given), *new], conversation=conversation)
    assert sent(fake) == [*KNOWN, ("user", "And tomorrow?")]
    after = await items_of(tenant, conversation)
    assert after[: len(given)] == given
    assert len(after) == len(given) + 2
    await respond(tenant, way(after), conversation=conversation)
    assert len(await items_of(tenant, conversation)) == len(given) + 3


@pytest.mark.parametrize("is_stored", [True, False])
async def test_the_history_may_come_with_a_previous_response(
    tenant: Client, fake: FakeChat, *, is_stored: bool
) -> None:
    first = await respond(tenant, [user("One?")])
    given = [user("One?"), *first["output"], user("Two?")]
    more = {"previous_response_id": first["id"], "store": is_stored}
    second = await respond(tenant, given, **more)
    expected = [("user", "One?"), ("assistant", "Hello."), ("user", "Two?")]
    assert sent(fake) == expected
    # in a fork, items have their own ids and those of the conversation that it was copied from
    again = await respond(tenant, [*given[:-1], user("Other?")], previous_response_id=first["id"])
    assert sent(fake) == [*expected[:2], ("user", "Other?")]
    await respond(
        tenant, [*given[:-1], user("Other?"), *again["output"], user("Last?")], previous_response_id=again["id"]
    )
    assert sent(fake) == [*expected[:2], ("user", "Other?"), ("assistant", "Hello."), ("user", "Last?")]
    assert second["status"] == "completed"


async def test_other_content_under_a_known_id_is_a_conflict(tenant: Client, fake: FakeChat) -> None:
    conversation, given = await start_exchange(tenant, fake)
    changed = given[0] | {"content": "Another question?"}
    asked = len(fake.chats)
    for path, body in [
        (RESPONSES, {"model": CHAT_MODEL, "input": [*given[1:], changed], "conversation": conversation}),
        (f"/openai/v1/conversations/{conversation}/items", {"items": [*given[1:], changed]}),
    ]:
        response = await tenant.post(path, json=body)
        assert (response.status_code, response.json()["code"]) == (409, "turn_id_conflict"), response.text
        name = "input" if path == RESPONSES else "items"
        assert response.json()["errors"][0]["pointer"] == f"/{name}/{len(given) - 1}/id"
        assert "Another" not in response.text
    assert len(fake.chats) == asked
    assert await items_of(tenant, conversation) == given


async def test_ids_of_other_conversations_and_tenants_are_those_of_new_items(
    modelled: Service, tenant: Client, fake: FakeChat
) -> None:
    _, given = await start_exchange(tenant, fake)
    for client in (tenant, await modelled.new_tenant()):
        other = await client.conversation()
        await respond(client, [*given, user("And?")], conversation=other)
        assert [one for one in sent(fake) if one[1] is not None] == [*KNOWN, ("user", "And?")]
        assert len(await items_of(client, other)) == len(given) + 2
        changed = given[0] | {"content": "Another question?"}
        await respond(client, [changed], conversation=await client.conversation())


async def test_erased_items_stay_erased(tenant: Client, fake: FakeChat) -> None:
    conversation, given = await start_exchange(tenant, fake)
    await tenant.delete(f"/openai/v1/conversations/{conversation}/items/{given[-1]['id']}")
    await respond(tenant, [*given, user("And?")], conversation=conversation)
    assert sent(fake) == [*KNOWN[:-1], ("user", "And?")]


async def test_created_items_are_stored_once(tenant: Client, fake: FakeChat) -> None:
    conversation, given = await start_exchange(tenant, fake)
    path = f"/openai/v1/conversations/{conversation}/items"
    response = await tenant.post(path, json={"items": [*given, user("New.")]})
    assert response.status_code == 200, response.text
    assert [item["content"][0]["text"] for item in response.json()["data"]] == ["New."]
    assert (await tenant.post(path, json={"items": given})).json()["data"] == []
    assert len(await items_of(tenant, conversation)) == len(given) + 1


async def test_the_same_words_twice_are_two_items(tenant: Client, fake: FakeChat) -> None:
    conversation = await tenant.conversation()
    first = await respond(tenant, [user("Yes")], conversation=conversation)
    await respond(tenant, [user("Yes"), *first["output"], user("Yes")], conversation=conversation)
    assert sent(fake) == [("user", "Yes"), ("assistant", "Hello."), ("user", "Yes")]
    last = (await items_of(tenant, conversation))[-1]
    more = [user("Yes"), *first["output"], user("Yes"), user("No"), last, user("Yes")]
    await respond(tenant, more, conversation=conversation)
    assert [text for _, text in sent(fake)] == ["Yes", "Hello.", "Yes", "Hello.", "No", "Yes"]
