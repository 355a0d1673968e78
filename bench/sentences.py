"""Is the sentence that answers in the passage? Questions about one sentence each in long documents.

    .venv/bin/python bench/sentences.py --questions 200

Starts an installation of its own, stores documents of 5 000 to 50 000 tokens as a user's message, an assistant's answer
and a tool's result, in turn, and asks for sentences at random places of them. All sentences are made from a seed, many
of them about other things of the same kind; with `--texts`, those of the caller's own texts stand between them, which
are read where they are, and never printed or stored.

`best`: the sentence is in `text`, the best passage. `any`: it is there or in `passages`. `context`: it is in a context
of 4 000 tokens with recall. `over`: contexts over that budget.
"""

import asyncio
import json
import random
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer
from client import Client
from pydantic import BaseModel, JsonValue
from rich.console import Console
from rich.progress import track
from rich.table import Table
from server import serve

from app.providers.tokens import TiktokenCounter

MIN_TOKENS, MAX_TOKENS = 5_000, 50_000
BUDGET: Final = 4_000
ROLES: Final = ("user", "assistant", "tool")
SHARE_OF_FACTS: Final = 0.3
"""Of the sentences of a document: as many say something of the kind that is asked for, each of another thing."""

_PLACES: Final = [
    "Lisbon",
    "Oslo",
    "Porto",
    "Ghent",
    "Bergen",
    "Turin",
    "Lyon",
    "Cork",
    "Riga",
    "Graz",
    "Malmo",
    "Seville",
    "Bruges",
    "Tartu",
    "Split",
    "Kosice",
]
_THINGS: Final = [
    "flat",
    "boat",
    "garage",
    "studio",
    "bakery",
    "archive",
    "clinic",
    "orchard",
    "cinema",
    "library",
    "mill",
    "warehouse",
    "school",
    "hotel",
]
_PEOPLE: Final = [
    "Ann",
    "Omar",
    "Ines",
    "Jonas",
    "Priya",
    "Mei",
    "Tomas",
    "Lea",
    "Nils",
    "Rosa",
    "Karim",
    "Elsa",
    "Hugo",
    "Dana",
    "Felix",
    "Vera",
]
_GOODS: Final = [
    "lamps",
    "ropes",
    "tiles",
    "seeds",
    "mirrors",
    "carpets",
    "kettles",
    "ladders",
    "paints",
    "engines",
    "windows",
    "clocks",
]
_MONTHS: Final = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_FACTS: Final = (
    ("The deposit of the {place} {thing} is {number} euros.", "How much is the deposit of the {place} {thing}?"),
    ("{person} sold the {thing} in {place} to a cousin in {month}.", "When did {person} sell the {thing} in {place}?"),
    ("The key of the {place} {thing} hangs behind the {goods}.", "Where is the key to the {thing} in {place}?"),
    ("The {thing} in {place} was insured by {person} for {number} euros.", "Who insured the {thing} in {place}?"),
    ("Repairs at the {place} {thing} took {number} days.", "How long did repairing the {place} {thing} take?"),
    ("{person} ordered {number} {goods} for the {place} {thing}.", "What did {person} order for the {place} {thing}?"),
)
_FILLERS: Final = (
    "The road to {place} was closed again and {person} took the train.",
    "Most of the {goods} arrived in {month}, which nobody had expected.",
    "{person} and {person} talked about {goods} for the rest of the evening.",
    "In {month} the weather near {place} is mild, and the {thing} stays open.",
    "There is a list of {goods} somewhere, but it has not been updated since {month}.",
    "It took {number} minutes to walk from the {thing} to the station.",
)


class _Hit(BaseModel):
    class Part(BaseModel):
        text: str

    id: str
    text: str
    passages: list[Part]


class _Hits(BaseModel):
    data: list[_Hit]


class _Context(BaseModel):
    class Usage(BaseModel):
        used: int

    messages: list[dict[str, JsonValue]]
    usage: Usage


class _Appended(BaseModel):
    class Turn(BaseModel):
        id: str

    turns: list[Turn]


class _Created(BaseModel):
    id: str


@dataclass(frozen=True, slots=True)
class Document:
    """A text, and questions about single sentences of it: each with its sentence."""

    role: str
    text: str
    tokens: int
    questions: Sequence[tuple[str, str]]


@dataclass(slots=True)
class Shares:
    """For each question whether its sentence is in the best passage, in any, and in a context; and who is over."""

    best: list[bool] = field(default_factory=list[bool])
    any: list[bool] = field(default_factory=list[bool])
    context: list[bool] = field(default_factory=list[bool])
    over: int = 0


def documents(chance: random.Random, count: int, questions: int, fillers: Sequence[str]) -> list[Document]:
    """Return documents of many lengths, with so many questions in all."""
    counter = TiktokenCounter("o200k_base")
    return [
        _document(
            chance, ROLES[number % len(ROLES)], questions // count + (number < questions % count), fillers, counter
        )
        for number in range(count)
    ]


