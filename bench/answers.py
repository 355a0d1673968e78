"""Are the answers in the contexts? Contexts of two sizes for the questions of a LoCoMo-shaped file.

    .venv/bin/python bench/answers.py --dataset locomo10.json

Starts an installation of its own, loads every dialogue, and builds a context for every question that has a gold answer,
at each budget. Then it looks whether the words of the answer are there (`wording.py` states the rule), beside the
newest turns alone in the same budget, and the whole dialogue. The turns of these two have date and actor in front, as
recalled turns have in a context. `by chance`: the same contexts, looked through for the answer to another question of
the same dialogue.

With a chat model (`BENCH_TURNKEEP_LLM_MODEL` and its endpoint, and `--ask`) each context is sent to it with the
question; its answer is right if it has all words of the gold answer.

The file is CC BY-NC: it is read where the caller has it, and no text of it is printed or stored. Questions whose answer
has no word that counts ("Yes.") are skipped. Of chats without gold answers, the turns that answer a question take the
place of the words: a context has the whole answer if it shows all of these turns, whole or in part.
"""

import asyncio
import json
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer
from client import Client
from figures import OVERALL
from locomo import CATEGORIES, Dialogue, Question, SpokenTurn, read_dialogues
from pydantic import BaseModel, JsonValue
from replay import Loaded, Run, load
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from server import serve
from wording import Wording

from app.providers.tokens import TiktokenCounter

BUDGETS: Final = (1000, 4000)
NEWEST, WHOLE = "newest turns", "whole dialogue"
CONTEXTS: Final[Mapping[str, Mapping[str, JsonValue]]] = {
    "context": {"semantic_recall": {}},
    "context, ten recalled": {"semantic_recall": {"k": 10}},
    "context, mostly recall": {"semantic_recall": {"k": 100}, "recent_turns": 4, "include_summary": False},
}
"""What is asked of `POST …/context`, besides budget and query."""
QUESTION: Final = (
    "Answer in a few words, from this conversation only. When did or does something happen: give the date."
)


class _Message(BaseModel):
    content: str | None = None


class _Usage(BaseModel):
    used: int


class _Included(BaseModel):
    turn_ids: list[str]


class _Context(BaseModel):
    messages: list[_Message]
    included: _Included
    usage: _Usage


class _Choice(BaseModel):
    message: _Message


class _Completion(BaseModel):
    choices: list[_Choice]


