"""The canonical turn: the shape between the providers' messages and the stored turns.

The caller's input is stored exactly: unknown part types and extra members are unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

from pydantic import JsonValue

JsonObject: TypeAlias = dict[str, JsonValue]

GIVEN: Final = "turnkeep.given"
"""The one reserved name: a part of this type, or a member of this name in a call or result, stores extra fields."""


class Role(StrEnum):
    """The role of a turn in the conversation."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    TOOL = "tool"


ROLE_NAMES: Final = frozenset({*(role.value for role in Role), "human", "ai", "bot"})
"""The names of actors that have none of their own, in lower case."""


class Kind(StrEnum):
    """The kind of a turn; `compaction` turns are never rendered."""

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
    """Return the kind of a turn whose kind is not given."""
    return Kind.TOOL_CALL_REQUEST if calls else _KIND_OF_ROLE[role]


class Format(StrEnum):
    """The message shapes of providers."""

    OPENAI = "openai"
    OPENAI_RESPONSES = "openai_responses"
    ANTHROPIC = "anthropic"
    WORKERS_AI = "workers_ai"
    CANONICAL = "canonical"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of a model. `arguments` is JSON text or an object, exactly as given.

    `extra` has the extra fields of the provider's call (see `extra_fields`), None if there are none. `stored` is the
    call as it is stored, and `adapter` the format that its turn was read from.
    """

    id: str
    name: str
    arguments: "str | JsonObject"
    extra: "JsonObject | None" = None
    stored: "JsonObject | None" = None
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of the call `tool_call_id`. `content` is text or typed parts.

    `stored` is the entry of `tool_results` as it is stored, and `adapter` the format that its turn was read from.
    """

    tool_call_id: str
    content: "str | Sequence[JsonObject]"
    is_error: bool = False
    extra: "JsonObject | None" = None
    stored: "JsonObject | None" = None
    adapter: str | None = None


# not frozen: a frozen turn takes four times as long to construct, and contexts read hundreds
@dataclass(slots=True)
class CanonicalTurn:
    """A live turn, as formats and context assembly use it.

    `id` is the public ULID; `position` orders turns in the conversation. `content` is text, a list of typed parts
    (`{"type": "text", "text": …}`, `{"type": "image_url", …}`, any other type is unchanged) or None. A tool turn has
    either `tool_call_id` with `content`, or `tool_results`. `content_tokens` is the count of the text in o200k_base,
    stored at append. `adapter` is the format that the turn was read from.
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
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A tool call with its result. Only such pairs are rendered. `position` is that of the turn with the result."""

    call: ToolCall
    result: ToolResult
    position: int = 0


class TurnBlock(NamedTuple):
    """A turn to render: its own content, then its answered calls. `turn.tool_calls` is not used.

    `before` and `after` are turns with the model's own items (reasoning, searches it ran): those that led to this turn,
    and those at the end of an output, from which nothing followed.
    """

    turn: CanonicalTurn
    answered: Sequence[AnsweredCall] = ()
    before: Sequence[CanonicalTurn] = ()
    after: Sequence[CanonicalTurn] = ()


@dataclass(frozen=True, slots=True)
class NoteBlock:
    """Our own text between the turns (a summary, recalled turns), already delimited. Rendered in the user's role."""

    text: str


Block: TypeAlias = TurnBlock | NoteBlock


@dataclass(frozen=True, slots=True)
class RenderedMessages:
    """The rendered messages. `system` is None if the format has the system text among its messages."""

    messages: list[JsonObject]
    system: str | None


class TokenCounter(Protocol):
    """Counts the tokens of a text, for one family of models.

    `name` is the encoding, as stored with every count. `exact`: the count is that of the model's own tokenizer; if not,
    it is never lower. Names of special tokens in the text count as plain text.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def exact(self) -> bool: ...  # noqa: D102
    def count(self, text: str) -> int: ...  # noqa: D102


class TurnLike(Protocol):
    """The fields of a parsed or stored turn that are written back."""

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
    """One turn parsed from a provider's messages, by the rules of a turn to append.

    `adapter` is the source format. `actor` is the message's `name`. Only the canonical shape has `id` (of the turn) and
    `occurred_at` (RFC 3339).
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

    def is_equal_to(self, other: TurnLike) -> bool:
        """Return whether both turns have the same role, content, calls and results."""
        mine = (self.role, self.content, self.tool_calls, self.tool_call_id, self.tool_results)
        return mine == (other.role, other.content, other.tool_calls, other.tool_call_id, other.tool_results)

    def members(self) -> JsonObject:
        """Return the members of a turn to append, without empty ones."""
        members = {name: getattr(self, name) for name in self.__slots__}
        always = {"role", "kind", "content"}
        return {name: value for name, value in members.items() if name in always or value not in (None, [], {})}


@dataclass(frozen=True, slots=True)
class WrittenMessages:
    """Turns in a provider's shape, each written separately, without repair; `system` if the format separates it."""

    messages: list[JsonObject]
    system: "str | list[JsonObject] | None" = None
