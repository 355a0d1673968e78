"""Random messages of every provider: read into turns, given back, and shown to other providers.

`TURNKEEP_PROPERTY_EXAMPLES=20000` is the long form.
"""

import copy
import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

from app.conversations.drafts import make_draft
from app.conversations.schemas.conversations import TurnInput, plain_text
from app.core.errors import Invalid
from app.formats.schemas import GIVEN, Format, ParsedTurn, Role
from app.formats.service import items_of, parse, render, write
from app.formats.turns import to_canonical
from app.formats.units import group_turns
from app.settings.conversations import LimitSettings
from tests.support.message_rules import check, repair

EXAMPLES = int(os.environ.get("TURNKEEP_PROPERTY_EXAMPLES", "200"))
CHAT = TypeAdapter[Any](ChatCompletionMessageParam)
ITEM = TypeAdapter[Any](ResponseInputItemParam)
LIMITS = LimitSettings(max_turns_per_append=10_000)
SECRET = "thought-aloud"

common = settings(max_examples=max(20, EXAMPLES // 40), suppress_health_check=list(HealthCheck), print_blob=True)

chars = st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00")
anything = st.text(chars, max_size=20)
said = st.text(chars, min_size=1, max_size=20).filter(str.strip)
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
values = st.recursive(
    st.none() | numbers | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anything, inner, max_size=3),
    max_leaves=6,
)
extras = st.dictionaries(
    st.sampled_from(
        ["id", "status", "phase", "annotations", "logprobs", "name", "refusal", "x", "audio", "tool_calls"]
    ),
    values,
    max_size=2,
)
ids = st.sampled_from(["c1", "c2", "c3", "weird id!", "x" * 70])
names = st.sampled_from(["get_weather", "find it", "東"])
arguments = st.sampled_from(["{}", '{"a": 1}', "no json", ""])
NATIVE = ["computer_call", "shell_call", "local_shell_call", "apply_patch_call"]
KNOWN = [
    *NATIVE, "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
    "computer_call_output", "shell_call_output", "local_shell_call_output", "apply_patch_call_output", "reasoning",
    "web_search_call", "file_search_call", "mcp_call", "mcp_list_tools", "mcp_approval_request",
    "mcp_approval_response", "image_generation_call", "code_interpreter_call", "item_reference", "compaction", GIVEN,
]  # fmt: skip


def merged(one: st.SearchStrategy[Any], more: st.SearchStrategy[Any] = extras) -> st.SearchStrategy[Any]:
    return st.tuples(more, one).map(lambda pair: {**pair[0], **pair[1]})


def fixed(**members: Any) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {name: one if isinstance(one, st.SearchStrategy) else st.just(one) for name, one in members.items()}
    )


# --- messages of each provider

text_parts = {
    Format.OPENAI: merged(fixed(type="text", text=anything), st.just({})),
    Format.OPENAI_RESPONSES: merged(fixed(type=st.sampled_from(["input_text", "output_text"]), text=anything)),
    Format.ANTHROPIC: merged(
        fixed(type="text", text=anything), st.sampled_from([{}, {"cache_control": {"type": "e"}}])
    ),
}
media = {
    Format.OPENAI: fixed(type="image_url", image_url=fixed(url="https://x/y.png")),
    Format.OPENAI_RESPONSES: fixed(type="input_image", image_url="https://x/y.png", detail="auto"),
    Format.ANTHROPIC: fixed(type="image", source=fixed(type="url", url="https://x/y.png")),
}


def contents(source: Format) -> st.SearchStrategy[Any]:
    source = Format.OPENAI if source is Format.WORKERS_AI else source
    return anything | st.lists(text_parts[source] | media[source] | fixed(type="hologram", x=values), max_size=3)


