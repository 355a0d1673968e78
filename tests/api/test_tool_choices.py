"""What a request of Responses may ask for, and what it forbids its answer: ranges, tools, and the end of its stream."""

from typing import Any

import httpx
import openai
import pytest

from tests.api import test_responses
from tests.api.test_responses import PATH, WEATHER, create, events_of, read, said
from tests.support.api import Client
from tests.support.fake_chat import FakeChat, Reply, calls, says

ai = test_responses.ai
CLOCK: Any = {"type": "function", "name": "weather_station", "parameters": {"type": "object"}, "strict": False}
SHELL: Any = {"type": "custom", "name": "shell"}
TOOLS = [WEATHER, CLOCK, SHELL]


def only(*names: str, mode: str = "auto") -> Any:
    kinds = {"shell": "custom"}
    tools = [{"type": kinds.get(name, "function"), "name": name} for name in names]
    return {"type": "allowed_tools", "mode": mode, "tools": tools}


def custom(name: str) -> Reply:
    call = {"id": "call_9", "type": "custom", "custom": {"name": name, "input": "ls"}}
    return Reply(None, more=(("tool_calls", [call | {"index": 0}]),), finish_reason="tool_calls")


FORBIDDEN = {
    "another": calls(("weather", {"city": "Rome"})),
    "second": calls(("weather_station", {}), ("weather", {"city": "Rome"})),
    "start": calls(("weather_stat", {})),
    "longer": calls(("weather_stations", {})),
    "unknown": calls(("evil", {})),
    "without arguments": calls(("weather", "")),
    "after text": Reply("Let me see.", tool_calls=(("call_1", "weather", "{}"),)),
    "custom": custom("shell"),
}


@pytest.mark.parametrize("reply", FORBIDDEN.values(), ids=FORBIDDEN)
@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("store", [True, False], ids=["stored", "unstored"])
async def test_an_answer_that_calls_a_tool_that_is_not_allowed_fails(
    ai: openai.AsyncOpenAI,
    tenant: Client,
    fake: FakeChat,
    reply: Reply,
    mode: str,
    *,
    store: bool,
) -> None:
    fake.replies = [reply, reply, says("All is well.")]
    asked: Any = {"tools": TOOLS, "tool_choice": only("weather_station", mode=mode), "store": store}
    if store:
        asked["conversation"] = (await ai.conversations.create()).id
    with pytest.raises(openai.InternalServerError) as failed:
        await create(ai, "Weather?", **asked)
    assert (failed.value.status_code, failed.value.code) == (502, "model_error")
    events = await events_of(ai, "Weather?", **asked)
    assert events[-1].type == "response.failed"
    assert events[-1].response.status == "failed"
    assert "model_error" in events[-1].response.error.message
    shown = [
        event.item.name
        for event in events
        if event.type == "response.output_item.added" and hasattr(event.item, "name")
    ]
    assert set(shown) <= {"weather_station"}
    assert not any(getattr(item, "name", "weather_station") != "weather_station" for item in events[-1].response.output)
    if store:
        assert await said(tenant, asked["conversation"]) == []
        assert (await read(ai, events[-1].response.id)).status == "failed"
        assert (await create(ai, "And now?", **asked)).output_text == "All is well."
        assert await said(tenant, asked["conversation"]) == [("user", "And now?"), ("assistant", "All is well.")]


