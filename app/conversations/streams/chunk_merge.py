"""Merge the streamed parts into the stored turn. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import JsonValue

from app.conversations.schemas.conversations import TurnInput
from app.conversations.schemas.frames import CONTENT, Ending, OpenTurn
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.views import json_column
from app.core.errors import Conflict, FieldError, Invalid
from app.formats.schemas import JsonObject, Kind, Role

_DEFAULT_KINDS: Final = frozenset({Kind.USER_MESSAGE, Kind.AGENT_MESSAGE, Kind.SYSTEM_INSTRUCTION, Kind.TOOL_RESULT})


def new_turn(turn: OpenTurn) -> TurnInput:
    """Return the turn at its opening, with empty content."""
    members = {name: getattr(turn, name) for name in OpenTurn.model_fields if name in TurnInput.model_fields}
    return TurnInput.model_construct(None, **members, content="")


def finished_turn(row: TurnRow, parts: Mapping[str, str], ending: Ending) -> TurnInput:
    """Return the committed turn: the pending `row` with its text and its ending.

    Raises Conflict `length_mismatch` with the expected offset, and Invalid if a streamed call has no name.
    """
    content = parts.get(CONTENT, "")
    if ending.length is not None and ending.length != len(content):
        raise Conflict(
            "length_mismatch",
            "The content has a different length; send the missing text from `expected_offset` on.",
            extra={"expected_offset": len(content)},
        )
    calls = _calls(parts, ending.tool_calls)
    kind = Kind(row.kind)
    metadata: JsonObject = json_column(row.metadata, {})
    members = {name: getattr(row, name) for name in TurnInput.model_fields} | {
        "role": Role(row.role),
        # a default kind is derived again, since the tool calls are known now
        "kind": None if kind in _DEFAULT_KINDS else kind,
        "content": None if calls and not content else content,
        "tool_calls": calls,
        "tool_results": [],
        "usage": ending.usage,
        "model": ending.model or row.model,
        "metadata": {**metadata, **(ending.metadata or {})},
        "occurred_at": None if row.occurred_at == row.created_at else row.occurred_at,
    }
    return TurnInput.model_construct(None, **members)


def streamed_calls(parts: Mapping[str, str]) -> dict[int, dict[str, str]]:
    """Return the streamed members of tool calls, by the number of the call."""
    calls: dict[int, dict[str, str]] = {}
    for part, text in parts.items():
        if part != CONTENT:
            _, number, member = part.split("/")
            calls.setdefault(int(number), {})[member] = text
    return dict(sorted(calls.items()))


def _calls(parts: Mapping[str, str], given: Sequence[JsonObject] | None) -> list[JsonObject]:
    streamed = streamed_calls(parts)
    calls: list[JsonObject] = [dict(call) for call in given or ()]
    missing = [number for number in range(len(calls), max(streamed, default=-1) + 1) if number not in streamed]
    if missing:
        raise _unnamed_call_error(missing[0])
    for number, members in streamed.items():
        if number < len(calls):
            _complete_call(calls[number], members)
        elif "id" in members and "name" in members:
            calls.append({"arguments": "", **members})
        else:
            raise _unnamed_call_error(number)
    return calls


def _unnamed_call_error(number: int) -> Invalid:
    problem = FieldError(f"/tool_calls/{number}", "this call was streamed; give it with its id and name")
    return Invalid("invalid_request", "A streamed tool call was never named; nothing was stored.", fields=[problem])


def _complete_call(call: JsonObject, members: Mapping[str, str]) -> None:
    """Fill the missing members of a call that the ending gives with its streamed members."""
    if "id" in members:
        call.setdefault("id", members["id"])
    function = call.get("function")
    body = function if isinstance(function, dict) else call
    for name in ("name", "arguments"):
        if name in members and (body.get(name) is None or body.get(name) == ""):
            body[name] = members[name]


def aborted_columns(row: TurnRow, parts: Mapping[str, str], reason: str | None) -> tuple[str, str | None, str | None]:
    """Return content, tool calls and metadata of an aborted turn as JSON text; those of its row if it was complete."""
    calls: list[JsonValue] = [dict(members) for members in streamed_calls(parts).values()]
    metadata: JsonObject = json_column(row.metadata, {})
    if reason is not None:
        metadata = {**metadata, "abort_reason": reason}
    was_complete = not parts and (row.content is not None or row.tool_calls is not None or row.tool_results is not None)
    return (
        (row.content or "null") if was_complete else json.dumps(parts.get(CONTENT, ""), ensure_ascii=False),
        row.tool_calls if was_complete else json.dumps(calls, ensure_ascii=False) if calls else None,
        json.dumps(metadata, ensure_ascii=False) if metadata else None,
    )
