"""The canonical shape: content and parts exactly as stored, every speaker named, the system text as `system`.

A tool result is a turn of role `tool` after its call. Notes are system instructions by the actor `turnkeep`. Notes and
tool results have no `id`, since they are not separate turns.
"""

from collections.abc import Sequence

from pydantic import JsonValue

from app.core.times import format_time
from app.formats.parts import has_content
from app.formats.schemas import (
    GIVEN,
    AnsweredCall,
    Block,
    CanonicalTurn,
    JsonObject,
    Kind,
    NoteBlock,
    RenderedMessages,
    Role,
)

ACTOR = "turnkeep"


def messages_of(block: Block, _named: frozenset[Role]) -> list[JsonObject]:
    """Return the turn with its answered calls, then one tool turn per result."""
    if isinstance(block, NoteBlock):
        kind = Kind.SYSTEM_INSTRUCTION.value
        return [{"role": Role.SYSTEM.value, "kind": kind, "actor": ACTOR, "content": block.text}]
    if not block.answered and not has_content(block.turn):
        return []
    before = [_turn(turn, ()) for turn in block.before]
    after = [_turn(turn, ()) for turn in block.after]
    return [*before, _turn(block.turn, block.answered), *(_result(answered) for answered in block.answered), *after]


def finish(system: str | None, messages: list[JsonObject]) -> RenderedMessages:
    """Return the turns unchanged: the system text is separate."""
    return RenderedMessages(list(messages), system)


def _turn(turn: CanonicalTurn, answered: Sequence[AnsweredCall]) -> JsonObject:
    content: JsonValue = turn.content if turn.content is None or isinstance(turn.content, str) else [*turn.content]
    shown: JsonObject = {
        "id": turn.id,
        "position": turn.position,
        "role": turn.role.value,
        "kind": turn.kind.value,
        "actor": turn.actor,
        "content": content,
    }
    if answered:
        shown["tool_calls"] = [
            {
                "id": pair.call.id,
                "name": pair.call.name,
                "arguments": pair.call.arguments,
                **_given_member(pair.call.given),
            }
            for pair in answered
        ]
    if turn.occurred_at is not None:
        shown["occurred_at"] = format_time(turn.occurred_at)
    return shown


def _given_member(given: JsonObject | None) -> JsonObject:
    return {} if given is None else {GIVEN: given}


def _result(answered: AnsweredCall) -> JsonObject:
    result = answered.result
    return {
        "role": Role.TOOL.value,
        "kind": Kind.TOOL_RESULT.value,
        "actor": answered.call.name,
        "tool_call_id": answered.call.id,
        "content": result.content if isinstance(result.content, str) else [*result.content],
        **({"is_error": True} if result.is_error else {}),
        **_given_member(result.given),
    }
