"""Scopes too wide for the memory: the vector index and the rarer words give the same as the exact search, k of k."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import numpy as np
import pytest

from app.core.database.schema import ensure_vector_index, indexed_type
from app.core.ids import KeyId, parse_id
from app.index.analyser.analyser import Analyser
from app.index.analyser.query_words import PreparedQuery
from app.index.schemas import EntryKind, SearchResult, SearchScope
from app.index.search import ann_search as wide_search
from app.index.search.ann_search import AnnQuery, Space, TenantCounts, ann_statement
from app.index.search.search_statement import StatementArguments, WordColumns
from app.recall.ranking import Question, estimate, rank
from app.tenancy.schemas import Caller
from app.tenancy.schemas import Scope as KeyScope
from tests.api.test_statements import _as_text, explain
from tests.support.api import Client, Service, open_service
from tests.support.statements import counted_statements

ANIMALS = ["parrot", "tortoise", "kitten", "horse", "salmon", "owl", "beetle", "whale"]
ROWS = 160


@pytest.fixture(scope="module")
async def wide(service: Service, tmp_path_factory: Any) -> AsyncIterator[Service]:
    async with open_service(
        service.database, tmp_path_factory.mktemp("wide"), exact_scope_entries=60, recall_pool=40, resident_index_mb=0
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
        await wide.run_jobs()  # they make the vectors that were too many for one append
        assert await wide.container.ann.index_tenant(client.tenant_id) == ROWS
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


@pytest.mark.slow
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
        await wide.run_jobs()  # they make the vectors that were too many for one append
        assert await wide.container.ann.index_tenant(client.tenant_id) == 90
        connection = await asyncpg.connect(wide.database.superuser)
        await connection.execute(
            "delete from vectors where tenant_id = $1 and entry_id = $2", client.tenant_id, parse_id(turns[7]["id"])
        )
        await connection.close()
        wide.container.ann._counts.clear()  # noqa: SLF001 - another model comes with another process
        for mode, said in (("vector", ["vectors_pending"]), ("text", [])):
            answer = await client.post("/v1/recall", json={"query": "whale number 7", "mode": mode, "k": 50})
            assert answer.json()["degraded"] == said
        counts = (await _look(wide, client)).uncovered
        assert counts


async def test_dates_and_questions_count_in_a_wide_scope(wide: Service) -> None:
    async with await wide.new_tenant() as client:
        conversation = await client.conversation()
        said = {"role": "user", "occurred_at": "2023-05-10T15:00:00Z"}
        await client.append(conversation, *[f"the {ANIMALS[n % 8]} number {n}" for n in range(90)])
        await client.append(conversation, said | {"content": "Bob moved out last Friday."})
        await wide.run_jobs()
        await wide.container.ann.index_tenant(client.tenant_id)
        (hit, *_) = await client.recall(None, "what happened on 5 May", mode="text", k=1)
        assert [date["first_day"] for date in hit["dates"]] == ["2023-05-05"]


async def _look(service: Service, client: Client) -> TenantCounts:
    async with service.container.database.transaction(client.tenant_id, read_only=True) as tx:
        return await service.container.ann.read_counts(tx, client.tenant_id)


async def test_a_wide_search_uses_the_vector_index_under_row_security(wide: Service, crowd: Client) -> None:
    space = wide.container.ann.space
    connection = await asyncpg.connect(wide.database.superuser)
    await connection.execute("vacuum analyze vectors")
    await connection.execute("vacuum analyze index_entries")
    await connection.close()
    sql, args = ann_statement(
        crowd.tenant_id,
        SearchScope(kinds=[EntryKind.TURN], actors=["a1"]),
        AnnQuery(np.ones(space.dimensions, dtype=np.float32), [], pool=5, by_index=True),
        space=space,
    )

    async def without_sorting(tx: Any) -> None:
        # few rows may be sorted as fast as read in order: what is asked is whether the order may come from the index
        await tx._connection.execute("set local enable_sort = off")  # noqa: SLF001
        await _as_text(tx, sql, args)

    plan = await explain(wide, crowd.tenant_id, without_sorting)
    assert f'"Index Name": "vectors_space_{space.id}_idx"' in plan


@pytest.mark.parametrize("name", ["count_in_scope", "match_in_scope"])
async def test_words_in_a_wide_scope_are_looked_for_in_the_text_index(wide: Service, crowd: Client, name: str) -> None:
    """Inside functions, which EXPLAIN does not look into: the same statements as their owner."""
    given = {
        "after": "'2024-01-02'::timestamptz", "before": "null::timestamptz", "most": "10", "of_actors": "array['a1']",
        "of_kinds": "array['turn']", "of_conversations": "null::uuid[]", "of_project": "null::text",
        "of_owner": "null::text", "of_agent": "null::text", "of_roles": "null::text[]", "of_metadata": "null::jsonb",
        "queries": "array['parrot']",
    }  # fmt: skip
    connection = await asyncpg.connect(wide.database.superuser)
    body: str = await connection.fetchval("select prosrc from pg_proc where proname = $1", name)
    # on Citus the statement is part of a block, whose variable is the tenant
    body = body.partition("return query")[2].rpartition(";\nend")[0] or body
    body = re.sub(r"\bof_tenant\b", f"'{crowd.tenant_id}'::uuid", body)
    body = re.sub(r"@@ query\b", "@@ 'parrot'::tsquery", body)
    for argument, value in given.items():
        body = re.sub(rf"\b{argument}\b", value, body)
    await connection.execute("analyze index_entries")
    await connection.execute("begin")
    await connection.execute(f"set local app.tenant = '{crowd.tenant_id}'")
    await connection.execute("set local role turnkeep_search")
    # as the function has it, but for the table, which is small here
    await connection.execute("set local enable_indexscan = off")
    await connection.execute("set local enable_seqscan = off")
    rows = await connection.fetch("explain (costs off) " + body)
    await connection.close()
    text = "\n".join(row[0] for row in rows)
    assert "Bitmap Index Scan on index_entries_lexemes_idx" in text, text
    assert "lexemes @@" in text.split("Index Cond")[1], text


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
    assert "ef_construction='200'" in definition
    sql, args = ann_statement(
        (await service.new_tenant()).tenant_id,
        SearchScope(kinds=[EntryKind.TURN]),
        AnnQuery(np.ones(3072, dtype=np.float32), [], pool=5, by_index=True),
        space=Space(space, 3072),
    )
    await explain(service, args[0], lambda tx: _as_text(tx, sql, args))
    await connection.execute(f"drop index vectors_space_{space}_idx")
    await connection.close()
    assert not await ensure_vector_index(service.database.owner, space_id=space, dimensions=5000)


VOCABULARY = [
    f"{first}{second}o" for first in "bdfgklmnprstvz" for second in ("ab", "el", "ik", "om", "ut", "ad", "es")
]


@pytest.fixture(scope="module")
async def exact(service: Service, tmp_path_factory: Any) -> AsyncIterator[Service]:
    """A service that searches exactly, with as many candidates as the wide one."""
    async with open_service(service.database, tmp_path_factory.mktemp("exact"), recall_pool=20) as opened:
        yield opened


@pytest.fixture(scope="module")
async def library(wide: Service) -> AsyncIterator[Client]:
    """A wide tenant of texts as uneven as real ones: words after Zipf, some many times, from 1 to 40 of them."""
    chance = np.random.default_rng(3)
    weights = 1 / np.arange(1, len(VOCABULARY) + 1)
    async with await wide.new_tenant() as client:
        for part in range(6):
            conversation = await client.conversation(owner=f"o{part % 3}", project=f"p{part % 2}")
            turns = [
                {
                    "role": "user" if n % 2 else "assistant",
                    "actor": f"a{n % 3}",
                    "content": " ".join(
                        chance.choice(VOCABULARY, chance.integers(1, 40), p=weights / weights.sum()).tolist()
                    ),
                    "metadata": {"m": n % 4},
                    "occurred_at": f"2024-0{part + 1}-{1 + n // 10:02}T00:00:00Z",
                }
                for n in range(100)
            ]
            await client.append(conversation, *turns)
        await wide.run_jobs()  # they make the vectors that were too many for one append
        assert await wide.container.ann.index_tenant(client.tenant_id) == 600
        yield client


async def search(service: Service, client: Client, scope: SearchScope, query: PreparedQuery) -> SearchResult:
    caller = Caller(client.tenant_id, KeyId(uuid4()), frozenset(KeyScope), agent_id=None, long_term_enabled=True)
    async with service.container.database.transaction(client.tenant_id, read_only=True) as tx:
        return await service.container.index.search(
            caller,
            tx,
            scope=scope,
            query=query,
            min_candidates=10,
            rank=lambda found: found,
            estimate=partial(estimate, Question(query)),
        )


SCOPES: list[dict[str, Any]] = [
    {}, {"actors": ["a1", "a2"]}, {"project": "p1"}, {"owner": "o2"}, {"metadata": '{"m": 3}'}, {"roles": ["user"]},
    {"occurred_after": datetime(2024, 2, 1, tzinfo=UTC)}, {"occurred_before": datetime(2024, 5, 5, tzinfo=UTC)},
    {"actors": ["a0", "a1"], "roles": ["user"], "project": "p0"}, {"agent_id": "x"},
]  # fmt: skip


def by_words(found: SearchResult) -> dict[UUID, float]:
    """The entries that have words of the query, with their BM25."""
    rows = np.flatnonzero(found.bm25 > 0).tolist()
    return {one.source_id: one.bm25 for one in found.entries(rows)}


@pytest.mark.parametrize("first", [1, 5])
@pytest.mark.slow
async def test_by_words_a_wide_scope_gives_just_what_the_exact_search_gives(
    exact: Service, wide: Service, library: Client, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """However few of the rarest words' entries are read at first: the gate decides what else is."""
    monkeypatch.setattr(wide_search, "_FIRST_MATCHES", first)
    chance = np.random.default_rng(first)
    for number in range(200):
        scope = SearchScope(kinds=[EntryKind.TURN], **SCOPES[number % len(SCOPES)])
        asked = chance.choice([*VOCABULARY, "nowhere"], chance.integers(1, 12), replace=False).tolist()
        found, wanted = [
            await search(one, library, scope, PreparedQuery(" ".join(asked), max_words=64)) for one in (wide, exact)
        ]
        mine, others = by_words(found), by_words(wanted)
        assert mine == pytest.approx({entry_id: others[entry_id] for entry_id in mine}, rel=1e-4), (scope, asked)
        best = sorted(others.values(), reverse=True)[:10]
        assert sorted(mine.values(), reverse=True)[:10] == pytest.approx(best, rel=1e-4), (scope, asked)


