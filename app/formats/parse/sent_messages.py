"""Pointers to the members of a message that a caller sent, from pointers to the turns that it was parsed into. Pure.

A provider's message has other names for some members of a turn, and becomes one turn or several.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from pydantic import JsonValue

from app.core.errors import AppError
from app.formats.parts import type_of
from app.formats.response_items import output_key
from app.formats.schemas import Format, JsonObject

_ANTHROPIC_MEMBERS: Final = {"tool_call_id": "tool_use_id", "arguments": "input"}
_CUSTOM_MEMBERS: Final = {"name": ("custom", "name"), "arguments": ("custom", "input")}


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message of a request, and its JSON pointer there.

    A pointer that does not end with an index is that of a value in the place of a message, such as a text.
    """

    at: str
    source: Format
    message: JsonObject

    def pointer_to(self, steps: list[str]) -> str:
        """Return the pointer of a member of the message, from its path in a turn."""
        if not self.at.rpartition("/")[2].isdecimal():
            return self.at
        match self.source:
            case Format.OPENAI | Format.WORKERS_AI:
                steps = _chat_steps(self.message, steps)
            case Format.OPENAI_RESPONSES:
                steps = _item_steps(self.message, steps)
            case Format.ANTHROPIC:
                steps = _anthropic_steps(self.message, steps)
            case Format.CANONICAL:
                steps = _canonical_steps(self.message, steps)
        return "/".join([self.at, *steps])

    @property
    def list_pointer(self) -> str:
        """Return the pointer of the list that has the message, or of the value in the place of one."""
        root, _, last = self.at.rpartition("/")
        return root if last.isdecimal() else self.at


@contextmanager
def errors_in_messages(sent: Sequence[SentMessage | None]) -> Generator[None]:
    """Change pointers of errors from `/turns/{index}` to the messages of these turns; None: it was sent as a turn."""
    try:
        yield
    except AppError as error:
        error.fields = tuple(replace(field, pointer=_sent_pointer(field.pointer, sent)) for field in error.fields)
        raise


def _sent_pointer(pointer: str, sent: Sequence[SentMessage | None]) -> str:
    match pointer.split("/"):
        case ["", "turns", index, *steps] if (message := sent[int(index)]) is not None:
            return message.pointer_to(steps)
        case ["", "turns"] if sent and sent[0] is not None:
            return sent[0].list_pointer
        case _:
            return pointer


def _chat_steps(message: JsonObject, steps: list[str]) -> list[str]:
    match steps:
        case ["tool_call_id"] if message.get("role") == "function":
            return ["name"]
        case ["tool_calls", _, *rest] if not message.get("tool_calls"):
            return ["function_call", *("name" if member == "id" else member for member in rest[-1:])]
        case ["tool_calls", index, ("name" | "arguments") as member] if index.isdecimal():
            call = _entry(message.get("tool_calls"), int(index))
            return ["tool_calls", index, *(_CUSTOM_MEMBERS[member] if "custom" in call else (member,))]
        case ["content", *_]:
            return _content_steps(message, steps)
        case _:
            return steps


def _item_steps(item: JsonObject, steps: list[str]) -> list[str]:
    match steps:
        case ["tool_call_id"]:
            return [output_key(str(item.get("type")))]
        case ["tool_calls", _, "id"]:
            return ["call_id"]
        case ["tool_calls", _, "arguments"] if "input" in item:
            return ["input"]
        case ["tool_calls", *rest]:
            return [member for member in rest[1:] if member in item]
        case ["content", *rest]:
            is_output = str(item.get("type")).endswith("_output")
            return _content_steps(item, ["output" if is_output else "content", *rest])
        case _:
            return steps


def _anthropic_steps(message: JsonObject, steps: list[str]) -> list[str]:
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    block_type = "tool_use" if message.get("role") == "assistant" else "tool_result"
    match steps:
        case [("tool_calls" | "tool_results"), index, *rest]:
            number = [at for at, block in enumerate(blocks) if type_of(block) == block_type][int(index)]
            inner = [_ANTHROPIC_MEMBERS.get(rest[0], rest[0]), *rest[1:]] if rest else []
            block = _entry(content, number)
            return ["content", str(number), *(_content_steps(block, inner) if inner[:1] == ["content"] else inner)]
        case [("tool_calls" | "tool_results")]:
            return ["content"]
        case ["content", index, *rest] if index.isdecimal():
            others = [at for at, block in enumerate(blocks) if type_of(block) != block_type]
            return ["content", str(others[int(index)]), *rest] if int(index) < len(others) else ["content"]
        case _:
            return steps


def _canonical_steps(message: JsonObject, steps: list[str]) -> list[str]:
    match steps:
        case ["tool_results", _, *rest] if not message.get("tool_results"):
            return rest  # a result that is the message itself
        case _:
            return steps


def _content_steps(owner: JsonObject, steps: list[str]) -> list[str]:
    """Return the path in a content: a text is stored as a part if other members are stored beside it."""
    match owner.get(steps[0]):
        case list():
            return steps
        case dict():
            return [steps[0], *steps[2:]]
        case _:
            return steps[:1]


def _entry(entries: JsonValue, index: int) -> JsonObject:
    entry = entries[index] if isinstance(entries, list) and index < len(entries) else None
    return entry if isinstance(entry, dict) else {}
