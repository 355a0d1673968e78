"""Measures the ranking formula offline: recall, the effect of each term, relevance, and small scopes.

    OMP_NUM_THREADS=1 .venv/bin/python bench/ranking.py path/to/locomo10.json --cache .cache/ranking

Needs a file of the LoCoMo shape (see `locomo`). No service and no database: a local model embeds the turns in the
pieces that the index makes, the analyser makes their lexemes with the heading of `Analyser.document`, and
`app.recall.scoring` scores every turn of the dialogue.

A foreign question belongs to another dialogue, so no turn answers it. Names are treated as the service does: those of
the dialogue's own speakers are left out of the embedded question.
"""

import hashlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import numpy as np
import typer
from locomo import ASSISTANT, CATEGORIES, Dialogue, Question, SpokenTurn, read_dialogues
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from app.conversations.schemas.participants import Participant
from app.index.analyser.analyser import Analyser, actor_heading
from app.index.analyser.cues import question_cues, read_cues, without_requests
from app.index.analyser.date_words import date_heading
from app.index.analyser.languages import DEFAULT
from app.index.analyser.query_words import plain_words
from app.index.analyser.word_weights import WordWeights
from app.index.schemas import BM25_B, BM25_K1, HEADING_WORDS, Mode
from app.providers.local.embedder import LOCAL_MODELS
from app.recall.ranking import name_texts, read_intent, remove_names
from app.recall.schemas import RELEVANCE_FLOOR
from app.recall.scoring import EntryFeatures, RankingWeights, Scores, score

CUTS: Final = (5, 10, 25)
BANDS: Final = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.01)
HITS: Final = 25
"""The first hits of each question that the table of relevance counts."""
SMALL_SCOPES: Final = (1, 4, 20, 100)
FOREIGN_QUESTIONS: Final = 200
"""Asked of each dialogue."""
CURVE: Final = frozenset({"per_piece", "half_words", "slope", "centre", "rivals", "gap"})
"""Weights that are no term of the score."""
SPEED_ENTRIES: Final = (600, 6_000, 60_000)

Floats: TypeAlias = NDArray[np.float32]


class Embedder:
    """A local model with a cache of vectors in a folder, one file per text list."""

    def __init__(self, cache: Path | None, name: str = "local") -> None:
        kind = LOCAL_MODELS[name]()
        self._cache = None if cache is None else cache / kind.space.model
        self._model = kind.load()

    def split(self, text: str) -> list[str]:
        """Return the pieces that the index embeds."""
        return self._model.split(text, max_pieces=None)

    def embed(self, texts: Sequence[str]) -> Floats:
        """Return one unit vector per text."""
        digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]
        path = None if self._cache is None else self._cache / f"{digest}.npy"
        if path is not None and path.exists():
            return np.load(path)
        known: dict[str, Floats] = {text: self._model.embed_one(text) for text in dict.fromkeys(texts)}
        vectors = np.stack([known[text] for text in texts])
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, vectors)
        return vectors


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question, its vector without the names of the dialogue's speakers, and the turns that answer it."""

    text: str
    vector: Floats
    category: int | str
    evidence: frozenset[int]


def heading(turn: SpokenTurn) -> str:
    """Return the words before a turn's text in the index."""
    return actor_heading(turn.actor, date_heading(turn.occurred_at.date(), DEFAULT))


