"""The Python client against a real server: retries, paging, chats, streams, events and errors."""

import asyncio
import contextlib
import inspect
import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from turnkeep_client import (
    AsyncConversation,
    AsyncTurnkeep,
    Conversation,
    ConversationView,
    RetryPolicy,
    Turnkeep,
    TurnkeepError,
    async_items,
    errors,
    types,
)
from turnkeep_client.generated.errors import ConversationAdvancedError, ConversationOwnedError, IdempotencyMismatchError
from turnkeep_client.generated.operations import AsyncOperations, Operations
from turnkeep_client.problems import error_of_response

from app.providers.tokens import TiktokenCounter
from tests.api.test_tail import cutting
from tests.clients.answers import answers_through
from tests.support.api import Client

TEXT = "Héllo 👋🏽, trams of 東京\u2028and Lisbon: " + "words and 🌊 " * 20


@pytest.fixture
async def turnkeep(url: str, tenant: Client) -> AsyncIterator[AsyncTurnkeep]:
    async with AsyncTurnkeep(url, tenant.key) as opened:
        yield opened


async def append_retried(port: int, tenant: Client, turns: int) -> tuple[int, int, list[str]]:
    """Append turns one by one, where every third answer is lost; how many were stored, cuts, and all contents."""
    async with (
        answers_through(port, lambda number: number % 3 == 1) as proxy,
        AsyncTurnkeep(f"http://127.0.0.1:{proxy.port}", tenant.key, retries=RetryPolicy(min_wait_s=0.01)) as turnkeep,
    ):
        conversation = await turnkeep.conversation("retried")
        for number in range(turns):
            await conversation.append({"role": "user", "content": f"turn {number}"})
        stored = [str(turn["content"]) async for turn in conversation.turns(limit=200)]
        return len(stored), proxy.cuts, stored


@pytest.mark.slow
async def test_appends_whose_answers_are_lost_are_sent_again_and_stored_once(port: int, tenant: Client) -> None:
    count, cuts, stored = await append_retried(port, tenant, 40)
    assert cuts >= 15
    assert (count, stored) == (40, [f"turn {number}" for number in range(40)])


@pytest.mark.soak
async def test_of_a_thousand_appends_with_lost_answers_none_is_doubled(port: int, tenant: Client) -> None:
    count, cuts, stored = await append_retried(port, tenant, 1000)
    assert cuts >= 400
    assert (count, stored) == (1000, [f"turn {number}" for number in range(1000)])


async def test_a_request_without_an_idempotency_key_is_not_sent_again_after_a_lost_answer(
    port: int, tenant: Client
) -> None:
    conversation = await tenant.conversation()
    async with (
        answers_through(port, lambda _: True) as proxy,
        AsyncTurnkeep(f"http://127.0.0.1:{proxy.port}", tenant.key) as turnkeep,
    ):
        with pytest.raises(errors.ConnectionFailedError):
            await turnkeep.api.create_conversation_token(conversation, body={"access": "read"})
        assert proxy.answers == 1


async def test_lists_are_read_over_several_pages(turnkeep: AsyncTurnkeep) -> None:
    conversation = await turnkeep.conversation("paged")
    turns: list[types.TurnInput] = [{"role": "user", "content": f"turn {number}"} for number in range(7)]
    await conversation.append(*turns)
    assert [turn["content"] async for turn in conversation.turns(limit=3)] == [f"turn {n}" for n in range(7)]
    for number in range(3):
        await turnkeep.conversation(f"other-{number}", owner="mia")
    found = [one["external_id"] async for one in async_items(turnkeep.api.list_conversations, owner="mia", limit=2)]
    assert sorted(str(one) for one in found) == [f"other-{number}" for number in range(3)]


