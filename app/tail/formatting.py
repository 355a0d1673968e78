"""Formats turns for a terminal. Pure.

Invariant: the output has no control characters of the conversation, so its text cannot control the terminal.
"""

import re
from typing import Final

from pydantic import JsonValue

from app.conversations.schemas.conversations import Turn
from app.formats.schemas import GIVEN, JsonObject
from app.tail.view import OpenText

# control characters except tab and line feed, and the marks that change the direction of text
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_MEMBER: Final = re.compile(r"tool_calls/(\d+)/(\w+)")


def replace_control_characters(text: str) -> str:
    """Replace the control characters of a text."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def turn_text(turn: Turn) -> str:
    """Format a turn: its text, its tool calls and their results."""
    lines = [_content(turn.content)]
    for call in turn.tool_calls:
        function = call.get("function")
        called: JsonObject = function if isinstance(function, dict) else call
        lines.append(_call(_text(called.get("name")), _text(called.get("arguments"))))
    lines += [_result(result) for result in turn.tool_results]
    return replace_control_characters("\n".join(line for line in lines if line))


def open_text(turn: OpenText) -> str:
    """Format the text of an open turn so far."""
    lines = [turn.parts.get("content", "")]
    calls: dict[int, dict[str, str]] = {}
    for part, text in turn.parts.items():
        if member := _MEMBER.fullmatch(part):
            calls.setdefault(int(member[1]), {})[member[2]] = text
    lines += [_call(call.get("name", ""), call.get("arguments", "")) for _, call in sorted(calls.items())]
    return replace_control_characters("\n".join(line for line in lines if line))


def _call(name: str, arguments: str) -> str:
    return f"→ {name or 'a tool'} {arguments}".rstrip()


def _result(result: JsonObject) -> str:
    content = result.get("content", result.get("output"))
    return f"← {content if isinstance(content, str) else _text(content)}"


def _content(content: str | list[JsonObject] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_part(part) for part in content if part.get("type") != GIVEN)


def _part(part: JsonObject) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else f"[{_text(part.get('type')) or 'part'}]"


def _text(value: JsonValue) -> str:
    return "" if value is None else str(value)
