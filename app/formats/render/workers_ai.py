"""Cloudflare Workers AI messages: OpenAI's shape, with what its schema asks for on top.

`content` is always present and a string where it is text (its schema requires it, so a bare call has ""); pictures go
only as data URLs, since it fetches none; there is no `name` for a speaker, so the text begins with `Name: ` where
several speak in one role; a tool message names its tool. The system text is the first message.
"""

from pydantic import JsonValue

from app.formats.parts import (
    Image,
    Media,
    compose,
    data_url,
    parts_of,
    plain,
    prefixed,
    result_text,
    safe_id,
    safe_name,
    speaker,
)
from app.formats.render import openai
from app.formats.schemas import Block, CanonicalTurn, JsonObject, NoteBlock, Rendered, Role, ToolResult

_ID_LENGTH = 40


def messages_of(block: Block, named: frozenset[Role]) -> list[JsonObject]:
    """Write the messages of one block."""
    if isinstance(block, NoteBlock):
        return [{"role": "user", "content": block.text}]
    content = content_of(block.turn, named)
    if block.answered:
        calls = [openai.tool_call(answered, _ID_LENGTH) for answered in block.answered]
        call: JsonObject = {"role": "assistant", "content": content, "tool_calls": [*calls]}
        return [call, *(result_message(one.call.id, one.call.name, one.result) for one in block.answered)]
    role = Role.ASSISTANT if block.turn.role is Role.TOOL else block.turn.role
    return [{"role": role.value, "content": content}] if content else []


def finish(system: str | None, messages: list[JsonObject]) -> Rendered:
    """Put the system text in front."""
    return openai.finish(system, messages)


def result_message(call_id: str, tool: str, result: ToolResult) -> JsonObject:
    """The message of one result; `tool` is left out where it is not known."""
    named: JsonObject = {"name": safe_name(tool)} if tool else {}
    return {"role": "tool", "tool_call_id": safe_id(call_id, _ID_LENGTH), **named, "content": result_text(result)}


def content_of(turn: CanonicalTurn, named: frozenset[Role]) -> str | list[JsonValue]:
    """What a turn says, as a message's content."""
    parts = prefixed(parts_of(turn.content), speaker(turn, named))
    return compose(parts, media=_media, text=_text) if turn.role is Role.USER else plain(parts)


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _media(part: Media) -> JsonObject | None:
    if isinstance(part, Image) and part.url is not None and data_url(part.url) is not None:
        return {"type": "image_url", "image_url": {"url": part.url}}
    return None
