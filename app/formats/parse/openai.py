"""OpenAI chat and Workers AI messages parsed into turns, one turn per message, and written back without loss."""

from typing import Final

from app.formats.extra_fields import extra_of, find_difference, pack, restore, unpack
from app.formats.parse import validation
from app.formats.schemas import GIVEN, Format, JsonObject, ParsedTurn, Role, TurnLike, kind_of

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
    content = _content(message, role, at)
    extra = find_difference(message, _modelled_message(role, content, calls, call_id))
    message_content = content
    if content is None and (spoken := _spoken(message)) is not None:
        message_content = pack(target, [spoken], {"content": "null", **extra})
    elif extra or (content is None and not calls):
        message_content = pack(target, content, extra or {"absent": []})
    name = message.get("name")
    actor = name if isinstance(name, str) and validation.is_name(name) else None
    kind = kind_of(role, calls=bool(calls))
    return ParsedTurn(role, kind, target, message_content, tool_calls=calls, tool_call_id=call_id, actor=actor)


def original(target: Format, turn: TurnLike) -> JsonObject | None:
    """Return the message that a turn was parsed from; None if it has none, or was changed since."""
    if turn.adapter != target or turn.tool_results:
        return None
    content, extra = unpack(target, turn.content)
    message = restore(_modelled_message(turn.role, content, turn.tool_calls, turn.tool_call_id), extra)
    same = validation.is_parsed_as(lambda: [parse_message(target, message, "")], [turn])
    return message if same else None


def _calls(message: JsonObject, role: Role, at: str) -> list[JsonObject]:
    listed = message.get("tool_calls")
    if listed is None or (listed == [] and role is not Role.ASSISTANT):
        return []
    if role is not Role.ASSISTANT:
        raise validation.field_error(f"{at}/tool_calls", "only the assistant calls tools")
    if not isinstance(listed, list):
        raise validation.field_error(f"{at}/tool_calls", "a list of calls")
    calls: dict[str, JsonObject] = {}
    for index, call in enumerate(listed):
        pointer = f"{at}/tool_calls/{index}"
        if not isinstance(call, dict):
            raise validation.field_error(pointer, "an object")
        calls[pointer] = _call(call, pointer)
    return validation.require_distinct(calls, "id")


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
    return validation.check_call(call, at)


def _content(message: JsonObject, role: Role, at: str) -> str | list[JsonObject] | None:
    """Return the content. An answer with only calls, a refusal or audio has none, and a result may be empty."""
    content = message.get("content")
    if content is None and role is Role.TOOL:
        return ""
    if role is Role.ASSISTANT and (content is None or (content == "" and _spoken(message) is not None)):
        return None
    return validation.read_content(message, "content", at)


def _spoken(message: JsonObject) -> JsonObject | None:
    """Return the part with the words of an answer without content: its refusal, or the transcript of its audio."""
    refusal, audio = message.get("refusal"), message.get("audio")
    if isinstance(refusal, str) and refusal:
        return {"type": "refusal", "refusal": refusal}
    transcript = audio.get("transcript") if isinstance(audio, dict) else None
    return {"type": "audio", "transcript": transcript} if isinstance(transcript, str) and transcript else None


def _modelled_message(role: Role, content: object, calls: list[JsonObject], call_id: str | None) -> JsonObject:
    message: JsonObject = {"role": role.value}
    if call_id is not None:
        message["tool_call_id"] = call_id
    message["content"] = content  # pyright: ignore[reportArgumentType]
    if calls:
        message["tool_calls"] = [given_call(call) for call in calls]
    return message


def given_call(call: JsonObject) -> JsonObject:
    """Return the call as it was given."""
    extra = extra_of(call) or {}
    return restore(_plain_custom(call), extra) if extra.get("as") == _CUSTOM else call


def _plain_custom(call: JsonObject) -> JsonObject:
    return {
        "id": call.get("id"),
        "type": _CUSTOM,
        _CUSTOM: {"name": call.get("name"), "input": call.get("arguments")},
    }
