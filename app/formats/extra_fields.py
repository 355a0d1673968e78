"""Fields of a provider's message that a turn cannot express, stored so that the original message can be restored.

A turn is first written in its source format. The difference to the original message is stored as `{"members": {…},
"absent": […]}`: in a content part of the type `turnkeep.given`, or in the member of that name of a call or a result. An
item without text for a reader (reasoning, a search that the model ran) is stored whole, as the member `item` of such a
part. These parts have no `text`, so they are neither searched nor counted, and `parts` skips them.
"""

from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue

from app.formats.parts import compact_json
from app.formats.schemas import GIVEN, CanonicalTurn, Format, JsonObject

_TEXT: Final = "text"
_NULL: Final = "null"

GivenContent = str | list[JsonObject] | None


def find_difference(original: JsonObject, plain: JsonObject) -> JsonObject:
    """Return the changes that turn `plain` into `original`; empty if they are equal."""
    members = {
        name: value for name, value in original.items() if name not in plain or not _json_equal(plain[name], value)
    }
    absent: list[JsonValue] = [name for name in plain if name not in original]
    return {**({"members": members} if members else {}), **({"absent": absent} if absent else {})}


def restore(plain: JsonObject, extra: JsonObject | None) -> JsonObject:
    """Apply the result of `find_difference`. A difference written by a caller is applied as far as it is valid."""
    if extra is None:
        return plain
    members, absent = extra.get("members"), extra.get("absent")
    changed = {**plain, **(members if isinstance(members, dict) else {})}
    removed = absent if isinstance(absent, list) else []
    return {name: value for name, value in changed.items() if name not in removed}


def extra_of(owner: JsonObject) -> JsonObject | None:
    """Return the extra fields that are stored in a call or a result."""
    extra = owner.get(GIVEN)
    return extra if isinstance(extra, dict) else None


def pack(target: Format, content: GivenContent, extra: JsonObject) -> GivenContent:
    """Return the content with the extra fields added; the content itself if there are none."""
    if not extra:
        return content
    part: JsonObject = {"type": GIVEN, "format": target.value, **extra}
    if isinstance(content, str):
        return [{"type": "text", "text": content}, {**part, "content": _TEXT}]
    return [{**part, "content": _NULL}] if content is None else [*content, part]


def unpack(target: Format, content: Sequence[JsonObject] | str | None) -> tuple[GivenContent, JsonObject | None]:
    """Split the result of `pack` into the content and the extra fields."""
    if content is None or isinstance(content, str):
        return content, None
    own = (part for part in reversed(content) if part.get("type") == GIVEN and part.get("format") == target.value)
    extra = next((part for part in own if "item" not in part), None)
    if extra is None:
        return list(content), None
    rest = [part for part in content if part is not extra]
    if extra.get("content") == _TEXT and len(rest) == 1 and isinstance(text := rest[0].get("text"), str):
        return text, extra
    return (None if extra.get("content") == _NULL else rest), extra


def item_part(target: Format, item: JsonObject) -> JsonObject:
    """Return the part that stores a whole item or block."""
    return {"type": GIVEN, "format": target.value, "item": item}


def item_of(part: JsonObject, target: Format) -> JsonObject | None:
    """Return the whole item of this format in a part, or None."""
    item = part.get("item")
    is_own_format = part.get("type") == GIVEN and part.get("format") == target.value
    return item if is_own_format and isinstance(item, dict) else None


def items_in(content: Sequence[JsonObject] | str | None, target: Format) -> list[JsonObject]:
    """Return all whole items of this format in a content."""
    if content is None or isinstance(content, str):
        return []
    return [item for part in content if (item := item_of(part, target)) is not None]


def has_only_items(turn: CanonicalTurn) -> bool:
    """Return whether a turn has only whole items, and so belongs to the turn that follows from it."""
    content = turn.content
    if content is None or isinstance(content, str) or turn.tool_calls or turn.tool_results or turn.tool_call_id:
        return False
    return bool(content) and all(part.get("type") == GIVEN and "item" in part for part in content)


def _json_equal(first: JsonValue, second: JsonValue) -> bool:
    # compared as JSON, because 1, 1.0 and true are equal in Python
    if isinstance(first, str) or isinstance(second, str):
        return first == second
    return compact_json(first) == compact_json(second)
