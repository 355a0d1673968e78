"""Entries that an older release wrote: jobs add what the ranking needs, and overwrite nothing that is newer.

An entry of an older release is one whose columns the superuser has emptied. On a database of its own, since the job
analyses every such entry that it finds.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import numpy as np
import pytest

from app.core.ids import format_id, new_uuid, parse_id
from app.core.jobs import Job
from app.index.analyser.analyser import ANALYSER_VERSION
from app.index.analyser.cues import Cue
from app.index.analyser.languages import DEFAULT as LANGUAGE
from app.index.analyser.terms import BYTES_PER_TERM, unpack_all_terms
from app.index.backfill import analysis_backfill, analysis_store
from app.index.backfill.analysis_backfill import AnalysisBackfill
from app.index.schemas import ANALYSIS_JOB
from app.tenancy.schemas import job_caller
from tests.api.test_compaction import summaries, talk
from tests.support.api import Client, Service, open_service
from tests.support.fake_chat import CHAT_MODEL, open_fake_chat, says
from tests.support.postgres import Servers, TestDatabase, fetch_as_superuser, own_database
from tests.support.timing import PATIENT_MS

KINDS = ["turn", "summary", "fact", "memory"]
QUERIES = [
    "When did we pay Maria in Lisbon?",
    "How many euros did I pay?",
    "Who visited Ludmila Baranova?",
    "Where does the tortoise live?",
    "which weather was in the report",
]
WRITTEN = says({"summary": "I paid Maria 21 euros in Lisbon last spring. Did Ludmila know?", "abstract": "Payments."})
INDEXED_BYTES = 400


@pytest.fixture(scope="module")
async def own(servers: Servers) -> AsyncIterator[TestDatabase]:
    async with own_database(servers, "older") as database:
        yield database


@pytest.fixture(scope="module")
async def service(own: TestDatabase, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    async with open_service(own, tmp_path_factory.mktemp("older")) as opened:
        yield opened


async def rows(service: Service, sql: str, *args: object) -> list[asyncpg.Record]:
    return await fetch_as_superuser(service.database, sql, *args)


async def empty(service: Service, client: Client) -> None:
    """Turn all entries of a tenant into those of an older release."""
    sql = "update index_entries set terms = null, cues = null, analyser = null, language = null where tenant_id = $1"
    await rows(service, sql, client.tenant_id)


async def analyses(service: Service, client: Client) -> dict[UUID, tuple[object, ...]]:
    """What the job sets, by live entry: the terms in any order."""
    sql = "select entry_id, terms, cues, analyser, language from index_entries where tenant_id = $1 and live"
    found: dict[UUID, tuple[object, ...]] = {}
    for entry_id, terms, *more in await rows(service, sql, client.tenant_id):
        hashes, _, counts = unpack_all_terms(terms or b"", np.array([len(terms or b"") // BYTES_PER_TERM]))
        found[entry_id] = (dict(zip(hashes.tolist(), counts.tolist(), strict=True)) or None, *more)
    return found


async def analysed(service: Service, client: Client) -> set[UUID]:
    return {entry_id for entry_id, one in (await analyses(service, client)).items() if one[2] == ANALYSER_VERSION}


async def jobs(service: Service, client: Client) -> list[asyncpg.Record]:
    sql = "select * from jobs where tenant_id = $1 and kind = $2"
    return await rows(service, sql, client.tenant_id, ANALYSIS_JOB)


async def run(service: Service, client: Client, *, after: UUID | None = None) -> None:
    await service.container.analysis.run(job_caller(client.tenant_id), after=after)


async def scores(client: Client) -> dict[tuple[str, ...], float]:
    """The score and relevance of all hits and the terms of the score, by query, mode, kind and id."""
    found: dict[tuple[str, ...], float] = {}
    for query in QUERIES:
        for mode in ("hybrid", "text"):
            body = {"kinds": KINDS, "mode": mode, "k": 50, "explain": True, "agent_id": "default"}
            for hit in await client.recall(None, query, **body):
                of_hit = {"score": hit["score"], "relevance": hit["relevance"], **hit["explain"]["terms"]}
                found |= {(query, mode, hit["kind"], hit["id"], name): value for name, value in of_hit.items()}
    return found


def before_writes(monkeypatch: pytest.MonkeyPatch, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Let something happen after the texts of each step are read, and before its analyses are stored."""
    analyse = AnalysisBackfill._analyse  # noqa: SLF001

    async def changed(*args: Any) -> Any:
        made = await analyse(*args)
        await do()
        return made

    monkeypatch.setattr(AnalysisBackfill, "_analyse", changed)


