"""Types of facts: requests and responses of the API, and the statements of an extractor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple, TypeAlias
from uuid import UUID

from pydantic import BaseModel, Field, StrictBool, StrictInt, StringConstraints, model_validator

from app.conversations.schemas.conversations import Filter, Name
from app.core.errors import PublicValueError
from app.core.paging import Order
from app.core.times import TimeIn, TimeOut
from app.core.validation.ids import ConversationIdIn, IdIn
from app.core.validation.strict import Strict

MAX_SOURCES = 100
MAX_OBJECT_CHARACTERS = 4_096

Predicate: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=128)]
ObjectText: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_OBJECT_CHARACTERS)]
Confidence: TypeAlias = Annotated[float, Field(ge=0, le=1, strict=True, allow_inf_nan=False)]
KeyText: TypeAlias = Annotated[str, StringConstraints(max_length=4_096)]
Sources: TypeAlias = Annotated[list[IdIn], Field(max_length=MAX_SOURCES, fail_fast=True)]


class Tier(StrEnum):
    """How long a fact without new evidence is kept: a day, a week, without limit."""

    L1 = "l1"
    L2 = "l2"
    L3 = "l3"


class PersonalKind(StrEnum):
    """The kinds of personal data that are taken out of a text; each is also the word of its placeholder."""

    EMAIL = "email"
    PHONE = "phone"
    CARD = "card"
    IBAN = "iban"
    BANK_ACCOUNT = "bank_account"
    NATIONAL_ID = "national_id"
    TAX_ID = "tax_id"
    HEALTH_ID = "health_id"
    PASSPORT = "passport"
    DRIVING_LICENCE = "driving_licence"
    ADDRESS = "address"
    BIRTH_DATE = "birth_date"
    IP_ADDRESS = "ip_address"
    MAC_ADDRESS = "mac_address"
    SECRET = "secret"  # noqa: S105 - the name of a kind
    WALLET = "wallet"
    COORDINATES = "coordinates"
    PLATE = "plate"


class StatedBy(StrEnum):
    """Who states a fact: a caller that asserts it, the rules, or a chat model."""

    CALLER = "caller"
    RULES = "rules"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of an extractor or a caller, valid from `valid_from` on. `sources` are the turns that state it.

    `negated`: it is no longer valid. `hypothetical`: it is not stated as true, and is never stored. `position` is its
    place in the text, which orders statements of one turn with the same time. `replaces` ends every other object of
    the same subject and predicate, for any predicate.
    """

    subject: str
    predicate: str
    object: str
    valid_from: datetime
    sources: tuple[UUID, ...] = ()
    confidence: float = 1.0
    valid_to: datetime | None = None
    tier: Tier = Tier.L1
    position: int = 0
    replaces: bool = False
    negated: bool = False
    hypothetical: bool = False
    stated_by: StatedBy = StatedBy.CALLER


class FactCreate(Strict):
    """A fact to assert. A fact that is already stored gains evidence.

    It ends an earlier fact if the predicate has one object at a time, or with `replaces`.
    """

    subject: Name
    predicate: Predicate
    object: ObjectText
    owner: Name | None = None
    project: Name | None = Field(
        default=None,
        description=(
            "The project that the fact is known in; left out: that of the conversation or of the source turns, else all"
            " projects."
        ),
    )
    conversation_id: ConversationIdIn | None = None
    source_turn_ids: Sources = Field(default=[])
    confidence: Confidence = 1.0
    tier: Tier = Tier.L3
    valid_from: TimeIn | None = None
    valid_to: TimeIn | None = None
    replaces: StrictBool = False

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> "FactCreate":
        if self.valid_from is not None and self.valid_to is not None and self.valid_to <= self.valid_from:
            raise PublicValueError("valid_to lies after valid_from")
        return self


class FactUpdate(Strict):
    """A correction of a fact: the old fact is retracted, and a new one is stored. Omitted fields are copied."""

    object: ObjectText | None = None
    confidence: Confidence | None = None
    tier: Tier | None = None
    valid_from: TimeIn | None = None
    valid_to: TimeIn | None = None


class FactErasure(NamedTuple):
    """The number of deleted rows by table, and whether there is more to delete."""

    counts: dict[str, int]
    has_more: bool


class FactsExtract(Strict):
    """Turns to extract facts from: those not processed yet, through this turn or through the newest."""

    through: IdIn | None = None


