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
    prefix_speaker,
    render_parts,
    safe_id,
    safe_name,
    speaker_name,
    to_text,
)
from app.formats.schemas import (
    Block,
    CanonicalTurn,
    Format,
    JsonObject,
    NoteBlock,
    RenderedMessages,
    Role,
    ToolCall,
    ToolResult,
)

STUB = "(conversation continues)"

_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


def messages_of(block: Block, named: frozenset[Role]) -> list[JsonObject]:
    """Render one block, before neighbours are merged."""
    if isinstance(block, NoteBlock):
        return [_message("user", [_text(block.text)])]
    if block.answered:
        said = _blocks(block.turn, named, assistant=True)
        uses: list[JsonValue] = [_use(answered.call) for answered in block.answered]
        results: list[JsonValue] = [_result(answered.call.id, answered.result) for answered in block.answered]
        return [_message("assistant", [*_thinking(block.turn), *said, *uses]), _message("user", results)]
    assistant = block.turn.role in {Role.ASSISTANT, Role.TOOL}
    said = _blocks(block.turn, named, assistant=assistant)
    return [_message("assistant" if assistant else "user", said)] if said else []


def said_message(turn: CanonicalTurn) -> list[JsonObject]:
    """Return the message of a turn's content and calls, answered or not; none if it has neither."""
    assistant = turn.role is Role.ASSISTANT
    uses: list[JsonValue] = [_use(call) for call in turn.tool_calls]
    said = [*_blocks(turn, frozenset(), assistant=assistant), *uses]
    return [_message("assistant" if assistant else "user", said)] if said else []


def results_message(results: Sequence[ToolResult]) -> JsonObject:
    """Return the message of results."""
    return _message("user", [_result(result.tool_call_id, result) for result in results])


def plain_text(turn: CanonicalTurn) -> str:
    """Return the text of a turn, for the system text."""
    return to_text(parse_parts(turn.content))


def opening() -> list[JsonObject]:
    """Return the stub that `finish` puts before a first assistant turn."""
    return [_message("user", [_text(STUB)])]


def finish(system: str | None, messages: list[JsonObject]) -> RenderedMessages:
    """Merge neighbours and let the user speak first. The given messages are not changed."""
    if messages and messages[0]["role"] != "user":
        messages = [*opening(), *messages]
    merged: list[tuple[JsonValue, list[JsonValue]]] = []
    for message in messages:
        content = message["content"]
        blocks = content if isinstance(content, list) else []
        if merged and merged[-1][0] == message["role"]:
            merged[-1][1].extend(blocks)
        else:
            merged.append((message["role"], [*blocks]))
    return RenderedMessages([{"role": role, "content": blocks} for role, blocks in merged], system)


def _message(role: str, blocks: list[JsonValue]) -> JsonObject:
    return {"role": role, "content": blocks}


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _blocks(turn: CanonicalTurn, named: frozenset[Role], *, assistant: bool) -> list[JsonValue]:
    parts = prefix_speaker(parse_parts(turn.content), speaker_name(turn, named))
    if not parts:
        return []
    if turn.role is Role.SYSTEM:
        return [_text(delimit("system_instruction", to_text(parts)))]
    if assistant:
        # Anthropic refuses a last assistant message that ends in white space
        return [_text(to_text(parts).rstrip())]
    content = render_parts(parts, media=_media, text=_text)
    return [_text(content)] if isinstance(content, str) else content


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


def _result(call_id: str, result: ToolResult) -> JsonObject:
    block: JsonObject = {"type": "tool_result", "tool_use_id": safe_id(call_id)}
    content = _result_content(result)
    if content:
        block["content"] = content
    if result.is_error:
        # Anthropic refuses an error without text
        block |= {"content": block.get("content", "(error)"), "is_error": True}
    return block


def _result_content(result: ToolResult) -> str | list[JsonValue]:
    return render_parts(parse_parts(result.content), media=_media, text=_text)


def _media(part: Media) -> JsonObject | None:
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


def _source(url: str, kinds: frozenset[str]) -> JsonObject | None:
    if url.startswith(("https://", "http://")):
        return {"type": "url", "url": url}
    found = data_url(url)
    if found is None or found[0] not in kinds:
        return None
    return {"type": "base64", "media_type": found[0], "data": found[1]}
