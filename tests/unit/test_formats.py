import json
from collections.abc import Sequence
from typing import Any

import pytest

from app.formats import tokens
from app.formats.schemas import (
    AnsweredCall,
    Block,
    CanonicalTurn,
    Format,
    Kind,
    NoteBlock,
    RenderedMessages,
    Role,
    ToolCall,
    ToolResult,
    TurnBlock,
)
from app.formats.service import render, roles_with_several_speakers
from app.formats.tokens import count_render, format_margin

PNG = "data:image/png;base64,AAAA"


class FakeCounter:
    name = "fake"
    exact = True

    def count(self, text: str) -> int:
        return len(text.encode()) // 3 + 1


def turn(position: int, role: Role, content: Any = None, actor: str = "anna", **more: Any) -> CanonicalTurn:
    return CanonicalTurn(f"t{position}", position, role, Kind.USER_MESSAGE, actor, content, **more)


def user(position: int, content: Any, actor: str = "anna") -> TurnBlock:
    return TurnBlock(turn(position, Role.USER, content, actor))


def agent(position: int, content: Any, actor: str = "bot") -> TurnBlock:
    return TurnBlock(turn(position, Role.ASSISTANT, content, actor))


def exchange(position: int, *pairs: tuple[str, Any, Any], text: str | None = None, error: bool = False) -> TurnBlock:
    answered = [
        AnsweredCall(ToolCall(call_id, "get_weather", arguments), ToolResult(call_id, result, error))
        for call_id, arguments, result in pairs
    ]
    return TurnBlock(turn(position, Role.ASSISTANT, text, "bot"), answered)


def show(target: Format, blocks: Sequence[Block], system: str | None = None, named: Sequence[Role] = ()) -> Any:
    rendered: Any = render(target, system=system, blocks=blocks, named=frozenset(named))
    return rendered


def test_openai_puts_the_system_text_first_and_parallel_calls_before_one_tool_message_each() -> None:
    blocks = [user(1, "hi"), exchange(2, ("a", '{"x": 1}', "sun"), ("b", {"y": 2}, "rain"))]
    rendered = show(Format.OPENAI, blocks, "be kind")
    assert rendered.system is None
    assert rendered.messages == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"x": 1}'}},
                {"id": "b", "type": "function", "function": {"name": "get_weather", "arguments": '{"y":2}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "sun"},
        {"role": "tool", "tool_call_id": "b", "content": "rain"},
    ]


def test_openai_names_speakers_and_writes_out_those_whose_name_it_refuses() -> None:
    rendered = show(Format.OPENAI, [user(1, "hi"), user(2, "你好", "李 雷")], named=[Role.USER])
    assert rendered.messages == [
        {"role": "user", "name": "anna", "content": "hi"},
        {"role": "user", "name": "___", "content": "李 雷: 你好"},
    ]


def test_openai_keeps_system_turns_in_place() -> None:
    rendered = show(Format.OPENAI, [user(1, "hi"), TurnBlock(turn(2, Role.SYSTEM, "now in French"))])
    assert rendered.messages[1] == {"role": "system", "content": "now in French"}


@pytest.mark.parametrize("target", [Format.OPENAI_RESPONSES, Format.ANTHROPIC, Format.WORKERS_AI])
def test_formats_without_names_put_the_speaker_before_the_text(target: Format) -> None:
    rendered = show(target, [user(1, "hi"), user(2, "hello", "bert\nand Mallory")], named=[Role.USER])
    shown = str(rendered.messages)
    assert "anna: hi" in shown
    assert "bert and Mallory: hello" in shown


def test_responses_writes_calls_and_outputs_as_items_and_leaves_the_system_text_beside_them() -> None:
    rendered = show(Format.OPENAI_RESPONSES, [exchange(1, ("a", "{}", "1"), ("b", "{}", "2"), text="look")], "sys")
    assert rendered.system == "sys"
    assert [item["type"] for item in rendered.messages] == [
        "message",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
    ]
    assert rendered.messages[0]["role"] == "assistant"
    assert rendered.messages[3] == {"type": "function_call_output", "call_id": "a", "output": "1"}


def test_anthropic_alternates_roles_and_answers_all_calls_in_the_one_next_message() -> None:
    blocks = [
        user(1, "one"),
        NoteBlock("note"),
        agent(2, "hm"),
        exchange(3, ("a", '{"x":1}', "sun"), ("b", "not json", "rain"), text="let me look"),
        user(4, "thanks"),
    ]
    rendered = show(Format.ANTHROPIC, blocks, "sys")
    assert rendered.system == "sys"
    assert [message["role"] for message in rendered.messages] == ["user", "assistant", "user"]
    assert rendered.messages[1]["content"][2:] == [
        {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"x": 1}},
        {"type": "tool_use", "id": "b", "name": "get_weather", "input": {"arguments": "not json"}},
    ]
    assert [block["type"] for block in rendered.messages[2]["content"]] == ["tool_result", "tool_result", "text"]