class FactSearch(Strict):
    """Filters for facts. A fact must match all given filters.

    `as_of`: facts that were valid at this time. `known_at`: facts as they were recorded by this time.
    """

    subject: Filter | None = None
    predicate: Filter | None = None
    owner: Filter | None = None
    project: Filter | None = None
    conversation_id: ConversationIdIn | None = None
    tier: Tier | None = None
    as_of: TimeIn | None = None
    known_at: TimeIn | None = None
    include_retracted: StrictBool = False


class FactListing(FactSearch):
    """Filters and paging of a list of facts, in a body."""

    order: Order = "desc"
    limit: Annotated[StrictInt, Field(ge=1, le=200)] = 20
    cursor: Annotated[str, StringConstraints(max_length=1024)] | None = None

    def filters(self) -> FactSearch:
        """Return the filters without the paging."""
        return FactSearch.model_validate(self.model_dump(include=set(FactSearch.model_fields)))


@dataclass(frozen=True, slots=True)
class Where:
    """Filters of a list of facts; None does not filter. Names are keys already.

    `project`: facts that evidence of this project, or of none, supports. `actors`: facts that no other actor supports.
    `projects` and `owners` are those of the caller's restriction.
    """

    subject_key: str | None = None
    predicate: str | None = None
    owner: str | None = None
    project: str | None = None
    conversation_id: UUID | None = None
    tier: str | None = None
    as_of: datetime | None = None
    known_at: datetime | None = None
    include_retracted: bool = False
    current: bool = False
    actors: Sequence[str] | None = None
    projects: Sequence[str] | None = None
    owners: Sequence[str] | None = None

    def filters(self) -> dict[str, object]:
        """Return the filters that are given, by the names of their arguments."""
        return {name: getattr(self, name) for name in self.shape() if not isinstance(getattr(self, name), bool)}

    def shape(self) -> frozenset[str]:
        """Return the names of the filters and flags that are set: one statement for each such set."""
        return frozenset(field.name for field in fields(self) if getattr(self, field.name) not in (None, False))


class Fact(BaseModel):
    """A stored fact, with its evidence and its validity in time.

    It is valid from `valid_from`, until before `valid_to`. `invalidated_at`: when its end or retraction was recorded;
    `invalidated_by`: the fact that ended it. `project`: the project in which it is known; null if it was asserted
    without a project, or in several. `stated_by`: who states it: a caller, else the rules, else a model; null if it was
    extracted before this was recorded. `undone`: an undo retracted the fact, which can be asserted again. For a key
    without the scope `read`, the statement and the owner are empty.
    """

    id: str
    subject: str
    predicate: str
    object: str
    owner: str | None
    project: str | None
    conversation_id: str | None
    source_turn_ids: list[str]
    confidence: float
    tier: Tier
    stated_by: StatedBy | None
    evidence_count: int
    valid_from: TimeOut
    valid_to: TimeOut | None
    recorded_at: TimeOut
    invalidated_at: TimeOut | None
    invalidated_by: str | None
    undone: bool


class FactRecordedFrame(BaseModel):
    """A fact of this conversation was recorded or got evidence. Not sent to callers with a token."""

    type: Literal["fact.recorded"]
    rev: int
    fact: Fact


class FactResult(BaseModel):
    """Result of an assertion, a correction, a retraction or an undo: the fact, and other facts that changed.

    `fact` is null if the undo made it a part of another fact, or if it was deleted meanwhile.
    """

    fact: Fact | None
    changed: list[Fact]


class Extraction(BaseModel):
    """Result of an extraction, through the turn with the seq `read_through`. Each turn is processed once.

    `recorded`: new facts; `repeated`: statements that add evidence to stored facts; `ended`: facts that a denial ended;
    `passed_over`: statements that changed nothing. `redacted` counts the personal data removed before, by kind.
    `continues`: one call does a limited amount of work. A job does the rest if extraction is enabled, else another
    call.
    """

    conversation_id: str
    read_through: int
    continues: bool
    recorded: int
    repeated: int
    ended: int
    passed_over: int
    redacted: Mapping[str, int]


def fact_text(subject: str, predicate: str, value: str) -> str:
    """Return a fact as one line, for search and display: "ana lives in Berlin"."""
    return f"{subject} {predicate.replace('_', ' ')} {value}"
