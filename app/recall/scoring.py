"""The ranking formula: scores and relevance of all entries in scope, as arrays. Pure.

A score is absolute: it does not depend on the other results. It is the match of the entry (meaning, words, share of the
question), the matches around it (session, neighbours, the question that it answers), and properties of the text and its
speaker. Decision 0035 gives the reason and the measured effect of each term; `bench/ranking.py` measures them again.

Calibration. `relevance` estimates the probability that an entry is evidence. The logistic curve was fitted to turns in
scopes of 190 to 700 entries: dialogues between people, and chats with an assistant. These rules are part of it. Rivals:
an entry is evidence only if the better ones are not all of it, so its odds are divided by 1 plus theirs (equal texts
are no rivals). Gap: in scopes of up to 100 entries, what has less than 0.4 times the best relevance loses once more in
this proportion. Prior: one of N entries answers, so the log-odds rise by `ln((400 + 6) / (N + 6))` in smaller scopes.
Three bonuses that any statement may have (speaker, first person, number or time) select among entries, but are no
evidence that one answers: they count by `ln N / ln 400`. A missing half of the match is estimated from the other:
meaning is 0.5 w + 0.3 w² of the word share w (no vector, or a search by text), and the word terms are the square of the
meaning (a search by vector). An entry of no session, as are memories, has its own match in place of those around it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.index.analyser.cues import Cue

Floats: TypeAlias = NDArray[np.float32]
Codes: TypeAlias = NDArray[np.int32]
Flags: TypeAlias = NDArray[np.bool_]
Hashes: TypeAlias = NDArray[np.int64]

REFERENCE_SIZE: Final = 400
"""The smallest scope for which the curve of `relevance` was measured; `word_weights` fills smaller ones up to it."""
CALIBRATED_SPACES: Final = frozenset({"local/all-MiniLM-L6-v2-int8/384"})
"""Embedding spaces for which `relevance` was measured."""

# as plain numbers, so that the arrays of cues keep their type
_FIRST_PERSON: Final = int(Cue.FIRST_PERSON)
_REFUSES: Final = int(Cue.REFUSES)
_INSTRUCTS: Final = int(Cue.INSTRUCTS)
_ASKS: Final = int(Cue.ASKS)
_QUANTITY: Final = int(Cue.NUMBER | Cue.TIME_WORD)
_KINDS: Final = int(Cue.NUMBER | Cue.TIME_WORD | Cue.CAPITALISED)

_SESSION_TURNS: Final = 40
"""In longer sessions, their best match says less of each turn."""
_MAX_BITS: Final = 2.0
"""Of what the name of a speaker says: that of one of four."""
_REACH: Final = 2
"""Positions of neighbours; `Surroundings` has a field for each."""
_POSITION_BITS: Final = 32
_MATCH_TERMS: Final = 4
"""The first of `TERMS`, which `_write_match` adds; a new term stands behind them."""
_BLOCK: Final = 8192
"""Entries scored at a time: their temporary arrays stay in the cache of the processor."""
_PRIOR_ENTRIES: Final = 6
_MAX_LOG_ODDS: Final = 30.0
_LITTLE: Final = 0.01
_MAX_RIVALS: Final = 256
"""Of so many entries, with odds of at least this share of the best, the order counts."""
_GROUP: Final = 16
_FEW_ENTRIES: Final = 200
"""From here on there is no gap; it counts in full up to half as many."""
_MEANING_OF_WORDS: Final = 0.5
_MEANING_OF_ALL_WORDS: Final = 0.3


@dataclass(frozen=True, slots=True)
class RankingWeights:
    """The weights of the formula. Round on purpose: random steps of one digit change recall by up to two points."""

    meaning: float = 0.7
    words: float = 0.4
    share: float = 0.2
    overlap: float = 0.5
    session: float = 0.3
    neighbour: float = 0.2
    answer: float = 0.3
    speaker: float = 0.1
    assistant: float = 0.3
    asks: float = 0.6
    instructs: float = 0.2
    first_person: float = 0.06
    quantity: float = 0.04
    wanted: float = 0.06
    per_piece: float = 0.1
    half_words: float = 10.0
    """The BM25 at which the word match is one half."""
    slope: float = 6.0
    centre: float = 1.22
    rivals: float = 1.0
    """How much the odds of better entries count against an entry."""
    gap: float = 0.4
    """In a small scope, an entry with less than this share of the best relevance is less relevant in proportion."""


DEFAULT_WEIGHTS: Final = RankingWeights()


class Surroundings(NamedTuple):
    """Which entries are near each other, which no query changes. One element per entry in order of place.

    `next_is_near`, `second_is_near`: whether the entry one or two places behind is in the same session, and at most two
    positions behind. `next_answers`: whether the entry one place behind answers this one. The last ones are false.
    """

    next_is_near: Flags
    second_is_near: Flags
    next_answers: Flags


@dataclass(frozen=True, slots=True)
class WholeScope:
    """What counts of a scope of which only candidates are scored.

    `session_turns`: for each candidate, how many entries of the scope are in its session. `meant`: how many are by the
    speaker who is meant. `has_assistant`: whether one of them is by an assistant.
    """

    session_turns: NDArray[np.int64]
    meant: int
    has_assistant: bool


@dataclass(frozen=True, slots=True)
class EntryFeatures:
    """The properties of the entries in scope, one element per entry.

    `cosine` is that of the best piece, NaN without a vector; `pieces` is the number of vectors. `bm25` uses
    `word_weights`; `word_share` is the share of these weights that the entry has, `echo` the share of the entry's words
    that the question has. `group` is a code of conversation and session, `conversation`, `speaker` codes; -1 for none.
    `is_meant`: said by the speaker or role that the question refers to. `is_statement`: a fact or a memory. `cues` has
    bits of `Cue`. `is_query`: the query is a question, and this is its text. `by_place` is the order by conversation
    and position; None: it is computed, which takes longer than all the rest. `around` is their `read_surroundings`.
    `text_hash`: equal for equal texts, 0 for none; `query_hash`: that of the query. `whole`: the scope, if these are
    candidates.
    """

    cosine: Floats
    pieces: NDArray[np.int32]
    bm25: Floats
    word_share: Floats
    echo: Floats
    group: Codes
    conversation: Codes
    position: NDArray[np.int64]
    speaker: Codes
    is_meant: Flags
    is_assistant: Flags
    is_turn: Flags
    is_statement: Flags
    cues: NDArray[np.uint8]
    is_query: Flags
    by_place: NDArray[np.int64] | None = None
    around: Surroundings | None = None
    text_hash: Hashes | None = None
    query_hash: int = 0
    whole: WholeScope | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """The score of every entry and its relevance. `terms` add up to the score; empty if not asked for."""

    total: Floats
    relevance: Floats
    terms: Mapping[str, Floats]


TERMS: Final = (
    *("meaning", "words", "share", "overlap", "session", "neighbour", "answer"),
    *("speaker", "assistant", "asks", "instructs", "first_person", "quantity", "wanted"),
)
"""The terms of a score, named as their weights."""


def score(
    features: EntryFeatures,
    *,
    question_cues: int,
    by_vector: bool,
    by_words: bool,
    size: int | None = None,
    explain: bool = False,
    weights: RankingWeights = RankingWeights(),
) -> Scores:
    """Return the scores of all entries. `size` is the number of entries in scope if it is more than those given.

    `question_cues` are the bits of `Cue` that the question asks for. `by_vector` and `by_words`: whether the question
    has a vector, and any word. `explain`: return the terms, too. For large scopes this takes longer than the scores.
    """
    count = len(features.cosine)
    entries = max(size or 0, count, 1)
    certain = min(1.0, math.log(entries) / math.log(REFERENCE_SIZE))
    match, neighbour, answer, total = (np.empty(count, dtype=np.float32) for _ in range(4))
    # all terms of all entries are much memory, which the system clears: without `explain`, blocks share theirs
    rows = [np.empty(count if explain else min(count, _BLOCK), dtype=np.float32) for _ in TERMS]
    blocks = [slice(start, min(start + _BLOCK, count)) for start in range(0, count, _BLOCK)]

    def terms_of(block: slice) -> dict[str, Floats]:
        part = block if explain else slice(0, block.stop - block.start)
        return {name: row[part] for name, row in zip(TERMS, rows, strict=True)}

    for block in blocks:
        terms = terms_of(block)
        _write_match(features, terms, block, weights, by_vector=by_vector, by_words=by_words)
        match[block] = terms["meaning"] + terms["words"] + terms["share"]
        total[block] = match[block] + terms["overlap"]
    _write_around(features, match, neighbour, answer)
    best, certainty = _best_by_session(features, match)
    bits = _bits_of_speaker(features, entries) * certain
    answers_here = features.whole.has_assistant if features.whole else bool(features.is_assistant.any())
    for block in blocks:
        terms, group = terms_of(block), features.group[block]
        of_session = np.where(group >= 0, best[group] * certainty[group], match[block])
        np.multiply(of_session, np.float32(weights.session), out=terms["session"])
        near = np.where(group >= 0, neighbour[block], match[block])  # an entry of no session has itself around it
        np.multiply(near, np.float32(weights.neighbour), out=terms["neighbour"])
        np.multiply(np.square(answer[block]), np.float32(weights.answer), out=terms["answer"])
        _write_flags(
            features, terms, match, block, weights, question_cues=question_cues, by_words=by_words, certain=certain
        )
        np.multiply(features.is_meant[block], np.float32(weights.speaker * bits), out=terms["speaker"])
        instructs = (features.cues[block] & _INSTRUCTS != 0) & ~features.is_assistant[block] & answers_here
        np.multiply(instructs, np.float32(weights.instructs), out=terms["instructs"])
        for name in TERMS[_MATCH_TERMS:]:
            total[block] += terms[name]
    probability = relevance(
        total, entries=entries, text_hash=features.text_hash, query_hash=features.query_hash, weights=weights
    )
    return Scores(total, probability, dict(zip(TERMS, rows, strict=True)) if explain else {})


def relevance(
    total: Floats,
    *,
    entries: int,
    text_hash: Hashes | None = None,
    query_hash: int = 0,
    weights: RankingWeights = RankingWeights(),
) -> Floats:
    """Return the estimated probability that each entry is evidence, in a scope of this size.

    `text_hash`: equal entries are no rivals of each other, and those that only say what the query says (`query_hash`)
    are rivals of none; 0 equals none.
    """
    prior = math.log((REFERENCE_SIZE + _PRIOR_ENTRIES) / (min(entries, REFERENCE_SIZE) + _PRIOR_ENTRIES))
    slope, offset = np.float32(weights.slope), np.float32(prior - weights.slope * weights.centre)
    odds = np.empty_like(total)
    blocks = [slice(start, start + _BLOCK) for start in range(0, len(total), _BLOCK)]
    for block in blocks:
        np.exp(np.minimum(slope * total[block] + offset, np.float32(_MAX_LOG_ODDS)), out=odds[block])
    first, before, together = _rivals(odds, text_hash, query_hash)
    likely = odds[first] / (1 + odds[first] + np.float32(weights.rivals) * before)
    rest = np.float32(1 + weights.rivals * together)
    for block in blocks:
        odds[block] /= rest + odds[block]
    odds[first] = likely
    gap = weights.gap * min(max((_FEW_ENTRIES - entries) / (_FEW_ENTRIES / 2), 0.0), 1.0)
    others = likely if text_hash is None or not query_hash else likely[text_hash[first] != query_hash]
    if gap and len(others):
        odds *= np.minimum(odds / np.float32(gap * others[0]), np.float32(1))
    return odds


def _rivals(odds: Floats, text_hash: Hashes | None, query_hash: int) -> tuple[NDArray[np.intp], Floats, float]:
    """Return the entries with the best odds, best first, the sum of the odds before each, and that of all of them.

    Of equal texts, only the first one counts; of those that equal the query, none.
    """
    least = odds.max(initial=0) * np.float32(_LITTLE)
    if len(odds) >= _MAX_RIVALS * _GROUP:
        # as many groups of entries have one with the odds of the last rival or better: few need to be ordered
        most = odds[: len(odds) // _GROUP * _GROUP].reshape(_GROUP, -1).max(axis=0)
        least = max(least, np.partition(most, len(most) - _MAX_RIVALS)[len(most) - _MAX_RIVALS])
    matters = np.flatnonzero(odds >= least)
    first = matters[np.argsort(-odds[matters], kind="stable")[:_MAX_RIVALS]]
    own = odds[first]
    if text_hash is None:
        return first, np.cumsum(own) - own, float(own.sum())
    hashes = text_hash[first]
    _, places, group = np.unique(hashes, return_index=True, return_inverse=True)
    is_counted = hashes == 0
    is_counted[places] = True
    if query_hash:
        is_counted &= hashes != query_hash
    counted = own * is_counted
    return first, np.cumsum(counted) - np.where(hashes == 0, own, counted[places][group]), float(counted.sum())


def estimate_match(
    cosine: Floats,
    pieces: NDArray[np.int32],
    bm25: Floats,
    share: Floats,
    *,
    by_vector: bool,
    by_words: bool,
    weights: RankingWeights = DEFAULT_WEIGHTS,
) -> Floats:
    """Return the match of entries with the question, by which candidates are chosen in a large scope."""
    meaning = _meaning(cosine, pieces, share, weights) if by_vector else _expected_meaning(share)
    if not by_words:
        return meaning
    match = meaning * np.float32(weights.meaning) + share * np.float32(weights.share)
    match += bm25 / (bm25 + np.float32(weights.half_words)) * np.float32(weights.words)
    return match.astype(np.float32, copy=False)


def _write_match(
    features: EntryFeatures,
    terms: Mapping[str, Floats],
    block: slice,
    weights: RankingWeights,
    *,
    by_vector: bool,
    by_words: bool,
) -> None:
    """Compute the match of some entries with the question."""
    bm25, share = features.bm25[block], features.word_share[block]
    words = bm25 / (bm25 + np.float32(weights.half_words))
    if by_vector:
        meaning = _meaning(features.cosine[block], features.pieces[block], share, weights)
        if not by_words:
            words = share = np.square(meaning)
    elif by_words:
        meaning = _expected_meaning(share)
    else:
        meaning = words = share = np.zeros_like(bm25)
    np.multiply(meaning, np.float32(weights.meaning), out=terms["meaning"])
    np.multiply(words, np.float32(weights.words), out=terms["words"])
    np.multiply(share, np.float32(weights.share), out=terms["share"])
    np.multiply(meaning * words, np.float32(-weights.overlap), out=terms["overlap"])


def _meaning(cosine: Floats, pieces: NDArray[np.int32], share: Floats, weights: RankingWeights) -> Floats:
    """Return the similarity of each entry to the question, from 0 to 1."""
    expected = _expected_meaning(share)
    long = np.flatnonzero(pieces > 1)
    if len(long):
        # a long text has more pieces, so its best one is better by chance; a piece shows little of a single word in it
        by_chance = np.float32(weights.per_piece) * np.log(pieces[long].astype(np.float32))
        cosine = cosine.copy()
        cosine[long] = np.fmax(cosine[long] - by_chance, expected[long])
    return np.clip(np.where(np.isnan(cosine), expected, cosine), np.float32(0), np.float32(1))


def _expected_meaning(share: Floats) -> Floats:
    """Return the meaning that is expected of a text with this share of the question's words."""
    return np.float32(_MEANING_OF_WORDS) * share + np.float32(_MEANING_OF_ALL_WORDS) * np.square(share)


