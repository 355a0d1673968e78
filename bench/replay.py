"""Replays dialogues through the API: evidence recall, and budgets kept. `make bench` measures times.

    .venv/bin/python bench/replay.py http://127.0.0.1:8765 --key tk_... --dataset locomo10.json

Needs a running service and a file of the LoCoMo shape, which this project neither has nor may have (CC BY-NC). Each run
makes conversations of its own; nothing is deleted. Both people of a dialogue speak in role `user`, since neither is an
assistant: `actor` tells them apart, and nothing in recall can profit from the role.

1. Loads every dialogue in batches of varying size, and lets it be compacted by its policy. 2. Asks every question once,
k = 50, and looks for its evidence. 3. Builds contexts at four budgets in all formats, counts them again, and looks
whether each turn is shown, lies under a summary, or is counted in the gap.

Exits with 1 when a request fails, a context breaks its budget or its own count, leaves turns out that it does not
count, or a recall comes back short.
"""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final
from uuid import uuid4

import typer
from client import Answer, Client, RequestFailedError, failure
from figures import (
    CUTS,
    Contexts,
    Failures,
    Recalled,
    print_contexts,
    print_failures,
    print_recall,
)
from locomo import CATEGORIES, Dialogue, Question, SpokenTurn, read_dialogues
from pydantic import BaseModel, JsonValue
from recount import recount
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from app.providers.tokens import EncodingName, TiktokenCounter

BATCH_SIZES: Final = (1, 2, 5, 10, 25, 50)
BUDGETS: Final = (256, 1024, 4096, 16384)
FORMATS: Final = ("openai", "openai_responses", "anthropic", "workers_ai", "canonical")
WINDOWS: Final = (None, 1000)
"""`recent_turns`: the default, which large budgets hold whole, and one that no budget holds."""
TOKENIZERS: Final[tuple[EncodingName, ...]] = ("o200k_base", "cl100k_base")
ESTIMATED: Final = frozenset({"anthropic", "workers_ai"})
_MARGIN: Final = 1.35
"""The service's factor on counts for these."""
SYSTEM: Final = "You are a helpful assistant who remembers what was said."
UNPROCESSABLE: Final = 422
VECTORS_S: Final = 900.0


class _Identified(BaseModel):
    id: str


class _Appended(BaseModel):
    turns: list[_Identified]


class _Hits(BaseModel):
    data: list[_Identified]
    degraded: list[str]


class _Usage(BaseModel):
    used: int
    exact: bool


class _Included(BaseModel):
    turn_ids: list[str]
    summary_ids: list[str]


class _Gap(BaseModel):
    turns: int
    from_position: int
    to_position: int


class _Standing(BaseModel):
    id: str
    kind: str
    from_position: int
    to_position: int


class _Summaries(BaseModel):
    data: list[_Standing]


class _Compacted(BaseModel):
    summaries: list[_Identified]
    continues: bool


