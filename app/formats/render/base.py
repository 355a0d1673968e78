"""Base class of the renderers: the steps from blocks to messages. A format defines messages, parts and results."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from pydantic import JsonValue

from app.formats.parts import (
    Media,
    TextContent,
    has_content,
    parse_part,
    parse_parts,
    placeholder,
    prefix_speaker,
    render_parts,
    to_text,
)
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
from app.formats.turns import tool_results_in

RenderedContent = str | list[JsonValue]


class Renderer(ABC):
    """Renders blocks, and single turns, as the messages of one format.

    A turn that was read from this format is rendered as the message that was given, without the members in `unsent`.
    """

    format: ClassVar[Format]

    def messages_of(self, block: Block, named: frozenset[Role]) -> list[JsonObject]:
        """Render one block: its content with its calls, then the results. Returns none if it has nothing to show."""
        if isinstance(block, NoteBlock):
            return [self.message(Role.USER, block.text)]
        calls = [pair.call for pair in block.answered]
        return [*self.turn_messages(block.turn, named, calls), *self.result_messages(block.answered)]

    def messages_of_turn(self, turn: CanonicalTurn) -> list[JsonObject]:
        """Render one turn alone: its results, or its content with its calls, answered or not."""
        if turn.role is not Role.TOOL:
            return self.turn_messages(turn, frozenset(), turn.tool_calls)
        results = tool_results_in(turn)
        return self.result_messages([AnsweredCall(ToolCall(result.tool_call_id, "", ""), result) for result in results])

    def arrange(self, rendered: Sequence[tuple[Block, Sequence[JsonObject]]]) -> list[JsonObject]:
        """Return the messages of blocks in their order."""
        return [message for _, messages in rendered for message in messages]

    def finish(self, system: str | None, messages: list[JsonObject]) -> RenderedMessages:
        """Return the messages unchanged, and the system text separate. The given list is not changed."""
        return RenderedMessages(list(messages), system)

    def leading_messages(self) -> list[JsonObject]:
        """Return the messages that `finish` may put before the first turn."""
        return []

    @abstractmethod
    def turn_messages(self, turn: CanonicalTurn, named: frozenset[Role], calls: Sequence[ToolCall]) -> list[JsonObject]:
        """Render the content of a turn with calls; none if it has neither."""

    @abstractmethod
    def result_messages(self, answered: Sequence[AnsweredCall]) -> list[JsonObject]:
        """Render the results of calls. An unknown call has no name."""

    def message(self, role: Role, content: RenderedContent) -> JsonObject:
        """Build a message."""
        return {"role": role.value, "content": content}

    def content_of(self, turn: CanonicalTurn, named: frozenset[Role]) -> RenderedContent:
        """Render the content of a turn. Only the user's messages may have media."""
        prefix = self.prefix(turn, named)
        if isinstance(turn.content, str):  # as most are: parsing takes several times as long
            text = turn.content if has_content(turn) else ""
            return f"{prefix}: {text}" if prefix is not None and text else text
        parts = prefix_speaker(parse_parts(turn.content), prefix)
        return render_parts(parts, media=self.media, text=self.text) if turn.role is Role.USER else to_text(parts)

    def prefix(self, turn: CanonicalTurn, named: frozenset[Role]) -> str | None:
        """Return the name to put before the text of a turn."""
        return self.speaker(turn, named)

    def speaker(self, turn: CanonicalTurn, named: frozenset[Role]) -> str | None:
        """Return the speaker's name on one line if it must be shown; a message without a name gets none."""
        is_unnamed = turn.adapter == self.format and turn.actor == turn.role.value
        return None if is_unnamed or turn.role not in named else " ".join(turn.actor.split()) or "?"

    def prefixed(self, content: RenderedContent, turn: CanonicalTurn, named: frozenset[Role]) -> RenderedContent:
        """Return content as it was given, after the speaker's name if the text must show it."""
        prefix = self.prefix(turn, named)
        if prefix is None or not content:
            return content
        return f"{prefix}: {content}" if isinstance(content, str) else [self.text(f"{prefix}:"), *content]

    def accepted(self, part: JsonObject, *, has_media: bool = True) -> JsonObject:
        """Return a part as it was given, if this format has its type; else its equivalent, or its text."""
        piece = parse_part(part)
        if isinstance(piece, TextContent):
            return self.text(piece.text)
        rendered = self.media(piece) if has_media else None
        if rendered is None:
            return self.text(placeholder(piece))
        return part if part.get("type") == rendered["type"] else rendered

    def text(self, text: str) -> JsonObject:
        """Build a text part."""
        return {"type": "text", "text": text}

    def media(self, part: Media) -> JsonObject | None:  # noqa: ARG002 - a format overrides it
        """Build a media part; None if the format has no equivalent."""
        return None


def message_role(turn: CanonicalTurn, calls: Sequence[ToolCall]) -> Role:
    """Return the role of the message of a turn: only the assistant calls tools."""
    return Role.ASSISTANT if calls or turn.role is Role.TOOL else turn.role
