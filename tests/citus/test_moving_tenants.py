"""A tenant moves to another node and back, and gets a shard of its own, while it writes and searches."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import asyncpg
import pytest

from app.core.database.schema import OWNER_ROLE
from app.core.ids import parse_id
from tests.support.api import Client, Service
from tests.support.citus import CitusServers
from tests.support.postgres import fetch_as_superuser

GUIDE = Path(__file__).parents[2] / "docs/guides/scaling-out.md"
Administrator: TypeAlias = Callable[..., Awaitable[Sequence[Any]]]

SHARD = """
    select s.shardid, n.nodename, n.nodeport from citus_shards s
    join pg_dist_node n on n.nodename = s.nodename and n.nodeport = s.nodeport
    where s.table_name = 'conversations'::regclass
      and s.shardid = get_shard_id_for_distribution_column('conversations', $1::uuid)
"""
PARTS = """
    select c.relname || '_' || s.shardid as name, s.shardminvalue = s.shardmaxvalue as is_of_one
    from pg_dist_shard s join pg_class c on c.oid = s.logicalrelid join pg_dist_partition p using (logicalrelid)
    where p.partmethod = 'h' and s.shardid = get_shard_id_for_distribution_column(s.logicalrelid, $1::uuid)
"""
# names end in the number of the shard
SHAPE = """
    select regexp_replace(c.relname, '_\\d{6,}$', '') as name, c.relrowsecurity, c.relforcerowsecurity, c.relacl::text,
           array(select polname || polcmd::text || polroles::regrole[]::text || pg_get_expr(polqual, polrelid)
                 from pg_policy where polrelid = c.oid order by 1) as policies,
           array(select tgfoid::regproc::text || tgtype::text from pg_trigger
                 where tgrelid = c.oid and not tgisinternal order by 1) as triggers,
           array(select regexp_replace(pg_get_constraintdef(oid), '_\\d{6,}', '', 'g') from pg_constraint
                 where conrelid = c.oid order by 1) as constraints,
           array(select regexp_replace(pg_get_indexdef(indexrelid), '^.* USING ', '') from pg_index
                 where indrelid = c.oid order by 1) as indexes
    from pg_class c where c.relkind = 'r' and c.relname = any($1) order by 1
"""


class Load:
    """Appends one turn after the other and searches for it."""

    def __init__(self, client: Client, conversation: str) -> None:
        self._client, self._conversation = client, conversation
        self._stopping = False
        self.words: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run meanwhile. At the end nothing has failed, and all that was written is there, in order."""
        task = asyncio.create_task(self._run())
        try:
            await self._goes_on(task)
            yield
            await self._goes_on(task)
        finally:
            self._stopping = True
            await task
        turns = await self._client.history(self._conversation)
        assert [turn["content"] for turn in turns] == [f"the {word}" for word in self.words]
        assert [turn["seq"] for turn in turns] == list(range(1, len(self.words) + 1))
        assert (await self._client.get(f"/v1/conversations/{self._conversation}/verify")).json()["valid"]
        await self._client.append(self._conversation, "a platypus")
        assert (await self._client.recall(self._conversation, "platypus", mode="text"))[0]["text"] == "a platypus"

    async def _run(self) -> None:
        while not self._stopping:
            word = f"quokka{len(self.words)}"
            await self._client.append(self._conversation, f"the {word}")  # it fails unless the answer is 201
            self.words.append(word)
            found = await self._client.recall(self._conversation, word, mode="text")
            assert found[0]["text"] == f"the {word}", word

    async def _goes_on(self, task: "asyncio.Task[None]") -> None:
        seen = len(self.words)
        async with asyncio.timeout(60):
            while len(self.words) < seen + 3 and not task.done():  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@pytest.fixture
