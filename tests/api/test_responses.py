"""OpenAI's Responses by the official client, over the same rows as everything else, with a fake model behind it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from app.core.ids import format_id, new_uuid
from app.tenancy.schemas import Scope
from tests.api.test_openai import until
from tests.api.test_streaming import age, opened
from tests.support.api import Client, Service, problem
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply, calls, says
from tests.support.live import serving
from tests.support.modelled import open_modelled

WEATHER: Any = {
    "type": "function", "name": "weather", "description": "The weather of a city.", "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}  # fmt: skip
PATH = "/openai/v1/responses"
LONG = "a" * (2**20 + 1)


@pytest.fixture
async def ai(port: int, tenant: Client, modelled: Service) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_of(port, tenant, modelled) as opened:
        yield opened


def client_of(port: int, tenant: Client, modelled: Service) -> openai.AsyncOpenAI:
    base = f"http://127.0.0.1:{port}/openai/v1"
    http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [modelled.check]})
    return openai.AsyncOpenAI(api_key=tenant.key, base_url=base, max_retries=0, http_client=http)


async def create(ai: openai.AsyncOpenAI, given: Any, **more: Any) -> Any:
    return await ai.responses.create(model=CHAT_MODEL, input=given, **more)


async def events_of(ai: openai.AsyncOpenAI, given: Any, **more: Any) -> list[Any]:
    return [event async for event in await create(ai, given, stream=True, **more)]


async def read(ai: openai.AsyncOpenAI, response: str) -> Any:
    return await ai.responses.retrieve(response)


def sent(fake: FakeChat) -> list[tuple[str, Any]]:
    """The role and content of what the model was sent last; of a call its name."""
    return [
        (one["role"], one["tool_calls"][0]["function"]["name"] if one.get("tool_calls") else one["content"])
        for one in fake.chats[-1]["messages"]
    ]


async def listed(tenant: Client) -> list[dict[str, Any]]:
    return (await tenant.get("/v1/conversations")).json()["data"]


async def said(tenant: Client, conversation: str) -> list[tuple[str, Any]]:
    turns = await tenant.history(conversation.removeprefix("conv_"))
    return [(turn["role"], text_of(turn["content"])) for turn in turns]


def text_of(content: Any) -> Any:
    return content if not isinstance(content, list) else "".join(part.get("text", "") for part in content)


def user(text: str) -> Any:
    return {"role": "user", "content": text}


# plain responses


async def test_a_response_is_answered_stored_and_read_again(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    made = await create(
        ai, "I am Ada.", instructions="Be brief.", metadata={"a": "b"}, temperature=0.5, max_output_tokens=99
    )
    assert (made.output_text, made.status, made.object, made.error) == ("Hello.", "completed", "response", None)
    assert made.id.startswith("resp_")
    assert made.output[0].id == f"msg_{made.id.removeprefix('resp_')}"
    assert (made.instructions, made.metadata, made.temperature) == ("Be brief.", {"a": "b"}, 0.5)
    assert (made.usage.input_tokens, made.usage.output_tokens, made.usage.total_tokens) == (20, 10, 30)
    assert sent(fake) == [("system", "Be brief."), ("user", "I am Ada.")]
    asked = fake.chats[-1]
    assert (asked["temperature"], asked["max_tokens"]) == (0.5, 99)
    assert not {"metadata", "store", "instructions", "input", "stream"} & asked.keys()
    assert await read(ai, made.id) == made
    assert await said(tenant, made.conversation.id) == [("user", "I am Ada."), ("assistant", "Hello.")]
    items: Any = (await ai.responses.input_items.list(made.id)).data
    assert [(item.role, item.content[0].text) for item in items] == [("user", "I am Ada.")]


async def test_a_chain_of_responses_is_one_conversation(ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat) -> None:
    fake.replies = [says("Hello Ada."), says("Ada."), says("In Rome.")]
    first = await create(ai, [{"role": "developer", "content": "Be kind."}, user("I am Ada.")], user="ann")
    second = await create(ai, "Who am I?", previous_response_id=first.id, instructions="Be brief.")
    third = await create(ai, "And where?", previous_response_id=second.id)
    assert (second.previous_response_id, third.previous_response_id) == (first.id, second.id)
    assert first.conversation == second.conversation == third.conversation
    # what was said to the developer's model stays, the instructions of one response do not
    assert sent(fake) == [
        ("system", "Be kind."), ("user", "I am Ada."), ("assistant", "Hello Ada."), ("user", "Who am I?"),
        ("assistant", "Ada."), ("user", "And where?"),
    ]  # fmt: skip
    [conversation] = await listed(tenant)
    assert (conversation["owner"], conversation["turn_count"]) == ("ann", 7)
    items: Any = await ai.responses.input_items.list(second.id)
    assert [item.content[0].text for item in items.data] == ["Who am I?"]


async def test_a_turn_whose_writer_is_gone_does_not_keep_a_response_from_its_conversation(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat, modelled: Service
) -> None:
    fake.replies = [says("one"), says("two"), says("three")]
    first = await create(ai, "a")
    left = await opened(tenant, first.conversation.id.removeprefix("conv_"))
    aside = await create(ai, "b", previous_response_id=first.id)
    assert aside.conversation != first.conversation, "the writer may be there"
    await age(modelled, left.id, seconds=10)
    after = await create(ai, "c", previous_response_id=first.id)
    assert after.conversation == first.conversation


async def test_a_response_that_continues_an_older_one_is_in_a_fork(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    fake.replies = [says("one"), says("two"), says("other two"), says("three")]
    first = await create(ai, "a")
    second = await create(ai, "b", previous_response_id=first.id)
    other = await create(ai, "c", previous_response_id=first.id)
    assert other.conversation != first.conversation == second.conversation
    assert sent(fake) == [("user", "a"), ("assistant", "one"), ("user", "c")]
    third = await create(ai, "d", previous_response_id=other.id)
    assert third.conversation == other.conversation
    assert [text for _, text in await said(tenant, second.conversation.id)] == ["a", "one", "b", "two"]
    assert [text for _, text in await said(tenant, third.conversation.id)] == [
        "a", "one", "c", "other two", "d", "three"
    ]  # fmt: skip
    assert (await tenant.get(f"/v1/conversations/{third.conversation.id.removeprefix('conv_')}/verify")).json()["valid"]


async def test_responses_that_continue_one_at_the_same_time_do_not_mix(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    first = await create(ai, "a")
    fake.reply = lambda request: says(f"to {request['messages'][-1]['content']}")
    both = await asyncio.gather(*(create(ai, text, previous_response_id=first.id) for text in ("b", "c", "d")))
    assert len({one.conversation.id for one in both}) == 3
    for one, text in zip(both, ("b", "c", "d"), strict=True):
        assert [told for _, told in await said(tenant, one.conversation.id)] == ["a", "Hello.", text, f"to {text}"]


async def test_a_named_conversation_takes_input_and_output_and_is_not_changed_by_a_chain(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    made = await ai.conversations.create(items=[{"type": "message", "role": "user", "content": "I am Ada."}])
    fake.replies = [says("Hello Ada."), says("aside"), says("again")]
    first = await create(ai, "Hello?", conversation=made.id)
    assert first.conversation.id == made.id
    assert sent(fake) == [("user", "I am Ada."), ("user", "Hello?")]
    aside = await create(ai, "psst", previous_response_id=first.id)
    assert aside.conversation.id != made.id
    second = await create(ai, "Hello?", conversation={"id": made.id})  # the same again is said again
    assert [text for _, text in await said(tenant, made.id)] == [
        "I am Ada.", "Hello?", "Hello Ada.", "Hello?", "again"
    ]  # fmt: skip
    assert second.conversation.id == made.id
    items = [item async for item in ai.conversations.items.list(made.id, order="asc")]
    assert items[-1].id == second.output[0].id


async def test_nothing_is_stored_with_store_false(ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat) -> None:
    made = await create(ai, "hi", store=False)
    assert (made.output_text, made.conversation, made.store) == ("Hello.", None, False)
    with pytest.raises(openai.NotFoundError):
        await read(ai, made.id)
    with pytest.raises(openai.NotFoundError):
        await create(ai, "and?", previous_response_id=made.id)
    assert await listed(tenant) == []
    first = await create(ai, "I am Ada.")
    before = await said(tenant, first.conversation.id)
    for more in ({"previous_response_id": first.id}, {"conversation": first.conversation.id}):
        events = await events_of(ai, "Who am I?", store=False, **more)
        assert events[-1].response.output_text == "Hello."
        assert sent(fake) == [("user", "I am Ada."), ("assistant", "Hello."), ("user", "Who am I?")]
    assert await said(tenant, first.conversation.id) == before
    assert len(await listed(tenant)) == 1


async def test_a_client_that_sends_its_whole_history_stores_nothing_twice(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    headers = {"X-Conversation-Id": "ada-7", "X-Project": "support"}
    history: list[Any] = [{"role": "developer", "content": "Be brief."}]
    fake.replies = [calls(("weather", {"city": "Rome"})), says("Sunny."), says("Bye.")]
    history.append(user("Weather in Rome?"))
    first = await create(ai, history, tools=[WEATHER], extra_headers=headers)
    history += [one.model_dump() for one in first.output]
    history.append({"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sunny"})
    second = await create(ai, history, tools=[WEATHER], extra_headers=headers)
    history += [one.model_dump() for one in second.output] + [user("Thanks.")]
    await create(ai, history, extra_headers=headers)
    [conversation] = await listed(tenant)
    assert (conversation["external_id"], conversation["project"]) == ("ada-7", "support")
    turns = await tenant.history(conversation["id"])
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert sent(fake)[0] == ("system", "Be brief.")
    assert [role for role, _ in sent(fake)] == ["system", "user", "assistant", "tool", "assistant", "user"]


@pytest.mark.slow
async def test_a_long_history_without_a_conversation_is_stored_whole(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    history = [user(f"n {number}") for number in range(1100)]
    made = await create(ai, history, extra_body={"token_budget": 2000})
    [conversation] = await listed(tenant)
    assert conversation["turn_count"] == 1101
    items: list[Any] = [item async for item in ai.responses.input_items.list(made.id, order="asc", limit=100)]
    assert [item.content[0].text for item in items] == [one["content"] for one in history]
    fake.reply = Reply(mode="error")
    with pytest.raises(openai.InternalServerError):
        await create(ai, history)
    assert len(await listed(tenant)) == 1


# tools and formats


async def test_functions_are_called_and_answered(ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat) -> None:
    fake.replies = [calls(("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})), says("Sunny and cold.")]
    first = await create(ai, "Weather?", tools=[WEATHER], tool_choice={"type": "function", "name": "weather"})
    assert [(one.type, one.name, json.loads(one.arguments)["city"]) for one in first.output] == [
        ("function_call", "weather", "Rome"), ("function_call", "weather", "Oslo"),
    ]  # fmt: skip
    function = {name: WEATHER[name] for name in ("name", "description", "parameters", "strict")}
    assert fake.chats[-1]["tools"] == [{"type": "function", "function": function}]
    assert fake.chats[-1]["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    outputs = [
        {"type": "function_call_output", "call_id": one.call_id, "output": text}
        for one, text in zip(first.output, ("sunny", "cold"), strict=True)
    ]
    second = await create(ai, outputs, previous_response_id=first.id, tools=[WEATHER])
    assert second.output_text == "Sunny and cold."
    assert sent(fake) == [("user", "Weather?"), ("assistant", "weather"), ("tool", "sunny"), ("tool", "cold")]
    with pytest.raises(openai.BadRequestError) as refused:
        await create(ai, outputs[:1], previous_response_id=second.id)
    assert (refused.value.code, refused.value.param) == ("tool_call_answered", "input.0.call_id")
    roles = [role for role, _ in await said(tenant, second.conversation.id)]
    assert roles == ["user", "assistant", "tool", "tool", "assistant"]


async def test_custom_tools_have_a_text_as_input(ai: openai.AsyncOpenAI, fake: FakeChat) -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
    call = {"id": "call_9", "type": "custom", "custom": {"name": "shell", "input": "ls -l"}}
    reply = Reply(None, more=(("tool_calls", [call | {"index": 0}]),), finish_reason="tool_calls")
    fake.replies = [reply, reply, says("Done.")]
    tool: Any = {"type": "custom", "name": "shell", "format": grammar}
    first = await create(ai, "list", tools=[tool])
    inner = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x/"}}
    assert fake.chats[-1]["tools"] == [{"type": "custom", "custom": {"name": "shell", "format": inner}}]
    assert [(one.type, one.call_id, one.input) for one in first.output] == [("custom_tool_call", "call_9", "ls -l")]
    events = await events_of(ai, "list", tools=[tool])
    assert "response.custom_tool_call_input.done" in [event.type for event in events]
    assert [one.input for one in events[-1].response.output] == ["ls -l"]
    output: Any = {"type": "custom_tool_call_output", "call_id": "call_9", "output": "a b"}
    assert (await create(ai, [output], previous_response_id=first.id)).output_text == "Done."


class City(BaseModel):
    name: str
    people: int


async def test_an_answer_has_the_format_that_was_asked_for(ai: openai.AsyncOpenAI, fake: FakeChat) -> None:
    fake.replies = [says({"name": "Oslo", "people": 700_000})] * 2
    parsed = await ai.responses.parse(model=CHAT_MODEL, input="Oslo?", text_format=City)
    assert parsed.output_parsed == City(name="Oslo", people=700_000)
    form = fake.chats[-1]["response_format"]
    assert (form["type"], form["json_schema"]["name"], form["json_schema"]["strict"]) == ("json_schema", "City", True)
    async with ai.responses.stream(model=CHAT_MODEL, input="Oslo?", text_format=City) as stream:
        assert (await stream.get_final_response()).output_parsed == City(name="Oslo", people=700_000)


async def test_members_that_are_not_known_here_go_to_the_model(ai: openai.AsyncOpenAI, fake: FakeChat) -> None:
    more: Any = {
        "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "top_p": 0.5, "service_tier": "auto",
        "include": ["reasoning.encrypted_content"], "truncation": "auto", "parallel_tool_calls": False,
    }  # fmt: skip
    made = await create(ai, "hi", extra_body={"top_k": 3}, tools=[WEATHER], **more)
    asked = fake.chats[-1]
    shown = [asked[name] for name in ("reasoning_effort", "verbosity", "top_p", "service_tier", "top_k")]
    assert shown == ["low", "low", 0.5, "auto", 3]
    assert asked["parallel_tool_calls"] is False
    assert (made.service_tier, made.reasoning.effort, made.parallel_tool_calls) == ("auto", "low", False)


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "not_supported"),
        ({"tools": [WEATHER, {"type": "mcp", "server_label": "x"}]}, "tools.1.type", "not_supported"),
        ({"tools": [WEATHER | {"defer_loading": True}]}, "tools.0", "not_supported"),
        ({"tools": [{"type": "function"}]}, "tools.0.name", "invalid_request"),
        ({"tools": [WEATHER], "tool_choice": {"type": "file_search"}}, "tool_choice.type", "not_supported"),
        ({"background": True}, "background", "not_supported"),
        ({"prompt": {"id": "p"}}, "prompt", "not_supported"),
        ({"include": ["message.output_text.logprobs"]}, "include.0", "not_supported"),
        ({"top_logprobs": 2}, "top_logprobs", "not_supported"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options", "not_supported"),
        ({"conversation_id": "x"}, "conversation_id", "not_supported"),
        ({"text": {"format": {"type": "xml"}}}, "text.format", "invalid_request"),
        ({"metadata": {"a": "x" * 513}}, "metadata", "invalid_request"),
        ({"previous_response_id": "resp_x", "conversation": "conv_x"}, "previous_response_id", "invalid_request"),
        ({"input": None}, "input", "invalid_request"),
        ({"input": [{"type": "message"}]}, "input.0.role", "invalid_request"),
        ({"input": [{"role": "user", "content": "a"}, 3]}, "input.1", "invalid_request"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
            "input.0.call_id",
            "tool_call_unknown",
        ),
        ({"store": "no"}, "store", "invalid_request"),
        ({"store": 1}, "store", "invalid_request"),
        ({"stream": "true"}, "stream", "invalid_request"),
        ({"temperature": "1"}, "temperature", "invalid_request"),
        ({"temperature": True}, "temperature", "invalid_request"),
        ({"top_p": "0.5"}, "top_p", "invalid_request"),
        ({"max_output_tokens": "16"}, "max_output_tokens", "invalid_request"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "invalid_request"),
        ({"service_tier": 7}, "service_tier", "invalid_request"),
        ({"safety_identifier": {}}, "safety_identifier", "invalid_request"),
        ({"prompt_cache_key": 7}, "prompt_cache_key", "invalid_request"),
        ({"reasoning": {"effort": 7}}, "reasoning.effort", "invalid_request"),
        ({"text": {"verbosity": 7}}, "text.verbosity", "invalid_request"),
        ({"metadata": {"a": 1}}, "metadata", "invalid_request"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_its_field(
    more: dict[str, Any], param: str, code: str, tenant: Client, fake: FakeChat
) -> None:
    response = await tenant.post(PATH, json={"model": "m", "input": "quokka"} | more)
    assert (response.status_code, response.json()["error"]["code"]) == (400, code), response.text
    assert response.json()["error"]["param"].startswith(param), response.text
    assert "quokka" not in response.text
    assert fake.chats == []
    assert await listed(tenant) == []


async def test_too_long_a_text_is_named(tenant: Client, fake: FakeChat) -> None:
    output = {"type": "function_call_output", "call_id": "c"}
    for sent, param in ((LONG, "input"), ([user("a"), output | {"output": LONG}], "input.1.output")):
        refused = await tenant.post(PATH, json={"model": "m", "input": sent})
        assert (refused.status_code, refused.json()["error"]["param"]) == (413, param)
    assert fake.chats == []


async def test_unknown_responses_and_conversations_are_not_found(tenant: Client, fake: FakeChat) -> None:
    never = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    for body in (
        {"previous_response_id": f"resp_{never}"}, {"previous_response_id": "nothing"}, {"conversation": "nothing"},
        {"conversation": f"conv_{never}"}, {"input": [{"type": "item_reference", "id": f"msg_{never}"}]},
    ):  # fmt: skip
        problem(await tenant.post(PATH, json={"input": "hi"} | body), 404, "not_found")
    for path in (f"resp_{never}", "nothing", f"resp_{never}/input_items", "x/input_items"):
        problem(await tenant.get(f"{PATH}/{path}"), 404, "not_found")
    problem(await tenant.delete(f"{PATH}/resp_{never}"), 404, "not_found")
    problem(await tenant.post(f"{PATH}/resp_{never}/cancel"), 404, "not_found")
    assert fake.chats == []


async def test_a_reference_stands_for_a_stored_item(ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat) -> None:
    fake.replies = [says("Hello Ada."), says("Ada."), says("Ada!")]
    first = await create(ai, "I am Ada.")
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    second = await create(ai, [user("I am Ada."), reference, user("Who am I?")])
    assert sent(fake) == [("user", "I am Ada."), ("assistant", "Hello Ada."), ("user", "Who am I?")]
    # in its own conversation the model has it already
    third = await create(ai, [reference, user("Who am I?")], previous_response_id=first.id)
    assert sent(fake) == [("user", "I am Ada."), ("assistant", "Hello Ada."), ("user", "Who am I?")]
    assert [len(await said(tenant, one.conversation.id)) for one in (second, third)] == [4, 4]


async def test_turns_that_do_not_fit_are_left_out_unless_truncation_is_disabled(
    ai: openai.AsyncOpenAI, fake: FakeChat
) -> None:
    made = await ai.conversations.create(
        items=[{"type": "message", "role": "user", "content": "word " * 300} for _ in range(20)]
    )
    budget = {"token_budget": 1000}
    with pytest.raises(openai.BadRequestError) as refused:
        await create(ai, "hi", conversation=made.id, truncation="disabled", extra_body=budget)
    assert (refused.value.code, refused.value.param) == ("budget_too_small", "truncation")
    assert fake.chats == []
    assert (await create(ai, "hi", conversation=made.id, extra_body=budget)).status == "completed"


# events


TEXT_EVENTS = [
    "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    "response.output_text.delta", "response.output_text.delta", "response.output_text.delta",
    "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
]  # fmt: skip


async def test_events_come_in_order_and_with_numbers(ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat) -> None:
    fake.reply = says("Hello dear Ada.")
    events = await events_of(ai, "I am Ada.")
    assert [event.type for event in events] == TEXT_EVENTS
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.delta for event in events if event.type.endswith("delta")] == ["Hello", " dear", " Ada."]
    created, last = events[0].response, events[-1].response
    assert (created.status, created.output, last.status) == ("in_progress", [], "completed")
    assert (created.id, created.conversation, created.created_at) == (last.id, last.conversation, last.created_at)
    assert events[2].item.id == events[9].item.id == last.output[0].id
    assert await read(ai, last.id) == last
    assert await said(tenant, last.conversation.id) == [("user", "I am Ada."), ("assistant", "Hello dear Ada.")]


async def test_a_text_and_calls_are_items_one_after_the_other(ai: openai.AsyncOpenAI, fake: FakeChat) -> None:
    fake.reply = Reply(
        "Let me see.", tool_calls=(("call_a", "weather", '{"city": "Rome"}'), ("call_b", "weather", '{"city": "Oslo"}'))
    )
    events = await events_of(ai, "Weather?", tools=[WEATHER])
    items = [(event.type.rpartition(".")[2], event.item.type, event.output_index)
             for event in events if "output_item" in event.type]  # fmt: skip
    assert items == [
        ("added", "message", 0), ("done", "message", 0), ("added", "function_call", 1), ("done", "function_call", 1),
        ("added", "function_call", 2), ("done", "function_call", 2),
    ]  # fmt: skip
    done = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
    deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert done == ['{"city": "Rome"}', '{"city": "Oslo"}']
    assert ["".join(one.delta for one in deltas if one.output_index == index) for index in (1, 2)] == done
    last = events[-1].response
    assert [one.id for one in last.output] == [event.item.id for event in events if event.type.endswith("item.done")]
    assert (await read(ai, last.id)).output == last.output


async def test_the_clients_own_accumulation_agrees_with_what_is_stored(ai: openai.AsyncOpenAI, fake: FakeChat) -> None:
    fake.reply = Reply("So:", tool_calls=(("call_a", "weather", '{"city": "Rome"}'),))
    async with ai.responses.stream(model=CHAT_MODEL, input="Weather?", tools=[WEATHER]) as stream:
        final: Any = await stream.get_final_response()
    assert [one.type for one in final.output] == ["message", "function_call"]
    stored = await read(ai, final.id)
    ids = [(one.id, one.type) for one in final.output]
    assert [(one.id, one.type) for one in stored.output] == ids
    assert (final.output_text, final.output[1].arguments) == ("So:", '{"city": "Rome"}')


async def test_a_refusal_and_an_early_end_are_shown(ai: openai.AsyncOpenAI, fake: FakeChat) -> None:
    refused = Reply(None, more=(("refusal", "I cannot help."),))
    cut_short = [Reply("The answer", finish_reason="length"), Reply("No", finish_reason="content_filter")]
    fake.replies = [refused, refused, *cut_short]
    plain, streamed = await create(ai, "x"), (await events_of(ai, "x"))
    for response in (plain, streamed[-1].response, await read(ai, plain.id)):
        assert [(part.type, part.refusal) for part in response.output[0].content] == [("refusal", "I cannot help.")]
    assert [event.type for event in streamed if "refusal" in event.type][-1] == "response.refusal.done"
    cut = await create(ai, "x")
    assert (cut.status, cut.incomplete_details.reason, cut.output[0].status) == (
        "incomplete", "max_output_tokens", "incomplete"
    )  # fmt: skip
    events = await events_of(ai, "x")
    assert (events[-1].type, events[-1].response.incomplete_details.reason) == ("response.incomplete", "content_filter")


@pytest.mark.parametrize("reply", [Reply("Hello dear Ada", breaks_after=3), Reply("Hello dear Ada", stops_after=3)])
async def test_an_answer_that_breaks_off_is_a_failed_response_with_its_text(
    reply: Reply, ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    fake.reply = reply
    events = await events_of(ai, "hi")
    last = events[-1].response
    assert (events[-1].type, last.status, last.error.code) == ("response.failed", "failed", "server_error")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    stored = await read(ai, last.id)
    assert (stored.status, stored.output_text, stored.output[0].status) == ("failed", "Hello dear", "incomplete")
    assert await said(tenant, last.conversation.id) == []
    with pytest.raises(openai.ConflictError) as refused:
        await create(ai, "more", previous_response_id=last.id)
    assert refused.value.code == "response_unfinished"


async def test_an_error_before_the_answer_keeps_its_status_and_leaves_nothing(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    first = await create(ai, "a")
    fake.reply = Reply(mode="rate_limited")
    for more in ({}, {"previous_response_id": first.id}, {"stream": True}):
        with pytest.raises(openai.RateLimitError):
            await create(ai, "b", **more)
    fake.reply = says("two")
    await create(ai, "b", previous_response_id=first.id)
    fake.reply = Reply(mode="rate_limited")
    with pytest.raises(openai.RateLimitError):
        await create(ai, "c", previous_response_id=first.id)  # in a fork, which goes again
    [conversation] = await listed(tenant)
    assert conversation["turn_count"] == 4


# read while it is written


def numbered(events: list[Any]) -> list[tuple[int, str, Any]]:
    return [(event.sequence_number, event.type, getattr(event, "delta", None)) for event in events]


@pytest.mark.parametrize("piece", [1, 7, 500])
async def test_a_response_is_followed_by_its_id_from_any_event_on(
    piece: int, ai: openai.AsyncOpenAI, fake: FakeChat
) -> None:
    fake.reply = Reply(
        "A longer answer,  with\n\nspaces and areallyverylongword" * 3, piece=piece,
        tool_calls=(("call_a", "weather", '{"city": "Rome", "days": [1, 2, 3]}'),),
    )  # fmt: skip
    events = await events_of(ai, "Weather?", tools=[WEATHER])
    response = events[-1].response.id
    again = await read_all(await ai.responses.retrieve(response, stream=True))
    assert numbered(again) == numbered(events)
    assert again[-1].response == events[-1].response
    for after in (0, 3, 9, len(events) - 2, len(events)):
        rest = await read_all(await ai.responses.retrieve(response, stream=True, starting_after=after))
        assert numbered(rest) == numbered(events)[after + 1 :]


async def test_a_response_in_progress_is_followed_to_its_end(
    ai: openai.AsyncOpenAI,
    tenant: Client,
    port: int,
    modelled: Service,
    fake: FakeChat,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fake, "may_go_on", asyncio.Event())
    fake.reply = Reply("one two three four five six seven eight nine ten", piece=4, stops_after=6)
    stream = await create(ai, "count", stream=True)
    events: list[Any] = [await anext(stream) for _ in range(7)]
    response = events[0].response.id
    assert (await read(ai, response)).status == "in_progress"
    async with client_of(port, tenant, modelled) as another:
        following = asyncio.create_task(read_all(await another.responses.retrieve(response, stream=True)))
        rest = asyncio.create_task(read_all(await another.responses.retrieve(response, stream=True, starting_after=5)))
        fake.may_go_on.set()
        events += [event async for event in stream]
        assert numbered(await following) == numbered(events)
        assert numbered(await rest) == numbered(events)[6:]
    assert following.result()[-1].response == events[-1].response


async def read_all(stream: Any) -> list[Any]:
    return [event async for event in stream]


async def test_a_response_is_cancelled_from_elsewhere(
    ai: openai.AsyncOpenAI, tenant: Client, port: int, modelled: Service, fake: FakeChat
) -> None:
    fake.reply = Reply("one two three", piece=4, stops_after=3)
    stream = await create(ai, "count", stream=True)
    events: list[Any] = [await anext(stream) for _ in range(5)]
    async with client_of(port, tenant, modelled) as another:
        cancelled = await another.responses.cancel(events[0].response.id)
        assert (cancelled.status, cancelled.output_text) == ("cancelled", "one two ")
        assert await another.responses.cancel(cancelled.id) == cancelled
    events += [event async for event in stream]
    assert (events[-1].type, events[-1].response.status) == ("response.failed", "cancelled")
    assert await said(tenant, cancelled.conversation.id) == []
    done = await create(ai, "again", store=True)
    with pytest.raises(openai.ConflictError) as refused:
        await ai.responses.cancel(done.id)
    assert refused.value.code == "response_ended"


async def test_another_process_follows_a_response_and_cancels_it(
    ai: openai.AsyncOpenAI, tenant: Client, modelled: Service, fake: FakeChat, tmp_path: Path
) -> None:
    fake.reply = Reply("one two three four five six seven eight " * 50, piece=4, pause_s=0.2)
    async with (
        open_modelled(modelled, fake, tmp_path) as there,
        serving(there.app, there.settings) as other_port,
        client_of(other_port, tenant, there) as another,
    ):
        stream = await create(ai, "count", stream=True)
        events: list[Any] = [await anext(stream) for _ in range(5)]
        response = events[0].response.id
        following = asyncio.create_task(read_all(await another.responses.retrieve(response, stream=True)))
        events += [await anext(stream) for _ in range(2)]
        assert (await another.responses.cancel(response)).status == "cancelled"
        events += [event async for event in stream]
        seen = await following
    assert (events[-1].type, events[-1].response.status) == ("response.failed", "cancelled")
    assert (seen[-1].type, seen[-1].response.status) == ("response.failed", "cancelled")
    shared = min(len(events), len(seen)) - 1
    assert numbered(seen)[:shared] == numbered(events)[:shared]
    assert await said(tenant, events[0].response.conversation.id) == []


async def test_what_was_said_is_kept_when_the_client_goes(ai: openai.AsyncOpenAI, fake: FakeChat) -> None:
    fake.reply = Reply("one two three", piece=4, stops_after=3)
    stream = await create(ai, "count", stream=True)
    events: list[Any] = [await anext(stream) for _ in range(5)]
    await stream.close()
    response = events[0].response.id

    async def is_over() -> bool:
        return (await read(ai, response)).status != "in_progress"

    await until(is_over)
    left = await read(ai, response)
    assert (left.status, left.output_text) == ("cancelled", "one two ")
    followed = await read_all(await ai.responses.retrieve(response, stream=True))
    assert (followed[-1].type, followed[-1].response.status) == ("response.failed", "cancelled")


# repeated requests


async def test_a_repeated_request_is_answered_once(tenant: Client, fake: FakeChat) -> None:
    first = (await tenant.post(PATH, json={"input": "a"}, headers={"Idempotency-Key": "one"})).json()
    fake.reply = says("other")
    for more in ({}, {"previous_response_id": first["id"]}, {"conversation": first["conversation"]["id"]}):
        body, headers = {"input": "b", "model": CHAT_MODEL} | more, {"Idempotency-Key": f"key {sorted(more)}"}
        count = len(fake.chats)
        answers = [await tenant.post(PATH, json=body, headers=headers) for _ in range(2)]
        assert answers[0].json() == answers[1].json()
        assert [answer.headers.get("idempotent-replayed") for answer in answers] == [None, "true"]
        assert len(fake.chats) == count + 1
        problem(await tenant.post(PATH, json=body | {"input": "c"}, headers=headers), 409, "idempotency_mismatch")
    streamed = [
        (await tenant.post(PATH, json={"input": "s", "stream": True}, headers={"Idempotency-Key": "s"})).text
        for _ in range(2)
    ]
    assert streamed[0] == streamed[1]
    body, headers = {"input": "late", "previous_response_id": first["id"]}, {"Idempotency-Key": "late"}
    late = (await tenant.post(PATH, json=body, headers=headers)).json()
    assert (await tenant.delete(f"{PATH}/{first['id']}")).is_success
    assert (await tenant.post(PATH, json=body, headers=headers)).json() == late
    refused = {"input": "a", "store": False}
    problem(await tenant.post(PATH, json=refused, headers={"Idempotency-Key": "n"}), 400, "invalid_request")


# deletion


async def test_a_deleted_response_is_gone_with_what_was_stored_for_it_alone(
    ai: openai.AsyncOpenAI, tenant: Client
) -> None:
    first = await create(ai, "a secret")
    second = await create(ai, "b", previous_response_id=first.id)
    await ai.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await read(ai, first.id)
    assert await said(tenant, second.conversation.id) == [
        ("user", None), ("assistant", None), ("user", "b"), ("assistant", "Hello.")
    ]  # fmt: skip
    forked = await create(ai, "c", previous_response_id=second.id)
    await ai.responses.delete(second.id)
    await ai.responses.delete(forked.id)
    assert await listed(tenant) == []


async def test_the_turns_of_a_named_conversation_outlive_its_responses(ai: openai.AsyncOpenAI, tenant: Client) -> None:
    made = await ai.conversations.create()
    response = await create(ai, "a", conversation=made.id)
    request_id = format_id(new_uuid())
    answer = await tenant.delete(f"{PATH}/{response.id}", headers={"X-Request-Id": request_id})
    assert answer.json() == {"id": response.id, "object": "response", "deleted": True}
    problem(await tenant.get(f"{PATH}/{response.id}"), 404, "not_found")
    problem(await tenant.delete(f"{PATH}/{response.id}"), 404, "not_found")
    assert await said(tenant, made.id) == [("user", "a"), ("assistant", "Hello.")]
    [entry] = (await tenant.get("/v1/admin/audit", params={"action": "responses.delete"})).json()["data"]
    assert (entry["request_id"], entry["object_id"]) == (request_id, response.id.removeprefix("resp_"))


async def test_a_response_goes_with_its_answer_and_with_its_conversation(
    ai: openai.AsyncOpenAI, tenant: Client
) -> None:
    first, second = await create(ai, "a"), await create(ai, "b")
    await ai.conversations.items.delete(first.output[0].id, conversation_id=first.conversation.id)
    await ai.conversations.delete(second.conversation.id)
    for one in (first, second):
        problem(await tenant.get(f"{PATH}/{one.id}"), 404, "not_found")
        problem(await tenant.post(PATH, json={"input": "c", "previous_response_id": one.id}), 404, "not_found")
        problem(await tenant.get(f"{PATH}/{one.id}/input_items"), 404, "not_found")


async def test_an_edited_answer_is_continued_as_it_was_edited(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    first = await create(ai, "a")
    conversation, turn = first.conversation.id.removeprefix("conv_"), first.id.removeprefix("resp_")
    path = f"/v1/conversations/{conversation}/turns/{turn}/revisions"
    assert (await tenant.post(path, json={"content": "edited"})).is_success
    second = await create(ai, "b", previous_response_id=first.id)
    assert sent(fake) == [("user", "a"), ("assistant", "edited"), ("user", "b")]
    assert second.conversation == first.conversation
    assert (await read(ai, first.id)).output_text == "Hello."


@pytest.mark.slow
async def test_an_import_under_new_ids_keeps_what_responses_are(
    ai: openai.AsyncOpenAI, tenant: Client, modelled: Service, port: int
) -> None:
    first = await create(ai, "I am Ada.", instructions="Be brief.", metadata={"a": "b"})
    second = await create(ai, "Who am I?", previous_response_id=first.id)
    lines = (await tenant.post("/v1/export", json={})).content
    async with await modelled.new_tenant() as other, client_of(port, other, modelled) as there:
        taken = await other.conversation(id=first.conversation.id.removeprefix("conv_"))
        await other.append(taken, "mine")
        assert (await other.post("/v1/import", content=lines)).status_code == 202
        await modelled.run_jobs()
        [copied] = [one["id"] for one in await listed(other) if one["id"] != taken]
        answers = [turn["id"] for turn in await other.history(copied) if turn["role"] == "assistant"]
        stored = [await read(there, f"resp_{turn}") for turn in answers]
        assert [(one.instructions, one.metadata, one.output_text) for one in stored] == [
            ("Be brief.", {"a": "b"}, "Hello."), (None, {}, "Hello."),
        ]  # fmt: skip
        assert stored[1].previous_response_id == stored[0].id
        items: Any = (await there.responses.input_items.list(stored[1].id)).data
        assert [item.content[0].text for item in items] == ["Who am I?"]
        third = await create(there, "And now?", previous_response_id=stored[1].id)
        assert third.conversation.id == f"conv_{copied}"
    assert second.id not in answers


# isolation


async def test_two_tenants_with_the_same_ids_have_responses_of_their_own(
    ai: openai.AsyncOpenAI, tenant: Client, modelled: Service, port: int
) -> None:
    first = await create(ai, "the quokka sleeps")
    lines = (await tenant.post("/v1/export", json={})).content
    async with await modelled.new_tenant() as other, client_of(port, other, modelled) as there:
        for path in (first.id, f"{first.id}/input_items"):
            problem(await other.get(f"{PATH}/{path}"), 404, "not_found")
        problem(await other.get(f"{PATH}/{first.id}", params={"stream": "true"}), 404, "not_found")
        for body in (
            {"previous_response_id": first.id}, {"conversation": first.conversation.id},
            {"input": [{"type": "item_reference", "id": first.output[0].id}]},
        ):  # fmt: skip
            problem(await other.post(PATH, json={"input": "hi"} | body), 404, "not_found")
        problem(await other.delete(f"{PATH}/{first.id}"), 404, "not_found")
        problem(await other.post(f"{PATH}/{first.id}/cancel"), 404, "not_found")
        assert (await other.post("/v1/import", content=lines)).status_code == 202
        await modelled.run_jobs()
        same = await read(there, first.id)
        assert same.to_dict() == first.to_dict()
        mine = await create(there, "mine", previous_response_id=first.id)
        assert mine.conversation.id == first.conversation.id
        await there.responses.delete(first.id)
        assert len(await said(other, first.conversation.id)) == 4
    assert (await read(ai, first.id)).output_text == "Hello."
    assert len(await said(tenant, first.conversation.id)) == 2


async def test_a_key_without_read_creates_no_response(tenant: Client, modelled: Service) -> None:
    key = await modelled.container.tenancy.create_key(tenant.tenant_id, name="w", scopes=[Scope.WRITE])
    async with modelled.client(str(key)) as blind:
        problem(await blind.post(PATH, json={"input": "hi", "store": False}), 403, "forbidden")


async def test_the_synchronous_client_too(port: int, tenant: Client, fake: FakeChat) -> None:
    fake.reply = says("Hello dear Ada.")

    def talk() -> tuple[str, list[str], str]:
        with openai.OpenAI(api_key=tenant.key, base_url=f"http://127.0.0.1:{port}/openai/v1") as ai:
            made = ai.responses.create(model=CHAT_MODEL, input="hi")
            with ai.responses.stream(model=CHAT_MODEL, input="hi", previous_response_id=made.id) as stream:
                types = [event.type for event in stream]
                final = stream.get_final_response()
            return made.output_text, types, ai.responses.retrieve(final.id).output_text

    assert await asyncio.to_thread(talk) == ("Hello dear Ada.", TEXT_EVENTS, "Hello dear Ada.")


def deep(levels: int) -> Any:
    return "x" if levels == 0 else [deep(levels - 1)]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "invalid_request"),
        ({"input": [{"role": "user", "content": [{"type": "turnkeep.given", "format": "openai"}]}]}, "invalid_request"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "invalid_request"),
        ({"input": deep(40)}, "json_too_deep"),
        ({"input": "a\x00b"}, "text_not_storable"),
        ({"input": "x", "instructions": "a\x00b"}, "text_not_storable"),
        ({"input": "x", "tools": [WEATHER | {"description": "a\x00b"}]}, "text_not_storable"),
        ({"input": "x", "user": "x" * 300}, "invalid_request"),
        ({"input": "x", "tools": [WEATHER] * 501}, "invalid_request"),
        ({"input": [user("x")] * 10_001}, "invalid_request"),
        ({"input": "x", "metadata": {str(number): "x" for number in range(17)}}, "invalid_request"),
        ({"input": [{"type": "function_call_output", "call_id": "never", "output": "x"}]}, "tool_call_unknown"),
        ({"input": "x", "context": {"recent_turns": 0}}, "invalid_request"),
        ({"input": "x", "token_budget": 3}, "budget_too_small"),
    ],
)
async def test_hostile_input_is_refused_and_stores_nothing(
    body: dict[str, Any], code: str, tenant: Client, fake: FakeChat
) -> None:
    response = await tenant.post(PATH, json=body)
    assert (response.status_code, response.json()["code"]) == (400, code), response.text
    assert await listed(tenant) == []
    assert fake.chats == []
