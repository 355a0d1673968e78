"""OpenAI chat completions: `messages` with `role`, `content`, `name`, `tool_calls`, `tool_call_id`.

The system text is the first message; system turns stay in place. If several actors speak in one role, `name` is the
actor, sanitised to [A-Za-z0-9_-]{1,64}. An actor changed by this is also written before the text.
"""

from collections.abc import Sequence
from typing import ClassVar

from app.formats.parts import (
    AudioContent,
    FileContent,
    ImageContent,
    Media,
    arguments_text,
    result_text,
    safe_id,
    safe_name,
    speaker_name,
)
from app.formats.render.base import Renderer, message_role
from app.formats.schemas import AnsweredCall, CanonicalTurn, JsonObject, RenderedMessages, Role, ToolCall

_ID_LENGTH = 40


class OpenAiRenderer(Renderer):
    """Renders messages of chat completions."""

    no_content: ClassVar[str | None] = None
    """The content of a message that has only calls."""

    def finish(self, system: str | None, messages: list[JsonObject]) -> RenderedMessages:
        """Put the system text first."""
        first = [] if system is None else [self.message(Role.SYSTEM, system)]
        return RenderedMessages([*first, *messages], None)

    def turn_messages(self, turn: CanonicalTurn, named: frozenset[Role], calls: Sequence[ToolCall]) -> list[JsonObject]:
        """Render the content of a turn with calls as one message."""
        content = self.content_of(turn, named)
        if not content and not calls:
            return []
        message: JsonObject = {"role": message_role(turn, calls).value, **self.name(turn, named)}
        message["content"] = content or self.no_content
        if calls:
            message["tool_calls"] = [_tool_call(call) for call in calls]
        return [message]

    def result_messages(self, answered: Sequence[AnsweredCall]) -> list[JsonObject]:
        """Render one message for each result."""
        return [
            {
                "role": "tool",
                "tool_call_id": safe_id(pair.call.id, _ID_LENGTH),
                **self.tool_name(pair.call),
                "content": result_text(pair.result),
            }
            for pair in answered
        ]

    def name(self, turn: CanonicalTurn, named: frozenset[Role]) -> JsonObject:
        """Return the member that names the speaker."""
        actor = speaker_name(turn, named)
        return {} if actor is None else {"name": safe_name(actor)}

    def tool_name(self, _call: ToolCall) -> JsonObject:
        """Return the member that names the tool of a result."""
        return {}

    def prefix(self, turn: CanonicalTurn, named: frozenset[Role]) -> str | None:
        """Return the speaker if `name` cannot express it."""
        actor = speaker_name(turn, named)
        return actor if actor is not None and safe_name(actor) != actor else None

    def media(self, part: Media) -> JsonObject | None:
        """Return a part of media."""
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


def _tool_call(call: ToolCall) -> JsonObject:
    function: JsonObject = {"name": safe_name(call.name), "arguments": arguments_text(call)}
    return {"id": safe_id(call.id, _ID_LENGTH), "type": "function", "function": function}
