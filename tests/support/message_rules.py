"""The rules of providers for a sequence of messages: the faults that a provider would refuse, and a repair of them.

Uses the parsers that make turns, so a message that cannot be parsed is a fault too (`malformed`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from app.core.errors import Invalid
from app.formats.extra_fields import items_in
from app.formats.parse.validation import field_error
from app.formats.parts import parse_parts
from app.formats.schemas import Format, JsonObject, ParsedTurn, Role
from app.formats.service import parse, parse_single_message, render
from app.formats.turns import to_canonical
from app.formats.units import group_turns

_RESULTS_FOLLOW_CALLS: Final = frozenset({Format.OPENAI, Format.WORKERS_AI, Format.ANTHROPIC})
"""Formats in which the results of a message's calls must follow it directly."""

DETAILS: Final = {
    "call_without_result": "the result of this call does not follow where the provider requires it",
    "result_without_call": "no message has a call with this id",
    "result_before_call": "the call with this id comes later",
    "result_out_of_place": "the result must come directly after its call",
    "duplicate_call_id": "an earlier call has this id",
    "duplicate_result": "this call already has a result",
    "empty_content": "the message has no content",
    "blank_text": "the text block is blank",
    "roles_do_not_alternate": "the message before has the same role",
    "first_not_user": "the first message must be the user's",
    "system_not_allowed": "put the system text into `system`, not into the messages",
    "results_not_first": "results must come first in a message",
    "final_whitespace": "the last message is the assistant's and ends in white space",
    "reasoning_without_item": "no item follows from this reasoning",
}


@dataclass(frozen=True, slots=True)
class MessageFault:
    """A fault that a provider would refuse: its code, a JSON pointer to it, and a description."""

    code: str
    pointer: str
    detail: str


@dataclass(frozen=True, slots=True)
class RepairedMessages:
    """Messages that a provider accepts; `left_out` gives the reason for each omission."""

    messages: list[JsonObject]
    system: str | None
    left_out: tuple[str, ...]


@dataclass(slots=True)
class _CallState:
    """The calls so far, and those that wait for their results."""

    later: set[str]
    waiting: dict[str, str] = field(default_factory=dict[str, str])
    called: set[str] = field(default_factory=set[str])
    answered: set[str] = field(default_factory=set[str])


def check(source: Format, messages: object, *, root: str = "/messages") -> list[MessageFault]:
    """List the faults that the provider would refuse in these messages, in order, each with a pointer.

    Raises Invalid only if the messages are not a list of JSON objects. The codes are those of `DETAILS`, and
    `malformed` for a message that cannot be parsed.
    """
    given = _objects(messages, root)
    parsed: list[list[ParsedTurn] | Invalid] = []
    for index, message in enumerate(given):
        try:
            parsed.append(parse_single_message(source, message, f"{root}/{index}"))
        except Invalid as error:
            parsed.append(error)
    return list(_find_faults(source, given, parsed, root))


def _objects(given: object, at: str) -> list[JsonObject]:
    if not isinstance(given, list):
        raise field_error(at, "a list of objects")
    for index, value in enumerate(given):
        if not isinstance(value, dict):
            raise field_error(f"{at}/{index}", "an object")
    return given


def repair(source: Format, messages: object, *, system: str | None = None, root: str = "/messages") -> RepairedMessages:
    """Return messages that the provider accepts: paired, merged and rendered like a context. Raises like `parse`."""
    turns = parse(source, messages, root=root)
    paired = group_turns([to_canonical(turn, position=at, turn_id=str(at)) for at, turn in enumerate(turns, 1)])
    blocks = [block for unit in paired.units for block in unit.blocks]
    rendered = render(source, system=system, blocks=blocks)
    return RepairedMessages(rendered.messages, rendered.system, tuple(left.reason for left in paired.left_out))


def _find_faults(
    target: Format, messages: list[JsonObject], parsed: list[list[ParsedTurn] | Invalid], root: str
) -> Iterator[MessageFault]:
    """Return the faults in order; `parsed` has the turns of each message, or its parse error."""
    turns = [group if isinstance(group, list) else [] for group in parsed]
    state = _CallState({call_id for group in turns for turn in group for call_id, _ in _calls(turn, "")})
    for index, (message, group) in enumerate(zip(messages, turns, strict=True)):
        pointer = f"{root}/{index}"
        error = parsed[index]
        if target is Format.ANTHROPIC and message.get("role") in ("system", "developer"):
            yield _fault("system_not_allowed", f"{pointer}/role")
        elif isinstance(error, Invalid):
            yield from (MessageFault("malformed", fault.pointer, fault.detail) for fault in error.fields)
        yield from _sequence_faults(target, state, message, group, pointer)
        yield from _empty_faults(target, message, group, pointer)
    yield from (_fault("call_without_result", member_pointer) for member_pointer in state.waiting.values())
    if target is Format.ANTHROPIC:
        yield from _anthropic_faults(messages, root)
    if target is Format.OPENAI_RESPONSES:
        yield from _reasoning_faults(turns, root)


def _fault(code: str, pointer: str) -> MessageFault:
    return MessageFault(code, pointer, DETAILS[code])


