"""Idempotency-Keys are stored as HMACs: no table, statistic, log line or answer has a key that a client sent."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.core.database.revisions import FIRST_RELEASE
from app.core.database.transactions import Database, PoolOptions
from tests.api.test_erased_for_good import Said, dump, found, run
from tests.api.test_keys_without_read import OPERATIONS, send
from tests.api.test_mcp import listening_to_logs
from tests.support.api import Client, Service, open_service, problem
from tests.support.live import serving, socket_on
from tests.support.marked import marked_tenant
from tests.support.postgres import TestDatabase

KEYED = sorted(name for name, (_, _, takes_key) in OPERATIONS.items() if takes_key)
TURN = {"role": "user", "content": "hello"}


async def keys_of(service: Service, client: Client) -> list[str]:
    """What is stored of the keys of a tenant."""
    connection = await asyncpg.connect(service.database.superuser)
    try:
        rows = await connection.fetch("select key from idempotency_records where tenant_id = $1", client.tenant_id)
        return sorted(row["key"] for row in rows)
    finally:
        await connection.close()


@pytest.mark.slow
async def test_no_key_is_in_any_answer_log_line_or_table(service: Service, client: Client) -> None:
    sent = Said("idempotency")
    marked = await marked_tenant(service, client)
    answers: list[Any] = []
    with listening_to_logs() as events:
        for name in KEYED:
            answers += [await send(client, name, marked, **{"Idempotency-Key": sent.word(name)}) for _ in range(2)]
        key = {"Idempotency-Key": sent.word("conversation")}
        conversation = (await client.post("/v1/conversations", json={}, headers=key)).json()["id"]
        path = f"/v1/conversations/{conversation}"
        mismatch = await client.post("/v1/conversations", json={"title": "x"}, headers=key)
        problem(mismatch, 409, "idempotency_mismatch")
        long = {"Idempotency-Key": sent.word("too long") * 50}
        refused = await client.post("/v1/conversations", json={}, headers=long)
        problem(refused, 422, "invalid_request")
        token = (await client.post(f"{path}/tokens", json={"access": "append", "actor": "ann"})).json()["token"]
        async with service.client(token) as browser:
            key = {"Idempotency-Key": sent.word("token")}
            answers.append(await browser.post(f"{path}/turns", json={"turns": [TURN]}, headers=key))
        async with serving(service.app, service.settings) as port, socket_on(port, conversation, client.key) as live:
            frame = await live.ask("append", turns=[TURN], idempotency_key=sent.word("frame"))
        await service.run_jobs()
        assert (await client.delete(path)).status_code == 204
    assert {name for name in KEYED if sent.word(name)} | {"conversation", "too long", "token", "frame"} == set(
        sent.roots
    )
    for answer in (*answers, mismatch, refused):
        assert found(sent, f"{answer.headers!r} {answer.text}".encode()) == set()
    assert found(sent, f"{frame} {events}".encode()) == set()
    await run(service, "analyze idempotency_records", "analyze turn_streams", "analyze jobs")
    assert found(sent, await dump(service, "--statistics")) == set()
    assert len(await keys_of(service, client)) >= len(KEYED) / 2


async def test_what_is_stored_of_a_key_depends_on_the_tenant_and_on_the_secret_of_the_installation(
    service: Service, client: Client, other: Client, tmp_path: Path
) -> None:
    headers = {"Idempotency-Key": "order-1001"}
    for sender in (client, other):
        assert (await sender.post("/v1/conversations", json={}, headers=headers)).status_code == 201
    stored = [*await keys_of(service, client), *await keys_of(service, other)]
    assert len(set(stored)) == 2
    plain = hashlib.sha256(b"order-1001").hexdigest()
    assert all(key.startswith("hmac:") and plain not in key for key in stored)
    async with (
        open_service(service.database, tmp_path, secret_key="s" * 40) as keyed,
        await keyed.new_tenant() as third,
    ):
        keyed_tenancy, tenancy = keyed.container.tenancy, service.container.tenancy.idempotency
        caller = await keyed_tenancy.authenticate(third.key)
        key = tenancy.key_of("order-1001", b"")
        assert keyed_tenancy.idempotency.key_id(caller, key) != tenancy.key_id(caller, key)


async def test_a_late_repeat_of_a_request_does_not_bring_a_deleted_conversation_back(client: Client) -> None:
    origin = await client.conversation()
    await client.append(origin, "hello")
    for path, body in (
        ("/v1/conversations", {"title": "gone"}),
        (f"/v1/conversations/{origin}/fork", {}),
        ("/openai/v1/conversations", {"items": [{"type": "message", "role": "user", "content": "gone"}]}),
    ):
        headers = {"Idempotency-Key": path}
        made = (await client.post(path, json=body, headers=headers)).json()["id"].removeprefix("conv_")
        assert (await client.delete(f"/v1/conversations/{made}")).status_code == 204
        assert (await client.post(path, json=body, headers=headers)).status_code == 404
    [left] = (await client.get("/v1/conversations")).json()["data"]
    assert left["id"] == origin


@asynccontextmanager
async def release_0_1_0(database: TestDatabase) -> AsyncIterator[Database]:
    """A connection as replicas of release 0.1.0 have it."""
    pool = Database(PoolOptions(database.app, 1, timeout_s=10, application=f"turnkeep/{FIRST_RELEASE}"))
    await pool.open()
    yield pool
    await pool.close()


async def rename(service: Service, client: Client, key: str) -> None:
    """Store the one record of a tenant as release 0.1.0 would."""
    [stored] = await keys_of(service, client)
    await run(service, f"update idempotency_records set key = '{key}' where key = '{stored}'")  # noqa: S608


async def test_a_request_that_release_0_1_0_has_answered_is_repeated_and_its_key_is_hashed(
    service: Service, client: Client
) -> None:
    headers = {"Idempotency-Key": "order-1001"}
    made = await client.post("/v1/conversations", json={}, headers=headers)
    hashed = await keys_of(service, client)
    await rename(service, client, "order-1001")
    again = await client.post("/v1/conversations", json={}, headers=headers)
    assert (again.headers["Idempotent-Replayed"], again.json()["id"]) == ("true", made.json()["id"])
    problem(await client.post("/v1/conversations", json={"title": "x"}, headers=headers), 409, "idempotency_mismatch")

    async with release_0_1_0(service.database):
        await service.container.tenancy.idempotency.hash_plain_keys()
        assert await keys_of(service, client) == ["order-1001"], "the old release finds no other"
    await service.container.tenancy.idempotency.delete_expired()
    assert await keys_of(service, client) == hashed
    again = await client.post("/v1/conversations", json={}, headers=headers)
    assert again.headers["Idempotent-Replayed"] == "true"


async def test_keys_are_hashed_when_a_process_starts(service: Service, client: Client, tmp_path: Path) -> None:
    await client.post("/v1/conversations", json={}, headers={"Idempotency-Key": "order-1001"})
    hashed = await keys_of(service, client)
    await rename(service, client, "order-1001")
    async with open_service(service.database, tmp_path):
        assert await keys_of(service, client) == hashed
        assert hashed != ["order-1001"]


async def test_a_key_that_is_hashed_takes_the_place_of_an_older_record_that_has_expired(
    service: Service, client: Client
) -> None:
    headers = {"Idempotency-Key": "order-1001"}
    made = await client.post("/v1/conversations", json={}, headers=headers)
    hashed = await keys_of(service, client)
    await rename(service, client, "order-1001")
    await run(
        service,
        "insert into idempotency_records (tenant_id, key, request_hmac, status, result_ids, created_at, expires_at)"  # noqa: S608
        f" select tenant_id, '{hashed[0]}', '\\x00', 200, result_ids, created_at, now() - interval '1 hour'"
        " from idempotency_records where key = 'order-1001'",
    )
    await service.container.tenancy.idempotency.hash_plain_keys()
    assert await keys_of(service, client) == hashed
    again = await client.post("/v1/conversations", json={}, headers=headers)
    assert (again.headers["Idempotent-Replayed"], again.json()["id"]) == ("true", made.json()["id"])


async def test_beside_release_0_1_0_keys_are_stored_so_that_it_finds_them(service: Service, client: Client) -> None:
    headers = {"Idempotency-Key": "order-1001"}
    async with release_0_1_0(service.database):
        made = await asyncio.gather(
            *(client.post("/v1/conversations", json={}, headers=headers) for _ in range(4)),
        )
        assert {answer.status_code for answer in made} <= {201, 409}
        assert await keys_of(service, client) == ["order-1001"]
    again = await client.post("/v1/conversations", json={}, headers=headers)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len((await client.get("/v1/conversations")).json()["data"]) == 1
    await service.container.tenancy.idempotency.delete_expired()
    assert [key[:5] for key in await keys_of(service, client)] == ["hmac:"]
