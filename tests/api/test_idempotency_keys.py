"""Idempotency-Keys are stored as HMACs: no table, statistic, log line or answer has a key that a client sent."""

import hashlib
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.api.test_erased_for_good import Said, dump, found, run
from tests.api.test_keys_without_read import OPERATIONS, send
from tests.api.test_mcp import listening_to_logs
from tests.support.api import Client, Service, open_service, problem
from tests.support.live import serving, socket_on
from tests.support.marked import marked_tenant

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
    assert all(len(key) == 64 and plain not in key for key in stored)
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
