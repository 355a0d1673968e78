"""Every statement of a request goes to one shard, on a real Citus: what `explain` says of each one that was sent."""

import asyncio
import json
import os
import subprocess
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import asyncpg

from app.core.database.schema import OWNER_ROLE
from app.core.database.transactions import APP_ROLE, OPS_ROLE
from tests.support.api import Client, Service
from tests.support.command import ROOT, TURNKEEP
from tests.support.not_on_citus import NOT_ON_CITUS
from tests.support.postgres import fetch_as_superuser
from tests.support.routing import describe, listed_senders, recorded_statements, spread_statements


async def walk(client: Client, service: Service) -> None:
    """Use what requests and jobs of a tenant use most."""
    conversation = await client.conversation(external_id="x", participants=["ann"], title="parrots")
    path = f"/v1/conversations/{conversation}"
    call = {"role": "assistant", "tool_calls": [{"id": "c", "name": "f", "arguments": ""}]}
    await client.append(conversation, "the first parrot", call)
    await client.append(conversation, {"role": "tool", "tool_call_id": "c", "content": "x"}, "it was yesterday")
    await client.append(conversation, *[f"turn {number}" for number in range(70)])
    for _ in range(2):
        body = {"turns": [{"role": "user", "content": "y"}]}
        await client.post(f"{path}/turns", json=body, headers={"Idempotency-Key": "k"})
        await client.recall(conversation, "parrot", neighbours=1)
        await client.recall(None, "parrot", project="default", owner="o")
    await client.patch(path, json={"title": "t", "compaction": {"trigger_turns": 10}})
    await client.get("/v1/conversations", params={"project": "default", "participant": "ann"})
    await client.post("/v1/conversations/search", json={"title": "t", "metadata": {}})
    turns = await client.history(conversation)
    await client.history(conversation, after=3, actors=["user"])
    await client.get(f"{path}/turns", params={"since_rev": 2})
    await client.context(conversation, 700, semantic_recall={"k": 3}, include_facts=True, recent_turns=3)
    await client.post(f"{path}/turns/{turns[0]['id']}/revisions", json={"content": "eins"})
    await client.delete(f"{path}/turns/{turns[-1]['id']}")
    await client.get(f"{path}/verify")
    opened = await client.post(f"{path}/turns/open", json={"turn": {"role": "assistant"}, "writer": "w"})
    assert opened.status_code == 201, opened.text
    streamed = f"{path}/turns/{opened.json()['turn']['id']}"
    await client.post(f"{streamed}/chunks?durable=true", json={"offset": 0, "delta": "hello"})
    await client.post(f"{streamed}/commit", json={})
    fact = {"subject": "ann", "predicate": "likes", "object": "tea", "source_turn_ids": [turns[1]["id"]]}
    await client.post("/v1/facts", json=fact)
    await client.get("/v1/facts", params={"subject": "ann"})
    memory = {"content": "likes tea", "owner": "ann", "ttl_s": 60}
    for _ in range(2):
        stored = await client.post("/v1/memories", json=memory)
    await client.post("/v1/memories/search", json={"query": "tea"})
    await client.get("/v1/memories")
    await client.delete(f"/v1/memories/{stored.json()['id']}")
    await client.post(f"{path}/fork", json={"through_seq": 3})
    await service.run_jobs()
    await client.delete(path)
    await service.run_jobs()


async def test_every_statement_goes_to_one_shard_or_its_function_is_listed_with_the_reason(
    client: Client, service: Service
) -> None:
    with recorded_statements() as sent:
        await walk(client, service)
    assert len([one for one in sent.values() if one.tenant_id is not None]) > 80, "the statements were recorded"
    spread = await spread_statements(service.database, sent)
    assert [one for one in spread if one.sender not in listed_senders()] == [], describe(spread)


async def test_the_functions_of_searches_ask_one_node(client: Client, service: Service) -> None:
    await client.append(await client.conversation(), "a parrot", "another parrot", "an owl")
    scope = "'{turn}', null, null, null, null, null, null, null, null, null"
    connection = await asyncpg.connect(service.database.app)
    try:
        async with connection.transaction():
            await connection.execute(f"set local app.tenant = '{client.tenant_id}'")
            await connection.execute("set local citus.multi_task_query_log_level = 'error'")
            counted = await connection.fetch(f"select * from count_in_scope('{{parrot,owl}}', {scope})")  # noqa: S608
            matched = await connection.fetch(f"select * from match_in_scope('parrot', 10, {scope})")  # noqa: S608
    finally:
        await connection.close()
    assert [tuple(row) for row in counted] == [(1, 2), (2, 1)]
    assert len(matched) == 2


def test_every_listed_function_is_one_of_the_application() -> None:
    assert len(listed_senders()) > 20
    for sender, reason in listed_senders().items():
        module, _, name = sender.partition(":")
        assert callable(attrgetter(name)(import_module(module))), sender
        assert len(reason) > 10, sender


def test_every_test_that_is_left_out_on_citus_exists() -> None:
    for name, reason in NOT_ON_CITUS.items():
        file, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / "tests" / file).read_text(), name
        assert len(reason) > 10, name


async def test_the_invariants_hold_for_what_was_used(client: Client, service: Service, tmp_path: Path) -> None:
    await walk(client, service)
    # the login of an operator takes each role
    await fetch_as_superuser(service.database, f"grant {APP_ROLE}, {OPS_ROLE} to {OWNER_ROLE}")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNKEEP_", "DATABASE_URL"))}
    done = await asyncio.to_thread(
        subprocess.run,
        [*TURNKEEP, "doctor", "--invariants", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=300,
        check=False, env=kept | {"TURNKEEP_DATABASE_URL": service.database.owner, "TURNKEEP_DATA_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == {"healthy": True, "faults": []}