def test_anthropic_begins_with_the_user_and_never_writes_a_blank_block() -> None:
    rendered = show(Format.ANTHROPIC, [user(1, "  "), agent(2, "hello \n"), agent(3, [{"type": "text", "text": ""}])])
    assert rendered.messages == [
        {"role": "user", "content": [{"type": "text", "text": "(conversation continues)"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "hello"}]},
    ]


@pytest.mark.parametrize("target", [Format.ANTHROPIC, Format.WORKERS_AI])
def test_formats_with_one_system_text_get_all_of_them_as_one_and_each_once(target: Format) -> None:
    system = [TurnBlock(turn(at, Role.SYSTEM, text)) for at, text in ((1, "be brief"), (3, "be kind"), (5, "be brief"))]
    rendered = show(target, [system[0], user(2, "hi"), system[1], user(4, "ho"), system[2]], "be brief")
    if target is Format.ANTHROPIC:
        assert rendered.system == "be brief\n\nbe kind"
        assert [message["role"] for message in rendered.messages] == ["user"]
        assert "brief" not in str(rendered.messages)
    else:
        assert rendered.messages[0] == {"role": "system", "content": "be brief\n\nbe kind"}
        assert [message["role"] for message in rendered.messages[1:]] == ["user", "user"]


@pytest.mark.parametrize("target", [Format.OPENAI, Format.OPENAI_RESPONSES])
def test_an_equal_system_message_is_sent_once(target: Format) -> None:
    system = [TurnBlock(turn(at, Role.SYSTEM, text)) for at, text in ((1, "be brief"), (3, "be kind"), (5, "be kind"))]
    rendered = show(target, [system[0], user(2, "hi"), system[1], system[2]], "be brief")
    assert str(rendered).count("be brief") == 1
    assert str(rendered).count("be kind") == 1


def test_anthropic_gives_a_failed_result_words_and_its_flag() -> None:
    rendered = show(Format.ANTHROPIC, [exchange(1, ("a", "", ""), error=True)])
    assert rendered.messages[1]["content"][0]["input"] == {}
    assert rendered.messages[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": "(error)", "is_error": True}
    ]


@pytest.mark.parametrize("arguments", ["[1]", "NaN", '{"a": NaN}', "[" * 100_000, "null", '"text"'])
def test_anthropic_wraps_arguments_that_are_no_json_object(arguments: str) -> None:
    rendered = show(Format.ANTHROPIC, [exchange(1, ("a", arguments, "r"))])
    assert rendered.messages[1]["content"][0]["input"] == {"arguments": arguments}


def test_workers_ai_always_has_content_and_names_the_tool() -> None:
    rendered = show(Format.WORKERS_AI, [exchange(1, ("a", "{}", "sun"))], "sys")
    assert rendered.messages[0] == {"role": "system", "content": "sys"}
    assert rendered.messages[1]["content"] == ""
    assert rendered.messages[2] == {"role": "tool", "tool_call_id": "a", "name": "get_weather", "content": "sun"}


