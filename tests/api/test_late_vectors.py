"""Vectors made after the append: what was stored under another embedder, under none, or while it failed, is caught up.

On a database of its own, since a worker catches up every tenant that it finds.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.core.database.transactions import Database, PoolOptions, Transaction
from app.core.ids import parse_id
from app.diagnostics.schemas import Check, Level
from app.diagnostics.service import DataCheck, examine
from app.settings.server import ServerSettings
from app.worker.handlers import make_worker
from app.worker.runner import working
from tests.support.api import Client, Service, open_service, problem
from tests.support.fake_openai import MODEL, FakeOpenAI, Mode, open_fake
from tests.support.postgres import Servers, TestDatabase, fetch_as_superuser, own_database
from tests.support.timing import PATIENT_S, shorten_timeout


@pytest.fixture(scope="module")
async def own(servers: Servers) -> AsyncIterator[TestDatabase]:
    async with own_database(servers, "late") as database:
        yield database


@pytest.fixture(scope="module")
async def opened_fake() -> AsyncIterator[FakeOpenAI]:
    async with open_fake() as opened:
        yield opened


def remote_settings(fake: FakeOpenAI, **more: Any) -> dict[str, Any]:
    return {
        "embedder": "openai", "embeddings_base_url": fake.url, "embeddings_model": MODEL, "embeddings_dimensions": 48,
        "embeddings_max_retries": 0, "embeddings_timeout_s": PATIENT_S,
        "job_retry_base_s": 0.01, "job_retry_max_s": 0.02,
    } | more  # fmt: skip


@pytest.fixture(scope="module")
async def bare(own: TestDatabase, tmp_path_factory: Any) -> AsyncIterator[Service]:
    """The service without an embedder."""
    async with open_service(own, tmp_path_factory.mktemp("bare"), embedder="none") as opened:
        yield opened


@pytest.fixture(scope="module")
async def remote(own: TestDatabase, opened_fake: FakeOpenAI, tmp_path_factory: Any) -> AsyncIterator[Service]:
    """The service with an embedder that speaks HTTP."""
    async with open_service(own, tmp_path_factory.mktemp("remote"), **remote_settings(opened_fake)) as opened:
        yield opened


@pytest.fixture
async def fake(opened_fake: FakeOpenAI, remote: Service) -> FakeOpenAI:
    """The endpoint, in order, with everything caught up that tests before have left."""
    opened_fake.mode, opened_fake.retry_after, opened_fake.refused_word = "ok", None, None
    opened_fake.modes.clear()
    await rows(remote, "delete from jobs")
    await remote.run_jobs()
    opened_fake.requests.clear()
    return opened_fake


async def rows(service: Service, sql: str, *args: object) -> list[asyncpg.Record]:
    return await fetch_as_superuser(service.database, sql, *args)


@asynccontextmanager
async def stored_bare(bare: Service, *texts: str) -> AsyncIterator[tuple[Client, str, list[str]]]:
    """A tenant with a conversation that was stored without an embedder."""
    async with await bare.new_tenant() as client:
        conversation = await client.conversation()
        turns = (await client.append(conversation, *texts))["turns"] if texts else []
        yield client, conversation, [turn["id"] for turn in turns]


async def vectors(service: Service, client: Client) -> dict[str, int]:
    """How many vectors the tenant has, by the provider of their space."""
    sql = """select s.provider, count(*) as n from vectors v join embedding_spaces s on s.id = v.space_id
             where v.tenant_id = $1 group by 1"""
    return {row["provider"]: row["n"] for row in await rows(service, sql, client.tenant_id)}


async def degraded(client: Client, conversation: str, query: str = "tortoise", **more: Any) -> list[str]:
    answer = await client.post(f"/v1/conversations/{conversation}/recall", json={"query": query, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["degraded"]


async def jobs_of(client: Client) -> list[dict[str, Any]]:
    return (await client.get("/v1/admin/jobs")).json()["data"]


async def pending(client: Client) -> int:
    return (await client.get("/v1/admin/stats")).json()["vectors_pending"]


async def faults(service: Service, client: Client) -> list[str]:
    ops = Database(PoolOptions(service.database.ops, 2, timeout_s=30, name="doctor-late"))
    await ops.open()
    try:
        check = DataCheck(ops, client.tenant_id)
        found = [fault.code async for some in check.conversations(limit=None) for fault in some]
        return found + [fault.code for fault in await check.references()]
    finally:
        await ops.close()


async def doctor(service: Service) -> Check:
    checks = await examine(service.settings.model_copy(update={"server": ServerSettings(port=0)}), environment={})
    return next(check for check in checks if check.name == "vectors")


def texts_asked(fake: FakeOpenAI) -> list[str]:
    return [text for request in fake.requests for text in request["input"] if text not in {"start", "probe"}]


# another embedder than before


@pytest.mark.slow
async def test_turns_stored_without_an_embedder_are_found_by_meaning_after_a_start_with_one(
    own: TestDatabase, tmp_path: Path
) -> None:
    async with (
        open_service(own, tmp_path, embedder="none") as before,
        stored_bare(before, "the tortoise eats lettuce", "the invoice is overdue", "a dog barks") as (first, talk, _),
    ):
        tenant_id, key = first.tenant_id, first.key
        assert await degraded(first, talk) == ["embedder_none"]
        assert await faults(before, first) == []
        assert (await pending(first), await jobs_of(first)) == (0, [])
    async with open_service(own, tmp_path) as after, after.client(key) as client:
        client.tenant_id = tenant_id
        assert await degraded(client, talk, mode="vector") == ["vectors_pending"]
        assert await pending(client) == 3
        assert await faults(after, client) == []
        told = await doctor(after)
        assert told.level is Level.WARN
        assert "3 of 3 entries" in told.found
        assert "turnkeep worker" in told.remedy
        await after.run_jobs()
        assert await degraded(client, talk, mode="vector") == []
        (hit,) = await client.recall(talk, "what does the reptile have for dinner", mode="vector", k=1, explain=True)
        assert hit["text"] == "the tortoise eats lettuce"
        assert hit["explain"]["cosine"] > 0.3
        assert {turn["index_state"] for turn in await client.history(talk)} == {"indexed"}
        assert (await pending(client), await jobs_of(client), await faults(after, client)) == (0, [], [])
        assert (await doctor(after)).level is Level.OK


@pytest.mark.slow
async def test_facts_stored_without_an_embedder_are_found_by_meaning_after_a_start_with_one(
    own: TestDatabase, tmp_path: Path
) -> None:
    told = {"subject": "the tortoise", "predicate": "eats", "object": "lettuce"}
    async with open_service(own, tmp_path, embedder="none") as before, await before.new_tenant() as client:
        fact = (await client.post("/v1/facts", json=told)).json()["fact"]["id"]
        tenant_id, key = client.tenant_id, client.key
    async with open_service(own, tmp_path) as after, after.client(key) as client:
        client.tenant_id = tenant_id
        await after.run_jobs()
        body = {"query": "what does the reptile have for dinner", "mode": "vector", "kinds": ["fact"]}
        (hit,) = (await client.post("/v1/recall", json=body)).json()["data"]
        assert (hit["id"], await jobs_of(client)) == (fact, [])


@pytest.mark.slow
async def test_a_server_catches_up_by_itself_when_it_starts(
    bare: Service, fake: FakeOpenAI, own: TestDatabase, tmp_path: Path
) -> None:
    async with stored_bare(bare, "the tortoise eats lettuce") as (client, talk, _):
        running = open_service(own, tmp_path, **remote_settings(fake), worker_in_process=True)
        async with running as served, served.client(client.key) as caller, asyncio.timeout(30):
            while await degraded(caller, talk):  # noqa: ASYNC110 - what is waited for is in the database
                await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_after_a_change_of_model_the_new_space_is_filled_and_the_old_one_kept(
    bare: Service, remote: Service, fake: FakeOpenAI, own: TestDatabase, tmp_path: Path
) -> None:
    async with stored_bare(bare, "the tortoise eats lettuce", "a dog barks") as (client, talk, _):
        await remote.run_jobs()
        assert await vectors(remote, client) == {"openai": 2}
        other = remote_settings(fake, embeddings_dimensions=32)
        async with open_service(own, tmp_path, **other) as narrow, narrow.client(client.key) as caller:
            assert await degraded(caller, talk) == ["vectors_pending"]
            await remote.run_jobs()  # one with the old model has nothing to do, and leaves the new one's work alone
            assert await degraded(caller, talk) == ["vectors_pending"]
            fake.dimensions = 32
            await narrow.run_jobs()
            fake.dimensions = 48
            assert await degraded(caller, talk) == []
            assert await vectors(remote, client) == {"openai": 4}
        # and back: nothing is made anew
        fake.requests.clear()
        await remote.run_jobs()
        async with remote.client(client.key) as caller:
            assert await degraded(caller, talk, mode="vector", query="lettuce") == []
        assert texts_asked(fake) == ["lettuce"]


@pytest.mark.usefixtures("fake")
@pytest.mark.slow
async def test_turns_as_large_as_they_may_be_are_caught_up_a_few_at_a_time(
    bare: Service, remote: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may have a whole request of parts that no index reads."""
    read: list[int] = []
    fetch = Transaction.fetch

    async def recording(tx: Transaction, sql: str, *args: object) -> list[asyncpg.Record]:
        found = await fetch(tx, sql, *args)
        read.append(sum(len(row.get("content") or "") for row in found))
        return found

    size = 6 * 2**20
    async with stored_bare(bare) as (client, talk, _):
        for number in range(5):
            text = {"type": "text", "text": f"the tortoise number {number}"}
            await client.append(talk, {"role": "user", "content": [text, {"type": "x", "data": "a" * size}]})
        monkeypatch.setattr(Transaction, "fetch", recording)
        await remote.run_jobs()
        monkeypatch.undo()
        assert await vectors(remote, client) == {"openai": 5}
        assert size < max(read) < 2.5 * size


