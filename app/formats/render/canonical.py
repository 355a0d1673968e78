"""The canonical shape: content and parts exactly as stored, every speaker named, the system text as `system`.

A tool result is a turn of role `tool` after its call. Notes are turns of role `user` by the actor `turnkeep`: they
quote stored text, which must not become a system instruction. Notes and tool results have no `id`, since they are not
separate turns.
"""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import JsonValue

from app.core.times import format_time
from app.formats.parts import has_content
from app.formats.render.base import Renderer
from app.formats.render.openai import without_repeated_system
from app.formats.schemas import (
    GIVEN,
    AnsweredCall,
    Block,
    CanonicalTurn,
    Format,
    JsonObject,
    Kind,
    NoteBlock,
    RenderedMessages,
    Role,
    ToolCall,
)
from app.formats.unsent import without_members

ACTOR = "turnkeep"


class CanonicalRenderer(Renderer):
    """Renders canonical turns."""

    format: ClassVar[Format] = Format.CANONICAL

    def messages_of(self, block: Block, named: frozenset[Role]) -> list[JsonObject]:
        """Return the turn with its answered calls, then one tool turn per result, between the turns of items."""
        if isinstance(block, NoteBlock):
            kind = Kind.USER_MESSAGE.value
            return [{"role": Role.USER.value, "kind": kind, "actor": ACTOR, "content": block.text}]
        messages = super().messages_of(block, named)
        return messages and [
            *(_turn(turn, ()) for turn in block.before),
            *messages,
            *(_turn(turn, ()) for turn in block.after),
        ]

    def turn_messages(
        self,
        turn: CanonicalTurn,
        named: frozenset[Role],  # noqa: ARG002 - every turn names its speaker
        calls: Sequence[ToolCall],
    ) -> list[JsonObject]:
        """Return the turn with calls."""
        return [_turn(turn, calls)] if calls or has_content(turn) else []

    def finish(self, system: str | None, messages: list[JsonObject]) -> RenderedMessages:
        """Leave out system turns of a text that is there already."""
        return RenderedMessages(without_repeated_system(system, messages), system)

    def result_messages(self, answered: Sequence[AnsweredCall]) -> list[JsonObject]:
        """Return one tool turn for each result."""
        return [_result(pair) for pair in answered]


def _turn(turn: CanonicalTurn, calls: Sequence[ToolCall]) -> JsonObject:
    content: JsonValue = turn.content if turn.content is None or isinstance(turn.content, str) else [*turn.content]
    shown: JsonObject = {
        "id": turn.id,
        "position": turn.position,
        "role": turn.role.value,
        "kind": turn.kind.value,
        "actor": turn.actor,
        "content": content,
    }
    if calls:
        shown["tool_calls"] = [_call(call) for call in calls]
    if turn.adapter is not None:
        shown["adapter"] = turn.adapter
    if turn.occurred_at is not None:
        shown["occurred_at"] = format_time(turn.occurred_at)
    return shown


def _call(call: ToolCall) -> JsonObject:
    """Return a call with its other members."""
    stored = {} if call.stored is None else without_members(call.stored, frozenset({"function", "type"}))
    return {**stored, "id": call.id, "name": call.name, "arguments": call.arguments, **_extra_member(call.extra)}


def _extra_member(extra: JsonObject | None) -> JsonObject:
    return {} if extra is None else {GIVEN: extra}


def _result(answered: AnsweredCall) -> JsonObject:
    result = answered.result
    return {
        "role": Role.TOOL.value,
        "kind": Kind.TOOL_RESULT.value,
        "actor": answered.call.name,
        "tool_call_id": answered.call.id,
        "content": result.content if isinstance(result.content, str) else [*result.content],
        **({} if result.adapter is None else {"adapter": result.adapter}),
        **({"is_error": True} if result.is_error else {}),
        **_extra_member(result.extra),
    }