@pytest.mark.parametrize("reply", [calls(("weather_station", {})), custom("shell"), says("No call.")])
async def test_an_answer_that_calls_allowed_tools_or_none_is_complete(
    ai: openai.AsyncOpenAI,
    fake: FakeChat,
    reply: Reply,
) -> None:
    fake.replies = [reply, reply]
    asked: Any = {"tools": TOOLS, "tool_choice": only("weather_station", "shell")}
    assert (await create(ai, "Weather?", **asked)).status == "completed"
    sent = fake.chats[-1]["tool_choice"]
    assert sent["allowed_tools"]["mode"] == "auto"
    assert [tool["type"] for tool in sent["allowed_tools"]["tools"]] == ["function", "custom"]
    assert (await events_of(ai, "Weather?", **asked))[-1].type == "response.completed"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": -1}, "top_p"),
        ({"max_output_tokens": 15}, "max_output_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"tool_choice": "bogus"}, "tool_choice"),
        ({"tool_choice": "bogus", "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": 3, "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": {"type": "function"}, "tools": TOOLS}, "tool_choice.name"),
        ({"tool_choice": only(), "tools": TOOLS}, "tool_choice.tools"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}, "tools": TOOLS}, "tool_choice.tools"),
        ({"tool_choice": only("weather", mode="none"), "tools": TOOLS}, "tool_choice.mode"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [3]}, "tools": TOOLS}, "tool_choice.tools.0.type"),
        (
            {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": 3}]}},
            "tool_choice.tools.0.name",
        ),
    ],
)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_what_openai_refuses_is_a_bad_request(
    ai: openai.AsyncOpenAI,
    fake: FakeChat,
    more: dict[str, Any],
    param: str,
    *,
    stream: bool,
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await create(ai, "hi", stream=stream, extra_body=more)
    shown = refused.value
    assert (shown.status_code, shown.type, shown.param) == (400, "invalid_request_error", param)
    assert fake.chats == []


async def test_the_ends_of_the_ranges_are_accepted(ai: openai.AsyncOpenAI) -> None:
    for more in (
        {"temperature": 0, "top_p": 0, "max_output_tokens": 16},
        {"temperature": 2, "top_p": 1, "tool_choice": "none"},
    ):
        assert (await create(ai, "hi", **more)).status == "completed"


async def test_only_what_is_understood_is_checked_in_a_chat_completion(
    ai: openai.AsyncOpenAI,
    fake: FakeChat,
) -> None:
    made = await ai.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=1,
        extra_body={"top_k": -1, "tool_choice": "bogus"},
    )
    assert made.choices
    assert fake.chats[-1]["tool_choice"] == "bogus"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/openai/v1/conversations", {"items": 3}),
        ("POST", "/openai/v1/conversations", {"items": [{"type": "message", "role": "narrator", "content": "x"}]}),
        ("GET", "/openai/v1/conversations/conv_01ARZ3NDEKTSV4RRFFQ69G5FAV/items?limit=0", None),
        ("GET", "/openai/v1/conversations/conv_01ARZ3NDEKTSV4RRFFQ69G5FAV/items?limit=101", None),
        ("GET", "/openai/v1/responses/resp_x?starting_after=1", None),
        ("POST", "/openai/v1/chat/completions", []),
        ("POST", "/openai/v1/chat/completions", {"conversation_id": 3, "messages": []}),
        ("POST", "/openai/v1/embeddings", "x"),
        ("POST", "/openai/v1/responses", {"input": "\x00"}),
        ("POST", "/openai/v1/responses", None),
    ],
)
async def test_a_malformed_request_is_400_under_openai_and_422_elsewhere(
    method: str,
    path: str,
    body: Any,
    tenant: Client,
) -> None:
    answer = await tenant.request(method, path, json=body)
    assert answer.status_code == 400, answer.text
    shown = answer.json()
    assert (shown["status"], shown["error"]["type"]) == (400, "invalid_request_error")
    assert shown["error"]["code"] == shown["code"]
    elsewhere = await tenant.post("/v1/conversations", json={"bogus": 1})
    assert elsewhere.status_code == 422


async def test_the_last_line_of_a_stream_is_done(tenant: Client, port: int, fake: FakeChat) -> None:
    headers = {"Authorization": f"Bearer {tenant.key}"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as http:
        created = await http.post(PATH, json={"input": "hi", "stream": True})
        assert created.text.endswith("\n\ndata: [DONE]\n\n")
        assert created.text.count("[DONE]") == 1
        response_id = created.text.split('"id": "')[1].split('"')[0]
        again = await http.get(f"{PATH}/{response_id}?stream=true")
        assert again.text == created.text
        fake.replies = [Reply(mode="ok", text="one two three four", breaks_after=2)]
        failed = await http.post(PATH, json={"input": "hi", "stream": True})
        assert "response.failed" in failed.text
        assert failed.text.endswith("\n\ndata: [DONE]\n\n")
