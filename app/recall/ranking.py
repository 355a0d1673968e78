"""Ranking of the entries in scope: whom the query means, the score of each entry, and which are hits. Pure.

`scoring` has the formula.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, TypedDict
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from app.conversations.schemas.participants import Participant
from app.formats.schemas import ROLE_NAMES, Role
from app.index.analyser.cues import Cue, asks_what_was_said, is_about_oneself, question_cues, read_cues
from app.index.analyser.terms import hash_text
from app.index.analyser.words import words
from app.index.schemas import EntryKind, SearchHit, SearchResult
from app.index.service import PreparedQuery
from app.recall.equal_hits import copies_of, equality_keys, first_of_each, time_of
from app.recall.scoring import (
    DEFAULT_WEIGHTS,
    EntryFeatures,
    Floats,
    RankingWeights,
    Scores,
    Surroundings,
    WholeScope,
    estimate_match,
    read_surroundings,
    score,
)

# bounds the work per name, since there may be thousands of names
_FIRST_CHARACTERS = 64


_KINDS: Final = tuple(EntryKind)
_SCORE_DIGITS: Final = 6
_BLOCK: Final = 256
_MORE: Final = 4
"""Times as many hits are compared if too many of the first ones are equal."""
_MAX_TIMES: Final = 50
"""Times of equal hits that are returned, the newest."""


@dataclass(frozen=True, slots=True)
class SpeakerIntent:
    """The speaker that a query refers to: one actor by name, or a role by its pronouns."""

    actor: str | None = None
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A query with its participants, prepared once for all its searches, and which entries are hits.

    `threshold` is the least cosine of a hit, `min_relevance` the least relevance, which counts only if it is
    calibrated. `explain`: return the terms of the scores. `configuration`: weights in place of the defaults.
    """

    query: PreparedQuery
    participants: Sequence[Participant] = ()
    threshold: float | None = None
    min_relevance: float = 0.0
    explain: bool = False
    configuration: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Ranking:
    """The scores of all entries in scope. `hits` are the elements that pass the filters of the question.

    `degraded`: the parts of the search that were degraded.
    """

    result: SearchResult
    scores: Scores
    hits: NDArray[np.intp]
    is_calibrated: bool
    degraded: Sequence[str]

    def best(
        self, k: int, *, without: Collection[int] = (), distinct: bool = True, counted: bool = True
    ) -> list[SearchHit]:
        """Return the best `k` hits except some elements, best first. The newer one, then the lower id, wins a tie.

        `distinct`: of equal texts, return only the best one; `counted`: with the number and the times of all.
        """
        hits = self.hits
        if without:
            is_wanted = np.ones(len(self.scores.total), dtype=np.bool_)
            is_wanted[list(without)] = False
            hits = hits[is_wanted[hits]]
        limit = k
        elements = self._first(hits, limit)
        while distinct:
            firsts = first_of_each(equality_keys(self.result, elements))
            if len(firsts) >= k or limit >= len(hits):
                elements = elements[firsts[:k]]
                break
            limit *= _MORE
            elements = self._first(hits, limit)
        chosen: list[int] = elements.tolist()
        copies = copies_of(self.result, elements, without=without) if distinct and counted else {}
        return [
            self._score(entry, at, copies.get(at, ()))
            for entry, at in zip(self.result.entries(chosen), chosen, strict=True)
        ]

    def _first(self, hits: NDArray[np.intp], k: int) -> NDArray[np.intp]:
        """Return the best `k` of some hits, best first."""
        if len(hits) > k:
            # those that may have the same score as the last one when they are rounded
            scores = self.scores.total[hits]
            hits = hits[scores >= kth_largest(scores, k) - 2 * 10**-_SCORE_DIGITS]
        # the last bits of a score depend on the place of a vector among the others
        total = np.round(self.scores.total[hits].astype(np.float64), _SCORE_DIGITS)
        times = self.result.occurred_at[hits]
        order = np.lexsort((-times, -total))
        if len(order) > k:
            worst = order[k - 1]  # only among those with its score and time, ids decide
            is_as_good = (total == total[worst]) & (times >= times[worst])
            order = np.flatnonzero((total > total[worst]) | is_as_good)
        elements = hits[order].tolist()
        ids = self.result.source_ids(elements)
        best = sorted(zip((-total[order]).tolist(), (-times[order]).tolist(), ids, elements, strict=True))
        return np.array([at for *_, at in best[:k]], dtype=np.intp)

    def counted_again(self, hits: Sequence[SearchHit]) -> list[SearchHit]:
        """Return the hits of an earlier ranking with the number and times of the texts that equal them in this one.

        Those that this one has not compared are returned as they are.
        """
        elements: dict[tuple[EntryKind, UUID], int] = {}
        for kind in {hit.kind for hit in hits}:
            places = self.result.find(kind, [hit.source_id for hit in hits if hit.kind is kind])
            elements |= {(kind, source_id): at for source_id, at in places.items()}
        copies = copies_of(self.result, np.array(list(elements.values()), dtype=np.intp))
        return [
            hit if (at := elements.get((hit.kind, hit.source_id))) is None else replace(hit, **self._copies(copies[at]))
            for hit in hits
        ]

    def scores_of(self, elements: Mapping[UUID, int]) -> dict[UUID, float]:
        """Return the scores of those of some objects of one kind, given with their elements, that are hits."""
        is_hit = np.zeros(len(self.scores.total), dtype=np.bool_)
        is_hit[self.hits] = True
        wanted = list(elements.values())
        scores = zip(elements, is_hit[wanted].tolist(), self.scores.total[wanted].tolist(), strict=True)
        return {source_id: total for source_id, is_wanted, total in scores if is_wanted}

    def of_conversations(self, conversation_ids: Collection[UUID]) -> list[int]:
        """Return the elements of the turns and summaries of some conversations; facts may have other sources, too."""
        is_own = np.isin(self.result.kind, [_KINDS.index(kind) for kind in (EntryKind.TURN, EntryKind.SUMMARY)])
        own = np.flatnonzero(is_own)
        codes = [code for code, key in self._conversations(own).items() if key in conversation_ids]
        elements: list[int] = own[np.isin(self.result.conversation[own], codes)].tolist()
        return elements

    def _conversations(self, elements: NDArray[np.intp]) -> dict[int, UUID]:
        """Return the conversations of some elements, by their codes."""
        codes, first = np.unique(self.result.conversation[elements], return_index=True)
        entries = zip(codes.tolist(), self.result.entries(elements[first].tolist()), strict=True)
        return {code: entry.conversation_id for code, entry in entries if entry.conversation_id is not None}

    def _score(self, entry: SearchHit, at: int, copies: Sequence[int]) -> SearchHit:
        scores = self.scores
        return replace(
            entry,
            **self._copies(copies),
            score=float(scores.total[at]),
            relevance=float(scores.relevance[at]) if self.is_calibrated else None,
            terms={name: float(values[at]) for name, values in scores.terms.items()},
        )

    def _copies(self, copies: Sequence[int]) -> "_Copies":
        times = [time_of(self.result.occurred_at[copy]) for copy in copies[:_MAX_TIMES]]
        conversation_ids = {*self._conversations(np.array(copies)).values()} if len(copies) > 1 else set[UUID]()
        return {"count": max(len(copies), 1), "said_at": times, "conversation_ids": conversation_ids}


