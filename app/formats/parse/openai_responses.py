"""OpenAI Responses items read into turns and written back, one turn an item, nothing lost.

A message is what was said; a call of a tool that runs on the caller's side (function, custom, shell, computer, patch)
is a call, and its output the result of it. Every other item, of a type known today or not, is kept whole in a turn of
the assistant that says nothing (of the user: an answer to a request for approval).
"""

from typing import Final

from pydantic import JsonValue

from app.core.errors import Invalid
from app.formats.extra_fields import difference, items_in, packed, restored, unpacked, whole
from app.formats.parse import validation
from app.formats.render import openai_responses
from app.formats.schemas import GIVEN, Format, JsonObject, ParsedTurn, Role, TurnLike, kind_of
from app.formats.turns import canonical_of, results_of

_FORMAT: Final = Format.OPENAI_RESPONSES
_ROLES: Final = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM, "developer": Role.SYSTEM}


def parse_item(item: JsonObject, at: str) -> ParsedTurn:
    """The turn of one item. Raises Invalid."""
    kind = item.get("type")
    if kind == "message" or (kind is None and "role" in item):
        return _message(item, at)
    if kind is None and validation.is_name(item.get("id")):
        return _silent(item)  # a reference may leave its type out
    kind = validation.name_of(item, "type", at)
    if kind in {"function_call", "custom_tool_call"}:
        return _call(item, kind, at)
    if kind in openai_responses.OUTPUT_OF and validation.is_name(item.get("call_id")):
        return _call(item, kind, at)
    if kind in openai_responses.OUTPUT_OF.values():
        key = openai_responses.output_key(kind)
        # an output may come without a call: it then answers nothing that was asked here
        if item.get(key) is not None:
            return _output(item, kind, key, at)
    return _silent(item)


def items_of(turn: TurnLike) -> list[JsonObject]:
    """The items of a turn: the very one that it was parsed from, else those that say what it says."""
    if turn.adapter == _FORMAT:
        item = _native(turn)
        if item is not None and _reads_as(item, turn):
            return [item]
    canon = canonical_of(turn)
    if canon.role is Role.TOOL:
        return [openai_responses.output_item(result.tool_call_id, result) for result in results_of(canon)]
    said = openai_responses.message_of(canon, frozenset())
    return [*said, *(openai_responses.call_item(call) for call in canon.tool_calls)]


def _message(item: JsonObject, at: str) -> ParsedTurn:
    role = validation.role_in(item, _ROLES, at)
    content = validation.content_in(item, "content", at)
    kept = difference(item, _plain_message(role, content))
    return ParsedTurn(role, kind_of(role), _FORMAT, packed(_FORMAT, content, kept))


def _call(item: JsonObject, kind: str, at: str) -> ParsedTurn:
    call_id = validation.name_of(item, "call_id", at)
    call: JsonObject = {"id": call_id}
    match kind:
        case "function_call":
            call |= {"name": validation.name_of(item, "name", at), "arguments": validation.arguments_in(item, at)}
        case "custom_tool_call":
            call |= {"name": validation.name_of(item, "name", at), "arguments": validation.text_in(item, "input", at)}
        case _:
            asked = {name: item[name] for name in ("action", "actions", "operation") if name in item}
            call |= {"name": kind.removesuffix("_call"), "arguments": asked}
    kept = difference(item, openai_responses.plain_call(kind, call))
    if kept or kind != "function_call":
        call[GIVEN] = {"format": _FORMAT.value, "as": kind, **kept}
    role = Role.ASSISTANT
    return ParsedTurn(role, kind_of(role, calls=True), _FORMAT, tool_calls=[call])


def _output(item: JsonObject, kind: str, key: str, at: str) -> ParsedTurn:
    call_id = validation.name_of(item, key, at)
    content = _output_content(item, kind, at)
    kept = difference(item, openai_responses.plain_output(kind, call_id, content))
    if kept or kind != "function_call_output":
        kept = {"as": kind, **kept}
    content = packed(_FORMAT, content, kept)
    return ParsedTurn(Role.TOOL, kind_of(Role.TOOL), _FORMAT, content, tool_call_id=call_id)


def _output_content(item: JsonObject, kind: str, at: str) -> str | list[JsonObject]:
    output = item.get("output")
    if kind == "shell_call_output" and isinstance(output, list):
        return "\n".join(_streams(output))
    if kind == "computer_call_output":
        picture = validation.object_in(item, "output", at)
        validation.name_of(picture, "type", f"{at}/output")
        return [picture]
    if kind == "apply_patch_call_output" and output is None:
        return ""
    return validation.content_in(item, "output", at)


def _streams(output: list[JsonValue]) -> list[str]:
    """What commands wrote, standard output and errors, in order."""
    streams = (one.get(name) for one in output if isinstance(one, dict) for name in ("stdout", "stderr"))
    return [text for text in streams if isinstance(text, str) and text]


def _silent(item: JsonObject) -> ParsedTurn:
    role = Role.USER if item.get("type") == "mcp_approval_response" else Role.ASSISTANT
    return ParsedTurn(role, kind_of(role), _FORMAT, [whole(_FORMAT, item)])


def _plain_message(role: Role, content: str | list[JsonObject]) -> JsonObject:
    if isinstance(content, str):
        return {"role": role.value, "content": content}
    return {"type": "message", "role": role.value, "content": [*content]}


def _native(turn: TurnLike) -> JsonObject | None:
    """The item that a turn was parsed from, where it has the form of such a one."""
    if turn.tool_call_id is not None:
        content, kept = unpacked(_FORMAT, turn.content)
        return openai_responses.native_output(turn.tool_call_id, content, kept)
    if len(turn.tool_calls) == 1 and turn.content is None:
        return openai_responses.native_call(turn.tool_calls[0])
    silent = items_in(turn.content, _FORMAT)
    if silent:
        return silent[0]
    content, kept = unpacked(_FORMAT, turn.content)
    return None if content is None else restored(_plain_message(turn.role, content), kept)


def _reads_as(item: JsonObject, turn: TurnLike) -> bool:
    """Whether an item says what its turn says: a caller may write what is kept, and must not speak as another by it."""
    try:
        again = parse_item(item, "")
    except Invalid:
        return False
    return again.says(turn)
