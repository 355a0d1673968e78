"""OpenAI chat completions: `messages` with `role`, `content`, `name`, `tool_calls`, `tool_call_id`.

The system text is the first message; system turns stay in place. Where several speak in one role, `name` carries the
actor, sanitised to [A-Za-z0-9_-]{1,64}; an actor that does not survive this exactly is also written before the text.
"""

from pydantic import JsonValue

from app.formats.parts import (
    Audio,
    File,
    Image,
    Media,
    arguments_text,
    compose,
    parts_of,
    plain,
    prefixed,
    result_text,
    safe_id,
    safe_name,
    speaker,
)
from app.formats.schemas import (
    Answered,
    Block,
    CanonicalTurn,
    JsonObject,
    NoteBlock,
    Rendered,
    Role,
    ToolResult,
    TurnBlock,
)

_ID_LENGTH = 40


def messages_of(block: Block, named: frozenset[Role]) -> list[JsonObject]:
    """Write the messages of one block."""
    if isinstance(block, NoteBlock):
        return [{"role": "user", "content": block.text}]
    if block.answered:
        return _exchange(block, named)
    content = content_of(block.turn, named)
    if not content:
        return []
    role = Role.ASSISTANT if block.turn.role is Role.TOOL else block.turn.role
    return [{"role": role.value, **_name(block.turn, named), "content": content}]


def finish(system: str | None, messages: list[JsonObject]) -> Rendered:
    """Put the system text in front."""
    first: list[JsonObject] = [] if system is None else [{"role": "system", "content": system}]
    return Rendered([*first, *messages], None)


def tool_call(answered: Answered, limit: int = _ID_LENGTH) -> JsonObject:
    """One entry of `tool_calls`."""
    function: JsonObject = {"name": safe_name(answered.call.name), "arguments": arguments_text(answered.call)}
    return {"id": safe_id(answered.call.id, limit), "type": "function", "function": function}


def _exchange(block: TurnBlock, named: frozenset[Role]) -> list[JsonObject]:
    call: JsonObject = {
        "role": "assistant",
        **_name(block.turn, named),
        "content": content_of(block.turn, named) or None,
        "tool_calls": [tool_call(answered) for answered in block.answered],
    }
    results = [result_message(one.call.id, one.call.name, one.result) for one in block.answered]
    return [call, *results]


def result_message(call_id: str, _name_of_tool: str, result: ToolResult) -> JsonObject:
    """The message of one result."""
    return {"role": "tool", "tool_call_id": safe_id(call_id, _ID_LENGTH), "content": result_text(result)}


def content_of(turn: CanonicalTurn, named: frozenset[Role]) -> str | list[JsonValue]:
    """What a turn says, as a message's content."""
    actor = speaker(turn, named)
    lost = actor is not None and safe_name(actor) != actor
    parts = prefixed(parts_of(turn.content), actor if lost else None)
    # only the user's messages may hold media
    return compose(parts, media=_media, text=_text) if turn.role is Role.USER else plain(parts)


def _name(turn: CanonicalTurn, named: frozenset[Role]) -> JsonObject:
    actor = speaker(turn, named)
    return {} if actor is None else {"name": safe_name(actor)}


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _media(part: Media) -> JsonObject | None:
    match part:
        case Image(url=str(url), detail=detail):
            return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}
        case Audio(data=data, encoding=encoding):
            return {"type": "input_audio", "input_audio": {"data": data, "format": encoding}}
        case File(data=str(data), name=name):
            return {"type": "file", "file": {"filename": name or "file", "file_data": data}}
        case File(file_id=str(file_id), vendor="openai"):
            return {"type": "file", "file": {"file_id": file_id}}
        case Image() | File():
            return None
