"""The search of a scope: in process memory if it fits, else among candidates that the database's indexes find.

In memory, all entries are compared, or candidates if they are very many. Each way gives the same result for the entries
that it compares, with the statistics of the whole scope.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from uuid import UUID

from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.index.analyser.query_words import PreparedQuery, QueryWords
from app.index.analyser.word_weights import WordWeights
from app.index.entry_ids import EntryIds, numbers_of_ids
from app.index.schemas import SearchResult, SearchScope
from app.index.search import ann_search, segment_store
from app.index.search.ann_maintenance import AnnMaintenance
from app.index.search.resident import ResidentIndex, read_segment, segment_scope
from app.index.search.segment import SegmentView
from app.index.search.segment_search import (
    CorpusCounts,
    EstimateMatch,
    MatchedWords,
    compare_candidates,
    compare_vectors,
    match_words,
    search_segment,
    select_rows,
)

RankingT = TypeVar("RankingT")

_IN_THREAD_ENTRIES: Final = 8_192
"""Comparing and ranking more entries than this would delay other requests."""
_READ_ENTRIES: Final = 2_048
"""More entries than this are not read for one search alone."""
_COMPARED: Final = 16_384
"""Entries of a segment in the compact form that are all compared."""
_MATCHES: Final = 50_000
"""Entries of a large scope that share a word with the query and are compared at once."""


@dataclass(slots=True)
class LoadedScope:
    """A scope whose entries are in memory, for the search of one query.

    `view`: the entries of its segment as they were at the time `now` (microseconds), with the vectors of a space.
    `matched`: how the entries in scope match the words of the query, after `match_words`.
    """

    scope: SearchScope
    segment: SearchScope
    view: SegmentView
    now: int
    space_id: int
    matched: MatchedWords | None = None


class Searcher:
    """Search of scopes of any size."""

    def __init__(self, resident: ResidentIndex) -> None:
        self._resident = resident
        self._weights = WordWeights()

    async def load(
        self, tx: Transaction, tenant_id: TenantId, ann: AnnMaintenance, scope: SearchScope
    ) -> LoadedScope | None:
        """Return the entries of a scope as they are now; None if they are searched by the database's indexes."""
        segment = segment_scope(scope)
        is_of_all = scope.project is not None and segment == SearchScope(segment.kinds)
        if is_of_all and ann.needs_ann(await ann.read_counts(tx, tenant_id)):
            segment = segment_scope(scope, by_project=True)
        loaded = await self._resident.load(tx, tenant_id, segment, ann.space, max_entries=ann.exact_entries)
        return None if loaded is None else LoadedScope(scope, segment, *loaded, ann.space.id)

    async def search(
        self,
        tx: Transaction,
        tenant_id: TenantId,
        ann: AnnMaintenance,
        scope: SearchScope,
        query: PreparedQuery,
        *,
        pool: int,
        rank: Callable[[SearchResult], RankingT],
        estimate: EstimateMatch,
        loaded: LoadedScope | None = None,
    ) -> RankingT:
        """Rank the entries in scope by how well they match. `pool`: candidates of each way, if indexes are used.

        `rank` is called once, for many entries in a thread. `estimate` chooses candidates in memory. `loaded`: the
        scope, if `load` has returned it already.
        """
        if loaded is None or loaded.space_id != ann.space.id:  # the searched space may have changed since then
            loaded = await self.load(tx, tenant_id, ann, scope)
        if loaded is None:
            return rank(await self._search_large(tx, tenant_id, ann, scope, query, pool=pool))
        allowed = None
        if scope.metadata is not None:
            allowed = await segment_store.list_in_scope(tx, tenant_id, loaded.segment, metadata=scope.metadata)

        def search_and_rank() -> RankingT:
            matched = loaded.matched or self._match_words(loaded, query, allowed)
            if loaded.view.signs is not None and len(matched.rows) > _COMPARED:
                return rank(compare_candidates(loaded.view, matched, query.vector, estimate))
            return rank(compare_vectors(loaded.view, matched, query.vector))

        return await _run(loaded, search_and_rank)

    async def match_words(self, loaded: LoadedScope, query: PreparedQuery) -> None:
        """Find the entries with the words of a query whose vector is not known yet, for the search that follows."""
        if loaded.scope.metadata is None:  # which entries have the metadata, only the database knows
            loaded.matched = await _run(loaded, lambda: self._match_words(loaded, query, None))

    def _match_words(self, loaded: LoadedScope, query: PreparedQuery, allowed: EntryIds | None) -> MatchedWords:
        rows = select_rows(loaded.view, loaded.scope, now=loaded.now, allowed=allowed)
        return match_words(loaded.view, rows, query, weigh=self._weights)

    async def _search_large(
        self,
        tx: Transaction,
        tenant_id: TenantId,
        ann: AnnMaintenance,
        scope: SearchScope,
        query: PreparedQuery,
        *,
        pool: int,
    ) -> SearchResult:
        """Search a scope that does not fit into memory, or of which filters may leave little."""
        max_read = min(ann.exact_entries, _READ_ENTRIES)
        max_entries = None if query.by_words else max_read + 1
        size = await ann_search.measure_scope(tx, tenant_id, scope, max_entries=max_entries)
        if size.entries <= max_read:
            entry_ids = await ann_search.list_scope(tx, tenant_id, scope, limit=max_read)
            segment = await read_segment(tx, tenant_id, numbers_of_ids(entry_ids), ann.space)
            return await asyncio.to_thread(self._search_all, segment.view, query, None)
        counts = await ann.read_counts(tx, tenant_id)
        words = query.words(size.languages)
        corpus = await ann_search.count_words(tx, scope, words.lexemes, size)
        best_by_words: dict[UUID, None] = {}
        for by_share in (False, True):
            best = await ann_search.find_best_by_words(
                tx, scope, words.lexemes, corpus, pool=pool, matches=_MATCHES, by_share=by_share
            )
            best_by_words |= dict.fromkeys(best)
        ann_query = ann_search.AnnQuery(
            query.vector, list(best_by_words), pool, by_index=counts.can_use_index, uncovered=counts.uncovered
        )
        candidates = await ann_search.find_candidates(tx, tenant_id, scope, ann_query, space=ann.space)
        if query.vector is not None and ann_query.by_index and candidates.nearest < pool:
            # filters left too few of those that the index returned
            ann_query = replace(ann_query, by_index=False)
            candidates = await ann_search.find_candidates(tx, tenant_id, scope, ann_query, space=ann.space)
        segment = await read_segment(tx, tenant_id, numbers_of_ids(candidates.entry_ids), ann.space)
        statistics = CorpusCounts(corpus.entries, corpus.mean_length, _frequencies(words, corpus.frequencies), words)
        result = await asyncio.to_thread(self._search_all, segment.view, query, statistics)
        return replace(result, vectors_pending=candidates.waiting)

    def _search_all(self, view: SegmentView, query: PreparedQuery, corpus: CorpusCounts | None) -> SearchResult:
        return search_segment(view, view.live.nonzero()[0], query, weigh=self._weights, corpus=corpus)


async def _run(loaded: LoadedScope, work: Callable[[], RankingT]) -> RankingT:
    """Do a part of a search; in a thread if the scope is large."""
    return work() if len(loaded.view) <= _IN_THREAD_ENTRIES else await asyncio.to_thread(work)


def _frequencies(words: QueryWords, of_lexemes: Sequence[int]) -> list[int]:
    """Return how many entries have each word: the sum over its lexemes, since an entry is in one language."""
    counts = iter(of_lexemes)
    return [sum(next(counts) for _ in group) for group in words.groups]