def chat_messages(source: Format) -> st.SearchStrategy[Any]:
    content = contents(source)
    call = fixed(id=ids, type="function", function=fixed(name=names, arguments=arguments))
    custom = merged(fixed(id=ids, type="custom", custom=fixed(name=names, input=anything)), st.just({"y": 1}))
    calls = st.lists(call | custom, min_size=1, max_size=3, unique_by=lambda one: one["id"])
    other = st.dictionaries(st.sampled_from(["name", "annotations", "audio", "x"]), values, max_size=2)
    return st.one_of(
        merged(fixed(role=st.sampled_from(["user", "system", "developer"]), content=content), other),
        merged(fixed(role="assistant", content=content), extras.map(lambda one: one | {"tool_calls": []})),
        merged(fixed(role="assistant", content=st.none() | content, tool_calls=calls), other),
        merged(fixed(role="assistant", tool_calls=calls), other),
        fixed(role="assistant", content=st.none(), refusal=anything),
        merged(fixed(role="tool", tool_call_id=ids, content=content), other),
    )


def anthropic_messages() -> st.SearchStrategy[Any]:
    blocks = text_parts[Format.ANTHROPIC] | media[Format.ANTHROPIC]
    uses = merged(fixed(type="tool_use", id=ids, name=names, input=st.dictionaries(anything, values, max_size=2)))
    result = merged(fixed(type="tool_result", tool_use_id=ids), st.just({}) | fixed(is_error=st.booleans()))
    result = merged(result, st.just({}) | fixed(content=contents(Format.ANTHROPIC)) | fixed(cache_control=values))
    thought = fixed(type="thinking", thinking=SECRET, signature=anything)
    own = (
        thought
        | merged(fixed(type="server_tool_use", id="s1", input=values))
        | fixed(type="redacted_thinking", data="x")
    )

    def unlike(found: list[Any]) -> bool:
        keys = [
            one.get("id" if one["type"] == "tool_use" else "tool_use_id") for one in found if "tool_" in one["type"]
        ]
        return len([key for key in keys if key != "s1"]) == len({key for key in keys if key != "s1"})

    content = contents(Format.ANTHROPIC)
    return st.one_of(
        merged(fixed(role=st.sampled_from(["user", "assistant"]), content=content), st.just({}) | fixed(x=values)),
        fixed(role="assistant", content=st.lists(blocks | uses | own, max_size=4).filter(unlike)),
        fixed(role="user", content=st.lists(blocks | result, max_size=4).filter(unlike)),
    )


def items() -> st.SearchStrategy[Any]:
    content = contents(Format.OPENAI_RESPONSES)
    output = anything | st.lists(text_parts[Format.OPENAI_RESPONSES] | media[Format.OPENAI_RESPONSES], max_size=2)
    streams = st.lists(fixed(stdout=anything, stderr=anything, outcome=values), max_size=2)
    silent = [name for name in KNOWN if not name.endswith("output") and name not in {*NATIVE, "message"}]
    silent = [name for name in silent if name not in {"function_call", "custom_tool_call"}]
    return st.one_of(
        fixed(role=st.sampled_from(["user", "assistant", "system", "developer"]), content=content),
        merged(fixed(type="message", role=st.sampled_from(["user", "assistant"]), content=content)),
        merged(fixed(type="function_call", call_id=ids, name=names, arguments=arguments)),
        merged(fixed(type="function_call_output", call_id=ids, output=output)),
        merged(fixed(type="custom_tool_call", call_id=ids, name=names, input=anything)),
        merged(fixed(type="custom_tool_call_output", call_id=ids, output=output)),
        merged(fixed(type=st.sampled_from(NATIVE), call_id=ids, action=values)),
        fixed(type="computer_call_output", call_id=ids, output=fixed(type="computer_screenshot", image_url="data:x")),
        merged(fixed(type="shell_call_output", call_id=ids, output=streams)),
        merged(fixed(type="local_shell_call_output", id=ids, output=anything), st.just({"status": "completed"})),
        fixed(type="apply_patch_call_output", call_id=ids, status="completed", output=st.none() | anything),
        merged(fixed(type=st.sampled_from(silent), text=SECRET), st.dictionaries(anything, values, max_size=2)),
        fixed(type="reasoning", id="rs_1", summary=st.just([{"type": "summary_text", "text": SECRET}]),
              encrypted_content=st.none() | st.just("gAAAA")),
    )  # fmt: skip


