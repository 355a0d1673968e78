"""Answers of tools within a limit: what is left out of a long one, and how a model reads it. Pure.

A tool's result is sent twice, as structured content and as its JSON text, since clients read either. The limit counts
both. `cut` of an answer says what was left out, if something was.
"""

import json
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, cast

from pydantic import JsonValue, RootModel

from app.formats.schemas import JsonObject

_AROUND: Final = 1_024
"""Bytes of an answer beside the result: the message around it, and the note of what was cut."""
_LEVELS: Final = (8_000, 4_000, 2_000, 1_000, 500, 250)
"""Characters that are left of long texts: the most with which the answer fits."""
_UNCUT: Final = ("id", "ids", "cursor", "token", "hash", "name", "path", "cut")
"""Ends of the names of members whose texts stand for something, so that a part of them would be wrong."""
_MAX_UNCUT: Final = 1_024
"""Characters of such a text at most. What is longer is of a caller's own members."""
_ITEM_BYTES: Final = 2_000
_MEMBER_BYTES: Final = 64
"""Bytes of an answer that an item of a list and a member of an object have at least, unless they are shorter."""
_SEPARATOR_BYTES: Final = 4
"""Of ", " or ": ", sent twice."""
_MAX_DEPTH: Final = 16
"""Levels of an answer. A list or an object further inside is shown whole or empty."""
TEXT_LEVEL: Final = 2_000
"""Characters of a turn that a page shows, unless fewer turns are left than it may have."""

Note: TypeAlias = Callable[[int], str]
"""Says how to read the rest of a text of which so many characters are shown."""


MAIN_MEMBERS: Final = ("id", "position", "role", "actor", "content", "occurred_at")
"""Members that a turn of a long answer has always; of the others those that a model may need, unless they are empty."""
_OTHER_MEMBERS: Final = (
    *("conversation_id", "tool_calls", "tool_call_id", "tool_results", "metadata"),
    *("superseded_by", "supersedes", "erased_at"),
)
_HASHES: Final = frozenset({"content_hash", "chain_hash"})
SLIM_NOTE: Final = "turns have only their main members"


class ToolAnswer(RootModel[JsonObject]):
    """An answer as it is sent."""


def answer_bytes(value: JsonValue) -> int:
    """Return the bytes of an answer with this result."""
    text = json.dumps(value, ensure_ascii=False)
    return len(text.encode()) + len(json.dumps(text, ensure_ascii=False).encode()) + _AROUND


def cut_texts(value: JsonValue, *, max_characters: int, note: str = "") -> JsonValue:
    """Return a value in which longer texts are cut. `note`: how to read the rest of one."""
    if isinstance(value, str):
        if len(value) <= max_characters + len(note) + 40:  # the mark is no shorter
            return value
        return f"{value[:max_characters]} [… {len(value) - max_characters} more characters{note}]"
    if isinstance(value, list):
        return [cut_texts(item, max_characters=max_characters, note=note) for item in value]
    if isinstance(value, dict):
        return {
            name: item if _is_uncut(name, item) else cut_texts(item, max_characters=max_characters, note=note)
            for name, item in value.items()
        }
    return value


def _is_uncut(name: str, item: JsonValue) -> bool:
    return name.endswith(_UNCUT) and (not isinstance(item, str) or len(item) <= _MAX_UNCUT)


