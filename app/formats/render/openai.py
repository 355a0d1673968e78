"""OpenAI chat completions: `messages` with `role`, `content`, `name`, `tool_calls`, `tool_call_id`.

The system text is the first message; system turns stay in place. If several actors speak in one role, `name` is the
actor, sanitised to [A-Za-z0-9_-]{1,64}. An actor changed by this is also written before the text.
"""

from pydantic import JsonValue

from app.formats.parts import (
    AudioContent,
    FileContent,
    ImageContent,
    Media,
    arguments_text,
    parse_parts,
    prefix_speaker,
    render_parts,
    result_text,
    safe_id,
    safe_name,
    speaker_name,
    to_text,
)
from app.formats.schemas import (
    AnsweredCall,
    Block,
    CanonicalTurn,
    JsonObject,
    NoteBlock,
    RenderedMessages,
    Role,
    ToolResult,
    TurnBlock,
)

_ID_LENGTH = 40


def messages_of(block: Block, named: frozenset[Role]) -> list[JsonObject]:
    """Render one block."""
    if isinstance(block, NoteBlock):
        return [{"role": "user", "content": block.text}]
    if block.answered:
        return _exchange(block, named)
    content = content_of(block.turn, named)
    if not content:
        return []
    role = Role.ASSISTANT if block.turn.role is Role.TOOL else block.turn.role
    return [{"role": role.value, **_name(block.turn, named), "content": content}]


def finish(system: str | None, messages: list[JsonObject]) -> RenderedMessages:
    """Put the system text first."""
    first: list[JsonObject] = [] if system is None else [{"role": "system", "content": system}]
    return RenderedMessages([*first, *messages], None)


def tool_call(answered: AnsweredCall, limit: int = _ID_LENGTH) -> JsonObject:
    """Return one entry of `tool_calls`."""
    function: JsonObject = {"name": safe_name(answered.call.name), "arguments": arguments_text(answered.call)}
    return {"id": safe_id(answered.call.id, limit), "type": "function", "function": function}


def _exchange(block: TurnBlock, named: frozenset[Role]) -> list[JsonObject]:
    call: JsonObject = {
        "role": "assistant",
        **_name(block.turn, named),
        "content": content_of(block.turn, named) or None,
        "tool_calls": [tool_call(answered) for answered in block.answered],
    }
    results = [result_message(answered.call.id, answered.call.name, answered.result) for answered in block.answered]
    return [call, *results]


def result_message(call_id: str, _tool: str, result: ToolResult) -> JsonObject:
    """Return the message of one result."""
    return {"role": "tool", "tool_call_id": safe_id(call_id, _ID_LENGTH), "content": result_text(result)}


def content_of(turn: CanonicalTurn, named: frozenset[Role]) -> str | list[JsonValue]:
    """Return the content of a turn for a message."""
    actor = speaker_name(turn, named)
    lost = actor is not None and safe_name(actor) != actor
    parts = prefix_speaker(parse_parts(turn.content), actor if lost else None)
    # only the user's messages may have media
    return render_parts(parts, media=_media, text=_text) if turn.role is Role.USER else to_text(parts)


def _name(turn: CanonicalTurn, named: frozenset[Role]) -> JsonObject:
    actor = speaker_name(turn, named)
    return {} if actor is None else {"name": safe_name(actor)}


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _media(part: Media) -> JsonObject | None:
    match part:
        case ImageContent(url=str(url), detail=detail):
            return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}
        case AudioContent(data=data, encoding=encoding):
            return {"type": "input_audio", "input_audio": {"data": data, "format": encoding}}
        case FileContent(data=str(data), name=name):
            return {"type": "file", "file": {"filename": name or "file", "file_data": data}}
        case FileContent(file_id=str(file_id), vendor="openai"):
            return {"type": "file", "file": {"file_id": file_id}}
        case ImageContent() | FileContent():
            return None