class _Context(BaseModel):
    messages: list[dict[str, JsonValue]]
    system: str | None
    usage: _Usage
    included: _Included
    gap: _Gap | None
    degraded: list[str]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A dialogue in the service: its conversation's id, and the dataset's key of each turn id, by position.

    `summaries`: the ranges of positions that summaries stand for, by their ids.
    """

    dialogue: Dialogue
    conversation_id: str
    keys: dict[str, str]
    summaries: dict[str, _Standing]


@dataclass(slots=True)
class Run:
    """One run: where it goes, and everything it finds out."""

    url: str
    key: str
    name: str
    progress: Progress
    recalled: Recalled = field(default_factory=Recalled)
    contexts: Contexts = field(default_factory=Contexts)
    failures: Failures = field(default_factory=Failures)
    short_recalls: int = 0
    turns_per_s: float = 0.0

    def client(self) -> Client:
        """Open a connection of its own."""
        return Client(self.url, self.key)


async def create(client: Client, dialogue: Dialogue, external_id: str) -> str:
    """Create the conversation of a dialogue and give its id."""
    body: dict[str, JsonValue] = {"external_id": external_id, "participants": list(dialogue.speakers)}
    answer = await client.demand("create", "/v1/conversations", body)
    return _Identified.model_validate_json(answer.body).id


async def append(client: Client, conversation_id: str, turns: Sequence[SpokenTurn]) -> Answer:
    """Append turns in one call."""
    sent: list[JsonValue] = [
        {"role": turn.role, "actor": turn.actor, "content": turn.text, "occurred_at": turn.occurred_at.isoformat()}
        for turn in turns
    ]
    return await client.demand("append", f"/v1/conversations/{conversation_id}/turns", {"turns": sent})


async def load_one(run: Run, dialogue: Dialogue, gate: asyncio.Semaphore) -> Loaded:
    """Load one dialogue in batches of varying size."""
    task = run.progress.add_task(f"load {dialogue.name}", total=len(dialogue.turns))
    sizes = random.Random(dialogue.name)  # noqa: S311 - the same sizes in every run
    keys: dict[str, str] = {}
    async with gate, run.client() as client:
        conversation_id = await create(client, dialogue, f"{run.name}/{dialogue.name}")
        while len(keys) < len(dialogue.turns):
            batch = dialogue.turns[len(keys) :][: sizes.choice(BATCH_SIZES)]
            answer = await append(client, conversation_id, batch)
            stored = _Appended.model_validate_json(answer.body).turns
            keys.update({turn.id: said.key for turn, said in zip(stored, batch, strict=True)})
            run.progress.advance(task, len(batch))
        summaries = await compact(client, conversation_id)
    return Loaded(dialogue, conversation_id, keys, summaries)


async def compact(client: Client, conversation_id: str) -> dict[str, _Standing]:
    """Let everything that is due be summarised; gives the summaries that stand then."""
    path = f"/v1/conversations/{conversation_id}"
    while True:
        answer = await client.demand("compact", f"{path}/compact", {})
        done = _Compacted.model_validate_json(answer.body)
        if not done.summaries and not done.continues:
            break
    listed = _Summaries.model_validate_json((await client.get("summaries", f"{path}/summaries?limit=200")).body)
    return {one.id: one for one in listed.data}


def left_out(loaded: Loaded, included: _Included) -> _Gap | None:
    """The turns of a dialogue that a context shows neither verbatim nor by a summary."""
    ranges = [loaded.summaries[summary_id] for summary_id in included.summary_ids]
    shown = set(included.turn_ids)
    places = [
        position
        for position, turn_id in enumerate(loaded.keys, start=1)
        if turn_id not in shown and not any(one.from_position <= position <= one.to_position for one in ranges)
    ]
    return _Gap(turns=len(places), from_position=places[0], to_position=places[-1]) if places else None


async def load(run: Run, dialogues: Sequence[Dialogue], concurrency: int) -> list[Loaded]:
    """Load all dialogues, some at a time; the first failure ends the run."""
    gate = asyncio.Semaphore(concurrency)
    started = time.perf_counter()
    loaded = await asyncio.gather(*(load_one(run, dialogue, gate) for dialogue in dialogues))
    run.turns_per_s = sum(len(dialogue.turns) for dialogue in dialogues) / (time.perf_counter() - started)
    return loaded


async def wait_for_vectors(run: Run, loaded: Sequence[Loaded]) -> None:
    """Wait until jobs have made the vectors of all turns: what is asked before is compared by words only."""
    body: dict[str, JsonValue] = {"query": "vectors", "k": 1}
    deadline = time.perf_counter() + VECTORS_S
    async with run.client() as client:
        for dialogue in loaded:
            path = f"/v1/conversations/{dialogue.conversation_id}/recall"
            while time.perf_counter() < deadline:
                answer = await client.demand("recall", path, body)
                if "vectors_pending" not in _Hits.model_validate_json(answer.body).degraded:
                    break
                await asyncio.sleep(1)


async def ask(run: Run, client: Client, loaded: Loaded, question: Question) -> None:
    """Ask one question and record where its evidence stands."""
    body: dict[str, JsonValue] = {"query": question.text, "k": CUTS[-1]}
    answer = await client.demand("recall", f"/v1/conversations/{loaded.conversation_id}/recall", body)
    result = _Hits.model_validate_json(answer.body)
    run.short_recalls += len(result.data) < min(CUTS[-1], len(loaded.keys))
    run.recalled.degraded.update(result.degraded)
    hits = [loaded.keys[hit.id] for hit in result.data]
    run.recalled.record(CATEGORIES.get(question.category, str(question.category)), question.evidence, hits)


async def ask_all(run: Run, loaded: Sequence[Loaded], concurrency: int) -> None:
    """Ask every question that has evidence."""
    asked = [(one, question) for one in loaded for question in one.dialogue.questions if question.evidence]
    run.recalled.skipped = sum(len(one.dialogue.questions) for one in loaded) - len(asked)
    task = run.progress.add_task("recall", total=len(asked))
    remaining = iter(asked)

    async def work() -> None:
        async with run.client() as client:
            for one, question in remaining:
                try:
                    await ask(run, client, one, question)
                except RequestFailedError as error:
                    run.failures.record(error)
                run.progress.advance(task)

    await asyncio.gather(*(work() for _ in range(concurrency)))


@dataclass(frozen=True, slots=True)
class Wish:
    """One context to build."""

    loaded: Loaded
    question: Question
    budget: int
    shape: str = "openai"
    tokenizer: EncodingName = "o200k_base"
    window: int | None = None


def context_body(wish: Wish) -> dict[str, JsonValue]:
    """Ask for a context with recall."""
    body: dict[str, JsonValue] = {
        "token_budget": wish.budget,
        "query": wish.question.text,
        "semantic_recall": {"k": 10},
        "system": SYSTEM,
        "format": wish.shape,
        "tokenizer": wish.tokenizer,
    }
    if wish.window is not None:
        body["recent_turns"] = wish.window
    return body


async def build_one(run: Run, client: Client, wish: Wish, counter: TiktokenCounter) -> None:
    """Build one context, count it again, and look for the question's evidence in it."""
    call = "context" if wish.window is None else f"context, recent_turns {wish.window}"
    answer = await client.post(call, f"/v1/conversations/{wish.loaded.conversation_id}/context", context_body(wish))
    if answer.status == UNPROCESSABLE and failure(call, answer).code == "budget_too_small":
        run.contexts.too_small += 1
        return
    if answer.status != 200:  # noqa: PLR2004 - success
        raise failure(call, answer)
    context = _Context.model_validate_json(answer.body)
    margin = _MARGIN if wish.shape in ESTIMATED else 1.0
    counted = recount(context.messages, context.system, counter, margin=margin)
    run.contexts.degraded.update(context.degraded)
    run.contexts.record(
        wish.budget,
        wish.shape,
        used=context.usage.used,
        counted=counted,
        exact=context.usage.exact,
        turn_ids=context.included.turn_ids,
        gap_turns=0 if context.gap is None else context.gap.turns,
        gap_is_true=context.gap == left_out(wish.loaded, context.included),
    )
    if wish.question.evidence:
        shown = {wish.loaded.keys[turn_id] for turn_id in context.included.turn_ids}
        share = sum(key in shown for key in wish.question.evidence) / len(wish.question.evidence)
        run.contexts.evidence[wish.budget, wish.window].append(share)


