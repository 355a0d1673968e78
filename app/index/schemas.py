"""Entries, queries and results of the search index, and embedding spaces."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, StrictBool, StrictInt, StringConstraints

from app.core.database.transactions import FloatVector
from app.core.ids import ConversationId
from app.core.times import TimeOut
from app.core.validation.strict import Strict

VECTORS_JOB: Final = "index.vectors"
"""Job that makes the missing vectors of turns; the subjects are turn ids."""
DATES_JOB: Final = "index.dates"
"""Job that resolves the relative dates of turns; the subjects are turn ids."""
DROP_JOB: Final = "index.drop_space"
"""Job that deletes the vectors of a space.

Its subjects: the space id as a UUID, and the entry to continue after, if any.
"""
BM25_K1: Final = 1.2
BM25_B: Final = 0.75
HEADING_WORDS: Final = 3
"""Words of an entry that are not of its text: its date."""


class EntryKind(StrEnum):
    """The kind of object that an entry represents."""

    TURN = "turn"
    SUMMARY = "summary"
    FACT = "fact"
    MEMORY = "memory"


class Mode(StrEnum):
    """The way to search: by words, by vectors, or both."""

    HYBRID = "hybrid"
    TEXT = "text"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True)
class IndexDocument:
    """A text to index. Actor and time are searched by words with it; only the text itself is embedded.

    `language` is that of the text, None if the text is to show it.
    """

    text: str
    actor: str
    occurred_at: datetime
    language: str | None = None


@dataclass(frozen=True, slots=True)
class TextAnalysis:
    """An analysed text: a tsvector literal, its length in lexemes, its cues (bits of `Cue`) and its packed terms.

    `language` is the one it was analysed in. `text_hash`: that of `hash_text`. `is_detected`: the text shows it;
    otherwise it is assumed.
    """

    tsvector: str
    length: int
    cues: int
    terms: bytes
    language: str
    text_hash: int
    is_detected: bool


@dataclass(frozen=True, slots=True)
class PreparedEntries:
    """An analysed and embedded document.

    `vectors_due`: its vectors are made later. `deferred`: the caller asked for that, so they are made after vectors
    that are due for other reasons. `dates_due`: its text may have relative dates to resolve. `space_id` is the
    embedding space of the vectors. `source` is kept of a short text that shows no language: see `inherit_languages`.
    """

    analysis: TextAnalysis
    vectors: Sequence[FloatVector]
    vectors_due: bool
    deferred: bool = False
    dates_due: bool = False
    space_id: int = 0
    source: IndexDocument | None = None


class IndexPosition(NamedTuple):
    """The position of an entry among the live turns of its conversation, and its session."""

    position: int
    session: int


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One entry with its own copies of every filter. `metadata` is JSON text. After `expires_at` it is not found.

    `source_id` is the id of the turn, summary, fact or memory: ids of several kinds may be equal.
    """

    source_id: UUID
    kind: EntryKind
    occurred_at: datetime
    prepared: PreparedEntries
    conversation_id: ConversationId | None = None
    project: str = ""
    owner: str | None = None
    agent_id: str | None = None
    actor: str | None = None
    role: str | None = None
    position: int | None = None
    session: int | None = None
    metadata: str = "{}"
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SearchScope:
    """The entries that a search may find. None does not filter; an empty sequence finds nothing.

    `agent_id` filters memories only, since only they belong to an agent. The scope of a segment in memory has one
    filter at most, and tuples, so that it is a key.
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
class SearchHit:
    """A found entry. `cosine` is None without a vector, `bm25` is 0 if no word matches.

    `source_id` is the id of the object of this kind. `dates`: the resolved relative dates, as JSON text. A ranking sets
    the rest: `count` entries in scope have equal texts, in `conversation_ids`, and `said_at` are the newest of their
    times; `relevance` is None in an embedding space that is not calibrated; `terms` are the parts of the score, empty
    if they were not asked for.
    `reranked` is what a reranker says of the hit, None if it was not asked.
    """

    source_id: UUID
    kind: EntryKind
    conversation_id: UUID | None
    cosine: float | None
    bm25: float
    dates: str | None = None
    count: int = 1
    said_at: Sequence[datetime] = ()
    conversation_ids: Collection[UUID] = ()
    score: float = 0.0
    relevance: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict[str, float])
    reranked: float | None = None


@dataclass(frozen=True, slots=True)
class DatedEntry:
    """Resolved relative dates of a turn: the dates as JSON text, and the lexemes that find them."""

    source_id: UUID
    dates: str
    tsvector: str
    length: int


@dataclass(frozen=True, slots=True)
class UndatedEntry:
    """An entry of a turn without dates, and the dates to add.

    `lexemes`: its words with those of the dates, a tsvector as text. `terms`: the same, packed.
    """

    entry_id: UUID
    dated: DatedEntry
    lexemes: str
    terms: bytes = b""


@dataclass(frozen=True, slots=True)
class CopiedEntry:
    """A copied entry: whether it waits for vectors like the original, whether it has no dates yet, and its language."""

    entry_id: UUID
    vectors_due: bool
    undated: bool
    language: str


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """An entry that is found again: whether it waits for vectors, and whether its dates may not be resolved yet."""

    entry_id: UUID
    source_id: UUID
    is_turn: bool
    vectors_due: bool
    undated: bool


@dataclass(slots=True)
class PlaceOrder:
    """The order of entries by conversation and position: `rows` are indexes into their arrays.

    `derived`: arrays that a ranking has computed from these entries alone, for the next search of the same ones. An
    order is replaced when entries are added. `places`: the inverse, computed when it is first needed.
    """

    rows: NDArray[np.int64]
    derived: Sequence[NDArray[np.bool_]] = ()
    places: NDArray[np.int64] | None = None

    def places_of(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the places of some entries in the order."""
        if self.places is None:
            places = np.empty(len(self.rows), dtype=np.int64)
            places[self.rows] = np.arange(len(self.rows))
            self.places = places
        return self.places[rows]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays."""
        places = 0 if self.places is None else self.places.nbytes
        return self.rows.nbytes + places + sum(array.nbytes for array in self.derived)


@dataclass(frozen=True, slots=True)
class ScopeCounts:
    """Counts of all entries in scope, for a result that has candidates only.

    `session_turns`: one element per candidate, how many entries its session has. `of_actor` and `of_role` return the
    number of entries by an actor, or with a role.
    """

    session_turns: NDArray[np.int64]
    of_actor: Callable[[str], int]
    of_role: Callable[[str], int]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """How well the entries in scope match a query: arrays of one element per entry.

    `cosine` is that of the best of an entry's `pieces`, NaN without a vector. `word_share` is the share of the query's
    word weights that an entry has, `echo` the share of the entry's words that the query has. `group` (conversation and
    session), `conversation`, `actor` and `role` are codes, -1 for none; `kind` is the place of the kind in `EntryKind`.
    `position` is -1 for none, `text_hash` 0 for none, `occurred_at` in microseconds since 2000. `by_place` is the order
    by conversation and position. `size` is the number of entries in scope: more than the arrays have if these are
    candidates; then `counts` are those of the whole scope, None if the arrays have all. `vectors_pending`: an entry in
    scope can be found by words only. `language` is the one in which the query was read.
    """

    cosine: NDArray[np.float32]
    pieces: NDArray[np.int32]
    bm25: NDArray[np.float32]
    word_share: NDArray[np.float32]
    echo: NDArray[np.float32]
    group: NDArray[np.int32]
    conversation: NDArray[np.int32]
    position: NDArray[np.int64]
    actor: NDArray[np.int32]
    role: NDArray[np.int32]
    kind: NDArray[np.uint8]
    cues: NDArray[np.uint8]
    text_hash: NDArray[np.int64]
    occurred_at: NDArray[np.int64]
    by_place: PlaceOrder
    size: int
    actor_code: Callable[[str], int | None]
    role_code: Callable[[str], int | None]
    entries: Callable[[Sequence[int]], list[SearchHit]]
    """Returns the entries of some elements."""
    dates: Callable[[Sequence[int]], list[str | None]]
    """Returns the resolved relative dates of some elements, as JSON text."""
    source_ids: Callable[[Sequence[int]], list[UUID]]
    """Returns the ids of the objects of some elements, in less time."""
    find: Callable[[EntryKind, Sequence[UUID]], Mapping[UUID, int]]
    """Returns the elements of some objects of a kind; those that are not in scope are left out."""
    vectors_pending: bool
    lexemes: Sequence[str]
    language: str
    counts: ScopeCounts | None = None


# embedding spaces, as operators see them


class SpaceState(StrEnum):
    """The state of an embedding space.

    `idle`: no vectors are made in it. `preparing`: it is being filled. `searched`: it is the searched one. `kept`: it
    was searched, and is kept up to date for a roll-back. `dropping`: its vectors are being deleted; then it is idle.
    """

    IDLE = "idle"
    PREPARING = "preparing"
    SEARCHED = "searched"
    KEPT = "kept"
    DROPPING = "dropping"


_Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class SpaceAdd(Strict):
    """The space to add; members left out are taken from the settings.

    A space that the settings do not name is refused.
    """

    provider: _Name | None = None
    model: _Name | None = None
    dimensions: Annotated[StrictInt, Field(ge=1, le=16_000)] | None = None


class SpaceSwitch(Strict):
    """Options of a switch. `force`: switch even if turns lack vectors; until then they are found by words."""

    force: StrictBool = False


class EmbeddingSpace(BaseModel):
    """An embedding space and how far it is filled.

    `configured`: this process can embed for it; `searched_here`: this process searches it. `base_url` is the address of
    the endpoint when the space was added. `previous`: a roll-back leads to this space. Of `entries` (live and
    recallable), `covered` have vectors in it and `share` is the ratio; `exact` is false if these are estimates from a
    sample. `index_ready`: the vector index for large tenants exists. `jobs_waiting` and `jobs_parked` count the jobs
    that fill the space; `jobs_error` is the error code of a failed one, if any.
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
    """All embedding spaces, the newest first. They are few, so there is one page."""

    object: Literal["list"]
    data: list[EmbeddingSpace]
    has_more: Literal[False]
    next_cursor: None
