"""OpenAI chat and Workers AI messages parsed into turns, one turn per message, and written back without loss."""

from typing import Final

from app.core.errors import Invalid
from app.formats.extra_fields import find_difference, pack, restore, unpack
from app.formats.parse import validation
from app.formats.render import openai, workers_ai
from app.formats.schemas import GIVEN, AnsweredCall, Format, JsonObject, ParsedTurn, Role, ToolResult, TurnLike, kind_of
from app.formats.turns import to_canonical, tool_results_in

_ROLES: Final = {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "tool": Role.TOOL,
}
_CUSTOM: Final = "custom"


def parse_message(target: Format, message: JsonObject, at: str) -> ParsedTurn:
    """Parse one message of `target` (openai or workers_ai). Raises Invalid."""
    role = validation.read_role(message, _ROLES, at)
    if message.get("function_call") is not None:
        raise validation.field_error(f"{at}/function_call", "put calls into tool_calls, each with its id")
    calls = _calls(message, role, at)
    call_id = validation.read_name(message, "tool_call_id", at) if role is Role.TOOL else None
    given = message.get("content")
    # an assistant message with only tool calls, or a refusal, has no content
    content = None if given is None and role is Role.ASSISTANT else validation.read_content(message, "content", at)
    extra = find_difference(message, _plain(role, content, calls, call_id))
    refusal = message.get("refusal")
    message_content = content
    if content is None and isinstance(refusal, str) and refusal:
        message_content = pack(target, [{"type": "refusal", "refusal": refusal}], {"content": "null", **extra})
    elif extra or (content is None and not calls):
        message_content = pack(target, content, extra or {"absent": []})
    name = message.get("name")
    actor = name if isinstance(name, str) and validation.is_name(name) else None
    kind = kind_of(role, calls=bool(calls))
    return ParsedTurn(role, kind, target, message_content, tool_calls=calls, tool_call_id=call_id, actor=actor)


def messages_of(target: Format, turn: TurnLike) -> list[JsonObject]:
    """Return the messages of a turn: the original message, else equivalent ones."""
    if turn.adapter == target and not turn.tool_results:
        content, extra = unpack(target, turn.content)
        message = restore(_plain(turn.role, content, turn.tool_calls, turn.tool_call_id), extra)
        if _is_equivalent(target, message, turn):
            return [message]
    shape = workers_ai if target is Format.WORKERS_AI else openai
    canonical_turn = to_canonical(turn)
    if canonical_turn.role is Role.TOOL:
        return [shape.result_message(result.tool_call_id, "", result) for result in tool_results_in(canonical_turn)]
    message_content = shape.content_of(canonical_turn, frozenset())
    if canonical_turn.tool_calls:
        calls = [openai.tool_call(AnsweredCall(call, ToolResult(call.id, ""))) for call in canonical_turn.tool_calls]
        empty = "" if target is Format.WORKERS_AI else None
        return [{"role": "assistant", "content": message_content or empty, "tool_calls": [*calls]}]
    return [{"role": canonical_turn.role.value, "content": message_content}] if message_content else []


def _calls(message: JsonObject, role: Role, at: str) -> list[JsonObject]:
    given = message.get("tool_calls")
    if given is None or (given == [] and role is not Role.ASSISTANT):
        return []
    if role is not Role.ASSISTANT:
        raise validation.field_error(f"{at}/tool_calls", "only the assistant calls tools")
    if not isinstance(given, list):
        raise validation.field_error(f"{at}/tool_calls", "a list of calls")
    calls: list[JsonObject] = []
    for index, call in enumerate(given):
        if not isinstance(call, dict):
            raise validation.field_error(f"{at}/tool_calls/{index}", "an object")
        calls.append(_call(call, f"{at}/tool_calls/{index}"))
    return validation.require_distinct(calls, "id", f"{at}/tool_calls")


def _call(call: JsonObject, at: str) -> JsonObject:
    """Parse a call: a function's as given, a custom tool's with its input as arguments."""
    call_id = validation.read_name(call, "id", at)
    if GIVEN in call:
        raise validation.field_error(at, "a call has a reserved member")
    if call.get("type") == _CUSTOM:
        custom = validation.read_object(call, _CUSTOM, at)
        name = validation.read_name(custom, "name", f"{at}/custom")
        text = validation.read_text(custom, "input", f"{at}/custom")
        extra: JsonObject = {"id": call_id, "name": name, "arguments": text}
        return {**extra, GIVEN: {"as": _CUSTOM, **find_difference(call, _plain_custom(extra))}}
    body, inner = call, at
    if "function" in call:
        body, inner = validation.read_object(call, "function", at), f"{at}/function"
    validation.read_name(body, "name", inner)
    validation.check_arguments(body, inner)
    return call


def _plain(role: Role, content: object, calls: list[JsonObject], call_id: str | None) -> JsonObject:
    message: JsonObject = {"role": role.value}
    if call_id is not None:
        message["tool_call_id"] = call_id
    message["content"] = content  # pyright: ignore[reportArgumentType]
    if calls:
        message["tool_calls"] = [_given_call(call) for call in calls]
    return message


def _given_call(call: JsonObject) -> JsonObject:
    extra = call.get(GIVEN)
    if isinstance(extra, dict) and extra.get("as") == _CUSTOM:
        return restore(_plain_custom(call), extra)
    return call


def _plain_custom(call: JsonObject) -> JsonObject:
    return {
        "id": call.get("id"),
        "type": _CUSTOM,
        _CUSTOM: {"name": call.get("name"), "input": call.get("arguments")},
    }


def _is_equivalent(target: Format, message: JsonObject, turn: TurnLike) -> bool:
    try:
        parsed = parse_message(target, message, "")
    except Invalid:
        return False
    return parsed.is_equal_to(turn)