def slim(value: JsonValue) -> JsonValue:
    """Return a value whose turns have only the members that a model needs: no hashes, no counts, nothing empty."""
    if isinstance(value, list):
        return [slim(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() >= _HASHES:
        others = {name: value[name] for name in _OTHER_MEMBERS if value[name]}
        return {**{name: value[name] for name in MAIN_MEMBERS}, **others}
    return {name: slim(item) for name, item in value.items()}


def fit(value: JsonObject, *, max_bytes: int) -> tuple[JsonObject, str | None]:
    """Leave out members of turns, cut texts, then lists and objects, until a result fits. Return what was cut."""
    shown, cut = _fit_texts(value, max_bytes=max_bytes)
    if answer_bytes(shown) <= max_bytes:
        return shown, cut
    shortened = cast("JsonObject", _beginning(shown, max_bytes - _AROUND))
    return shortened, f"{cut} Of long lists and objects, the first members are shown."


def _fit_texts(value: JsonObject, *, max_bytes: int) -> tuple[JsonObject, str | None]:
    """Leave out members of turns, then cut texts, so that a result fits, as far as that helps. Return what was cut."""
    if answer_bytes(value) <= max_bytes:
        return value, None
    shown = value = cast("JsonObject", slim(value))
    if answer_bytes(value) <= max_bytes:
        return value, f"To keep the answer short, {SLIM_NOTE}."
    level = 0
    for level in _LEVELS:
        shown = cast("JsonObject", cut_texts(value, max_characters=level))
        if answer_bytes(shown) <= max_bytes:
            break
    return shown, f"To keep the answer short, texts of more than {level} characters are cut."


def _beginning(value: JsonValue, room: int, depth: int = 0) -> JsonValue:
    """Return the beginning of a list or an object, in so many bytes of an answer."""
    if not isinstance(value, list | dict) or _bytes(value) <= room:
        return value
    if depth > _MAX_DEPTH:
        return type(value)()
    if isinstance(value, list):
        shares = _shares(value, [_SEPARATOR_BYTES] * len(value), room, least=_ITEM_BYTES)
        return [_beginning(item, share, depth + 1) for item, share in zip(value, shares, strict=False)]
    beside = [_bytes(name) + 2 * _SEPARATOR_BYTES for name in value]
    shares = _shares([*value.values()], beside, room, least=_MEMBER_BYTES)
    members = zip(value.items(), shares, strict=False)
    return {name: _beginning(item, share, depth + 1) for (name, item), share in members}


def _shares(parts: Sequence[JsonValue], beside: Sequence[int], room: int, *, least: int) -> list[int]:
    """Return the bytes of the first parts in so many bytes: small ones whole, larger lists and objects alike.

    Each of these has at least `least` bytes.

    `beside`: bytes of the names of the parts, and of commas and colons.
    """
    sizes: list[int] = []
    needed = 0
    for part, more in zip(parts, beside, strict=True):
        size = _bytes(part)
        needed += more + (min(size, least) if isinstance(part, list | dict) else size)
        if needed > room:
            break
        sizes.append(size)
    room -= sum(beside[: len(sizes)])
    room -= sum(size for size, part in zip(sizes, parts, strict=False) if not isinstance(part, list | dict))
    shares = [0] * len(sizes)
    containers = sorted((size, index) for index, size in enumerate(sizes) if isinstance(parts[index], list | dict))
    for place, (size, index) in enumerate(containers):
        shares[index] = min(size, room // (len(containers) - place))
        room -= shares[index]
    return shares


def _bytes(value: JsonValue) -> int:
    return answer_bytes(value) - _AROUND


def fit_beside(value: JsonObject, name: str, *, max_bytes: int) -> JsonObject:
    """Cut the texts of a member of a result to the room that the other members leave."""
    others = {other: member for other, member in value.items() if other != name}
    shown, _ = fit({name: value[name]}, max_bytes=max_bytes - answer_bytes(others) + _AROUND)
    return {**others, **shown}


def fit_list(value: JsonObject, name: str, *, max_bytes: int, how: str) -> JsonObject:
    """Cut the texts of a result and leave out the last items of its list `name`, as far as it has to; set `cut`.

    `how`: how to read what was left out.
    """
    shown, cut = _fit_texts(value, max_bytes=max_bytes)
    items = cast("list[JsonValue]", shown[name])
    short_items = [_beginning(item, _ITEM_BYTES) for item in items]
    count = fitting_count({**shown, name: short_items}, short_items, max_bytes=max_bytes)
    if count < len(items):
        cut = " ".join(filter(None, [cut, f"The first {count} of {len(items)} are shown."]))
        shown = dict(shown)
        shown[name] = items[:count]
    shown, cut_more = fit(shown, max_bytes=max_bytes)
    cut = " ".join(filter(None, [cut, cut_more])) or None
    if cut is not None:
        shown["cut"] = f"{cut} {how}"
    return shown


def with_reasons(value: JsonObject, rows: JsonValue, *, max_bytes: int) -> tuple[JsonObject, str | None]:
    """Return a context with as many of the first rows of its `explain` as fit, and what was left out."""
    if not isinstance(rows, list):
        return value, None
    count = fitting_count({**value, "explain": rows}, rows, max_bytes=max_bytes)
    shown: JsonObject = {**value, "explain": rows[:count]}
    return shown, None if count == len(rows) else f"The first {count} of {len(rows)} rows of `explain` are shown."


def fitting_count(value: JsonObject, items: Sequence[JsonValue], *, max_bytes: int) -> int:
    """Return how many of the first items of a result fit; at least one."""
    sizes = [answer_bytes(item) - _AROUND for item in items]
    room = max_bytes - answer_bytes(value) + sum(sizes)
    count = 0
    while count < len(sizes) and sizes[count] <= room:
        room -= sizes[count] + 1
        count += 1
    return max(count, 1) if items else 0


def fit_recall(value: JsonObject, *, max_bytes: int) -> JsonObject:
    """Return the result of a search that fits: without further passages, then without contents, then with fewer hits.

    The text of a hit stays whole.
    """
    if answer_bytes(value) <= max_bytes:
        return value
    value = cast("JsonObject", slim(value))
    if answer_bytes(value) <= max_bytes:
        return {**value, "cut": f"To keep the answer short, {SLIM_NOTE}."}
    left_out = ["further passages"]
    hits = [{**hit, "passages": []} for hit in cast("list[JsonObject]", value["data"])]
    if answer_bytes({**value, "data": cast("JsonValue", hits)}) > max_bytes:
        left_out.append("contents of turns, which `text` has,")
        hits = [_without_contents(hit) for hit in hits]
    shown = {**value, "data": cast("JsonValue", hits)}
    count = fitting_count(shown, cast("list[JsonValue]", hits), max_bytes=max_bytes)
    fewer = f" The best {count} of {len(hits)} hits are shown: narrow the search, or ask for fewer." * (
        count < len(hits)
    )
    shown["data"] = cast("JsonValue", hits[:count])
    shown, cut = fit(shown, max_bytes=max_bytes)
    rest = f"To keep the answer short, {' and '.join(left_out)} are left out.{fewer}{'' if cut is None else f' {cut}'}"
    return {**shown, "cut": f"{rest} Read a turn with get_history: its conversation_id, turn_id, start and length."}


def _without_contents(hit: JsonObject) -> JsonObject:
    turn = hit["turn"]
    near = hit["neighbours"]
    return {
        **hit,
        "turn": _without_content(turn) if isinstance(turn, dict) else turn,
        "neighbours": cut_texts(near, max_characters=_LEVELS[-1]),
    }


def _without_content(turn: JsonObject) -> JsonObject:
    return {name: item for name, item in turn.items() if name not in {"tool_calls", "tool_results"}} | {"content": None}


def cut_turn(turn: JsonObject) -> JsonObject:
    """Return a turn of a history with its long texts cut; the mark of its content says how to read on."""
    note = f"; read on with get_history, turn_id {turn['id']} and start {TEXT_LEVEL}"
    content = turn["content"]
    shown = cast("JsonObject", cut_texts(turn, max_characters=TEXT_LEVEL))
    if isinstance(content, str):
        shown["content"] = cut_texts(content, max_characters=TEXT_LEVEL, note=note)
    return shown


def fit_part(value: JsonObject, text: str, *, start: int, length: int, max_bytes: int) -> JsonObject:
    """Return the answer with a part of a turn's text: `length` code points from `start`, or as many as fit."""
    part = text[start : start + length]
    shown = _with_part(value, text, start, part)
    while (size := answer_bytes(shown)) > max_bytes and part:
        room = max(max_bytes - answer_bytes(_with_part(value, text, start, "")), 0)
        part = part[: min(len(part) - 1, len(part) * room // size)]
        shown = _with_part(value, text, start, part)
    return shown


def _with_part(value: JsonObject, text: str, start: int, part: str) -> JsonObject:
    end = min(start, len(text)) + len(part)
    shown: JsonObject = {
        **value,
        "part": {"start": min(start, len(text)), "end": end, "length": len(text), "text": part},
    }
    if end < len(text):
        shown["cut"] = f"{len(text) - end} more characters follow: read on with start {end}."
    return shown
