"""Joins the streamed pieces of tool calls, and of members that only their provider reads. Pure.

Endpoints differ in how a piece names its call. The rules apply in this order:

1. An `id` that a call of this answer has: the piece belongs to that call. With an `index`, only calls that were
streamed under this index count.
2. An `index` whose latest call has no other id: the piece belongs to that call. A piece with another id begins a new
call, also under the index of an earlier one.
3. Without `index`, or with one only in later pieces: a new id begins a new call, and a piece without an id continues
the latest call. In a list of several pieces without ids, each continues the call with its place in the list.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from io import StringIO
from typing import Final

from pydantic import JsonValue

from app.formats.schemas import JsonObject

MAX_CALLS: Final = 128
ARGUMENTS: Final = {"function": "arguments", "custom": "input"}
"""The kinds of tool calls, each with the field that has the text of its arguments."""
EMPTY_VALUES: Final[tuple[JsonValue, ...]] = (None, [], {})
_CALL_MEMBERS: Final = frozenset({"id", "type", "index", *ARGUMENTS})
_IN_PIECES: Final = frozenset({"text", "summary", "data", "transcript"})
"""Members of a provider's own entries (thoughts, audio) whose texts are streamed in pieces."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Text to add to one part of the streamed turn, or to its refusal."""

    part: str
    text: str


@dataclass(slots=True)
class _StreamedCall:
    """A call so far. `number`: its place in the answer; `index`: what its pieces name, if they do."""

    number: int
    index: int | None
    members: JsonObject = field(default_factory=dict[str, JsonValue])
    names: dict[str, str] = field(default_factory=dict[str, str])
    arguments: dict[str, StringIO | None] = field(default_factory=dict[str, StringIO | None])

    @property
    def id(self) -> str | None:
        value = self.members.get("id")
        return value if isinstance(value, str) else None

    def has_arguments(self, kind: str) -> bool:
        """Return whether there is text of the arguments of this kind of call."""
        text = self.arguments.get(kind)
        return text is not None and text.tell() > 0

    def whole(self) -> JsonObject:
        """Return the call as in a message that was not streamed."""
        call = dict(self.members)
        for kind, text in self.arguments.items():
            name: JsonObject = {"name": self.names[kind]} if kind in self.names else {}
            call[kind] = {**name, **({} if text is None else {ARGUMENTS[kind]: text.getvalue()})}
        return call


@dataclass(slots=True)
class StreamedCalls:
    """The calls of an answer that is streamed."""

    _calls: dict[int, _StreamedCall] = field(default_factory=dict[int, _StreamedCall])
    _latest: _StreamedCall | None = None

    def __bool__(self) -> bool:
        """Return whether there is a call."""
        return bool(self._calls)

    def whole(self) -> list[JsonObject]:
        """Return the calls in their order."""
        return [self._calls[number].whole() for number in sorted(self._calls)]

    def are_allowed(self, names: Collection[str]) -> bool:
        """Return whether all calls so far are of these tools. A name without arguments may be the start of one."""
        return all(
            name in names or (not call.has_arguments(kind) and any(allowed.startswith(name) for allowed in names))
            for call in self._calls.values()
            for kind, name in call.names.items()
        )

    def add(self, pieces: list[JsonObject]) -> list[Delta]:
        """Add the pieces of one delta. Return the additions to the live turn."""
        deltas: list[Delta] = []
        for at, piece in enumerate(pieces):
            call = self._latest = self._call_of(piece, at if len(pieces) > 1 else None)
            added = _add(call, piece)
            if call.number < MAX_CALLS:
                deltas += [Delta(f"tool_calls/{call.number}/{delta.part}", delta.text) for delta in added]
        return deltas

    def _call_of(self, piece: JsonObject, at: int | None) -> _StreamedCall:
        """Return the call to which a piece belongs, a new one if it begins one; `at`: its place among several."""
        call_id = _text(piece, "id")
        index = piece.get("index")
        index = index if isinstance(index, int) and not isinstance(index, bool) and index >= 0 else None
        calls = [call for call in self._calls.values() if index is None or call.index in {None, index}]
        if call_id is not None:
            same = [call for call in calls if call.id == call_id]
            if same:
                return same[-1]
        if index is not None:
            latest = next((call for call in reversed(calls) if call.index == index), None)
            if latest is None and call_id is None and self._latest is not None and self._latest.index is None:
                latest = self._latest
        elif call_id is None and at is not None:
            latest = self._calls.get(at)
        else:
            latest = self._latest
        if latest is not None and (call_id is None or latest.id is None):
            return latest
        number = index if index is not None and index not in self._calls else max(self._calls, default=-1) + 1
        self._calls[number] = call = _StreamedCall(number, index)
        return call