def _sequence_faults(
    target: Format, state: _CallState, message: JsonObject, group: list[ParsedTurn], pointer: str
) -> Iterator[MessageFault]:
    results = [found for turn in group for found in _results(turn, message, pointer)]
    for call_id, member_pointer in results:
        if call_id not in state.called:
            yield _fault("result_before_call" if call_id in state.later else "result_without_call", member_pointer)
        elif call_id in state.answered:
            yield _fault("duplicate_result", member_pointer)
        elif call_id not in state.waiting:
            yield _fault("result_out_of_place", member_pointer)
            state.answered.add(call_id)
        else:
            del state.waiting[call_id]
            state.answered.add(call_id)
    # tool messages may follow each other; Anthropic has all results in one message
    if target in _RESULTS_FOLLOW_CALLS and (not results or target is Format.ANTHROPIC):
        yield from (_fault("call_without_result", member_pointer) for member_pointer in state.waiting.values())
        state.waiting.clear()
    for turn in group:
        for call_id, member_pointer in _calls(turn, pointer, message):
            if call_id in state.called:
                yield _fault("duplicate_call_id", member_pointer)
            else:
                state.waiting[call_id] = member_pointer
            state.called.add(call_id)


def _empty_faults(target: Format, message: JsonObject, group: list[ParsedTurn], pointer: str) -> Iterator[MessageFault]:
    for turn in group:
        has_tools = turn.tool_calls or turn.tool_results or turn.tool_call_id
        has_items = any(items_in(turn.content, source) for source in Format)
        if not has_tools and not has_items and not parse_parts(turn.content):
            yield _fault("empty_content", f"{pointer}/content")
        elif target is Format.ANTHROPIC and isinstance(content := message.get("content"), list):
            for index, block in enumerate(content):
                text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
                if isinstance(text, str) and not text.strip():
                    yield _fault("blank_text", f"{pointer}/content/{index}/text")


def _anthropic_faults(messages: list[JsonObject], root: str) -> Iterator[MessageFault]:
    spoken = [(index, message.get("role")) for index, message in enumerate(messages)]
    for turn_index, (index, role) in enumerate(spoken):
        if turn_index == 0 and role == "assistant":
            yield _fault("first_not_user", f"{root}/{index}/role")
        if turn_index and role == spoken[turn_index - 1][1]:
            yield _fault("roles_do_not_alternate", f"{root}/{index}/role")
        content = messages[index].get("content")
        kinds = [block.get("type") for block in content if isinstance(block, dict)] if isinstance(content, list) else []
        first_other = next((at for at, kind in enumerate(kinds) if kind != "tool_result"), len(kinds))
        if "tool_result" in kinds[first_other:]:
            yield _fault("results_not_first", f"{root}/{index}/content/{kinds.index('tool_result', first_other)}")
    if messages and messages[-1].get("role") == "assistant":
        content = messages[-1].get("content")
        last = content[-1] if isinstance(content, list) and content else content
        text = last.get("text") if isinstance(last, dict) else last
        if isinstance(text, str) and text.strip() and text != text.rstrip():
            yield _fault("final_whitespace", f"{root}/{len(messages) - 1}/content")


def _reasoning_faults(turns: list[list[ParsedTurn]], root: str) -> Iterator[MessageFault]:
    for index, group in enumerate(turns):
        items = [item for turn in group for item in items_in(turn.content, Format.OPENAI_RESPONSES)]
        following = turns[index + 1] if index + 1 < len(turns) else []
        has_answer = any(turn.role is Role.ASSISTANT for turn in following)
        if any(item.get("type") == "reasoning" for item in items) and not has_answer:
            yield _fault("reasoning_without_item", f"{root}/{index}")


def _calls(turn: ParsedTurn, pointer: str, message: JsonObject | None = None) -> list[tuple[str, str]]:
    """Return the ids of a turn's calls, and their pointers in the message."""
    blocks = [] if message is None else _blocks(message, "tool_use")
    if message is not None and message.get("type") is not None:
        pointers = [f"{pointer}/call_id"] * len(turn.tool_calls)
    elif blocks:
        pointers = [f"{pointer}/content/{index}/id" for index in blocks]
    else:
        pointers = [f"{pointer}/tool_calls/{index}/id" for index in range(len(turn.tool_calls))]
    return [(str(call["id"]), at) for call, at in zip(turn.tool_calls, pointers, strict=True)]


def _results(turn: ParsedTurn, message: JsonObject, pointer: str) -> list[tuple[str, str]]:
    if turn.tool_call_id is not None:
        kind = message.get("type")
        name = "tool_call_id" if kind is None else "id" if kind == "local_shell_call_output" else "call_id"
        return [(turn.tool_call_id, f"{pointer}/{name}")]
    blocks = _blocks(message, "tool_result")
    if len(blocks) == len(turn.tool_results):
        pointers = [f"{pointer}/content/{index}/tool_use_id" for index in blocks]
    elif "tool_call_id" in message:
        pointers = [f"{pointer}/tool_call_id"]
    else:
        pointers = [f"{pointer}/tool_results/{index}/tool_call_id" for index in range(len(turn.tool_results))]
    return [
        (str(result["tool_call_id"]), member_pointer)
        for result, member_pointer in zip(turn.tool_results, pointers, strict=True)
    ]


def _blocks(message: JsonObject, kind: str) -> list[int]:
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    return [index for index, block in enumerate(blocks) if isinstance(block, dict) and block.get("type") == kind]
