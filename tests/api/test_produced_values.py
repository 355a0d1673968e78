"""What a model or a tool produced is stored: large integers with all digits, texts without what cannot be stored."""

import json
from typing import Any

import httpx
import pytest

from tests.support.api import Client, Service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply
from tests.support.live import serving, socket_on
from tests.support.mcp import call as tool_call
from tests.support.mcp import post

CHAT, RESPONSES = "/openai/v1/chat/completions", "/openai/v1/responses"
BIG = 1234567890123456789
HUGE = 123456789012345678901234567890123456789
INPUT = {"channel_id": BIG, "far": -(2**63), "more": [HUGE, {"seen": 2**53}], "small": 1, "part": 0.5}
ASK = {"role": "user", "content": "Post it."}

HISTORIES: dict[str, list[dict[str, Any]]] = {
    "anthropic": [
        ASK,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "send", "input": INPUT}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sent"}]}
        ]},
    ],
    "canonical": [
        ASK,
        {"role": "assistant", "tool_calls": [{"id": "t1", "name": "send", "arguments": INPUT}]},
        {"role": "tool", "tool_call_id": "t1", "content": [{"type": "json", "value": {"id": BIG}}]},
    ],
    "openai": [
        ASK,
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "send", "arguments": json.dumps(INPUT)}}
        ]},
        {"role": "tool", "tool_call_id": "t1", "content": "sent"},
    ],
    "workers_ai": [
        ASK,
        {"role": "assistant", "content": "", "tool_calls": [{"id": "t1", "name": "send", "arguments": INPUT}]},
        {"role": "tool", "tool_call_id": "t1", "content": "sent"},
    ],
    "openai_responses": [
        ASK,
        {"type": "reasoning", "id": "rs_1", "summary": [], "tokens": HUGE},
        {"type": "function_call", "call_id": "t1", "name": "send", "arguments": json.dumps(INPUT), "serial": BIG},
        {"type": "function_call_output", "call_id": "t1", "output": "sent"},
    ],
}  # fmt: skip


async def appended(tenant: Client, conversation: str, turns: list[Any], **more: Any) -> dict[str, Any]:
    response = await tenant.post(f"/v1/conversations/{conversation}/turns", json={"turns": turns} | more)
    assert response.status_code == 201, response.text
    return response.json()


async def inputs(tenant: Client, conversation: str) -> list[Any]:
    """The input of each call, in contexts of all formats that have one."""
    found: list[Any] = []
    for name in ("openai", "anthropic", "canonical", "openai_responses", "workers_ai"):
        context = await tenant.context(conversation, 4000, format=name)
        for message in context["messages"]:
            blocks = message.get("content") if isinstance(message.get("content"), list) else []
            found += [block["input"] for block in blocks if block["type"] == "tool_use"]
            found += [call.get("function", call)["arguments"] for call in message.get("tool_calls", ())]
            found += [message["arguments"]] if message.get("type") == "function_call" else []
    return [json.loads(one) if isinstance(one, str) else one for one in found]


@pytest.mark.parametrize("shape", HISTORIES)
async def test_integers_of_any_length_in_what_a_model_said_keep_their_digits(tenant: Client, shape: str) -> None:
    conversation = await tenant.conversation()
    result = await appended(tenant, conversation, HISTORIES[shape], format=shape)
    assert result["sanitised"] == []
    assert await inputs(tenant, conversation) == [INPUT] * 5
    verified = (await tenant.get(f"/v1/conversations/{conversation}/verify")).json()
    assert (verified["valid"], verified["verified_content"]) == (True, len(HISTORIES[shape]))
    for again in (shape, "anthropic"):
        context = await tenant.context(conversation, 4000, format=again)
        other = await tenant.conversation()
        await appended(tenant, other, context["messages"], format=again)
        copied = (await tenant.context(other, 4000, format=again))["messages"]
        assert [m | {"id": None} for m in copied] == [m | {"id": None} for m in context["messages"]]