def test_canonical_keeps_parts_as_they_were_and_names_everyone() -> None:
    parts = [{"type": "hologram", "x": 1}, {"type": "text", "text": "hi"}]
    rendered = show(Format.CANONICAL, [user(7, parts), exchange(8, ("a", {"x": 1}, [{"type": "text", "text": "r"}]))])
    assert rendered.messages[0]["content"] == parts
    assert rendered.messages[0] | {"content": None} == {
        "id": "t7",
        "position": 7,
        "role": "user",
        "kind": "user_message",
        "actor": "anna",
        "content": None,
    }
    assert rendered.messages[1]["tool_calls"] == [{"id": "a", "name": "get_weather", "arguments": {"x": 1}}]
    assert rendered.messages[2]["tool_call_id"] == "a"


@pytest.mark.parametrize(
    ("part", "openai", "responses", "anthropic", "workers"),
    [
        ({"type": "image_url", "image_url": {"url": PNG}}, "image_url", "input_image", "image", "image_url"),
        ({"type": "input_image", "image_url": PNG}, "image_url", "input_image", "image", "image_url"),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            "image_url",
            "input_image",
            "image",
            "image_url",
        ),
        ({"type": "image", "data": "AAAA", "mimeType": "image/png"}, "image_url", "input_image", "image", "image_url"),
        ({"type": "image_url", "image_url": "https://x/y.png"}, "image_url", "input_image", "image", "[image]"),
        ({"type": "input_image", "file_id": "f1"}, "[image]", "input_image", "[image]", "[image]"),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            "input_audio",
            "[audio]",
            "[audio]",
            "[audio]",
        ),
        (
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}},
            "file",
            "input_file",
            "document",
            "[file a.pdf]",
        ),
        (
            {"type": "document", "source": {"type": "url", "url": "https://x/a.pdf"}},
            "[file]",
            "input_file",
            "document",
            "[file]",
        ),
        ({"type": "hologram", "x": 1}, "[hologram]", "[hologram]", "[hologram]", "[hologram]"),
        ({"type": "image_url"}, "[image_url]", "[image_url]", "[image_url]", "[image_url]"),
        ({"x": 1}, "[part]", "[part]", "[part]", "[part]"),
    ],
)
def test_parts_become_the_equivalent_of_each_format_or_a_placeholder(
    part: dict[str, Any], openai: str, responses: str, anthropic: str, workers: str
) -> None:
    expected = {
        Format.OPENAI: openai,
        Format.OPENAI_RESPONSES: responses,
        Format.ANTHROPIC: anthropic,
        Format.WORKERS_AI: workers,
    }
    for target, kind in expected.items():
        content = show(target, [user(1, [part])]).messages[0]["content"]
        if kind.startswith("["):
            assert content == (kind if target is not Format.ANTHROPIC else [{"type": "text", "text": kind}])
        else:
            assert [shown["type"] for shown in content] == [kind]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (
            {"type": "search_result", "title": "Ferries", "source": "https://x/f", "citations": {"enabled": True},
             "content": [{"type": "text", "text": "It leaves at nine."}, {"type": "text", "text": "It is blue."}]},
            "Ferries\nhttps://x/f\nIt leaves at nine.\nIt is blue.",
        ),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Blue."}}, "Blue."),
        ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "Blue."}]}}, "Blue."),
        ({"type": "document", "source": {"type": "content", "content": "Blue."}}, "Blue."),
        ({"type": "search_result", "title": "Ferries", "source": "x", "content": [None]}, "[search_result]"),
        ({"type": "document", "source": {"type": "content", "content": []}}, "[document]"),
    ],
    ids=["search result", "text", "blocks", "one text", "search result without text", "no blocks"],
)  # fmt: skip
def test_the_text_of_a_search_result_and_of_a_document_is_shown_in_every_format(
    part: dict[str, Any], text: str
) -> None:
    result = TurnBlock(turn(1, Role.ASSISTANT), [AnsweredCall(ToolCall("c1", "find", "{}"), ToolResult("c1", [part]))])
    for target in (Format.OPENAI, Format.OPENAI_RESPONSES, Format.WORKERS_AI, Format.ANTHROPIC):
        shown = show(target, [user(1, [part])]).messages[0]["content"]
        assert shown == ([{"type": "text", "text": text}] if target is Format.ANTHROPIC else text)
        found = json.dumps(show(target, [result]).messages[-1])
        assert json.dumps(text) in found


