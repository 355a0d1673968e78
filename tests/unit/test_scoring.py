"""The ranking formula: each term, scopes of all sizes, and the same scores from a slow reference."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from turnkeep_minilm import FOLDER

from app.index.analyser.analyser import Analyser
from app.index.analyser.query_words import plain_words
from app.index.analyser.word_weights import WordWeights
from app.index.analyser.words import ends_in_question
from app.providers.local.minilm import MiniLM
from app.recall import scoring
from app.recall.schemas import RELEVANCE_FLOOR
from app.recall.scoring import (
    REFERENCE_SIZE,
    TERMS,
    EntryFeatures,
    RankingWeights,
    Scores,
    WholeScope,
    read_surroundings,
    relevance,
    score,
)

FIRST_PERSON, NUMBER, TIME_WORD, CAPITALISED, ASKS, REFUSES, INSTRUCTS = 1, 2, 4, 8, 16, 32, 64
TYPES = {
    "cosine": np.float32, "bm25": np.float32, "word_share": np.float32, "echo": np.float32, "pieces": np.int32,
    "group": np.int32, "conversation": np.int32, "speaker": np.int32, "position": np.int64, "cues": np.uint8,
}  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "cosine": 0.0, "pieces": 1, "bm25": 0.0, "word_share": 0.0, "echo": 0.0, "group": 0, "conversation": 0,
    "speaker": 0, "is_meant": False, "is_assistant": False, "is_turn": True, "is_statement": False, "cues": 0,
    "is_query": False,
}  # fmt: skip


def features_of(count: int, **columns: Sequence[Any]) -> EntryFeatures:
    """Turns of one session in order, without any match, but for the columns given."""
    made = {name: np.full(count, value, dtype=TYPES.get(name, np.bool_)) for name, value in DEFAULTS.items()}
    made["position"] = np.arange(count, dtype=np.int64)
    made |= {name: np.array(values, dtype=TYPES.get(name, np.bool_)) for name, values in columns.items()}
    return EntryFeatures(**made)


def scored(features: EntryFeatures, **options: Any) -> Any:
    """The total and the terms as attributes; without the terms, the total is the same."""
    chosen: dict[str, Any] = {"question_cues": 0, "by_vector": True, "by_words": True, "size": REFERENCE_SIZE} | options
    explained = score(features, explain=True, **chosen)
    assert np.array_equal(score(features, **chosen).total, explained.total)
    return SimpleNamespace(total=explained.total, **explained.terms)


def best_first(scores: Scores) -> Any:
    return np.argsort(-scores.total, kind="stable")


def near(*values: float) -> Any:
    return pytest.approx(values, abs=1e-5)


# terms


def test_the_match_is_meaning_words_and_share_without_their_overlap() -> None:
    scores = scored(features_of(1, cosine=[0.5], bm25=[10], word_share=[0.25], group=[-1]))
    assert scores.meaning == near(0.35)
    assert scores.words == near(0.2)
    assert scores.share == near(0.05)
    assert scores.overlap == near(-0.125)


def test_meaning_is_less_for_more_pieces_and_never_under_what_the_words_of_a_long_text_predict() -> None:
    scores = scored(features_of(4, cosine=[0.5, 0.5, 0.5, -0.2], pieces=[1, 10, 50, 1], word_share=[0, 0, 1, 1]))
    assert scores.meaning == near(0.35, 0.7 * (0.5 - 0.1 * math.log(10)), 0.7 * 0.8, 0)


def test_all_entries_of_a_session_have_a_share_of_its_best_match() -> None:
    scores = scored(features_of(4, cosine=[1, 0, 0.5, 0.2], group=[0, 0, 1, -1]))
    assert scores.session == near(0.3 * 0.7, 0.3 * 0.7, 0.3 * 0.35, 0.3 * 0.14)


def test_neighbours_are_within_two_positions_of_the_same_session() -> None:
    given_columns = {"cosine": [1, 0, 0, 0, 0, 0], "group": [0, 0, 0, 0, 1, 1], "position": [3, 4, 5, 6, 2, 1]}
    assert scored(features_of(6, **given_columns)).neighbour == near(0, 0.14, 0.14, 0, 0, 0)


def test_positions_that_are_left_out_are_counted() -> None:
    assert scored(features_of(3, cosine=[1, 0, 0], position=[1, 3, 4])).neighbour == near(0, 0.14, 0)


def test_entries_without_a_place_have_their_own_match_in_place_of_neighbours() -> None:
    scores = scored(features_of(3, cosine=[1, 1, 1], group=[-1, -1, 0], position=[-1, -1, -1]))
    assert scores.neighbour == near(0.14, 0.14, 0)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, 0.3 * 0.7**2),
        ({"speaker": [0, 0]}, 0),
        ({"speaker": [0, -1]}, 0),
        ({"cues": [0, 0]}, 0),
        ({"group": [0, 1]}, 0),
        ({"position": [0, 2]}, 0),
        ({"is_assistant": [False, True]}, 0),
        ({"is_turn": [True, False]}, 0),
    ],
)
def test_an_answer_is_the_next_turn_of_another_speaker_after_a_question(
    columns: dict[str, Sequence[Any]], expected: float
) -> None:
    turns: dict[str, Sequence[Any]] = {"cosine": [1, 0], "cues": [ASKS, 0], "speaker": [0, 1]}
    assert scored(features_of(2, **(turns | columns))).answer == near(0, expected)


def test_flags_of_speaker_and_text() -> None:
    every = FIRST_PERSON | NUMBER | TIME_WORD | CAPITALISED
    columns = {"is_meant": [1, 0, 0], "is_assistant": [0, 1, 0], "cues": [every, TIME_WORD, CAPITALISED]}
    scores = scored(features_of(3, **columns), question_cues=TIME_WORD)
    assert scores.speaker == near(0.1 * math.log2(3), 0, 0)
    assert scores.assistant == near(0, -0.3, 0)
    assert scores.first_person == near(0.06, 0, 0)
    assert scores.quantity == near(0.04, 0.04, 0)
    assert scores.wanted == near(0.06, 0.06, 0)


@pytest.mark.parametrize(("share", "expected"), [(1, 0), (0.5, 0.1), (0.25, 0.2), (0.125, 0.2)])
def test_a_speaker_counts_more_among_more_people(share: float, expected: float) -> None:
    scores = scored(features_of(16, is_meant=[place < 16 * share for place in range(16)]))
    assert scores.speaker[:1] == near(expected)


def test_the_best_match_of_a_long_session_says_less_of_its_turns() -> None:
    scores = scored(features_of(80, cosine=[1] + [0] * 79))
    assert scores.session[-1:] == near(0.3 * 0.7 * 40 / 80)


def test_a_question_steps_back_as_far_as_it_has_the_words_of_the_query() -> None:
    scores = scored(features_of(3, cosine=[1, 1, 1], echo=[1, 0.5, 1], cues=[ASKS, ASKS, FIRST_PERSON]))
    assert scores.asks == near(-0.6 * 0.7**2, -0.6 * (0.7 * 0.5) ** 2, 0)


def test_the_text_of_the_query_is_no_answer_even_without_a_question_mark() -> None:
    assert scored(features_of(2, cosine=[1, 1], is_query=[1, 0])).asks == near(-0.6 * 0.7**2, 0)


def test_a_failed_answer_steps_back_whatever_words_it_has() -> None:
    scores = scored(features_of(2, cosine=[1, 1], echo=[0.2, 0.2], is_assistant=[1, 0], cues=[REFUSES, REFUSES]))
    assert scores.asks == near(-0.6 * 0.7**2, -0.6 * (0.7 * 0.2) ** 2)


def test_a_standing_instruction_counts_where_there_is_an_assistant() -> None:
    columns = {"cues": [INSTRUCTS, INSTRUCTS, 0]}
    assert scored(features_of(3, **columns, is_assistant=[0, 1, 1])).instructs == near(0.2, 0, 0)
    assert scored(features_of(3, **columns)).instructs == near(0, 0, 0)


def test_a_fact_and_a_memory_are_statements_of_their_subject() -> None:
    scores = scored(features_of(2, is_turn=[False, False], is_statement=[True, False], group=[-1, -1]))
    assert scores.first_person == near(0.06, 0)


def test_what_any_statement_may_have_counts_less_in_a_small_scope() -> None:
    columns = {"is_meant": [1, 0], "cues": [FIRST_PERSON | NUMBER, 0]}
    assert scored(features_of(1, cues=[FIRST_PERSON | NUMBER]), size=None).total == near(0)
    assert scored(features_of(2, **columns), size=20).total[:1] == near(0.2 * math.log(20) / math.log(400))
    assert scored(features_of(2, **columns), size=10_000).total[:1] == near(0.2)


def test_the_terms_add_up_to_the_total() -> None:
    scores = scored(features_of(3, cosine=[0.9, 0.4, 0.2], bm25=[3, 2, 0], word_share=[1, 0.4, 0], cues=[17, 7, 8]))
    assert sum(getattr(scores, term) for term in TERMS) == pytest.approx(scores.total, abs=1e-6)


# ways to search


def test_an_entry_without_a_vector_has_the_meaning_that_its_words_predict() -> None:
    columns = {"bm25": [5, 5], "word_share": [0.8, 0.8], "group": [-1, -1]}
    waiting = scored(features_of(2, cosine=[math.nan, 0.5 * 0.8 + 0.3 * 0.8**2], **columns))
    assert waiting.total[0] == pytest.approx(waiting.total[1])
    assert np.isfinite(waiting.total).all()


def test_a_search_by_text_scores_like_entries_without_vectors() -> None:
    columns = {"bm25": [5, 0], "word_share": [0.8, 0]}
    by_text = scored(features_of(2, cosine=[math.nan, math.nan], **columns), by_vector=False)
    pending = scored(features_of(2, cosine=[math.nan, math.nan], **columns))
    assert np.array_equal(by_text.total, pending.total)


def test_a_search_by_vector_takes_the_words_from_the_meaning() -> None:
    scores = scored(features_of(3, cosine=[1, 0.5, math.nan], group=[-1, -1, -1]), by_words=False)
    assert scores.words == near(0.4, 0.1, 0)
    assert scores.total[2] == 0


def test_nothing_to_search_by_gives_no_match() -> None:
    scores = scored(features_of(2, cosine=[1, math.nan]), by_vector=False, by_words=False)
    assert scores.total == near(0, 0)


def test_an_empty_scope_has_no_scores() -> None:
    scores = score(features_of(0), question_cues=0, by_vector=True, by_words=True, explain=True)
    assert [len(values) for values in (scores.total, scores.relevance, *scores.terms.values())] == [0] * 16


def test_relevance_rises_with_the_score_and_falls_with_the_size_of_the_scope() -> None:
    totals = np.linspace(0, 2, 50, dtype=np.float32)
    for entries in (1, 4, 20, 400):
        values = relevance(totals, entries=entries)
        assert (np.diff(values) > 0).all()
    values = [relevance(totals[20:21], entries=entries)[0] for entries in (1, 4, 20, 400, 100_000)]
    assert values[:4] == sorted(values[:4], reverse=True)
    assert values[3] == values[4]


def test_a_rival_makes_an_entry_less_relevant_and_a_copy_does_not() -> None:
    totals = np.array([1.2, 1.2, 0.1], dtype=np.float32)
    alone, rivals, copies = (
        relevance(totals[first:], entries=400, text_hash=np.array(hashes[first:]))[-2]
        for first, hashes in ((1, [7, 7, 9]), (0, [7, 8, 9]), (0, [7, 7, 9]))
    )
    assert rivals < alone - 0.1
    assert copies == pytest.approx(alone)


def test_a_scope_of_several_blocks_is_scored_like_its_parts() -> None:
    count = 20_000
    chance = np.random.default_rng(1)
    columns = {
        "cosine": chance.random(count), "bm25": chance.random(count), "word_share": chance.random(count),
        "group": np.arange(count) // 5, "speaker": np.arange(count) % 2, "cues": chance.integers(0, 32, count),
    }  # fmt: skip
    whole = scored(features_of(count, **columns), size=count)
    for start in (0, 8190, 16_380):  # whole sessions around the ends of blocks
        part = slice(start, start + 20)
        some = features_of(20, **{name: values[part] for name, values in columns.items()})
        assert whole.total[part] == pytest.approx(scored(some, size=count).total, abs=1e-6)


# the slow reference


def reference(
    f: EntryFeatures, w: RankingWeights, kinds: int, size: int, *, by_vector: bool, by_words: bool
) -> list[float]:
    count = len(f.cosine)
    meaning, words, share = [0.0] * count, [0.0] * count, [0.0] * count
    for i in range(count):
        cosine, own = float(f.cosine[i]), float(f.word_share[i])
        if by_words:
            words[i], share[i] = float(f.bm25[i]) / (float(f.bm25[i]) + 10), own
        expected = 0.5 * own + 0.3 * own**2
        if not by_vector:
            meaning[i] = expected if by_words else 0.0
        elif math.isnan(cosine):
            meaning[i] = expected
        else:
            cosine -= w.per_piece * math.log(f.pieces[i])
            meaning[i] = min(1.0, max(0.0, max(cosine, expected) if f.pieces[i] > 1 else cosine))
        if by_vector and not by_words:
            words[i] = share[i] = meaning[i] ** 2
    match = [w.meaning * meaning[i] + w.words * words[i] + w.share * share[i] for i in range(count)]
    certain = min(1.0, math.log(max(size, count, 1)) / math.log(REFERENCE_SIZE))
    placed = {(int(f.group[i]), int(f.position[i])): i for i in range(count) if f.group[i] >= 0 and f.position[i] >= 0}
    totals: list[float] = []
    bits = min(2.0, -math.log2(f.is_meant.mean())) if f.is_meant.any() else 0.0
    for i in range(count):
        group, position = int(f.group[i]), int(f.position[i])
        same = [match[j] for j in range(count) if f.group[j] == group]
        of_session = max(same) * min(1, 40 / len(same)) if group >= 0 else match[i]
        total = match[i] - w.overlap * meaning[i] * words[i] + w.session * of_session
        if group < 0:
            total += w.neighbour * match[i]
        if (group, position) in placed:
            others = [placed.get((group, position + step)) for step in (-2, -1, 1, 2)]
            total += w.neighbour * max((match[j] for j in others if j is not None), default=0.0)
            before = placed.get((group, position - 1))
            if before is not None and f.cues[before] & ASKS and f.is_turn[i] and not f.is_assistant[i]:
                known = f.speaker[i] >= 0 and f.speaker[before] >= 0
                total += w.answer * match[before] ** 2 * bool(known and f.speaker[i] != f.speaker[before])
        total += w.speaker * certain * bits * bool(f.is_meant[i]) - w.assistant * bool(
            f.is_assistant[i] and f.is_turn[i]
        )
        failed = bool(f.cues[i] & REFUSES and f.is_assistant[i] and f.is_turn[i])
        echo = (float(f.echo[i]) if by_words else min(1.0, max(0.0, float(np.nan_to_num(f.cosine[i])))) ** 2) * bool(
            f.cues[i] & (ASKS | REFUSES)
        )
        total -= w.asks * (match[i] * (1.0 if failed or f.is_query[i] else echo)) ** 2
        total += w.instructs * bool(f.cues[i] & INSTRUCTS and not f.is_assistant[i] and f.is_assistant.any())
        total += w.first_person * certain * bool(f.cues[i] & FIRST_PERSON or f.is_statement[i])
        total += w.quantity * certain * bool(f.cues[i] & (NUMBER | TIME_WORD))
        total += w.wanted * bool(f.cues[i] & kinds)
        totals.append(total)
    return totals


@st.composite
def any_features(draw: st.DrawFn) -> EntryFeatures:
    """Entries in any order: turns of two conversations in successive sessions, and entries without a place."""
    places: list[tuple[int, int, int]] = []
    for conversation in range(draw(st.integers(0, 2))):
        session = position = 0
        for _ in range(draw(st.integers(0, 8))):
            session += draw(st.sampled_from([0, 0, 0, 1]))
            position += draw(st.sampled_from([1, 1, 1, 2, 3]))
            places.append((conversation, conversation * 100 + session, position))
    places += [(-1, -1, -1)] * draw(st.integers(0, 3))
    places = draw(st.permutations(places))
    count = len(places)

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=count, max_size=count))

    unit = st.floats(0, 1, width=32)
    bm25 = column(st.one_of(st.just(0.0), st.floats(0.125, 30, width=32)))
    return features_of(
        count,
        cosine=column(st.one_of(st.just(math.nan), st.floats(-0.5, 1, width=32))),
        pieces=column(st.sampled_from([1, 1, 2, 30])),
        bm25=bm25,
        word_share=[share if found else 0.0 for share, found in zip(column(unit), bm25, strict=True)],
        conversation=[one for one, _, _ in places],
        group=[one for _, one, _ in places],
        position=[one for _, _, one in places],
        speaker=column(st.integers(-1, 2)),
        is_meant=column(st.booleans()),
        is_assistant=column(st.booleans()),
        is_turn=[conversation >= 0 for conversation, _, _ in places],
        is_statement=[conversation < 0 for conversation, _, _ in places],
        echo=column(unit),
        is_query=column(st.booleans()),
        cues=column(st.integers(0, 127)),
    )


@settings(max_examples=150)
@given(features=any_features(), by_vector=st.booleans(), by_words=st.booleans(), kinds=st.sampled_from([0, 2, 4, 8]))
@pytest.mark.slow
def test_arrays_and_loops_give_the_same_scores(
    features: EntryFeatures, *, by_vector: bool, by_words: bool, kinds: int
) -> None:
    scores = score(features, question_cues=kinds, by_vector=by_vector, by_words=by_words, size=30)
    expected = reference(features, RankingWeights(), kinds, 30, by_vector=by_vector, by_words=by_words)
    assert scores.total.tolist() == pytest.approx(expected, abs=1e-5)
    assert ((scores.relevance > 0) & (scores.relevance < 1)).all()
    order = np.lexsort((features.position, features.conversation))
    again = score(
        replace(features, by_place=order), question_cues=kinds, by_vector=by_vector, by_words=by_words, size=30
    )
    assert np.array_equal(scores.total, again.total)
    with patch.object(scoring, "_BLOCK", 3):  # neighbours in other blocks
        around = read_surroundings(features)
        for some in (features, replace(features, around=around)):
            blocked = score(some, question_cues=kinds, by_vector=by_vector, by_words=by_words, size=30)
            assert np.array_equal(scores.total, blocked.total)


# with vectors of the bundled model

FILLER = [
    "We went to the market and bought bread.", "The train was late again this morning.",
    "The printer at the office works again.", "Our neighbours got a new dog.", "The weather was rainy all week.",
    "She finished her thesis on marine biology.", "The quarterly invoice is due on Friday.",
    "He repaired the bicycle tyre twice.", "We deployed the service to the cluster on Monday.",
    "The museum opens at nine.", "They painted the kitchen yellow.", "The flight to Rome was cancelled.",
    "My cousin works at a bakery.", "Those keys were lost in the park.", "The server needs more memory.",
    "We watched a documentary about whales.", "The garden needs watering.", "He sold his old car.",
    "The concert was sold out.",
]  # fmt: skip
README = [
    ("mia", "I am allergic to peanuts. Can you plan a week in Lisbon for us?"),
    ("planner", "Gladly. When do you travel, and who comes along?"),
    ("mia", "From 3 to 9 May, with my brother Tom. He cannot walk far."),
    ("planner", "Then I put the trams first, and two short walks along the river."),
]


@pytest.fixture(scope="module")
def model() -> MiniLM:
    return MiniLM(FOLDER)


class Asker:
    """Indexes texts and asks a question, as the service does."""

    def __init__(self, model: MiniLM) -> None:
        self._model = model
        self._analyser = Analyser()
        self._weights = WordWeights()
        self._known: dict[str, Any] = {}

    def _embed(self, text: str) -> Any:
        if text not in self._known:
            self._known[text] = self._model.embed_one(text)
        return self._known[text]

    def ask(
        self,
        said: Sequence[tuple[str, str]],
        question: str,
        *,
        mode: str = "hybrid",
        kind: str = "turn",
        meant: str = "",
    ) -> Scores:
        counts = [Counter(self._analyser.lexemes(f"{a} 1 May 2026\n{text}")) for a, text in said]
        lexemes = self._analyser.query(question)
        frequencies = [sum(lexeme in count for count in counts) for lexeme in lexemes]
        weights = self._weights.weights(plain_words(lexemes, {a for a, _ in said}), frequencies, entries=len(said))
        mean = sum(count.total() for count in counts) / len(counts)
        bm25, share = [0.0] * len(said), [0.0] * len(said)
        for index, count in enumerate(counts):
            norm = 1.2 * (0.25 + 0.75 * count.total() / mean)
            for lexeme, weight in zip(lexemes, weights, strict=True):
                bm25[index] += weight * 2.2 * count[lexeme] / (count[lexeme] + norm)
                share[index] += weight * (lexeme in count) / sum(weights)
        pieces = [self._model.split(text, max_pieces=None) for _, text in said]
        vector = self._embed(question)
        cosine = [max(float(self._embed(piece) @ vector) for piece in some) for some in pieces]
        by_vector, is_turn = mode == "hybrid", kind == "turn"
        actors = sorted({a for a, _ in said})
        features = features_of(
            len(said),
            cosine=cosine if by_vector else [math.nan] * len(said),
            pieces=[len(some) for some in pieces],
            bm25=bm25,
            word_share=share,
            echo=[min(1.0, sum(count[lexeme] for lexeme in lexemes) / max(1, count.total() - 4)) for count in counts],
            speaker=[actors.index(a) for a, _ in said],
            is_meant=[a == meant for a, _ in said],
            is_assistant=[a == "planner" for a, _ in said],
            is_turn=[is_turn] * len(said),
            is_statement=[not is_turn] * len(said),
            group=[0 if is_turn else -1] * len(said),
            cues=[ASKS * ends_in_question(text) | FIRST_PERSON * (" my " in f" {text.lower()}") for _, text in said],
        )
        return score(features, question_cues=0, by_vector=by_vector, by_words=True)


@pytest.fixture(scope="module")
def asker(model: MiniLM) -> Asker:
    return Asker(model)


@pytest.mark.parametrize("kind", ["turn", "fact"])
@pytest.mark.parametrize("mode", ["hybrid", "text"])
@pytest.mark.parametrize("size", [1, 4, 20])
def test_an_exact_match_is_relevant_and_an_unrelated_text_is_not(asker: Asker, kind: str, mode: str, size: int) -> None:
    said = [("mia", text) for text in ("My violin teacher is Anna Bergstrom.", *FILLER[: size - 1])]
    for question in ("My violin teacher is Anna Bergstrom.", "Who is my violin teacher?", "violin teacher"):
        scores = asker.ask(said, question, mode=mode, kind=kind)
        assert scores.relevance[0] >= 0.5
        assert best_first(scores)[0] == 0
    for question in ("What is the capital of Mongolia?", "What is the interest rate of the loan?"):
        assert asker.ask(said, question, mode=mode, kind=kind).relevance.max() < RELEVANCE_FLOOR


def test_the_example_of_the_readme_passes_the_floor(asker: Asker) -> None:
    for question in ("which food must we avoid?", "Where can we have dinner? Any allergies?", "allergies"):
        scores = asker.ask(README, question)
        assert best_first(scores)[0] == 0
        assert scores.relevance[0] >= RELEVANCE_FLOOR


def test_the_answer_is_found_before_the_same_question_asked_earlier(asker: Asker) -> None:
    question = "Who is my violin teacher?"
    later = [("mia", question), *(("mia", text) for text in FILLER), ("mia", "My violin teacher is Anna Bergstrom.")]
    assert best_first(asker.ask(later, question, meant="mia"))[0] == len(later) - 1
    replied = [("mia", question), ("tom", "It is Anna Bergstrom."), *(("mia", text) for text in FILLER)]
    assert best_first(asker.ask(replied, question, meant="mia"))[0] == 1


@pytest.mark.parametrize("question", ["heliotrope", "Where did I see a heliotrope?"])
@pytest.mark.slow
def test_a_unique_word_in_a_turn_of_12_000_tokens_is_found(asker: Asker, question: str) -> None:
    half = " ".join(FILLER * 40)
    said = [("mia", text) for text in FILLER] * 106
    said = [*said[:2003], ("mia", f"{half} heliotrope {half}")]
    assert len(said) == 2004
    assert best_first(asker.ask(said, question))[0] == 2003


@pytest.mark.parametrize("spread", [0.05, 0.5])
def test_the_relevance_of_the_best_is_the_same_among_all_entries_and_among_candidates(spread: float) -> None:
    total = np.random.default_rng(5).normal(1, spread, 60_000).astype(np.float32)
    best = np.argsort(-total)[:4096]
    among_all = relevance(total, entries=len(total))
    assert among_all[best] == pytest.approx(relevance(total[best], entries=len(total)), abs=1e-5)


def test_candidates_have_the_scores_that_they_have_in_the_whole_scope() -> None:
    count, chance = 200, np.random.default_rng(2)
    columns: dict[str, Any] = {
        "cosine": chance.random(count), "group": np.repeat([0, 1], [150, 50]), "is_meant": np.arange(count) % 8 == 0,
        "cues": np.full(count, INSTRUCTS), "is_assistant": np.arange(count) == 199,
    }  # fmt: skip
    columns["cosine"][[7, 160]] = 1
    whole = scored(features_of(count, **columns), size=count)
    part = slice(0, 20)
    some = features_of(20, **{name: values[part] for name, values in columns.items()})
    scope = WholeScope(np.full(20, 150), meant=25, has_assistant=True)
    candidates = scored(replace(some, whole=scope), size=count)
    for name in ("total", *TERMS):
        assert getattr(candidates, name)[:18] == pytest.approx(getattr(whole, name)[:18], abs=1e-6), name
