"""Cloudflare Workers AI messages: OpenAI's shape, with the additional rules of its schema.

`content` is required, and a string if it is text, so a call without text has "". Images are sent as data URLs only,
since the provider fetches none. There is no `name`: if several actors speak in one role, the text begins with `Name: `.
A tool message names its tool. The system text is the first message.
"""

from pydantic import JsonValue

from app.formats.parts import (
    ImageContent,
    Media,
    data_url,
    parse_parts,
    prefix_speaker,
    render_parts,
    result_text,
    safe_id,
    safe_name,
    speaker_name,
    to_text,
)
from app.formats.render import openai
from app.formats.schemas import Block, CanonicalTurn, JsonObject, NoteBlock, RenderedMessages, Role, ToolResult

_ID_LENGTH = 40


def messages_of(block: Block, named: frozenset[Role]) -> list[JsonObject]:
    """Render one block."""
    if isinstance(block, NoteBlock):
        return [{"role": "user", "content": block.text}]
    content = content_of(block.turn, named)
    if block.answered:
        calls = [openai.tool_call(answered, _ID_LENGTH) for answered in block.answered]
        call: JsonObject = {"role": "assistant", "content": content, "tool_calls": [*calls]}
        return [
            call,
            *(result_message(answered.call.id, answered.call.name, answered.result) for answered in block.answered),
        ]
    role = Role.ASSISTANT if block.turn.role is Role.TOOL else block.turn.role
    return [{"role": role.value, "content": content}] if content else []


def finish(system: str | None, messages: list[JsonObject]) -> RenderedMessages:
    """Put the system text first."""
    return openai.finish(system, messages)


def result_message(call_id: str, tool: str, result: ToolResult) -> JsonObject:
    """Return the message of one result; `tool` is left out if it is not known."""
    named: JsonObject = {"name": safe_name(tool)} if tool else {}
    return {"role": "tool", "tool_call_id": safe_id(call_id, _ID_LENGTH), **named, "content": result_text(result)}


def content_of(turn: CanonicalTurn, named: frozenset[Role]) -> str | list[JsonValue]:
    """Return the content of a turn for a message."""
    parts = prefix_speaker(parse_parts(turn.content), speaker_name(turn, named))
    return render_parts(parts, media=_media, text=_text) if turn.role is Role.USER else to_text(parts)


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _media(part: Media) -> JsonObject | None:
    if isinstance(part, ImageContent) and part.url is not None and data_url(part.url) is not None:
        return {"type": "image_url", "image_url": {"url": part.url}}
    return None
