"""A response as OpenAI's API shows it: from the turn of its answer, and what it repeats of its request. Pure.

The state of a response is that of the turn: an open turn is in progress, a committed one is completed, or incomplete if
the model stopped early or the client disconnected, and an aborted one has failed or was cancelled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import NoneType
from typing import Final, Literal, TypeAlias

from pydantic import JsonValue

from app.agents.generation.openai_items import items_with_ids
from app.agents.generation.partial import is_incomplete
from app.agents.generation.responses.schemas import REPEATED, REPEATED_EXTRAS
from app.agents.generation.schemas import CONVERSATION_PREFIX
from app.conversations.schemas.conversations import Turn, TurnInput
from app.conversations.schemas.responses import StoredResponse
from app.core.error_codes import ERROR_CODES
from app.core.errors import AppError, NotFound
from app.core.ids import ConversationId, TurnId, format_id, parse_id
from app.formats.schemas import JsonObject

RESPONSE_PREFIX: Final = "resp_"
Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]

_INCOMPLETE: Final[Mapping[str, str]] = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reasons of a chat completion for an early end, and those of a response."""
_CANCELLED: Final = frozenset({"cancelled", "client_gone"})
_RATE_CODES: Final = frozenset({"model_rate_limited", "model_budget_exhausted"})


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What does not change of a response while its answer grows. `conversation_id` is None if nothing is stored."""

    turn_id: str
    created_at: datetime
    repeated: JsonObject
    model: str
    previous_turn_id: TurnId | None = None
    conversation_id: ConversationId | None = None

    @property
    def id(self) -> str:
        """The id of the response."""
        return f"{RESPONSE_PREFIX}{self.turn_id}"


@dataclass(frozen=True, slots=True)
class ResponseState:
    """The state of a response. `reason`: why it is incomplete; `error`: why it failed."""

    status: Status
    output: list[JsonObject] = field(default_factory=list[JsonObject])
    usage: JsonObject | None = None
    completed_at: datetime | None = None
    reason: str | None = None
    error: JsonObject | None = None


_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "instructions": (str, NoneType),
    "metadata": dict,
    "tools": list,
    "parallel_tool_calls": bool,
}
IN_PROGRESS: Final = ResponseState("in_progress")


def response_turn(response_id: str) -> TurnId:
    """Return the turn of a response's answer. Raises NotFound for an id of any other form."""
    try:
        return TurnId(parse_id(response_id.removeprefix(RESPONSE_PREFIX)))
    except ValueError:
        raise NotFound("not_found", "There is no such response.") from None


def head_of(stored: StoredResponse) -> ResponseHead:
    """Return the head of a stored response."""
    return ResponseHead(
        turn_id=stored.answer.id,
        created_at=stored.created_at,
        repeated=_repeated(stored.request.members),
        model=stored.answer.model or "",
        previous_turn_id=stored.request.previous_turn_id,
        conversation_id=stored.conversation_id,
    )


def _repeated(stored: JsonObject) -> JsonObject:
    """Return the stored members of a request; an import may have stored others, or with other types."""
    shown = dict(REPEATED)
    for name, value in stored.items():
        kind = _TYPES.get(name)
        if (name in REPEATED or name in REPEATED_EXTRAS) and (kind is None or isinstance(value, kind)):
            shown[name] = value
    tools = shown["tools"]
    shown["tools"] = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return shown


def state_of(turn: Turn) -> ResponseState:
    """Return the state of the response whose answer is a stored turn."""
    reason = turn.metadata.get("finish_reason")
    match turn.status:
        case "pending":
            return ResponseState("in_progress", _partial_output(turn))
        case "committed":
            ended = ended_state(
                turn, turn.id, finish_reason=reason if isinstance(reason, str) else None, completed_at=turn.committed_at
            )
            return _incomplete(ended) if is_incomplete(turn) else ended
        case "aborted":
            aborted = turn.metadata.get("abort_reason")
            code = aborted if isinstance(aborted, str) else "internal_error"
            output = [{**item, "status": "incomplete"} for item in _partial_output(turn)]
            if code in _CANCELLED:
                return ResponseState("cancelled", output)
            return ResponseState("failed", output, error=_error(code, ERROR_CODES.get(code)))


