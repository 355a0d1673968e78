"""Requests and responses of recall."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Final, Literal, TypeAlias, cast
from uuid import UUID

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    field_validator,
)

from app.conversations.schemas.conversations import Name, Turn
from app.conversations.schemas.summaries import Summary
from app.core.errors import PublicValueError
from app.core.times import TimeIn, TimeOut
from app.core.validation.ids import ConversationIdIn
from app.core.validation.strict import Strict
from app.formats.schemas import CanonicalTurn, JsonObject, Role
from app.index.schemas import EntryKind, Mode, SearchScope
from app.memory.longterm.schemas import Memory, QueryText
from app.memory.schemas import Fact
from app.recall.passages import Passage

Threshold: TypeAlias = Annotated[StrictFloat, Field(ge=0, le=1)]
Weight: TypeAlias = Annotated[StrictFloat, Field(ge=0, le=5)]
WaitForVectorsMs: TypeAlias = Annotated[
    StrictInt, Field(ge=0, le=5000, description="Longest wait for vectors that are pending.")
]
RELEVANCE_FLOOR: Final = 0.11
"""Below this, a memory is not put into a context."""


class RecallFilters(Strict):
    """Filters for hits. A hit must match all given filters; times are exclusive."""

    model_config = ConfigDict(frozen=True)  # as a default value, it is not copied for each request

    actors: list[Name] | None = Field(default=None, max_length=200)
    roles: list[Role] | None = Field(default=None, max_length=4)
    occurred_after: TimeIn | None = None
    occurred_before: TimeIn | None = None
    metadata: JsonObject | None = None


class ConversationRecall(Strict):
    """A search within one conversation.

    `threshold` is the least cosine of a hit, `min_relevance` its least relevance. Where relevance is not known, the
    second filters nothing.

    `agent_id` selects whose memories are searched and filters nothing else. Memories belong to no conversation and no
    project.

    `content`: with `passage`, a turn of more than `TURNKEEP_PASSAGE_TOKENS` tokens comes without its content, calls and
    results, as a hit and as a neighbour; with `full`, all turns come whole.
    """

    query: QueryText
    k: Annotated[StrictInt, Field(ge=1, le=200)] = 10
    kinds: list[EntryKind] = Field(default=[EntryKind.TURN, EntryKind.SUMMARY], min_length=1, max_length=4)
    mode: Mode = Mode.HYBRID
    threshold: Threshold | None = None
    min_relevance: Threshold = 0.0
    agent_id: Name | None = None
    filters: RecallFilters = RecallFilters()
    neighbours: Annotated[StrictInt, Field(ge=0, le=5)] = 0
    explain: StrictBool = False
    content: Literal["passage", "full"] = "passage"
    wait_for_vectors_ms: WaitForVectorsMs = 0

    @field_validator("query")
    @classmethod
    def _not_blank(cls, query: str) -> str:
        if not query.strip():
            raise PublicValueError("a query has at least one character that is not a space")
        return query

    def search_scope(
        self, conversation_ids: Sequence[UUID] | None, project: str | None, owner: str | None
    ) -> SearchScope:
        """Return the scope of the search: what the caller reaches, and what the filters leave of it."""
        filters = self.filters
        return SearchScope(
            kinds=self.kinds,
            conversation_ids=conversation_ids,
            project=project,
            owner=owner,
            agent_id=self.agent_id,
            actors=filters.actors,
            roles=None if filters.roles is None else [role.value for role in filters.roles],
            occurred_after=filters.occurred_after,
            occurred_before=filters.occurred_before,
            metadata=None if filters.metadata is None else json.dumps(filters.metadata),
        )


class Recall(ConversationRecall):
    """A search across conversations: those named, or those of a project, of an owner, or of the whole tenant."""

    conversation_ids: list[ConversationIdIn] | None = Field(default=None, min_length=1, max_length=1000)
    project: Name | None = None
    owner: Name | None = None


class RankingConfiguration(Strict):
    """Weights of the ranking formula, for an evaluation. Omitted ones keep their defaults; the documentation has both.

    With any weight, `relevance` is null: it was measured for the defaults.
    """

    meaning: Weight | None = None
    words: Weight | None = None
    share: Weight | None = None
    overlap: Weight | None = None
    session: Weight | None = None
    neighbour: Weight | None = None
    answer: Weight | None = None
    speaker: Weight | None = None
    assistant: Weight | None = None
    asks: Weight | None = None
    instructs: Weight | None = None
    first_person: Weight | None = None
    quantity: Weight | None = None
    wanted: Weight | None = None
    per_piece: Weight | None = None
    half_words: Annotated[StrictFloat, Field(ge=0.1, le=1000)] | None = None

    def weights(self) -> dict[str, float]:
        """Return the weights that were set, by name."""
        return cast("dict[str, float]", self.model_dump(exclude_none=True))


class RecallEvaluation(Strict):
    """How to search for an evaluation, if not as all other searches do. Needs the scope `admin` or `operator`.

    `space` is the id of an embedding space for which this process can embed.
    """

    space: Annotated[StrictInt, Field(ge=1, le=2**31 - 1)] | None = None
    configuration: RankingConfiguration | None = None


class EvaluatedConversationRecall(ConversationRecall, RecallEvaluation):
    """A search within one conversation. Administrators may choose the embedding space and the weights."""


class EvaluatedRecall(Recall, RecallEvaluation):
    """A search across conversations. Administrators may choose the embedding space and the weights."""


class SpaceComparison(Strict):
    """Queries for a comparison of two embedding spaces, in one conversation or in the whole tenant."""

    queries: list[QueryText] = Field(min_length=1, max_length=50)
    k: Annotated[StrictInt, Field(ge=1, le=50)] = 10
    mode: Literal[Mode.HYBRID, Mode.VECTOR] = Mode.HYBRID
    conversation_id: ConversationIdIn | None = None

    @field_validator("queries")
    @classmethod
    def _none_blank(cls, queries: list[str]) -> list[str]:
        if not all(query.strip() for query in queries):
            raise PublicValueError("a query has at least one character that is not a space")
        return queries


class ScoreTerms(BaseModel):
    """The terms of a score: it is their sum, unless a reranker has moved the hit.

    The match of the text: `meaning` (cosine), `words` (BM25), `share` (the share of the query's words, rare ones count
    more), less their `overlap`. The matches around it: `session` (the best of the session), `neighbour` (the best
    within two turns), `answer` (the question that it answers). Properties: `speaker` (the query means this speaker),
    `assistant` (said by the assistant), `asks` (it restates the query without an answer), `instructs` (a standing
    instruction), `first_person`, `quantity` (a number or a time), `wanted` (the kind of word that the query asks for).
    """

    meaning: float
    words: float
    share: float
    overlap: float
    session: float
    neighbour: float
    answer: float
    speaker: float
    assistant: float
    asks: float
    instructs: float
    first_person: float
    quantity: float
    wanted: float


class Explanation(BaseModel):
    """Why a hit has its score. `words` are the query's lexemes, `configuration` the weights that the request gave.

    `reranked`: what the reranker says of the hit. Then `score` is that of its place, and `terms` are its own.
    """

    cosine: float | None
    bm25: float
    reranked: float | None
    terms: ScoreTerms
    words: list[str]
    configuration: dict[str, float]
    reason: str


class HitDate(BaseModel):
    """The first and last day, in UTC, that a relative date in `text` means, counted from the time of the turn.

    `start` and `end` delimit the phrase in code points from 0; `end` is exclusive.
    """

    start: int
    end: int
    first_day: date
    last_day: date


class PassageBounds(BaseModel):
    """Where a passage is in the plain text of its turn: from `start` to `end` (exclusive), of `length` code points."""

    start: int
    end: int
    length: int


class HitPassage(BaseModel):
    """A further passage of a hit's turn: from `start` to `end` (exclusive) in code points of its plain text."""

    start: int
    end: int
    text: str