@pytest.mark.parametrize("number", ["1e400", "-1e400", "12345678901234567890e300"])
async def test_numbers_beyond_a_double_stay_the_numbers_that_they_are(tenant: Client, number: str) -> None:
    conversation = await tenant.conversation()
    call = {"role": "assistant", "tool_calls": [{"id": "t1", "name": "f", "arguments": {"x": "number"}}]}
    turns = [call, {"role": "tool", "tool_call_id": "t1", "content": "x"}]
    body = json.dumps({"turns": turns}).replace('"number"', number)
    headers = {"Content-Type": "application/json"}
    response = await tenant.post(f"/v1/conversations/{conversation}/turns", content=body, headers=headers)
    assert response.status_code == 201, response.text
    mantissa, exponent = number.split("e")
    assert (await inputs(tenant, conversation))[1] == {"x": int(mantissa) * 10 ** int(exponent)}


NUMBER, TEXT = ("number_not_interoperable",), ("text_not_storable",)


@pytest.mark.parametrize(
    ("turn", "code", "pointer"),
    [
        ({"role": "user", "content": [{"type": "text", "text": "x", "id": BIG}]}, *NUMBER, "/turns/0/content/0/id"),
        ({"role": "user", "content": "a\0b"}, *TEXT, "/turns/0/content"),
        ({"role": "user", "content": "a\ud83d"}, *TEXT, "/turns/0/content"),
        ({"role": "system", "content": "a\0"}, *TEXT, "/turns/0/content"),
        ({"role": "assistant", "content": "a", "metadata": {"n": BIG}}, *NUMBER, "/turns/0/metadata"),
        ({"role": "assistant", "content": "a", "metadata": {"n": "\0"}}, *TEXT, "/turns/0/metadata"),
        ({"role": "assistant", "content": "a", "actor": "a\0"}, *TEXT, "/turns/0/actor"),
        ({"role": "assistant", "content": "a", "usage": {"n": BIG}}, *NUMBER, "/turns/0/usage"),
        ({"role": "tool", "tool_call_id": "x", "content": "a", "model": "\0"}, *TEXT, "/turns/0/model"),
        ({"content": "a\0"}, *TEXT, "/turns/0/content"),
    ],
)  # fmt: skip
async def test_what_a_callers_program_writes_is_refused_with_its_place(
    tenant: Client, turn: dict[str, Any], code: str, pointer: str
) -> None:
    conversation = await tenant.conversation()
    body = {"content": json.dumps({"turns": [turn]}), "headers": {"Content-Type": "application/json"}}
    response = await tenant.post(f"/v1/conversations/{conversation}/turns", **body)
    assert (response.status_code, response.json()["code"]) == (422, code), response.text
    assert response.json()["errors"][0]["pointer"] == pointer
    assert await tenant.history(conversation) == []


BAD = "a\0b\ud83d c\ude00"
GOOD = "ab c"
USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {BAD: [BAD]}}


