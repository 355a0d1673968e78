"""What is in the vector index and goes is found no more: erased, revised, deleted while searches and the tier go on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Self

import asyncpg
import pytest

from app.core.database.transactions import Database, PoolOptions
from app.core.ids import parse_id
from app.diagnostics.service import DataCheck
from tests.support.api import Client, Service, open_service

ANIMALS = ["parrot", "tortoise", "kitten", "horse", "salmon", "owl", "beetle", "whale"]
TURNS = 70


@pytest.fixture(scope="module")
async def wide(service: Service, tmp_path_factory: Any) -> AsyncIterator[Service]:
    """A service that takes 60 entries for a wide scope."""
    async with open_service(
        service.database,
        tmp_path_factory.mktemp("wide"),
        exact_scope_entries=60,
        recall_pool=20,
        text_candidates=100,
        resident_index_mb=0,
    ) as opened:
        yield opened


@pytest.fixture
async def tiered(wide: Service) -> AsyncIterator[tuple[Client, list[str], list[list[str]]]]:
    """A tenant whose vectors are all in the tier, its conversations and their turns."""
    async with await wide.new_tenant() as client:
        conversations = [await client.conversation(owner=f"o{part}") for part in range(4)]
        turns: list[list[str]] = []
        for part, conversation in enumerate(conversations):
            texts = [f"the {ANIMALS[n % 8]} number {n} of {part} likes place {n // 8}" for n in range(TURNS)]
            turns.append([turn["id"] for turn in (await client.append(conversation, *texts))["turns"]])
        await wide.run_jobs()  # they make the vectors that were too many for one append
        assert await wide.container.ann.index_tenant(client.tenant_id) == 4 * TURNS
        yield client, conversations, turns


async def is_by_index(service: Service, client: Client) -> bool:
    async with service.container.database.transaction(client.tenant_id, read_only=True) as tx:
        counts = await service.container.ann.read_counts(tx, client.tenant_id)
    return service.container.ann.needs_ann(counts) and counts.can_use_index


async def faults(service: Service, client: Client) -> list[str]:
    ops = Database(PoolOptions(service.database.ops, 2, timeout_s=30, name="doctor-tier"))
    await ops.open()
    try:
        check = DataCheck(ops, client.tenant_id)
        found = [fault.code async for some in check.conversations(limit=None) for fault in some]
        return found + [fault.code for fault in await check.references()]
    finally:
        await ops.close()


class ListSubscription:
    """Searches again and again; no hit was gone before its search began."""

    def __init__(self, service: Service, client: Client) -> None:
        self.gone: set[str] = set()
        self.searches = 0
        self._service, self._client = service, client
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(work) for work in (self._search("vector"), self._search("hybrid"))]
        self._keeping = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0.2)
        for task in [*self._tasks, self._keeping]:
            task.cancel()
        for done in await asyncio.gather(*self._tasks, self._keeping, return_exceptions=True):
            if isinstance(done, Exception):
                raise done
        assert self.searches

    async def _search(self, mode: str) -> None:
        while True:
            before = set(self.gone)
            hits = await self._client.recall(None, "which parrot likes place 3", mode=mode, k=40)
            assert before.isdisjoint(hit["id"] for hit in hits), mode
            self.searches += 1

    async def _keep(self) -> None:
        while True:
            await self._service.container.ann.index_tenant(self._client.tenant_id)
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_turns_of_the_vector_index_that_go_are_never_found_again(
    wide: Service, tiered: tuple[Client, list[str], list[list[str]]]
) -> None:
    client, (first, second, third, fourth), (of_first, of_second, of_third, of_fourth) = tiered
    assert await is_by_index(wide, client)
    async with ListSubscription(wide, client) as watch:
        for start in (0, 8):
            ids = of_first[start : start + 8]
            answer = await client.delete(f"/v1/conversations/{first}/turns", params={"ids": ids})
            assert answer.status_code == 200, answer.text
            watch.gone.update(ids)
        fork = (await client.post(f"/v1/conversations/{first}/fork", json={})).json()["id"]
        for number in (0, 24, 40):  # all of them about the parrot
            path = f"/v1/conversations/{second}/turns/{of_second[number]}/revisions"
            answer = await client.post(path, json={"content": f"the parrot number {number} moved to place 3"})
            assert answer.status_code == 201, answer.text
            watch.gone.add(of_second[number])
        path = f"/v1/conversations/{third}/turns/{of_third[50]}/revisions"
        answer = await client.post(path, json={"content": "the parrot left place 3", "truncate_after": True})
        assert answer.json()["superseded_count"] == TURNS - 50
        watch.gone.update(of_third[50:])
        assert (await client.delete(f"/v1/conversations/{fourth}")).status_code == 204
        watch.gone.update(of_fourth)
    await wide.container.ann.index_tenant(client.tenant_id)
    assert await is_by_index(wide, client)
    live = {
        turn["id"]
        for conversation in (first, second, third, fork)
        for turn in await client.history(conversation)
        if turn["erased_at"] is None
    }
    assert len(live) == 2 * (TURNS - 16) + TURNS + 51
    texts = (TURNS - 16) + TURNS + 51  # those of the fork equal those of its original, so they are one hit
    for mode in ("vector", "hybrid"):
        for query in ("which parrot likes place 3", "the parrot number 0 of 0 likes place 0", "a whale"):
            for k in (10, 100, 200):
                found = [hit["id"] for hit in await client.recall(None, query, mode=mode, k=k)]
                assert len(set(found)) == len(found) == min(k, texts), (mode, query)
                assert live.issuperset(found), (mode, query)
    for conversation, count in ((first, TURNS - 16), (fork, TURNS - 16), (second, TURNS), (third, 51)):
        hits = await client.recall(conversation, "a parrot", mode="vector", k=200)
        assert len(hits) == count
    assert await faults(wide, client) == []
    await no_vectors_of(wide, client, {*of_first[:16], *of_fourth}, live)


@pytest.mark.parametrize("mode", ["vector", "hybrid", "text"])
@pytest.mark.slow
async def test_what_goes_between_a_search_and_its_answer_leaves_k_hits(
    wide: Service, tiered: tuple[Client, list[str], list[list[str]]], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    client, gone = tiered[0], []
    reads = wide.container.recall_service._reads  # noqa: SLF001
    hydrate = reads.hydrate

    async def late(caller: Any, tx: Any, *, turn_ids: Any) -> Any:
        if not gone:
            gone.extend(turn_ids[:3])
            connection = await asyncpg.connect(wide.database.superuser)
            for change in (
                "update turns set superseded_by = id where tenant_id = $1 and id = any($2::uuid[])",
                "update index_entries set live = false where tenant_id = $1 and entry_id = any($2::uuid[])",
            ):
                await connection.execute(change, client.tenant_id, gone)
            await connection.close()
        return await hydrate(caller, tx, turn_ids=turn_ids)

    monkeypatch.setattr(reads, "hydrate", late)
    found = {parse_id(hit["id"]) for hit in await client.recall(None, "a parrot likes place 3", mode=mode, k=20)}
    assert len(found) == 20
    assert found.isdisjoint(gone)


async def no_vectors_of(service: Service, client: Client, gone: set[str], live: set[str]) -> None:
    """Nothing is kept of what was erased or deleted; all that lives has its vector. Superseded turns keep theirs."""
    connection = await asyncpg.connect(service.database.superuser)
    rows = await connection.fetch("select distinct entry_id from vectors where tenant_id = $1", client.tenant_id)
    live_rows = await connection.fetch(
        "select entry_id from index_entries where tenant_id = $1 and live", client.tenant_id
    )
    await connection.close()
    kept = {row["entry_id"] for row in rows}
    assert kept.isdisjoint(map(parse_id, gone))
    assert kept.issuperset(map(parse_id, live))
    assert {row["entry_id"] for row in live_rows} == set(map(parse_id, live))
