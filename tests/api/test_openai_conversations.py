"""OpenAI's Conversations by the official client, over the same rows as everything else."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.support.api import Client, Service
from tests.support.live import serving

ITEMS: list[Any] = [
    {"type": "message", "role": "user", "content": "weather?"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz"},
    {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
    {
        "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "Sunny.", "annotations": [], "logprobs": []}],
    },
]  # fmt: skip


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    async with serving(service.app, service.settings) as listening:
        yield listening


@pytest.fixture
async def ai(port: int, client: Client, service: Service) -> AsyncIterator[openai.AsyncOpenAI]:
    base = f"http://127.0.0.1:{port}/openai/v1"
    http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [service.check]})
    async with openai.AsyncOpenAI(api_key=client.key, base_url=base, max_retries=0, http_client=http) as opened:
        yield opened


def plain(item: Any) -> dict[str, Any]:
    return item.model_dump(exclude_unset=True, exclude={"id"})


async def test_a_conversation_is_created_read_changed_and_deleted(ai: openai.AsyncOpenAI, client: Client) -> None:
    made = await ai.conversations.create(metadata={"topic": "demo"})
    assert made.id.startswith("conv_")
    assert (made.object, made.metadata) == ("conversation", {"topic": "demo"})
    assert await ai.conversations.retrieve(made.id) == made
    changed = await ai.conversations.update(made.id, metadata={"topic": "other"})
    assert (changed.id, changed.metadata) == (made.id, {"topic": "other"})
    ours = (await client.get(f"/v1/conversations/{made.id.removeprefix('conv_')}")).json()
    assert ours["metadata"] == {"topic": "other"}
    gone = await ai.conversations.delete(made.id)
    assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
    with pytest.raises(openai.NotFoundError):
        await ai.conversations.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await ai.conversations.retrieve("conv_nothing")


async def test_items_are_kept_as_they_were_and_are_turns(ai: openai.AsyncOpenAI, client: Client) -> None:
    made = await ai.conversations.create(items=ITEMS)
    page = await ai.conversations.items.list(made.id, order="asc")
    shown = [plain(item) for item in page.data]
    assert shown[1] == {name: value for name, value in ITEMS[1].items() if name != "id"}
    assert shown[2:4] == [item | {"status": "completed"} for item in ITEMS[2:4]]
    assert shown[4] == ITEMS[4]
    assert shown[0]["content"] == [{"type": "input_text", "text": "weather?"}]
    turns = await client.history(made.id.removeprefix("conv_"))
    assert [turn["role"] for turn in turns] == ["user", "assistant", "assistant", "tool", "assistant"]
    for item in page.data:
        assert await ai.conversations.items.retrieve(item.id, conversation_id=made.id) == item


async def test_items_are_listed_a_page_at_a_time_in_both_orders(ai: openai.AsyncOpenAI) -> None:
    made = await ai.conversations.create()
    added = await ai.conversations.items.create(
        made.id, items=[{"type": "message", "role": "user", "content": f"n {n}"} for n in range(7)]
    )
    ids = [item.id for item in added.data]
    assert (added.first_id, added.last_id, added.has_more) == (ids[0], ids[-1], False)
    assert [item.id async for item in ai.conversations.items.list(made.id, order="asc", limit=3)] == ids
    assert [item.id async for item in ai.conversations.items.list(made.id, limit=2)] == ids[::-1]


async def test_turns_of_another_origin_are_items_too(ai: openai.AsyncOpenAI, client: Client) -> None:
    conversation = await client.conversation()
    calls = [{"id": f"call_{n}", "name": "f", "arguments": "{}"} for n in range(2)]
    results = [{"tool_call_id": f"call_{n}", "content": "x"} for n in range(2)]
    await client.append(
        conversation, "hi", {"role": "assistant", "content": "so", "tool_calls": calls},
        {"role": "tool", "tool_results": results},
    )  # fmt: skip
    page = await ai.conversations.items.list(conversation, order="asc", limit=2)
    found = [item async for item in page]
    assert [item.type for item in found] == [
        "message", "message", "function_call", "function_call", "function_call_output", "function_call_output"
    ]  # fmt: skip
    assert len({item.id for item in found}) == 6
    backwards = [item.id async for item in ai.conversations.items.list(conversation, limit=1)]
    assert backwards == [item.id for item in found][::-1]


async def test_a_deleted_item_is_gone_and_its_turn_a_tombstone(ai: openai.AsyncOpenAI, client: Client) -> None:
    made = await ai.conversations.create(items=ITEMS[:1])
    [item] = (await ai.conversations.items.list(made.id)).data
    assert item.id is not None
    assert (await ai.conversations.items.delete(item.id, conversation_id=made.id)).id == made.id
    assert (await ai.conversations.items.list(made.id)).data == []
    with pytest.raises(openai.NotFoundError):
        await ai.conversations.items.retrieve(item.id, conversation_id=made.id)
    [turn] = await client.history(made.id.removeprefix("conv_"))
    assert (turn["content"], turn["erased_at"] is not None) == (None, True)


async def test_items_that_cannot_be_stored_leave_nothing(ai: openai.AsyncOpenAI, client: Client) -> None:
    orphan = {"type": "function_call_output", "call_id": "call_x", "output": "x"}
    for items, code in [([orphan], "tool_call_unknown"), ([{"type": "message"}], "invalid_request")]:
        with pytest.raises(openai.BadRequestError) as refused:
            await ai.conversations.create(items=items)  # type: ignore[arg-type]
        assert refused.value.code == code
    assert (await client.get("/v1/conversations")).json()["data"] == []


async def test_errors_name_the_item_and_the_member_that_were_sent(ai: openai.AsyncOpenAI) -> None:
    orphan: Any = {"type": "function_call_output", "call_id": "call_x", "output": "x"}
    with pytest.raises(openai.BadRequestError) as refused:
        await ai.conversations.create(items=[ITEMS[0], orphan])
    assert refused.value.param == "items.1.call_id"
    made = await ai.conversations.create(items=ITEMS[:1])
    stored: Any = (await ai.conversations.items.list(made.id)).data[0].model_dump()
    for items, param in (([stored, ITEMS[0], orphan], "items.2.call_id"), ([orphan], "items.0.call_id")):
        with pytest.raises(openai.BadRequestError) as refused:
            await ai.conversations.items.create(made.id, items=items)
        assert (refused.value.code, refused.value.param) == ("tool_call_unknown", param)
    long: Any = ITEMS[2] | {"arguments": "a" * (2**20 + 1)}
    with pytest.raises(openai.APIStatusError) as too_large:
        await ai.conversations.items.create(made.id, items=[stored, long])
    assert (too_large.value.status_code, too_large.value.param) == (413, "items.1.arguments")


@pytest.mark.parametrize("value", [1, 1.5, True, None, {}, []])
async def test_the_values_of_metadata_are_texts(client: Client, value: Any) -> None:
    path = "/openai/v1/conversations"
    made = (await client.post(path, json={"metadata": {"topic": "demo"}})).json()["id"]
    for at in (path, f"{path}/{made}"):
        refused = await client.post(at, json={"metadata": {"topic": value}})
        error = refused.json()["error"]
        assert (refused.status_code, error["type"], error["param"]) == (400, "invalid_request_error", "metadata")
    assert (await client.get(f"{path}/{made}")).json()["metadata"] == {"topic": "demo"}


async def test_the_synchronous_client_too(port: int, client: Client) -> None:
    def talk() -> list[str]:
        with openai.OpenAI(api_key=client.key, base_url=f"http://127.0.0.1:{port}/openai/v1") as ai:
            made = ai.conversations.create(items=ITEMS[:1])
            return [item.type for item in ai.conversations.items.list(made.id)]

    assert await asyncio.to_thread(talk) == ["message"]


async def test_a_conversation_is_begun_once_for_an_idempotency_key(client: Client) -> None:
    path = "/openai/v1/conversations"
    item = {"type": "message", "role": "user", "content": "hi"}
    for key, body in (("bare", {}), ("items", {"items": [item], "metadata": {"a": "b"}})):
        answers = [await client.post(path, json=body, headers={"Idempotency-Key": key}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].json() == answers[1].json()
        assert [answer.headers.get("idempotent-replayed") for answer in answers] == [None, "true"]
        other = await client.post(path, json={"metadata": {"other": "x"}}, headers={"Idempotency-Key": key})
        assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")
    wrong = {"items": [{"type": "function_call_output", "call_id": "none", "output": "x"}]}
    for _ in range(2):
        refused = await client.post(path, json=wrong, headers={"Idempotency-Key": "wrong"})
        assert (refused.status_code, refused.json()["code"]) == (400, "tool_call_unknown")
    listed = (await client.get("/v1/conversations")).json()["data"]
    assert sorted(one["turn_count"] for one in listed) == [0, 1]


async def test_of_two_deletions_of_an_item_at_once_one_succeeds(ai: openai.AsyncOpenAI) -> None:
    for number in range(3):
        made = await ai.conversations.create(items=[{"type": "message", "role": "user", "content": f"item {number}"}])
        [item] = (await ai.conversations.items.list(made.id)).data
        deletions = [ai.conversations.items.delete(str(item.id), conversation_id=made.id) for _ in range(4)]
        results = await asyncio.gather(*deletions, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        assert len(failures) == 3
        assert all(isinstance(failure, openai.NotFoundError) for failure in failures)
