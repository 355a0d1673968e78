"""Conversion of given and stored turns into canonical turns. Only this module knows the shapes of a call."""

from collections.abc import Sequence
from datetime import datetime
from typing import cast

from app.formats.schemas import GIVEN, CanonicalTurn, JsonObject, ParsedTurn, ToolCall, ToolResult, TurnLike, kind_of


def parse_tool_call(call: JsonObject) -> ToolCall:
    """Parse a call: `{id, name, arguments}`, or OpenAI's `{id, type, function: {name, arguments}}`."""
    function = call.get("function")
    body = function if isinstance(function, dict) else call
    arguments = body.get("arguments", "")
    return ToolCall(
        id=str(call["id"]),
        name=str(body.get("name")),
        arguments=arguments if isinstance(arguments, dict) else str(arguments),
        given=_given(call),
    )


def call_key(call_id: str) -> str:
    """Return the id by which a call and its result are paired: without spaces around it, which some models add."""
    return call_id.strip(" \t\r\n")


def parse_tool_result(result: JsonObject) -> ToolResult:
    """Parse a result: `{tool_call_id, content, is_error?}`."""
    return ToolResult(
        tool_call_id=str(result["tool_call_id"]),
        content=cast("str | Sequence[JsonObject]", result.get("content") or ""),
        is_error=bool(result.get("is_error", False)),
        given=_given(result),
    )


def to_canonical(turn: TurnLike, *, position: int = 0, turn_id: str = "") -> CanonicalTurn:
    """Return the canonical turn; the actor defaults to the role."""
    kind = turn.kind if isinstance(turn, ParsedTurn) else kind_of(turn.role, calls=bool(turn.tool_calls))
    at = datetime.fromisoformat(turn.occurred_at) if isinstance(turn, ParsedTurn) and turn.occurred_at else None
    return CanonicalTurn(
        id=turn_id,
        position=position,
        role=turn.role,
        kind=kind,
        actor=turn.actor or turn.role.value,
        content=turn.content,
        tool_calls=[parse_tool_call(call) for call in turn.tool_calls],
        tool_call_id=turn.tool_call_id,
        tool_results=[parse_tool_result(result) for result in turn.tool_results],
        occurred_at=at,
    )


def tool_results_in(turn: CanonicalTurn) -> list[ToolResult]:
    """Return the results in a turn: its content if it has a `tool_call_id`, and its `tool_results`."""
    if turn.tool_call_id is None:
        return list(turn.tool_results)
    return [ToolResult(turn.tool_call_id, "" if turn.content is None else turn.content), *turn.tool_results]


def _given(owner: JsonObject) -> JsonObject | None:
    value = owner.get(GIVEN)
    return value if isinstance(value, dict) else None
