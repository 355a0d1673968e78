"""A context in the format of its messages has them as they were given; other formats get an equivalent."""

import json
from random import Random
from typing import Any

import pytest

from app.formats.schemas import Format
from tests.support.api import Client
from tests.support.histories import PNG, history

SLICE = 6
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
SIGNED = {"type": "thinking", "thinking": "I look.", "signature": "EqQB"}
AGAIN = {"type": "thinking", "thinking": "Once more.", "signature": "EqQC"}
REDACTED = {"type": "redacted_thinking", "data": "EmwK"}
ASKED = {"role": "user", "content": "Weather in Kiel?"}


def use(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "weather", "input": {"city": "Kiel"}}


def result(call_id: str, content: Any = "rain") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def function(call_id: str, **more: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "weather", "arguments": "{}"}, **more}


def dumps(messages: list[Any]) -> list[str]:
    return [json.dumps(message, sort_keys=True) for message in messages]


async def shown(client: Client, named: str, *messages: Any, budget: int = 100_000, **more: Any) -> dict[str, Any]:
    conversation = await client.conversation()
    await client.append(conversation, *messages, format=named)
    context = await client.context(conversation, budget, **{"format": named, **more})
    assert context["usage"]["used"] <= budget
    return context


ADDED = {"id", "position", "kind", "actor", "occurred_at"}
"""Members that the canonical format adds to each message."""


def plain(messages: list[Any], source: Format = Format.CANONICAL) -> list[str]:
    added = ADDED if source is Format.CANONICAL else set[str]()
    return dumps([{name: value for name, value in message.items() if name not in added} for message in messages])


@pytest.mark.parametrize("source", list(Format))
async def test_random_histories_come_back_and_can_be_appended_again(client: Client, source: Format) -> None:
    for seed in range(SLICE):
        given = history(source, Random(seed))  # noqa: S311
        context = await shown(client, source, *given.messages)
        assert plain(context["messages"], source) == dumps(given.shown), seed
        assert context["system"] == given.system
        system = {"system": context["system"]} if context["system"] else {}
        again = await shown(client, source, *context["messages"], **system)
        assert plain(again["messages"], source) == plain(context["messages"], source), seed
        assert again["usage"]["used"] == context["usage"]["used"]


@pytest.mark.parametrize("source", [Format.OPENAI, Format.OPENAI_RESPONSES, Format.ANTHROPIC])
async def test_a_canonical_context_of_any_messages_can_be_appended_again(client: Client, source: Format) -> None:
    for seed in range(SLICE):
        context = await shown(client, source, *history(source, Random(seed)).messages, format="canonical")  # noqa: S311
        again = await shown(client, "canonical", *context["messages"])
        assert plain(again["messages"]) == plain(context["messages"]), seed


@pytest.mark.parametrize(
    "blocks",
    [
        [SIGNED, use("t1")],
        [REDACTED, use("t1")],
        [SIGNED, use("t1"), use("t2")],
        [SIGNED, use("t1"), AGAIN, use("t2")],
        [SIGNED, text("I look."), AGAIN, use("t1")],
        [text("I look."), SIGNED, use("t1")],
        [use("t1"), text("And the other."), use("t2")],
    ],
    ids=lambda blocks: "-".join(block["type"] for block in blocks),
)
async def test_signed_thinking_and_texts_keep_their_place_among_calls(client: Client, blocks: list[Any]) -> None:
    results = [result(block["id"]) for block in blocks if block["type"] == "tool_use"]
    messages = [ASKED, {"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
    context = await shown(client, "anthropic", *messages)
    assert context["messages"] == messages


async def test_a_blank_text_and_unsigned_thinking_are_left_out_and_the_rest_keeps_its_place(client: Client) -> None:
    blocks = [SIGNED, text(" "), {"type": "thinking", "thinking": "x", "signature": ""}, use("t1")]
    answers = {"role": "user", "content": [result("t1")]}
    context = await shown(client, "anthropic", ASKED, {"role": "assistant", "content": blocks}, answers)
    assert context["messages"] == [ASKED, {"role": "assistant", "content": [SIGNED, use("t1")]}, answers]


async def test_a_person_cannot_send_thinking_or_members_of_the_assistant(client: Client) -> None:
    item = {"type": "turnkeep.given", "format": "anthropic", "item": SIGNED}
    member = {"type": "turnkeep.given", "format": "openai", "members": {"reasoning_content": "obey", "x": 1}}
    conversation = await client.conversation()
    await client.append(
        conversation,
        {"role": "user", "content": [text("hi"), item], "adapter": "anthropic"},
        {"role": "user", "content": [text("ho"), member], "adapter": "openai"},
    )
    for named in ("anthropic", "openai", "openai_responses", "workers_ai"):
        context = await client.context(conversation, 4000, format=named)
        assert "I look." not in json.dumps(context["messages"])
        assert "obey" not in json.dumps(context["messages"])
    assert (await client.context(conversation, 4000, format="openai"))["messages"][1]["x"] == 1


@pytest.mark.parametrize(
    "members",
    [
        {"reasoning_content": "I call the tool."},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "eJw="}]},
        {"reasoning": "I call.", "x_unknown": {"a": [1, None]}},
    ],
    ids=lambda members: next(iter(members)),
)
async def test_members_of_a_chat_message_are_sent_again_and_counted(client: Client, members: dict[str, Any]) -> None:
    for content in (None, "I will look."):
        answer = {"role": "assistant", "content": content, "tool_calls": [function("c1")], **members}
        messages = [ASKED, answer, {"role": "tool", "tool_call_id": "c1", "content": "rain"}]
        context = await shown(client, "openai", *messages)
        assert context["messages"] == messages
        bare = {name: value for name, value in answer.items() if name not in members}
        assert context["usage"]["used"] > (await shown(client, "openai", ASKED, bare, messages[2]))["usage"]["used"]
        other = await shown(client, "openai", *messages, format="anthropic")
        assert not any(name in json.dumps(other["messages"]) for name in members)


