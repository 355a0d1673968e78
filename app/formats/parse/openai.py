"""OpenAI chat messages, and those of Workers AI, read into turns and written back, one turn a message, nothing lost."""

from typing import Final

from app.core.errors import Invalid
from app.formats.extra_fields import difference, packed, restored, unpacked
from app.formats.parse import validation
from app.formats.render import openai, workers_ai
from app.formats.schemas import GIVEN, Answered, Format, JsonObject, ParsedTurn, Role, ToolResult, TurnLike, kind_of
from app.formats.turns import canonical_of, results_of

_ROLES: Final = {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "tool": Role.TOOL,
}
_CUSTOM: Final = "custom"


def parse_message(target: Format, message: JsonObject, at: str) -> ParsedTurn:
    """The turn of one message of `target`, which is openai or workers_ai. Raises Invalid."""
    role = validation.role_in(message, _ROLES, at)
    if message.get("function_call") is not None:
        raise validation.refusal(f"{at}/function_call", "calls stand in tool_calls, each with its id")
    calls = _calls(message, role, at)
    call_id = validation.name_of(message, "tool_call_id", at) if role is Role.TOOL else None
    given = message.get("content")
    # an assistant that only calls tools, or refuses, has no content
    content = None if given is None and role is Role.ASSISTANT else validation.content_in(message, "content", at)
    kept = difference(message, _plain(role, content, calls, call_id))
    refusal = message.get("refusal")
    said = content
    if content is None and isinstance(refusal, str) and refusal:
        said = packed(target, [{"type": "refusal", "refusal": refusal}], {"content": "null", **kept})
    elif kept or (content is None and not calls):
        said = packed(target, content, kept or {"absent": []})
    name = message.get("name")
    actor = name if isinstance(name, str) and validation.is_name(name) else None
    kind = kind_of(role, calls=bool(calls))
    return ParsedTurn(role, kind, target, said, tool_calls=calls, tool_call_id=call_id, actor=actor)


def messages_of(target: Format, turn: TurnLike) -> list[JsonObject]:
    """The messages of a turn: the very one that it was parsed from, else those that say what it says."""
    if turn.adapter == target and not turn.tool_results:
        content, kept = unpacked(target, turn.content)
        message = restored(_plain(turn.role, content, turn.tool_calls, turn.tool_call_id), kept)
        if _reads_as(target, message, turn):
            return [message]
    shape = workers_ai if target is Format.WORKERS_AI else openai
    canon = canonical_of(turn)
    if canon.role is Role.TOOL:
        return [shape.result_message(result.tool_call_id, "", result) for result in results_of(canon)]
    said = shape.content_of(canon, frozenset())
    if canon.tool_calls:
        calls = [openai.tool_call(Answered(call, ToolResult(call.id, ""))) for call in canon.tool_calls]
        empty = "" if target is Format.WORKERS_AI else None
        return [{"role": "assistant", "content": said or empty, "tool_calls": [*calls]}]
    return [{"role": canon.role.value, "content": said}] if said else []


def _calls(message: JsonObject, role: Role, at: str) -> list[JsonObject]:
    given = message.get("tool_calls")
    if given is None or (given == [] and role is not Role.ASSISTANT):
        return []
    if role is not Role.ASSISTANT:
        raise validation.refusal(f"{at}/tool_calls", "only the assistant calls tools")
    if not isinstance(given, list):
        raise validation.refusal(f"{at}/tool_calls", "a list of calls")
    calls: list[JsonObject] = []
    for index, call in enumerate(given):
        if not isinstance(call, dict):
            raise validation.refusal(f"{at}/tool_calls/{index}", "an object")
        calls.append(_call(call, f"{at}/tool_calls/{index}"))
    return validation.distinct(calls, "id", f"{at}/tool_calls")


def _call(call: JsonObject, at: str) -> JsonObject:
    """A call as it is kept: a function's as it was given, a custom tool's with its input as arguments."""
    call_id = validation.name_of(call, "id", at)
    if GIVEN in call:
        raise validation.refusal(at, "a call has a member that is kept for our own")
    if call.get("type") == _CUSTOM:
        custom = validation.object_in(call, _CUSTOM, at)
        name, text = (
            validation.name_of(custom, "name", f"{at}/custom"),
            validation.text_in(custom, "input", f"{at}/custom"),
        )
        kept: JsonObject = {"id": call_id, "name": name, "arguments": text}
        return {**kept, GIVEN: {"as": _CUSTOM, **difference(call, _plain_custom(kept))}}
    body, inner = call, at
    if "function" in call:
        body, inner = validation.object_in(call, "function", at), f"{at}/function"
    validation.name_of(body, "name", inner)
    validation.arguments_in(body, inner)
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
    kept = call.get(GIVEN)
    if isinstance(kept, dict) and kept.get("as") == _CUSTOM:
        return restored(_plain_custom(call), kept)
    return call


def _plain_custom(call: JsonObject) -> JsonObject:
    return {
        "id": call.get("id"),
        "type": _CUSTOM,
        _CUSTOM: {"name": call.get("name"), "input": call.get("arguments")},
    }


def _reads_as(target: Format, message: JsonObject, turn: TurnLike) -> bool:
    try:
        again = parse_message(target, message, "")
    except Invalid:
        return False
    return again.says(turn)