def small_steps(monkeypatch: pytest.MonkeyPatch, entries: int, *, steps: int) -> None:
    monkeypatch.setattr(analysis_backfill, "_ENTRIES", entries)
    monkeypatch.setattr(analysis_backfill, "_STEPS_PER_JOB", steps)


async def store_each_kind(client: Client) -> None:
    conversation = await talk(client, 11)
    call = {"id": "call_1", "name": "look_up", "arguments": {"city": "Lisbon", "days": 3}}
    long_text = " ".join(f"The weather report of day {day} in Porto was dull." for day in range(40))
    await client.append(
        conversation,
        "I visited Ludmila Baranova last Friday, and saw two museums.",
        "Where does the tortoise live?",
        {"role": "assistant", "content": "It lives under the stairs.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny and 25 degrees"},
        {"role": "user", "content": f"{long_text} Is that all?", "actor": "Ann"},
        "龟住在里斯本? 它住在波尔图。",
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/x.png"}}]},
    )
    for subject, said in (("ann", "My tortoise lives in Lisbon"), ("ben", "who knows Maria?")):
        fact = {"subject": subject, "predicate": "said", "object": said}
        assert (await client.post("/v1/facts", json=fact)).is_success
    for content in ("I owe Maria twelve euros since March.", "Does Ludmila keep a tortoise?"):
        assert (await client.post("/v1/memories", json={"content": content})).is_success


@pytest.mark.slow
async def test_entries_of_an_older_release_get_the_scores_of_new_ones(own: TestDatabase, tmp_path: Path) -> None:
    async with open_fake_chat() as fake:
        fake.reply = WRITTEN
        model = {"llm_base_url": fake.url, "llm_model": CHAT_MODEL, "llm_timeout_ms": PATIENT_MS}
        settings = {"index_text_bytes": INDEXED_BYTES, **model}
        async with open_service(own, tmp_path, **settings) as service, await service.new_tenant() as client:
            await store_each_kind(client)
            await service.run_jobs()  # the summary, and the dates
            (conversation,) = (await client.get("/v1/conversations")).json()["data"]
            assert [one["kind"] for one in await summaries(client, conversation["id"])] == ["summary"]
            fresh, written = await scores(client), await analyses(service, client)
            assert {kind for _, _, kind, *_ in fresh} == set(KINDS)
            await empty(service, client)
            assert await scores(client) != pytest.approx(fresh, abs=1e-5)
            await service.run_jobs()
            assert await jobs(service, client) == []
            found = await analyses(service, client)
            assert found.keys() == written.keys()
            for entry_id, (terms, *more) in found.items():
                assert terms is not None
                assert more == [*written[entry_id][1:]], entry_id
                # of those with dates, the terms were emptied when the dates were added
                assert written[entry_id][0] is None or terms == written[entry_id][0]
            assert sum(one[0] is None for one in written.values()) == 1
            # the last digit of a cosine depends on the order in which entries stand in memory
            assert await scores(client) == pytest.approx(fresh, abs=1e-5)


