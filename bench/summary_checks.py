"""Measures the checks of summaries on real conversations: good summaries refused, and odd ones accepted.

    .venv/bin/python bench/summary_checks.py locomo.json chats.json

Each file is of the LoCoMo shape, or a list of chats: {"id", "turns": [{"date", "role", "text"}]}. Without a file, the
dialogues of `language_pairs` are measured, in eight languages. The turns are cut into ranges as a compaction does, and
summaries are extracted from each: first, dense and random sentences of 5, 10 and 25 % of the text, alone and after an
earlier summary. LoCoMo has written summaries of its sessions, too. Nothing of the data is printed.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Annotated, Final, cast

import typer
from languages import LANGUAGES, dialogue, read
from locomo import read_dialogues
from odd_summaries import KINDS, SHARES, Case, Said, extract, odd
from rich.console import Console
from rich.table import Table

from app.context.compaction.claims import Shown, SummarySource
from app.context.compaction.summariser import INSTRUCTIONS

TURNS: Final = 40
MAX_CHARACTERS: Final = 50_000
WAYS: Final = ("first", "dense", "random")
START: Final = datetime(2026, 1, 5, 9, tzinfo=UTC)
_CHAT_DATE: Final = "%B-%d-%Y"


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation of a file, with summaries of its sessions where the file has them: (turns, summary)."""

    turns: Sequence[Said]
    written: Sequence[tuple[Sequence[Said], str]] = ()


@dataclass(slots=True)
class Counts:
    """Summaries by kind, and how many of them were refused, by reason."""

    total: Counter[str] = field(default_factory=Counter[str])
    refused: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])

    def add(self, kind: str, refusal: str | None) -> None:
        """Count a summary."""
        self.total[kind] += 1
        if refusal is not None:
            self.refused.setdefault(kind, Counter())[refusal] += 1


def read_file(path: Path) -> list[Conversation]:
    """Read a file of either shape."""
    rows = cast("list[dict[str, object]]", json.loads(path.read_bytes()))
    if "conversation" not in rows[0]:
        return [Conversation(_chat(row)) for row in rows]
    dialogues = read_dialogues(path)
    return [
        Conversation(
            turns := [Said(turn.actor, turn.text, turn.occurred_at) for turn in dialogue.turns],
            list(_sessions(row, [(turn.key, said) for turn, said in zip(dialogue.turns, turns, strict=True)])),
        )
        for row, dialogue in zip(rows, dialogues, strict=True)
    ]


def _sessions(row: dict[str, object], turns: Sequence[tuple[str, Said]]) -> Iterator[tuple[Sequence[Said], str]]:
    summaries = cast("dict[str, str]", row.get("session_summary", {}))
    for name, summary in summaries.items():
        number = name.split("_")[1]
        of_session = [said for key, said in turns if key.startswith(f"D{number}:")]
        if of_session:
            yield of_session, summary


def _chat(row: dict[str, object]) -> list[Said]:
    turns = cast("list[dict[str, str]]", row["turns"])
    return [
        Said(turn["role"], turn["text"], datetime.strptime(turn["date"], _CHAT_DATE).replace(tzinfo=UTC))
        for turn in turns
    ]


def read_languages() -> list[Conversation]:
    """Return the dialogues of `language_pairs`."""
    conversations: list[Conversation] = []
    for code in LANGUAGES:
        given = read(code)
        turns = dialogue(given, with_facts=True)
        conversations.append(
            Conversation(
                [Said(turn.speaker, turn.text, START + timedelta(minutes=at)) for at, turn in enumerate(turns)]
            )
        )
    return conversations


def ranges(turns: Sequence[Said]) -> list[list[Said]]:
    """Cut turns as a compaction does, by their number and their text."""
    cut: list[list[Said]] = [[]]
    for turn in turns:
        size = sum(len(said.text) for said in cut[-1])
        if cut[-1] and (len(cut[-1]) == TURNS or size + len(turn.text) > MAX_CHARACTERS):
            cut.append([])
        cut[-1].append(turn)
    return cut


def source_of(turns: Sequence[Said], before: str | None = None) -> SummarySource:
    """Return the texts that a model reads, and its instructions."""
    earlier = [] if before is None else [Shown(before)]
    shown = [*earlier, *(Shown(turn.text, turn.actor, turn.occurred_at) for turn in turns)]
    return SummarySource(shown, prompt=INSTRUCTIONS)


def measure(conversations: Sequence[Conversation], *, seed: int) -> tuple[Counts, Counts]:
    """Return the counts of good and of odd summaries."""
    chance = random.Random(seed)  # noqa: S311 - the same cases in every run
    good, bad = Counts(), Counts()
    others = [
        extract(cut, way="dense", share=0.1, chance=chance)
        for one in conversations[::-1]
        for cut in ranges(one.turns)[:1]
    ]
    for place, conversation in enumerate(conversations):
        before: str | None = None
        for turns in ranges(conversation.turns):
            source = source_of(turns)
            for way, share in product(WAYS, SHARES):
                summary = extract(turns, way=way, share=share, chance=chance)
                good.add(f"{way} {share:.0%}", source.refusal(summary))
            dense = extract(turns, way="dense", share=0.1, chance=chance)
            if before is not None:
                good.add("rolling", source_of(turns, before).refusal(f"{before} {dense}"))
            before = dense
            other = others[(len(conversations) - place) % len(conversations)]
            case = Case(turns, extract(turns, way="dense", share=0.1, chance=chance), other)
            for kind in KINDS:
                text = odd(kind, case, chance)
                if text is not None:
                    bad.add(kind, source.refusal(text))
        for turns, summary in conversation.written:
            good.add("written", source_of(turns).refusal(summary))
        _measure_other_sessions(conversation, bad)
    return good, bad


def _measure_other_sessions(conversation: Conversation, bad: Counts) -> None:
    """Count the written summaries of other sessions of the same conversation."""
    written = conversation.written
    for at, (turns, _) in enumerate(written):
        source = source_of(turns)
        for step in (1, 3, 7):
            if step < len(written):
                bad.add("written of another session", source.refusal(written[(at + step) % len(written)][1]))


def print_counts(console: Console, title: str, counts: Counts) -> None:
    """Print how many summaries of each kind were refused, and why."""
    table = Table("kind", "summaries", "refused", "accepted", "reasons", title=title)
    for kind, total in counts.total.items():
        refused = counts.refused.get(kind, Counter())
        reasons = ", ".join(f"{reason} {count}" for reason, count in refused.most_common())
        table.add_row(kind, str(total), str(refused.total()), str(total - refused.total()), reasons)
    total, refused = counts.total.total(), sum(one.total() for one in counts.refused.values())
    table.add_row("all", str(total), str(refused), str(total - refused), f"refused {refused / max(1, total):.2%}")
    console.print(table)


def main(data: Annotated[list[Path] | None, typer.Argument()] = None, seed: int = 1) -> None:
    """Measure the checks of summaries on files, or on the dialogues in eight languages."""
    console = Console(width=140)
    measured = [(path.name, read_file(path)) for path in data or []] or [("language_pairs", read_languages())]
    for name, conversations in measured:
        good, bad = measure(conversations, seed=seed)
        print_counts(console, f"{name}: good summaries", good)
        print_counts(console, f"{name}: odd summaries", bad)


if __name__ == "__main__":
    typer.run(main)
