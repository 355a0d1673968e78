"""The canonical turn: one vocabulary between every provider's message shape and what Turnkeep stores.

Whatever a caller gave is kept exactly: unknown part types and extra members pass through untouched.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from pydantic import JsonValue

JsonObject: TypeAlias = dict[str, JsonValue]


class Role(StrEnum):
    """The part a turn plays in the conversation."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    TOOL = "tool"


class Kind(StrEnum):
    """What a turn is; `compaction` turns are never rendered."""

    USER_MESSAGE = "user_message"
    AGENT_MESSAGE = "agent_message"
    TOOL_CALL_REQUEST = "tool_call_request"
    TOOL_RESULT = "tool_result"
    SYSTEM_INSTRUCTION = "system_instruction"
    COMPACTION = "compaction"


class Format(StrEnum):
    """The message shapes a context can be rendered in."""

    OPENAI = "openai"
    OPENAI_RESPONSES = "openai_responses"
    ANTHROPIC = "anthropic"
    WORKERS_AI = "workers_ai"
    CANONICAL = "canonical"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's wish to call a tool. `arguments` is a JSON text or an object, exactly as the caller gave it."""

    id: str
    name: str
    arguments: "str | JsonObject"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answered to the call `tool_call_id`. `content` is text or typed parts."""

    tool_call_id: str
    content: "str | Sequence[JsonObject]"
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class CanonicalTurn:
    """One live turn, as formats and context assembly see it.

    `id` is the public ULID; `position` orders turns in the conversation. `content` is text, a list of typed parts
    (`{"type": "text", "text": …}`, `{"type": "image_url", …}`, anything else passes through) or None.
    A tool turn holds either `tool_call_id` with `content`, or `tool_results`.
    `content_tokens` counts the bare text in o200k_base, as stored at append.
    """

    id: str
    position: int
    role: Role
    kind: Kind
    actor: str
    content: "str | Sequence[JsonObject] | None" = None
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str | None = None
    tool_results: Sequence[ToolResult] = ()
    occurred_at: datetime | None = None
    content_tokens: int = 0
    metadata: JsonObject = field(default_factory=dict[str, JsonValue])


@dataclass(frozen=True, slots=True)
class Answered:
    """One tool call together with its result: the only way a call reaches a render."""

    call: ToolCall
    result: ToolResult


@dataclass(frozen=True, slots=True)
class TurnBlock:
    """A turn to render: its own content, then its answered calls. `turn.tool_calls` itself is never looked at."""

    turn: CanonicalTurn
    answered: Sequence[Answered] = ()


@dataclass(frozen=True, slots=True)
class NoteBlock:
    """Text of ours between the turns (a summary, recalled turns), already fenced. Shown in the user's role."""

    text: str


Block: TypeAlias = TurnBlock | NoteBlock


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a provider is sent. `system` is None where the format keeps the system text among its messages."""

    messages: list[JsonObject]
    system: str | None
