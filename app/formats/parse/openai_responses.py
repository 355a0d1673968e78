"""OpenAI Responses items parsed into turns, one turn per item, and written back without loss.

A message becomes a turn with content. A call of a tool that the caller runs (function, custom, shell, computer, patch)
becomes a tool call, and its output the result. Every other item, of a known type or not, is stored whole in an
assistant turn (a user turn for an answer to an approval request).
"""

from typing import Final

from pydantic import JsonValue

from app.formats.extra_fields import find_difference, item_part, items_in, pack, restore, unpack
from app.formats.parse import validation
from app.formats.response_items import OUTPUT_OF, native_call, native_output, output_key, plain_call, plain_output
from app.formats.schemas import GIVEN, Format, JsonObject, ParsedTurn, Role, TurnLike, kind_of

_FORMAT: Final = Format.OPENAI_RESPONSES
_ROLES: Final = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM, "developer": Role.SYSTEM}


def parse_item(item: JsonObject, at: str) -> ParsedTurn:
    """Parse one item. Raises Invalid."""
    kind = item.get("type")
    if kind == "message" or (kind is None and "role" in item):
        return _message(item, at)
    if kind is None and validation.is_name(item.get("id")):
        return _item_turn(item)  # a reference may omit its type
    kind = validation.read_name(item, "type", at)
    if kind in {"function_call", "custom_tool_call"}:
        return _call(item, kind, at)
    if kind in OUTPUT_OF and validation.is_name(item.get("call_id")):
        return _call(item, kind, at)
    if kind in OUTPUT_OF.values():
        key = output_key(kind)
        # an output may come without its call: then it answers no call of this list
        if item.get(key) is not None:
            return _output(item, kind, key, at)
    return _item_turn(item)


def original(turn: TurnLike) -> JsonObject | None:
    """Return the item that a turn was parsed from; None if it has none, or was changed since.

    Extra fields come from callers and must not change the speaker.
    """
    item = _native(turn) if turn.adapter == _FORMAT else None
    same = item is not None and validation.is_parsed_as(lambda: [parse_item(item, "")], [turn])
    return item if same else None


def _message(item: JsonObject, at: str) -> ParsedTurn:
    role = validation.read_role(item, _ROLES, at)
    content = validation.read_content(item, "content", at)
    extra = find_difference(item, _plain_message(role, content))
    return ParsedTurn(role, kind_of(role), _FORMAT, pack(_FORMAT, content, extra))


def _call(item: JsonObject, kind: str, at: str) -> ParsedTurn:
    call_id = validation.read_name(item, "call_id", at)
    call: JsonObject = {"id": call_id}
    match kind:
        case "function_call":
            call |= {"name": validation.read_name(item, "name", at), "arguments": validation.check_arguments(item, at)}
        case "custom_tool_call":
            call |= {
                "name": validation.read_name(item, "name", at),
                "arguments": validation.read_text(item, "input", at),
            }
        case _:
            arguments = {name: item[name] for name in ("action", "actions", "operation") if name in item}
            call |= {"name": kind.removesuffix("_call"), "arguments": arguments}
    extra = find_difference(item, plain_call(kind, call))
    if extra or kind != "function_call":
        call[GIVEN] = {"format": _FORMAT.value, "as": kind, **extra}
    role = Role.ASSISTANT
    return ParsedTurn(role, kind_of(role, calls=True), _FORMAT, tool_calls=[call])


def _output(item: JsonObject, kind: str, key: str, at: str) -> ParsedTurn:
    call_id = validation.read_name(item, key, at)
    content = _output_content(item, kind, at)
    extra = find_difference(item, plain_output(kind, call_id, content))
    if extra or kind != "function_call_output":
        extra = {"as": kind, **extra}
    content = pack(_FORMAT, content, extra)
    return ParsedTurn(Role.TOOL, kind_of(Role.TOOL), _FORMAT, content, tool_call_id=call_id)


def _output_content(item: JsonObject, kind: str, at: str) -> str | list[JsonObject]:
    output = item.get("output")
    if kind == "shell_call_output" and isinstance(output, list):
        return "\n".join(_streams(output))
    if kind == "computer_call_output":
        picture = validation.read_object(item, "output", at)
        validation.read_name(picture, "type", f"{at}/output")
        return [picture]
    if output is None:
        return ""
    return validation.read_content(item, "output", at)


def _streams(output: list[JsonValue]) -> list[str]:
    """Return the output of commands, standard output and errors, in order."""
    streams = (entry.get(name) for entry in output if isinstance(entry, dict) for name in ("stdout", "stderr"))
    return [text for text in streams if isinstance(text, str) and text]


def _item_turn(item: JsonObject) -> ParsedTurn:
    role = Role.USER if item.get("type") == "mcp_approval_response" else Role.ASSISTANT
    return ParsedTurn(role, kind_of(role), _FORMAT, [item_part(_FORMAT, item)])


def _plain_message(role: Role, content: str | list[JsonObject]) -> JsonObject:
    if isinstance(content, str):
        return {"role": role.value, "content": content}
    return {"type": "message", "role": role.value, "content": [*content]}


def _native(turn: TurnLike) -> JsonObject | None:
    """Return the item that a turn was parsed from, if the turn has that form."""
    if turn.tool_call_id is not None:
        content, extra = unpack(_FORMAT, turn.content)
        return native_output(turn.tool_call_id, content, extra)
    if len(turn.tool_calls) == 1 and turn.content is None:
        return native_call(turn.tool_calls[0])
    items = items_in(turn.content, _FORMAT)
    if items:
        return items[0]
    content, extra = unpack(_FORMAT, turn.content)
    return None if content is None else restore(_plain_message(turn.role, content), extra)