@dataclass(slots=True)
class Found:
    """What one method found in one budget, by category: for each question whether it has the answer, and how much."""

    whole: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    shares: list[float] = field(default_factory=list)
    chance: list[bool] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def record(self, category: str, share: float, chance: float, tokens: int) -> None:
        """Record one context: the share of the answer's words, and of those of another question's answer."""
        for name in (category, OVERALL):
            self.whole[name].append(share == 1)
        self.shares.append(share)
        self.chance.append(chance == 1)
        self.tokens.append(tokens)

    def percent(self, name: str) -> float:
        """Return the share of contexts that have the whole answer, in %."""
        return mean([100.0 * one for one in self.whole[name]])


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with the words of its answer, and those of the answer to another one of the same dialogue.

    In place of words, the keys of turns if the dialogue has no answers.
    """

    question: Question
    answer: frozenset[str]
    other: frozenset[str]

    @property
    def category(self) -> str:
        """The name of its category."""
        return CATEGORIES.get(self.question.category, str(self.question.category))


@dataclass(frozen=True, slots=True)
class Shown:
    """A text, the keys of the turns that it shows, and its tokens."""

    text: str
    keys: frozenset[str]
    tokens: int


@dataclass(slots=True)
class Comparison:
    """All methods on all dialogues."""

    wording: Wording
    counter: TiktokenCounter
    budgets: Sequence[int]
    model: str | None
    progress: Progress
    found: dict[tuple[str, int], Found] = field(default_factory=lambda: defaultdict(Found))
    skipped: int = 0
    over_budget: int = 0

    def questions(self, dialogue: Dialogue) -> list[Asked]:
        """Return the questions whose answers can be checked, each with the answer to another one."""
        answered = [(one, self.wording.words(one.answer)) for one in dialogue.questions if one.answer is not None]
        answered = answered or [(one, frozenset(one.evidence)) for one in dialogue.questions]
        checkable = [(question, words) for question, words in answered if words]
        self.skipped += len(dialogue.questions) - len(checkable)
        others = [words for _, words in checkable]
        random.Random(dialogue.name).shuffle(others)  # noqa: S311 - the same pairs in every run
        return [Asked(question, words, other) for (question, words), other in zip(checkable, others, strict=True)]

    def record(self, method: str, budget: int, asked: Asked, shown: Shown) -> None:
        """Look for an answer in what is shown."""
        has_words = asked.question.answer is not None
        words = self.wording.words(shown.text) if has_words else shown.keys
        share, chance = (self.wording.share(answer, words) for answer in (asked.answer, asked.other))
        self.found[method, budget].record(asked.category, share, chance, shown.tokens)

    def lines(self, turns: Sequence[SpokenTurn], budget: int | None) -> Shown:
        """Return the newest turns that fit a budget, as lines with date and actor."""
        chosen: list[str] = []
        used = 0
        for turn in reversed(turns):
            line = f"[{turn.occurred_at:%Y-%m-%d %H:%M} UTC, {turn.actor}] {turn.text}"
            cost = self.counter.count(line) + 1
            if budget is not None and used + cost > budget:
                break
            chosen.append(line)
            used += cost
        return Shown(
            "\n".join(reversed(chosen)), frozenset(turn.key for turn in turns[len(turns) - len(chosen) :]), used
        )

    async def compare(self, client: Client, loaded: Loaded) -> None:
        """Do all methods for all questions of a dialogue."""
        asked = self.questions(loaded.dialogue)
        task = self.progress.add_task(f"ask {loaded.dialogue.name}", total=len(asked))
        plain = {(NEWEST, budget): self.lines(loaded.dialogue.turns, budget) for budget in self.budgets}
        plain[WHOLE, 0] = self.lines(loaded.dialogue.turns, None)
        for one in asked:
            for (method, budget), shown in plain.items():
                self.record(method, budget, one, shown)
                await self.ask(client, method, budget, one, [{"role": "user", "content": shown.text}])
            for method, options in CONTEXTS.items():
                for budget in self.budgets:
                    await self.build(client, loaded, method, budget, one, options)
            self.progress.advance(task)

    async def build(
        self, client: Client, loaded: Loaded, method: str, budget: int, asked: Asked, options: Mapping[str, JsonValue]
    ) -> None:
        """Build one context and look for the answer in it."""
        body: dict[str, JsonValue] = {"token_budget": budget, "query": asked.question.text, **options}
        path = f"/v1/conversations/{loaded.conversation_id}/context"
        answer = await client.demand("context", path, body)
        context = _Context.model_validate_json(answer.body)
        text = "\n".join(message.content or "" for message in context.messages)
        keys = frozenset(loaded.keys[turn_id] for turn_id in context.included.turn_ids)
        self.over_budget += context.usage.used > budget
        self.record(method, budget, asked, Shown(text, keys, context.usage.used))
        messages: list[JsonValue] = json.loads(answer.body)["messages"]
        await self.ask(client, method, budget, asked, messages)

    async def ask(self, client: Client, method: str, budget: int, asked: Asked, messages: Sequence[JsonValue]) -> None:
        """Let the chat model answer, if one is asked, and record whether it is right."""
        if self.model is None:
            return
        said: list[JsonValue] = [*messages, {"role": "user", "content": f"{QUESTION}\n{asked.question.text}"}]
        body: dict[str, JsonValue] = {"model": self.model, "messages": said}
        answer = await client.demand("answer", "/openai/v1/chat/completions", body)
        text = _Completion.model_validate_json(answer.body).choices[0].message.content or ""
        self.found[method, budget].right.append(self.wording.share(asked.answer, self.wording.words(text)) == 1)


def report(comparison: Comparison) -> dict[str, JsonValue]:
    """Return everything that was found out: names and numbers, no content."""
    rows: list[JsonValue] = [
        {
            "method": method,
            "budget": budget or None,
            "tokens": round(mean(found.tokens)),
            "answers": {name: round(found.percent(name), 1) for name in sorted(found.whole)},
            "questions": {name: len(found.whole[name]) for name in sorted(found.whole)},
            "words": round(100 * mean(found.shares), 1),
            "by_chance": round(100 * mean(found.chance), 1),
            "right": round(100 * mean(found.right), 1) if found.right else None,
        }
        for (method, budget), found in sorted(comparison.found.items(), key=lambda one: (one[0][1], one[0][0]))
    ]
    return {
        "model": comparison.model,
        "skipped": comparison.skipped,
        "over_budget": comparison.over_budget,
        "rows": rows,
    }


def show(console: Console, comparison: Comparison) -> None:
    """Print the table."""
    counts = next(iter(comparison.found.values())).whole
    names = [name for name in CATEGORIES.values() if name in counts]
    names += sorted(counts.keys() - {OVERALL, *names})
    head = ["method", "budget", "tokens", *names, OVERALL, "words", "by chance"]
    table = Table(*head, *(["right"] if comparison.model else []), title="contexts that have the answer, %")
    for (method, budget), found in sorted(comparison.found.items(), key=lambda one: (one[0][1], one[0][0])):
        shares = [f"{found.percent(name):.1f}" for name in (*names, OVERALL)]
        right = [f"{100 * mean(found.right):.1f}"] if comparison.model else []
        others = [f"{100 * mean(values):.1f}" for values in (found.shares, found.chance)]
        table.add_row(method, str(budget or "all"), f"{mean(found.tokens):.0f}", *shares, *others, *right)
    console.print(table)
    console.print(f"questions: {', '.join(f'{name} {len(counts[name])}' for name in (*names, OVERALL))}")
    console.print(f"{comparison.skipped} questions skipped: without an answer, or without a word that counts")
    console.print(f"{comparison.over_budget} contexts over their budget")


async def run(dialogues: Sequence[Dialogue], comparison: Comparison, folder: Path) -> None:
    """Load all dialogues into a server of its own, and compare."""
    async with serve(folder) as server:
        name = "answers"
        replayed = Run(server.url, server.key, name, comparison.progress)
        loaded = await load(replayed, dialogues, 2)
        async with Client(server.url, server.key) as client:
            for one in loaded:
                await comparison.compare(client, one)


def main(
    *,
    dataset: Annotated[Path, typer.Option(help="A JSON file of the LoCoMo shape.", exists=True, dir_okay=False)],
    budgets: Annotated[str, typer.Option(help="Token budgets, separated by commas.")] = ",".join(map(str, BUDGETS)),
    limit_conversations: Annotated[int, typer.Option(min=1, help="Only the first so many dialogues.")] = 1000,
    ask: Annotated[str | None, typer.Option(help="Also let this chat model answer, from every context.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write the figures.")] = None,
) -> None:
    """Look for the gold answers of a dataset in contexts of several sizes."""
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(stderr=True),
    )  # fmt: skip
    dialogues = read_dialogues(dataset)[:limit_conversations]
    sizes = [int(one) for one in budgets.split(",")]
    comparison = Comparison(Wording(), TiktokenCounter("o200k_base"), sizes, ask, progress)
    folder = Path(tempfile.mkdtemp(prefix="turnkeep-answers-"))
    try:
        with progress:
            asyncio.run(run(dialogues, comparison, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(Console(width=200), comparison)
    if json_file is not None:
        json_file.write_text(json.dumps(report(comparison), indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
