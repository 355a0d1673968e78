"""Queries of recall: prepared, with their participants, for one ranking or several. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.conversations.schemas.participants import Participant
from app.index.service import PreparedQuery
from app.recall.ranking import Ranking
from app.recall.schemas import ConversationRecall


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a conversation, analysed and embedded once for all searches."""

    text: str
    participants: Sequence[Participant]
    query: PreparedQuery


@dataclass(frozen=True, slots=True)
class RankingQuery:
    """A query for a ranking, the number of hits, their least cosine and relevance, and whether to explain them.

    `configuration`: weights in place of the defaults.
    """

    text: str
    prepared: PreparedQuery
    participants: Sequence[Participant]
    k: int
    threshold: float | None = None
    min_relevance: float = 0.0
    explain: bool = False
    configuration: Mapping[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def of_request(
        cls,
        request: ConversationRecall,
        prepared: PreparedQuery,
        participants: Sequence[Participant],
        configuration: Mapping[str, float],
    ) -> "RankingQuery":
        """Return the query of a request."""
        return cls(
            request.query, prepared, participants, request.k, request.threshold, request.min_relevance, request.explain,
            configuration,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ranked:
    """The ranking of a query, and the parts of the search that were degraded."""

    ranking: Ranking
    degraded: Sequence[str]
