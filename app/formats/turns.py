"""Conversion of given and stored turns into canonical turns. Only this module knows the shapes of a call."""

from collections.abc import Sequence
from datetime import datetime
from typing import cast

from app.formats.extra_fields import extra_of
from app.formats.schemas import CanonicalTurn, JsonObject, ParsedTurn, ToolCall, ToolResult, TurnLike, kind_of


def parse_tool_call(call: JsonObject, adapter: str | None = None) -> ToolCall:
    """Parse a call: `{id, name, arguments}`, or OpenAI's `{id, type, function: {name, arguments}}`.

    `adapter` is the format that its turn was read from.
    """
    function = call.get("function")
    body = function if isinstance(function, dict) else call
    arguments = body.get("arguments", "")
    return ToolCall(
        id=str(call["id"]),
        name=str(body.get("name")),
        arguments=arguments if isinstance(arguments, dict) else str(arguments),
        extra=extra_of(call),
        stored=call,
        adapter=adapter,
    )


def call_key(call_id: str) -> str:
    """Return the id by which a call and its result are paired: without spaces around it, which some models add."""
    return call_id.strip(" \t\r\n")


def parse_tool_result(result: JsonObject, adapter: str | None = None) -> ToolResult:
    """Parse a result: `{tool_call_id, content, is_error?}`. `adapter` is the format that its turn was read from."""
    return ToolResult(
        tool_call_id=str(result["tool_call_id"]),
        content=cast("str | Sequence[JsonObject]", result.get("content") or ""),
        is_error=bool(result.get("is_error", False)),
        extra=extra_of(result),
        stored=result,
        adapter=adapter,
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
        tool_calls=[parse_tool_call(call, turn.adapter) for call in turn.tool_calls],
        tool_call_id=turn.tool_call_id,
        tool_results=[parse_tool_result(result, turn.adapter) for result in turn.tool_results],
        occurred_at=at,
        adapter=turn.adapter,
    )


def as_stored(turn: CanonicalTurn) -> ParsedTurn:
    """Return the fields of a turn that are written back, as they are stored."""
    return ParsedTurn(
        turn.role,
        turn.kind,
        turn.adapter,
        turn.content if turn.content is None or isinstance(turn.content, str) else list(turn.content),
        tool_calls=[call.stored for call in turn.tool_calls if call.stored is not None],
        tool_call_id=turn.tool_call_id,
        tool_results=[result.stored for result in turn.tool_results if result.stored is not None],
    )


def tool_results_in(turn: CanonicalTurn) -> list[ToolResult]:
    """Return the results in a turn: its content if it has a `tool_call_id`, and its `tool_results`."""
    if turn.tool_call_id is None:
        return list(turn.tool_results)
    content = "" if turn.content is None else turn.content
    return [ToolResult(turn.tool_call_id, content, adapter=turn.adapter), *turn.tool_results]