class _Copies(TypedDict):
    """The number, the times and the conversations of equal texts."""

    count: int
    said_at: Sequence[datetime]
    conversation_ids: Collection[UUID]


def kth_largest(values: Floats, k: int) -> np.float32:
    """Return the k-th largest of at least `k` values."""
    blocks = len(values) // _BLOCK
    if blocks > k:
        # k blocks have a value that reaches the k-th largest of their maxima: few of all values need to be ordered
        largest = values[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
        values = values[values >= np.partition(largest, blocks - k)[blocks - k]]
    return np.partition(values, len(values) - k)[len(values) - k]


def name_words(participant: Participant) -> set[str]:
    """Return the single words that mean this participant in a query: the first word of each of its names."""
    spellings = [participant.actor, participant.name, *participant.aliases]
    first = {parts[0] for spelling in spellings if spelling and (parts := words(spelling[:_FIRST_CHARACTERS]))}
    return {name for name in first if len(name) > 1 and name not in ROLE_NAMES}


def name_texts(participants: Iterable[Participant]) -> list[str]:
    """Return the names by which participants are in the headings of their turns."""
    return [participant.actor[:_FIRST_CHARACTERS] for participant in participants]


def remove_names(query: str, participants: Iterable[Participant]) -> str:
    """Return the query without participants' names: names pull a vector towards turns that address that person."""
    names = {name for participant in participants for name in name_words(participant)}
    return " ".join(word for word in query.split() if not names or _single_word(word) not in names) or query


def names_someone(query: str, participants: Iterable[Participant]) -> bool:
    """Return whether `remove_names` removes a name from the query."""
    return remove_names(query, participants) != remove_names(query, ())


def may_name_someone(query: str) -> bool:
    """Return whether a query looks as if it had a name: a word with a capital letter after the first one.

    An estimate, as names in lower case and first words are not noticed; `remove_names` decides.
    """
    return any(len(word) > 1 and word[0].isupper() for word in query.split()[1:])


def _single_word(word: str) -> str:
    parts = words(re.sub(r"['\u2019]s\b", "", word))
    return parts[0] if len(parts) == 1 else ""


def read_intent(query: str, participants: Sequence[Participant], language: str = "en") -> SpeakerIntent:
    """Return the speaker that the query refers to. A name counts if it means exactly one participant."""
    asked = set(words(re.sub(r"['\u2019]s\b", "", query)))
    named = [participant.actor for participant in participants if name_words(participant) & asked]
    if len(named) == 1:
        return SpeakerIntent(actor=named[0])
    if named:
        return SpeakerIntent()
    if asks_what_was_said(query, language):
        return SpeakerIntent(role=Role.ASSISTANT)
    return SpeakerIntent(role=Role.USER) if is_about_oneself(query, asked, language) else SpeakerIntent()


def estimate(question: Question, cosine: Floats, pieces: NDArray[np.int32], bm25: Floats, share: Floats) -> Floats:
    """Return how well entries match a question by themselves, for the choice of those that `rank` compares."""
    return estimate_match(
        cosine,
        pieces,
        bm25,
        share,
        by_vector=question.query.vector is not None,
        by_words=question.query.by_words,
        weights=_weights(question),
    )


def rank(result: SearchResult, question: Question, *, is_calibrated: bool) -> Ranking:
    """Score all entries in scope, and select the hits.

    `is_calibrated`: `relevance` was measured for the embedding space. Without vectors, an entry that shares no word
    with the query is no hit, even next to one.
    """
    query = question.query
    by_vector = query.vector is not None
    scores = score(
        _features(result, query.text, read_intent(query.text, question.participants, result.language)),
        question_cues=question_cues(query.text, result.language),
        by_vector=by_vector,
        by_words=bool(result.lexemes),
        size=result.size,
        explain=question.explain,
        weights=_weights(question),
    )
    is_hit = np.ones(len(result.cosine), dtype=np.bool_)
    if not by_vector:
        is_hit &= result.bm25 > 0
    elif question.threshold is not None:
        is_hit &= np.nan_to_num(result.cosine) >= question.threshold
    if is_calibrated and question.min_relevance > 0:
        is_hit &= scores.relevance >= question.min_relevance
    degraded = [query.degraded] if query.degraded else []
    degraded += ["vectors_pending"] if by_vector and result.vectors_pending else []
    return Ranking(result, scores, np.flatnonzero(is_hit), is_calibrated, degraded)


def _weights(question: Question) -> RankingWeights:
    return replace(DEFAULT_WEIGHTS, **question.configuration) if question.configuration else DEFAULT_WEIGHTS


def _features(result: SearchResult, query: str, intent: SpeakerIntent) -> EntryFeatures:
    kind, query_hash = result.kind, hash_text(query)
    assistant = result.role_code(Role.ASSISTANT.value)
    features = EntryFeatures(
        cosine=result.cosine,
        pieces=result.pieces,
        bm25=result.bm25,
        word_share=result.word_share,
        echo=result.echo,
        group=result.group,
        conversation=result.conversation,
        position=result.position,
        speaker=result.actor,
        is_meant=_is_meant(result, intent),
        is_assistant=result.role == (-2 if assistant is None else assistant),
        is_turn=kind == _KINDS.index(EntryKind.TURN),
        is_statement=(kind == _KINDS.index(EntryKind.FACT)) | (kind == _KINDS.index(EntryKind.MEMORY)),
        cues=result.cues,
        is_query=_is_query(result, query, query_hash),
        by_place=result.by_place.rows,
        text_hash=result.text_hash,
        query_hash=query_hash,
        whole=_whole_scope(result, intent),
    )
    if not result.by_place.derived:
        result.by_place.derived = read_surroundings(features)
    return replace(features, around=Surroundings(*result.by_place.derived))


def _is_query(result: SearchResult, query: str, query_hash: int) -> NDArray[np.bool_]:
    """Return which entries have the text of a query that is a question: they do not answer it."""
    if query_hash and read_cues(query, result.language) & Cue.ASKS:
        return result.text_hash == query_hash
    return np.zeros(len(result.text_hash), dtype=np.bool_)


def _whole_scope(result: SearchResult, intent: SpeakerIntent) -> WholeScope | None:
    """Return what counts of the whole scope, if the result has candidates only."""
    counts = result.counts
    if counts is None:
        return None
    meant = 0 if intent.role is None else counts.of_role(intent.role.value)
    if intent.actor is not None:
        meant = counts.of_actor(intent.actor)
    return WholeScope(counts.session_turns, meant, has_assistant=counts.of_role(Role.ASSISTANT.value) > 0)


def _is_meant(result: SearchResult, intent: SpeakerIntent) -> NDArray[np.bool_]:
    actor = None if intent.actor is None else result.actor_code(intent.actor)
    if actor is not None:
        return result.actor == actor
    role = None if intent.role is None else result.role_code(intent.role.value)
    return np.zeros(len(result.role), dtype=np.bool_) if role is None else result.role == role
