"""What the integrations of the Python client share, against a real server and without any framework."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from turnkeep_client import RetryPolicy, Turnkeep, TurnkeepError, types
from turnkeep_client.generated.errors import ConversationOwnedError
from turnkeep_client.integrations.history import ConversationHistory
from turnkeep_client.integrations.messages import Shown, message_of, turn_of
from turnkeep_client.integrations.response_items import items_of_turn, turn_of_item

from tests.clients.answers import answers_through
from tests.support.api import Client, Service, open_service
from tests.support.live import serving
from tests.support.postgres import TestDatabase

ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "I am allergic to peanuts. 🌊"},
    {"role": "user", "content": [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,AAAA"},
    ]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x" * 40_000},
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "status": "completed",
     "arguments": '{"id": 12345678901234567890}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "a null \0 and half a pair \ud83d"},
    {"type": "shell_call", "id": "sh_1", "call_id": "call_2", "action": {"commands": ["ls"]}, "status": "completed"},
    {"type": "shell_call_output", "call_id": "call_2", "output": [
        {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}, "size": 12345678901234567890},
    ]},
    {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [
        {"type": "output_text", "text": "It is\na boat.", "annotations": [], "logprobs": [-0.1, 1e300]},
    ]},
    {"id": "msg_2", "type": "message", "role": "assistant", "status": "completed", "content": [
        {"type": "refusal", "refusal": "No."},
    ]},
    {"role": "developer", "content": ""},
]  # fmt: skip


@pytest.fixture
async def turnkeep(url: str, tenant: Client) -> AsyncIterator[Turnkeep]:
    opened = Turnkeep(url, tenant.key)
    yield opened
    await asyncio.to_thread(opened.close)


async def test_items_of_agents_come_back_in_order_exactly_as_they_were(turnkeep: Turnkeep) -> None:
    history = ConversationHistory(turnkeep, "session", owner="mia")
    await asyncio.to_thread(history.append, [turn_of_item(item) for item in ITEMS])
    turns = await asyncio.to_thread(history.turns)
    assert [item for turn in turns for item in items_of_turn(turn)] == ITEMS
    newest = await asyncio.to_thread(history.turns, 3)
    assert [item for turn in newest for item in items_of_turn(turn)] == ITEMS[-3:]


async def test_a_history_does_not_read_the_conversation_of_another_owner(turnkeep: Turnkeep) -> None:
    history = ConversationHistory(turnkeep, "ticket", owner="mia")
    await asyncio.to_thread(history.append, [turn_of_item(ITEMS[0])])
    other = ConversationHistory(turnkeep, "ticket", owner="eve")
    for use in (other.turns, other.pop, other.conversation, other.clear):
        with pytest.raises(ConversationOwnedError):
            await asyncio.to_thread(use)
    assert len(await asyncio.to_thread(history.turns)) == 1


async def test_turns_after_a_position_and_metadata_beside_that_of_others(turnkeep: Turnkeep) -> None:
    history = ConversationHistory(turnkeep, "positions", metadata={"channel": "web"})
    await asyncio.to_thread(history.append, [turn_of_item(item) for item in ITEMS])
    later = await asyncio.to_thread(history.turns, after=4)
    assert [item for turn in later for item in items_of_turn(turn)] == ITEMS[4:]
    await asyncio.to_thread(history.update_metadata, {"archived": 4})
    assert (await asyncio.to_thread(history.conversation))["metadata"] == {"channel": "web", "archived": 4}
    await asyncio.to_thread(history.update_metadata, {"archived": None})
    assert (await asyncio.to_thread(history.conversation))["metadata"] == {"channel": "web"}


async def test_items_are_stored_once_and_shown_to_other_models(turnkeep: Turnkeep) -> None:
    history = ConversationHistory(turnkeep, "shown")
    await asyncio.to_thread(history.append, [turn_of_item(item) for item in ITEMS[:5]])
    [first, *_] = await asyncio.to_thread(history.turns)
    assert str(first["content"]).count("peanuts") == 1
    conversation = turnkeep.conversation_by_id(history.conversation_id)
    context = await asyncio.to_thread(conversation.context, 4000, include_summary=False)
    assert [message["role"] for message in context["messages"]] == ["user", "user", "assistant", "tool"]
    assert "turnkeep.given" not in str(context["messages"])


async def test_turns_of_other_programs_are_shown_as_items(turnkeep: Turnkeep) -> None:
    history = ConversationHistory(turnkeep, "foreign")
    await asyncio.to_thread(history.append, [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            {"id": "2", "name": "look", "arguments": {"at": "Kiel"}},
        ]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
        {"role": "tool", "tool_results": [{"tool_call_id": "2", "content": "sun"}]},
    ])  # fmt: skip
    turns = await asyncio.to_thread(history.turns)
    assert [item for turn in turns for item in items_of_turn(turn)] == [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "look", "arguments": '{"at": "Kiel"}'},
        {"type": "function_call_output", "call_id": "1", "output": "rain"},
        {"type": "function_call_output", "call_id": "2", "output": "sun"},
    ]


@pytest.mark.slow
async def test_an_append_that_is_called_again_after_a_lost_answer_stores_nothing_twice(
    port: int, tenant: Client
) -> None:
    turns: list[types.TurnInput] = [{"role": "user", "content": f"turn {number}"} for number in range(1100)]
    async with answers_through(port, lambda number: number in {2, 3, 8}) as proxy:
        turnkeep = Turnkeep(f"http://127.0.0.1:{proxy.port}", tenant.key, retries=RetryPolicy(max_retries=0))
        history = ConversationHistory(turnkeep, "retried")
        failures = 0
        for _ in range(4):
            try:
                await asyncio.to_thread(history.append, turns)
                break
            except TurnkeepError:
                failures += 1
        await asyncio.to_thread(history.append, turns[:1])  # the same text, but said again
        with contextlib.suppress(TurnkeepError):
            await asyncio.to_thread(history.append, turns[1:2])
        stored = [turn["content"] for turn in await asyncio.to_thread(history.turns)]
        await asyncio.to_thread(turnkeep.close)
    assert (failures, proxy.cuts) == (2, 3)
    assert stored == [turn["content"] for turn in [*turns, *turns[:2]]]


async def test_the_newest_turn_is_taken_back_and_a_cleared_conversation_begins_again(
    turnkeep: Turnkeep, tenant: Client
) -> None:
    history = ConversationHistory(turnkeep, "cleared")
    await asyncio.to_thread(history.append, [turn_of_item(item) for item in ITEMS[:3]])
    popped = await asyncio.to_thread(history.pop)
    assert popped is not None
    assert items_of_turn(popped) == [ITEMS[2]]
    assert len(await asyncio.to_thread(history.turns)) == 2
    assert len(await asyncio.to_thread(history.turns, 1)) == 1
    first = history.conversation_id
    await asyncio.to_thread(history.clear)
    assert (await asyncio.to_thread(history.turns), await asyncio.to_thread(history.pop)) == ([], None)
    assert (await tenant.get(f"/v1/conversations/{first}")).status_code == 404
    await tenant.delete(f"/v1/conversations/{history.conversation_id}")  # by another program
    await asyncio.to_thread(history.append, [turn_of_item(ITEMS[0])])
    assert len(await asyncio.to_thread(history.turns)) == 1


@pytest.mark.parametrize("processes", [1, 2])
async def test_each_turn_is_popped_by_one_of_many_readers(
    processes: int, served: tuple[Service, int], words_database: TestDatabase, tenant: Client, tmp_path: Path
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        ports = [served[1]]
        if processes == 2:
            second = await stack.enter_async_context(open_service(words_database, tmp_path, embedder="none"))
            ports.append(await stack.enter_async_context(serving(second.app, second.settings)))
        # of the same tenant, so that all read the same newest turn
        opened = [Turnkeep(f"http://127.0.0.1:{ports[number % processes]}", tenant.key) for number in range(6)]
        histories = [ConversationHistory(turnkeep, "shared", owner="mia") for turnkeep in opened]
        items = [{"role": "user", "content": f"item {number}"} for number in range(9)]
        await asyncio.to_thread(histories[0].append, [turn_of_item(item) for item in items])

        def drain(history: ConversationHistory) -> list[Any]:
            return [item for turn in iter(history.pop, None) for item in items_of_turn(turn)]

        drained = await asyncio.gather(*(asyncio.to_thread(drain, history) for history in histories))
        popped = [item["content"] for part in drained for item in part]
        assert sorted(popped) == [item["content"] for item in items]
        for part in drained:  # each reader gets later items first
            assert [item["content"] for item in part] == sorted((item["content"] for item in part), reverse=True)
        for turnkeep in opened:
            await asyncio.to_thread(turnkeep.close)


async def test_turns_that_another_reader_erased_are_not_returned(turnkeep: Turnkeep, tenant: Client) -> None:
    history = ConversationHistory(turnkeep, "raced")
    await asyncio.to_thread(history.append, [turn_of_item(item) for item in ITEMS[:4]])
    turns = await asyncio.to_thread(history.turns)
    path = f"/v1/conversations/{history.conversation_id}/turns"
    seen = [turns[2:], turns[1:2], turns[:1]]  # what a reader saw before another erased the last two
    assert (await tenant.delete(f"{path}/{turns[3]['id']}")).headers["X-Turnkeep-Erased"] == "1"
    assert (await tenant.delete(f"{path}/{turns[3]['id']}")).headers["X-Turnkeep-Erased"] == "0"
    assert (await tenant.delete(path, params={"ids": turns[2]["id"]})).json()["erased"] == [turns[2]["id"]]
    taken = await asyncio.to_thread(history.take, lambda: seen.pop(0), 2)
    assert [turn["id"] for turn in taken] == [turns[1]["id"], turns[0]["id"]]
    assert await asyncio.to_thread(history.erase, [turn["id"] for turn in turns]) == set()


def test_a_message_whose_text_was_changed_has_the_new_text() -> None:
    turn: Any = turn_of("some", {"type": "human", "data": {"content": "before"}}, Shown("user", "before"))
    turn["content"][0]["text"] = 'after "it"'
    assert message_of("some", turn) == {"type": "human", "data": {"content": 'after "it"'}}
    assert message_of("another", turn) is None
