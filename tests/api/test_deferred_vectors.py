"""Appends with `index: deferred`: durable and found by words at once, vectors by a job."""

from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.agents.tools.schemas import AppendTurns
from tests.support.api import Client, Service, open_service, problem
from tests.support.live import serving, socket_on

ANIMALS = ("the badger digs at night", "the wombat sleeps all day", "a heron waits for fish")


async def append_deferred(client: Client, conversation: str, *texts: str) -> dict[str, Any]:
    return await client.append(conversation, *texts, index="deferred")


async def states(client: Client, conversation: str) -> list[str]:
    return [turn["index_state"] for turn in await client.history(conversation)]


async def search(client: Client, conversation: str, query: str, **more: Any) -> dict[str, Any]:
    answer = await client.post(f"/v1/conversations/{conversation}/recall", json={"query": query, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def count(service: Service, sql: str, *args: object) -> int:
    connection = await asyncpg.connect(service.database.superuser)
    try:
        return await connection.fetchval(sql, *args)
    finally:
        await connection.close()


async def vectors(service: Service, client: Client) -> int:
    return await count(service, "select count(*) from vectors where tenant_id = $1", client.tenant_id)


@pytest.mark.slow
async def test_deferred_turns_are_found_by_words_at_once_and_by_vector_after_the_job_on_two_services(
    service: Service, client: Client, tmp_path: Path
) -> None:
    async with open_service(service.database, tmp_path) as second, second.client(client.key) as reader:
        conversation = await client.conversation()
        assert (await search(reader, conversation, "badger"))["data"] == []
        appended = await append_deferred(client, conversation, *ANIMALS)
        assert [turn["index_state"] for turn in appended["turns"]] == ["pending"] * 3
        assert await vectors(service, client) == 0
        for one in (client, reader):
            found = await search(one, conversation, "badger", k=1)
            assert found["data"][0]["text"] == ANIMALS[0]
            assert found["degraded"] == ["vectors_pending"]
            assert (await search(one, conversation, "digging after dark", mode="vector"))["degraded"] == [
                "vectors_pending"
            ]
        assert (await client.get("/v1/admin/stats")).json()["vectors_pending"] == 3
        await service.run_jobs()
        assert await states(reader, conversation) == ["indexed"] * 3
        for one in (client, reader):
            found = await search(one, conversation, "digging after dark", mode="vector", k=1)
            assert found["data"][0]["text"] == ANIMALS[0]
            assert found["degraded"] == []
        verified = (await client.get(f"/v1/conversations/{conversation}/verify")).json()
        assert verified["valid"] is True


@pytest.mark.slow
async def test_a_deferred_append_calls_no_embedder_and_gives_the_vectors_of_any_other_append(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = service.container.embedder
    assert embedder is not None
    embed = embedder.embed
    purposes: list[str] = []

    async def recording(texts: list[str], *, purpose: Any) -> Any:
        purposes.append(purpose)
        return await embed(texts, purpose=purpose)

    monkeypatch.setattr(embedder, "embed", recording)
    long = " ".join(f"word{number} of a long text" for number in range(300))
    conversation = await client.conversation()
    await append_deferred(client, conversation, *ANIMALS, long)
    assert purposes == []
    await service.run_jobs()
    assert set(purposes) == {"backlog"}
    await client.append(conversation, *ANIMALS, long)
    sql = """
        select count(*) from vectors a join index_entries i on i.tenant_id = a.tenant_id and i.entry_id = a.entry_id
        join index_entries j on j.tenant_id = i.tenant_id and j.position = i.position + 4
        join vectors b on b.tenant_id = j.tenant_id and b.entry_id = j.entry_id and b.part = a.part
        where a.tenant_id = $1 and a.embedding = b.embedding
    """
    assert await count(service, sql, client.tenant_id) * 2 == await vectors(service, client) > 8


async def test_vectors_that_other_appends_wait_for_are_made_before_deferred_ones(
    service: Service, client: Client
) -> None:
    conversation = await client.conversation()
    await append_deferred(client, conversation, *[f"remark number {number}" for number in range(60)])
    await client.append(conversation, *[f"note number {number}" for number in range(40)])
    jobs = (await client.get("/v1/admin/jobs")).json()["data"]
    assert sorted(job["priority"] for job in jobs if job["kind"] == "index.vectors") == [-1, -1, 0]
    await service.run_jobs()
    assert set(await states(client, conversation)) == {"indexed"}


async def test_turns_erased_revised_or_deleted_before_the_job_get_no_vectors(service: Service, client: Client) -> None:
    conversation, gone = await client.conversation(), await client.conversation()
    turns = (await append_deferred(client, conversation, *ANIMALS))["turns"]
    await append_deferred(client, gone, *ANIMALS)
    path = f"/v1/conversations/{conversation}/turns"
    assert (await client.delete(f"{path}/{turns[0]['id']}")).status_code == 204
    revised = await client.post(f"{path}/{turns[1]['id']}/revisions", json={"content": "the koala sleeps all day"})
    assert revised.status_code == 201
    assert (await client.delete(f"/v1/conversations/{gone}")).status_code == 204
    await service.run_jobs()
    assert await states(client, conversation) == ["none", "indexed", "indexed"]
    assert await vectors(service, client) == 2
    texts = {hit["text"] for hit in (await search(client, conversation, "what sleeps or digs", mode="vector"))["data"]}
    assert texts == {"the koala sleeps all day", ANIMALS[2]}
    jobs = (await client.get("/v1/admin/jobs")).json()["data"]
    assert [job for job in jobs if job["kind"] == "index.vectors"] == []


async def test_turns_that_retention_erases_before_the_job_get_no_vectors(service: Service, tmp_path: Path) -> None:
    async with (
        open_service(service.database, tmp_path, erase_without_summary=True) as own,
        await own.new_tenant() as client,
    ):
        policy = {"strategy": "rolling", "trigger_turns": 4, "trigger_tokens": 100_000}
        conversation = await client.conversation(retention="ephemeral", compaction=policy)
        await append_deferred(client, conversation, *[f"I bought {n} pears in Porto" for n in range(2, 12)])
        await own.run_jobs()
        kept = [turn["index_state"] for turn in await client.history(conversation) if turn["erased_at"] is None]
        assert 0 < len(kept) < 10
        assert set(kept) == {"indexed"}
        sql = "select count(*) from vectors v join index_entries e using (tenant_id, entry_id)"
        assert await count(own, f"{sql} where v.tenant_id = $1 and e.kind = 'turn'", client.tenant_id) == len(kept)


async def test_a_repeated_deferred_append_stores_nothing_twice(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    path = f"/v1/conversations/{conversation}/turns"
    body = {"turns": [{"role": "user", "content": text} for text in ANIMALS], "index": "deferred"}
    key = {"Idempotency-Key": "import-1"}
    first = await client.post(path, json=body, headers=key)
    await service.run_jobs()
    again = await client.post(path, json=body, headers=key)
    assert (first.status_code, again.status_code, again.headers["Idempotent-Replayed"]) == (201, 201, "true")
    assert [turn["id"] for turn in again.json()["turns"]] == [turn["id"] for turn in first.json()["turns"]]
    assert [turn["index_state"] for turn in again.json()["turns"]] == ["indexed"] * 3
    now = {name: value for name, value in body.items() if name != "index"}
    problem(await client.post(path, json=now, headers=key), 409, "idempotency_mismatch")
    # the time of indexing is no part of a turn: the same turn id may be sent again with another one
    named = [turn | {"id": stored["id"]} for turn, stored in zip(body["turns"], first.json()["turns"], strict=True)]
    repeated = await client.post(path, json={"turns": named, "index": "now"})
    assert (repeated.status_code, repeated.json()["seq"]) == (200, 3)
    assert len(await client.history(conversation)) == 3


async def test_the_option_takes_two_values_on_rest_and_in_frames_and_is_no_parameter_of_the_tool(
    service: Service, client: Client
) -> None:
    assert "index" not in AppendTurns.model_fields
    conversation = await client.conversation()
    path = f"/v1/conversations/{conversation}/turns"
    turns = [{"role": "user", "content": ANIMALS[0]}]
    for wrong in ("later", None, True, ""):
        problem(await client.post(path, json={"turns": turns, "index": wrong}), 422, "invalid_request", "/index")
    assert (await client.append(conversation, *turns, index="now"))["turns"][0]["index_state"] == "indexed"
    async with (
        serving(service.app, service.settings) as port,
        socket_on(port, conversation, client.key) as one,
    ):
        answer = await one.ask("append", turns=turns, index="deferred", idempotency_key="k")
        assert answer["turns"][0]["index_state"] == "pending"
        again = await one.ask("append", turns=turns, index="deferred", idempotency_key="k")
        assert again["turns"][0]["id"] == answer["turns"][0]["id"]
        assert (await one.ask("append", turns=turns, idempotency_key="k"))["code"] == "idempotency_mismatch"
        assert (await one.ask("append", turns=turns, index="later"))["type"] == "error"


async def test_without_an_embedder_deferred_turns_wait_for_nothing(words_database: Any, tmp_path: Path) -> None:
    async with open_service(words_database, tmp_path, embedder="none") as bare, await bare.new_tenant() as client:
        conversation = await client.conversation()
        appended = await append_deferred(client, conversation, *ANIMALS)
        assert [turn["index_state"] for turn in appended["turns"]] == ["indexed"] * 3
        jobs = (await client.get("/v1/admin/jobs")).json()["data"]
        assert [job for job in jobs if job["kind"] == "index.vectors"] == []
