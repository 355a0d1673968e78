"""Search in a segment: which entries are in scope, and how well each matches the words and the vector. Pure.

BM25 and the weights of words are computed from the entries in scope. The vector is compared with every entry in scope,
or, if these are very many, with candidates.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import isnan
from typing import Final, TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from app.core.database.transactions import FloatVector
from app.index.analyser.languages import CODES
from app.index.analyser.query_words import PreparedQuery, QueryWords, WordGroup, misspellings
from app.index.analyser.terms import hash_term
from app.index.analyser.word_weights import WordWeights
from app.index.entry_ids import EntryIds, ids_of_numbers, numbers_of_ids, rows_with
from app.index.schemas import (
    BM25_B,
    BM25_K1,
    HEADING_WORDS,
    EntryKind,
    PlaceOrder,
    ScopeCounts,
    SearchHit,
    SearchResult,
    SearchScope,
)
from app.index.search.dictionaries import NONE, Codes, Rows
from app.index.search.piece_vectors import blocks_of, cosines, expected_cosines
from app.index.search.segment import Flags, Floats, SegmentView, microseconds, piece_rows

KINDS: Final = (EntryKind.TURN, EntryKind.SUMMARY, EntryKind.FACT, EntryKind.MEMORY)
"""The kinds of entries in the order of their codes in a segment."""

_MAX_COUNT: Final = 255
_Match: TypeAlias = tuple[Rows, NDArray[np.uint8]]
"""The rows that have a word, and how often."""
_MISSPELT: Final = 0.7
"""A word that differs by a typing error from that of the query counts as much less."""
EstimateMatch: TypeAlias = Callable[[Floats, Rows, Floats, Floats], Floats]
"""Returns the match of entries as a ranking sees it, from their cosines, numbers of pieces, BM25 and word shares."""
_Selection: TypeAlias = slice | NDArray[np.intp]
"""The index of the rows in scope: a slice if these are all, which copies nothing."""

_GATHER_SHARE: Final = 4
"""The vectors of fewer than a quarter of the entries are copied before they are compared."""
_HALVED_ROWS: Final = 16_384
"""At least this many vectors are compared in two threads: one thread is limited by the speed of the memory."""
_POOL: Final = 8_192
"""Entries that may match best by the signs of their vectors; the vectors of these are compared."""
_BEST: Final = 4_096
"""Of these, the entries that match best: candidates, with all entries around them. A thousand are enough for real
texts, but not if thousands of a million match a question equally well."""
_AROUND: Final = 2
"""Places on both sides of an entry whose match counts for it."""


@dataclass(frozen=True, slots=True)
class CorpusCounts:
    """Statistics of a scope that is searched by indexes: its size, its mean length, and how frequent each word is.

    `words` are those of the query for the languages of the whole scope.
    """

    entries: int
    mean_length: float
    frequencies: Sequence[int]
    words: QueryWords


@dataclass(frozen=True, slots=True)
class MatchedWords:
    """How well the rows in scope match the words of a query. `entries` is the size of the scope that words count in."""

    rows: NDArray[np.intp]
    selection: _Selection
    words: QueryWords
    bm25: Floats
    share: Floats
    echo: Floats
    entries: int

    def take(self, at: NDArray[np.intp]) -> "MatchedWords":
        """Return the same of some of the rows, given by their places."""
        rows = self.rows[at]
        return MatchedWords(rows, rows, self.words, self.bm25[at], self.share[at], self.echo[at], self.entries)


def select_rows(
    view: SegmentView, scope: SearchScope, *, now: int, allowed: EntryIds | None = None
) -> NDArray[np.intp]:
    """Return the rows in scope at the time `now` (microseconds); `allowed`: choose among these only."""
    columns, texts = view.columns, view.texts
    chosen = view.live & (columns.expires_at > now)
    if set(scope.kinds) != set(KINDS):
        chosen &= np.array([kind in scope.kinds for kind in KINDS])[columns.kind]
    filters = (
        (texts.conversation, columns.conversation, scope.conversation_ids),
        (texts.owner, columns.owner, None if scope.owner is None else [scope.owner]),
        (texts.actor, columns.actor, scope.actors),
        (texts.role, columns.role, scope.roles),
    )
    for codes, column, values in filters:
        if values is not None:
            chosen &= _any_of(codes, column, values)
    if scope.project is not None:
        # a fact without a project belongs to all projects, or to several that only its owner knows
        everywhere = (columns.kind == KINDS.index(EntryKind.FACT)) & _any_of(texts.project, columns.project, [""])
        chosen &= everywhere | _any_of(texts.project, columns.project, [scope.project])
    if scope.agent_id is not None:
        is_memory = columns.kind == KINDS.index(EntryKind.MEMORY)
        chosen &= ~is_memory | _any_of(texts.agent, columns.agent, [scope.agent_id])
    if scope.occurred_after is not None:
        chosen &= columns.occurred_at > microseconds(scope.occurred_after)
    if scope.occurred_before is not None:
        chosen &= columns.occurred_at < microseconds(scope.occurred_before)
    if allowed is not None:
        chosen &= view.contains(allowed)
    return np.flatnonzero(chosen)


def _any_of(codes: Codes, column: Rows, values: Sequence[object]) -> Flags:
    known_codes = [code for value in values if (code := codes.get(value)) is not None]
    if len(known_codes) == 1:
        return column == known_codes[0]
    return np.isin(column, known_codes)


def search_segment(
    view: SegmentView,
    rows: NDArray[np.intp],
    query: PreparedQuery,
    *,
    weigh: WordWeights,
    corpus: CorpusCounts | None = None,
) -> SearchResult:
    """Return the match of all rows in scope. `corpus`: the statistics of a larger scope, to which the rows belong."""
    return compare_vectors(view, match_words(view, rows, query, weigh=weigh, corpus=corpus), query.vector)


def match_words(
    view: SegmentView,
    rows: NDArray[np.intp],
    query: PreparedQuery,
    *,
    weigh: WordWeights,
    corpus: CorpusCounts | None = None,
) -> MatchedWords:
    """Return how well all rows in scope match the words of a query: the part of a search that needs no vector."""
    selection: _Selection = slice(None) if len(rows) == len(view) else rows
    words = query.words(languages_in(view.columns.language[selection])) if corpus is None else corpus.words
    bm25, share, echo = _match_words(view, rows, selection, words, weigh, corpus)
    return MatchedWords(rows, selection, words, bm25, share, echo, len(rows) if corpus is None else corpus.entries)


def compare_vectors(view: SegmentView, matched: MatchedWords, vector: FloatVector | None) -> SearchResult:
    """Return the match of all rows in scope, with their words, and with the vector of the query."""
    columns, rows, selection, words = view.columns, matched.rows, matched.selection, matched.words
    bm25 = matched.bm25
    cosine = np.full(len(rows), np.nan, dtype=np.float32) if vector is None else _cosines(view, rows, selection, vector)
    pieces = columns.pieces[selection]
    group = columns.group[selection]
    return SearchResult(
        cosine=cosine,
        pieces=pieces,
        bm25=bm25,
        word_share=matched.share,
        echo=matched.echo,
        group=group,
        conversation=columns.conversation[selection],
        position=columns.position[selection],
        actor=columns.actor[selection],
        role=columns.role[selection],
        kind=columns.kind[selection],
        cues=columns.cues[selection],
        text_hash=columns.text_hash[selection],
        occurred_at=columns.occurred_at[selection],
        by_place=view.by_place if isinstance(selection, slice) else _places_of(view, rows),
        size=matched.entries,
        actor_code=view.texts.actor.get,
        role_code=view.texts.role.get,
        entries=lambda at: _entries(view, rows[at], cosine[at], bm25[at]),
        source_ids=lambda at: _source_ids(view, rows[at]),
        dates=lambda at: _dates(view, rows[at]),
        find=lambda kind, source_ids: _find(view, selection, kind, source_ids),
        vectors_pending=bool((pieces == 0).any()),
        lexemes=words.lexemes,
        language=words.language,
    )


def compare_candidates(
    view: SegmentView, matched: MatchedWords, vector: FloatVector | None, estimate: EstimateMatch
) -> SearchResult:
    """Return the match of the entries in scope that can be among the best, and of those around them.

    The words of all entries in scope have been compared. Their vectors are compared by the signs, then the vectors of
    the best. An entry that is no candidate matches less than any of them, and so does each of its neighbours.
    """
    candidates = matched.take(_find_candidates(view, matched, vector, estimate))
    return replace(
        compare_vectors(view, candidates, vector),
        vectors_pending=bool((view.columns.pieces[matched.selection] == 0).any()),
        counts=_count_scope(view, matched.selection, candidates.rows),
    )


def _count_scope(view: SegmentView, selection: _Selection, candidates: NDArray[np.intp]) -> ScopeCounts:
    columns, texts = view.columns, view.texts

    def count(codes: Codes, column: Rows, value: str) -> int:
        code = codes.get(value)
        return 0 if code is None else int(np.count_nonzero(column[selection] == code))

    turns = np.bincount(columns.group[selection] - NONE)
    return ScopeCounts(
        session_turns=turns[columns.group[candidates] - NONE],
        of_actor=lambda actor: count(texts.actor, columns.actor, actor),
        of_role=lambda role: count(texts.role, columns.role, role),
    )


def _find_candidates(
    view: SegmentView, matched: MatchedWords, vector: FloatVector | None, estimate: EstimateMatch
) -> NDArray[np.intp]:
    """Return the places of candidates among the rows in scope, in order."""
    rows, selection = matched.rows, matched.selection
    cosine, pieces = _expected_cosines(view, selection, vector), view.columns.pieces[selection]
    match = np.empty(len(rows), dtype=np.float32)
    for block in blocks_of(len(rows)):
        match[block] = estimate(cosine[block], pieces[block], matched.bm25[block], matched.share[block])
    pool = _largest(match, _POOL)
    if vector is not None:
        cosine = _cosines(view, rows[pool], rows[pool], vector)
        match[pool] = estimate(cosine, pieces[pool], matched.bm25[pool], matched.share[pool])
    best = rows[pool[_largest(match[pool], _BEST)]]
    order, place = view.by_place.rows, view.by_place.places_of(best)
    if not isinstance(selection, slice):
        # rows that are not in scope, as are those of replaced entries, may be between an entry and its neighbours
        in_scope = _flags(view, rows)[order]
        order, place = order[in_scope], np.cumsum(in_scope)[place] - 1
    around = np.zeros(len(view), dtype=np.bool_)
    for step in range(-_AROUND, _AROUND + 1):
        around[order[np.clip(place + step, 0, len(order) - 1)]] = True
    return np.flatnonzero(around[selection])


def _flags(view: SegmentView, rows: NDArray[np.intp]) -> Flags:
    """Return for each row of a segment whether it is one of these."""
    flags = np.zeros(len(view), dtype=np.bool_)
    flags[rows] = True
    return flags


def _expected_cosines(view: SegmentView, selection: _Selection, vector: FloatVector | None) -> Floats:
    """Return the cosine of the best piece of each row that the signs let expect, NaN for rows without vectors."""
    first, counts = view.columns.first_piece[selection], view.columns.pieces[selection]
    cosine = np.full(len(first), np.nan, dtype=np.float32)
    if vector is None or view.signs is None:
        return cosine
    of_pieces, has_any = expected_cosines(view.signs, vector), counts > 0
    if has_any.all():
        return _best_of_pieces(of_pieces, first, counts)
    cosine[has_any] = _best_of_pieces(of_pieces, first[has_any], counts[has_any])
    return cosine


def _largest(values: Floats, count: int) -> NDArray[np.intp]:
    """Return the places of the largest values: `count`, and those that are equal to the last of them."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.flatnonzero(values >= np.partition(values, len(values) - count)[len(values) - count])