async def test_a_conversation_of_another_owner_is_an_error_that_says_what_to_do(turnkeep: AsyncTurnkeep) -> None:
    first = await turnkeep.conversation("ticket", owner="mia")
    with pytest.raises(ConversationOwnedError, match="leave the owner out") as refusal:
        await turnkeep.conversation("ticket", owner="eve")
    assert "mia" not in str(refusal.value)
    for again in (await turnkeep.conversation("ticket"), await turnkeep.conversation("ticket", owner="mia")):
        assert again.id == first.id


async def test_a_chat_stores_the_message_and_the_answer_and_remembers_in_another_session(
    url: str, tenant: Client
) -> None:
    seen: list[list[dict[str, Any]]] = []

    def model(messages: list[dict[str, Any]]) -> str:
        seen.append(messages)
        return f"answer {len(seen)}"

    for message in ("I eat no peanuts.", "What may I cook?"):
        async with AsyncTurnkeep(url, tenant.key) as session:
            conversation = await session.conversation("kitchen", owner="mia")
            result = await conversation.chat(model, message, actor="mia", assistant="cook", system="You are a cook.")
    assert result.text == "answer 2"
    assert [(turn["role"], turn["actor"]) for turn in result.turns] == [("user", "mia"), ("assistant", "cook")]
    assert "I eat no peanuts." in str(seen[1])
    assert seen[1][-1]["content"] == "What may I cook?"
    kept = await tenant.history(conversation.id)
    assert [turn["content"] for turn in kept] == [
        "I eat no peanuts.", "answer 1", "What may I cook?", "answer 2",
    ]  # fmt: skip


async def test_a_chat_is_built_again_if_another_writer_was_faster_and_gives_up_after_three(
    turnkeep: AsyncTurnkeep, tenant: Client
) -> None:
    conversation = await turnkeep.conversation("busy")
    seen: list[str] = []

    def overtaken(times: int) -> Any:
        async def model(messages: list[dict[str, Any]]) -> str:
            seen.append(str(messages))
            if len(seen) <= times:
                await tenant.append(conversation.id, f"meanwhile {len(seen)}")
            return "done"

        return model

    result = await conversation.chat(overtaken(2), "Hello.")
    assert result.attempts == 3
    assert "meanwhile 2" in seen[-1]
    assert [turn["content"] for turn in await tenant.history(conversation.id)] == [
        "meanwhile 1", "meanwhile 2", "Hello.", "done",
    ]  # fmt: skip
    seen.clear()
    with pytest.raises(ConversationAdvancedError):
        await conversation.chat(overtaken(9), "Again.")
    assert "Again." not in str(await tenant.history(conversation.id))


@pytest.mark.slow
async def test_the_messages_of_a_chat_fit_the_budget_with_a_long_message_too(turnkeep: AsyncTurnkeep) -> None:
    conversation = await turnkeep.conversation("budget")
    counter = TiktokenCounter("o200k_base")
    seen: list[int] = []

    def model(messages: list[dict[str, Any]]) -> str:
        seen.append(sum(counter.count(str(one["content"])) + 4 for one in messages))
        return "word " * 300

    for _ in range(5):
        await conversation.chat(model, "A long question about trams. " * 100, token_budget=1500)
    assert max(seen) <= 1500
    assert seen[-1] > 1000  # and the budget is used


async def test_a_chat_stores_tool_calls_in_the_format_of_the_model(turnkeep: AsyncTurnkeep) -> None:
    conversation = await turnkeep.conversation("tools")
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}

    def model(_: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
            {"role": "assistant", "content": "It is sunny."},
        ]

    result = await conversation.chat(model, "How is the weather?", actor="mia")
    assert result.text == "It is sunny."
    assert [turn["role"] for turn in result.turns] == ["user", "assistant", "tool", "assistant"]
    assert (result.turns[0]["actor"], result.turns[0]["content"]) == ("mia", "How is the weather?")


