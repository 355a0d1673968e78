"""Types of conversations and turns: requests and responses."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Generic, Literal, Self, TypeAlias, TypeVar, cast
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    JsonValue,
    PrivateAttr,
    SkipValidation,
    StrictBool,
    StrictInt,
    StringConstraints,
    model_validator,
)

from app.conversations.schemas.participants import ParticipantOut, ParticipantsIn
from app.core.entity_fields import json_text
from app.core.errors import PublicValueError
from app.core.times import TimeIn, TimeOut
from app.core.validation.ids import ConversationNameIn, IdIn, NewTurnId
from app.core.validation.strict import Strict, Unchecked
from app.formats.message_schemas import ContentPart, DocumentedAs, Message, ToolCall, ToolOutput
from app.formats.parse.produced import admit_message
from app.formats.parse.sent_messages import SentMessage
from app.formats.parts import part_text
from app.formats.schemas import CanonicalTurn, JsonObject, Kind, ParsedTurn, Role, TurnLike
from app.formats.service import text_of
from app.formats.turns import to_canonical

Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Title: TypeAlias = Annotated[str, StringConstraints(max_length=1024)]
Filter: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=512)]
NonNegative: TypeAlias = Annotated[StrictInt, Field(ge=0)]

TurnStatus: TypeAlias = Literal["pending", "committed", "aborted"]
IndexState: TypeAlias = Literal["indexed", "pending", "none"]

_SHORT_COUNTS = frozenset({"prompt", "completion"})
MAX_TURNS = 10_000
MAX_PARTS = 1_000


class Retention(StrEnum):
    """Policy for turns that a summary covers. `audit-only` is accepted for `audit_only`."""

    FULL = "full"
    AUDIT_ONLY = "audit_only"
    EPHEMERAL = "ephemeral"


def _read_retention(value: object) -> object:
    return value.replace("-", "_") if isinstance(value, str) else value


RetentionIn: TypeAlias = Annotated[Retention, BeforeValidator(_read_retention)]


class CompactionIn(Strict):
    """When and how older turns are summarised. The settings are the defaults of omitted fields."""

    strategy: Literal["rolling", "hierarchical", "never"] | None = None
    trigger_turns: Annotated[StrictInt, Field(ge=2, le=100_000)] | None = None
    trigger_tokens: Annotated[StrictInt, Field(ge=100, le=10_000_000)] | None = None
    summarizer_model: Name | None = None
    summaries: Literal["model", "highlights"] | None = None


class FactsIn(Strict):
    """Whether facts are extracted, and whether personal data is removed first. The settings are the defaults."""

    enabled: StrictBool | None = None
    redact: StrictBool | None = None


class _MetadataPolicies(BaseModel):
    """The members of metadata that set a policy of the conversation."""

    retention: RetentionIn = Retention.FULL
    compaction: CompactionIn = CompactionIn()


def with_valid_policies(metadata: JsonObject) -> JsonObject:
    """Return the metadata of a conversation, if the policies in it are valid."""
    _MetadataPolicies.model_validate(metadata)
    return metadata


def _without_policies(metadata: JsonObject) -> JsonObject:
    if not _MetadataPolicies.model_fields.keys().isdisjoint(metadata):
        raise PublicValueError("A fork has the retention and compaction of its parent. Change them with PATCH.")
    return metadata


MetadataIn: TypeAlias = Annotated[JsonObject, AfterValidator(with_valid_policies)]
"""Metadata of a conversation. `retention` and `compaction` in it set these policies, and are removed from it."""


class _PoliciesInMetadata(Strict):
    """Base of what sets the policies of a conversation, by its own fields or by members of its metadata."""

    metadata: MetadataIn = Field(default={})
    retention: RetentionIn = Retention.FULL
    compaction: CompactionIn = CompactionIn()

    @model_validator(mode="after")
    def _take_from_metadata(self) -> Self:
        policies = _MetadataPolicies.model_validate(self.metadata)
        for name in policies.model_fields_set:
            value = cast("object", getattr(policies, name))
            if name in self.model_fields_set and getattr(self, name) != value:
                raise PublicValueError("The policies in metadata differ from those beside it. Give each once.")
            setattr(self, name, value)
        if policies.model_fields_set:
            named = _MetadataPolicies.model_fields
            self.metadata = {name: value for name, value in self.metadata.items() if name not in named}
        return self


class ConversationCreate(_PoliciesInMetadata):
    """A conversation to create. An existing conversation with this `id` or `external_id` is returned instead.

    409 if it has another owner than `owner`, or does not have one of the `participants`.
    """

    id: ConversationNameIn | None = None
    external_id: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = None
    project: Annotated[str, StringConstraints(min_length=1, max_length=128)] = "default"
    owner: Name | None = None
    title: Title | None = None
    participants: ParticipantsIn = Field(default=[])
    ttl_s: Annotated[StrictInt, Field(ge=1, le=3_153_600_000)] | None = None
    facts: FactsIn = FactsIn()


class ForkRequest(Strict):
    """A fork: a new conversation with copies of the live turns through one, by id or seq; by default of all turns.

    The parent's values are the defaults of omitted fields. `id` and `external_id` are those of the fork.
    """

    through: IdIn | None = None
    through_seq: Annotated[StrictInt, Field(ge=1)] | None = None
    id: ConversationNameIn | None = None
    external_id: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = None
    owner: Name | None = None
    title: Title | None = None
    metadata: Annotated[JsonObject, AfterValidator(_without_policies)] | None = None

    @model_validator(mode="after")
    def _one_end(self) -> "ForkRequest":
        if self.through is not None and self.through_seq is not None:
            raise PublicValueError("give through or through_seq, not both")
        return self


class ConversationUpdate(_PoliciesInMetadata):
    """Changes of a conversation. Omitted fields are not changed; null clears `ttl_s`. An owner can be set once.

    `title: null` restores a derived title, `title: ""` removes the title. Lists leave out archived conversations unless
    they are asked for.
    """

    owner: Name | None = None
    title: Title | None = None
    participants: ParticipantsIn = Field(default=[])
    ttl_s: Annotated[StrictInt, Field(ge=1, le=3_153_600_000)] | None = None
    facts: FactsIn = FactsIn()
    archived: StrictBool = False
    pinned: StrictBool = False


class Compaction(BaseModel):
    """When and how older turns are summarised. `summaries`: who writes them; null: as the settings say."""

    strategy: Literal["rolling", "hierarchical", "never"]
    trigger_turns: int
    trigger_tokens: int
    summarizer_model: str | None
    summaries: Literal["model", "highlights"] | None = None


class Facts(BaseModel):
    """Whether facts are extracted, and whether personal data is removed first."""

    enabled: bool
    redact: bool


class Conversation(BaseModel):
    """A conversation with its counters. `token_count` counts live turns in o200k_base.

    `title_source`: a caller gave the title, or it was derived, by a chat model or from the words of the first question.
    `trashed_at`: it is in the trash since then, and is deleted at `expires_at` unless it is restored.
    """

    id: str
    project: str
    external_id: str | None
    owner: str | None
    title: str | None
    title_source: Literal["caller", "model", "question"] | None
    participants: list[ParticipantOut]
    metadata: JsonObject
    created_at: TimeOut
    updated_at: TimeOut
    active_at: TimeOut
    ttl_s: int | None
    expires_at: TimeOut | None
    last_seq: int
    rev: int
    turn_count: int
    token_count: int
    summarized_through: str | None
    retention: Retention
    compaction: Compaction
    facts: Facts
    forked_from: str | None
    head_hash: str
    archived: bool
    pinned: bool
    trashed_at: TimeOut | None


class MessagePreview(BaseModel):
    """The beginning of a message: at most 200 characters, on one line."""

    turn_id: str
    role: Role
    actor: str
    text: str
    occurred_at: TimeOut


class ListedConversation(Conversation):
    """A conversation in a list, with previews of its first and last message.

    A message is a live turn of a user or an assistant with text; erased turns are not shown. Null if there is no
    message among the first or the last 50 turns.
    """

    first_message: MessagePreview | None
    last_message: MessagePreview | None


# the body is already parsed as strict JSON; to validate each of a million values again would take a second
ParsedObject: TypeAlias = dict[str, Annotated[JsonValue, SkipValidation]]
PartObject: TypeAlias = Annotated[ParsedObject, DocumentedAs(ContentPart)]
ToolCallObject: TypeAlias = Annotated[ParsedObject, DocumentedAs(ToolCall)]
ToolResultObject: TypeAlias = Annotated[ParsedObject, DocumentedAs(ToolOutput)]
MessageObject: TypeAlias = Annotated[ParsedObject, DocumentedAs(Message)]


def _read_usage(value: ParsedObject) -> ParsedObject:
    return {f"{name}_tokens": count for name, count in value.items()} if _SHORT_COUNTS.issuperset(value) else value


UsageIn: TypeAlias = Annotated[ParsedObject, AfterValidator(_read_usage)]
"""Token counts of a turn, stored as given, except that `prompt` and `completion` alone get the suffix `_tokens`."""

# report the first invalid part, not each of a million
Parts: TypeAlias = Annotated[list[PartObject], Field(max_length=MAX_PARTS, fail_fast=True)]


class TurnContent(Strict):
    """Content of a turn to append, or of a revision."""

    # default factories, because pydantic copies a default list for each turn, in half of the time of the whole check

    id: NewTurnId | None = None
    actor: Name | None = None
    kind: Kind | None = None
    content: str | Parts | None = None
    tool_calls: list[ToolCallObject] = Field(
        default_factory=list, max_length=128, fail_fast=True, json_schema_extra={"default": []}
    )
    tool_call_id: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    tool_results: list[ToolResultObject] = Field(
        default_factory=list, max_length=128, fail_fast=True, json_schema_extra={"default": []}
    )
    usage: UsageIn | None = None
    model: Name | None = None
    adapter: Name | None = None
    metadata: ParsedObject = Field(default_factory=dict, json_schema_extra={"default": {}})
    occurred_at: TimeIn | None = None


class TurnInput(TurnContent):
    """A turn to append.

    A `tool` turn has `tool_call_id` with `content`, or `tool_results`. Calls are `{id, name, arguments}`, or as in chat
    completions. They and typed parts are stored as given.
    """

    role: Role
    _sent: SentMessage | None = PrivateAttr(None)

    @property
    def sent(self) -> SentMessage | None:
        """The message of the request that the turn was parsed from; None if it was sent as a turn."""
        return self._sent

    def parsed_from(self, sent: SentMessage) -> Self:
        """Set the message of the request that the turn was parsed from, and return the turn."""
        self._sent = sent
        return self

    @classmethod
    def of(cls, turn: ParsedTurn) -> Self:
        """Return the turn to append for a parsed message, which needs no validation."""
        return cls.model_construct(
            None,
            role=turn.role,
            actor=turn.actor,
            content=turn.content,
            tool_calls=turn.tool_calls,
            tool_call_id=turn.tool_call_id,
            tool_results=turn.tool_results,
            adapter=turn.adapter,
        )


class Revision(TurnContent):
    """A new turn in the place of an old one: an edit, or an answer that was generated again.

    The old turn's `role` is the default; with the same role, so are its `actor` and a `kind` that a caller gave.
    `truncate_after` also supersedes every live turn after the old one's position.
    """

    role: Role | None = None
    truncate_after: StrictBool = False
    expected_seq: NonNegative | None = None

    @model_validator(mode="before")
    @classmethod
    def _admit(cls, body: object) -> object:
        return admit_message(dict(body), "")[0] if isinstance(body, Unchecked) else body


class Turn(BaseModel):
    """A stored turn. With `erased_at` it is a tombstone: its content was erased, its position and hashes are kept."""

    id: str
    conversation_id: str
    seq: int | None
    position: int | None
    rev: int
    kind: Kind
    actor: str
    role: Role
    content: str | list[PartObject] | None
    tool_calls: list[ToolCallObject]
    tool_call_id: str | None
    tool_results: list[ToolResultObject]
    usage: ParsedObject | None
    content_tokens: int
    model: str | None
    adapter: str | None
    status: TurnStatus
    superseded_by: str | None
    supersedes: str | None
    origin_turn_id: str | None
    metadata: ParsedObject
    occurred_at: TimeOut
    created_at: TimeOut
    committed_at: TimeOut | None
    content_hash: str | None
    chain_hash: str | None
    index_state: IndexState
    erased_at: TimeOut | None


TurnT = TypeVar("TurnT", Turn, CanonicalTurn)
"""A turn as callers read it, or as contexts do."""


@dataclass(frozen=True, slots=True)
class Hydrated(Generic[TurnT]):
    """Turns by id. `left_out`: ids left out to limit the size."""

    turns: Mapping[UUID, TurnT]
    left_out: frozenset[UUID]


class AppendResult(BaseModel):
    """Result of an append: the stored turns, and the new state of the conversation.

    `seq` and `head_hash` are those of the conversation after the last turn. Send `seq` as `expected_seq` of the next
    append to append only if there was no other append since. `sanitised`: JSON pointers of the request,
    to members that a model or a tool produced and from which characters were left out: NUL and halves of surrogate
    pairs.
    """

    conversation_id: str
    turns: list[Turn]
    seq: int
    rev: int
    head_hash: str
    sanitised: list[str]


class RevisionResult(BaseModel):
    """Result of a revision: the new turn, and the number of turns that it superseded (the old one and truncated ones).

    `seq` and `head_hash` are those of the conversation after the revision.
    """

    conversation_id: str
    turn: Turn
    superseded_count: int
    seq: int
    rev: int
    head_hash: str


class ErasedTurns(BaseModel):
    """Result of an erasure.

    `erased`: the turns erased now, with their other revisions. `already_erased`: the named turns that were erased
    before.
    """

    conversation_id: str
    erased: list[str]
    already_erased: list[str]
    rev: int


class ChainBreak(BaseModel):
    """The first break of a hash chain.

    `what` is one of: `content_hash`, the fields of the turn do not match its content hash; `chain_hash`, the chain hash
    does not follow from the previous turn; `missing`, there is no turn with this seq; `head`, the head of the
    conversation does not match its last turn.
    """

    turn_id: str | None
    seq: int
    what: Literal["content_hash", "chain_hash", "missing", "head"]


class Verification(BaseModel):
    """Result of a verification of the hash chain.

    `turns`: turns checked; `verified_content`: turns whose content was hashed and compared; `erased`: turns without
    content, of which only the chain hash was checked.
    """

    conversation_id: str
    valid: bool
    turns: int
    verified_content: int
    erased: int
    head_hash: str
    first_break: ChainBreak | None


def content_text(content: object) -> str:
    """Return the text of a content: the string, or the texts and transcripts of its parts, one per line."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = cast("list[object]", content)
        texts = [part_text(cast("JsonObject", part)) for part in parts if isinstance(part, dict)]
        return "\n".join(text for text in texts if text is not None)
    return ""


def turn_text(turn: Turn) -> str:
    """Return the plain text of a turn, that of `text_of`: its content and its tool results."""
    return text_of(to_canonical(turn))


def plain_text(turn: TurnLike) -> str:
    """Return the text that is counted and searched: content, names and arguments of tool calls, text of results."""
    results = [content_text(result.get("content")) for result in turn.tool_results]
    return "\n".join(filter(None, [content_text(turn.content), *_calls(turn), *results]))


def readable_text(turn: Turn) -> str:
    """Return all that a turn says: its `turn_text`, then the names and arguments of its tool calls."""
    return "\n".join([turn_text(turn), *_calls(turn)])


def _calls(turn: TurnLike) -> Iterator[str]:
    for call in turn.tool_calls:
        function = call.get("function")
        body = function if isinstance(function, dict) else call
        arguments = body.get("arguments", "")
        yield f"{body.get('name')} {arguments if isinstance(arguments, str) else json_text(arguments)}"
