"""Every statement of a request goes to one shard, on a real Citus: what `explain` says of each one that was sent."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import asyncpg
import pytest
from pgvector.asyncpg import register_vector

from app.core.database.transactions import Transaction
from tests.support.api import Client, Service

ACROSS_TENANTS: Mapping[str, str] = {
    "delete from index_entries e using unnest(": "entries of expired memories, found by the sweep of all tenants",
    "delete from vectors v using unnest(": "the same, their vectors",
}
"""Beginnings of statements of the application that go to several shards, and the reason."""


class Sent(NamedTuple):
    """A statement that ran in a transaction of a tenant."""

    tenant_id: object
    sql: str
    args: tuple[object, ...]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Sent]]:
    """Each statement of a tenant's transaction once, with the arguments of its first run."""
    found: dict[str, Sent] = {}

    def recording(original: Any) -> Any:
        async def record(self: Transaction, sql: str, *args: object) -> Any:
            if self.tenant_id is not None:
                found.setdefault(" ".join(sql.split()), Sent(self.tenant_id, sql, args))
            return await original(self, sql, *args)

        return record

    with monkeypatch.context() as patched:
        for name in ("fetch", "fetchrow", "execute"):
            patched.setattr(Transaction, name, recording(getattr(Transaction, name)))
        yield found


def shards_of(plan: Any) -> list[int]:
    """The number of tasks of each distributed part of a plan; none of a statement that the coordinator runs alone."""
    if isinstance(plan, list):
        return [count for one in plan for count in shards_of(one)]
    if not isinstance(plan, dict):
        return []
    found: list[int] = []
    for name, value in plan.items():
        if name == "Distributed Query":
            found.append(value["Job"]["Task Count"])
            found += shards_of(value.get("Subplans", []))
        else:
            found += shards_of(value)
    if str(plan.get("Custom Plan Provider", "")).startswith("Citus INSERT"):
        found.append(-1)  # collected on the coordinator first
    return found


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


async def test_every_statement_of_a_tenant_goes_to_one_shard_or_is_listed_with_its_reason(
    client: Client, service: Service, sent: dict[str, Sent]
) -> None:
    await walk(client, service)
    connection = await asyncpg.connect(service.database.app, statement_cache_size=0)
    await register_vector(connection)
    wrong: list[str] = []
    for text, one in sent.items():
        if not text.lower().startswith(("select", "insert", "update", "delete", "with")):
            continue
        await connection.execute("begin")
        await connection.execute(f"set local app.tenant = '{one.tenant_id}'")
        try:
            (row,) = await connection.fetch(f"explain (format json) {one.sql}", *one.args)
            shards = str(shards_of(json.loads(row[0])))
        except asyncpg.PostgresError as error:
            shards = str(error)
        await connection.execute("rollback")
        if shards not in {"[]", "[0]", "[1]"} and not text.lower().startswith(tuple(ACROSS_TENANTS)):
            wrong.append(f"{shards}: {text}")
    await connection.close()
    assert len(sent) > 80, "the statements were recorded"
    assert not wrong, "\n".join(wrong)