@pytest.mark.parametrize(
    ("shape", "messages", "sanitised"),
    [
        (None, [{"role": "assistant", "content": BAD}], ["/turns/0/content"]),
        (None, [ASK, {"role": "assistant", "content": [{"type": "text", "text": BAD}]}], ["/turns/1/content"]),
        (
            "anthropic",
            [
                {"role": "assistant", "content": [USE]},
                {"role": "user", "content": [
                    {"type": "text", "text": "And:"}, {"type": "tool_result", "tool_use_id": "t1", "content": BAD}
                ]},
            ],
            ["/turns/0/content", "/turns/1/content"],
        ),
        (
            "openai_responses",
            [
                {"type": "function_call", "call_id": "t1", "name": "f", "arguments": BAD},
                {"type": "function_call_output", "call_id": "t1", "output": BAD},
            ],
            ["/turns/0/arguments", "/turns/1/output"],
        ),
        (
            "openai",
            [
                {"role": "assistant", "content": BAD, "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "f", "arguments": BAD}}
                ]},
                {"role": "tool", "tool_call_id": "t1", "content": BAD},
            ],
            ["/turns/0/content", "/turns/0/tool_calls", "/turns/1/content"],
        ),
    ],
)  # fmt: skip
async def test_characters_that_cannot_be_stored_are_left_out_of_what_a_model_or_a_tool_said(
    tenant: Client, shape: str | None, messages: list[Any], sanitised: list[str]
) -> None:
    conversation = await tenant.conversation()
    body = json.dumps({"turns": messages} | ({} if shape is None else {"format": shape}))
    headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}
    for status in (201, 201):
        response = await tenant.post(f"/v1/conversations/{conversation}/turns", content=body, headers=headers)
        assert (response.status_code, response.json().get("sanitised")) == (status, sanitised), response.text
    stored = json.dumps(await tenant.history(conversation))
    assert GOOD in stored
    assert "\\u0000" not in stored and "\\ud83d" not in stored  # noqa: PT018
    assert (await tenant.get(f"/v1/conversations/{conversation}/verify")).json()["valid"] is True


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": "\\ud83d", "b\\udc00": "\\ud83d\\ude00"}', {"a": "", "b": "\U0001f600"}),
        ('{"a": %s}' % ("[" * 600 + "]" * 600), None),
        ('{"a": 1e400}', None),
    ],
)
async def test_arguments_of_any_text_have_a_context_of_each_format(
    tenant: Client, arguments: str, expected: dict[str, Any] | None
) -> None:
    conversation = await tenant.conversation()
    call = {"id": "t1", "type": "function", "function": {"name": "send", "arguments": arguments}}
    calls = {"role": "assistant", "content": None, "tool_calls": [call]}
    await tenant.append(
        conversation, ASK, calls, {"role": "tool", "tool_call_id": "t1", "content": "sent"}, format="openai"
    )
    for target in HISTORIES:
        context = await tenant.context(conversation, 10_000, format=target)
        if target == "openai":
            assert context["messages"][1]["tool_calls"] == [call]
        if target == "anthropic":
            assert context["messages"][1]["content"][0]["input"] == (expected or {"arguments": arguments})


async def test_a_split_pair_of_surrogates_is_joined(tenant: Client) -> None:
    conversation = await tenant.conversation()
    body = '{"turns": [{"role": "assistant", "content": "a\\u0000\\ud83d\\ude00"}]}'
    headers = {"Content-Type": "application/json"}
    await tenant.post(f"/v1/conversations/{conversation}/turns", content=body, headers=headers)
    assert (await tenant.history(conversation))[0]["content"] == "a\U0001f600"


async def test_a_revision_takes_what_a_model_said(tenant: Client) -> None:
    conversation = await tenant.conversation()
    [turn] = (await tenant.append(conversation, {"role": "assistant", "content": "a"}))["turns"]
    path = f"/v1/conversations/{conversation}/turns/{turn['id']}/revisions"
    for body, status in (
        ({"role": "assistant", "content": "b\0", "tool_calls": [{"id": "1", "name": "f", "arguments": INPUT}]}, 201),
        ({"role": "user", "content": "b\0"}, 422),
    ):
        response = await tenant.post(path, json=body)
        assert response.status_code == status, response.text
    [stored] = await tenant.history(conversation)
    assert (stored["content"], stored["tool_calls"][0]["arguments"]) == ("b", INPUT)


async def test_a_streamed_turn_is_committed_with_the_calls_that_the_model_made(tenant: Client) -> None:
    conversation = await tenant.conversation()
    root = f"/v1/conversations/{conversation}/turns"
    opening = {"turn": {"role": "assistant", "actor": "bot"}, "writer": "w"}
    opened = (await tenant.post(f"{root}/open", json=opening)).json()
    calls = [{"id": "1", "name": "f\0", "arguments": INPUT}]
    response = await tenant.post(f"{root}/{opened['turn']['id']}/commit", json={"tool_calls": calls})
    assert response.status_code == 200, response.text
    [stored] = await tenant.history(conversation)
    assert stored["tool_calls"] == [{"id": "1", "name": "f", "arguments": INPUT}]


