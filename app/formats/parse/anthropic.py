"""Anthropic messages read into turns and written back, nothing lost.

A user's message with results is a turn of a tool; what else stands in it is a turn of the user after that. The system
text is a turn in front. Blocks of an assistant that are neither text nor a call (thinking, tools of the provider) are
kept whole and say nothing.
"""

from collections.abc import Sequence
from typing import Final

from app.core.errors import Invalid
from app.formats.extra_fields import difference, item_of, packed, restored, unpacked, whole
from app.formats.parse import validation
from app.formats.render import anthropic
from app.formats.schemas import GIVEN, Format, JsonObject, ParsedTurn, Role, TurnLike, Written, kind_of
from app.formats.turns import canonical_of, results_of

_FORMAT: Final = Format.ANTHROPIC
_ROLES: Final = {"user": Role.USER, "assistant": Role.ASSISTANT}
_JOINS: Final = "joins"


def parse_system(source: Format, system: object, at: str) -> list[ParsedTurn]:
    """The turn of a system text, or of its blocks; none where it is empty. Raises Invalid."""
    if system is None or system in ("", []):
        return []
    owner: JsonObject = {"system": system}  # pyright: ignore[reportAssignmentType]
    validation.check_json(system, at)
    content = validation.content_in(owner, "system", at.removesuffix("/system"))
    return [ParsedTurn(Role.SYSTEM, kind_of(Role.SYSTEM), source, content)]


def parse_message(message: JsonObject, at: str) -> list[ParsedTurn]:
    """The turns of one message: one, or of a user's message with results and more, two. Raises Invalid."""
    role = validation.role_in(message, _ROLES, at)
    content = validation.content_in(message, "content", at)
    blocks = [] if isinstance(content, str) else content
    if role is Role.ASSISTANT:
        return [_assistant(message, content, blocks, at)]
    results = [
        _result(block, f"{at}/content/{index}") for index, block in enumerate(blocks) if block["type"] == "tool_result"
    ]
    validation.distinct(results, "tool_call_id", f"{at}/content")
    rest = [block for block in blocks if block["type"] != "tool_result"]
    said = content if isinstance(content, str) else rest
    kept = difference(message, _plain(role, said, [], results))
    if not results:
        return [ParsedTurn(role, kind_of(role), _FORMAT, packed(_FORMAT, said, kept))]
    tool = ParsedTurn(Role.TOOL, kind_of(Role.TOOL), _FORMAT, tool_results=results)
    if rest:
        return [tool, ParsedTurn(role, kind_of(role), _FORMAT, packed(_FORMAT, rest, {_JOINS: True, **kept}))]
    content_kept = packed(_FORMAT, None, kept)
    return [ParsedTurn(Role.TOOL, tool.kind, _FORMAT, content_kept, tool_results=results)]


def write(turns: Sequence[TurnLike]) -> Written:
    """Write turns as they were given; the first one's text is `system` where it is a system turn."""
    waiting = list(turns)
    system: str | list[JsonObject] | None = None
    if waiting and waiting[0].role is Role.SYSTEM:
        system = _system(waiting.pop(0))
    messages: list[JsonObject] = []
    while waiting:
        first = waiting.pop(0)
        pair = [first, waiting[0]] if waiting and _joins(first, waiting[0]) else [first]
        message = _native(pair)
        if message is None:
            messages.extend(_foreign(first))
            continue
        del waiting[: len(pair) - 1]
        messages.append(message)
    return Written(messages, system)


def _assistant(message: JsonObject, content: str | list[JsonObject], blocks: list[JsonObject], at: str) -> ParsedTurn:
    calls = [_call(block, f"{at}/content/{i}") for i, block in enumerate(blocks) if block["type"] == "tool_use"]
    validation.distinct(calls, "id", f"{at}/content")
    rest = [
        block if block["type"] == "text" else whole(_FORMAT, block) for block in blocks if block["type"] != "tool_use"
    ]
    said = content if isinstance(content, str) else None if calls and not rest else rest
    kept = difference(message, _plain(Role.ASSISTANT, said, calls, []))
    role = Role.ASSISTANT
    return ParsedTurn(role, kind_of(role, calls=bool(calls)), _FORMAT, packed(_FORMAT, said, kept), tool_calls=calls)


