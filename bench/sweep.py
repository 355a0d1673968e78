"""Conversations past their time are swept while others are appended to: what the sweep costs the appends.

    .venv/bin/python bench/sweep.py --conversations 10000 --turns 5

Starts a server on a database in a folder of its own, makes conversations that have expired (by SQL), and appends to
living ones over HTTP, a few clients at a time: some seconds before the sweep, all the while it goes on, and some
seconds after it. Both rests together are what the sweep is compared with, since the machine is not the same from one
minute to the next. Prints p50 and p95 of an append with the sweep and without, their ratios, and how long it took.

Exits with 1 when an append fails, when anything that has expired is left, or a living conversation lacks a turn.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import asyncpg
import typer
from client import Client
from figures import percentile
from pydantic import BaseModel, JsonValue
from rich.console import Console
from rich.table import Table
from server import serve

LONGEST_S: Final = 900.0
MS: Final = 1000.0
GOAL: Final = 1.5
CLIENTS: Final = 4
EXPIRED: Final = """
    with made as (
        insert into conversations (tenant_id, id, project, external_id, compaction, facts, ttl_s, expires_at,
                                   created_at, updated_at, active_at)
        select t.tenant_id, gen_random_uuid(), 'default', 'expired ' || n, c.compaction, c.facts, 60,
               now() - interval '1 hour', now() - interval '1 day', now() - interval '1 day', now() - interval '1 day'
        from tenants t cross join generate_series(1, $1::int) n
        cross join (select compaction, facts from conversations limit 1) c
        returning tenant_id, id
    ), heads as (
        insert into conversation_heads (tenant_id, conversation_id, chain_hash, updated_at, last_seq, turn_count)
        select tenant_id, id, '', now() - interval '1 day', $2::int, $2::int from made
    ), said as (
        insert into turns (tenant_id, id, conversation_id, seq, position, rev, kind, actor, role, status, occurred_at,
                           created_at, content, salt, content_hash, chain_hash)
        select tenant_id, gen_random_uuid(), id, n, n, n, 'user_message', 'user', 'user', 'committed', now(), now(),
               to_json('The quick brown fox jumps over lazy dog number ' || n), '', '', ''
        from made, generate_series(1, $2::int) n returning tenant_id, id, conversation_id, position
    )
    insert into index_entries (tenant_id, entry_id, kind, conversation_id, project, position, session, actor, role,
                               occurred_at, doc_length, lexemes, terms, cues, language)
    select tenant_id, id, 'turn', conversation_id, 'default', position, 1, 'user', 'user', now(), 9,
           array_to_tsvector(array['quick', 'brown', 'fox', 'jump', 'lazi', 'dog', 'number', position::text]), '', 0,
           'en'
    from said
"""


class _Identified(BaseModel):
    id: str


@dataclass(slots=True)
class Run:
    """A server, its database, and how long appends took in each phase."""

    url: str
    key: str
    postgres: str
    phase: str = "rest"
    appended: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    stopping: bool = False


async def append_on(run: Run, conversation: str) -> None:
    """Append a turn at a time until told to stop, and record how long each took under its phase."""
    async with Client(run.url, run.key) as client:
        while not run.stopping:
            phase = run.phase
            body: dict[str, JsonValue] = {
                "turns": [{"role": "user", "content": f"Living turn {run.appended}, said while others go."}]
            }
            answer = await client.demand("append", f"/v1/conversations/{conversation}/turns", body)
            run.appended += 1
            if phase == run.phase:
                run.seconds.setdefault(phase, []).append(answer.seconds)


async def sweep(run: Run) -> float:
    """Let the sweep begin, and wait until nothing of what has expired is left; seconds that it took."""
    connection = await asyncpg.connect(run.postgres)
    try:
        began = time.perf_counter()
        await connection.execute("update jobs set run_at = now() where kind = 'conversations.sweep'")
        async with asyncio.timeout(LONGEST_S):
            waits = "select exists (select from conversations where expires_at < now())"
            while await connection.fetchval(waits):  # noqa: ASYNC110 - another process decides
                await asyncio.sleep(0.1)
        return time.perf_counter() - began
    finally:
        await connection.close()


async def measure(run: Run, conversations: int, turns: int, rest_s: float) -> tuple[float, int]:
    """Append before, during and after a sweep; seconds of the sweep, and how many living turns are missing."""
    living: list[str] = []
    async with Client(run.url, run.key) as client:
        for number in range(CLIENTS):
            answer = await client.demand("create", "/v1/conversations", {"external_id": f"living {number}"})
            living.append(_Identified.model_validate_json(answer.body).id)
    connection = await asyncpg.connect(run.postgres)
    await connection.execute("set statement_timeout = 0")
    await connection.execute(EXPIRED, conversations, turns)
    await connection.execute("vacuum analyze")
    appending = [asyncio.create_task(append_on(run, one)) for one in living]
    try:
        run.phase = "warm-up"
        await asyncio.sleep(min(3.0, rest_s))
        run.phase = "rest"
        await asyncio.sleep(rest_s)
        run.phase = "sweep"
        took_s = await sweep(run)
        run.phase = "settling"
        await asyncio.sleep(1.0)
        run.phase = "rest"
        await asyncio.sleep(rest_s)
    finally:
        run.stopping = True
        await asyncio.gather(*appending)
    left = await connection.fetchval("select count(*) from turns")
    await connection.close()
    return took_s, run.appended - int(left)


def _row(name: str, values: Sequence[float]) -> list[str]:
    return [name, str(len(values)), f"{percentile(values, 0.5) * MS:.1f}", f"{percentile(values, 0.95) * MS:.1f}"]


async def _main(conversations: int, turns: int, rest_s: float) -> int:
    console = Console()
    with tempfile.TemporaryDirectory(prefix="tk-sweep-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        await asyncio.to_thread(root.chmod, 0o711)
        async with serve(root, embedder="none", sweep_interval_s="86400") as server:
            run = Run(server.url, server.key, server.postgres)
            took_s, missing = await measure(run, conversations, turns, rest_s)
    table = Table("appends", "count", "p50 ms", "p95 ms")
    for phase in ("rest", "sweep"):
        table.add_row(*_row(phase, run.seconds.get(phase, [])))
    console.print(table)
    ratios = [
        percentile(run.seconds["sweep"], share) / max(percentile(run.seconds["rest"], share), 1e-9)
        for share in (0.5, 0.95)
    ]
    console.print(
        f"{conversations} conversations of {turns} turns went in {took_s:.1f} s;"
        f" p50 x {ratios[0]:.2f}, p95 x {ratios[1]:.2f} (goal: {GOAL})"
    )
    if missing:
        console.print(f"turns of living conversations that are missing, or of expired ones that are left: {missing}")
    return 1 if missing else 0


def main(
    conversations: Annotated[int, typer.Option(help="Conversations that have expired.")] = 10_000,
    turns: Annotated[int, typer.Option(help="Turns of each.")] = 5,
    rest_s: Annotated[float, typer.Option(help="Seconds of appends before the sweep, and after it.")] = 15.0,
) -> None:
    """Measure."""
    raise SystemExit(asyncio.run(_main(conversations, turns, rest_s)))


if __name__ == "__main__":
    typer.run(main)