class IndexedDialogue:
    """The turns of a dialogue as the index has them."""

    def __init__(self, dialogue: Dialogue, embedder: Embedder) -> None:
        analyser = Analyser()
        self.dialogue = dialogue
        self.people = [Participant(actor=actor) for actor in dialogue.speakers]
        self.names = {lexeme for name in name_texts(self.people) for lexeme in analyser.lexemes(name)}
        turns = dialogue.turns
        pieces = [embedder.split(turn.text) for turn in turns]
        self.pieces = np.array([len(some) for some in pieces], dtype=np.int32)
        self.first_piece = np.concatenate(([0], np.cumsum(self.pieces)[:-1]))
        self.vectors = embedder.embed([piece for some in pieces for piece in some])
        counts = [Counter(analyser.lexemes(f"{heading(turn)}\n{turn.text}")) for turn in turns]
        self.lengths = np.array([count.total() for count in counts], dtype=np.float32)
        postings: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for index, count in enumerate(counts):
            for lexeme, times in count.items():
                postings[lexeme].append((index, times))
        self.postings = {lexeme: np.array(places) for lexeme, places in postings.items()}
        self.group = np.array([turn.session for turn in turns], dtype=np.int32)
        self.speaker = np.array([dialogue.speakers.index(turn.actor) for turn in turns], dtype=np.int32)
        self.is_assistant = np.array([turn.role == ASSISTANT for turn in turns], dtype=np.bool_)
        self.cues = np.array([read_cues(turn.text) for turn in turns], dtype=np.uint8)

    def prepare(self, questions: Sequence[Question], embedder: Embedder) -> list[AskedQuestion]:
        """Embed questions as if they were asked of this dialogue."""
        vectors = embedder.embed([remove_names(question.text, self.people) for question in questions])
        keys = {turn.key: index for index, turn in enumerate(self.dialogue.turns)}
        return [
            AskedQuestion(one.text, vector, one.category, frozenset(keys[key] for key in one.evidence if key in keys))
            for one, vector in zip(questions, vectors, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Scope:
    """A range of turns of a dialogue, searched as if there were no others."""

    indexed: IndexedDialogue
    start: int
    stop: int

    def match_words(self, text: str, weigh: WordWeights) -> tuple[Floats, Floats, Floats]:
        """Return the BM25 of each turn, its share of the question's word weights, and the question's of its words."""
        size = self.stop - self.start
        lexemes = Analyser().query(without_requests(text)) or Analyser().query(text)
        empty = np.empty((0, 2), dtype=np.int64)
        found = [self.indexed.postings.get(lexeme, empty) for lexeme in lexemes]
        found = [places[(places[:, 0] >= self.start) & (places[:, 0] < self.stop)] for places in found]
        frequencies = [len(places) for places in found]
        weights = weigh.weights(plain_words(lexemes, self.indexed.names), frequencies, entries=size)
        lengths = self.indexed.lengths[self.start : self.stop]
        norm = BM25_K1 * (1 - BM25_B + BM25_B * lengths / max(float(lengths.mean()), 1.0))
        bm25, share, echo = (np.zeros(size, dtype=np.float32) for _ in range(3))
        for weight, places in zip(weights, found, strict=True):
            at, times = places[:, 0] - self.start, places[:, 1]
            bm25[at] += weight * (BM25_K1 + 1) * times / (times + norm[at])
            share[at] += weight
            echo[at] += times
        echo = np.minimum(echo / np.maximum(lengths - HEADING_WORDS, 1), np.float32(1))
        return bm25, share / np.float32(sum(weights) or 1.0), echo

    def features(self, question: AskedQuestion, mode: Mode, weigh: WordWeights) -> EntryFeatures:
        """Return the features of every turn in the scope."""
        size, part = self.stop - self.start, slice(self.start, self.stop)
        indexed = self.indexed
        bm25, share, echo = self.match_words(question.text, weigh)
        if mode is Mode.VECTOR:
            bm25, share, echo = np.zeros_like(bm25), np.zeros_like(share), np.zeros_like(echo)
        cosine = np.maximum.reduceat(indexed.vectors @ question.vector, indexed.first_piece)[part]
        intent = read_intent(question.text, indexed.people)
        is_meant = np.zeros(size, dtype=np.bool_)
        if intent.actor is not None:
            is_meant = indexed.speaker[part] == indexed.dialogue.speakers.index(intent.actor)
        elif intent.role is not None:
            is_meant = indexed.is_assistant[part] == (intent.role == ASSISTANT)
        turns, others = np.ones(size, dtype=np.bool_), np.zeros(size, dtype=np.bool_)
        return EntryFeatures(
            cosine=cosine if mode is not Mode.TEXT else np.full(size, np.nan, dtype=np.float32),
            pieces=indexed.pieces[part],
            bm25=bm25,
            word_share=share,
            echo=echo,
            group=indexed.group[part],
            conversation=np.zeros(size, dtype=np.int32),
            position=np.arange(size, dtype=np.int64),
            speaker=indexed.speaker[part],
            is_meant=is_meant,
            is_assistant=indexed.is_assistant[part],
            is_turn=turns,
            is_statement=others,
            cues=indexed.cues[part],
            is_query=others,
            by_place=np.arange(size, dtype=np.int64),
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A question to a scope with all features known, so that it can be scored with many weights."""

    features: EntryFeatures
    question_cues: int
    mode: Mode
    category: int | str
    evidence: frozenset[int]

    def score(self, weights: RankingWeights) -> Scores:
        """Score all turns in scope."""
        return score(
            self.features,
            question_cues=self.question_cues,
            by_vector=self.mode is not Mode.TEXT,
            by_words=self.mode is not Mode.VECTOR,
            weights=weights,
        )


def make_case(scope: Scope, question: AskedQuestion, mode: Mode, weigh: WordWeights) -> Case:
    """Compute the features of a question to a scope."""
    evidence = frozenset(index - scope.start for index in question.evidence if scope.start <= index < scope.stop)
    cues = question_cues(question.text)
    return Case(scope.features(question, mode, weigh), cues, mode, question.category, evidence)


@dataclass(slots=True)
class Figures:
    """The results of cases that have evidence."""

    recall: defaultdict[str, list[list[float]]] = field(
        default_factory=lambda: defaultdict[str, list[list[float]]](list)
    )
    best: list[float] = field(default_factory=list[float])
    hits: list[tuple[float, bool]] = field(default_factory=list[tuple[float, bool]])

    def add(self, case: Case, scores: Scores) -> None:
        """Count one question."""
        order = np.argsort(-scores.total, kind="stable")[: max(HITS, *CUTS)].tolist()
        shares = [len(case.evidence.intersection(order[:cut])) / len(case.evidence) for cut in CUTS]
        for name in (CATEGORIES.get(case.category, str(case.category)), "all"):
            self.recall[name].append(shares)
        self.best.append(float(scores.relevance.max()))
        self.hits += [(float(scores.relevance[index]), index in case.evidence) for index in order[:HITS]]

    def means(self, name: str = "all") -> list[float]:
        """Return the mean recall in percent at each cut."""
        return [100 * float(value) for value in np.mean(self.recall[name], axis=0)]

    def bands(self) -> Iterator[tuple[float, int, float, float]]:
        """Return the lower limit of each band of relevance, its hits, their mean relevance and share of evidence."""
        relevance, is_evidence = (np.array(column, dtype=np.float64) for column in zip(*self.hits, strict=True))
        for low, high in pairwise(BANDS):
            inside = (relevance >= low) & (relevance < high)
            if inside.any():
                yield low, int(inside.sum()), 100 * relevance[inside].mean(), 100 * is_evidence[inside].mean()


def evaluate(cases: Sequence[Case], weights: RankingWeights) -> Figures:
    """Score all cases."""
    figures = Figures()
    for case in cases:
        figures.add(case, case.score(weights))
    return figures


def best_relevance(cases: Sequence[Case], weights: RankingWeights) -> list[float]:
    """Return the best relevance of each case."""
    return [float(case.score(weights).relevance.max()) for case in cases]


def over_floor(values: Sequence[float]) -> float:
    """Return the percentage that reaches the floor."""
    return 100 * sum(value >= RELEVANCE_FLOOR for value in values) / max(1, len(values))


def area_under_curve(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Return the probability that a positive value is above a negative one (AUC)."""
    above = np.searchsorted(np.sort(negative), positive)
    return float(above.mean()) / len(negative)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """All dialogues, their own questions with evidence, and questions of other dialogues."""

    indexed: Sequence[IndexedDialogue]
    own: Mapping[int, Sequence[AskedQuestion]]
    foreign: Mapping[int, Sequence[AskedQuestion]]
    weigh: WordWeights

    def cases(self, questions: Mapping[int, Sequence[AskedQuestion]], mode: Mode) -> list[Case]:
        """Ask questions of whole dialogues."""
        return [
            make_case(Scope(one, 0, len(one.lengths)), question, mode, self.weigh)
            for number, one in enumerate(self.indexed)
            for question in questions[number]
        ]

    def small_cases(self, size: int, mode: Mode, *, foreign: bool) -> list[Case]:
        """Ask questions of `size` consecutive turns; the turn with the evidence is at a random place among them."""
        chance = random.Random(size)  # noqa: S311 - the same sample in every run
        cases: list[Case] = []
        for number, one in enumerate(self.indexed):
            last = len(one.lengths) - size
            for question in (self.foreign if foreign else self.own)[number]:
                start = chance.randint(0, last)
                if not foreign:
                    start = min(max(min(question.evidence) - chance.randrange(size), 0), last)
                cases.append(make_case(Scope(one, start, start + size), question, mode, self.weigh))
        return cases


def load(dialogues: Sequence[Dialogue], embedder: Embedder) -> Benchmark:
    """Index all dialogues and embed the questions."""
    indexed = [IndexedDialogue(dialogue, embedder) for dialogue in dialogues]
    own: dict[int, list[AskedQuestion]] = {}
    foreign: dict[int, list[AskedQuestion]] = {}
    for number, one in enumerate(indexed):
        others = [question for other in dialogues if other is not one.dialogue for question in other.questions]
        chosen = random.Random(number).sample(others, min(FOREIGN_QUESTIONS, len(others)))  # noqa: S311 - the same ones
        # evidence keys of another dialogue mean nothing here
        foreign[number] = one.prepare([replace(question, evidence=()) for question in chosen], embedder)
        own[number] = one.prepare([question for question in one.dialogue.questions if question.evidence], embedder)
    return Benchmark(indexed, own, foreign, WordWeights())


def show_recall(console: Console, figures: Figures) -> None:
    """Print recall by category."""
    table = Table("questions", "count", *(f"R@{cut}" for cut in CUTS), title="share of evidence among the first, in %")
    for name in [*sorted(set(figures.recall) - {"all"}), "all"]:
        table.add_row(name, str(len(figures.recall[name])), *(f"{mean:.1f}" for mean in figures.means(name)))
    console.print(table)


def show_ablation(console: Console, cases: Sequence[Case], foreign: Sequence[Case]) -> None:
    """Print recall without each term."""
    table = Table("without", *(f"R@{cut}" for cut in CUTS), "AUC", title="effect of each term")
    base = RankingWeights()
    for name in [None, *(one.name for one in fields(RankingWeights) if one.name not in CURVE)]:
        weights = base if name is None else replace(base, **{name: 0.0})
        figures = evaluate(cases, weights)
        area = area_under_curve(figures.best, best_relevance(foreign, weights))
        table.add_row(name or "-", *(f"{mean:.1f}" for mean in figures.means()), f"{area:.3f}")
    console.print(table)


def show_relevance(console: Console, figures: Figures, foreign: Sequence[float], title: str) -> None:
    """Print the calibration of relevance, and the figures of the floor."""
    table = Table("from", "hits", "mean relevance, %", "evidence, %", title=f"relevance, {title}")
    for low, hits, mean, share in figures.bands():
        table.add_row(f"{low}", str(hits), f"{mean:.1f}", f"{share:.1f}")
    console.print(table)
    console.print(
        f"{title}: AUC {area_under_curve(figures.best, foreign):.3f}, over the floor {RELEVANCE_FLOOR}: "
        f"{over_floor(figures.best):.1f} % of the questions, {over_floor(foreign):.1f} % of the foreign ones"
    )


def show_small_scopes(console: Console, benchmark: Benchmark) -> None:
    """Print the figures of the floor in small scopes."""
    table = Table("mode", "turns", "best hit is evidence, %", "AUC", "over the floor, %", "foreign over the floor, %")
    weights = RankingWeights()
    for mode in Mode:
        for size in SMALL_SCOPES:
            cases = benchmark.small_cases(size, mode, foreign=False)
            first = [int(case.score(weights).total.argmax()) in case.evidence for case in cases]
            own = best_relevance(cases, weights)
            foreign = best_relevance(benchmark.small_cases(size, mode, foreign=True), weights)
            shares = f"{100 * sum(first) / len(first):.1f}", f"{area_under_curve(own, foreign):.3f}"
            table.add_row(mode.value, str(size), *shares, f"{over_floor(own):.1f}", f"{over_floor(foreign):.1f}")
    console.print(table)


def show_speed(console: Console) -> None:
    """Print the time of one scoring, features given."""
    table = Table("entries", "ms, median", title="time")
    for size in SPEED_ENTRIES:
        features = random_features(size)
        table.add_row(str(size), f"{1000 * median_seconds(lambda one=features: score_all(one)):.3f}")
    console.print(table)


def score_all(features: EntryFeatures) -> Scores:
    """Score as a hybrid search does."""
    return score(features, question_cues=2, by_vector=True, by_words=True)


def median_seconds(call: Callable[[], object], rounds: int = 51) -> float:
    """Return the median time of a call."""
    seconds: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[rounds // 2]


def random_features(size: int) -> EntryFeatures:
    """Return features of a scope of sessions of 25 turns."""
    chance = np.random.default_rng(1)
    places = np.arange(size)
    words = chance.random(size, dtype=np.float32)
    return EntryFeatures(
        cosine=chance.random(size, dtype=np.float32),
        pieces=np.ones(size, dtype=np.int32),
        bm25=10 * words,
        word_share=words,
        echo=words,
        group=(places // 25).astype(np.int32),
        conversation=(places // 500).astype(np.int32),
        position=places % 500,
        speaker=(places % 2).astype(np.int32),
        is_meant=places % 2 == 0,
        is_assistant=places % 2 == 1,
        is_turn=places >= 0,
        is_statement=places < 0,
        cues=chance.integers(0, 32, size).astype(np.uint8),
        is_query=places < 0,
        by_place=places,
    )


def main(
    dataset: Annotated[Path, typer.Argument(help="A JSON file of the LoCoMo shape.", exists=True, dir_okay=False)],
    *,
    cache: Annotated[Path | None, typer.Option(help="A folder for vectors; without it, they are made again.")] = None,
    model: Annotated[str, typer.Option(help="`local` or `local-multilingual`.")] = "local",
    ablation: Annotated[bool, typer.Option(help="Measure without each term.")] = True,
    small: Annotated[bool, typer.Option(help="Measure small scopes.")] = True,
) -> None:
    """Measure the ranking formula on dialogues."""
    console = Console()
    benchmark = load(read_dialogues(dataset), Embedder(cache, model))
    weights = RankingWeights()
    for mode in Mode:
        cases, foreign = benchmark.cases(benchmark.own, mode), benchmark.cases(benchmark.foreign, mode)
        figures = evaluate(cases, weights)
        console.rule(mode.value)
        show_recall(console, figures)
        show_relevance(console, figures, best_relevance(foreign, weights), mode.value)
        if ablation and mode is Mode.HYBRID:
            show_ablation(console, cases, foreign)
    if small:
        show_small_scopes(console, benchmark)
    show_speed(console)


if __name__ == "__main__":
    typer.run(main)