async def test_what_changes_while_it_is_analysed_is_not_overwritten(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await service.new_tenant() as client:
        talk_id = await client.conversation()
        texts = ["I was erased", "I was revised", "We met last Friday", "I stay"]
        turns = [turn["id"] for turn in (await client.append(talk_id, *texts))["turns"]]
        fact = {"subject": "ann", "predicate": "owns", "object": "a boat"}
        fact_id = (await client.post("/v1/facts", json=fact)).json()["fact"]["id"]
        memory_id = (await client.post("/v1/memories", json={"content": "I sail"})).json()["id"]
        # the job that adds dates runs amid the analysis
        await rows(service, "delete from jobs where tenant_id = $1", client.tenant_id)
        await empty(service, client)
        revised: list[str] = []

        async def change() -> None:
            assert (await client.delete(f"/v1/conversations/{talk_id}/turns/{turns[0]}")).is_success
            path = f"/v1/conversations/{talk_id}/turns/{turns[1]}/revisions"
            revised.append((await client.post(path, json={"content": "It has 3 words"})).json()["turn"]["id"])
            assert (await client.patch(f"/v1/facts/{fact_id}", json={"object": "two boats"})).is_success
            assert (await client.delete(f"/v1/memories/{memory_id}")).is_success
            dated = [parse_id(turns[2])]
            await service.container.conversations.indexing.resolve_dates(job_caller(client.tenant_id), turn_ids=dated)

        before_writes(monkeypatch, change)
        await run(service, client)
        monkeypatch.undo()
        found = await analyses(service, client)
        assert not found.keys() & {parse_id(one) for one in (turns[0], turns[1], fact_id, memory_id)}
        assert found[parse_id(revised[0])][1:] == (Cue.NUMBER, ANALYSER_VERSION, LANGUAGE)
        assert found[parse_id(turns[3])][1:] == (Cue.FIRST_PERSON, ANALYSER_VERSION, LANGUAGE)
        assert found[parse_id(turns[2])] == (None, None, None, None)
        sql = "select entry_id from index_entries where tenant_id = $1 and not live and analyser is not null"
        assert await rows(service, sql, client.tenant_id) == []
        # the turn whose dates were added is found again, with the words of the dates
        await service.run_jobs()
        terms, *more = (await analyses(service, client))[parse_id(turns[2])]
        assert more == [Cue.TIME_WORD | Cue.CAPITALISED, ANALYSER_VERSION, LANGUAGE]
        sql = "select length(lexemes) as terms, dates from index_entries where tenant_id = $1 and entry_id = $2"
        (stored,) = await rows(service, sql, client.tenant_id, parse_id(turns[2]))
        assert stored["dates"] is not None
        assert isinstance(terms, dict)
        assert len(terms) == stored["terms"]


async def test_an_entry_that_is_locked_is_left_to_the_next_plan(service: Service) -> None:
    async with await service.new_tenant() as client:
        talk_id = await client.conversation()
        first, second = [parse_id(one["id"]) for one in (await client.append(talk_id, "one", "two"))["turns"]]
        await empty(service, client)
        connection = await asyncpg.connect(service.database.superuser)
        try:
            async with connection.transaction():
                await connection.execute("update index_entries set session = session where entry_id = $1", first)
                async with asyncio.timeout(60):
                    await run(service, client)
        finally:
            await connection.close()
        assert await analysed(service, client) == {second}
        await service.run_jobs()
        assert await analysed(service, client) == {first, second}


async def test_a_worker_that_dies_between_steps_loses_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await service.new_tenant() as client:
        talk_id = await client.conversation()
        await client.append(talk_id, *(f"I saw {number} birds" for number in range(11)))
        await empty(service, client)
        assert await service.container.analysis.plan() == 1
        queue = service.container.queue
        (job,) = await queue.claim(new_uuid(), kinds=[ANALYSIS_JOB], limit=10)
        small_steps(monkeypatch, 2, steps=3)
        steps: list[int] = []

        async def die() -> None:
            steps.append(len(await analysed(service, client)))
            if len(steps) == 2:
                raise asyncio.CancelledError

        before_writes(monkeypatch, die)
        with pytest.raises(asyncio.CancelledError):
            await run(service, client)
        assert len(await analysed(service, client)) == 2
        # while it is leased to the dead worker, nothing is enqueued for it
        assert await service.container.analysis.plan() == 0
        await rows(service, "update jobs set locked_until = now() where tenant_id = $1", client.tenant_id)
        await service.run_jobs()
        assert len(await analysed(service, client)) == 11
        assert steps == [0, 2, 2, 4, 6, 8, 10], "no entry is analysed twice"
        assert await jobs(service, client) == []
        assert isinstance(job, Job)


async def test_a_job_ends_after_some_steps_and_another_continues(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await service.new_tenant() as client:
        talk_id = await client.conversation()
        turns = (await client.append(talk_id, *(f"I saw {number} birds" for number in range(5))))["turns"]
        await empty(service, client)
        small_steps(monkeypatch, 1, steps=2)
        await run(service, client)
        ids = sorted(parse_id(turn["id"]) for turn in turns)
        assert await analysed(service, client) == set(ids[:2])
        (job,) = await jobs(service, client)
        assert (job["subject_ids"], job["priority"]) == ([ids[1]], -1)
        # the words of a step are limited too, but it has one entry at least
        small_steps(monkeypatch, 200, steps=1)
        monkeypatch.setattr(analysis_backfill, "_WORDS", 1)
        await run(service, client, after=ids[1])
        assert await analysed(service, client) == set(ids[:3])
        await service.run_jobs()
        assert await analysed(service, client) == set(ids)
        assert await jobs(service, client) == []


async def test_two_tenants_with_the_same_ids_get_their_own_analyses(service: Service) -> None:
    async with await service.new_tenant() as one, await service.new_tenant() as two:
        talk_id, turn_id = format_id(new_uuid()), format_id(new_uuid())
        for client, text in ((one, "I asked for 3 boats?"), (two, "nothing of note")):
            await client.conversation(id=talk_id)
            await client.append(talk_id, {"id": turn_id, "role": "user", "content": text})
        written = [await analyses(service, client) for client in (one, two)]
        assert written[0].keys() == written[1].keys() == {parse_id(turn_id)}
        assert written[0] != written[1]
        await empty(service, one)
        await empty(service, two)
        await run(service, one)
        assert await analyses(service, one) == written[0]
        assert await analysed(service, two) == set()
        await service.run_jobs()
        assert [await analyses(service, client) for client in (one, two)] == written


async def test_the_plan_enqueues_one_job_for_each_tenant_and_none_when_all_is_analysed(service: Service) -> None:
    plan = service.container.analysis.plan
    await service.run_jobs()
    async with await service.new_tenant() as one, await service.new_tenant() as two:
        for client in (one, two):
            await client.append(await client.conversation(), "I wrote this", "and that")
        assert await plan() == 0
        await empty(service, one)
        sql = "update index_entries set analyser = $2, cues = 0 where tenant_id = $1"
        await rows(service, sql, two.tenant_id, ANALYSER_VERSION - 1)
        assert await plan() == 2
        assert await plan() == 0, "both have a job"
        assert [len(await jobs(service, client)) for client in (one, two)] == [1, 1]
        sql = "update jobs set state = 'parked', last_error = 'job_timeout' where kind = $1"
        await rows(service, sql, ANALYSIS_JOB)
        assert await plan() == 0
        assert {job["state"] for job in await jobs(service, one)} == {"queued"}
        await service.run_jobs()
        assert [len(await analysed(service, client)) for client in (one, two)] == [2, 2]
        assert await plan() == 0
        assert await jobs(service, one) == await jobs(service, two) == []


async def test_an_entry_whose_source_is_gone_or_retired_is_not_tried_again_and_again(service: Service) -> None:
    await service.run_jobs()
    async with await service.new_tenant() as client:
        talk_id = await client.conversation()
        turns = (await client.append(talk_id, "Is it 3 o'clock?", "I wrote 4 words"))["turns"]
        gone, retired = (parse_id(turn["id"]) for turn in turns)
        await empty(service, client)
        await rows(service, "update index_entries set live = false where entry_id = $1", retired)
        await rows(service, "update turns set erased_at = now() where id = $1", gone)
        await service.run_jobs()
        assert await service.container.analysis.plan() == 0
        found = await analyses(service, client)
        assert found.keys() == {gone}
        assert found[gone][1:] == (Cue.ASKS, ANALYSER_VERSION, LANGUAGE)


async def test_the_index_has_the_entries_that_the_queries_ask_for(service: Service) -> None:
    connection = await asyncpg.connect(service.database.superuser)
    try:
        await connection.execute("set enable_seqscan = off")
        sql = f"explain select entry_id from index_entries where tenant_id = $1 and {analysis_store.UNANALYSED}"  # noqa: S608
        plan = await connection.fetch(sql, new_uuid())
    finally:
        await connection.close()
    assert "index_entries_unanalysed_idx" in str(plan)


async def test_words_that_an_older_release_adds_are_found_in_memory(service: Service, client: Client) -> None:
    """It adds the words of resolved dates, and does not know the terms."""
    conversation = await client.conversation()
    await client.append(conversation, "the parrot sleeps", "the tortoise eats")
    assert await client.recall(conversation, "aardvark", mode="text") == []
    sql = "update index_entries set lexemes = lexemes || '''aardvark'':9' where tenant_id = $1 and position = 1"
    await rows(service, sql, client.tenant_id)
    [hit] = await client.recall(conversation, "aardvark", mode="text")
    assert hit["text"] == "the parrot sleeps"