def languages_in(places: NDArray[np.uint8]) -> list[str]:
    """Return the languages of entries, the most frequent first."""
    if len(places) and (places == places[0]).all():  # counting takes several times as long
        return [CODES[places[0]]]
    counts = np.bincount(places, minlength=1)
    return [CODES[place] for place in np.argsort(-counts, kind="stable").tolist() if counts[place]]


def _find(view: SegmentView, selection: _Selection, kind: EntryKind, source_ids: Sequence[UUID]) -> dict[UUID, int]:
    """Return the rows, among the selected ones, of the entries that some objects of a kind have."""
    entry_ids, kinds = view.columns.entry_id[selection], view.columns.kind[selection]
    wanted = set(source_ids)
    keys = [key for key, source_id in view.sources.items() if source_id in wanted]
    rekeyed = ids_of_numbers(np.array(keys, np.uint64).reshape(-1, 2))
    at = np.flatnonzero(rows_with(entry_ids, numbers_of_ids([*source_ids, *rekeyed])) & (kinds == KINDS.index(kind)))
    elements = zip(_sources_of(view, entry_ids[at]), at.tolist(), strict=True)
    return {source_id: place for source_id, place in elements if source_id in wanted}


def _source_ids(view: SegmentView, rows: NDArray[np.intp]) -> list[UUID]:
    return _sources_of(view, view.columns.entry_id[rows])


