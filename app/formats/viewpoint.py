"""A conversation of several actors from the point of view of one of them. Pure.

Models know two parts: `assistant`, which is their own, and `user`. So the turns of one actor are written as the
assistant's, those of all others as the user's. System turns stay as they are. Only the assistant may
call tools, so the calls and results of other actors are written as text.
"""

from collections.abc import Sequence
from dataclasses import replace

from app.formats.parts import arguments_text, result_text
from app.formats.schemas import Answered, CanonicalTurn, JsonObject, Role, TurnBlock, kind_of
from app.formats.units import Unit


def seen_by(units: Sequence[Unit], actor: str) -> tuple[Unit, ...]:
    """The same units, in the roles that they have for this actor."""
    return tuple(replace(unit, blocks=tuple(_block(block, actor) for block in unit.blocks)) for unit in units)


def _block(block: TurnBlock, actor: str) -> TurnBlock:
    turn = block.turn
    if turn.role is Role.SYSTEM:
        return block
    if turn.actor == actor:
        kind = kind_of(Role.ASSISTANT, calls=bool(block.answered))
        return replace(block, turn=replace(turn, role=Role.ASSISTANT, kind=kind))
    said = replace(turn, role=Role.USER, kind=kind_of(Role.USER), content=_content(turn, block.answered))
    return TurnBlock(said)


def _content(turn: CanonicalTurn, answered: Sequence[Answered]) -> str | Sequence[JsonObject] | None:
    """What a turn says, with its calls and their results as text behind it."""
    if not answered:
        return turn.content
    text = "\n".join(line for one in answered for line in _lines(one))
    if turn.content is None or isinstance(turn.content, str):
        return f"{turn.content}\n{text}" if turn.content else text
    return [*turn.content, {"type": "text", "text": text}]


def _lines(answered: Answered) -> tuple[str, str]:
    call = answered.call
    return f"[calls {call.name} {arguments_text(call)}]", f"[result of {call.name}] {result_text(answered.result)}"