async def test_errors_have_a_class_for_each_code_a_request_id_and_a_remedy(turnkeep: AsyncTurnkeep) -> None:
    conversation = await turnkeep.conversation("errors")
    with pytest.raises(ConversationAdvancedError) as refused:
        await conversation.append({"role": "user", "content": "Hello."}, expected_seq=7)
    assert refused.value.status == 409
    assert refused.value.problem["seq"] == 0
    assert refused.value.request_id is not None
    assert refused.value.remedy
    assert refused.value.request_id in str(refused.value)
    await conversation.append({"role": "user", "content": "Hello."}, idempotency_key="one")
    with pytest.raises(IdempotencyMismatchError):
        await conversation.append({"role": "user", "content": "Other."}, idempotency_key="one")
    with pytest.raises(errors.NotFoundError):
        await turnkeep.api.get_conversation("01K9Z3V5Q8T4XAMP1E00000001")
    async with AsyncTurnkeep("http://127.0.0.1:1", "tk_x", retries=RetryPolicy(1)) as nowhere:
        with pytest.raises(errors.ConnectionFailedError, match="did not answer"):
            await nowhere.api.get_health()


async def test_an_error_names_the_wrong_fields_and_repeats_no_sentence(turnkeep: AsyncTurnkeep) -> None:
    conversation = await turnkeep.conversation("misspelled")
    wrong: Any = {"role": "human", "text": "Hello."}
    with pytest.raises(errors.InvalidError) as refused:
        await conversation.append(wrong)
    said = str(refused.value)
    assert "/turns/0/text: Unknown field `text`." in said
    assert "/turns/0/role: 'user', 'assistant', 'system' or 'tool' is expected" in said
    assert said.count("/turns/0/role") == said.count("/turns/0/text") == 1
    assert refused.value.detail.startswith("/turns/0/")
    assert refused.value.remedy not in said
    again = errors.TurnkeepError("some_code", "It is gone. Try that.", remedy="It is gone. Make another. Or none.")
    assert str(again) == "some_code: It is gone. Try that. Make another. Or none."
    whole = errors.TurnkeepError("some_code", "It is gone.", remedy="It is gone.")
    assert str(whole) == "some_code: It is gone."


@pytest.mark.parametrize("reply", [None, 7, [], ["a text"]])
async def test_a_chat_refuses_what_is_no_reply_and_stores_nothing(
    turnkeep: AsyncTurnkeep, tenant: Client, reply: Any
) -> None:
    conversation = await turnkeep.conversation("wrong reply")
    with pytest.raises(TypeError, match=rf"returned {type(reply).__name__}\. Return a text"):
        await conversation.chat(lambda _: reply, "Hello.")
    assert await tenant.history(conversation.id) == []


