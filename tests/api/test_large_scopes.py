"""Scopes above the limit of the exact search, in memory in the compact form: candidates give what all entries give."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.index.schemas import EntryKind, SearchScope
from app.index.search.resident import segment_scope
from tests.support.api import Client, Service, open_service

TURNS = 480
PEOPLE = ["Ana", "Ben", "Chloe", "Dmitri", "Elif", "Farid", "Grace", "Hiro"]
ACTIONS = ["ordered", "returned", "repaired", "sold", "painted", "borrowed", "measured"]
THINGS = ["the blue bicycle", "a train ticket", "the kitchen sink", "an old laptop", "the garden fence", "a violin"]
PLACES = ["in Lisbon", "near the station", "after the storm", "for a friend", "on a rainy Sunday"]
QUESTIONS = [f"What was it that {PEOPLE[n % 8]} {ACTIONS[n % 7]}, {THINGS[n % 6]} {PLACES[n % 5]}?" for n in range(24)]


def sentence(chance: np.random.Generator) -> str:
    person, action, thing, place = (words[chance.integers(len(words))] for words in (PEOPLE, ACTIONS, THINGS, PLACES))
    return f"{person} {action} {thing} {place}."


@pytest.fixture(scope="module")
async def large(service: Service, tmp_path_factory: Any) -> AsyncIterator[Service]:
    """A service for which 60 entries are many, and which compares the vectors of a hundred of them."""
    async with open_service(
        service.database, tmp_path_factory.mktemp("large"), exact_scope_entries=60, compared_entries=60,
        compared_vectors=100, compared_candidates=40,
    ) as opened:  # fmt: skip
        yield opened


@pytest.fixture(scope="module")
async def town(large: Service) -> AsyncIterator[Client]:
    """A tenant of turns that share their words, some very long: thousands match a question nearly as well."""
    chance = np.random.default_rng(7)
    async with await large.new_tenant() as client:
        for part in range(6):
            conversation = await client.conversation(owner=f"o{part % 2}", project=f"p{part % 2}")
            turns = [
                {
                    "role": "assistant" if n % 2 else "user",
                    "actor": f"a{n % 3}",
                    "content": " ".join(sentence(chance) for _ in range(30 if n % 40 == 0 else chance.integers(1, 5))),
                    "metadata": {"m": n % 3},
                }
                for n in range(TURNS // 6)
            ]
            for start in range(0, len(turns), 40):
                await client.append(conversation, *turns[start : start + 40])
        await large.run_jobs()  # they make the vectors that were too many for one append
        await client.recall(None, "Lisbon", k=1)
        await loaded(large, client, SearchScope([EntryKind.TURN]))
        yield client


async def loaded(service: Service, client: Client, scope: SearchScope) -> None:
    """Wait until the segment of a scope is in memory in the compact form."""
    resident, space = service.container.index.resident, service.container.ann.space
    async with asyncio.timeout(30):
        while True:
            async with service.container.database.transaction(client.tenant_id, read_only=True) as tx:
                entries = await resident.load(tx, client.tenant_id, segment_scope(scope), space, max_entries=60)
            if entries is not None:
                assert entries[0].signs is not None
                return
            await asyncio.sleep(0.02)


def share_of_exact(hits: list[Any], exact: list[Any]) -> float:
    """The share of the exact hits that were found; a hit that scores as the last of them is as good."""
    worst = min(hit["score"] for hit in exact)
    ids = {hit["id"] for hit in exact}
    return min(1.0, sum(hit["id"] in ids or hit["score"] >= worst - 2e-3 for hit in hits) / len(exact))


def compare(hits: list[Any], exact: list[Any]) -> None:
    """Check that each hit is as in the exact search; its relevance if that search has the same hits before it."""
    for place, hit in enumerate(hits):
        for other in exact:
            if other["id"] == hit["id"]:
                assert hit["explain"]["terms"] == pytest.approx(other["explain"]["terms"], abs=2e-3)
                assert hit["score"] == pytest.approx(other["score"], abs=2e-3)
                assert (hit["count"], hit["said_at"]) == (other["count"], other["said_at"])
        same = [[each["id"] for each in of[: place + 1]] for of in (hits, exact)]
        if same[0] == same[1]:
            assert hit["relevance"] == pytest.approx(exact[place]["relevance"], abs=0.02)


@pytest.mark.parametrize("mode", ["hybrid", "vector", "text"])
async def test_the_candidates_of_a_large_scope_give_the_ten_of_the_exact_search(
    service: Service, town: Client, mode: str
) -> None:
    shares: list[float] = []
    async with service.client(town.key) as exact:
        for query in QUESTIONS:
            hits, wanted = [
                await client.recall(None, query, mode=mode, k=10, kinds=["turn"], explain=True)
                for client in (town, exact)
            ]
            assert len(hits) == len(wanted)
            shares.append(share_of_exact(hits, wanted))
            compare(hits, wanted)
    assert np.mean(shares) >= 0.98


@pytest.mark.parametrize(
    "more",
    [
        {"filters": {"actors": ["a1"]}}, {"project": "p1"}, {"owner": "o0"}, {"filters": {"metadata": {"m": 2}}},
        {"filters": {"actors": ["nobody"]}}, {"filters": {"roles": ["user"]}, "project": "p0"},
    ],
)  # fmt: skip
async def test_filters_of_a_large_scope_leave_what_the_exact_search_finds(
    service: Service, town: Client, more: dict[str, Any]
) -> None:
    async with service.client(town.key) as exact:
        for query in QUESTIONS[:4]:
            hits, wanted = [await client.recall(None, query, k=10, **more) for client in (town, exact)]
            assert len(hits) == len(wanted)
            assert not wanted or share_of_exact(hits, wanted) >= 0.9


async def test_a_large_scope_shows_what_was_appended_and_erased_since_it_was_read(town: Client) -> None:
    conversation = await town.conversation()
    turn = (await town.append(conversation, "zebras graze near Windhoek"))["turns"][0]
    for mode, query in (("vector", "striped grazing animals"), ("text", "Windhoek"), ("hybrid", "zebras")):
        assert (await town.recall(None, query, k=1, mode=mode))[0]["id"] == turn["id"], mode
    assert (await town.delete(f"/v1/conversations/{conversation}/turns/{turn['id']}")).status_code < 300
    hits = await town.recall(None, "zebras near Windhoek", k=10)
    assert turn["id"] not in {hit["id"] for hit in hits}


async def test_until_a_large_scope_is_in_memory_the_indexes_answer(large: Service) -> None:
    async with await large.new_tenant() as client:
        conversation = await client.conversation()
        await client.append(conversation, *[f"the {THINGS[n % 6]} number {n}" for n in range(90)])
        await large.run_jobs()
        resident = large.container.index.resident
        segments = len(resident)
        assert len(await client.recall(None, "violin number 5", k=10)) == 10
        assert len(resident) > segments
        await loaded(large, client, SearchScope([EntryKind.TURN]))
        assert len(await client.recall(None, "violin number 5", k=10)) == 10


async def test_the_indexes_find_long_turns_with_all_words_of_a_query(
    service: Service, town: Client, tmp_path: Path
) -> None:
    """Many turns are nearer, and many have a higher BM25."""
    shares: list[float] = []
    async with (
        open_service(
            service.database, tmp_path, exact_scope_entries=60, recall_pool=20, resident_index_mb=0
        ) as without_memory,
        without_memory.client(town.key) as by_index,
        service.client(town.key) as exact,
    ):
        for query in QUESTIONS:
            hits, wanted = [await client.recall(None, query, k=10, kinds=["turn"]) for client in (by_index, exact)]
            shares.append(share_of_exact(hits, wanted))
    assert np.mean(shares) >= 0.9