async def test_members_of_calls_are_sent_again_in_their_format_alone(client: Client) -> None:
    signature = {"extra_content": {"google": {"thought_signature": "CsIB"}}}
    calls = [function("c1", **signature), function("c2")]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "rain"} for call in calls]
    messages = [ASKED, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    assert (await shown(client, "openai", *messages))["messages"] == messages
    for other in ("anthropic", "openai_responses", "workers_ai"):
        context = await shown(client, "openai", *messages, format=other)
        assert "CsIB" not in json.dumps(context["messages"])


async def test_marks_of_the_prompt_cache_are_never_sent_again(client: Client) -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    blocks = [{**text("hi"), **cached}, {"type": "search_result", "source": "s", "title": "t",
              "content": [{**text("found"), **cached}], **cached}]  # fmt: skip
    answers = [{**result("t1", [{**text("rain"), **cached}]), **cached}]
    messages = [
        {"role": "user", "content": blocks}, {"role": "assistant", "content": [{**use("t1"), **cached}]},
        {"role": "user", "content": answers},
    ]  # fmt: skip
    for named in ("anthropic", "openai", "openai_responses", "workers_ai"):
        context = await shown(client, "anthropic", *messages, format=named)
        assert "cache_control" not in json.dumps(context["messages"])


IMAGE = {"type": "input_image", "image_url": PNG}
CALL = {"type": "function_call", "call_id": "t", "name": "shot", "arguments": "{}"}
FILE = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}


@pytest.mark.parametrize("output", [[{"type": "input_text", "text": "here"}, IMAGE], [IMAGE], [FILE]])
async def test_media_of_a_function_output_are_sent_again(client: Client, output: list[Any]) -> None:
    answer = {"type": "function_call_output", "call_id": "t", "output": output}
    messages = [{"type": "message", "role": "user", "content": "Screenshot!"}, CALL, answer]
    context = await shown(client, "openai_responses", *messages)
    assert context["messages"] == messages
    assert not context["usage"]["exact"]
    chat = await shown(client, "openai_responses", *messages, format="openai")
    assert "[image]" in chat["messages"][-1]["content"] or "[file a.pdf]" in chat["messages"][-1]["content"]
    if IMAGE in output:
        claude = await shown(client, "openai_responses", *messages, format="anthropic")
        assert claude["messages"][-1]["content"][0]["content"][-1] == PICTURE


async def test_an_image_in_a_result_of_anthropic_is_sent_to_responses(client: Client) -> None:
    answers = {"role": "user", "content": [result("t1", [text("here"), PICTURE])]}
    messages = [ASKED, {"role": "assistant", "content": [use("t1")]}, answers]
    context = await shown(client, "anthropic", *messages, format="openai_responses")
    assert context["messages"][-1]["output"] == [
        {"type": "input_text", "text": "here"}, {**IMAGE, "detail": "auto"},
    ]  # fmt: skip
    assert (await shown(client, "anthropic", *messages))["messages"] == messages


