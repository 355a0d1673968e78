"""Anthropic messages parsed into turns and written back without loss.

A user message with results becomes a tool turn, then a user turn with its other blocks. The system text becomes the
first turn. Assistant blocks that are neither text nor a call (thinking, tools of the provider) are stored whole.
"""

from collections.abc import Callable, Sequence
from typing import Final

from app.formats.extra_fields import extra_of, find_difference, item_of, item_part, pack, restore, unpack
from app.formats.parse import validation
from app.formats.parts import parse_parts, to_text
from app.formats.schemas import GIVEN, Format, JsonObject, ParsedTurn, Role, TurnLike, WrittenMessages, kind_of

_FORMAT: Final = Format.ANTHROPIC
_ROLES: Final = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_JOINS: Final = "joins"


def parse_system(source: Format, system: object, at: str) -> list[ParsedTurn]:
    """Return the turn of a system text or its blocks; none if it is empty. Raises Invalid."""
    if system is None or system in ("", []):
        return []
    owner: JsonObject = {"system": system}  # pyright: ignore[reportAssignmentType]
    validation.check_json(system, at)
    content = validation.read_content(owner, "system", at.removesuffix("/system"))
    return [ParsedTurn(Role.SYSTEM, kind_of(Role.SYSTEM), source, content)]


def parse_message(message: JsonObject, at: str) -> list[ParsedTurn]:
    """Return the turns of one message: one, or two for a user message with results and other blocks. Raises Invalid."""
    role = validation.read_role(message, _ROLES, at)
    content = validation.read_content(message, "content", at)
    blocks = [] if isinstance(content, str) else content
    if role is Role.ASSISTANT:
        return [_assistant(message, content, blocks, at)]
    if role is Role.SYSTEM:
        extra = find_difference(message, {"role": role.value, "content": message["content"]})
        return [ParsedTurn(role, kind_of(role), _FORMAT, pack(_FORMAT, content, extra))]
    sent = _blocks_of(blocks, "tool_result", at)
    results = validation.require_distinct(
        {pointer: _result(block, pointer) for pointer, block in sent.items()}, "tool_call_id"
    )
    rest = [block for block in blocks if block["type"] != "tool_result"]
    message_content = content if isinstance(content, str) else rest
    extra = find_difference(message, _modelled_message(role, message_content, [], results))
    if not results:
        return [ParsedTurn(role, kind_of(role), _FORMAT, pack(_FORMAT, message_content, extra))]
    tool = ParsedTurn(Role.TOOL, kind_of(Role.TOOL), _FORMAT, tool_results=results)
    if rest:
        return [tool, ParsedTurn(role, kind_of(role), _FORMAT, pack(_FORMAT, rest, {_JOINS: True, **extra}))]
    stored_content = pack(_FORMAT, None, extra)
    return [ParsedTurn(Role.TOOL, tool.kind, _FORMAT, stored_content, tool_results=results)]


def write(turns: Sequence[TurnLike], equivalents: Callable[[TurnLike], Sequence[JsonObject]]) -> WrittenMessages:
    """Write turns as they were given, others as `equivalents`; the text of a first system turn becomes `system`."""
    pending = list(turns)
    system: str | list[JsonObject] | None = None
    if pending and pending[0].role is Role.SYSTEM:
        first = pending.pop(0)
        system = first.content if first.adapter == _FORMAT else to_text(parse_parts(first.content)) or None
    messages: list[JsonObject] = []
    while pending:
        first = pending.pop(0)
        pair = [first, pending[0]] if pending and _is_joined(first, pending[0]) else [first]
        message = _native(pair)
        if message is None:
            messages.extend(equivalents(first))
            continue
        del pending[: len(pair) - 1]
        messages.append(message)
    return WrittenMessages(messages, system)


def original(turn: TurnLike) -> JsonObject | None:
    """Return the message that a turn was read from; None if it has none, or was changed since.

    Of a message with results it has the other blocks, which are a turn of their own.
    """
    content, extra = unpack(_FORMAT, turn.content)
    if turn.role is Role.USER and turn.adapter == _FORMAT and extra is not None and extra.get(_JOINS) is True:
        return {"role": turn.role.value, "content": content if isinstance(content, str) else [*(content or [])]}
    return _native([turn])