def _add(call: _StreamedCall, piece: JsonObject) -> list[Delta]:
    deltas: list[Delta] = []
    for name in ("id", "type"):
        if name not in call.members and (value := _text(piece, name)) is not None:
            call.members[name] = value
            if name == "id":
                deltas.append(Delta("id", value))
    others: JsonObject = {name: value for name, value in piece.items() if name not in _CALL_MEMBERS}
    call.members = merged(call.members, others)
    for kind, member in ARGUMENTS.items():
        if not isinstance(body := piece.get(kind), dict):
            continue
        call.arguments.setdefault(kind, None)
        more = _more_of_name(call.names.get(kind, ""), _text(body, "name") or "", is_ended=call.has_arguments(kind))
        if more:
            call.names[kind] = call.names.get(kind, "") + more
            deltas.append(Delta("name", more))
        if isinstance(text := body.get(member), str):
            call.arguments[kind] = extended(call.arguments[kind], text)
            deltas.append(Delta("arguments", text))
    return deltas


def merged(members: JsonObject, more: JsonObject) -> JsonObject:
    """Return members with those of a further piece: entries with the same `index` are one, other lists are joined."""
    joined = dict(members)
    for name, value in more.items():
        old = joined.get(name)
        match old, value:
            case dict(), dict():
                joined[name] = merged(old, value)
            case list(), list():
                joined[name] = _joined(old, value)
            case str(), str() if name in _IN_PIECES:
                joined[name] = old + value
            case _ if name not in joined or value not in EMPTY_VALUES:
                joined[name] = value
            case _:
                pass
    return joined


def _joined(entries: list[JsonValue], more: list[JsonValue]) -> list[JsonValue]:
    joined = list(entries)
    for entry in more:
        index = entry.get("index") if isinstance(entry, dict) else None
        place = next(
            (place for place, old in enumerate(joined) if isinstance(old, dict) and old.get("index") == index), None
        )
        old = None if index is None or place is None else joined[place]
        if place is not None and isinstance(old, dict) and isinstance(entry, dict):
            joined[place] = merged(old, entry)
        else:
            joined.append(entry)
    return joined


def _more_of_name(name: str, piece: str, *, is_ended: bool) -> str:
    """Return what a piece adds to a name: some endpoints repeat the name in each piece, some send it in pieces."""
    if piece.startswith(name):
        return "" if is_ended and name else piece[len(name) :]
    return "" if is_ended else piece


def _text(owner: JsonObject, name: str) -> str | None:
    value = owner.get(name)
    return value if isinstance(value, str) and value else None


def extended(buffer: StringIO | None, text: str) -> StringIO:
    """Write a text at the end of a buffer, or of a new one, and return it."""
    buffer = StringIO() if buffer is None else buffer
    buffer.write(text)
    buffer.read(0)  # until the first read, a StringIO keeps an object for each write
    return buffer


def with_calls(message: JsonObject) -> JsonObject:
    """Return a message of the time before `tool_calls` as one of today, and calls without an id with one.

    `function_call` becomes a call, and a message of the role `function` the result of the call. Both get an id from the
    function's name, so a result belongs to the latest call of its function.
    """
    if message.get("role") == "function":
        rest = {name: value for name, value in message.items() if name != "name"}
        return {**rest, "role": "tool", "tool_call_id": _id_of(message.get("name"))}
    calls, legacy = message.get("tool_calls"), message.get("function_call")
    if isinstance(legacy, dict) and not calls:
        message = {name: value for name, value in message.items() if name != "function_call"}
        return {**message, "tool_calls": [{"id": _id_of(legacy.get("name")), "type": "function", "function": legacy}]}
    if message.get("role") != "assistant" or not isinstance(calls, list):
        return message
    return {**message, "tool_calls": _with_ids(calls)}


def _with_ids(calls: list[JsonValue]) -> list[JsonValue]:
    ids = {str(call.get("id")) for call in calls if isinstance(call, dict)}
    named: list[JsonValue] = []
    for number, call in enumerate(calls):
        if not isinstance(call, dict) or call.get("id") not in (None, ""):
            named.append(call)
            continue
        body = call.get("function") or call.get("custom")
        call_id = _id_of(body.get("name") if isinstance(body, dict) else None)
        call_id = f"{call_id}_{number}" if call_id in ids else call_id
        ids.add(call_id)
        named.append({**call, "id": call_id})
    return named


def _id_of(name: JsonValue) -> str:
    return f"call_{name if isinstance(name, str) else ''}"
