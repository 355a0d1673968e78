"""What must hold of streamed turns after any number of kills: writers' logs against the tables, past every policy."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg

from tests.soak.checks import check_chain, ulid
from tests.soak.live_texts import ARGUMENTS, GARBAGE, Plan, plan_of

Row = dict[str, Any]

_COUNTED: Final = {
    "opened": "turns opened",
    "durable": "acks of durable text",
    "resumed": "resumes",
    "rivalled": "writers fenced off by a rival",
    "waited": "turns whose last flush was awaited",
    "committed": "acknowledged as committed",
    "aborted": "acknowledged as aborted",
}


@dataclass
class Ledger:
    """What one turn's writers were told of it."""

    opened: bool = False
    durable: dict[str, int] = field(default_factory=dict)
    ended: str | None = None
    asked_to_end: bool = False


@dataclass
class Logs:
    """What all writers of a round have written down."""

    turns: dict[str, Ledger] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    wrongs: list[str] = field(default_factory=list)


def read_logs(paths: Sequence[Path]) -> Logs:
    """Read the writers' logs."""
    logs = Logs()
    for path in paths:
        for line in path.read_bytes().splitlines():
            _read(logs, json.loads(line))
    logs.counts["characters acknowledged as durable"] = sum(
        length for ledger in logs.turns.values() for length in ledger.durable.values()
    )
    return logs


def _read(logs: Logs, event: dict[str, Any]) -> None:
    what, counts = event["e"], logs.counts
    if what == "wrong":
        logs.wrongs.append(event["what"])
    if "u" not in event or what == "wrong":
        return
    ledger = logs.turns.setdefault(event["u"], Ledger())
    if what in _COUNTED:
        counts[_COUNTED[what]] += 1
    match what:
        case "opened":
            ledger.opened = True
        case "durable":
            ledger.durable[event["part"]] = max(event["to"], ledger.durable.get(event["part"], 0))
        case "refused":
            counts[f"refused {event['code']} over {event['over']}"] += 1
        case "ending":
            ledger.asked_to_end = True
        case "committed" | "aborted":
            ledger.ended = what
        case _:
            pass


async def read_rows(superuser_url: str) -> list[Row]:
    """All turns, of all conversations."""
    connection = await asyncpg.connect(superuser_url)
    try:
        return [dict(row) for row in await connection.fetch("select * from turns order by conversation_id, seq")]
    finally:
        await connection.close()


async def list_open(superuser_url: str) -> dict[str, float]:
    """The turns that have a stream or are pending, and for how many seconds nothing was heard of their writers."""
    connection = await asyncpg.connect(superuser_url, timeout=3, command_timeout=3)
    try:
        rows = await connection.fetch(
            """
            select t.id, extract(epoch from clock_timestamp() - greatest(coalesce(s.renewed_at, t.created_at), (
                select max(c.created_at) from turn_chunks c where c.turn_id = t.id)))::float8 as age_s
            from turns t left join turn_streams s on s.turn_id = t.id
            where t.status = 'pending' or s.turn_id is not null
            """
        )
        return {ulid(row["id"]): row["age_s"] for row in rows}
    finally:
        connection.terminate()  # what is killed meanwhile cannot be closed well


async def leftovers(superuser_url: str) -> list[str]:
    """What should not be there when every turn has ended."""
    connection = await asyncpg.connect(superuser_url)
    try:
        counted = {
            table: await connection.fetchval(f"select count(*) from {table}")  # noqa: S608 - names of ours
            for table in ("turn_streams", "turn_chunks")
        }
    finally:
        await connection.close()
    return [f"{count} rows are left in {table}" for table, count in counted.items() if count]


def served(row: Row) -> Row:
    """A row as the API shows it, as far as it is compared."""
    calls = [] if row["tool_calls"] is None else json.loads(row["tool_calls"])
    return {
        "id": ulid(row["id"]),
        "status": row["status"],
        "seq": row["seq"],
        "content": None if row["content"] is None else json.loads(row["content"]),
        "tool_calls": calls,
        "superseded_by": None if row["superseded_by"] is None else ulid(row["superseded_by"]),
    }


def check_turns(logs: Logs, rows: Sequence[Row], seed: int) -> Iterator[str]:
    """Every acknowledged character is there once, every acknowledged end is what became of the turn."""
    by_id = {ulid(row["id"]): served(row) for row in rows}
    if len(by_id) != len(rows):
        yield "an id is there twice"
    for turn_id, ledger in logs.turns.items():
        row = by_id.pop(turn_id, None)
        if row is None:
            if ledger.opened or ledger.durable:
                yield f"turn {turn_id} was acknowledged and is not there"
            continue
        yield from (f"turn {turn_id} {sentence}" for sentence in _check_turn(ledger, row, seed))
    yield from (f"turn {turn_id} is nobody's" for turn_id in by_id)


def _check_turn(ledger: Ledger, row: Row, seed: int) -> Iterator[str]:
    plan = plan_of(seed, row["id"])
    calls = row["tool_calls"]
    texts = {"content": row["content"] or ""}
    if calls:
        texts |= {f"tool_calls/0/{name}": calls[0].get(name, "") for name in ("id", "name", "arguments")}
    if GARBAGE in json.dumps(row, ensure_ascii=False, default=str):
        yield "has text of a writer that was fenced off"
    if row["status"] not in {"committed", "aborted"}:
        yield f"is {row['status']}"
    if ledger.ended not in {None, row["status"]}:
        yield f"was acknowledged as {ledger.ended} and is {row['status']}"
    if row["status"] == "committed" and not ledger.asked_to_end:
        yield "is committed, which nobody asked for"
    if row["status"] == "aborted" and row["superseded_by"] is None:
        yield "is aborted, and stands"
    yield from _committed_texts(texts, plan) if row["status"] == "committed" else _aborted_texts(texts, plan, ledger)


def _committed_texts(texts: dict[str, str], plan: Plan) -> Iterator[str]:
    if texts["content"] != plan.content or (plan.arguments is not None and texts.get(ARGUMENTS) != plan.arguments):
        yield "is committed with other content than was written"


def _aborted_texts(texts: dict[str, str], plan: Plan, ledger: Ledger) -> Iterator[str]:
    for part, length in ledger.durable.items():
        if len(texts.get(part, "")) < length:
            yield f"had {length} characters of {part} acknowledged as durable, and has {len(texts.get(part, ''))}"
    for part, text in texts.items():
        if not plan.parts.get(part, "").startswith(text):
            yield f"has other text in {part} than was written"


def check_conversations(rows: Sequence[Row]) -> Iterator[str]:
    """In each conversation seq has no gap, and every hash and link holds."""
    of: dict[Any, list[Row]] = {}
    for row in rows:
        if row["status"] == "committed":
            of.setdefault(row["conversation_id"], []).append(row)
    for conversation_id, turns in of.items():
        name = ulid(conversation_id)
        if [row["seq"] for row in turns] != list(range(1, len(turns) + 1)):
            yield f"conversation {name}: seq is not 1..{len(turns)}"
        yield from (f"conversation {name}: {sentence}" for sentence in check_chain(turns))
