"""Messages of a provider can be appended as they are, nothing of them is lost, and contexts say the same."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from app.core.ids import format_id, new_uuid
from app.formats.schemas import Format, Role
from app.formats.service import write
from tests.support.api import Client, Service, problem
from tests.support.live import serving, socket_on
from tests.support.mcp import call
from tests.support.mcp import post as post_mcp

_PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aWlpaQ=="}}
_ANTHROPIC: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "What is the weather here?"}, _PICTURE]},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "I have to look.", "signature": "c2ln"},
        {"type": "text", "text": "I will look."},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Hamburg", "days": 2}},
        {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"city": "Kiel"}},
    ]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such city", "is_error": True},
        {"type": "text", "text": "Only Hamburg, please."},
    ]},
    {"role": "assistant", "content": [{"type": "text", "text": "It rains in Hamburg."}]},
]  # fmt: skip
_OPENAI: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "What is the weather here?"}]},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Hamburg"}'}},
    ]},
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    {"role": "assistant", "content": "It rains in Hamburg."},
]  # fmt: skip
_WORKERS_AI: list[dict[str, Any]] = [
    {"role": "user", "content": "What is the weather here?"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Hamburg"}'}},
    ]},
    {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "rain"},
    {"role": "assistant", "content": "It rains in Hamburg."},
]  # fmt: skip
_RESPONSES: list[dict[str, Any]] = [
    {"role": "user", "content": "What is the weather here?"},
    {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Hamburg"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
    {"role": "assistant", "content": "It rains in Hamburg."},
]
MESSAGES = {"anthropic": _ANTHROPIC, "openai": _OPENAI, "workers_ai": _WORKERS_AI, "openai_responses": _RESPONSES}


def written(named: str, turns: list[dict[str, Any]]) -> list[Any]:
    """The messages that the turns of a history were given as."""
    given: list[Any] = [SimpleNamespace(**turn | {"role": Role(turn["role"])}) for turn in turns]
    return write(Format(named), given).messages


@pytest.mark.parametrize("at_once", [True, False], ids=["in one append", "one by one"])
@pytest.mark.parametrize("named", list(MESSAGES))
async def test_messages_of_a_provider_come_back_unchanged(client: Client, named: str, *, at_once: bool) -> None:
    conversation, messages = await client.conversation(), MESSAGES[named]
    for some in [messages] if at_once else [[one] for one in messages]:
        await client.append(conversation, *some, format=named)
    turns = await client.history(conversation)
    assert written(named, turns) == messages
    context = await client.context(conversation, 8000, format=named)
    assert len(context["messages"]) == len(messages)
    assert "no such city" in str(context) or named != "anthropic"
    [calling] = [turn for turn in turns if turn["tool_calls"]]
    assert calling["kind"] == "tool_call_request"
    assert {turn["adapter"] for turn in turns} == {named}
    other = await client.context(conversation, 8000, format="openai")
    [asked] = [message for message in other["messages"] if message.get("tool_calls")]
    assert asked["tool_calls"][0]["function"]["name"] == "weather"


async def test_messages_of_anthropic_are_recognised_by_their_blocks(client: Client) -> None:
    conversation = await client.conversation()
    given = [{**one, "metadata": {"from": "a client"}, "actor": f"{one['role']}-1"} for one in _ANTHROPIC]
    await client.append(conversation, *given)
    turns = await client.history(conversation)
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool", "user", "assistant"]
    assert [call["name"] for call in turns[1]["tool_calls"]] == ["weather", "weather"]
    assert [result["tool_call_id"] for result in turns[2]["tool_results"]] == ["toolu_1", "toolu_2"]
    assert {turn["metadata"]["from"] for turn in turns} == {"a client"}
    assert turns[1]["actor"] == "assistant-1"
    assert written("anthropic", turns) == _ANTHROPIC


@pytest.mark.parametrize("named", list(MESSAGES))
async def test_who_said_a_message_and_when_is_of_its_turn_in_every_format(client: Client, named: str) -> None:
    conversation, said_at = await client.conversation(), "2024-05-01T08:00:00.000Z"
    beside = {"actor": "ana", "metadata": {"from": "a client"}, "occurred_at": said_at}
    await client.append(conversation, *({**one, **beside} for one in MESSAGES[named]), format=named)
    turns = await client.history(conversation)
    assert {(turn["actor"], turn["metadata"]["from"], turn["occurred_at"]) for turn in turns} == {
        ("ana", "a client", said_at)
    }
    assert written(named, turns) == MESSAGES[named]


@pytest.mark.parametrize("named", ["openai", "anthropic", "canonical"])
async def test_null_beside_a_message_is_as_if_it_were_left_out(client: Client, named: str) -> None:
    conversation = await client.conversation()
    message = {"role": "user", "content": "hi", "actor": None, "metadata": None, "occurred_at": None}
    await client.append(conversation, message | ({"position": 7} if named == "canonical" else {}), format=named)
    [turn] = await client.history(conversation)
    assert (turn["actor"], turn["content"], turn["metadata"]) == ("user", "hi", {})


async def test_who_said_an_item_that_is_recognised_is_of_its_turn(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, {"type": "message", "role": "user", "content": "Hello", "actor": "ana"})
    assert [turn["actor"] for turn in await client.history(conversation)] == ["ana"]


async def test_items_of_responses_are_recognised_by_their_type(client: Client) -> None:
    conversation = await client.conversation()
    items = [{"type": "message", **one} if "role" in one else one for one in _RESPONSES]
    await client.append(conversation, *items)
    assert written("openai_responses", await client.history(conversation)) == items


REFUSED: list[tuple[dict[str, Any], str]] = [
        ({"turns": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "w", "input": "x"}]}]},
         "/turns/0/content/0/input"),
        ({"turns": [{"role": "assistant", "content": [{"type": "tool_use", "name": "w", "input": {}}]}]},
         "/turns/0/content/0/id"),
        ({"format": "workers_ai", "turns": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "",
          "tool_calls": [{"name": "w", "arguments": {}}]}]}, "/turns/1/tool_calls/0/id"),
        ({"format": "openai", "turns": [{"role": "user", "content": "q"}, {"role": "robot", "content": "a"}]},
         "/turns/1/role"),
        ({"format": "openai_responses", "turns": [{"type": "function_call", "name": "w", "arguments": "{}"}]},
         "/turns/0/call_id"),
        ({"format": "gemini", "turns": [{"role": "user", "content": "q"}]}, "/format"),
        ({"turns": [{"role": "user", "id": "01KAXXQ7J0ZK5ZK5ZK5ZK5ZK5Z", "content": [
          {"type": "tool_result", "tool_use_id": "t", "content": "1"}, {"type": "text", "text": "x"}]}]},
         "/turns/0/id"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "pointer"), REFUSED)
async def test_what_cannot_be_read_is_refused_by_its_place(client: Client, body: dict[str, Any], pointer: str) -> None:
    conversation = await client.conversation()
    answer = await client.post(f"/v1/conversations/{conversation}/turns", json=body)
    problem(answer, 422, "invalid_request", pointer)
    assert await client.history(conversation) == []


_LONG = "a" * (2**20 + 1)
_UNCALLED = [{"type": "text", "text": "And?"}, {"type": "tool_result", "tool_use_id": "toolu_9", "content": "x"}]
_TWICE: list[Any] = [{"type": "tool_use", "id": "t", "name": "w", "input": {}}] * 2
_CUSTOM = {"id": "c", "type": "custom", "custom": {"name": "shell", "input": _LONG}}
NAMED: list[tuple[str | None, list[Any], str, str]] = [
        ("openai", [{"role": "tool", "tool_call_id": "c", "content": "x"}],
         "tool_call_unknown", "/turns/0/tool_call_id"),
        ("openai", [{"role": "assistant", "content": None, "tool_calls": [_CUSTOM]}],
         "text_too_large", "/turns/0/tool_calls/0/custom/input"),
        ("openai", [{"role": "user", "content": _LONG, "x": 1}], "text_too_large", "/turns/0/content"),
        ("workers_ai", [{"role": "tool", "tool_call_id": "c", "name": "w", "content": "x"}],
         "tool_call_unknown", "/turns/0/tool_call_id"),
        ("openai_responses", [{"type": "function_call_output", "call_id": "c", "output": "x"}],
         "tool_call_unknown", "/turns/0/call_id"),
        (None, [{"type": "function_call_output", "call_id": "c", "output": "x"}],
         "tool_call_unknown", "/turns/0/call_id"),
        ("openai_responses", [{"type": "local_shell_call_output", "id": "c", "output": "x"}],
         "tool_call_unknown", "/turns/0/id"),
        ("openai_responses", [_RESPONSES[1], _RESPONSES[2] | {"output": [{"type": "input_text", "text": _LONG}]}],
         "text_too_large", "/turns/1/output/0/text"),
        ("openai_responses", [_RESPONSES[1] | {"arguments": _LONG}], "text_too_large", "/turns/0/arguments"),
        ("openai_responses", [{"type": "custom_tool_call", "call_id": "c", "name": "w", "input": _LONG}],
         "text_too_large", "/turns/0/input"),
        *((named, [*_ANTHROPIC[:3], {"role": "user", "content": _UNCALLED}],
           "tool_call_unknown", "/turns/3/content/1/tool_use_id") for named in ("anthropic", None)),
        ("anthropic", [{"role": "user", "content": [{"type": "text", "text": "a"}, _UNCALLED[1] | {"content": _LONG}]}],
         "text_too_large", "/turns/0/content/1/content"),
        ("anthropic", [{"role": "user", "content": [_UNCALLED[1], {"type": "text", "text": _LONG}]}],
         "text_too_large", "/turns/0/content/1/text"),
        ("anthropic", [{"role": "assistant", "content": [{"type": "text", "text": "a"}, *_TWICE]}],
         "invalid_request", "/turns/0/content/2"),
        *((named, [*_ANTHROPIC[:3], {"role": "user", "content": "a", "metadata": 3}],
           "invalid_request", "/turns/3/metadata") for named in ("anthropic", None)),
        ("canonical", [{"role": "tool", "tool_call_id": "c", "content": "x", "is_error": True}],
         "tool_call_unknown", "/turns/0/tool_call_id"),
]  # fmt: skip


@pytest.mark.parametrize(("named", "turns", "code", "pointer"), NAMED)
async def test_errors_name_the_message_and_the_member_that_were_sent(
    service: Service, client: Client, named: str | None, turns: list[Any], code: str, pointer: str
) -> None:
    conversation = await client.conversation()
    body = {"turns": turns} | ({"format": named} if named else {})
    status = 413 if code == "text_too_large" else 422
    answer = await client.post(f"/v1/conversations/{conversation}/turns", json=body)
    assert [one["pointer"] for one in problem(answer, status, code)["errors"]] == [pointer]
    if status == 422:
        async with serving(service.app, service.settings) as port, socket_on(port, conversation, client.key) as live:
            await live.send("append", id=format_id(new_uuid()), **body)
            assert [one["pointer"] for one in (await live.until("error"))["errors"]] == [pointer]
    assert await client.history(conversation) == []


@pytest.mark.parametrize("named", [*MESSAGES, None])
@pytest.mark.parametrize(
    ("turn", "code"),
    [
        ({"role": "user", "content": "a\0b"}, "text_not_storable"),
        ({"role": "user", "content": "a", "x": 2**60}, "number_not_interoperable"),
        ("badger", "invalid_request"),
    ],
    ids=["NUL", "too large a number", "no object"],
)
async def test_what_no_turn_may_hold_no_message_may_hold_either(
    service: Service, client: Client, named: str | None, turn: Any, code: str
) -> None:
    conversation = await client.conversation()
    body = {"turns": [turn]} | ({"format": named} if named else {})
    problem(await client.post(f"/v1/conversations/{conversation}/turns", json=body), 422, code)
    tool = call("append_turns", body | {"conversation_id": conversation})
    async with serving(service.app, service.settings) as port, httpx.AsyncClient(timeout=60) as http:
        answer = (await post_mcp(http, port, client.key, tool)).json()
        assert "error" in answer or answer["result"]["isError"], answer
        async with socket_on(port, conversation, client.key) as live:
            await live.send("append", id=format_id(new_uuid()), **body)
            refusal = await live.until("error")
            assert refusal["code"] == code, refusal
    assert await client.history(conversation) == []


async def test_an_append_in_a_format_is_repeated_under_its_key(client: Client) -> None:
    conversation = await client.conversation()
    body = {"format": "anthropic", "turns": _ANTHROPIC, "expected_seq": 0}
    path, headers = f"/v1/conversations/{conversation}/turns", {"Idempotency-Key": "k"}
    first = await client.post(path, json=body, headers=headers)
    again = await client.post(path, json=body, headers=headers)
    assert (first.status_code, again.headers["Idempotent-Replayed"]) == (201, "true")
    assert again.json() == first.json()
    assert len(await client.history(conversation)) == 5
