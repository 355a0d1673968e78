"""Answers of tools within a limit: what is left out of a long one, and how a model reads it. Pure.

A tool's result is sent twice, as structured content and as its JSON text, since clients read either. The limit counts
both. `cut` of an answer says what was left out; it is null if nothing was.
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
TEXT_LEVEL: Final = 2_000
"""Characters of a turn that a page shows, unless fewer turns are left than it may have."""

Note: TypeAlias = Callable[[int], str]
"""Says how to read the rest of a text of which so many characters are shown."""


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
            name: item if name.endswith(_UNCUT) else cut_texts(item, max_characters=max_characters, note=note)
            for name, item in value.items()
        }
    return value


def fit_texts(value: JsonObject, *, max_bytes: int) -> tuple[JsonObject, str | None]:
    """Cut the texts of a result so that it fits, as far as that helps. Return it and what was cut."""
    if answer_bytes(value) <= max_bytes:
        return value, None
    shown = value
    level = 0
    for level in _LEVELS:
        shown = cast("JsonObject", cut_texts(value, max_characters=level))
        if answer_bytes(shown) <= max_bytes:
            break
    return shown, f"To keep the answer short, texts of more than {level} characters are cut."


def fit_list(value: JsonObject, name: str, *, max_bytes: int, how: str) -> JsonObject:
    """Cut the texts of a result and leave out the last items of its list `name`, as far as it has to; set `cut`.

    `how`: how to read what was left out.
    """
    shown, cut = fit_texts(value, max_bytes=max_bytes)
    items = cast("list[JsonValue]", shown[name])
    count = fitting_count(shown, items, max_bytes=max_bytes)
    if count < len(items):
        cut = " ".join(filter(None, [cut, f"The first {count} of {len(items)} are shown."]))
        shown = {**shown, name: items[:count]}
    return {**shown, "cut": None if cut is None else f"{cut} {how}"}


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
    hits = cast("list[JsonObject]", value["data"])
    if answer_bytes(value) <= max_bytes:
        return {**value, "cut": None}
    left_out = ["further passages"]
    hits = [{**hit, "passages": []} for hit in hits]
    if answer_bytes({**value, "data": cast("JsonValue", hits)}) > max_bytes:
        left_out.append("contents of turns, which `text` has,")
        hits = [_without_contents(hit) for hit in hits]
    shown = {**value, "data": cast("JsonValue", hits)}
    count = fitting_count(shown, cast("list[JsonValue]", hits), max_bytes=max_bytes)
    fewer = f" The best {count} of {len(hits)} hits are shown: narrow the search, or ask for fewer." * (
        count < len(hits)
    )
    shown["data"] = cast("JsonValue", hits[:count])
    shown, cut = fit_texts(shown, max_bytes=max_bytes)
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
    return {**turn, "content": None, "tool_calls": [], "tool_results": []}


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
    cut = None if end == len(text) else f"{len(text) - end} more characters follow: read on with start {end}."
    return {
        **value,
        "part": {"start": min(start, len(text)), "end": end, "length": len(text), "text": part},
        "cut": cut,
    }