def messages(source: Format) -> st.SearchStrategy[Any]:
    match source:
        case Format.OPENAI | Format.WORKERS_AI:
            return chat_messages(source)
        case Format.ANTHROPIC:
            return anthropic_messages()
        case Format.OPENAI_RESPONSES:
            return items()
        case Format.CANONICAL:
            return st.sampled_from(list(Format)[:4]).flatmap(lambda one: messages(one).map(lambda m: canonical(one, m)))


def canonical(source: Format, message: Any) -> Any:
    return write(Format.CANONICAL, parse(source, [message])).messages[0]


def dumps(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def stored(turn: ParsedTurn) -> Any:
    """The turn as it comes back from a database: by the rules of an append, through JSON."""
    turn_input = TurnInput.model_validate(json.loads(json.dumps(turn.members())))
    draft = make_draft(turn_input, limits=LIMITS, now=datetime.now(UTC))
    assert draft.kind is turn.kind
    return turn_input


# --- what must hold


@pytest.mark.parametrize("source", list(Format))
@common
@given(data=st.data())
def test_messages_come_back_as_they_were_given(source: Format, data: st.DataObject) -> None:
    given_messages = data.draw(st.lists(messages(source), max_size=5))
    before = copy.deepcopy(given_messages)
    turns = [stored(turn) for turn in parse(source, given_messages)]
    if source is Format.CANONICAL:
        again = parse(source, write(source, parse(source, given_messages)).messages)
        assert again == parse(source, given_messages)
    else:
        assert [dumps(one) for one in write(source, turns).messages] == [dumps(one) for one in before]
    assert dumps(given_messages) == dumps(before)


@common
@given(kind=st.sampled_from(KNOWN) | anything, members=st.dictionaries(st.sampled_from(
    ["role", "content", "call_id", "id", "name", "arguments", "input", "output", "action", "text", "status"]
) | anything, values, max_size=5))  # fmt: skip
def test_an_item_of_any_type_with_any_members_is_given_back_or_refused_by_name(kind: str, members: Any) -> None:
    item = {**members, "type": kind}
    try:
        (turn,) = parse(Format.OPENAI_RESPONSES, [item], root="/input")
    except Invalid as refused:
        pointers = [one.pointer for one in refused.fields]
    else:
        assert [dumps(one) for one in items_of(stored(turn))] == [dumps(item)]
        return
    assert all(one.startswith("/input/0") for one in pointers)
    assert kind in KNOWN or not 0 < len(kind) <= 256


@pytest.mark.parametrize("target", list(Format))
@common
@given(data=st.data())
def test_what_every_provider_is_shown_holds_all_words_pairs_calls_and_never_thinks_aloud(
    target: Format, data: st.DataObject
) -> None:
    source = data.draw(st.sampled_from(list(Format)[:4]))
    turns = parse(source, data.draw(st.lists(messages(source), max_size=6)))
    canon = [to_canonical(turn, position=at, turn_id=str(at)) for at, turn in enumerate(turns, 1)]
    units = group_turns(canon).units
    rendered = render(target, system=None, blocks=[block for unit in units for block in unit.blocks])
    shown = [*strings(rendered.messages), rendered.system or ""]
    everything = "\n".join(shown)
    answered = [pair for unit in units for block in unit.blocks for pair in block.answered]
    for pair in answered:
        assert all(word in everything for text in texts(pair.result.content) for word in text.split())
    for turn in turns:
        if turn.role is not Role.TOOL:
            assert all(any(text.strip() in one for one in shown) for text in texts(turn.content) if text.strip()), turn
    if target not in {source, Format.CANONICAL}:
        assert not any(SECRET in one for one in shown)
    spoken = [text for message in rendered.messages for text in strings(message.get("content"), kept=False)]
    if not (source is target is Format.ANTHROPIC):
        assert not any(SECRET in one for one in spoken)
    assert [fault for fault in check(target, rendered.messages) if target is not Format.CANONICAL] == []
    validate(target, rendered.messages)


@pytest.mark.parametrize("source", [one for one in Format if one is not Format.CANONICAL])
@common
@given(data=st.data())
def test_what_is_repaired_has_no_faults_and_is_valid(source: Format, data: st.DataObject) -> None:
    repaired = repair(source, data.draw(st.lists(messages(source), max_size=8)))
    assert check(source, repaired.messages) == []
    validate(source, repaired.messages)
    again = repair(source, repaired.messages)
    assert check(source, again.messages) == []


def test_an_output_whose_name_is_no_text_is_repaired() -> None:
    call = {"id": None, "type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "", "name": []}
    repaired = repair(Format.OPENAI_RESPONSES, [{"role": "user", "content": "?"}, call, output])
    validate(Format.OPENAI_RESPONSES, repaired.messages)
    assert "name" not in repaired.messages[-1]


@pytest.mark.parametrize("source", list(Format)[:4])
@common
@given(data=st.data())
def test_only_what_was_said_is_searched_and_nothing_twice(source: Format, data: st.DataObject) -> None:
    for turn in parse(source, data.draw(st.lists(messages(source), max_size=3))):
        counted = plain_text(stored(turn))
        assert SECRET not in counted
        calls = [" ".join(spoken_call(call)) for call in turn.tool_calls]
        results = [text for one in turn.tool_results for text in texts(one["content"])]
        whole = [text for text in [*texts(turn.content), *calls, *results] if text]
        assert sorted("\n".join(whole).split()) == sorted(counted.split())


HOSTILE: list[Any] = [
    "\x00", "\ud800", "x" * 3000, 2**60, float("nan"), float("inf"), None, True, 7, 1.5, [], {}, {1: 2}, object(), b"x",
    (1,), [None], {"\x00": 1}, {"type": GIVEN}, [[]], [{}], {"type": 1},
]  # fmt: skip


@pytest.mark.parametrize("source", list(Format))
@common
@given(data=st.data())
def test_hostile_values_anywhere_are_read_or_refused_with_a_pointer_that_repeats_nothing(
    source: Format, data: st.DataObject
) -> None:
    hostile = data.draw(st.sampled_from([*HOSTILE, nested(70), nested(5000)]))
    given_messages = copy.deepcopy(data.draw(st.lists(messages(source), min_size=1, max_size=3)))
    owner, key = data.draw(st.sampled_from(list(places(given_messages))))
    owner[key] = hostile
    try:
        turns = parse(source, given_messages)
    except Invalid as refused:
        (field,) = refused.fields
        assert field.pointer.startswith("/messages")
        assert "xxx" not in field.detail + field.pointer
        assert all(step.isdigit() or step.replace("_", "").isalpha() for step in field.pointer.split("/")[1:])
        return
    for turn in turns:
        stored(turn)
    check(source, given_messages)


def nested(levels: int) -> Any:
    inner: Any = "x"
    for _ in range(levels):
        inner = [inner]
    return inner


def places(value: Any) -> Iterable[tuple[Any, Any]]:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


def strings(value: Any, *, kept: bool = True) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        if kept or value.get("type") != GIVEN:
            for inner in value.values():
                yield from strings(inner, kept=kept)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner, kept=kept)


def texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or [] if isinstance(part.get("text"), str) and part["type"] != GIVEN]


def spoken_call(call: Any) -> tuple[str, str]:
    body = call.get("function", call)
    given_arguments = body["arguments"]
    if isinstance(given_arguments, dict):
        given_arguments = json.dumps(given_arguments, ensure_ascii=False, separators=(",", ":"))
    return body["name"], given_arguments


def completed(item: Any) -> Any:
    """Return an item with the members of an answer that its schema requires, and requests may leave out."""
    if item["type"] != "message" or item["role"] != "assistant" or isinstance(item["content"], str):
        return item
    content = [{"annotations": [], **part} if part["type"] == "output_text" else part for part in item["content"]]
    return {"id": "msg_1", "status": "completed", **item, "content": content}


def validate(target: Format, shown: list[Any]) -> None:
    for message in shown:
        match target:
            case Format.OPENAI:
                CHAT.validate_python(message)
            case Format.OPENAI_RESPONSES if message.get("type") in {
                "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
                "reasoning",
            }:  # fmt: skip
                ITEM.validate_python(completed(message))
            case _:
                pass