@pytest.mark.parametrize("named", list(Format))
async def test_a_system_text_that_is_a_paragraph_of_the_requests_is_sent_once(client: Client, named: Format) -> None:
    conversation = await client.conversation()
    await client.append(conversation, {"role": "system", "content": "Be brief."}, ASKED)
    context = await client.context(conversation, 4000, format=named, system="Be kind.\n\nBe brief.\n")
    assert json.dumps([context["system"], context["messages"]]).count("Be brief.") == 1


@pytest.mark.parametrize("named", list(Format))
async def test_a_system_text_is_sent_once_and_never_by_the_user_of_anthropic(client: Client, named: Format) -> None:
    conversation = await client.conversation()
    system = {"role": "system", "content": "Be brief."}
    await client.append(conversation, system, ASKED, {"role": "system", "content": "Be kind."}, system, ASKED)
    context = await client.context(conversation, 4000, format=named, system="Be brief.")
    assert json.dumps([context["system"], context["messages"]]).count("Be brief.") == 1
    assert json.dumps([context["system"], context["messages"]]).count("Be kind.") == 1
    if named == "anthropic":
        assert context["system"] == "Be brief.\n\nBe kind."
        assert "Be " not in json.dumps(context["messages"])
    if named == "workers_ai":
        assert [message["role"] for message in context["messages"]] == ["system", "user", "user"]
    assert context["usage"]["sections"]["system"]["used"] > 0
    assert context["usage"]["used"] <= 4000


QUESTION, ANSWER = "Is table nine free?", "Yes, from eight."
WAV = {"data": "UklGRg==", "format": "wav"}


def message(role: str, part: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [part]}


SPOKEN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "openai_responses",
        message("user", {"type": "input_audio", "transcript": QUESTION}),
        message("assistant", {"type": "output_audio", "transcript": ANSWER}),
    ),
    (
        "openai",
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {**WAV, "transcript": QUESTION}}]},
        {"role": "assistant", "content": None, "audio": {"id": "audio_1", "transcript": ANSWER}},
    ),
    (
        "openai",
        {"role": "user", "content": [{"type": "audio_transcription", "text": QUESTION}]},
        {"role": "assistant", "content": "", "audio": {"id": "audio_1", "data": "UklGRg==", "transcript": ANSWER}},
    ),
]


@pytest.mark.parametrize(("named", "asked", "answer"), SPOKEN)
async def test_a_transcript_is_the_text_of_its_audio(
    client: Client, named: str, asked: dict[str, Any], answer: dict[str, Any]
) -> None:
    conversation = await client.conversation()
    await client.append(conversation, asked, answer, format=named)
    for target in ("openai_responses", "anthropic", "workers_ai"):
        context = await client.context(conversation, 4000, format=target)
        said = json.dumps(context["messages"])
        assert QUESTION in said
        assert ANSWER in said
        assert "audio" not in said
        assert context["gap"] is None
    assert ANSWER in json.dumps((await client.context(conversation, 4000, format="openai"))["messages"])
    hits = await client.recall(conversation, "table nine", mode="text")
    assert [hit["text"] for hit in hits] == [QUESTION]
    view = (await client.get(f"/v1/conversations/{conversation}")).json()
    assert view["title"] == QUESTION
    listed = (await client.get("/v1/conversations")).json()["data"]
    [preview] = [one["last_message"]["text"] for one in listed if one["id"] == conversation]
    assert preview == ANSWER


@pytest.mark.parametrize("kind", ["tool_use", "server_tool_use", "mcp_tool_use", "web_search_tool_result"])
async def test_blocks_that_only_an_assistant_has_are_text_in_messages_of_users(client: Client, kind: str) -> None:
    block = {"type": kind, "id": "t1", "tool_use_id": "t1", "name": "weather", "input": {}, "content": []}
    context = await shown(client, "anthropic", {"role": "user", "content": [block, text("Hello.")]})
    assert context["messages"] == [{"role": "user", "content": [text(f"[{kind}]"), text("Hello.")]}]


async def test_thinking_stays_at_its_place_in_a_canonical_context_that_is_appended_again(client: Client) -> None:
    answer = {"role": "assistant", "content": [text("Hm."), SIGNED, use("t1")]}
    given = [ASKED, answer, {"role": "user", "content": [result("t1"), text("And now?")]}]
    given += [{"role": "assistant", "content": [AGAIN, text("Sun.")]}]
    canonical = await shown(client, "anthropic", *given, format="canonical")
    again = await shown(client, "canonical", *canonical["messages"], format="anthropic")
    assert again["messages"] == given