def _sources_of(view: SegmentView, entry_ids: EntryIds) -> list[UUID]:
    """Return the ids of the objects of entries."""
    keys = ids_of_numbers(entry_ids)
    if not view.sources:
        return keys
    return [view.sources.get((high, low), key) for (high, low), key in zip(entry_ids.tolist(), keys, strict=True)]


def _places_of(view: SegmentView, rows: NDArray[np.intp]) -> PlaceOrder:
    """Return the order by place of some rows, as indexes into them."""
    if len(rows) * _GATHER_SHARE < len(view):
        return PlaceOrder(np.argsort(view.by_place.places_of(rows), kind="stable"))
    at = np.full(len(view), NONE, dtype=np.int64)
    at[rows] = np.arange(len(rows))
    order = at[view.by_place.rows]
    return PlaceOrder(order[order != NONE])


def _match_words(
    view: SegmentView,
    rows: NDArray[np.intp],
    selection: _Selection,
    words: QueryWords,
    weigh: WordWeights,
    corpus: CorpusCounts | None,
) -> tuple[Floats, Floats, Floats]:
    """Return the BM25 of each row, the share of the query's word weights that it has, and how much of it is echo."""
    bm25, share, echo = (np.zeros(len(view), dtype=np.float32) for _ in range(3))
    if not words.groups or not len(rows):
        return bm25[selection], share[selection], echo[selection]
    in_scope = _flags(view, rows) if len(rows) < len(view) else None
    matches: list[_Match] = []
    certainty = np.ones(len(words.groups), dtype=np.float32)
    for place, group in enumerate(words.groups):
        match = _within(in_scope, _find_group(view, group))
        if not len(match[0]) and corpus is None:
            match = _within(in_scope, _find_misspelt(view, group))
            certainty[place] = _MISSPELT
        matches.append(match)
    if corpus is None:
        mean_length = max(float(view.columns.length[selection].mean()), 1.0)
        corpus = CorpusCounts(len(rows), mean_length, [len(at) for at, _ in matches], words)
    weights = weigh.weights(words, corpus.frequencies, entries=corpus.entries)
    for full_weight, sure, (places, counts) in zip(weights, certainty.tolist(), matches, strict=True):
        weight = sure * full_weight
        at, times = places.astype(np.intp), counts.astype(np.float32)  # once, not at each use
        length = view.columns.length[at].astype(np.float32)
        norm = BM25_K1 * (1 - BM25_B + BM25_B / corpus.mean_length * length)
        # a row has a term once, so no sum is lost
        bm25[at] += weight * (BM25_K1 + 1) * times / (times + norm)
        share[at] += np.float32(weight)
        echo[at] += times
    own_words = np.maximum(view.columns.length - np.int32(HEADING_WORDS), 1)
    echo = np.minimum(echo / own_words.astype(np.float32), np.float32(1))
    return bm25[selection], share[selection] / np.float32(sum(weights) or 1.0), echo[selection]


