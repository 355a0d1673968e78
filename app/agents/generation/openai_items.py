"""Turns as items of OpenAI's Conversations API. Pure.

An item's id is a prefix for its type, the turn's ULID and, for the second and further items of a turn, `_1`, `_2`, ….
The `id` that a client gave an item is stored with the turn and not shown.
"""

import re
from typing import Final, NamedTuple

from app.conversations.schemas.conversations import Turn
from app.core.errors import NotFound
from app.core.ids import TurnId, parse_id
from app.formats.parts import compact_json
from app.formats.schemas import GIVEN, Format, JsonObject, Role, TurnLike
from app.formats.service import items_of, parse_tool_call

CONVERSATION_PREFIX: Final = "conv_"
_PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}
_ITEM_ID: Final = re.compile(r"(?:[a-z]+_)?([0-9A-Za-z-]{26,36})(?:_([0-9]{1,4}))?")
_TEXT_TYPES: Final = {"assistant": "output_text"}


class ItemPlace(NamedTuple):
    """The turn of an item, and the number of the item in the turn, from 0."""

    turn_id: TurnId
    number: int


def item_place(item_id: str) -> ItemPlace:
    """Return the place of an item. Raises NotFound for an id of any other form."""
    found = _ITEM_ID.fullmatch(item_id)
    try:
        if found is not None:
            return ItemPlace(TurnId(parse_id(found[1])), int(found[2] or 0))
    except ValueError:
        pass
    raise NotFound("not_found", "There is no such item in this conversation.")


def items(turn: Turn) -> list[JsonObject]:
    """Return the items of a stored turn; none if it is erased."""
    return [] if turn.erased_at is not None else items_with_ids(turn, turn.id)


def items_with_ids(turn: TurnLike, turn_id: str) -> list[JsonObject]:
    """Return the items of a turn, with the ids that they have in a turn of this id."""
    return [_shown(item, turn_id, number) for number, item in enumerate(_as_said(turn))]


def id_of_item(kind: str, turn_id: str, number: int) -> str:
    """Return the id of an item by its type and its number in the turn."""
    return f"{_PREFIXES.get(kind, 'item')}_{turn_id}" + (f"_{number}" if number else "")


def _as_said(turn: TurnLike) -> list[JsonObject]:
    """Return the items of a turn. Those of a chat model's message keep its refusal, its call ids and custom calls."""
    found = items_of(turn)
    if turn.adapter != Format.OPENAI or turn.role is not Role.ASSISTANT:
        return found
    refusal = next((part for part in _parts(turn.content) if part.get("type") == "refusal"), None)
    messages = [one for one in found if one.get("type") == "message"]
    if refusal is not None and messages:
        messages[0] = dict(messages[0])
        messages[0]["content"] = [{"type": "refusal", "refusal": refusal.get("refusal")}]
    return [*messages, *(_call(one) for one in turn.tool_calls)]


def _parts(content: str | list[JsonObject] | None) -> list[JsonObject]:
    return content if isinstance(content, list) else []


def _call(call: JsonObject) -> JsonObject:
    given, parsed = call.get(GIVEN), parse_tool_call(call)
    text = parsed.arguments if isinstance(parsed.arguments, str) else compact_json(parsed.arguments)
    if isinstance(given, dict) and given.get("as") == "custom":
        return {"type": "custom_tool_call", "call_id": parsed.id, "name": parsed.name, "input": text}
    return {"type": "function_call", "call_id": parsed.id, "name": parsed.name, "arguments": text}


def _shown(item: JsonObject, turn_id: str, number: int) -> JsonObject:
    kind = item.get("type", "message")
    shown: JsonObject = {**item, "type": kind, "id": id_of_item(str(kind), turn_id, number)}
    if kind == "message":
        shown.setdefault("status", "completed")
        content = item.get("content")
        if isinstance(content, str):
            type_ = _TEXT_TYPES.get(str(item.get("role")), "input_text")
            part: JsonObject = {"type": type_, "text": content}
            shown["content"] = [{**part, "annotations": []} if type_ == "output_text" else part]
    elif kind in {"function_call", "function_call_output"}:
        shown.setdefault("status", "completed")
    return shown