@pytest.mark.parametrize("route", ["chat", "generate", "responses", "items"])
async def test_generating_calls_take_what_a_model_said_before(tenant: Client, fake: FakeChat, route: str) -> None:
    conversation = await tenant.conversation()
    messages = [
        ASK,
        {"role": "assistant", "content": "a\0", "serial": BIG, "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "send", "arguments": json.dumps(INPUT) + "\0"}}
        ]},
        {"role": "tool", "tool_call_id": "t1", "content": BAD},
    ]  # fmt: skip
    items = [
        ASK, {"type": "function_call", "call_id": "t1", "name": "send", "arguments": json.dumps(INPUT), "serial": BIG},
        {"type": "function_call_output", "call_id": "t1", "output": BAD},
    ]  # fmt: skip
    path, body = {
        "chat": (CHAT, {"model": CHAT_MODEL, "messages": messages, "conversation_id": conversation}),
        "generate": ("/v1/generate", {"messages": messages, "conversation_id": conversation}),
        "responses": (RESPONSES, {"model": CHAT_MODEL, "input": items, "conversation": conversation}),
        "items": (f"/openai/v1/conversations/{conversation}/items", {"items": items}),
    }[route]
    headers = {"Content-Type": "application/json"}
    response = await tenant.post(path, content=json.dumps(body), headers=headers)
    assert response.status_code == 200, response.text
    if route != "items":
        sent = fake.chats[-1]["messages"]
        assert json.loads(sent[1]["tool_calls"][0]["function"]["arguments"]) == INPUT
        assert sent[2]["content"] == GOOD
    wrong = {**body, next(name for name in body if isinstance(body[name], list)): [{"role": "user", "content": BAD}]}
    refused = await tenant.post(path, content=json.dumps(wrong), headers=headers)
    assert refused.status_code in {400, 422}
    assert refused.json()["code"] == "text_not_storable"


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_an_answer_keeps_the_digits_of_what_the_endpoint_sent(
    tenant: Client, fake: FakeChat, *, is_streamed: bool
) -> None:
    conversation = await tenant.conversation()
    fake.replies = [Reply("Hi", more=(("serial", {"n": BIG}),))]
    body = {"model": CHAT_MODEL, "messages": [ASK], "conversation_id": conversation, "stream": is_streamed}
    assert (await tenant.post(CHAT, json=body)).status_code == 200
    assert str(BIG) in json.dumps((await tenant.history(conversation))[-1])
    assert (await tenant.get(f"/v1/conversations/{conversation}/verify")).json()["valid"] is True


async def test_a_frame_takes_what_a_model_said(tenant: Client, modelled: Service) -> None:
    conversation = await tenant.conversation()
    async with serving(modelled.app, modelled.settings) as port, socket_on(port, conversation, tenant.key) as live:
        turns = [{"role": "assistant", "content": "a\0", "tool_calls": [{"id": "1", "name": "f", "arguments": INPUT}]}]
        ack = await live.ask("append", turns=turns)
        assert ack["sanitised"] == ["/turns/0/content"]
        assert ack["turns"][0]["tool_calls"][0]["arguments"] == INPUT


async def test_a_tool_call_appends_what_a_model_said_and_nothing_else_that_cannot_be_stored(
    tenant: Client, modelled: Service
) -> None:
    conversation = await tenant.conversation()
    turns = [{"role": "assistant", "content": BAD, "tool_calls": [{"id": "1", "name": "f", "arguments": INPUT}]}]

    async def call(name: str, **arguments: Any) -> str:
        async with serving(modelled.app, modelled.settings) as port, httpx.AsyncClient() as http:
            body = json.dumps(tool_call(name, arguments)).encode()
            return (await post(http, port, tenant.key, body, **{"Content-Type": "application/json"})).text

    answer = await call("append_turns", conversation_id=conversation, turns=turns)
    assert '"sanitised":["/turns/0/content"]' in answer.replace(" ", ""), answer
    [stored] = await tenant.history(conversation)
    assert (stored["content"], stored["tool_calls"][0]["arguments"]) == (GOOD, INPUT)
    for name, arguments in [
        ("append_turns", {"conversation_id": conversation, "turns": [{"role": "user", "content": BAD}]}),
        ("append_turns", {"conversation_id": conversation + "\0", "turns": turns}),
        ("append_turns", {"conversation_id": conversation, "turns": [turns[0] | {"metadata": {"n": BIG}}]}),
        ("store_memory", {"content": "x", "metadata": {"n": BIG}}),
        ("store_memory", {"content": "x\0"}),
    ]:
        answer = await call(name, **arguments)
        assert "text_not_storable" in answer or "number_not_interoperable" in answer, answer
    assert len(await tenant.history(conversation)) == 1