def _incomplete(state: ResponseState, reason: str | None = None) -> ResponseState:
    output: list[JsonObject] = [{**item, "status": "incomplete"} for item in state.output]
    return ResponseState("incomplete", output, state.usage, reason=reason)


def ended_state(
    turn: Turn | TurnInput, turn_id: str, *, finish_reason: str | None, completed_at: datetime | None
) -> ResponseState:
    """Return the state of a response with a whole answer: a committed turn, or one that is not stored."""
    used, output = usage_view(turn.usage), items_with_ids(turn, turn_id)
    reason = _INCOMPLETE.get(finish_reason or "")
    if reason is not None:
        return _incomplete(ResponseState("completed", output, used), reason)
    return ResponseState("completed", output, used, completed_at)


def failed_state(error: AppError, output: list[JsonObject]) -> ResponseState:
    """Return the state of a response that failed after its first event."""
    if error.code in {"turn_aborted", "stream_fenced"}:  # by another request
        return ResponseState("cancelled", output)
    return ResponseState("failed", output, error=_error(error.code, error.detail))


def response_view(head: ResponseHead, state: ResponseState) -> JsonObject:
    """Return a response in OpenAI's format."""
    conversation: JsonValue = None
    if head.conversation_id is not None:
        conversation = {"id": f"{CONVERSATION_PREFIX}{format_id(head.conversation_id)}"}
    previous = None if head.previous_turn_id is None else f"{RESPONSE_PREFIX}{format_id(head.previous_turn_id)}"
    return {
        "id": head.id,
        "object": "response",
        "created_at": int(head.created_at.timestamp()),
        "completed_at": None if state.completed_at is None else int(state.completed_at.timestamp()),
        "status": state.status,
        "background": False,
        "error": state.error,
        "incomplete_details": None if state.reason is None else {"reason": state.reason},
        "model": head.model,
        "output": [*state.output],
        "previous_response_id": previous,
        "conversation": conversation,
        "store": head.conversation_id is not None,
        "usage": state.usage,
        **head.repeated,
    }


def usage_view(usage: JsonObject | None) -> JsonObject | None:
    """Return the usage of a chat completion as that of a response; None if the endpoint reports none."""
    if not usage:
        return None
    read, written = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    return {
        "input_tokens": read,
        "input_tokens_details": {
            "cached_tokens": _detail(usage, "prompt_tokens_details", "cached_tokens"),
            "cache_write_tokens": _detail(usage, "prompt_tokens_details", "cache_write_tokens"),
        },
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": _detail(usage, "completion_tokens_details", "reasoning_tokens")},
        "total_tokens": read + written,
    }


def _count(usage: JsonObject, name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _detail(usage: JsonObject, group: str, name: str) -> int:
    details = usage.get(group)
    return _count(details, name) if isinstance(details, dict) else 0


def _error(code: str, message: str | None) -> JsonObject:
    """Return an error in OpenAI's format, which knows few codes; ours is in the message."""
    kind = "rate_limit_exceeded" if code in _RATE_CODES else "server_error"
    return {"code": kind, "message": f"{message or 'The answer was not completed.'} ({code})"}


def _partial_output(turn: Turn) -> list[JsonObject]:
    """Return the items of an answer that is not complete: its text, and the calls that are named."""
    calls = [call for call in turn.tool_calls if isinstance(call.get("id"), str) and isinstance(call.get("name"), str)]
    content = turn.content or None
    partial = turn.model_copy(update={"content": content, "tool_calls": calls, "adapter": "openai"})
    if content is None and not calls:
        return []
    return [{**item, "status": "in_progress"} for item in items_with_ids(partial, turn.id)]
