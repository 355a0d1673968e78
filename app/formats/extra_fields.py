"""What of a provider's message has no place in a turn, kept so that the very message can be given back.

A turn is written plainly in the shape it came from; what the given message has beyond that, or otherwise, is kept as
`{"members": {…}, "absent": […]}`: in a part of the type `turnkeep.given` of the turn's content, or in the member of
that name of a call or a result. Something of which nothing is said to anybody (reasoning, a search the model ran) is
kept whole, as the member `item` of such a part. No such part has a `text`, so none is searched or counted, and `parts`
passes over them, so none is shown as words.
"""

from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue

from app.formats.parts import compact
from app.formats.schemas import GIVEN, CanonicalTurn, Format, JsonObject

_TEXT: Final = "text"
_NULL: Final = "null"

Said = str | list[JsonObject] | None


def difference(given: JsonObject, plain: JsonObject) -> JsonObject:
    """What makes `given` of `plain`; empty where they are the same."""
    members = {name: value for name, value in given.items() if name not in plain or not _same(plain[name], value)}
    absent: list[JsonValue] = [name for name in plain if name not in given]
    return {**({"members": members} if members else {}), **({"absent": absent} if absent else {})}


def restored(plain: JsonObject, kept: JsonObject | None) -> JsonObject:
    """The reverse of `difference`. What was not made there (a caller may write such parts) changes what it can."""
    if kept is None:
        return plain
    members, absent = kept.get("members"), kept.get("absent")
    changed = {**plain, **(members if isinstance(members, dict) else {})}
    gone = absent if isinstance(absent, list) else []
    return {name: value for name, value in changed.items() if name not in gone}


def packed(target: Format, content: Said, kept: JsonObject) -> Said:
    """The content with what is kept beside it; the content itself where that is nothing."""
    if not kept:
        return content
    part: JsonObject = {"type": GIVEN, "format": target.value, **kept}
    if isinstance(content, str):
        return [{"type": "text", "text": content}, {**part, "content": _TEXT}]
    return [{**part, "content": _NULL}] if content is None else [*content, part]


def unpacked(target: Format, content: Sequence[JsonObject] | str | None) -> tuple[Said, JsonObject | None]:
    """The reverse of `packed`: the content, and what was kept beside it."""
    if content is None or isinstance(content, str):
        return content, None
    kept = next((part for part in reversed(content) if _is_kept(part, target)), None)
    if kept is None:
        return list(content), None
    rest = [part for part in content if part is not kept]
    if kept.get("content") == _TEXT and len(rest) == 1 and isinstance(text := rest[0].get("text"), str):
        return text, kept
    return (None if kept.get("content") == _NULL else rest), kept


def whole(target: Format, item: JsonObject) -> JsonObject:
    """The part that keeps an item or a block whole."""
    return {"type": GIVEN, "format": target.value, "item": item}


def item_of(part: JsonObject, target: Format) -> JsonObject | None:
    """The item that a part keeps whole for this format."""
    item = part.get("item")
    mine = part.get("type") == GIVEN and part.get("format") == target.value
    return item if mine and isinstance(item, dict) else None


def items_in(content: Sequence[JsonObject] | str | None, target: Format) -> list[JsonObject]:
    """All items of this format that are kept whole in a content."""
    if content is None or isinstance(content, str):
        return []
    return [item for part in content if (item := item_of(part, target)) is not None]


def is_silent(turn: CanonicalTurn) -> bool:
    """Whether a turn holds only what is kept whole: it says nothing, and belongs to what came of it."""
    content = turn.content
    if content is None or isinstance(content, str) or turn.tool_calls or turn.tool_results or turn.tool_call_id:
        return False
    return bool(content) and all(part.get("type") == GIVEN and "item" in part for part in content)


def _is_kept(part: JsonObject, target: Format) -> bool:
    return part.get("type") == GIVEN and part.get("format") == target.value and "item" not in part


def _same(one: JsonValue, other: JsonValue) -> bool:
    # as JSON: to Python, 1, 1.0 and true are equal
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return compact(one) == compact(other)