async def administrator(service: Service) -> AsyncIterator[Administrator]:
    """Statements of a superuser on the coordinator, while the owner may write rows of any tenant.

    Rows are replicated into new shards as the owner, whom forced row-level security binds otherwise.
    """

    async def fetch(sql: str, *args: object) -> "Sequence[asyncpg.Record]":
        if args:
            return await fetch_as_superuser(service.database, sql, *args)
        connection = await asyncpg.connect(service.database.superuser)
        await connection.execute(sql)
        await connection.close()
        return []

    await fetch(f"alter role {OWNER_ROLE} bypassrls")
    yield fetch
    await fetch(f"alter role {OWNER_ROLE} nobypassrls")


async def move(administrator: Administrator, servers: CitusServers, tenant_id: object) -> None:
    """Move the shard of a tenant to the other worker."""
    (place,) = await administrator(SHARD, tenant_id)
    (target,) = [worker for worker in map(urlsplit, servers.workers) if worker.port != place["nodeport"]]
    await administrator(
        "select citus_move_shard_placement($1, $2, $3, $4, $5, 'force_logical')",
        place["shardid"], place["nodename"], place["nodeport"], target.hostname, target.port,
    )  # fmt: skip
    (after,) = await administrator(SHARD, tenant_id)
    assert (after["shardid"], after["nodeport"]) == (place["shardid"], target.port)


def isolation(tenant_id: object) -> str:
    """What the guide says to run, for a tenant."""
    block = re.search(r"```sql\n(begin;.*?commit;)\n```", GUIDE.read_text(), re.DOTALL)
    assert block is not None
    statement, found = re.subn(r"'[0-9a-f-]{36}'", f"'{tenant_id}'", block[1])
    assert found == 1
    return statement


async def shape_of_shards(service: Service, administrator: Administrator, tenant_id: object) -> "list[tuple[Any, ...]]":
    """Rights, policies, triggers, constraints and indexes of the shards that a tenant's rows are in, on their node."""
    names = [row["name"] for row in await administrator(PARTS, tenant_id)]
    (place,) = await administrator(SHARD, tenant_id)
    parts = urlsplit(service.database.superuser)
    node = await asyncpg.connect(
        host=place["nodename"], port=place["nodeport"], user="postgres", database=parts.path[1:],
        server_settings={"citus.override_table_visibility": "off"},
    )  # fmt: skip
    try:
        found = [tuple(row) for row in await node.fetch(SHAPE, names)]
    finally:
        await node.close()
    assert len(found) == len(names) > 20
    return found


async def test_a_tenant_that_moves_there_and_back_loses_no_write_and_finds_each(
    client: Client, other: Client, service: Service, servers: CitusServers, administrator: Administrator
) -> None:
    conversation = await client.conversation()
    beside = await other.conversation()
    await other.append(beside, "a parrot")
    async with Load(client, conversation).running():
        for _ in range(2):  # and back
            await move(administrator, servers, client.tenant_id)
    assert [turn["content"] for turn in await other.history(beside)] == ["a parrot"]
    rows = await fetch_as_superuser(
        service.database, "select distinct tenant_id from conversations where id = $1", parse_id(conversation)
    )
    assert [row["tenant_id"] for row in rows] == [client.tenant_id]


async def test_a_tenant_gets_a_shard_of_its_own_on_another_node_and_loses_no_write_meanwhile(
    client: Client, service: Service, servers: CitusServers, administrator: Administrator
) -> None:
    conversation = await client.conversation()
    before = await shape_of_shards(service, administrator, client.tenant_id)
    (old,) = await administrator(SHARD, client.tenant_id)
    async with Load(client, conversation).running():
        async with asyncio.timeout(120):
            await administrator(isolation(client.tenant_id))
        await move(administrator, servers, client.tenant_id)
    (new,) = await administrator(SHARD, client.tenant_id)
    assert new["shardid"] != old["shardid"]
    assert new["nodeport"] != old["nodeport"]
    assert {row["is_of_one"] for row in await administrator(PARTS, client.tenant_id)} == {True}
    assert await shape_of_shards(service, administrator, client.tenant_id) == before