class RecalledEntry(BaseModel):
    """Fields that all hits have.

    `count` entries in scope have this text, apart from case, white space and punctuation; they are one hit. `said_at`
    are the times of the newest 50 of them, the newest first.

    `score` orders the hits. `relevance` estimates from 0 to 1 how likely the hit answers the query; null in an
    embedding space for which this was not measured. `text` is the whole text, or the best passage of a long turn: then
    `passage` says where that is, and `passages` are further ones that match, the best first.
    """

    id: str
    conversation_id: str | None
    score: float
    relevance: float | None
    text: str
    passage: PassageBounds | None
    passages: list[HitPassage]
    count: int
    said_at: list[TimeOut]
    dates: list[HitDate]
    neighbours: list[Turn] | None
    explain: Explanation | None


class TurnHit(RecalledEntry):
    """A recalled turn. The `turn` of a long one has no content, calls and results, unless the request has `full`.

    If the hits before it fill the response, `turn` is null, `text` is empty, and `degraded` has `turns_too_large`: read
    the turn by its id. A job resolves `dates` a moment after the append.
    """

    kind: Literal[EntryKind.TURN]
    turn: Turn | None
    fact: None
    summary: None
    memory: None


class FactHit(RecalledEntry):
    """A recalled fact."""

    kind: Literal[EntryKind.FACT]
    turn: None
    fact: Fact
    summary: None
    memory: None