def _document(
    chance: random.Random, role: str, questions: int, fillers: Sequence[str], counter: TiktokenCounter
) -> Document:
    wanted = chance.randint(MIN_TOKENS, MAX_TOKENS)
    facts: dict[str, str] = {}
    sentences: list[str] = []
    tokens = 0
    while tokens < wanted:
        sentence = _filled(chance, chance.choice(_FILLERS)) if not fillers else chance.choice(fillers)
        if chance.random() < SHARE_OF_FACTS:
            said, asked = chance.choice(_FACTS)
            words = _words(chance)
            question = asked.format(**words)
            if question not in facts:  # what is asked for is said once
                sentence = facts[question] = said.format(**words)
        sentences.append(sentence)
        tokens += counter.count(sentence)
    lines = ["".join(f"{sentence}{chance.choice((' ', ' ', ' ', chr(10)))}" for sentence in sentences)]
    return Document(role, lines[0].strip(), tokens, chance.sample(list(facts.items()), questions))


def _words(chance: random.Random) -> dict[str, str]:
    return {
        "place": chance.choice(_PLACES),
        "thing": chance.choice(_THINGS),
        "person": chance.choice(_PEOPLE),
        "goods": chance.choice(_GOODS),
        "month": chance.choice(_MONTHS),
        "number": str(chance.randint(2, 4_000)),
    }


def _filled(chance: random.Random, pattern: str) -> str:
    return pattern.format(**_words(chance))


def read_fillers(texts: Path | None) -> list[str]:
    """Return the sentences of a text file, or of all strings of a JSON file."""
    if texts is None:
        return []
    content = texts.read_text()
    found = _strings(json.loads(content)) if texts.suffix == ".json" else [content]
    sentences = [sentence.strip() for text in found for sentence in re.split(r"(?<=[.!?])\s+|\n+", text)]
    return [sentence for sentence in sentences if len(sentence) > 20]  # noqa: PLR2004 - shorter ones say nothing


def _strings(value: JsonValue) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inner for text in _strings(item)]


async def store(client: Client, document: Document) -> tuple[str, str]:
    """Store a document in a conversation of its own; return the ids of the conversation and of the turn."""
    created = await client.demand("create", "/v1/conversations", {})
    conversation_id = _Created.model_validate_json(created.body).id
    turns: list[JsonValue] = [{"role": "user", "content": "Here is what I found on all of it."}]
    if document.role == "tool":
        call: JsonValue = {"id": "c1", "name": "read_file", "arguments": "{}"}
        turns.append({"role": "assistant", "content": None, "tool_calls": [call]})
        turns.append({"role": "tool", "tool_results": [{"tool_call_id": "c1", "content": document.text}]})
    else:
        turns.append({"role": document.role, "content": document.text})
    turns.append({"role": "assistant", "content": "Understood. What would you like to know?"})
    answer = await client.demand("append", f"/v1/conversations/{conversation_id}/turns", {"turns": turns})
    return conversation_id, _Appended.model_validate_json(answer.body).turns[-2].id


async def measure(root: Path, stored: Sequence[Document]) -> dict[str, Shares]:
    """Store the documents and ask all questions; return the shares by role."""
    shares: defaultdict[str, Shares] = defaultdict(Shares)
    async with serve(root, rate_limits="off") as server, Client(server.url, server.key) as client:
        for document in track(stored, "documents", console=Console(stderr=True)):
            conversation_id, turn_id = await store(client, document)
            for question, sentence in document.questions:
                body: dict[str, JsonValue] = {"query": question, "k": 5}
                answer = await client.demand("recall", f"/v1/conversations/{conversation_id}/recall", body)
                hits = {hit.id: hit for hit in _Hits.model_validate_json(answer.body).data}
                hit = hits.get(turn_id)
                best = hit is not None and sentence in hit.text
                shares[document.role].best.append(best)
                further = hit is not None and any(sentence in part.text for part in hit.passages)
                shares[document.role].any.append(best or further)
                await _build(client, conversation_id, question, sentence, shares[document.role])
    return shares


async def _build(client: Client, conversation_id: str, question: str, sentence: str, shares: Shares) -> None:
    """Build a context for a question, and note whether it shows the sentence."""
    body: dict[str, JsonValue] = {"query": question, "token_budget": BUDGET, "semantic_recall": {}}
    answer = await client.demand("context", f"/v1/conversations/{conversation_id}/context", body)
    context = _Context.model_validate_json(answer.body)
    shown = [text for message in context.messages for text in _strings(message)]
    shares.context.append(any(sentence in " ".join(text.split()) for text in shown))
    shares.over += context.usage.used > BUDGET


def main(
    questions: Annotated[int, typer.Option(min=1)] = 200,
    count: Annotated[int, typer.Option(min=1, help="Documents.")] = 24,
    seed: int = 1,
    texts: Annotated[Path | None, typer.Option(help="A text or JSON file whose sentences stand between.")] = None,
) -> None:
    """Ask for single sentences of long documents."""
    made = documents(random.Random(seed), count, questions, read_fillers(texts))  # noqa: S311 - repeatable
    root = Path(tempfile.mkdtemp(prefix="turnkeep-sentences-"))
    try:
        shares = asyncio.run(measure(root, made))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    tokens = [document.tokens for document in made]
    table = Table(title=f"{questions} questions, {count} documents of {min(tokens)} to {max(tokens)} tokens")
    for column in ("role", "questions", "best", "any", "context", "over"):
        table.add_column(column)
    for role, share in shares.items():
        figures = (sum(values) / len(values) for values in (share.best, share.any, share.context))
        table.add_row(role, str(len(share.best)), *(f"{100 * value:.1f} %" for value in figures), str(share.over))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
