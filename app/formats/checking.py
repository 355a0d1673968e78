"""What a provider would refuse in a sequence of messages, each case by its name and place. Repairs nothing.

Reads messages by the same parsers that turns are made with, so what cannot be read is a fault too (`malformed`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from app.core.errors import Invalid
from app.formats.extra_fields import items_in
from app.formats.parts import parts_of
from app.formats.schemas import Fault, Format, JsonObject, ParsedTurn, Role

_IMMEDIATE: Final = frozenset({Format.OPENAI, Format.WORKERS_AI, Format.ANTHROPIC})
"""Here the results of a message's calls come right after it."""

DETAILS: Final = {
    "call_without_result": "no result of this call follows where the provider asks for it",
    "result_without_call": "no message has a call of this id",
    "result_before_call": "the call of this id comes later",
    "result_out_of_place": "the result does not come right after its call",
    "duplicate_call_id": "an earlier call has this id",
    "duplicate_result": "this call has a result already",
    "empty_content": "nothing is said here",
    "blank_text": "a text block of blanks only",
    "roles_do_not_alternate": "the message before is of the same role",
    "first_not_user": "the first message is the user's",
    "system_not_allowed": "the system text stands beside the messages, not among them",
    "results_not_first": "results come before all else in a message",
    "final_whitespace": "the last message is the assistant's and ends in white space",
    "reasoning_without_item": "nothing follows that came of this",
}


@dataclass(slots=True)
class _Walk:
    """Which calls there were so far, and which wait for their results."""

    later: set[str]
    waiting: dict[str, str] = field(default_factory=dict[str, str])
    asked: set[str] = field(default_factory=set[str])
    answered: set[str] = field(default_factory=set[str])


def faults(
    target: Format, messages: list[JsonObject], read: list[list[ParsedTurn] | Invalid], root: str
) -> Iterator[Fault]:
    """Name the faults in order; `read` holds what each message was read as, or why it was not."""
    turns = [one if isinstance(one, list) else [] for one in read]
    walk = _Walk({call_id for group in turns for turn in group for call_id, _ in _calls(turn, "")})
    for index, (message, group) in enumerate(zip(messages, turns, strict=True)):
        at = f"{root}/{index}"
        refused = read[index]
        if target is Format.ANTHROPIC and message.get("role") in ("system", "developer"):
            yield _fault("system_not_allowed", f"{at}/role")
        elif isinstance(refused, Invalid):
            yield from (Fault("malformed", one.pointer, one.detail) for one in refused.fields)
        yield from _sequence_faults(target, walk, message, group, at)
        yield from _empty_faults(target, message, group, at)
    yield from (_fault("call_without_result", place) for place in walk.waiting.values())
    if target is Format.ANTHROPIC:
        yield from _anthropic_faults(messages, root)
    if target is Format.OPENAI_RESPONSES:
        yield from _reasoning_faults(turns, root)


def _fault(code: str, pointer: str) -> Fault:
    return Fault(code, pointer, DETAILS[code])


def _sequence_faults(
    target: Format, walk: _Walk, message: JsonObject, group: list[ParsedTurn], at: str
) -> Iterator[Fault]:
    results = [found for turn in group for found in _results(turn, message, at)]
    for call_id, place in results:
        if call_id not in walk.asked:
            yield _fault("result_before_call" if call_id in walk.later else "result_without_call", place)
        elif call_id in walk.answered:
            yield _fault("duplicate_result", place)
        elif call_id not in walk.waiting:
            yield _fault("result_out_of_place", place)
            walk.answered.add(call_id)
        else:
            del walk.waiting[call_id]
            walk.answered.add(call_id)
    # one message of a tool follows another; Anthropic has all results in one
    if target in _IMMEDIATE and (not results or target is Format.ANTHROPIC):
        yield from (_fault("call_without_result", place) for place in walk.waiting.values())
        walk.waiting.clear()
    for turn in group:
        for call_id, place in _calls(turn, at, message):
            if call_id in walk.asked:
                yield _fault("duplicate_call_id", place)
            else:
                walk.waiting[call_id] = place
            walk.asked.add(call_id)


def _empty_faults(target: Format, message: JsonObject, group: list[ParsedTurn], at: str) -> Iterator[Fault]:
    for turn in group:
        acts = turn.tool_calls or turn.tool_results or turn.tool_call_id
        kept = any(items_in(turn.content, one) for one in Format)
        if not acts and not kept and not parts_of(turn.content):
            yield _fault("empty_content", f"{at}/content")
        elif target is Format.ANTHROPIC and isinstance(content := message.get("content"), list):
            for index, block in enumerate(content):
                text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
                if isinstance(text, str) and not text.strip():
                    yield _fault("blank_text", f"{at}/content/{index}/text")


def _anthropic_faults(messages: list[JsonObject], root: str) -> Iterator[Fault]:
    spoken = [(index, message.get("role")) for index, message in enumerate(messages)]
    for place, (index, role) in enumerate(spoken):
        if place == 0 and role == "assistant":
            yield _fault("first_not_user", f"{root}/{index}/role")
        if place and role == spoken[place - 1][1]:
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


def _reasoning_faults(turns: list[list[ParsedTurn]], root: str) -> Iterator[Fault]:
    for index, group in enumerate(turns):
        items = [item for turn in group for item in items_in(turn.content, Format.OPENAI_RESPONSES)]
        following = turns[index + 1] if index + 1 < len(turns) else []
        came = any(turn.role is Role.ASSISTANT for turn in following)
        if any(item.get("type") == "reasoning" for item in items) and not came:
            yield _fault("reasoning_without_item", f"{root}/{index}")


def _calls(turn: ParsedTurn, at: str, message: JsonObject | None = None) -> list[tuple[str, str]]:
    """The ids of a turn's calls, and where each stands in the message."""
    blocks = [] if message is None else _blocks(message, "tool_use")
    if message is not None and message.get("type") is not None:
        places = [f"{at}/call_id"] * len(turn.tool_calls)
    elif blocks:
        places = [f"{at}/content/{index}/id" for index in blocks]
    else:
        places = [f"{at}/tool_calls/{index}/id" for index in range(len(turn.tool_calls))]
    return [(str(call["id"]), place) for call, place in zip(turn.tool_calls, places, strict=True)]


def _results(turn: ParsedTurn, message: JsonObject, at: str) -> list[tuple[str, str]]:
    if turn.tool_call_id is not None:
        kind = message.get("type")
        name = "tool_call_id" if kind is None else "id" if kind == "local_shell_call_output" else "call_id"
        return [(turn.tool_call_id, f"{at}/{name}")]
    blocks = _blocks(message, "tool_result")
    if len(blocks) == len(turn.tool_results):
        places = [f"{at}/content/{index}/tool_use_id" for index in blocks]
    elif "tool_call_id" in message:
        places = [f"{at}/tool_call_id"]
    else:
        places = [f"{at}/tool_results/{index}/tool_call_id" for index in range(len(turn.tool_results))]
    return [(str(result["tool_call_id"]), place) for result, place in zip(turn.tool_results, places, strict=True)]


def _blocks(message: JsonObject, kind: str) -> list[int]:
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    return [index for index, block in enumerate(blocks) if isinstance(block, dict) and block.get("type") == kind]
