"""Turns as items of OpenAI's Conversations API. Pure.

An item's id is a prefix for its type, the turn's ULID and, for the second and further items of a turn, `_1`, `_2`, ….
The `id` that a client gave an item is stored with the turn and not shown.
"""

import re
from typing import Final, NamedTuple

from app.conversations.schemas.conversations import Turn
from app.core.errors import NotFound
from app.core.ids import TurnId, parse_id
from app.formats.schemas import JsonObject
from app.formats.service import items_of

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
    if turn.erased_at is not None:
        return []
    return [_shown(item, turn.id, number) for number, item in enumerate(items_of(turn))]


def _shown(item: JsonObject, turn_id: str, number: int) -> JsonObject:
    kind = item.get("type", "message")
    prefix = _PREFIXES.get(str(kind), "item")
    shown: JsonObject = {**item, "type": kind, "id": f"{prefix}_{turn_id}" + (f"_{number}" if number else "")}
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
