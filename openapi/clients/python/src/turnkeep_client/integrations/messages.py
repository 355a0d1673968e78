"""Store a message of a framework as a turn, and read it back exactly as it was. Pure.

A turn shows what the message says: role, text, tool calls. So recall, contexts and other frameworks read it like any
turn. The message itself is JSON text in a content part of the type `turnkeep.given`, which the server neither searches
nor counts nor shows to a model. The text of the turn is left out of that JSON, so it is stored once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from turnkeep_client.generated import types

JsonObject: TypeAlias = dict[str, types.JsonValue]

_GIVEN: Final = "turnkeep.given"
_MAX_NAME: Final = 256


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str

    @property
    def parsed(self) -> JsonObject:
        """The arguments as an object; empty if they are none."""
        try:
            value = cast("object", json.loads(self.arguments))
        except ValueError:
            value = None
        return cast("JsonObject", value) if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class Shown:
    """What a message says. A message of the role `tool` answers the call `call_id`, or has several `results`."""

    role: types.Role
    text: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str | None = None
    results: tuple[tuple[str, str], ...] = ()
    """Call ids, and the text of each result."""


def turn_of(framework: str, message: Mapping[str, object], shown: Shown) -> types.TurnInput:
    """Return the turn of a message. Raises TypeError or ValueError if the message is not JSON.

    Names and texts that a turn cannot have (null characters, empty or repeated ids) are changed in the turn only.
    """
    text = _storable(shown.text)
    part = {"type": _GIVEN, "format": framework, "json": _pieces(json.dumps(message), text)}
    content: list[object] = [{"type": "text", "text": text}, part] if text else [part]
    turn: types.TurnInput = {"role": shown.role, "content": cast("list[types.ContentPart]", content)}
    if shown.role == "tool" and shown.results:
        turn["tool_results"] = [
            {"tool_call_id": call_id, "content": _storable(result)}
            for call_id, result in {_name(call_id): result for call_id, result in shown.results}.items()
        ]
    elif shown.role == "tool":
        turn["tool_call_id"] = _name(shown.call_id)
    elif shown.role == "assistant" and shown.calls:
        calls = {_name(call.id): call for call in shown.calls}
        turn["tool_calls"] = [
            {"id": call_id, "name": _name(call.name), "arguments": _storable(call.arguments)}
            for call_id, call in calls.items()
        ]
    return turn


def message_of(framework: str, turn: types.Turn) -> JsonObject | None:
    """Return the message that a turn was made of; None if another program wrote the turn, or if it continues one."""
    pieces = _given(framework, turn)
    return cast("JsonObject", json.loads(json.dumps(text_of(turn["content"])).join(pieces))) if pieces else None


def turns_of(framework: str, message: Mapping[str, object], shown: Sequence[Shown]) -> list[types.TurnInput]:
    """Return the turns of a message that is shown as several: the first has it, the others continue it."""
    first, *others = shown or [Shown("assistant")]
    turns = [turn_of(framework, message, first)]
    for one in others:
        turn = turn_of(framework, {}, one)
        parts = cast("list[types.ContentPart]", turn.get("content"))
        continuation = cast("types.ContentPart", {"type": _GIVEN, "format": framework, "json": []})
        turns.append({**turn, "content": [*parts[:-1], continuation]})
    return turns


def continues_message(framework: str, turn: types.Turn) -> bool:
    """Return whether a turn belongs to the message of a turn before it."""
    return _given(framework, turn) == []


def shown_of(turn: types.Turn) -> Shown:
    """Return what a turn says, whoever wrote it. Several results of tools become one text."""
    role, text = turn["role"], text_of(turn["content"])
    calls = tuple(_call(cast("Mapping[str, object]", call)) for call in turn["tool_calls"])
    call_id = turn["tool_call_id"]
    for result in turn["tool_results"]:
        call_id = call_id or result["tool_call_id"]
        text = "\n".join(filter(None, [text, text_of(result.get("content"))]))
    return Shown(role, text, calls, call_id)


def text_of(content: object) -> str:
    """Return the text of a content: a string, or the texts of its parts. Media become `[type]`."""
    if isinstance(content, str):
        return content
    return "\n".join(filter(None, map(_part_text, _parts(content))))


def _given(framework: str, turn: types.Turn) -> list[str] | None:
    for part in _parts(turn["content"]):
        pieces = part.get("json")
        if part.get("type") == _GIVEN and part.get("format") == framework and isinstance(pieces, list):
            return cast("list[str]", pieces)
    return None


def _part_text(part: Mapping[str, object]) -> str:
    text = part.get("text", part.get("refusal"))
    if isinstance(text, str):
        return text
    return "" if part.get("type") == _GIVEN else f"[{part.get('type', 'part')}]"


def _parts(content: object) -> Sequence[Mapping[str, object]]:
    parts = cast("list[object]", content) if isinstance(content, list) else []
    return [
        cast("Mapping[str, object]", {"type": "text", "text": one} if isinstance(one, str) else one)
        for one in parts
        if isinstance(one, str | dict)
    ]


def _pieces(message: str, text: str) -> list[str]:
    """Return JSON text, cut where it has this string if there is exactly one such place."""
    quoted = json.dumps(text)
    return message.split(quoted) if text and message.count(quoted) == 1 else [message]


def _call(call: Mapping[str, object]) -> Call:
    body = call.get("function", call)
    named = cast("Mapping[str, object]", body) if isinstance(body, dict) else call
    arguments = named.get("arguments")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return Call(str(call.get("id", "")), str(named.get("name", "")), written)


def _name(value: str | None) -> str:
    return _storable(value or "")[:_MAX_NAME] or "unknown"


def _storable(text: str) -> str:
    """Return text without what UTF-8 or the database cannot store."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
