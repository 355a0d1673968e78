"""Our own turn shape: content and parts exactly as stored, every speaker named, the system text as `system`.

A tool result is a turn of role `tool` after its call. Notes are system instructions by the actor `turnkeep`; they and
tool results have no `id`, since they are not turns of their own here.
"""

from collections.abc import Sequence

from pydantic import JsonValue

from app.core.times import format_time
from app.formats.parts import has_content
from app.formats.schemas import GIVEN, Answered, Block, CanonicalTurn, JsonObject, Kind, NoteBlock, Rendered, Role

ACTOR = "turnkeep"


def messages_of(block: Block, _named: frozenset[Role]) -> list[JsonObject]:
    """Write the turn with its answered calls, then one tool turn per result."""
    if isinstance(block, NoteBlock):
        kind = Kind.SYSTEM_INSTRUCTION.value
        return [{"role": Role.SYSTEM.value, "kind": kind, "actor": ACTOR, "content": block.text}]
    if not block.answered and not has_content(block.turn):
        return []
    before = [_turn(turn, ()) for turn in block.before]
    after = [_turn(turn, ()) for turn in block.after]
    return [*before, _turn(block.turn, block.answered), *(_result(answered) for answered in block.answered), *after]


def finish(system: str | None, messages: list[JsonObject]) -> Rendered:
    """Nothing is added: the system text stands beside the turns."""
    return Rendered(list(messages), system)


def _turn(turn: CanonicalTurn, answered: Sequence[Answered]) -> JsonObject:
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
                "id": one.call.id,
                "name": one.call.name,
                "arguments": one.call.arguments,
                **_kept(one.call.given),
            }
            for one in answered
        ]
    if turn.occurred_at is not None:
        shown["occurred_at"] = format_time(turn.occurred_at)
    return shown


def _kept(given: JsonObject | None) -> JsonObject:
    return {} if given is None else {GIVEN: given}


def _result(answered: Answered) -> JsonObject:
    result = answered.result
    return {
        "role": Role.TOOL.value,
        "kind": Kind.TOOL_RESULT.value,
        "actor": answered.call.name,
        "tool_call_id": answered.call.id,
        "content": result.content if isinstance(result.content, str) else [*result.content],
        **({"is_error": True} if result.is_error else {}),
        **_kept(result.given),
    }