class SummaryHit(RecalledEntry):
    """A recalled summary."""

    kind: Literal[EntryKind.SUMMARY]
    turn: None
    fact: None
    summary: Summary
    memory: None


class MemoryHit(RecalledEntry):
    """A recalled memory."""

    kind: Literal[EntryKind.MEMORY]
    turn: None
    fact: None
    summary: None
    memory: Memory


Hit: TypeAlias = Annotated[TurnHit | FactHit | SummaryHit | MemoryHit, Field(discriminator="kind")]


class RecallEnd(BaseModel):
    """The last line of a response in lines, with the fields that concern all hits. A body without it is incomplete."""

    object: Literal["end"]
    count: int
    space: str | None
    degraded: list[str]


class RecallResult(BaseModel):
    """Hits, best first. `space` is the embedding space searched; `degraded` names the parts that are missing."""

    object: Literal["list"]
    data: list[Hit]
    space: str | None
    degraded: list[str]


class ComparedHit(BaseModel):
    """A hit of a comparison: its id without its content."""

    kind: EntryKind
    id: str
    score: float


class ComparedQuery(BaseModel):
    """The hits of one query in the two spaces, best first. `degraded` names the parts that were missing in either."""

    overlap: float
    rank_agreement: float
    searched: list[ComparedHit]
    compared: list[ComparedHit]
    degraded: list[str]


class SpaceComparisonResult(BaseModel):
    """Agreement of two embedding spaces: the one searched and the one compared, as `provider/model/dimensions`.

    `overlap` is the share of the first k hits that both have. `rank_agreement` also weighs their order, the first ranks
    most (average overlap). Both are means from 0 to 1. `queries` are in the order of the request.
    """

    searched: str | None
    compared: str | None
    k: int
    overlap: float
    rank_agreement: float
    queries: list[ComparedQuery]


@dataclass(frozen=True, slots=True)
class RecalledTurn:
    """A recalled turn for context assembly. `conversation` is the name of its conversation, if that is another one.

    `passages`: the best passages of a long turn for the query, the best first; empty for a short turn. `dates`: what
    its relative dates mean.
    """

    turn: CanonicalTurn
    score: float
    conversation: str | None = None
    passages: Sequence[Passage] = ()
    dates: Sequence[HitDate] = ()