def _within(in_scope: Flags | None, match: _Match) -> _Match:
    """Return the matches of rows in scope; None: all rows are."""
    if in_scope is None or not len(match[0]):
        return match
    is_kept = in_scope[match[0]]
    return match[0][is_kept], match[1][is_kept]


def _find_group(view: SegmentView, group: WordGroup) -> _Match:
    """Return the rows that have any lexeme of a word, and how often: each row once."""
    return _joined([view.find_term(hash_term(lexeme)) for lexeme in group])


def _find_misspelt(view: SegmentView, group: WordGroup) -> _Match:
    """Return the rows that have a word from which that of a query, which no row has, differs by a typing error."""
    hashes = [hash_term(other) for lexeme in group for other in misspellings(lexeme)]
    stored = view.stored_terms(np.array(hashes, dtype=np.uint64)).tolist()
    return _joined([view.find_term(term) for term in stored or [0]])


def _joined(matches: Sequence[_Match]) -> _Match:
    """Return the rows of all matches, each row once."""
    if len(matches) == 1:
        return matches[0]
    at, counts = (np.concatenate(parts) for parts in zip(*matches, strict=True))
    rows, place = np.unique(at, return_inverse=True)
    total = np.bincount(place, weights=counts, minlength=len(rows))
    return rows, np.minimum(total, _MAX_COUNT).astype(np.uint8)