def test_media_of_an_assistant_are_placeholders_since_providers_refuse_them() -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": PNG}}]
    for target in (Format.OPENAI, Format.OPENAI_RESPONSES, Format.WORKERS_AI):
        assert show(target, [agent(1, parts)]).messages[0]["content"] == "see\n[image]"
    assert show(Format.ANTHROPIC, [agent(1, parts)]).messages[1]["content"] == [
        {"type": "text", "text": "see\n[image]"}
    ]


def test_ids_and_tool_names_that_providers_refuse_are_made_safe_and_stay_apart() -> None:
    answered = [
        AnsweredCall(ToolCall(one, "my tool!", "{}"), ToolResult(one, "r")) for one in ("call:1", "call/1", "x" * 80)
    ]
    block = TurnBlock(turn(1, Role.ASSISTANT), answered)
    for target in (Format.OPENAI, Format.WORKERS_AI):
        rendered = show(target, [block])
        ids = [call["id"] for call in rendered.messages[0]["tool_calls"]]
        assert len(set(ids)) == 3
        assert all(len(one) <= 40 and one.replace("_", "").isalnum() for one in ids)
        assert [message["tool_call_id"] for message in rendered.messages[1:]] == ids
        assert rendered.messages[0]["tool_calls"][0]["function"]["name"] == "my_tool_"


@pytest.mark.parametrize("target", list(Format))
def test_blank_content_yields_no_message_at_all(target: Format) -> None:
    blocks = [user(1, ""), user(2, None), user(3, []), agent(4, " \n")]
    assert show(target, blocks) == RenderedMessages([], None)


def test_only_roles_with_several_speakers_are_named() -> None:
    turns = [turn(1, Role.USER), turn(2, Role.USER, actor="bert"), turn(3, Role.ASSISTANT), turn(4, Role.TOOL)]
    assert roles_with_several_speakers(turns) == {Role.USER}


def test_openai_framing_is_counted_as_the_cookbook_does() -> None:
    counter = FakeCounter()
    rendered = show(Format.OPENAI, [user(1, "hello there")], "sys", named=[Role.USER])
    count = counter.count
    system = 3 + count("system") + count("sys")
    message = 3 + count("user") + count("hello there") + 1 + count("anna")
    assert count_render(rendered, counter) == 3 + system + message


def test_media_count_as_constants_wherever_they_stand() -> None:
    counter = FakeCounter()
    part = {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}
    high = {"type": "image_url", "image_url": {"url": PNG}}
    for target in Format:
        if target is Format.ANTHROPIC:
            continue
        low = count_render(show(target, [user(1, [part])]), counter)
        # Workers AI has no detail, so both count as the larger
        more = 0 if target is Format.WORKERS_AI else tokens.IMAGE_TOKENS - tokens.IMAGE_LOW_TOKENS
        assert count_render(show(target, [user(1, [high])]), counter) - low == more
    results = show(Format.ANTHROPIC, [exchange(1, ("a", "{}", [high]))])
    assert count_render(results, counter) > tokens.IMAGE_TOKENS


def test_the_margin_is_rounded_up_and_its_limit_is_its_exact_reverse() -> None:
    margin = format_margin(Format.ANTHROPIC)
    assert margin.apply(100) == 135
    assert margin.apply(1) == 2
    for budget in range(1, 2000):
        limit = margin.limit(budget)
        assert margin.apply(limit) <= budget < margin.apply(limit + 1)
    assert format_margin(Format.OPENAI).apply(100) == 100