def _write_flags(
    features: EntryFeatures,
    terms: Mapping[str, Floats],
    match: Floats,
    block: slice,
    weights: RankingWeights,
    *,
    question_cues: int,
    by_words: bool,
    certain: float,
) -> None:
    """Compute the terms of speaker and text of some entries."""
    cues = features.cues[block]
    self_report = (cues & _FIRST_PERSON != 0) | features.is_statement[block]
    restates = features.is_assistant[block] & features.is_turn[block]
    np.multiply(restates, np.float32(-weights.assistant), out=terms["assistant"])
    # a question restates that of the query as far as it has its words, an answer that says that there is none wholly
    failed = restates & (cues & _REFUSES != 0)
    words = features.echo[block]
    if not by_words:
        words = np.square(np.clip(np.nan_to_num(features.cosine[block]), 0, 1))
    echo = np.where(failed, np.float32(1), words * (cues & (_ASKS | _REFUSES) != 0))
    echo = np.where(features.is_query[block], np.float32(1), echo)
    np.multiply(np.square(match[block] * echo), np.float32(-weights.asks), out=terms["asks"])
    np.multiply(self_report, np.float32(weights.first_person * certain), out=terms["first_person"])
    quantity = cues & _QUANTITY != 0
    np.multiply(quantity, np.float32(weights.quantity * certain), out=terms["quantity"])
    np.multiply(cues & (question_cues & _KINDS) != 0, np.float32(weights.wanted), out=terms["wanted"])


