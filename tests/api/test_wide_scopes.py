"""Scopes too wide for the exact search: the vector index and the rarer words give the same, k of k."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import numpy as np
import pytest

from app.core.ids import parse_id
from app.core.schema import ensure_vector_index, indexed_type
from app.index.schemas import EntryKind, Scope
from app.index.wide import Holding, Space, rare_words, wide_statement
from tests.api.test_statements import _as_text, explain
from tests.support.api import Client, Service, open_service

ANIMALS = ["parrot", "tortoise", "kitten", "horse", "salmon", "owl", "beetle", "whale"]
ROWS = 160


@pytest.fixture(scope="module")
async def wide(service: Service, tmp_path_factory: Any) -> AsyncIterator[Service]:
    async with open_service(
        service.database, tmp_path_factory.mktemp("wide"), exact_scope_entries=60, recall_pool=20, text_candidates=100
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
async def crowd(wide: Service) -> AsyncIterator[Client]:
    """A wide tenant in the tier, with a few turns that came after."""
    async with await wide.new_tenant() as client:
        for part in range(4):
            conversation = await client.conversation(owner=f"o{part}", project=f"p{part % 2}")
            turns = [
                {
                    "role": "user",
                    "actor": f"a{n % 3}",
                    "content": f"the {ANIMALS[n % 8]} number {part * 40 + n} likes place {n // 8}",
                    "metadata": {"m": n % 10},
                    "occurred_at": f"2024-0{part + 1}-01T{n // 2:02}:00:00Z",
                }
                for n in range(ROWS // 4)
            ]
            await client.append(conversation, *turns)
        assert await wide.container.tiers.keep(client.tenant_id) == ROWS
        await client.append(conversation, "the parrot that came late likes place 3")
        yield client


async def both(service: Service, client: Client, **body: Any) -> tuple[list[Any], list[Any]]:
    """The same search by the service with the tier, and by the one that searches exactly."""
    async with service.client(client.key) as exact:
        return await client.recall(None, **body), await exact.recall(None, **body)


@pytest.mark.parametrize("mode", ["hybrid", "vector", "text"])
async def test_a_wide_scope_gives_what_the_exact_search_gives(service: Service, crowd: Client, mode: str) -> None:
    for query in ("which parrot likes place 3", "tortoise number 17", "a whale", "late"):
        found, exact = await both(service, crowd, query=query, mode=mode, k=10)
        same = {hit["id"] for hit in found} & {hit["id"] for hit in exact}
        assert len(found) == len(exact), query
        assert len(same) >= 0.9 * len(exact), query


async def test_k_rows_in_a_wide_scope_give_k_rows_under_any_filter(service: Service, crowd: Client) -> None:
    for more in (
        {}, {"filters": {"actors": ["a1"]}}, {"project": "p1"}, {"owner": "o2"}, {"filters": {"metadata": {"m": 3}}},
        {"filters": {"occurred_after": "2024-02-01T00:00:00Z"}}, {"filters": {"actors": ["nobody"]}},
        {"filters": {"actors": ["a0", "a1"], "roles": ["user"]}, "project": "p0"},
    ):  # fmt: skip
        for k in (3, 50, 200):
            found, exact = await both(service, crowd, query="something else entirely", k=k, **more)
            assert len(found) == len(exact), (more, k)


async def test_what_is_appended_to_a_wide_tenant_is_found_by_the_next_call(crowd: Client) -> None:
    conversation = await crowd.conversation()
    await crowd.append(conversation, "zebras graze near Windhoek")
    assert (await crowd.recall(None, "striped grazing animals", k=1, mode="vector"))[0]["turn"]["seq"] == 1
    assert (await crowd.recall(None, "Windhoek", k=1, mode="text"))[0]["turn"]["seq"] == 1


async def test_what_no_model_of_this_space_has_embedded_competes_and_is_said(wide: Service) -> None:
    async with await wide.new_tenant() as client:
        conversation = await client.conversation()
        turns = (await client.append(conversation, *[f"the {ANIMALS[n % 8]} number {n}" for n in range(90)]))["turns"]
        assert await wide.container.tiers.keep(client.tenant_id) == 90
        connection = await asyncpg.connect(wide.database.superuser)
        await connection.execute(
            "delete from vectors where tenant_id = $1 and entry_id = $2", client.tenant_id, parse_id(turns[7]["id"])
        )
        await connection.close()
        wide.container.tiers._known.clear()  # noqa: SLF001 - another model comes with another process
        for mode, said in (("vector", ["vectors_pending"]), ("text", [])):
            answer = await client.post("/v1/recall", json={"query": "whale number 7", "mode": mode, "k": 50})
            assert answer.json()["degraded"] == said
        holding = (await _look(wide, client)).uncovered
        assert holding


async def test_dates_and_questions_count_in_a_wide_scope(wide: Service) -> None:
    async with await wide.new_tenant() as client:
        conversation = await client.conversation()
        said = {"role": "user", "occurred_at": "2023-05-10T15:00:00Z"}
        await client.append(conversation, *[f"the {ANIMALS[n % 8]} number {n}" for n in range(90)])
        await client.append(conversation, said | {"content": "Bob moved out last Friday."})
        await wide.run_jobs()
        await wide.container.tiers.keep(client.tenant_id)
        (hit, *_) = await client.recall(None, "what happened on 5 May", mode="text", k=1)
        assert [date["first_day"] for date in hit["dates"]] == ["2023-05-05"]


async def _look(service: Service, client: Client) -> Holding:
    async with service.container.database.transaction(client.tenant_id, read_only=True) as tx:
        return await service.container.tiers.look(tx, client.tenant_id)


async def test_a_wide_search_uses_the_vector_index_under_row_security(wide: Service, crowd: Client) -> None:
    space = wide.container.tiers.space
    connection = await asyncpg.connect(wide.database.superuser)
    await connection.execute("vacuum analyze vectors")
    await connection.execute("vacuum analyze index_entries")
    await connection.close()
    sql, args = wide_statement(
        crowd.tenant_id,
        Scope(kinds=[EntryKind.TURN], actors=["a1"]),
        space=space,
        vector=np.ones(space.dimensions, dtype=np.float32),
        lexemes=["parrot", "like"],
        rare=["parrot"],
        pool=5,
    )

    async def without_sorting(tx: Any) -> None:
        # few rows may be sorted as fast as read in order: what is asked is whether the order may come from the index
        await tx._connection.execute("set local enable_sort = off")  # noqa: SLF001
        await _as_text(tx, sql, args)

    plan = await explain(wide, crowd.tenant_id, without_sorting)
    assert f'"Index Name": "vectors_space_{space.id}_idx"' in plan
    assert '"Function Name": "match_entries"' in plan


async def test_every_connection_scans_the_vector_index_until_there_are_enough(service: Service) -> None:
    for pool in (service.container.database,):
        async with pool.across_tenants() as tx:
            for name, value in (
                ("hnsw.iterative_scan", "relaxed_order"),
                ("hnsw.ef_search", "200"),
                ("hnsw.max_scan_tuples", "40000"),
            ):
                await tx.fetchrow(
                    "select '[1]'::vector <=> '[1]'::vector"
                )  # loads the library: no longer a placeholder
                row = await tx.fetchrow("select current_setting($1) as value", name)
                assert row is not None
                assert row["value"] == value


async def test_the_index_of_many_dimensions_is_of_half_precision_and_made_once(service: Service) -> None:
    assert indexed_type(2000) == "vector(2000)"
    assert indexed_type(3072) == "halfvec(3072)"
    assert indexed_type(4001) is None
    connection = await asyncpg.connect(service.database.superuser)
    space = await connection.fetchval(
        "insert into embedding_spaces (provider, model, dimensions) values ('t', 'large', 3072) returning id"
    )
    for _ in range(2):
        assert await ensure_vector_index(service.database.owner, space_id=space, dimensions=3072)
    definition = await connection.fetchval(
        "select indexdef from pg_indexes where indexname = $1", f"vectors_space_{space}_idx"
    )
    assert "halfvec(3072)) halfvec_cosine_ops" in definition
    sql, args = wide_statement(
        (await service.new_tenant()).tenant_id,
        Scope(kinds=[EntryKind.TURN]),
        space=Space(space, 3072),
        vector=np.ones(3072, dtype=np.float32),
        lexemes=[],
        rare=[],
        pool=5,
    )
    await explain(service, args[0], lambda tx: _as_text(tx, sql, args))
    await connection.execute(f"drop index vectors_space_{space}_idx")
    await connection.close()
    assert not await ensure_vector_index(service.database.owner, space_id=space, dimensions=5000)


def test_the_commonest_words_are_dropped_first_and_the_rarest_never() -> None:
    assert rare_words(["a", "b", "c"], [50, 10, 0], matches=100) == ["b", "a"]
    assert rare_words(["a", "b", "c"], [50, 60, 30], matches=100) == ["c", "a"]
    assert rare_words(["a", "b"], [500, 600], matches=100) == ["a"]
    assert rare_words(["a"], [0], matches=100) == []
