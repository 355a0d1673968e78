"""A tenant moves to another node and back while it writes and searches."""

import asyncio
from urllib.parse import urlsplit

from app.core.database.schema import OWNER_ROLE
from app.core.ids import parse_id
from tests.support.api import Client, Service
from tests.support.citus import CitusServers
from tests.support.postgres import fetch_as_superuser

SHARD = """
    select s.shardid, n.nodename, n.nodeport from citus_shards s
    join pg_dist_node n on n.nodename = s.nodename and n.nodeport = s.nodeport
    where s.table_name = 'conversations'::regclass
      and s.shardid = get_shard_id_for_distribution_column('conversations', $1::uuid)
"""


class Load:
    """Appends one turn after the other and searches for it, until it is stopped."""

    def __init__(self, client: Client, conversation: str) -> None:
        self._client, self._conversation = client, conversation
        self.stopping = False
        self.words: list[str] = []

    async def run(self) -> None:
        while not self.stopping:
            word = f"quokka{len(self.words)}"
            await self._client.append(self._conversation, f"the {word}")  # it fails unless the answer is 201
            self.words.append(word)
            found = await self._client.recall(self._conversation, word, mode="text")
            assert found[0]["text"] == f"the {word}", word


async def test_a_tenant_that_moves_there_and_back_loses_no_write_and_finds_each(
    client: Client, other: Client, service: Service, servers: CitusServers
) -> None:
    conversation = await client.conversation()
    beside = await other.conversation()
    await other.append(beside, "a parrot")
    load = Load(client, conversation)
    running = asyncio.create_task(load.run())
    workers = [urlsplit(url) for url in servers.workers]
    # rows are replicated into the new shards as the owner, whom forced row-level security binds otherwise
    await fetch_as_superuser(service.database, f"alter role {OWNER_ROLE} bypassrls")
    for _ in range(2):  # and back
        (place,) = await fetch_as_superuser(service.database, SHARD, client.tenant_id)
        (target,) = [worker for worker in workers if worker.port != place["nodeport"]]
        await fetch_as_superuser(
            service.database, "select citus_move_shard_placement($1, $2, $3, $4, $5, 'force_logical')",
            place["shardid"], place["nodename"], place["nodeport"], target.hostname, target.port,
        )  # fmt: skip
        (after,) = await fetch_as_superuser(service.database, SHARD, client.tenant_id)
        assert (after["shardid"], after["nodeport"]) == (place["shardid"], target.port)
        seen = len(load.words)
        async with asyncio.timeout(60):
            while len(load.words) < seen + 3 and not running.done():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    await fetch_as_superuser(service.database, f"alter role {OWNER_ROLE} nobypassrls")
    load.stopping = True
    await running
    turns = await client.history(conversation)
    assert [turn["content"] for turn in turns] == [f"the {word}" for word in load.words]
    assert [turn["seq"] for turn in turns] == list(range(1, len(load.words) + 1))
    assert (await client.get(f"/v1/conversations/{conversation}/verify")).json()["valid"]
    await client.append(conversation, "a platypus")
    assert (await client.recall(conversation, "platypus", mode="text"))[0]["text"] == "a platypus"
    assert [turn["content"] for turn in await other.history(beside)] == ["a parrot"]
    rows = await fetch_as_superuser(
        service.database, "select distinct tenant_id from conversations where id = $1", parse_id(conversation)
    )
    assert [row["tenant_id"] for row in rows] == [client.tenant_id]