def _bits_of_speaker(features: EntryFeatures, entries: int) -> float:
    """Return how much it says that an entry is by the speaker who is meant: 1 for half of the entries, 2 for a quarter.

    The more people speak, the fewer entries remain when the question names one of them.
    """
    meant, count = np.count_nonzero(features.is_meant), len(features.is_meant)
    share = features.whole.meant / entries if features.whole else meant / max(count, 1)
    return min(-math.log2(share), _MAX_BITS) if share else 0.0


def _best_by_session(features: EntryFeatures, match: Floats) -> tuple[Floats, Floats]:
    """Return the best match of each session, and how much it says of one of its turns, by the code of the group.

    The last element of both is of no session.
    """
    group = features.group
    best = np.zeros(int(group.max(initial=-1)) + 2, dtype=np.float32)
    # entries of a session mostly follow each other: the best of each row of them first
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1])[: len(group)])
    turns = np.zeros_like(best)
    if len(starts):
        np.maximum.at(best, group[starts], np.maximum.reduceat(match, starts))
        if features.whole is None:
            np.add.at(turns, group[starts], np.diff(starts, append=len(group)))
        else:
            turns[group] = features.whole.session_turns
    return best, np.minimum(np.float32(_SESSION_TURNS) / np.maximum(turns, np.float32(1)), np.float32(1))