@pytest.mark.slow
async def test_by_meaning_and_words_a_wide_scope_gives_the_ten_of_the_exact_search(
    exact: Service, wide: Service, library: Client
) -> None:
    embedder = wide.container.embedder
    assert embedder is not None
    chance = np.random.default_rng(5)
    texts = [" ".join(chance.choice(VOCABULARY, 5, replace=False).tolist()) for _ in range(60)]
    vectors = await embedder.embed(texts, purpose="query")
    same, wanted = 0, 0
    for number, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
        scope = SearchScope(kinds=[EntryKind.TURN], **SCOPES[number % len(SCOPES)])
        query = PreparedQuery(text, max_words=64, vector=vector)
        tops = [
            {hit.source_id for hit in rank(found, Question(query), is_calibrated=False).best(10)}
            for found in [await search(one, library, scope, query) for one in (wide, exact)]
        ]
        same, wanted = same + len(tops[0] & tops[1]), wanted + len(tops[1])
    assert same >= 0.98 * wanted > 0


async def test_a_wide_search_takes_few_round_trips(crowd: Client) -> None:
    await crowd.recall(None, "which parrot likes place 3")
    with counted_statements() as sent:
        await crowd.recall(None, "which parrot likes place 3")
    searching = sent[[statement.startswith("set local plan") for statement in sent].index(True) :]
    asked = [
        "set local",
        "index_entries e where",
        "count_in_scope",
        "match_in_scope",
        "match_in_scope",
        "by_vector",
        "vector_send",
        "JOIN turns",
    ]
    assert len(searching) == len(asked)
    assert all(part in statement for part, statement in zip(asked, searching, strict=True)), searching


