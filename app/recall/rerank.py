"""The step of a search that asks a reranker, if there is one, about the best hits.

A reranker changes places and no numbers: of the hits that it compared, the best one gets the first of their places,
with the score and the relevance of that place. So scores keep the scale of the ranking, hits that were not compared
stay where they are, and a floor of relevance means the same with a reranker and without.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from app.core.errors import Unavailable
from app.index.schemas import SearchHit
from app.providers.service import Reranker
from app.recall.hits import HitContents
from app.tenancy.schemas import Caller

MAX_RERANKED: Final = 50
"""Hits that are sent: beyond them, hardly any answers, and endpoints charge for each text."""


class HitReranker:
    """Orders the best hits by a reranker; without one, leaves them as they are."""

    def __init__(self, reranker: Reranker | None) -> None:
        self._reranker = reranker

    @property
    def is_on(self) -> bool:
        """Return whether there is a reranker."""
        return self._reranker is not None

    def pool(self, k: int) -> int:
        """Return how many hits to read for the best `k`."""
        return max(k, MAX_RERANKED) if self.is_on else k

    async def rerank(
        self, caller: Caller, query: str, hits: Sequence[SearchHit], texts: Sequence[str]
    ) -> tuple[list[SearchHit], list[str]]:
        """Return the hits in their new order, and what was degraded. In no transaction: the texts are sent.

        `texts` are those of the hits; a hit without text keeps its place.
        """
        places = [place for place, text in enumerate(texts) if text.strip()][:MAX_RERANKED]
        if self._reranker is None or len(places) < 2:  # noqa: PLR2004 - one hit has no order
            return list(hits), []
        try:
            scores = await self._reranker.scores(caller.tenant_id, query, [texts[place] for place in places])
        except Unavailable:
            return list(hits), ["reranker_failed"]
        return reorder(hits, dict(zip(places, scores, strict=True))), []


async def read_existing(
    hits: Sequence[SearchHit], *, k: int, read: Callable[[Sequence[SearchHit]], Awaitable[HitContents]]
) -> tuple[Sequence[SearchHit], HitContents]:
    """Return the first `k` hits that still exist, with their content: some may be deleted while a reranker works."""
    while True:
        contents = await read(hits[:k])
        deleted = [hit for hit in hits[:k] if not contents.has(hit)]
        if not deleted:
            return hits[:k], contents
        hits = [hit for hit in hits if hit not in deleted]


def reorder(hits: Sequence[SearchHit], scores: Mapping[int, float]) -> list[SearchHit]:
    """Distribute the compared hits over their places, the best score first. `scores` is by place in `hits`."""
    places = sorted(scores)
    reordered = list(hits)
    # the sort is stable: of equal scores, the better place wins
    for place, best in zip(places, sorted(places, key=lambda at: -scores[at]), strict=True):
        reordered[place] = replace(
            hits[best], score=hits[place].score, relevance=hits[place].relevance, reranked=scores[best]
        )
    return reordered