def read_surroundings(features: EntryFeatures) -> Surroundings:
    """Return which entries are near each other."""
    order = _order(features)
    around = Surroundings(*(np.zeros(len(order), dtype=np.bool_) for _ in range(3)))
    for start in range(0, len(order), _BLOCK):
        window = order[start : start + _BLOCK + _REACH]
        place = _places(features, window)
        end = len(window) - 1
        distance = place[1:] - place[:-1]
        around.next_is_near[start : start + end] = distance <= _REACH
        around.second_is_near[start : start + max(end - 1, 0)] = place[_REACH:] - place[:-_REACH] <= _REACH
        speaker, asked = features.speaker[window], features.cues[window] & _ASKS != 0
        replies = features.is_turn[window] & ~features.is_assistant[window]
        by_other = (speaker[1:] != speaker[:-1]) & (np.minimum(speaker[1:], speaker[:-1]) >= 0)
        around.next_answers[start : start + end] = (distance == 1) & by_other & asked[:-1] & replies[1:]
    return around


def _order(features: EntryFeatures) -> NDArray[np.int64]:
    if features.by_place is not None:
        return features.by_place
    return np.lexsort((features.position, features.conversation))


def _write_around(features: EntryFeatures, match: Floats, neighbour: Floats, answer: Floats) -> None:
    """Compute for each entry the best match of its neighbours, and the match of the question that it answers."""
    order, around = _order(features), features.around or read_surroundings(features)
    for start in range(0, len(order), _BLOCK):
        first = max(start - _REACH, 0)  # neighbours before and behind the block
        window = slice(first, start + _BLOCK + _REACH)
        rows = order[window]
        matched = match[rows]
        near, answered = np.zeros_like(matched), np.zeros_like(matched)
        for step, is_near in enumerate((around.next_is_near, around.second_is_near), start=1):
            if step < len(matched):
                both = is_near[window][:-step]
                np.maximum(near[step:], matched[:-step] * both, out=near[step:])
                np.maximum(near[:-step], matched[step:] * both, out=near[:-step])
        answered[1:] = matched[:-1] * around.next_answers[window][:-1]
        inner = slice(start - first, start - first + _BLOCK)
        neighbour[rows[inner]], answer[rows[inner]] = near[inner], answered[inner]


def _places(features: EntryFeatures, window: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return session and position as one number. Entries without them are far from all others.

    Differences are unsigned, so a smaller number after a larger one is far away, too.
    """
    group, position = features.group[window], features.position[window]
    place = (group.astype(np.int64) << _POSITION_BITS) + position
    is_placed = (group >= 0) & (position >= 0)
    if not is_placed.all():
        place = np.where(is_placed, place, np.arange(-len(place), 0) << _POSITION_BITS)
    return place.view(np.uint64)
