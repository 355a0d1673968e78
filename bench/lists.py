"""Lists of conversations of a large tenant: how long a page takes, and whether head updates stay HOT.

    .venv/bin/python bench/lists.py --conversations 100000 --turns 4

Starts a server on a database in a folder of its own and makes conversations with turns (by SQL), active over the last
90 days. Then it lists over HTTP, one request at a time: first with nothing written lately, then with so many
conversations written to within the last minute (`--active`), which a page has to put in order exactly. Last, it appends
over HTTP and prints the share of the updates of `conversation_heads` that were HOT.

Prints p50 and p95 of each kind of page. Exits with 1 when a page is not in the order of `active_at`, or less than 95 %
of the updates were HOT.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Final

import asyncpg
import typer
from client import Client
from figures import Latencies, print_latencies
from pydantic import BaseModel, JsonValue
from rich.console import Console
from server import serve

HOT_GOAL: Final = 0.95
APPENDS: Final = 1000
SETTLE_S: Final = 15.0
CONVERSATIONS: Final = """
    with made as (
        insert into conversations (tenant_id, id, project, owner, title, compaction, facts, created_at, updated_at,
                                   active_at)
        select t.tenant_id, gen_random_uuid(), 'p' || n % 10, 'owner ' || n % 1000, 'Conversation ' || n, c.compaction,
               c.facts, at, at, at
        from tenants t cross join generate_series(1, $1::int) n
        cross join (select compaction, facts from conversations limit 1) c
        cross join lateral (
            select date_trunc('milliseconds', now() - interval '10 min' - n * interval '90 days' / $1) as at
        ) a returning tenant_id, id, active_at
    ), heads as (
        insert into conversation_heads (tenant_id, conversation_id, chain_hash, updated_at, active_at, last_seq,
                                        turn_count, rev)
        select tenant_id, id, '\\x00', active_at, active_at, $2::int, $2::int, $2::int from made
    )
    insert into turns (tenant_id, id, conversation_id, seq, position, rev, kind, actor, role, status, occurred_at,
                       created_at, committed_at, content, salt, content_hash, chain_hash)
    select tenant_id, gen_random_uuid(), id, n, n, n, case n % 2 when 1 then 'user_message' else 'agent_message' end,
           'someone', case n % 2 when 1 then 'user' else 'assistant' end, 'committed', active_at, active_at, active_at,
           to_json('Message ' || n || ': ' || repeat('some words of a message of usual length ', 8)), '', '', ''
    from made, generate_series(1, $2::int) n
"""
ACTIVE: Final = """
    with chosen as (
        select tenant_id, id, date_trunc('milliseconds', now() - random() * interval '60 seconds') as listed_at
        from conversations order by active_at desc offset 100 limit $1
    ), moved as (
        update conversations c set active_at = s.listed_at from chosen s where c.tenant_id = s.tenant_id and c.id = s.id
    )
    update conversation_heads h
    set active_at = date_trunc('milliseconds', s.listed_at + random() * (now() - s.listed_at))
    from chosen s where h.tenant_id = s.tenant_id and h.conversation_id = s.id
"""


class _Identified(BaseModel):
    id: str
    active_at: str


class _Page(BaseModel):
    data: list[_Identified]
    next_cursor: str | None


async def list_pages(client: Client, latencies: Latencies, *, phase: str, rounds: int) -> int:
    """Ask for each kind of page so many times; how many pages were not in order."""
    wrong = 0
    for number in range(rounds):
        wrong += await _read(client, latencies, f"{phase}: first page", "/v1/conversations?limit=20")
        wrong += await _read(client, latencies, f"{phase}: of a project", f"/v1/conversations?project=p{number % 10}")
        owner = f"/v1/conversations?owner=owner%20{number % 1000}"
        wrong += await _read(client, latencies, f"{phase}: of an owner", owner)
        wrong += await _read(client, latencies, f"{phase}: 200 a page", "/v1/conversations?limit=200")
    cursor = ""
    for _ in range(rounds):
        path = f"/v1/conversations?limit=20{cursor}"
        answer = await client.get("list", path)
        page = _Page.model_validate_json(answer.body)
        if cursor:
            latencies.record(f"{phase}: further pages", answer.seconds)
        cursor = f"&cursor={page.next_cursor}"
        wrong += not _is_ordered(page)
    return wrong


async def _read(client: Client, latencies: Latencies, name: str, path: str) -> int:
    answer = await client.get("list", path)
    latencies.record(name, answer.seconds)
    return not _is_ordered(_Page.model_validate_json(answer.body))


def _is_ordered(page: _Page) -> bool:
    moments = [one.active_at for one in page.data]
    return bool(moments) and moments == sorted(moments, reverse=True)


async def hot_share(client: Client, connection: "asyncpg.Connection[asyncpg.Record]") -> float:
    """Append to conversations of the top of the list, and give the share of head updates that were HOT."""
    page = _Page.model_validate_json((await client.get("list", "/v1/conversations?limit=200")).body)
    before = await _updates(connection)
    for number in range(APPENDS):
        body: dict[str, JsonValue] = {"turns": [{"role": "user", "content": f"Once more, {number}."}]}
        await client.demand("append", f"/v1/conversations/{page.data[number % len(page.data)].id}/turns", body)
    await asyncio.sleep(SETTLE_S)  # backends report what they did within seconds
    after = await _updates(connection)
    return (after[1] - before[1]) / max(1, after[0] - before[0])


async def _updates(connection: "asyncpg.Connection[asyncpg.Record]") -> tuple[int, int]:
    row = await connection.fetchrow(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'conversation_heads'"
    )
    return (0, 0) if row is None else (int(row["n_tup_upd"]), int(row["n_tup_hot_upd"]))


async def _main(conversations: int, turns: int, active: int, rounds: int) -> int:
    console, latencies = Console(), Latencies()
    with tempfile.TemporaryDirectory(prefix="tk-lists-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        await asyncio.to_thread(root.chmod, 0o711)
        async with serve(root, embedder="none") as server, Client(server.url, server.key) as client:
            await client.demand("create", "/v1/conversations", {"external_id": "a pattern"})
            connection = await asyncpg.connect(server.postgres)
            await connection.execute("set statement_timeout = 0")
            await connection.execute(CONVERSATIONS, conversations, turns)
            await connection.execute("vacuum analyze")
            wrong = await list_pages(client, latencies, phase="quiet", rounds=rounds)
            for _ in range(3):  # what was active a minute ago is not any more
                await connection.execute(ACTIVE, active)
                wrong += await list_pages(client, latencies, phase=f"{active} active", rounds=rounds // 3)
            share = await hot_share(client, connection)
            await connection.close()
    print_latencies(console, latencies, {})
    console.print(f"{conversations} conversations; pages out of order: {wrong}; HOT updates of heads: {share:.1%}")
    return 1 if wrong or share < HOT_GOAL else 0


def main(
    conversations: Annotated[int, typer.Option(help="Conversations of the tenant.")] = 100_000,
    turns: Annotated[int, typer.Option(help="Turns of each.")] = 4,
    active: Annotated[int, typer.Option(help="Conversations written to within the last minute.")] = 2_000,
    rounds: Annotated[int, typer.Option(help="Pages of each kind.")] = 100,
) -> None:
    """Measure."""
    raise SystemExit(asyncio.run(_main(conversations, turns, active, rounds)))


if __name__ == "__main__":
    typer.run(main)
