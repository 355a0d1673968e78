"""Measures recall in eight languages, by words and by meaning, with each of the local models.

    .venv/bin/python bench/languages.py --before path/to/a/checkout

The files of `language_pairs` have 26 facts in each language, each with a question that repeats few of its words, and
parts of sentences that make 580 more turns about related things. All were written for this project. The same facts are
in every language, so that the languages can be compared, and the questions in English can be asked of all of them.

Starts a server for each model. Two people talk, in sessions of 20 turns; facts are at random places among the others.
Then every question is asked of the conversation, and of another one without the facts, where no turn answers it.
`--before` names a checkout of an earlier revision, which is measured with its default model for comparison.
"""

import asyncio
import random
import tempfile
import tomllib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import typer
from client import Client
from pydantic import BaseModel, ConfigDict, JsonValue
from rich.console import Console
from rich.table import Table
from server import serve

FOLDER: Final = Path(__file__).parent / "language_pairs"
LANGUAGES: Final = ("de", "fr", "es", "pt", "zh", "ja", "ar", "hi")
MODELS: Final = ("local", "local-multilingual")
CUT: Final = 5
HITS: Final = 25
"""The first hits of each question that the table of relevance counts."""
FLOOR: Final = 0.11
"""The least relevance of turns in contexts, unless a call names another."""
BANDS: Final = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.01)
SESSION_TURNS: Final = 20
BATCH: Final = 25
START: Final = datetime(2026, 1, 5, 9, tzinfo=UTC)

Mode: TypeAlias = Literal["text", "hybrid"]


class LanguageFile(BaseModel):
    """A file of `language_pairs`.

    `people` are the two speakers, `latin` their names in English. A statement is made of one of `times` and one of
    `acts`, a reply of one of `reactions` and one of `asks`. `pairs` are speaker (a or b), fact and question.
    """

    model_config = ConfigDict(extra="forbid")

    name: str
    people: tuple[str, str]
    latin: tuple[str, str]
    statement: str
    times: list[str]
    acts: list[str]
    reactions: list[str]
    asks: list[str]
    pairs: list[tuple[Literal["a", "b"], str, str]]


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """A turn of a conversation; `pair` is the number of the fact that it says."""

    speaker: str
    text: str
    pair: int | None = None


class _Identified(BaseModel):
    id: str


class _Appended(BaseModel):
    turns: list[_Identified]


class _Hit(BaseModel):
    id: str
    relevance: float | None


class _Hits(BaseModel):
    data: list[_Hit]
    degraded: list[str]


@dataclass(slots=True)
class Figures:
    """The results of one way to search, in one language.

    `ranks` of the facts, from 0; None beyond the first hits. `best` is the relevance of the first hit of each question,
    `foreign` that of questions which no turn answers. `hits`: the relevance of each hit, and whether it is the fact.
    """

    ranks: list[int | None] = field(default_factory=list[int | None])
    best: list[float] = field(default_factory=list[float])
    foreign: list[float] = field(default_factory=list[float])
    hits: list[tuple[float, bool]] = field(default_factory=list[tuple[float, bool]])

    @property
    def recall(self) -> float:
        """Return the percentage of questions whose fact is among the first `CUT` hits."""
        return 100 * sum(rank is not None and rank < CUT for rank in self.ranks) / len(self.ranks)


Measured: TypeAlias = Mapping[tuple[str, str], Figures]
"""Figures by language and way to search."""


def read(code: str) -> LanguageFile:
    """Read the file of a language."""
    return LanguageFile.model_validate(tomllib.loads((FOLDER / f"{code}.toml").read_text(encoding="utf-8")))


def english_questions(given: LanguageFile) -> list[str]:
    """Return the questions about the facts in English, with the names of the people in a language."""
    asks: list[str] = tomllib.loads((FOLDER / "en.toml").read_text(encoding="utf-8"))["asks"]
    return [ask.format(a=given.latin[0], b=given.latin[1]) for ask in asks]


def dialogue(given: LanguageFile, *, with_facts: bool) -> list[SpokenTurn]:
    """Return the turns of a conversation: the two people alternate, except for the facts, at random places."""
    chance = random.Random(given.name)  # noqa: S311 - the same conversation in every run
    statements = [given.statement.format(time=time, act=act) for time, act in product(given.times, given.acts)]
    replies = [f"{first} {then}" for first, then in product(given.reactions, given.asks)]
    for some in (statements, replies):
        chance.shuffle(some)
    texts = statements[len(replies) :]
    for statement, reply in zip(statements, replies, strict=False):
        at = chance.randrange(len(texts) + 1)
        texts[at:at] = [statement, reply]
    turns = [SpokenTurn(given.people[number % 2], text) for number, text in enumerate(texts)]
    if with_facts:
        facts = [SpokenTurn(given.people[who == "b"], said, pair) for pair, (who, said, _) in enumerate(given.pairs)]
        chance.shuffle(facts)
        for fact in facts:
            turns.insert(chance.randrange(len(turns) + 1), fact)
    return turns


