"""Cloudflare Workers AI messages: OpenAI's shape, with the additional rules of its schema.

`content` is required, and a string if it is text, so a call without text has "". Images are sent as data URLs only,
since the provider fetches none. There is no `name`: if several actors speak in one role, the text begins with `Name: `.
A tool message names its tool. All system texts are the one first message.
"""

from typing import ClassVar

from app.formats.parts import ImageContent, Media, data_url, safe_name
from app.formats.render.openai import OpenAiRenderer, joined_system
from app.formats.schemas import CanonicalTurn, Format, JsonObject, RenderedMessages, Role, ToolCall


class WorkersAiRenderer(OpenAiRenderer):
    """Renders messages of Workers AI."""

    format: ClassVar[Format] = Format.WORKERS_AI
    no_content: ClassVar[str | None] = ""

    def finish(self, system: str | None, messages: list[JsonObject]) -> RenderedMessages:
        """Put all system texts into the first message, each once."""
        rest = [message for message in messages if message["role"] not in {"system", "developer"}]
        return super().finish(joined_system(system, messages), rest)

    def name(self, turn: CanonicalTurn, named: frozenset[Role]) -> JsonObject:  # noqa: ARG002
        """Return no member: messages have no speaker."""
        return {}

    def tool_name(self, call: ToolCall) -> JsonObject:
        """Return the member that names the tool of a result, if the tool is known."""
        return {"name": safe_name(call.name)} if call.name else {}

    def prefix(self, turn: CanonicalTurn, named: frozenset[Role]) -> str | None:
        """Return the speaker."""
        return self.speaker(turn, named)

    def media(self, part: Media) -> JsonObject | None:
        """Return an image with its data."""
        if isinstance(part, ImageContent) and part.url is not None and data_url(part.url) is not None:
            return {"type": "image_url", "image_url": {"url": part.url}}
        return None
