"""Anthropic messages, with the system text as `system`.

Roles alternate: neighbours of the same role are merged into one message of several blocks, so all results of a turn's
calls are in the one user message after it. The user speaks first: a stub is put before a first assistant turn. A system
turn inside the conversation becomes delimited user text. If several actors speak in one role, the text begins with
`Name: `. Blank text blocks, which Anthropic refuses, are never written. Signed thinking blocks precede the calls that
follow from them.
"""

import json
from collections.abc import Sequence

from pydantic import JsonValue

from app.formats.extra_fields import items_in
from app.formats.parts import (
    AudioContent,
    FileContent,
    ImageContent,
    Media,
    data_url,
    delimit,
    parse_parts,
    render_parts,
    safe_id,
    safe_name,
)
from app.formats.render.base import RenderedContent, Renderer, message_role
from app.formats.schemas import (
    AnsweredCall,
    Block,
    CanonicalTurn,
    Format,
    JsonObject,
    NoteBlock,
    RenderedMessages,
    Role,
    ToolCall,
)

STUB = "(conversation continues)"

_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


class AnthropicRenderer(Renderer):
    """Renders messages of blocks."""

    def messages_of(self, block: Block, named: frozenset[Role]) -> list[JsonObject]:
        """Render one block, before neighbours are merged. Calls follow the signed thinking that led to them."""
        if isinstance(block, NoteBlock) or not block.answered:
            return super().messages_of(block, named)
        calls = [pair.call for pair in block.answered]
        content: list[JsonValue] = [*_thinking(block.turn), *self._blocks(block.turn, named, calls)]
        return [self.message(Role.ASSISTANT, content), *self.result_messages(block.answered)]

    def turn_messages(self, turn: CanonicalTurn, named: frozenset[Role], calls: Sequence[ToolCall]) -> list[JsonObject]:
        """Render the content of a turn with calls as one message."""
        blocks = self._blocks(turn, named, calls)
        return [self.message(message_role(turn, calls), blocks)] if blocks else []

    def result_messages(self, answered: Sequence[AnsweredCall]) -> list[JsonObject]:
        """Render all results as one message."""
        return [self.message(Role.USER, [self._result(pair) for pair in answered])] if answered else []

    def leading_messages(self) -> list[JsonObject]:
        """Return the stub before a first assistant turn."""
        return [self.message(Role.USER, STUB)]

    def finish(self, system: str | None, messages: list[JsonObject]) -> RenderedMessages:
        """Merge neighbours and let the user speak first."""
        if messages and messages[0]["role"] != "user":
            messages = [*self.leading_messages(), *messages]
        merged: list[tuple[JsonValue, list[JsonValue]]] = []
        for message in messages:
            content = message["content"]
            blocks = content if isinstance(content, list) else []
            if merged and merged[-1][0] == message["role"]:
                merged[-1][1].extend(blocks)
            else:
                merged.append((message["role"], [*blocks]))
        return RenderedMessages([{"role": role, "content": blocks} for role, blocks in merged], system)

    def message(self, role: Role, content: RenderedContent) -> JsonObject:
        """Return a message of blocks."""
        blocks = [self.text(content)] if isinstance(content, str) else content
        return {"role": "assistant" if role is Role.ASSISTANT else "user", "content": [*blocks]}

    def media(self, part: Media) -> JsonObject | None:
        """Return a block of media."""
        match part:
            case ImageContent(url=str(url)):
                source = _source(url, _IMAGE_TYPES)
                return {"type": "image", "source": source} if source else None
            case FileContent(data=str(data)):
                source = _source(data, frozenset({"application/pdf"}))
                return {"type": "document", "source": source} if source else None
            case FileContent(url=str(url)):
                return {"type": "document", "source": {"type": "url", "url": url}}
            case ImageContent(file_id=str(file_id), vendor="anthropic"):
                return {"type": "image", "source": {"type": "file", "file_id": file_id}}
            case FileContent(file_id=str(file_id), vendor="anthropic"):
                return {"type": "document", "source": {"type": "file", "file_id": file_id}}
            case ImageContent() | FileContent() | AudioContent():
                return None

    def _blocks(self, turn: CanonicalTurn, named: frozenset[Role], calls: Sequence[ToolCall]) -> list[JsonValue]:
        """Return the content and the calls of a turn as blocks."""
        content = self.content_of(turn, named)
        if not content:
            blocks: list[JsonValue] = []
        elif turn.role is Role.SYSTEM:
            blocks = [self.text(delimit("system_instruction", str(content)))]
        elif isinstance(content, list):
            blocks = content
        else:
            # Anthropic refuses a last assistant message that ends in white space
            blocks = [self.text(content.rstrip() if message_role(turn, calls) is Role.ASSISTANT else content)]
        return [*blocks, *(_use(call) for call in calls)]

    def _result(self, pair: AnsweredCall) -> JsonObject:
        block: JsonObject = {"type": "tool_result", "tool_use_id": safe_id(pair.call.id)}
        content = render_parts(parse_parts(pair.result.content), media=self.media, text=self.text)
        if content:
            block["content"] = content
        if pair.result.is_error:
            # Anthropic refuses an error without text
            block |= {"content": block.get("content", "(error)"), "is_error": True}
        return block


def _thinking(turn: CanonicalTurn) -> list[JsonObject]:
    """Return the signed thinking blocks before a call, which Anthropic requires to be sent again."""
    signed = {"thinking": "signature", "redacted_thinking": "data"}
    blocks = items_in(turn.content, Format.ANTHROPIC)
    return [block for block in blocks if block.get(signed.get(str(block.get("type")), ""))]


def _use(call: ToolCall) -> JsonObject:
    return {"type": "tool_use", "id": safe_id(call.id), "name": safe_name(call.name), "input": _input(call)}


def _input(call: ToolCall) -> JsonObject:
    """Return the arguments as an object; text that is not a JSON object becomes {"arguments": text}."""
    if not isinstance(call.arguments, str):
        return call.arguments
    if not call.arguments.strip():
        return {}
    try:
        parsed: JsonValue = json.loads(call.arguments, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return {"arguments": call.arguments}
    return parsed if isinstance(parsed, dict) else {"arguments": call.arguments}


def _refuse(constant: str) -> JsonValue:
    # NaN and Infinity are not JSON, though Python parses them
    raise ValueError(constant)


def _source(url: str, kinds: frozenset[str]) -> JsonObject | None:
    if url.startswith(("https://", "http://")):
        return {"type": "url", "url": url}
    found = data_url(url)
    if found is None or found[0] not in kinds:
        return None
    return {"type": "base64", "media_type": found[0], "data": found[1]}