def given_result(result: JsonObject) -> JsonObject:
    """Return the block that an entry of `tool_results` was read from."""
    return restore(_plain_result(result), extra_of(result))


def _assistant(message: JsonObject, content: str | list[JsonObject], blocks: list[JsonObject], at: str) -> ParsedTurn:
    sent = _blocks_of(blocks, "tool_use", at)
    calls = validation.require_distinct({pointer: _call(block, pointer) for pointer, block in sent.items()}, "id")
    rest = [
        block if block["type"] == "text" else item_part(_FORMAT, block)
        for block in blocks
        if block["type"] != "tool_use"
    ]
    message_content = content if isinstance(content, str) else None if calls and not rest else rest
    extra = find_difference(message, _modelled_message(Role.ASSISTANT, message_content, calls, []))
    role = Role.ASSISTANT
    return ParsedTurn(
        role, kind_of(role, calls=bool(calls)), _FORMAT, pack(_FORMAT, message_content, extra), tool_calls=calls
    )


def _call(block: JsonObject, at: str) -> JsonObject:
    call: JsonObject = {
        "id": validation.read_name(block, "id", at),
        "name": validation.read_name(block, "name", at),
        "arguments": validation.read_object(block, "input", at),
    }
    extra = find_difference(block, _plain_use(call))
    return {**call, GIVEN: extra} if extra else call


def _result(block: JsonObject, at: str) -> JsonObject:
    result: JsonObject = {"tool_call_id": validation.read_name(block, "tool_use_id", at)}
    content = "" if block.get("content") is None else validation.read_content(block, "content", at)
    result["content"] = content if isinstance(content, str) else [*content]
    if "is_error" in block:
        if not isinstance(block["is_error"], bool):
            raise validation.field_error(f"{at}/is_error", "true or false")
        result["is_error"] = block["is_error"]
    extra = find_difference(block, _plain_result(result))
    return {**result, GIVEN: extra} if extra else result


def _modelled_message(
    role: Role, message_content: str | list[JsonObject] | None, calls: list[JsonObject], results: list[JsonObject]
) -> JsonObject:
    """Return a message with the results first, then the content, then the calls."""
    if isinstance(message_content, str) and not calls and not results:
        return {"role": role.value, "content": message_content}
    blocks: list[JsonObject] = (
        [{"type": "text", "text": message_content}] if isinstance(message_content, str) else message_content or []
    )
    shown = [block if (item := item_of(block, _FORMAT)) is None else item for block in blocks]
    answers = [given_result(result) for result in results]
    uses = [restore(_plain_use(call), extra_of(call)) for call in calls]
    return {"role": role.value, "content": [*answers, *shown, *uses]}


def _plain_use(call: JsonObject) -> JsonObject:
    return {"type": "tool_use", "id": call.get("id"), "name": call.get("name"), "input": call.get("arguments")}


def _plain_result(result: JsonObject) -> JsonObject:
    error: JsonObject = {"is_error": result["is_error"]} if "is_error" in result else {}
    block: JsonObject = {"type": "tool_result", "tool_use_id": result.get("tool_call_id")}
    return {**block, "content": result.get("content"), **error}


def _is_joined(first: TurnLike, second: TurnLike) -> bool:
    if first.role is not Role.TOOL or second.role is not Role.USER:
        return False
    _, extra = unpack(_FORMAT, second.content)
    return extra is not None and extra.get(_JOINS) is True


def _native(turns: Sequence[TurnLike]) -> JsonObject | None:
    """Return the original message of these turns; None if they have none, or were changed since."""
    if any(turn.adapter != _FORMAT or turn.tool_call_id is not None for turn in turns):
        return None
    results, said = turns[0], turns[-1]  # the same turn, if the message has one
    if results.role is Role.SYSTEM:
        return None
    message_content, extra = unpack(_FORMAT, said.content)
    role = Role.ASSISTANT if said.role is Role.ASSISTANT else Role.USER
    message = restore(_modelled_message(role, message_content, said.tool_calls, results.tool_results), extra)
    return message if validation.is_parsed_as(lambda: parse_message(message, ""), turns) else None


def _blocks_of(blocks: Sequence[JsonObject], kind: str, at: str) -> dict[str, JsonObject]:
    """Return the blocks of a type, by their pointers."""
    return {f"{at}/content/{index}": block for index, block in enumerate(blocks) if block["type"] == kind}
