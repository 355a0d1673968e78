"""Turns as they are given and stored, made into canonical turns. The one place that knows the shapes of a call."""

from collections.abc import Sequence
from datetime import datetime
from typing import cast

from app.formats.schemas import GIVEN, CanonicalTurn, JsonObject, ParsedTurn, ToolCall, ToolResult, TurnLike, kind_of


def tool_call_of(call: JsonObject) -> ToolCall:
    """A call of a turn: `{id, name, arguments}`, or OpenAI's `{id, type, function: {name, arguments}}`."""
    function = call.get("function")
    body = function if isinstance(function, dict) else call
    arguments = body.get("arguments", "")
    return ToolCall(
        id=str(call["id"]),
        name=str(body.get("name")),
        arguments=arguments if isinstance(arguments, dict) else str(arguments),
        given=_given(call),
    )


def tool_result_of(result: JsonObject) -> ToolResult:
    """A result of a turn: `{tool_call_id, content, is_error?}`."""
    return ToolResult(
        tool_call_id=str(result["tool_call_id"]),
        content=cast("str | Sequence[JsonObject]", result.get("content") or ""),
        is_error=bool(result.get("is_error", False)),
        given=_given(result),
    )


def canonical_of(turn: TurnLike, *, position: int = 0, turn_id: str = "") -> CanonicalTurn:
    """A turn as formats see it; the actor is the role's where none is named."""
    kind = turn.kind if isinstance(turn, ParsedTurn) else kind_of(turn.role, calls=bool(turn.tool_calls))
    at = datetime.fromisoformat(turn.occurred_at) if isinstance(turn, ParsedTurn) and turn.occurred_at else None
    return CanonicalTurn(
        id=turn_id,
        position=position,
        role=turn.role,
        kind=kind,
        actor=turn.actor or turn.role.value,
        content=turn.content,
        tool_calls=[tool_call_of(call) for call in turn.tool_calls],
        tool_call_id=turn.tool_call_id,
        tool_results=[tool_result_of(result) for result in turn.tool_results],
        occurred_at=at,
    )


def results_of(turn: CanonicalTurn) -> list[ToolResult]:
    """What a turn answers, by `tool_call_id` with its content or by its results."""
    if turn.tool_call_id is None:
        return list(turn.tool_results)
    return [ToolResult(turn.tool_call_id, "" if turn.content is None else turn.content), *turn.tool_results]


def _given(owner: JsonObject) -> JsonObject | None:
    value = owner.get(GIVEN)
    return value if isinstance(value, dict) else None