async def build_all(run: Run, loaded: Sequence[Loaded], concurrency: int, most: int) -> None:
    """Build contexts for questions of all dialogues at every budget; formats, tokenizers and windows take turns."""
    counters = {name: TiktokenCounter(name) for name in TOKENIZERS}
    questions = [(one, question) for one in loaded for question in one.dialogue.questions]
    random.Random(1).shuffle(questions)  # noqa: S311 - the same sample in every run
    wishes = [
        # budgets step at their own pace, so that each meets every format, tokenizer and window
        Wish(one, question, budget, FORMATS[(number + step) % 5], TOKENIZERS[number % 2], WINDOWS[number // 2 % 2])
        for number, (one, question) in enumerate(questions[: most or None])
        for step, budget in enumerate(BUDGETS)
    ]
    task = run.progress.add_task("contexts", total=len(wishes))
    remaining = iter(wishes)

    async def work() -> None:
        async with run.client() as client:
            for wish in remaining:
                try:
                    await build_one(run, client, wish, counters[wish.tokenizer])
                except RequestFailedError as error:
                    run.failures.record(error)
                run.progress.advance(task)

    await asyncio.gather(*(work() for _ in range(concurrency)))


def report(run: Run, loaded: Sequence[Loaded]) -> dict[str, JsonValue]:
    """Give everything that was found out; names and numbers, no content."""
    return {
        "run": run.name,
        "conversations": len(loaded),
        "turns": sum(len(one.keys) for one in loaded),
        "summaries": {one.dialogue.name: [s.kind for s in one.summaries.values()] for one in loaded},
        "load_turns_per_s": round(run.turns_per_s, 1),
        "recall": run.recalled.as_json(),
        "short_recalls": run.short_recalls,
        "contexts": run.contexts.as_json(),
        "failures": run.failures.as_json(),
    }


def show(console: Console, run: Run) -> None:
    """Print what was found out."""
    console.print(f"loaded at {run.turns_per_s:.0f} turns/s")
    if run.recalled.shares:
        print_recall(console, run.recalled)
    if run.short_recalls:
        console.print(f"{run.short_recalls} recalls came back with fewer than k hits", style="red")
    if run.contexts.built or run.contexts.too_small:
        print_contexts(console, run.contexts)
    print_failures(console, run.failures)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    dialogues: Sequence[Dialogue]
    concurrency: int
    contexts: int
    out: Path | None


async def replay(run: Run, options: Options, console: Console) -> bool:
    """Do it all; says whether everything was as promised."""
    with run.progress:
        loaded = await load(run, options.dialogues, options.concurrency)
        await wait_for_vectors(run, loaded)
        await ask_all(run, loaded, options.concurrency)
        if options.contexts >= 0:
            await build_all(run, loaded, options.concurrency, options.contexts)
    show(console, run)
    if options.out is not None:
        options.out.write_text(json.dumps(report(run, loaded), indent=2) + "\n")
    return not (run.failures.counts or run.contexts.violations or run.short_recalls)


def main(
    url: Annotated[str, typer.Argument(help="The service, such as http://127.0.0.1:8765.")],
    *,
    key: Annotated[str, typer.Option(help="An API key that may read and write.", envvar="TURNKEEP_KEY")],
    dataset: Annotated[Path, typer.Option(help="A JSON file of the LoCoMo shape.", exists=True, dir_okay=False)],
    limit_conversations: Annotated[int, typer.Option(min=1, help="Only the first so many dialogues.")] = 1000,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Connections while loading and asking.")] = 2,
    contexts: Annotated[int, typer.Option(min=-1, help="Questions to build contexts for; 0: all, -1: none.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write the figures.")] = None,
) -> None:
    """Replay dialogues through the API and measure recall and budgets."""
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=Console(stderr=True),
    )  # fmt: skip
    name = f"replay-{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:8]}"
    run = Run(url, key, name, progress)
    dialogues = read_dialogues(dataset)[:limit_conversations]
    options = Options(dialogues, concurrency, contexts, json_file)
    console = Console()
    try:
        good = asyncio.run(replay(run, options, console))
    except RequestFailedError as error:
        console.print(f"the run ended: {error}", style="red")
        good = False
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    typer.run(main)