async def test_more_matches_than_may_be_compared_still_give_an_answer(
    service: Service, library: Client, tmp_path_factory: Any
) -> None:
    async with open_service(
        service.database,
        tmp_path_factory.mktemp("few"),
        exact_scope_entries=60,
        recall_pool=20,
        text_candidates=100,
        resident_index_mb=0,
    ) as few:
        found = await search(
            few, library, SearchScope(kinds=[EntryKind.TURN]), PreparedQuery(" ".join(VOCABULARY[:2]), max_words=64)
        )
        assert len(by_words(found)) >= 20


async def test_a_word_is_counted_as_often_as_it_stands_in_an_entry(service: Service) -> None:
    text = "salt, salt and pepper; o'neil\\ salt 塩と胡椒 塩 " + "sugar " * 300
    analyser = Analyser()
    entry = analyser.document(text, actor="ann", occurred_at=datetime(2024, 5, 1, tzinfo=UTC), max_bytes=10_000)
    asked = [*analyser.query("salt pepper o'neil sugar"), "塩と", "塩", *analyser.query("absent may"), "it's"]
    assert await _counts(service, entry.tsvector, asked) == [3, 1, 1, 255, 1, 2, 0, 1, 0]


async def test_a_word_is_counted_exactly_however_often_it_stands(service: Service) -> None:
    times = [*range(1, 256)]
    tsvector = " ".join(f"w{n}:{','.join(map(str, range(1, n + 1)))}" for n in times)
    for start in range(0, 255, 51):
        part = times[start : start + 51]
        assert await _counts(service, tsvector, [f"w{n}" for n in part]) == part


async def _counts(service: Service, tsvector: str, lexemes: list[str]) -> list[int]:
    args = StatementArguments(tsvector)
    words = WordColumns(args, lexemes)
    connection = await asyncpg.connect(service.database.superuser)
    row = await connection.fetchrow(
        f"select true as one {words.counted('e.lexemes')} from (select $1::text::tsvector as lexemes) e",  # noqa: S608
        *args.values,
    )
    await connection.close()
    assert row is not None
    counts = [int(count) for count in [*row.values()][1:]]
    assert not any(counts[len(lexemes) :])
    return counts[: len(lexemes)]