def _call(block: JsonObject, at: str) -> JsonObject:
    call: JsonObject = {
        "id": validation.name_of(block, "id", at),
        "name": validation.name_of(block, "name", at),
        "arguments": validation.object_in(block, "input", at),
    }
    kept = difference(block, _plain_use(call))
    return {**call, GIVEN: kept} if kept else call


def _result(block: JsonObject, at: str) -> JsonObject:
    result: JsonObject = {"tool_call_id": validation.name_of(block, "tool_use_id", at)}
    content = "" if block.get("content") is None else validation.content_in(block, "content", at)
    result["content"] = content if isinstance(content, str) else [*content]
    if "is_error" in block:
        if not isinstance(block["is_error"], bool):
            raise validation.refusal(f"{at}/is_error", "true or false")
        result["is_error"] = block["is_error"]
    kept = difference(block, _plain_result(result))
    return {**result, GIVEN: kept} if kept else result


def _plain(
    role: Role, said: str | list[JsonObject] | None, calls: list[JsonObject], results: list[JsonObject]
) -> JsonObject:
    """A message with the results first, then what was said, then the calls."""
    if isinstance(said, str) and not calls and not results:
        return {"role": role.value, "content": said}
    blocks: list[JsonObject] = [{"type": "text", "text": said}] if isinstance(said, str) else said or []
    shown = [block if (item := item_of(block, _FORMAT)) is None else item for block in blocks]
    answers = [restored(_plain_result(result), _kept(result)) for result in results]
    uses = [restored(_plain_use(call), _kept(call)) for call in calls]
    return {"role": role.value, "content": [*answers, *shown, *uses]}


def _plain_use(call: JsonObject) -> JsonObject:
    return {"type": "tool_use", "id": call.get("id"), "name": call.get("name"), "input": call.get("arguments")}


def _plain_result(result: JsonObject) -> JsonObject:
    error: JsonObject = {"is_error": result["is_error"]} if "is_error" in result else {}
    block: JsonObject = {"type": "tool_result", "tool_use_id": result.get("tool_call_id")}
    return {**block, "content": result.get("content"), **error}


def _kept(owner: JsonObject) -> JsonObject | None:
    kept = owner.get(GIVEN)
    return kept if isinstance(kept, dict) else None


def _joins(first: TurnLike, second: TurnLike) -> bool:
    if first.role is not Role.TOOL or second.role is not Role.USER:
        return False
    _, kept = unpacked(_FORMAT, second.content)
    return kept is not None and kept.get(_JOINS) is True


def _native(turns: Sequence[TurnLike]) -> JsonObject | None:
    """The very message that these turns were parsed from; None where they were not, or say something else than it."""
    if any(turn.adapter != _FORMAT or turn.tool_call_id is not None for turn in turns):
        return None
    first, last = turns[0], turns[-1]
    if first.role is Role.SYSTEM:
        return None
    said, kept = unpacked(_FORMAT, last.content)
    role = Role.ASSISTANT if last.role is Role.ASSISTANT else Role.USER
    message = restored(_plain(role, said, last.tool_calls, first.tool_results), kept)
    try:
        again = parse_message(message, "")
    except Invalid:
        return None
    same = len(again) == len(turns) and all(one.says(turn) for one, turn in zip(again, turns, strict=True))
    return message if same else None


def _system(turn: TurnLike) -> str | list[JsonObject] | None:
    if turn.adapter == _FORMAT:
        return turn.content
    return anthropic.plain_text(canonical_of(turn)) or None


def _foreign(turn: TurnLike) -> list[JsonObject]:
    canon = canonical_of(turn)
    if canon.role is Role.TOOL:
        return [anthropic.results_message(results_of(canon))]
    return anthropic.said_message(canon)
