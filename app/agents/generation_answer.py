"""The answer of a chat model out of the pieces that it streams in. Pure.

Only the first choice is kept: a conversation has one next turn. Members that are not known here are kept too: texts are
put together, anything else is as it came last.
"""

import json
import math
import re
from dataclasses import dataclass, field
from typing import Final, cast

from pydantic import JsonValue

from app.formats.schemas import JsonObject

_MOST_CALLS: Final = 128
_JOINED: Final = frozenset({"content", "refusal", "reasoning_content", "reasoning", "thinking"})
_NOTHING: Final[tuple[JsonValue, ...]] = (None, [], {})
_MOST_INTEGER: Final = 2**53 - 1
_LONGEST_USAGE: Final = 4096
_NOT_STORABLE: Final = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Delta:
    """Text to add to one part of the streamed turn."""

    part: str
    text: str


@dataclass(slots=True)
class AnswerSoFar:
    """The first choice of a streamed chat completion."""

    message: JsonObject = field(default_factory=lambda: {"role": "assistant", "content": None})
    calls: dict[int, JsonObject] = field(default_factory=dict[int, JsonObject])
    id: str | None = None
    model: str | None = None
    usage: JsonObject | None = None
    finish_reason: str | None = None

    @property
    def text(self) -> str:
        """What was said so far, as text that can be stored."""
        content = storable(self.message.get("content"))
        return content if isinstance(content, str) else ""

    def add(self, piece: JsonObject) -> list[Delta]:
        """Take one piece; gives what it adds to the turn that is followed live."""
        for name in ("id", "model"):
            if isinstance(value := piece.get(name), str) and getattr(self, name) is None:
                setattr(self, name, value)
        if isinstance(usage := piece.get("usage"), dict):
            self.usage = usage
        deltas: list[Delta] = []
        choices = piece.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if not isinstance(choice, dict) or choice.get("index", 0) != 0:
                continue
            if isinstance(reason := choice.get("finish_reason"), str):
                self.finish_reason = reason
            if isinstance(delta := choice.get("delta"), dict):
                deltas += self._take(delta)
        return deltas

    def whole(self) -> JsonObject:
        """The message as an answer in one piece would have had it."""
        if not self.calls:
            return self.message
        return {**self.message, "tool_calls": [self.calls[number] for number in sorted(self.calls)]}

    def _take(self, delta: JsonObject) -> list[Delta]:
        deltas: list[Delta] = []
        for name, value in delta.items():
            if name == "tool_calls" and isinstance(value, list):
                for at, call in enumerate(value):
                    if isinstance(call, dict):
                        deltas += self._call(call, at)
            elif isinstance(value, str) and name in _JOINED:
                before = self.message.get(name)
                self.message[name] = (before if isinstance(before, str) else "") + value
                if name == "content" and value:
                    deltas.append(Delta("content", value))
            elif value not in _NOTHING and name != "role":
                self.message[name] = value
        return deltas

    def _call(self, piece: JsonObject, at: int) -> list[Delta]:
        index = piece.get("index", at)
        number = index if isinstance(index, int) and index >= 0 else at
        call = self.calls.setdefault(number, {})
        is_new = not call
        for name in ("id", "type"):
            if isinstance(value := piece.get(name), str) and value:
                call.setdefault(name, value)
        deltas = [Delta("id", str(call["id"]))] if is_new and "id" in call else []
        for kind, text in (("function", "arguments"), ("custom", "input")):
            body = piece.get(kind)
            if isinstance(body, dict):
                deltas += self._body(call, kind, text, body)
        if number >= _MOST_CALLS:
            return []
        return [Delta(f"tool_calls/{number}/{one.part}", one.text) for one in deltas]

    @staticmethod
    def _body(call: JsonObject, kind: str, text: str, body: JsonObject) -> list[Delta]:
        known = call.setdefault(kind, {})
        deltas: list[Delta] = []
        if not isinstance(known, dict):
            return deltas
        if isinstance(name := body.get("name"), str) and name and "name" not in known:
            known["name"] = name
            deltas.append(Delta("name", name))
        if isinstance(more := body.get(text), str):
            before = known.get(text)
            known[text] = (before if isinstance(before, str) else "") + more
            if more:
                deltas.append(Delta("arguments", more))
        return deltas


def choice_of(completion: JsonObject) -> tuple[JsonObject, str | None] | None:
    """The message of the first choice, and why it ended; None where there is none."""
    choices = completion.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if not isinstance(choice, dict) or choice.get("index", 0) != 0:
            continue
        message, reason = choice.get("message"), choice.get("finish_reason")
        if isinstance(message, dict):
            return message, reason if isinstance(reason, str) else None
    return None


def bare(message: JsonObject) -> JsonObject:
    """A message without the members by which clients say that something is not there."""
    return {name: value for name, value in message.items() if value not in _NOTHING or name == "content"}


def pieces_of(text: str, length: int) -> list[str]:
    """A text in pieces of so many characters: endpoints may send all of an answer at once."""
    return [text[at : at + length] for at in range(0, len(text), length)]


def storable(value: JsonValue) -> JsonValue:
    """A value without what cannot be stored: halves of pairs that were parted are joined, other characters go.

    Numbers that JSON readers do not agree on are null: integers beyond 2^53 - 1, and what is no number.
    """
    if isinstance(value, str):
        if _NOT_STORABLE.search(value):
            joined = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
            return joined.replace("\0", "")
        return value
    if isinstance(value, list):
        return [storable(one) for one in value]
    if isinstance(value, dict):
        return {str(storable(name)): storable(one) for name, one in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return None if isinstance(value, int) and abs(value) > _MOST_INTEGER else value


def usage_of(answer: AnswerSoFar) -> JsonObject | None:
    """What the endpoint says that the answer took; where it says too much to be kept, only the two counts."""
    usage = storable(cast("JsonValue", answer.usage))
    if not isinstance(usage, dict) or len(json.dumps(usage)) <= _LONGEST_USAGE:
        return usage if isinstance(usage, dict) else None
    counts = {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
    return {name: count for name, count in counts.items() if isinstance(count, int)}