async def append(client: Client, given: LanguageFile, turns: Sequence[SpokenTurn]) -> tuple[str, dict[str, int]]:
    """Store a conversation; return its id, and the numbers of the facts by the ids of their turns."""
    created = await client.demand("create", "/v1/conversations", {"participants": list(given.people)})
    conversation_id = _Identified.model_validate_json(created.body).id
    facts: dict[str, int] = {}
    for start in range(0, len(turns), BATCH):
        batch = turns[start : start + BATCH]
        times = [
            START + timedelta(days=number // SESSION_TURNS, minutes=number % SESSION_TURNS)
            for number in range(start, start + len(batch))
        ]
        sent: list[JsonValue] = [
            {"role": "user", "actor": turn.speaker, "content": turn.text, "occurred_at": at.isoformat()}
            for turn, at in zip(batch, times, strict=True)
        ]
        answer = await client.demand("append", f"/v1/conversations/{conversation_id}/turns", {"turns": sent})
        stored = _Appended.model_validate_json(answer.body).turns
        facts.update({one.id: turn.pair for one, turn in zip(stored, batch, strict=True) if turn.pair is not None})
    return conversation_id, facts


async def ask(client: Client, conversation_id: str, question: str, mode: Mode) -> list[_Hit]:
    """Return the hits of a question. Raises RuntimeError if the search was degraded."""
    body: dict[str, JsonValue] = {"query": question, "k": HITS, "mode": mode}
    answer = await client.demand("recall", f"/v1/conversations/{conversation_id}/recall", body)
    found = _Hits.model_validate_json(answer.body)
    if found.degraded:
        raise RuntimeError(f"the search was degraded: {found.degraded}")
    return found.data


async def measure(client: Client, modes: Sequence[Mode], console: Console) -> Measured:
    """Measure all languages on a service, also with the questions in English."""
    measured: dict[tuple[str, str], Figures] = {}
    for code in LANGUAGES:
        given = read(code)
        talk, facts = await append(client, given, dialogue(given, with_facts=True))
        other, _ = await append(client, given, dialogue(given, with_facts=False))
        asked = {mode: [question for _, _, question in given.pairs] for mode in modes}
        ways: list[tuple[str, Mode, list[str]]] = [(mode, mode, asked[mode]) for mode in modes]
        ways.append(("English", "hybrid", english_questions(given)))
        for way, mode, questions in ways:
            figures = measured[code, way] = Figures()
            for pair, question in enumerate(questions):
                hits = await ask(client, talk, question, mode)
                is_fact = [facts.get(hit.id) == pair for hit in hits]
                figures.ranks.append(is_fact.index(True) if True in is_fact else None)
                figures.hits += [(hit.relevance or 0.0, fact) for hit, fact in zip(hits, is_fact, strict=True)]
                figures.best.append(max((hit.relevance or 0.0 for hit in hits), default=0.0))
                none = await ask(client, other, question, mode)
                figures.foreign.append(max((hit.relevance or 0.0 for hit in none), default=0.0))
        console.print(f"[dim]{given.name}: {len(facts)} questions")
    return measured


@asynccontextmanager
async def service(model: str, checkout: Path | None) -> AsyncGenerator[Client]:
    """Run a server of this revision, or of a checkout, with a model."""
    with tempfile.TemporaryDirectory() as root:
        async with (
            serve(Path(root), folder=checkout, embedder=model) as server,
            Client(server.url, server.key) as client,
        ):
            yield client


def mean(values: Sequence[float]) -> float:
    """Return a mean."""
    return sum(values) / len(values)


def show_recall(console: Console, columns: Sequence[tuple[str, Measured, str]]) -> None:
    """Print the recall of each language and of all."""
    table = Table("language", *(title for title, _, _ in columns), title=f"R@{CUT}, in %")
    for code in LANGUAGES:
        table.add_row(read(code).name, *(f"{measured[code, way].recall:.0f}" for _, measured, way in columns))
    means = (mean([measured[code, way].recall for code in LANGUAGES]) for _, measured, way in columns)
    table.add_row("all", *(f"{value:.0f}" for value in means))
    console.print(table)


def show_relevance(console: Console, title: str, measured: Measured) -> None:
    """Print how many questions reach the floor in each language, and the calibration over all of them."""
    table = Table("language", "answered, over the floor, %", "not answered, over the floor, %", title=title)
    for code in LANGUAGES:
        figures = measured[code, "hybrid"]
        shares = ([value >= FLOOR for value in values] for values in (figures.best, figures.foreign))
        table.add_row(read(code).name, *(f"{100 * mean(share):.0f}" for share in shares))
    console.print(table)
    hits = [hit for code in LANGUAGES for hit in measured[code, "hybrid"].hits]
    table = Table("relevance from", "hits", "mean relevance, %", "facts, %", title=title)
    for low, high in pairwise(BANDS):
        inside = [(relevance, fact) for relevance, fact in hits if low <= relevance < high]
        if inside:
            means = (100 * mean([one[at] for one in inside]) for at in (0, 1))
            table.add_row(f"{low}", str(len(inside)), *(f"{value:.1f}" for value in means))
    console.print(table)


async def run(before: Path | None, models: Sequence[str]) -> None:
    """Measure, and print the tables."""
    console = Console(width=160)
    columns: list[tuple[str, Measured, str]] = []
    if before is not None:
        async with service(MODELS[0], before) as client:
            old = await measure(client, ("text", "hybrid"), console)
        columns += [("words, before", old, "text"), ("local, before", old, "hybrid")]
    measured: dict[str, Measured] = {}
    for model in models:
        async with service(model, None) as client:
            measured[model] = await measure(client, ("text", "hybrid"), console)
    columns += [("words", measured[model], "text") for model in models[:1]]
    columns += [(model, measured[model], "hybrid") for model in models]
    columns += [(f"{model}, asked in English", measured[model], "English") for model in models]
    show_recall(console, columns)
    for model in models:
        # 0 of each hit: the model has no calibrated relevance
        if any(relevance for figures in measured[model].values() for relevance, _ in figures.hits):
            show_relevance(console, model, measured[model])


def main(
    *,
    before: Annotated[
        Path | None, typer.Option(help="A checkout of an earlier revision.", exists=True, file_okay=False)
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="A model; may be repeated. Default: both.")] = None,
) -> None:
    """Measure recall in eight languages."""
    asyncio.run(run(before, MODELS if model is None else model))


if __name__ == "__main__":
    typer.run(main)
