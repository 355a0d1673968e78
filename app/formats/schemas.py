"""The canonical turn: one vocabulary between every provider's message shape and what Turnkeep stores.

Whatever a caller gave is kept exactly: unknown part types and extra members pass through untouched.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from pydantic import JsonValue

JsonObject: TypeAlias = dict[str, JsonValue]

GIVEN: Final = "turnkeep.given"
"""The one reserved name: a part of this type, and a member of this name in a call or result, keep what has no place."""


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


_KIND_OF_ROLE: Final = {
    Role.USER: Kind.USER_MESSAGE,
    Role.ASSISTANT: Kind.AGENT_MESSAGE,
    Role.SYSTEM: Kind.SYSTEM_INSTRUCTION,
    Role.TOOL: Kind.TOOL_RESULT,
}


def kind_of(role: Role, *, calls: bool = False) -> Kind:
    """What a turn is where its kind is not given."""
    return Kind.TOOL_CALL_REQUEST if calls else _KIND_OF_ROLE[role]


class Format(StrEnum):
    """The message shapes a context can be rendered in."""

    OPENAI = "openai"
    OPENAI_RESPONSES = "openai_responses"
    ANTHROPIC = "anthropic"
    WORKERS_AI = "workers_ai"
    CANONICAL = "canonical"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's wish to call a tool. `arguments` is a JSON text or an object, exactly as the caller gave it.

    `given` is what else the provider's own call held (see `given`), None where there is nothing.
    """

    id: str
    name: str
    arguments: "str | JsonObject"
    given: "JsonObject | None" = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answered to the call `tool_call_id`. `content` is text or typed parts."""

    tool_call_id: str
    content: "str | Sequence[JsonObject]"
    is_error: bool = False
    given: "JsonObject | None" = None


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
    """A turn to render: its own content, then its answered calls. `turn.tool_calls` itself is never looked at.

    `before` and `after` are turns that hold a model's own items (reasoning, searches it ran): those that led to this
    one, and those at the end of an output, which nothing came of.
    """

    turn: CanonicalTurn
    answered: Sequence[Answered] = ()
    before: Sequence[CanonicalTurn] = ()
    after: Sequence[CanonicalTurn] = ()


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


class TurnLike(Protocol):
    """What of a turn is written back: one that was parsed, or one that is stored."""

    @property
    def role(self) -> Role: ...  # noqa: D102
    @property
    def actor(self) -> str | None: ...  # noqa: D102
    @property
    def content(self) -> str | list[JsonObject] | None: ...  # noqa: D102
    @property
    def tool_calls(self) -> list[JsonObject]: ...  # noqa: D102
    @property
    def tool_call_id(self) -> str | None: ...  # noqa: D102
    @property
    def tool_results(self) -> list[JsonObject]: ...  # noqa: D102
    @property
    def adapter(self) -> str | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """One turn out of a provider's messages, by the rules of a turn to append.

    `adapter` is the format it was read from. `actor` is the message's `name`, where it has one. Of what only the
    canonical shape tells, `id` is the turn's and `occurred_at` an RFC 3339 time.
    """

    role: Role
    kind: Kind
    adapter: str | None
    content: "str | list[JsonObject] | None" = None
    tool_calls: list[JsonObject] = field(default_factory=list[JsonObject])
    tool_call_id: str | None = None
    tool_results: list[JsonObject] = field(default_factory=list[JsonObject])
    actor: str | None = None
    model: str | None = None
    metadata: JsonObject = field(default_factory=dict[str, JsonValue])
    id: str | None = None
    occurred_at: str | None = None

    def says(self, other: TurnLike) -> bool:
        """Whether both are in one role and say, call and answer the same."""
        mine = (self.role, self.content, self.tool_calls, self.tool_call_id, self.tool_results)
        return mine == (other.role, other.content, other.tool_calls, other.tool_call_id, other.tool_results)

    def members(self) -> JsonObject:
        """The members of a turn to append, those left out that say nothing."""
        members = {name: getattr(self, name) for name in self.__slots__}
        kept = {"role", "kind", "content"}
        return {name: value for name, value in members.items() if name in kept or value not in (None, [], {})}


@dataclass(frozen=True, slots=True)
class Written:
    """Turns in a provider's shape, each by itself, nothing repaired. `system` where the format keeps it beside."""

    messages: list[JsonObject]
    system: "str | list[JsonObject] | None" = None


@dataclass(frozen=True, slots=True)
class Fault:
    """Something a provider would refuse: the case's name, a JSON pointer to it, and what is wrong in plain words."""

    code: str
    pointer: str
    detail: str


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a provider accepts of given messages; `left_out` says of what is missing, why."""

    messages: list[JsonObject]
    system: str | None
    left_out: tuple[str, ...]
