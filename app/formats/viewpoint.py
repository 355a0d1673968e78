"""A conversation of several actors, from the point of view of one of them. Pure.

Models know two speakers: `assistant`, the model itself, and `user`. So the turns of the chosen actor get the role
assistant, and those of all others the role user. System turns are unchanged. Only the assistant may call tools, so
calls and results of other actors become text.
"""

from collections.abc import Sequence
from dataclasses import replace

from app.formats.parts import arguments_text, result_text
from app.formats.schemas import AnsweredCall, CanonicalTurn, JsonObject, Role, TurnBlock, kind_of
from app.formats.units import Unit


def apply_viewpoint(units: Sequence[Unit], actor: str) -> tuple[Unit, ...]:
    """Return the same units, with the roles that they have for this actor."""
    return tuple(unit._replace(blocks=tuple(_block(block, actor) for block in unit.blocks)) for unit in units)


def _block(block: TurnBlock, actor: str) -> TurnBlock:
    turn = block.turn
    if turn.role is Role.SYSTEM:
        return block
    if turn.actor == actor:
        kind = kind_of(Role.ASSISTANT, calls=bool(block.answered))
        adapter = turn.adapter if turn.role is Role.ASSISTANT else None
        return block._replace(turn=replace(turn, role=Role.ASSISTANT, kind=kind, adapter=adapter))
    # a message in another role is not the one that was given
    content = _content(turn, block.answered)
    return TurnBlock(replace(turn, role=Role.USER, kind=kind_of(Role.USER), content=content, adapter=None))


def _content(turn: CanonicalTurn, answered: Sequence[AnsweredCall]) -> str | Sequence[JsonObject] | None:
    """Return the content of a turn, followed by its calls and their results as text."""
    if not answered:
        return turn.content
    text = "\n".join(line for pair in answered for line in _lines(pair))
    if turn.content is None or isinstance(turn.content, str):
        return f"{turn.content}\n{text}" if turn.content else text
    return [*turn.content, {"type": "text", "text": text}]


def _lines(answered: AnsweredCall) -> tuple[str, str]:
    call = answered.call
    return f"[calls {call.name} {arguments_text(call)}]", f"[result of {call.name}] {result_text(answered.result)}"
