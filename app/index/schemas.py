"""What goes into the search index and what comes out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias
from uuid import UUID

from pydantic import BaseModel, Field, StrictBool, StrictInt, StringConstraints

from app.core.database.transactions import FloatVector
from app.core.ids import ConversationId
from app.core.times import TimeOut
from app.core.validation.strict import Strict

VECTORS_JOB: Final = "index.vectors"
"""Make the vectors of entries that wait for theirs; the subjects are entry ids."""
DATES_JOB: Final = "index.dates"
"""Resolve the relative dates of entries; the subjects are entry ids."""
DROP_JOB: Final = "index.drop_space"
"""Delete the vectors of a space; the subjects are its number as a UUID, and the entry to go on after, if any."""
BM25_K1: Final = 1.2
BM25_B: Final = 0.75


class EntryKind(StrEnum):
    """What an entry stands for."""

    TURN = "turn"
    SUMMARY = "summary"
    FACT = "fact"
    MEMORY = "memory"


class Mode(StrEnum):
    """How to search: by words, by meaning, or both."""

    HYBRID = "hybrid"
    TEXT = "text"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True)
class Document:
    """A text to be found: who said it and when are searched by words beside it, its bare text also by meaning."""

    text: str
    actor: str
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class Analysis:
    """A text as the index sees it: a tsvector literal, its length in lexemes, whether it ends in a question."""

    tsvector: str
    length: int
    asks: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """An analysed and embedded document.

    `vectors_due` says that its vectors are still to be made, `dates_due` that relative dates in it may be resolved.
    `space_id` is the embedding space that the vectors are of.
    """

    analysis: Analysis
    vectors: Sequence[FloatVector]
    vectors_due: bool
    dates_due: bool = False
    space_id: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry with its own copies of every filter. `metadata` is JSON text. After `expires_at` it is not found."""

    entry_id: UUID
    kind: EntryKind
    conversation_id: ConversationId | None
    project: str
    owner: str | None
    agent_id: str | None
    actor: str | None
    role: str | None
    position: int | None
    session: int | None
    occurred_at: datetime
    metadata: str
    prepared: Prepared
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """Which entries a search may find. None does not narrow; an empty sequence finds nothing.

    `agent_id` narrows memories, which alone belong to an agent.
    """

    kinds: Sequence[EntryKind]
    conversation_ids: Sequence[UUID] | None = None
    project: str | None = None
    owner: str | None = None
    agent_id: str | None = None
    actors: Sequence[str] | None = None
    roles: Sequence[str] | None = None
    occurred_after: datetime | None = None
    occurred_before: datetime | None = None
    metadata: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry that may be an answer. `cosine` is None where it has no vector, `bm25` 0 where no word matches.

    `asks`: its text ends in a question. `dates`: what relative dates in it mean, as JSON text.
    """

    entry_id: UUID
    kind: EntryKind
    conversation_id: UUID | None
    position: int | None
    session: int | None
    actor: str | None
    role: str | None
    occurred_at: datetime
    cosine: float | None
    bm25: float
    asks: bool
    dates: str | None = None


@dataclass(frozen=True, slots=True)
class DatedEntry:
    """An entry whose relative dates have been resolved: the dates as JSON text, and the lexemes that find them."""

    entry_id: UUID
    dates: str
    tsvector: str
    length: int


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy of an entry: whether it waits for vectors as the original does, and whether no dates came with it."""

    entry_id: UUID
    vectors_due: bool
    undated: bool


@dataclass(frozen=True, slots=True)
class Found:
    """The candidates of one search. `vectors_pending`: some entry in scope could compete by words only."""

    candidates: Sequence[Candidate]
    vectors_pending: bool = False
    lexemes: Sequence[str] = field(default_factory=tuple)


# embedding spaces, as operators see them


class SpaceState(StrEnum):
    """What becomes of an embedding space.

    `idle`: nobody makes vectors in it. `preparing`: it is being filled. `searched`: the one searched. `kept`: it was
    searched, and is kept up to date for a way back. `dropping`: its vectors are being deleted; then it is idle.
    """

    IDLE = "idle"
    PREPARING = "preparing"
    SEARCHED = "searched"
    KEPT = "kept"
    DROPPING = "dropping"


_Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class SpaceAdd(Strict):
    """The space to add; what is left out is that of the settings. One that no setting names is refused."""

    provider: _Name | None = None
    model: _Name | None = None
    dimensions: Annotated[StrictInt, Field(ge=1, le=16_000)] | None = None


class SpaceSwitch(Strict):
    """How to switch. `force`: even where turns have no vectors in the space yet; they are found by words meanwhile."""

    force: StrictBool = False


class EmbeddingSpace(BaseModel):
    """An embedding space with how far it is filled.

    `configured`: the process that answers can embed for it; `searched_here`: it searches it. `base_url` is where the
    endpoint was when the space was added. `previous`: the space that a roll-back leads to. Of `entries`, what can be
    recalled and is live, `covered` have vectors in it, `share` is the part; `exact` is false where these were told from
    a sample. `index_ready`: the vector index that wide tenants are searched by stands. `jobs_waiting` and `jobs_parked`
    are those that fill it, `jobs_error` is the code that one of them failed with, if any has.
    """

    id: int
    provider: str
    model: str
    dimensions: int
    base_url: str | None
    state: SpaceState
    configured: bool
    searched_here: bool
    previous: bool
    entries: int
    covered: int
    vectors: int
    share: float
    exact: bool
    index_ready: bool
    jobs_waiting: int
    jobs_parked: int
    jobs_error: str | None
    created_at: TimeOut


class EmbeddingSpaces(BaseModel):
    """All embedding spaces, the newest first. They are few, and come in one answer."""

    object: Literal["list"]
    data: list[EmbeddingSpace]
    has_more: Literal[False]
    next_cursor: None
