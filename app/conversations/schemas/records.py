"""Records of an export that conversations own: a conversation, its turns and its summaries.

The records of a Turnkeep export have every member that is not null. A file that was converted from another system
leaves out what that system does not know: ids, hashes, `seq`, `rev`, policies. The import makes these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias
from uuid import UUID

from pydantic import Field, StrictBool, StrictInt, StringConstraints

from app.conversations.schemas.conversations import (
    CompactionIn,
    FactsIn,
    Name,
    NonNegative,
    ParsedObject,
    Retention,
    Title,
    TurnInput,
)
from app.conversations.schemas.participants import MAX_PARTICIPANTS, ParticipantName
from app.conversations.schemas.summaries import RefusedFor, SummaryKind
from app.core.errors import FieldError
from app.core.times import TimeIn
from app.core.validation.ids import IdIn
from app.core.validation.strict import Strict
from app.formats.schemas import JsonObject

MAX_INTEGER = 2**53 - 1

Sha256: TypeAlias = Annotated[str, StringConstraints(max_length=64, pattern=r"^[0-9a-f]{64}$")]
ExternalId: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Number: TypeAlias = Annotated[StrictInt, Field(ge=1, le=MAX_INTEGER)]
Counter: TypeAlias = Annotated[NonNegative, Field(le=MAX_INTEGER)]
StoredText: TypeAlias = Annotated[str, StringConstraints(max_length=2**24)]


class RecordedParticipant(Strict):
    """A speaker, or a tool, as it is stored."""

    actor: ParticipantName
    name: ParticipantName | None = None
    aliases: list[ParticipantName] = Field(default=[], max_length=20)


class RecordedTitle(Strict):
    """A title that was derived from turns, with the turns that it was derived from."""

    text: Title
    source: Literal["model", "question"]
    turn_ids: list[IdIn] = Field(default=[], max_length=10_000)
    model: Name | None = None


class SummarizedThrough(Strict):
    """The end of the summarised range: its last turn, and the number and tokens of its turns."""

    turn_id: IdIn | None = None
    position: Counter = 0
    turns: Counter = 0
    tokens: Counter = 0


class ConversationRecord(Strict):
    """A conversation. Its turns and then its summaries follow it, before the next conversation.

    `last_seq` and `head_hash` are those of its last committed turn: an import compares them with the turns that follow.
    `id` or `external_id` is needed.
    """

    type: Literal["conversation"]
    id: IdIn | None = None
    project: Annotated[str, StringConstraints(min_length=1, max_length=128)] = "default"
    external_id: ExternalId | None = None
    owner: Name | None = None
    title: Title | None = None
    derived_title: RecordedTitle | None = None
    participants: list[RecordedParticipant] = Field(default=[], max_length=MAX_PARTICIPANTS)
    tools: list[RecordedParticipant] = Field(default=[], max_length=MAX_PARTICIPANTS)
    metadata: JsonObject = Field(default={})
    retention: Retention = Retention.FULL
    compaction: CompactionIn = CompactionIn()
    facts: FactsIn = FactsIn()
    ttl_s: Annotated[StrictInt, Field(ge=1, le=3_153_600_000)] | None = None
    expires_at: TimeIn | None = None
    created_at: TimeIn | None = None
    updated_at: TimeIn | None = None
    active_at: TimeIn | None = None
    forked_from: IdIn | None = None
    chain_start: Sha256 | None = None
    archived: StrictBool = False
    pinned: StrictBool = False
    token_epoch: Annotated[StrictInt, Field(ge=0, le=2**31 - 1)] = 0
    last_seq: Counter | None = None
    head_hash: Sha256 | None = None
    rev: Counter | None = None
    summarized: SummarizedThrough | None = None
    erased_position: Counter = 0
    facts_seq: Counter = 0
    facts_rev: Counter = 0
    facts_held: StrictBool = False


class RecordedResponse(Strict):
    """The response whose answer a turn is: the turns of its input, and its request without them."""

    previous_turn_id: IdIn | None = None
    input_turn_ids: list[IdIn] = Field(default=[], max_length=10_000, fail_fast=True)
    owns_conversation: StrictBool
    request: ParsedObject
    created_at: TimeIn


class TurnRecord(TurnInput):
    """A turn of the conversation before it. Committed turns are in the order of `seq`; other turns follow them.

    `salt`, `content_hash` and `chain_hash` are hexadecimal. With `erased_at` it is a tombstone without content.
    `external_id` and `supersedes_external_id` are for files from other systems: the import derives ids from them.
    """

    type: Literal["turn"]
    external_id: ExternalId | None = None
    conversation_id: IdIn | None = None
    seq: Number | None = None
    position: Number | None = None
    rev: Counter | None = None
    content_tokens: Annotated[StrictInt, Field(ge=0, le=2**31 - 1)] | None = None
    status: Literal["committed", "aborted"] = "committed"
    superseded_by: IdIn | None = None
    supersedes: IdIn | None = None
    supersedes_external_id: ExternalId | None = None
    origin_turn_id: IdIn | None = None
    created_at: TimeIn | None = None
    committed_at: TimeIn | None = None
    erased_at: TimeIn | None = None
    salt: Sha256 | None = None
    content_hash: Sha256 | None = None
    chain_hash: Sha256 | None = None
    response: RecordedResponse | None = None


class RecordedLine(Strict):
    """One line of highlights."""

    turn_id: IdIn
    text: StoredText
    tokens: Counter


class RecordedDoubt(Strict):
    """A doubtful sentence of a summary, by its place in code points."""

    start: Annotated[StrictInt, Field(ge=0, le=2**31 - 1)]
    end: Annotated[StrictInt, Field(ge=0, le=2**31 - 1)]
    reason: Literal["said_by_another"]


class SummaryRecord(Strict):
    """A summary of the conversation before it, valid or replaced, in the order of `to_position` and `id`."""

    type: Literal["summary"]
    id: IdIn
    conversation_id: IdIn | None = None
    kind: SummaryKind
    level: Annotated[StrictInt, Field(ge=0, le=1000)]
    from_position: Number
    to_position: Number
    actors: list[Name] = Field(default=[], max_length=10_000)
    text: StoredText | None = None
    abstract: StoredText | None = None
    lines: list[RecordedLine] = Field(default=[], max_length=100_000, fail_fast=True)
    tokens: Annotated[StrictInt, Field(ge=0, le=2**31 - 1)]
    model: Name | None = None
    prompt_version: Annotated[str, StringConstraints(max_length=256)]
    refused_for: RefusedFor | None = None
    doubtful: list[RecordedDoubt] = Field(default=[], max_length=100_000, fail_fast=True)
    replaced_by: IdIn | None = None
    rev: Counter
    created_at: TimeIn


# reading


@dataclass(frozen=True, slots=True)
class ConversationPlace:
    """A place inside of a conversation: after its record, after a turn by seq or id, or after a summary.

    `through` and `rev` are those of the conversation when its record was read.
    """

    conversation_id: UUID
    through: int
    rev: int
    part: str = "turns"
    seq: int = 0
    after: UUID | None = None


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Records, the place after them (None at the end of the conversation), and the approximate size of their texts."""

    records: Sequence[JsonObject]
    place: ConversationPlace | None
    size: int


# writing


class ConversationOutcome(StrEnum):
    """What an import did with a conversation.

    `restored`: stored with its ids and hashes. `existing`: it was there already. `remapped`: stored under new ids.
    `extended`: new turns were added to a conversation that was there, or nothing if it had them all.
    """

    RESTORED = "restored"
    EXISTING = "existing"
    REMAPPED = "remapped"
    EXTENDED = "extended"


@dataclass(frozen=True, slots=True)
class RestoredConversation:
    """The outcome of one conversation, its id, and how many turns and summaries were stored.

    `refused`: turns of another system that break a rule. They were left out; the others are stored.
    """

    outcome: ConversationOutcome
    conversation_id: UUID
    turns: int
    summaries: int
    refused: Sequence["RecordRefusedError"] = ()


class RecordRefusedError(Exception):
    """A record of an import breaks a rule. `fields` are its wrong members: nothing of their text. `name`: its id."""

    def __init__(self, line: int, fields: Sequence[FieldError], *, name: str | None = None) -> None:
        super().__init__()
        self.line = line
        self.fields = tuple(fields)
        self.name = name
