"""The events of a streamed response, from the growing answer. Pure.

Invariant: the events depend on the whole answer alone, not on the pieces in which it arrived. Texts are cut into pieces
by their own characters, so the event of a number is the same in a stream that is followed live and in one that is read
later, in any process: a client continues after the last number that it has.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from app.agents.generation.call_deltas import Delta
from app.agents.generation.openai_items import id_of_item
from app.agents.generation.responses.view import IN_PROGRESS, ResponseHead, ResponseState, response_view, state_of
from app.conversations.schemas.conversations import Turn
from app.formats.schemas import JsonObject

_PIECE: Final = re.compile(r"\s{0,12}\S{1,12}|\s{1,12}")
"""A word with the space before it, or a part of a long one."""
_CALL: Final = re.compile(r"tool_calls/([0-9]+)/(id|name|arguments)")
_TEXT_TYPES: Final = {"content": "output_text", "refusal": "refusal"}
_FINAL: Final = {"completed": "response.completed", "incomplete": "response.incomplete"}


@dataclass(slots=True)
class _OpenText:
    """A text that grows: the pieces that were sent of it, and what waits for the end of its piece."""

    pieces: list[str] = field(default_factory=list[str])
    waiting: str = ""

    @property
    def sent(self) -> str:
        """What was sent of the text."""
        return "".join(self.pieces)

    def add(self, text: str) -> list[str]:
        """Add text; return the pieces that are complete: those before the last one."""
        self.waiting += text
        return self._take(_PIECE.findall(self.waiting)[:-1])

    def rest(self) -> list[str]:
        """Return the last pieces."""
        return self._take(_PIECE.findall(self.waiting))

    def _take(self, pieces: list[str]) -> list[str]:
        self.pieces += pieces
        self.waiting = self.waiting[sum(map(len, pieces)) :]
        return pieces


@dataclass(slots=True)
class _OpenMessage:
    """The message of the answer, with the part that grows."""

    index: int
    item_id: str
    parts: list[JsonObject] = field(default_factory=list[JsonObject])
    name: str = ""
    text: _OpenText = field(default_factory=_OpenText)
    is_closed: bool = False


@dataclass(slots=True)
class _OpenCall:
    """A tool call of the answer. It begins with its arguments, when its id and its name are known.

    `waiting`: what arrived of its arguments and was not sent. Only the first call of an answer is sent while it grows:
    endpoints may stream several calls at once, and the events show one after the other.
    """

    index: int = -1
    item_id: str = ""
    kind: str = "function_call"
    call_id: str = ""
    name: str = ""
    arguments: _OpenText = field(default_factory=_OpenText)
    waiting: list[str] = field(default_factory=list[str])

    def item(self, status: str) -> JsonObject:
        """Return the call as an item, with its arguments so far."""
        item: JsonObject = {"id": self.item_id, "type": self.kind, "call_id": self.call_id, "name": self.name}
        if self.kind == "custom_tool_call":
            return {**item, "input": self.arguments.sent}
        return {**item, "arguments": self.arguments.sent, "status": status}


class ResponseEvents:
    """Makes the events of one response. Each method returns the next events, in order."""

    def __init__(self, head: ResponseHead) -> None:
        self._head = head
        self._custom = _custom_tools(head.repeated)
        self._number = 0
        self._count = 0
        self._message: _OpenMessage | None = None
        self._calls: dict[int, _OpenCall] = {}

    def begin(self) -> list[JsonObject]:
        """Return the events before the answer."""
        response = response_view(self._head, IN_PROGRESS)
        return [self._event(f"response.{name}", response=response) for name in ("created", "in_progress")]

    def add(self, deltas: Sequence[Delta]) -> list[JsonObject]:
        """Return the events of additions to the answer."""
        return [event for delta in deltas for event in self._add(delta)]

    def end(self, state: ResponseState, *, model: str | None = None) -> list[JsonObject]:
        """Return the last events; the items of a whole answer get the ids under which they were sent.

        `model`: the name that the endpoint gave.
        """
        if state.status not in _FINAL:
            return [self._event("response.failed", response=response_view(self._head, state))]
        self._head = replace(self._head, model=model or self._head.model)
        events = [*self._close_message(state), *self._close_calls(state)]
        whole = replace(state, output=self._as_sent(state.output))
        return [*events, self._event(_FINAL[state.status], response=response_view(self._head, whole))]

    def output(self) -> list[JsonObject]:
        """Return the items that were sent so far, as incomplete ones."""
        message, calls = self._message, [call for call in self._calls.values() if call.index >= 0]
        items = [(call.index, call.item("incomplete")) for call in calls]
        if message is not None:
            parts = message.parts if message.is_closed else [*message.parts, self._part(message)]
            items.append((message.index, _message_item(message.item_id, parts, "incomplete")))
        return _in_order(items)

    # texts

    def _add(self, delta: Delta) -> Iterator[JsonObject]:
        if delta.part in _TEXT_TYPES:
            yield from self._add_text(delta)
        elif (match := _CALL.fullmatch(delta.part)) is not None:
            yield from self._add_call(int(match[1]), match[2], delta.text)

    def _add_text(self, delta: Delta) -> Iterator[JsonObject]:
        if self._message is None:
            if not delta.text:
                return
            index = self._next_index()
            self._message = _OpenMessage(index, id_of_item("message", self._head.turn_id, index))
            yield self._item_event("added", index, _message_item(self._message.item_id, [], "in_progress"))
        message = self._message
        if message.is_closed:  # text after calls: it is in the item of the last event
            return
        if message.name != delta.part:
            yield from self._close_part(message)
            message.name, message.text = delta.part, _OpenText()
            yield self._part_event("added", message)
        for piece in message.text.add(delta.text):
            yield self._text_event(message, piece)

    def _text_event(self, message: _OpenMessage, piece: str) -> JsonObject:
        kind = _TEXT_TYPES[message.name]
        more: JsonObject = {"logprobs": []} if message.name == "content" else {}
        return self._event(f"response.{kind}.delta", **self._place(message), delta=piece, **more)

    def _close_part(self, message: _OpenMessage) -> Iterator[JsonObject]:
        if not message.name:
            return
        for piece in message.text.rest():
            yield self._text_event(message, piece)
        kind = _TEXT_TYPES[message.name]
        done: JsonObject = (
            {"text": message.text.sent, "logprobs": []} if message.name == "content" else {"refusal": message.text.sent}
        )
        yield self._event(f"response.{kind}.done", **self._place(message), **done)
        yield self._part_event("done", message)
        message.parts.append(self._part(message))

    def _close_message(self, state: ResponseState | None) -> Iterator[JsonObject]:
        message = self._message
        if message is None or message.is_closed:
            return
        yield from self._close_part(message)
        message.is_closed = True
        item = _message_item(message.item_id, message.parts, _item_status(state))
        yield self._item_event("done", message.index, item)

    # calls

    def _add_call(self, number: int, member: str, text: str) -> Iterator[JsonObject]:
        if number not in self._calls:
            yield from self._close_message(None)
            self._calls[number] = _OpenCall()
        call = self._calls[number]
        if member == "arguments":
            call.waiting.append(text)
        elif member == "id":
            call.call_id = text
        else:
            call.name += text
        if call is next(iter(self._calls.values())) and call.waiting:
            yield from self._grow(call)

    def _grow(self, call: _OpenCall) -> Iterator[JsonObject]:
        if not call.call_id or not call.name:
            return
        if call.index < 0:
            call.index = self._next_index()
            call.kind = "custom_tool_call" if call.name in self._custom else "function_call"
            call.item_id = id_of_item(call.kind, self._head.turn_id, call.index)
            yield self._item_event("added", call.index, call.item("in_progress"))
        text = "".join(call.waiting)
        call.waiting.clear()
        for piece in call.arguments.add(text):
            yield self._call_event(call, "delta", delta=piece)

    def _close_calls(self, state: ResponseState) -> Iterator[JsonObject]:
        calls = list(self._calls.values())
        for call in calls:
            yield from self._grow(call)
            if call.index < 0:
                continue
            for piece in call.arguments.rest():
                yield self._call_event(call, "delta", delta=piece)
            name = "input" if call.kind == "custom_tool_call" else "arguments"
            yield self._call_event(call, "done", **{name: call.arguments.sent})
            yield self._item_event("done", call.index, call.item(_item_status(state if call is calls[-1] else None)))

    def _call_event(self, call: _OpenCall, suffix: str, **members: str) -> JsonObject:
        name = "custom_tool_call_input" if call.kind == "custom_tool_call" else "function_call_arguments"
        return self._event(f"response.{name}.{suffix}", item_id=call.item_id, output_index=call.index, **members)

    # events

    def _event(self, kind: str, **members: object) -> JsonObject:
        event = {"type": kind, "sequence_number": self._number, **members}
        self._number += 1
        return event  # pyright: ignore[reportReturnType]

    def _next_index(self) -> int:
        self._count += 1
        return self._count - 1

    def _item_event(self, suffix: str, index: int, item: JsonObject) -> JsonObject:
        return self._event(f"response.output_item.{suffix}", output_index=index, item=item)

    def _part_event(self, suffix: str, message: _OpenMessage) -> JsonObject:
        part = self._part(message)
        return self._event(f"response.content_part.{suffix}", **self._place(message), part=part)

    @staticmethod
    def _place(message: _OpenMessage) -> JsonObject:
        return {"item_id": message.item_id, "output_index": message.index, "content_index": len(message.parts)}

    @staticmethod
    def _part(message: _OpenMessage) -> JsonObject:
        if message.name == "refusal":
            return {"type": "refusal", "refusal": message.text.sent}
        return {"type": "output_text", "text": message.text.sent, "annotations": []}

    def _as_sent(self, output: Sequence[JsonObject]) -> list[JsonObject]:
        """Return the items of the stored answer in the order and with the ids in which they were sent."""
        messages = [item for item in output if item.get("type") == "message"]
        calls = [item for item in output if item.get("type") != "message"]
        sent: list[tuple[int, JsonObject]] = []
        if self._message is not None and messages:
            sent.append((self._message.index, {**messages[0], "id": self._message.item_id}))
        opened = [call for _, call in sorted(self._calls.items()) if call.index >= 0]
        if len(opened) != len(calls) or len(sent) != len(messages):
            return list(output)
        sent += [(call.index, {**item, "id": call.item_id}) for call, item in zip(opened, calls, strict=True)]
        return _in_order(sent)


def stored_events(head: ResponseHead, turn: Turn) -> list[JsonObject]:
    """Return all events of a response whose answer has ended, as they were when it was generated."""
    events, state = ResponseEvents(head), state_of(turn)
    return [*events.begin(), *events.add(deltas_of(state.output)), *events.end(state)]


def deltas_of(output: Sequence[JsonObject]) -> list[Delta]:
    """Return the items of an answer as additions to an empty one."""
    deltas: list[Delta] = []
    number = 0
    for item in output:
        if item.get("type") == "message":
            content = item.get("content")
            for part in content if isinstance(content, list) else []:
                if isinstance(part, dict):
                    name = "refusal" if part.get("type") == "refusal" else "content"
                    deltas.append(Delta(name, str(part.get("text" if name == "content" else name) or "")))
        else:
            members = {"id": item.get("call_id"), "name": item.get("name")}
            members["arguments"] = item.get("arguments", item.get("input"))
            deltas += [Delta(f"tool_calls/{number}/{name}", str(text)) for name, text in members.items() if text]
            number += 1
    return deltas


def _custom_tools(repeated: JsonObject) -> frozenset[str]:
    """Return the names of the custom tools that a request offers."""
    tools = repeated.get("tools")
    offered = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return frozenset(str(tool.get("name")) for tool in offered if tool.get("type") == "custom")


def _in_order(items: Sequence[tuple[int, JsonObject]]) -> list[JsonObject]:
    return [item for _, item in sorted(items, key=lambda place: place[0])]


def _message_item(item_id: str, parts: Sequence[JsonObject], status: str) -> JsonObject:
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": [*parts]}


def _item_status(state: ResponseState | None) -> str:
    return "incomplete" if state is not None and state.status == "incomplete" else "completed"
