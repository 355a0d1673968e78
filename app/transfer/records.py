"""The lines of an export: header, records of each entity, trailer.

The records of a Turnkeep export have every member that is not null. A file that was converted from another system
leaves out what that system does not know: ids, hashes, `seq`, `rev`, policies. The import makes these.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, StrictBool, StrictInt, StringConstraints, TypeAdapter

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
from app.core.times import TimeIn
from app.core.validation.ids import IdIn
from app.core.validation.strict import Strict
from app.formats.schemas import JsonObject
from app.memory.schemas import Confidence, KeyText, ObjectText, Predicate, StatedBy, Tier

FORMAT: Final = "turnkeep-export"
VERSION: Final = 1
MAX_RECORDED_EVIDENCE = 1_000
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


class EvidenceRecord(Strict):
    """One source of a fact: a turn, or an assertion if `turn_id` is left out. `project`: empty for all projects."""

    turn_id: IdIn | None = None
    conversation_id: IdIn | None = None
    rev: Counter | None = None
    project: Annotated[str, StringConstraints(max_length=256)] = ""
    actor: Name | None = None
    content_hash: Sha256 | None = None
    object_key: KeyText
    object: ObjectText
    at: TimeIn
    ends_at: TimeIn | None = None
    position: Annotated[StrictInt, Field(ge=-(2**31), le=2**31 - 1)] = 0
    confidence: Confidence = 1.0
    tier: Tier = Tier.L3
    denies: StrictBool = False
    replaces: StrictBool = False
    stated_by: StatedBy | None = None


class FactRecord(Strict):
    """A fact. Without `evidence` it is a statement of another system, and is stored like one that a caller asserts.

    `is_partial`: it has other evidence outside of the exported scope.
    """

    type: Literal["fact"]
    id: IdIn | None = None
    owner: Name | None = None
    subject: Name
    subject_key: KeyText | None = None
    predicate: Predicate
    object: ObjectText
    conversation_id: IdIn | None = None
    project: Annotated[str, StringConstraints(max_length=256)] = ""
    confidence: Confidence = 1.0
    tier: Tier = Tier.L3
    valid_from: TimeIn | None = None
    valid_to: TimeIn | None = None
    recorded_at: TimeIn | None = None
    invalidated_at: TimeIn | None = None
    invalidated_by: IdIn | None = None
    retracted: StrictBool = False
    undone: StrictBool = False
    expires_at: TimeIn | None = None
    is_partial: StrictBool = False
    evidence: list[EvidenceRecord] = Field(default=[], max_length=MAX_RECORDED_EVIDENCE, fail_fast=True)


class DecisionSource(Strict):
    """A turn or a conversation that the text of a decision is derived from."""

    turn_id: IdIn | None = None
    conversation_id: IdIn | None = None


class FactDecisionRecord(Strict):
    """A change of facts that can be undone. `decision` has the facts before it, in the form of this installation."""

    type: Literal["fact_decision"]
    id: IdIn
    owner: Name | None = None
    subject_key: KeyText
    predicate: Predicate
    fact_ids: list[IdIn] = Field(default=[], max_length=1_000, fail_fast=True)
    decision: JsonObject
    sources: list[DecisionSource] = Field(default=[], max_length=100_000, fail_fast=True)


class MemoryRecord(Strict):
    """A long-term memory. `repeated_at`: when it was stored again.

    A file from another system can leave out `id`: it is then derived from `external_id`, or from the memory itself.
    """

    type: Literal["memory"]
    id: IdIn | None = None
    external_id: ExternalId | None = None
    agent_id: Name
    owner: Name | None = None
    content: Annotated[str, StringConstraints(min_length=1, max_length=2**20)]
    metadata: JsonObject = Field(default={})
    created_at: TimeIn | None = None
    expires_at: TimeIn | None = None
    repeated_at: list[TimeIn] = Field(default=[], max_length=1_000)


class ScopeKind(StrEnum):
    """What an export contains. `foreign`: the file was converted from another system."""

    CONVERSATION = "conversation"
    PROJECT = "project"
    TENANT = "tenant"
    FOREIGN = "foreign"


class ExportScope(Strict):
    """The scope of an export, with the conversation or the project if there is one."""

    kind: ScopeKind
    conversation_id: IdIn | None = None
    project: Name | None = None


class HeaderRecord(Strict):
    """The first line. `source` names the other system if `scope.kind` is `foreign`."""

    type: Literal["header"]
    format: Literal["turnkeep-export"]
    version: Annotated[StrictInt, Field(ge=1)]
    scope: ExportScope
    source: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    created_at: TimeIn


class TrailerRecord(Strict):
    """The last line: the number of records of each type, and their hash. Without it, the file is incomplete."""

    type: Literal["trailer"]
    counts: Annotated[dict[str, Annotated[StrictInt, Field(ge=0)]], Field(max_length=20)]
    hash: Sha256


class RefusedRecord(Strict):
    """What a converter could not read of a document of another system: an import counts and names it, and stores none.

    `pointer` is the place in that document, `external_id` the id of the object, if it was read, and
    `conversation_external_id` that of the conversation of a turn. It has no content.
    """

    type: Literal["refused"]
    kind: Literal["conversation", "turn", "fact", "memory"]
    external_id: Annotated[str, StringConstraints(max_length=512)] | None = None
    conversation_external_id: Annotated[str, StringConstraints(max_length=512)] | None = None
    pointer: Annotated[str, StringConstraints(max_length=1024)]
    detail: Annotated[str, StringConstraints(max_length=1024)]


RECORD_MODELS: Final[Mapping[str, type[Strict]]] = MappingProxyType(
    {
        "conversation": ConversationRecord,
        "turn": TurnRecord,
        "summary": SummaryRecord,
        "fact": FactRecord,
        "fact_decision": FactDecisionRecord,
        "memory": MemoryRecord,
    }
)
RECORD_TYPES: Final = tuple(RECORD_MODELS)
Record: TypeAlias = (
    ConversationRecord | TurnRecord | SummaryRecord | FactRecord | FactDecisionRecord | MemoryRecord | RefusedRecord
)
RecordLine: TypeAlias = Annotated[Record, Field(discriminator="type")]
RECORD_LINE: Final[TypeAdapter[Record]] = TypeAdapter(RecordLine)
"""Reads a record line that was parsed as JSON."""
