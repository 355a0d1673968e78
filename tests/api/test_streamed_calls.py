"""Tool calls of endpoints that stream them in their own ways: what is stored, and what the model is sent next."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Client, Service, open_service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply

CHAT, RESPONSES = "/openai/v1/chat/completions", "/openai/v1/responses"
ONE = {"id": "call_one", "type": "function", "function": {"name": "one", "arguments": '{"one": 1}'}}
TWO = {"id": "call_two", "type": "function", "function": {"name": "two", "arguments": '{"two": 2}'}}


def streamed(*deltas: list[dict[str, Any]]) -> Reply:
    return Reply(None, more=tuple(("tool_calls", delta) for delta in deltas), finish_reason="tool_calls")


def piece(call_id: Any = None, name: Any = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    body = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {**({} if call_id is None else {"id": call_id}), "function": body} | more


def whole(call: dict[str, Any], **more: Any) -> dict[str, Any]:
    return call | more


WAYS: dict[str, list[list[dict[str, Any]]]] = {
    "without index": [[ONE], [TWO]],
    "without index, in one delta": [[ONE, TWO]],
    "index null": [[whole(ONE, index=None)], [whole(TWO, index=None)]],
    "index 0 for all": [[whole(ONE, index=0)], [whole(TWO, index=0)]],
    "index from 1": [[whole(ONE, index=1)], [whole(TWO, index=2)]],
    "index as text": [[whole(ONE, index="0")], [whole(TWO, index="1")]],
    "without index, arguments later": [
        [piece("call_one", "one", "")], [piece(arguments='{"one"')], [piece(arguments=": 1}")],
        [piece("call_two", "two")], [piece(arguments='{"two": ')], [piece("", "", "2}")],
    ],
    "id in each delta": [
        [piece("call_one", "one", '{"one": ')], [piece("call_one", "one", "1}")],
        [piece("call_two", "two", '{"two": ')], [piece("call_two", "two", "2}")],
    ],
    "id in each delta, in turns": [
        [piece("call_one", "one", '{"one": ')], [piece("call_two", "two", '{"two": ')],
        [piece("call_one", arguments="1}")], [piece("call_two", arguments="2}")],
    ],
    "index 0 for all, id in each delta, in turns": [
        [piece("call_one", "one", '{"one": ', index=0)], [piece("call_two", "two", '{"two": ', index=0)],
        [piece("call_one", arguments="1}", index=0)], [piece("call_two", arguments="2}", index=0)],
    ],
    "with index, in turns": [
        [piece("call_one", "one", index=0), piece("call_two", "two", index=1)],
        [piece(None, None, '{"one"', index=0), piece(None, None, '{"two"', index=1)],
        [piece(arguments=": 1}", index=0), piece(arguments=": 2}", index=1)],
    ],
    "index later": [
        [piece("call_one", "one", '{"one": ')], [piece(arguments="1}", index=0)],
        [piece("call_two", "two", '{"two": ')], [piece(arguments="2}")],
    ],
    "name in pieces": [
        [piece("call_one", "o", index=0)], [piece(None, "ne", index=0)], [piece(None, None, '{"one": 1}', index=0)],
        [piece("call_two", "t", index=1)], [piece(None, "wo", '{"two": 2}', index=1)],
    ],
    "name grows": [
        [piece("call_one", "o")], [piece("call_one", "one", '{"one": 1}')], [piece("call_two", "two", '{"two": 2}')],
    ],
}  # fmt: skip


OF_RESPONSES = ("without index", "index 0 for all", "with index, in turns", "name in pieces")


def results(*calls: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": call["id"], "content": f"of {call['id']}"} for call in calls]


def calls_in(messages: list[dict[str, Any]]) -> list[Any]:
    return [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for message in messages
        for call in message.get("tool_calls", ())
    ]


EXPECTED = [("call_one", "one", {"one": 1}), ("call_two", "two", {"two": 2})]


@pytest.mark.parametrize(
    ("route", "way"),
    [("chat", way) for way in WAYS] + [("generate", "without index"), *[("responses", way) for way in OF_RESPONSES]],
)
async def test_calls_are_stored_apart_in_each_way_of_streaming_them(
    tenant: Client, fake: FakeChat, route: str, way: str
) -> None:
    conversation = await tenant.conversation()
    fake.replies = [streamed(*WAYS[way])]
    ask = {"role": "user", "content": "Call both."}
    match route:
        case "chat":
            body = {"model": CHAT_MODEL, "messages": [ask], "conversation_id": conversation, "stream": True}
            response = await tenant.post(CHAT, json=body)
        case "generate":
            body = {"messages": [ask], "conversation_id": conversation, "stream": True}
            response = await tenant.post("/v1/generate", json=body)
        case _:
            body = {"model": CHAT_MODEL, "input": [ask], "conversation": conversation, "stream": True}
            response = await tenant.post(RESPONSES, json=body)
    assert response.status_code == 200, response.text
    turns = await tenant.history(conversation)
    assert calls_in(turns) == EXPECTED
    if route == "responses":
        done = [
            item["item"]
            for line in response.text.split("\n")
            if line.startswith("data: {") and (item := json.loads(line[6:]))["type"] == "response.output_item.done"
        ]
        assert [(item["call_id"], item["name"], json.loads(item["arguments"])) for item in done] == EXPECTED
    history = [ask, {"role": "assistant", "content": None, "tool_calls": [ONE, TWO]}, *results(TWO, ONE)]
    body = {"model": CHAT_MODEL, "messages": history, "conversation_id": conversation}
    assert (await tenant.post(CHAT, json=body)).status_code == 200
    assert calls_in(fake.chats[-1]["messages"]) == EXPECTED
    assert [m["content"] for m in fake.chats[-1]["messages"][-2:]] == ["of call_one", "of call_two"]
    assert len(await tenant.history(conversation)) == 5


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_function_call_of_the_older_form_is_a_call_and_its_result_is_paired(
    tenant: Client, fake: FakeChat, *, is_streamed: bool
) -> None:
    conversation = await tenant.conversation()
    called = {"name": "weather", "arguments": '{"city": "Kiel"}'}
    parts = (
        [{"name": "weather", "arguments": ""}, {"arguments": '{"city": '}, {"arguments": '"Kiel"}'}]
        if is_streamed
        else [called]
    )
    fake.replies = [Reply(None, more=tuple(("function_call", part) for part in parts), finish_reason="function_call")]
    ask: dict[str, Any] = {"role": "user", "content": "Weather?"}
    body: dict[str, Any] = {"model": CHAT_MODEL, "messages": [ask], "conversation_id": conversation}
    assert (await tenant.post(CHAT, json=body | {"stream": is_streamed})).status_code == 200
    history = [
        ask, {"role": "assistant", "content": None, "function_call": called},
        {"role": "function", "name": "weather", "content": "rain"},
    ]  # fmt: skip
    response = await tenant.post(CHAT, json=body | {"messages": history})
    assert response.status_code == 200, response.text
    assert calls_in(fake.chats[-1]["messages"]) == [("call_weather", "weather", {"city": "Kiel"})]
    assert fake.chats[-1]["messages"][-1] == {"role": "tool", "tool_call_id": "call_weather", "content": "rain"}
    assert len(await tenant.history(conversation)) == 4


async def test_calls_without_ids_get_ids_of_their_own(tenant: Client, fake: FakeChat) -> None:
    conversation = await tenant.conversation()
    fake.replies = [streamed([piece("", "one", "{}", index=0)], [piece(None, "one", "{}", index=1)])]
    body = {"model": CHAT_MODEL, "messages": [{"role": "user", "content": "x"}], "conversation_id": conversation}
    assert (await tenant.post(CHAT, json=body | {"stream": True})).status_code == 200
    assert [call["id"] for call in (await tenant.history(conversation))[1]["tool_calls"]] == ["call_one", "call_one_1"]


def asked(conversation: str, *messages: dict[str, Any]) -> dict[str, Any]:
    return {"model": CHAT_MODEL, "messages": list(messages), "conversation_id": conversation}


USER: dict[str, Any] = {"role": "user", "content": "Call both."}
CALLING: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [ONE, TWO]}


@pytest.mark.parametrize("stored", [{"content": "I call."}, {"content": None, "tool_calls": [ONE]}])
@pytest.mark.parametrize("route", ["chat", "generate", "responses"])
async def test_results_of_calls_that_only_the_client_has_do_not_stop_the_conversation(
    tenant: Client, fake: FakeChat, route: str, stored: dict[str, Any]
) -> None:
    conversation = await tenant.conversation()
    await tenant.append(conversation, USER, {"role": "assistant", **stored})
    for more in ([], [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "And now?"}]):
        history = [USER, CALLING, *results(ONE, TWO), *more]
        if route == "chat":
            response = await tenant.post(CHAT, json=asked(conversation, *history))
        elif route == "generate":
            response = await tenant.post("/v1/generate", json={"messages": history, "conversation_id": conversation})
        else:
            given = [item for message in history for item in as_items(message)]
            response = await tenant.post(
                RESPONSES, json={"model": CHAT_MODEL, "input": given}, headers={"X-Conversation-Id": conversation}
            )
        assert response.status_code == 200, response.text
        assert calls_in(fake.chats[-1]["messages"]) == EXPECTED
        sent = [m["content"] for m in fake.chats[-1]["messages"] if m["role"] == "tool"]
        assert sent == ["of call_one", "of call_two"]


def as_items(message: dict[str, Any]) -> list[dict[str, Any]]:
    if message["role"] == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}]
    return [
        {"type": "function_call", "call_id": call["id"], **call["function"]} for call in message.get("tool_calls", ())
    ] or [message]


async def test_a_result_without_any_call_stops_only_the_request_that_ends_with_it(
    tenant: Client, fake: FakeChat
) -> None:
    conversation = await tenant.conversation()
    lost = {"role": "tool", "tool_call_id": "call_lost", "content": "found"}
    for path, body, pointer in [
        (CHAT, asked(conversation, USER, lost), "/messages/1/tool_call_id"),
        ("/v1/generate", {"messages": [USER, lost], "conversation_id": conversation}, "/messages/1/tool_call_id"),
        (
            f"/v1/conversations/{conversation}/turns",
            {"turns": [USER, lost, {"role": "user", "content": "So?"}]},
            "/turns/1/tool_call_id",
        ),
    ]:
        response = await tenant.post(path, json=body)
        assert response.status_code in {400, 422}, response.text
        assert response.json()["code"] == "tool_call_unknown"
        [error] = response.json()["errors"]
        assert (error["pointer"], error["detail"]) == (pointer, UNCALLED)
    assert fake.chats == []
    response = await tenant.post(CHAT, json=asked(conversation, USER, lost, {"role": "user", "content": "So?"}))
    assert response.status_code == 200, response.text
    assert [m["content"] for m in fake.chats[-1]["messages"]] == ["Call both.", "So?"]
    again = asked(
        conversation, USER, lost, {"role": "user", "content": "So?"}, {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Go on."},
    )  # fmt: skip
    assert (await tenant.post(CHAT, json=again)).status_code == 200
    assert [m["content"] for m in fake.chats[-1]["messages"]] == ["Call both.", "So?", "Hello.", "Go on."]
    assert [turn["role"] for turn in await tenant.history(conversation)] == [
        "user", "tool", "user", "assistant", "user", "assistant",
    ]  # fmt: skip


UNCALLED = (
    "No turn before it made this call. Send the assistant's message that made it before the result, or leave the"
    " result out."
)


async def test_a_result_is_paired_with_its_call_despite_spaces_around_the_id(tenant: Client, fake: FakeChat) -> None:
    conversation = await tenant.conversation()
    padded = {**ONE, "id": " call_one"}
    await tenant.append(conversation, USER, {"role": "assistant", "tool_calls": [padded]})
    await tenant.append(conversation, {"role": "tool", "tool_call_id": "call_one\n", "content": "first"})
    context = await tenant.context(conversation, 4000, format="openai")
    assert [m["role"] for m in context["messages"]] == ["user", "assistant", "tool"]
    assert context["messages"][1]["tool_calls"][0]["id"] == context["messages"][2]["tool_call_id"]
    again = await tenant.post(
        f"/v1/conversations/{conversation}/turns",
        json={"turns": [{"role": "tool", "tool_call_id": "call_one ", "content": "second"}]},
    )
    assert again.json()["code"] == "tool_call_answered"
    history = [USER, {"role": "assistant", "content": None, "tool_calls": [padded]}]
    history += [{"role": "tool", "tool_call_id": "call_one", "content": "first"}, {"role": "user", "content": "And?"}]
    assert (await tenant.post(CHAT, json=asked(conversation, *history))).status_code == 200
    assert [m["role"] for m in fake.chats[-1]["messages"]] == ["user", "assistant", "tool", "user"]
    assert len(await tenant.history(conversation)) == 5


SIGNATURE = {"google": {"thought_signature": "CsIB"}}
STEPS: list[dict[str, Any]] = [
    {"type": "reasoning.text", "text": "I look ", "index": 0, "signature": None},
    {"type": "reasoning.text", "text": "it up.", "index": 0, "signature": "s1"},
    {"type": "reasoning.encrypted", "data": "eJw=", "index": 1},
]
AUDIO: list[dict[str, Any]] = [
    {"id": "audio_1", "data": "QUJD", "transcript": "Let me "},
    {"data": "REVG", "transcript": "see."},
    {"expires_at": 1_900_000_000},
]


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("route", ["chat", "generate"])
async def test_what_only_the_provider_reads_comes_back_to_it(
    tenant: Client, fake: FakeChat, route: str, *, is_streamed: bool
) -> None:
    conversation = await tenant.conversation()
    thoughts = [{"type": "reasoning.text", "text": "I look it up.", "index": 0, "signature": "s1"}, STEPS[2]]
    audio = {"id": "audio_1", "data": "QUJDREVG", "transcript": "Let me see.", "expires_at": 1_900_000_000}
    call = ONE | {"extra_content": SIGNATURE}
    if is_streamed:
        more = [("reasoning_details", [step]) for step in STEPS]
        more += [("audio", part) for part in AUDIO]
        more += [("tool_calls", [piece("call_one", "one", "", index=0)])]
        more += [("tool_calls", [piece(arguments='{"one": 1}', index=0, extra_content=SIGNATURE)])]
        fake.replies = [Reply(None, more=tuple(more), finish_reason="tool_calls")]
    else:
        more = [("reasoning_details", thoughts), ("audio", audio), ("tool_calls", [call])]
        fake.replies = [Reply(None, more=tuple(more), finish_reason="tool_calls")]
    ask = {"role": "user", "content": "Call it."}
    body: dict[str, Any] = {"messages": [ask], "conversation_id": conversation, "stream": is_streamed}
    path = CHAT if route == "chat" else "/v1/generate"
    response = await tenant.post(path, json=body | ({"model": CHAT_MODEL} if route == "chat" else {}))
    assert response.status_code == 200, response.text
    again = body | {"messages": results(ONE), "stream": False}
    assert (await tenant.post(path, json=again | ({"model": CHAT_MODEL} if route == "chat" else {}))).status_code == 200
    [said] = [message for message in fake.chats[-1]["messages"] if message["role"] == "assistant"]
    assert said["reasoning_details"] == thoughts
    assert said["tool_calls"] == [call]
    assert "Let me see." in json.dumps(said)


async def test_streamed_calls_wait_for_no_write(service: Service, fake: FakeChat, tmp_path: Path) -> None:
    """Twelve parts of calls, each of which would wait for the next write, ten seconds later."""
    names = [piece(f"call_{n}", f"tool_{n}", "{}", index=n) for n in range(4)]
    settings = {"llm_base_url": fake.url, "llm_model": CHAT_MODEL, "embedder": "none", "stream_debounce_ms": 10_000}
    fake.replies = [streamed(*[[name] for name in names])]
    async with (
        open_service(service.database, tmp_path, **settings) as opened,
        await opened.new_tenant() as user,
        asyncio.timeout(60),
    ):
        conversation = await user.conversation()
        body = {"messages": [{"role": "user", "content": "Call all."}], "conversation_id": conversation, "stream": True}
        assert (await user.post("/v1/generate", json=body)).status_code == 200
        [_, said] = await user.history(conversation)
    assert [call["id"] for call in said["tool_calls"]] == [f"call_{n}" for n in range(4)]