def _cosines(view: SegmentView, rows: NDArray[np.intp], selection: _Selection, vector: FloatVector) -> Floats:
    """Return the cosine of the best piece of each row, NaN for rows without vectors."""
    first, counts = view.columns.first_piece[selection], view.columns.pieces[selection]
    has_any = counts > 0
    if has_any.all():
        return _best_pieces(view, first, counts, vector)
    best = np.full(len(rows), np.nan, dtype=np.float32)
    if has_any.any():
        best[has_any] = _best_pieces(view, first[has_any], counts[has_any], vector)
    return best


def _best_pieces(view: SegmentView, first: Rows, counts: Rows, vector: FloatVector) -> Floats:
    """Return the cosine of the best of the pieces of each row. Each row has some: from `first` on, `counts`."""
    # one product for each vector: for many vectors, a product of matrix and vector takes more than twice the time
    if len(first) * _GATHER_SHARE < len(view) or view.signs is not None:
        scores = cosines(view.vectors, piece_rows(first, counts), vector)
        return np.maximum.reduceat(scores, np.cumsum(counts) - counts)
    return _best_of_pieces(_products(view.vectors.astype(np.float32, copy=False), vector), first, counts)


def _best_of_pieces(scores: Floats, first: Rows, counts: Rows) -> Floats:
    """Return the best score of the pieces of each row, from the scores of all pieces. Each row has some."""
    best = scores[first]
    several = np.flatnonzero(counts > 1)
    if len(several):
        piece_scores, pieces = scores[piece_rows(first[several], counts[several])], counts[several]
        best[several] = np.maximum.reduceat(piece_scores, np.cumsum(pieces) - pieces)
    return best


def _products(vectors: Floats, vector: FloatVector) -> Floats:
    """Return the product of each row with a vector. Many rows are compared in two threads."""
    if len(vectors) < _HALVED_ROWS:
        return np.vecdot(vectors, vector)
    products = np.empty(len(vectors), dtype=np.float32)
    half = len(vectors) // 2
    with ThreadPoolExecutor(1) as executor:
        second = executor.submit(np.vecdot, vectors[half:], vector, out=products[half:])
        np.vecdot(vectors[:half], vector, out=products[:half])
        second.result()
    return products


def _dates(view: SegmentView, rows: NDArray[np.intp]) -> list[str | None]:
    keys: list[list[int]] = view.columns.entry_id[rows].tolist() if view.dates else [[0, 0]] * len(rows)
    return [view.dates.get((high, low)) for high, low in keys]


def _entries(view: SegmentView, rows: NDArray[np.intp], cosine: Floats, bm25: Floats) -> list[SearchHit]:
    columns = view.columns
    numbers: list[list[int]] = columns.entry_id[rows].tolist()
    kinds: list[int] = columns.kind[rows].tolist()
    conversations = [view.texts.conversation.value(code) for code in columns.conversation[rows].tolist()]
    cosines, weights = cosine.tolist(), bm25.tolist()
    return [
        SearchHit(
            source_id=source_id,
            kind=KINDS[kinds[at]],
            conversation_id=conversation if isinstance(conversation := conversations[at], UUID) else None,
            cosine=None if isnan(cosines[at]) else cosines[at],
            bm25=weights[at],
            dates=view.dates.get((numbers[at][0], numbers[at][1])),
        )
        for at, source_id in enumerate(_source_ids(view, rows))
    ]
