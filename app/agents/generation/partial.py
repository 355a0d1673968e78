"""The part of an answer that is stored if its client disconnects before the end (`on_disconnect`). Pure."""

import json
from typing import Final

from pydantic import JsonValue

from app.agents.generation.answer import PartialAnswer, answer_turn
from app.conversations.schemas.conversations import Turn, TurnInput
from app.formats.schemas import JsonObject, Role
from app.providers.endpoint import InvalidAnswer

INCOMPLETE: Final = "incomplete"
"""The member of a turn's metadata that marks an answer of which only the beginning is stored."""


def partial_turn(answer: PartialAnswer, body: JsonObject) -> TurnInput | None:
    """Return the turn of an answer so far, marked as incomplete unless the model has ended it.

    None if it has neither text nor a complete tool call.
    """
    message = answer.whole()
    is_cut = answer.finish_reason is None
    calls = message.pop("tool_calls", None)
    complete_calls = _complete_calls(calls, is_cut=is_cut) if isinstance(calls, list) else []
    if complete_calls:
        message["tool_calls"] = complete_calls
    elif not message.get("content") and not message.get("refusal"):
        return None
    whole = PartialAnswer(
        message=message,
        id=answer.id,
        model=answer.model,
        usage=answer.usage,
        finish_reason=answer.finish_reason,
        allowed_tools=answer.allowed_tools,
        text_call=answer.text_call,
    )
    try:
        turn = answer_turn(whole, body)
    except InvalidAnswer:
        return None
    return turn.model_copy(update={"metadata": {**turn.metadata, INCOMPLETE: True}}) if is_cut else turn


def is_incomplete(turn: Turn | TurnInput) -> bool:
    """Return whether a turn is an answer of which only the beginning is stored."""
    return turn.role is Role.ASSISTANT and turn.metadata.get(INCOMPLETE) is True


def _complete_calls(calls: list[JsonValue], *, is_cut: bool) -> list[JsonValue]:
    """Return the calls whose arguments are complete. Of a cut answer the last call may lack some of them."""
    return [
        call for call in calls if isinstance(call, dict) and _is_complete(call, may_be_cut=is_cut and call is calls[-1])
    ]


def _is_complete(call: JsonObject, *, may_be_cut: bool) -> bool:
    function = call.get("function")
    if not isinstance(function, dict) or not call.get("id") or not function.get("name"):
        return not may_be_cut and bool(call.get("custom"))
    arguments = function.get("arguments")
    if not arguments:
        return not may_be_cut
    try:
        return isinstance(json.loads(str(arguments)), dict)
    except (ValueError, RecursionError):
        return False