async def test_the_client_without_asyncio_refuses_an_async_function(url: str, tenant: Client) -> None:
    async def model(_: object) -> str:
        return "Never called."

    def work() -> None:
        with Turnkeep(url, tenant.key) as turnkeep:
            wrong: Any = model
            turnkeep.conversation("wrong kind").chat(wrong, "Hello.")

    with pytest.raises(TypeError, match="AsyncTurnkeep"):
        await asyncio.to_thread(work)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("127.0.0.1:8765", "must begin with http"),
        ("localhost:8765", "must begin with http"),
        ("http://", "must begin with http"),
        ("http://127.0.0.1:8765/v1/", "Leave the path out"),
        ("http://127.0.0.1:8765/mcp", "Leave the path out"),
    ],
)
def test_a_url_that_cannot_be_one_of_a_server_is_refused_at_once(url: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        AsyncTurnkeep(url, "tk_x")


def test_a_key_in_place_of_the_url_is_not_in_the_error() -> None:
    with pytest.raises(ValueError, match="must begin with http") as refused:
        AsyncTurnkeep("tk_secret", "http://127.0.0.1:8765")
    assert "tk_secret" not in str(refused.value)


@pytest.mark.parametrize("transport", ["websocket", "http"])
async def test_a_stream_is_stored_as_written(turnkeep: AsyncTurnkeep, tenant: Client, transport: Any) -> None:
    conversation = await turnkeep.conversation(f"streamed-{transport}")
    async with conversation.stream(actor="planner", model="some-model", transport=transport) as turn:
        for word in re.findall(r"\S+\s*", TEXT):
            await turn.write(word)
        await turn.commit(usage={"completion_tokens": 7})
    assert turn.turn is not None
    assert (turn.turn["content"], turn.turn["usage"]) == (TEXT, {"completion_tokens": 7})
    assert [one["content"] for one in await tenant.history(conversation.id)] == [TEXT]


async def test_a_stream_that_is_open_can_be_written_by_write_all(turnkeep: AsyncTurnkeep, tenant: Client) -> None:
    conversation = await turnkeep.conversation("opened-first")
    writer = conversation.stream()
    await writer.open()
    await writer.write("First, ")
    turn = await writer.write_all(["then ", "the rest."])
    assert (turn["content"], writer.reconnections) == ("First, then the rest.", 0)
    assert [one["content"] for one in await tenant.history(conversation.id)] == ["First, then the rest."]


async def test_a_stream_that_a_block_has_opened_can_be_written_by_write_all(url: str, tenant: Client) -> None:
    def work() -> tuple[str, str, int]:
        with Turnkeep(url, tenant.key) as turnkeep:
            conversation = turnkeep.conversation("opened-by-a-block")
            with conversation.stream() as writer:
                writer.write("First, ")
                turn = writer.write_all(["then ", "the rest."])
            return conversation.id, str(turn["content"]), writer.reconnections

    conversation_id, content, reconnections = await asyncio.to_thread(work)
    assert (content, reconnections) == ("First, then the rest.", 0)
    assert [one["content"] for one in await tenant.history(conversation_id)] == ["First, then the rest."]


@pytest.mark.parametrize("transport", ["websocket", "http"])
async def test_a_stream_that_the_server_has_refused_can_be_opened_again(
    turnkeep: AsyncTurnkeep, tenant: Client, transport: Any
) -> None:
    conversation = await turnkeep.conversation(f"refused-{transport}")
    path = f"/v1/conversations/{conversation.id}"
    assert (await tenant.post(f"{path}/trash")).status_code == 200
    writer = conversation.stream(transport=transport)
    for _ in range(2):
        with pytest.raises(TurnkeepError) as refused:
            await writer.open()
        assert refused.value.code in {"not_found", "conversation_trashed"}
    assert (await tenant.post(f"{path}/restore")).status_code == 200
    assert (await writer.write_all(["Now."]))["content"] == "Now."
    assert [one["content"] for one in await tenant.history(conversation.id)] == ["Now."]


@pytest.mark.parametrize("transport", ["websocket", "http"])
async def test_a_stream_that_no_server_has_answered_can_be_opened_again(
    port: int, tenant: Client, transport: Any
) -> None:
    conversation_id = await tenant.conversation()
    async with (
        cutting(port) as between,
        AsyncTurnkeep(
            f"http://127.0.0.1:{between.port}", tenant.key, retries=RetryPolicy(max_retries=0, min_wait_s=0.01),
            reconnect_timeout_s=0.3,
        ) as turnkeep,
    ):  # fmt: skip
        writer = turnkeep.conversation_by_id(conversation_id).stream(transport=transport)
        between.stop()
        attempts = [0]
        for _ in range(2):
            with pytest.raises(errors.ConnectionFailedError):
                await writer.open()
            attempts.append(writer.reconnections)
        assert attempts[0] < attempts[1] < attempts[2], "each call tries for as long"
        between.server = await asyncio.start_server(between.carry, "127.0.0.1", between.port)
        assert (await writer.write_all(["Now."]))["content"] == "Now."


async def test_a_stream_with_an_exception_is_aborted(turnkeep: AsyncTurnkeep, tenant: Client) -> None:
    conversation = await turnkeep.conversation("aborted")
    with pytest.raises(LookupError):  # noqa: PT012 - what the block raises passes through
        async with conversation.stream() as turn:
            await turn.write("half a ")
            raise LookupError
    assert await tenant.history(conversation.id) == []
    assert (await turnkeep.api.get_turn(conversation.id, turn.turn_id))["status"] == "aborted"


@pytest.mark.parametrize("transport", ["websocket", "http"])
async def test_of_two_streams_with_one_id_one_opens_the_turn(
    url: str, tenant: Client, turnkeep: AsyncTurnkeep, transport: Any
) -> None:
    conversation, turn_id = await turnkeep.conversation(f"one-id-{transport}"), str(uuid.uuid4())
    writers = [conversation.stream(id=turn_id, transport=transport) for _ in range(2)]
    opened = await asyncio.gather(*[writer.open() for writer in writers], return_exceptions=True)
    [refused] = [error for error in opened if error is not None]
    assert isinstance(refused, TurnkeepError)
    assert refused.code == "turn_id_conflict"
    writer = writers[opened.index(None)]
    await writer.write("Once.")
    turn = await writer.commit()
    assert [(one["id"], one["content"]) for one in await tenant.history(conversation.id)] == [(turn["id"], "Once.")]

    def again() -> str:
        with Turnkeep(url, tenant.key) as client:
            writer = client.conversation(f"one-id-{transport}").stream(id=turn_id, transport=transport)
            assert writer.turn_id == turn_id
            with pytest.raises(TurnkeepError) as refused:
                writer.write_all(["Twice."])
            return refused.value.code

    assert await asyncio.to_thread(again) == "turn_id_conflict"
    assert [one["content"] for one in await tenant.history(conversation.id)] == ["Once."]


@pytest.mark.slow
async def test_a_stream_and_a_follower_continue_after_lost_connections(port: int, tenant: Client) -> None:
    view = ConversationView()
    async with (
        cutting(port) as between,
        AsyncTurnkeep(f"http://127.0.0.1:{between.port}", tenant.key, retries=RetryPolicy(min_wait_s=0.01)) as turnkeep,
    ):
        conversation = await turnkeep.conversation("cut")

        async def follow() -> None:
            async for event in conversation.follow():
                view.apply(event)
                if event["type"] == "turn.committed":
                    return

        following = asyncio.create_task(follow())
        async with conversation.stream() as turn:
            for number, word in enumerate(re.findall(r"\S+\s*", TEXT)):
                if number in {3, 17}:
                    between.cut()
                await turn.write(word)
                await asyncio.sleep(0.01)
        await asyncio.wait_for(following, 60)
    assert turn.reconnections >= 1
    assert [one["content"] for one in view.turns] == [TEXT]
    assert not view.open_texts
    assert [one["content"] for one in await tenant.history(conversation.id)] == [TEXT]


async def test_a_writer_that_is_idle_continues_over_another_connection(port: int, tenant: Client) -> None:
    async with (
        cutting(port) as between,
        AsyncTurnkeep(
            f"http://127.0.0.1:{between.port}", tenant.key, retries=RetryPolicy(min_wait_s=0.01),
            reconnect_timeout_s=0.3,
        ) as turnkeep,
    ):  # fmt: skip
        conversation = await turnkeep.conversation("idle")
        async with conversation.stream() as turn:
            await turn.write("Half a ")
            await asyncio.sleep(0.8)  # longer than the time of reconnections, which begins with the loss
            between.cut()
            async with asyncio.timeout(60):
                while turn.reconnections == 0:  # noqa: ASYNC110 - no event for it
                    await asyncio.sleep(0.01)
            await turn.write("sentence.")
    assert [one["content"] for one in await tenant.history(conversation.id)] == ["Half a sentence."]


async def test_a_follower_that_is_idle_continues_over_another_connection(port: int, tenant: Client) -> None:
    async with (
        cutting(port) as between,
        AsyncTurnkeep(
            f"http://127.0.0.1:{between.port}", tenant.key, retries=RetryPolicy(min_wait_s=0.01),
            reconnect_timeout_s=0.3,
        ) as turnkeep,
    ):  # fmt: skip
        conversation = await turnkeep.conversation("quiet")
        async with contextlib.aclosing(conversation.follow()) as events:
            assert (await anext(events))["type"] == "snapshot"
            coming = asyncio.create_task(anext(events))
            for _ in range(2):  # nothing happens for longer than the time of reconnections
                await asyncio.sleep(0.4)
                between.cut()
            await asyncio.sleep(0.1)
            await tenant.append(conversation.id, "At last.")
            async with asyncio.timeout(60):
                event = await coming
                while event["type"] == "snapshot" and not event["turns"]:
                    event = await anext(events)
    assert "At last." in str(event)


async def test_a_commit_whose_answer_is_lost_is_found_again(port: int, tenant: Client) -> None:
    commits = 0

    def is_cut(number: int) -> bool:
        nonlocal commits
        commits = number
        return number in {3, 4, 5}

    async with (
        answers_through(port, is_cut) as proxy,
        AsyncTurnkeep(
            f"http://127.0.0.1:{proxy.port}", tenant.key, retries=RetryPolicy(0, min_wait_s=0.01)
        ) as turnkeep,
    ):
        conversation = await turnkeep.conversation("lost")
        async with conversation.stream(transport="http") as turn:
            await turn.write(TEXT)
    assert turn.turn is not None
    assert turn.turn["content"] == TEXT
    assert [one["content"] for one in await tenant.history(conversation.id)] == [TEXT]
    assert commits >= 3


async def test_the_client_without_asyncio_does_the_same(url: str, tenant: Client) -> None:
    def work() -> tuple[list[object], list[object]]:
        with Turnkeep(url, tenant.key) as turnkeep:
            conversation = turnkeep.conversation("sync", owner="mia")
            conversation.append({"role": "user", "content": "One."}, {"role": "user", "content": "Two."})
            conversation.chat(lambda messages: f"I see {len(messages)}.", "Three?")
            with conversation.stream(actor="planner") as turn:
                for word in ("Four ", "five."):
                    turn.write(word)
            events = conversation.follow()
            snapshot = next(events)
            events.close()
            assert snapshot["type"] == "snapshot"
            return [one["content"] for one in conversation.turns(limit=2)], [
                one["content"] for one in snapshot["turns"]
            ]

    listed, followed = await asyncio.to_thread(work)
    assert listed == followed == ["One.", "Two.", "Three?", "I see 3.", "Four five."]


def test_both_clients_have_the_same_operations_and_methods() -> None:
    for one, other in ((Operations, AsyncOperations), (Conversation, AsyncConversation)):
        names = {name for name, _ in inspect.getmembers(one, inspect.isfunction) if not name.startswith("_")}
        assert names == {name for name, _ in inspect.getmembers(other, inspect.isfunction) if not name.startswith("_")}
        for name in names:
            assert list(inspect.signature(getattr(one, name)).parameters) == list(
                inspect.signature(getattr(other, name)).parameters
            )


def test_an_error_without_a_problem_document_says_which_status_it_had() -> None:
    error = error_of_response(502, {}, b"<html>")
    assert isinstance(error, TurnkeepError)
    assert (error.code, error.status, error.is_retryable) == ("http_error", 502, True)
    assert "Turnkeep?" not in str(error)


@pytest.mark.parametrize("content", [b"<h1>Not Found</h1>", b'{"detail": "Not Found"}', b"[]", b""])
def test_a_server_that_is_no_turnkeep_is_suspected(content: bytes) -> None:
    for status in (301, 404, 405):
        error = error_of_response(status, {}, content)
        said = f"http_error: The server answers {status} without a problem document: is `url` a Turnkeep?"
        assert str(error) == said
    assert isinstance(error_of_response(404, {}, content), errors.NotFoundError)