@pytest.mark.usefixtures("fake")
async def test_what_went_while_its_vectors_were_made_gets_none(
    bare: Service, remote: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["erased", "revised", "kept"]
    async with stored_bare(bare, *words) as (client, talk, ids), stored_bare(bare, "deleted") as (lost, gone, _):
        backfill = remote.container.index.backfill
        embed = backfill.embed

        async def changing(texts: list[list[str]]) -> Any:
            made = await embed(texts)
            if ["erased"] in texts:
                await client.delete(f"/v1/conversations/{talk}/turns/{ids[0]}")
                revised = {"content": "another"}
                await client.post(f"/v1/conversations/{talk}/turns/{ids[1]}/revisions", json=revised)
            if ["deleted"] in texts:
                await lost.delete(f"/v1/conversations/{gone}")
            return made

        monkeypatch.setattr(backfill, "embed", changing)
        await remote.run_jobs()
        monkeypatch.undo()
        found = await rows(remote, "select entry_id from vectors where tenant_id = $1", client.tenant_id)
        assert [row["entry_id"] for row in found] == [parse_id(ids[2])]
        assert await vectors(remote, lost) == {}
        # the revision was stored without an embedder as well
        await remote.run_jobs()
        assert await vectors(remote, client) == {"openai": 2}
        assert await faults(remote, client) == await faults(remote, lost) == []
        states = [turn["index_state"] for turn in await client.history(talk)]
        assert states == ["none", "indexed", "indexed"]
        assert await jobs_of(client) == []


@pytest.mark.slow
async def test_several_workers_make_each_vector_once_in_small_steps(
    bare: Service, remote: Service, fake: FakeOpenAI, own: TestDatabase, tmp_path: Path, monkeypatch: Any
) -> None:
    for name, value in (("backfill.vector_backfill._EXAMINE", 7), ("backfill.vector_backfill._AT_ONCE", 3)):
        monkeypatch.setattr(f"app.index.{name}", value)
    monkeypatch.setattr("app.conversations.turns.index_jobs._MAX_FILLED", 5)
    monkeypatch.setattr("app.conversations.turns.index_jobs._TURNS", 2)
    numbers = [f"parrot number {n}" for n in range(40)]
    async with (
        stored_bare(bare, *numbers) as (one, talk, _),
        stored_bare(bare, *[f"horse number {n}" for n in range(25)]) as (two, _, _),
        open_service(own, tmp_path, **remote_settings(fake)) as second,
    ):
        for _ in range(10):
            async with working(make_worker(remote.container)), working(make_worker(second.container)):
                await asyncio.sleep(0.2)
            if not await pending_of(remote, one, two):
                break
        assert await vectors(remote, one) == {"openai": 40}
        assert await vectors(remote, two) == {"openai": 25}
        asked = texts_asked(fake)
        assert len(asked) == len(set(asked)) == 65
        async with remote.client(one.key) as caller:
            assert await degraded(caller, talk, query="parrot") == []


async def pending_of(service: Service, *clients: Client) -> int:
    counts = []
    for one in clients:
        async with service.client(one.key) as client:
            counts.append(await pending(client))
    return sum(counts)


async def test_an_embedder_that_fails_midway_goes_on_where_it_was_when_it_is_back(
    bare: Service, remote: Service, fake: FakeOpenAI
) -> None:
    async with stored_bare(bare, *[f"parrot number {n}" for n in range(60)]) as (stored, talk, _):
        fake.modes, fake.mode = ["ok", "ok"], "overloaded"  # it is asked once whether it works
        await remote.run_jobs()
        assert await vectors(remote, stored) == {"openai": 32}
        async with remote.client(stored.key) as client:
            (job,) = await jobs_of(client)
            assert (job["state"], job["last_error"]) == ("queued", "embedder_overloaded")
            assert await pending(client) == 28
            assert await faults(remote, stored) == []
            fake.mode = "ok"
            await client.post(f"/v1/admin/jobs/{job['id']}/retry")
            await remote.run_jobs()
            assert (await pending(client), await jobs_of(client)) == (0, [])
            assert await degraded(client, talk, query="parrot") == []


@pytest.mark.slow
async def test_jobs_that_were_parked_while_the_embedder_was_away_are_tried_again_when_it_is_back(
    bare: Service, fake: FakeOpenAI, own: TestDatabase, tmp_path: Path
) -> None:
    impatient = open_service(own, tmp_path, **remote_settings(fake, job_max_attempts=1))
    async with (
        impatient as service,
        stored_bare(bare, "a tortoise", "a dog") as (stored, talk, _),
        service.client(stored.key) as client,
    ):
        fake.refused_word = "a "
        await client.append(talk, "a parrot")
        await service.run_jobs()
        parked = {job["kind"].rstrip("0123456789"): job for job in await jobs_of(client)}
        assert {(name, job["state"], job["last_error"]) for name, job in parked.items()} == {
            ("index.vectors", "parked", "embedder_unavailable"),
            ("index.backfill_", "parked", "embedder_unavailable"),
        }
        told = await doctor(service)
        assert told.level is Level.WARN
        assert "2 parked" in told.found
        assert "embedder_unavailable" in told.found
        assert "POST /v1/admin/jobs/{id}/retry" in told.remedy
        # as long as it is away nothing is worn out, and the look itself says why
        fake.mode, fake.refused_word = "error", None
        await service.run_jobs()
        assert {job["state"] for job in await jobs_of(client)} == {"parked"}
        (plan,) = await rows(
            service, "select last_error from jobs where kind = $1", service.container.index.backfill.plan_kind
        )
        assert plan["last_error"] == "embedder_unavailable"
        assert "last errors: embedder_unavailable" in (await doctor(service)).found
        fake.mode = "ok"
        await service.run_jobs()
        assert await jobs_of(client) == []
        assert await degraded(client, talk) == []
        assert {turn["index_state"] for turn in await client.history(talk)} == {"indexed"}
        assert await pending(client) == 0


async def test_a_text_that_the_embedder_refuses_does_not_keep_others_from_their_vectors(
    bare: Service, remote: Service, fake: FakeOpenAI
) -> None:
    fake.refused_word = "poison"
    texts = ["a tortoise", "poison", *[f"parrot {n}" for n in range(30)]]
    async with stored_bare(bare, *texts) as (stored, talk, ids), remote.client(stored.key) as client:
        await remote.run_jobs()
        assert await vectors(remote, stored) == {"openai": 31}
        waiting = await client.append(talk, "the same poison", "a whale")
        assert {turn["index_state"] for turn in waiting["turns"]} == {"pending"}
        await remote.run_jobs()
        states = [turn["index_state"] for turn in await client.history(talk)]
        assert states[-2:] == ["pending", "indexed"]
        assert await pending(client) == 2
        assert await degraded(client, talk) == ["vectors_pending"]
        fake.refused_word = None
        for job in await jobs_of(client):
            await client.post(f"/v1/admin/jobs/{job['id']}/retry")
        await remote.run_jobs()
        assert (await pending(client), await jobs_of(client)) == (0, [])
        assert await vectors(remote, stored) == {"openai": len(ids) + 2}


async def test_a_fact_that_the_embedder_refuses_does_not_keep_others_from_their_vectors(
    bare: Service, remote: Service, fake: FakeOpenAI
) -> None:
    fake.refused_word = "poison"
    async with stored_bare(bare) as (stored, _, _), remote.client(stored.key) as client:
        for value in ("poison", "tea", "milk"):
            body = {"subject": "ana", "predicate": "likes", "object": value}
            assert (await stored.post("/v1/facts", json=body)).status_code == 201
        await remote.run_jobs()
        assert await vectors(remote, stored) == {"openai": 2}
        # found anew by its correction, and by words until its own job has run
        (tea,) = (await client.get("/v1/facts", params={"order": "asc"})).json()["data"][1:2]
        fake.refused_word = "e"
        assert (await client.patch(f"/v1/facts/{tea['id']}", json={"object": "green tea"})).status_code == 200
        fake.refused_word = "poison"
        await remote.run_jobs()
        assert await vectors(remote, stored) == {"openai": 2}


async def test_a_cancelled_job_stays_so_and_another_model_s_jobs_go_in_the_end(
    bare: Service, remote: Service, fake: FakeOpenAI
) -> None:
    async with stored_bare(bare, "a tortoise") as (stored, _, _), remote.client(stored.key) as client:
        fake.modes, fake.mode = ["ok"], "error"
        await remote.run_jobs()
        (job,) = await jobs_of(client)
        await client.post(f"/v1/admin/jobs/{job['id']}/cancel")
        fake.mode = "ok"
        await rows(
            remote,
            "insert into jobs (tenant_id, id, kind, max_attempts, run_at)"
            " values ($1, gen_random_uuid(), 'index.backfill_999', 3, now() - interval '2 days')",
            stored.tenant_id,
        )
        await remote.run_jobs()
        (left,) = await jobs_of(client)
        assert (left["id"], left["state"]) == (job["id"], "cancelled")
        await client.post(f"/v1/admin/jobs/{job['id']}/retry")
        await remote.run_jobs()
        assert (await pending(client), await jobs_of(client)) == (0, [])


# an embedder that fails


KINDS: list[tuple[Mode, int, str]] = [
    ("rate_limited", 429, "embedder_rate_limited"),
    ("error", 503, "embedder_unavailable"),
    ("timeout", 503, "embedder_unavailable"),
    ("garbage", 502, "embedder_invalid"),
    ("overloaded", 503, "embedder_overloaded"),
    ("reset", 503, "embedder_unavailable"),
]


@pytest.mark.parametrize(("mode", "status", "code"), KINDS, ids=[kind[0] for kind in KINDS])
async def test_a_failure_loses_no_turn_is_reported_by_its_kind_and_is_caught_up_afterwards(
    remote: Service, fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch, mode: Mode, status: int, code: str
) -> None:
    async with await remote.new_tenant() as client:
        conversation = await client.conversation()
        await client.append(conversation, "the invoice is overdue")
        path = f"/v1/conversations/{conversation}"
        fake.mode = mode
        if mode == "timeout":
            shorten_timeout(monkeypatch, remote.container.embedder)
        turn = {"role": "user", "content": "the tortoise eats lettuce"}
        made = await client.post(f"{path}/turns", json={"turns": [turn]})
        assert made.status_code == 201
        assert made.json()["turns"][0]["index_state"] == "pending"
        assert await degraded(client, conversation) == [code]
        assert (await client.recall(conversation, "lettuce"))[0]["text"] == turn["content"]
        told = problem(await client.post(f"{path}/recall", json={"query": "x", "mode": "vector"}), status, code)
        assert told["retryable"]
        assert await degraded(client, conversation, mode="text") == []
        context = await client.context(conversation, 500, semantic_recall={"k": 2}, query="lettuce")
        assert context["degraded"] == [code]
        await remote.run_jobs()
        (job,) = await jobs_of(client)
        assert (job["kind"], job["state"], job["last_error"]) == ("index.vectors", "queued", code)
        assert await pending(client) == 1
        fake.mode = "ok"
        monkeypatch.undo()
        assert await degraded(client, conversation) == ["vectors_pending"]
        await asyncio.sleep(0.05)  # longer than the longest wait of these settings
        await remote.run_jobs()
        (hit, *_) = await client.recall(conversation, "lettuce tortoise", mode="vector", explain=True)
        assert (hit["text"], hit["turn"]["index_state"]) == (turn["content"], "indexed")
        assert hit["explain"]["cosine"] > 0.5
        assert await degraded(client, conversation, mode="vector") == []
        assert (await jobs_of(client), await pending(client)) == ([], 0)


async def test_a_job_waits_as_long_as_the_endpoint_asks_for(remote: Service, fake: FakeOpenAI) -> None:
    async with await remote.new_tenant() as client:
        fake.mode, fake.retry_after = "rate_limited", "40"
        conversation = await client.conversation()
        await client.append(conversation, "the tortoise eats lettuce")
        answer = await client.post(f"/v1/conversations/{conversation}/recall", json={"query": "x", "mode": "vector"})
        problem(answer, 429, "embedder_rate_limited")
        assert answer.headers["retry-after"] == "40"
        await remote.run_jobs()
        sql = "select attempts, extract(epoch from run_at - now())::float8 as wait_s from jobs where tenant_id = $1"
        (job,) = await rows(remote, sql, client.tenant_id)
        assert job["attempts"] == 1
        assert 38 < job["wait_s"] <= 41
