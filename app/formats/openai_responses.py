"""OpenAI Responses: input items, with the system text as `system` (send it as `instructions`).

System turns stay in place. Where several speak in one role, the text begins with `Name: `. Calls and results are items
of their own: `function_call` and `function_call_output`.
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
from app.formats.schemas import Answered, Block, CanonicalTurn, JsonObject, NoteBlock, Rendered, Role


def messages_of(block: Block, named: frozenset[Role]) -> list[JsonObject]:
    """Write the items of one block: a message where something was said, then all calls, then all results."""
    if isinstance(block, NoteBlock):
        return [_message("user", block.text)]
    content = _content(block.turn, named)
    role = Role.ASSISTANT if block.turn.role is Role.TOOL or block.answered else block.turn.role
    said = [_message(role.value, content)] if content else []
    calls = [_call(answered) for answered in block.answered]
    return [*said, *calls, *(_output(answered) for answered in block.answered)]


def finish(system: str | None, messages: list[JsonObject]) -> Rendered:
    """Nothing is added: the system text stands beside the items."""
    return Rendered(list(messages), system)


def _message(role: str, content: str | list[JsonValue]) -> JsonObject:
    return {"type": "message", "role": role, "content": content}


def _call(answered: Answered) -> JsonObject:
    return {
        "type": "function_call",
        "call_id": safe_id(answered.call.id),
        "name": safe_name(answered.call.name),
        "arguments": arguments_text(answered.call),
    }


def _output(answered: Answered) -> JsonObject:
    return {
        "type": "function_call_output",
        "call_id": safe_id(answered.call.id),
        "output": result_text(answered.result),
    }


def _content(turn: CanonicalTurn, named: frozenset[Role]) -> str | list[JsonValue]:
    parts = prefixed(parts_of(turn.content), speaker(turn, named))
    # an assistant's message refuses input parts, so it is always plain text
    return compose(parts, media=_media, text=_text) if turn.role is Role.USER else plain(parts)


def _text(text: str) -> JsonObject:
    return {"type": "input_text", "text": text}


def _media(part: Media) -> JsonObject | None:
    match part:
        case Image(url=str(url), detail=detail):
            return {"type": "input_image", "image_url": url, "detail": detail or "auto"}
        case Image(file_id=str(file_id), vendor="openai", detail=detail):
            return {"type": "input_image", "file_id": file_id, "detail": detail or "auto"}
        case File(data=str(data), name=name):
            return {"type": "input_file", "filename": name or "file", "file_data": data}
        case File(url=str(url)):
            return {"type": "input_file", "file_url": url}
        case File(file_id=str(file_id), vendor="openai"):
            return {"type": "input_file", "file_id": file_id}
        case Image() | File() | Audio():
            return None
