"""Sweeps, deletions and erasures while an erasure runs: one of them deletes a row, and counts it once."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from app.core.ids import format_id, parse_id
from app.governance.erasures.runner import ErasureRunner
from app.governance.purge import Purger
from app.governance.registry import REGISTRY
from app.tenancy.schemas import Scope, job_caller
from tests.support.api import Client, Service
from tests.support.rows import fetch, rows

_TURNS = 600
"""More than one step of an erasure deletes."""


async def cups(client: Client, **body: Any) -> str:
    conversation = await client.conversation(**body)
    for _ in range(_TURNS // 200):
        said = [{"role": "user", "actor": "ann", "content": f"cup {number} of tea"} for number in range(200)]
        await client.append(conversation, *said)
    return conversation


async def make_old(service: Service, client: Client) -> None:
    """Move every time at which a conversation expires into the past, as if hours had passed."""
    now = datetime.now(UTC)
    # a node of Citus does not calculate with the time of a row in an update
    sql = "update conversations set expires_at = $2 where tenant_id = $1 and expires_at < $3"
    await fetch(service, sql, client.tenant_id, now - timedelta(hours=1), now + timedelta(hours=2))


def before_each_step(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], Awaitable[None]]) -> None:
    """Call `act` with the number of each step of an erasure, before the step."""
    step, number = ErasureRunner._step, 0  # noqa: SLF001

    async def stepping(self: ErasureRunner, erasing: Any, tx: Any) -> None:
        nonlocal number
        number += 1

        async def acting() -> None:
            await act(number)

        # in a context of its own: that of the step is inside its transaction
        await asyncio.get_running_loop().create_task(acting(), context=contextvars.Context())
        await step(self, erasing, tx)

    monkeypatch.setattr(ErasureRunner, "_step", stepping)


async def erase(service: Service, client: Client, **subject: Any) -> dict[str, Any]:
    """Erase, run the jobs, and return the receipt."""
    answer = await client.post("/v1/erasures", json=subject)
    assert answer.status_code == 202, answer.text
    await service.run_jobs()
    return (await client.get(f"/v1/erasures/{answer.json()['id']}")).json()


@pytest.mark.parametrize("subject", ["owner", "owner in a project", "conversation", "tenant", "tenant of another"])
async def test_what_an_erasure_deletes_is_left_to_it_by_sweeps_between_its_steps(
    service: Service, client: Client, other: Client, monkeypatch: pytest.MonkeyPatch, subject: str
) -> None:
    conversation = await cups(client, owner="ann", project="sales")
    purger, steps = service.container.purger, 0

    async def sweep(number: int) -> None:
        nonlocal steps
        steps = number
        await make_old(service, client)
        await purger.sweep()
        # as a sweep that has listed the conversation before the erasure began
        await purger.purge(job_caller(client.tenant_id), [parse_id(conversation)])

    before_each_step(monkeypatch, sweep)
    tenant = format_id(client.tenant_id)
    match subject:
        case "owner":
            receipt = await erase(service, client, owner="ann")
        case "owner in a project":
            receipt = await erase(service, client, owner="ann", project="sales")
        case "conversation":
            receipt = await erase(service, client, conversation_id=conversation)
        case "tenant":
            receipt = await erase(service, client, tenant=tenant)
        case _:
            key = await service.container.tenancy.create_key(other.tenant_id, name="operator", scopes=list(Scope))
            async with service.client(str(key)) as operator:
                receipt = await erase(service, operator, tenant=tenant)
    assert receipt["status"] == "complete"
    assert steps > 3, "its rows are more than one step deletes"
    counts = {table: deleted["deleted"] for table, deleted in receipt["counts"].items()}
    assert (counts["turns"], counts["conversations"], counts["conversation_heads"]) == (_TURNS, 1, 1)


@pytest.mark.parametrize("others", [{"owner": "bob", "project": "sales"}, {"owner": "ann"}, {"project": "sales"}])
async def test_what_an_erasure_does_not_delete_is_swept_while_it_runs(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch, others: dict[str, str]
) -> None:
    await cups(client, owner="ann", project="sales")
    expired = await client.conversation(ttl_s=3600, **others)
    left: list[int] = []

    async def sweep(_: int) -> None:
        before = datetime.now(UTC) - timedelta(hours=2)
        await fetch(
            service,
            "update conversations set expires_at = $3, updated_at = $3 where tenant_id = $1 and id = $2",
            client.tenant_id,
            parse_id(expired),
            before,
        )
        await fetch(
            service,
            "update conversation_heads set updated_at = $3 where tenant_id = $1 and conversation_id = $2",
            client.tenant_id,
            parse_id(expired),
            before,
        )
        await service.container.purger.sweep()
        left.append(await rows(service, client, "conversations"))

    before_each_step(monkeypatch, sweep)
    receipt = await erase(service, client, owner="ann", project="sales")
    assert left[:3] == [1, 1, 1], "only the conversation that is being erased"
    assert receipt["counts"]["conversations"]["deleted"] == 1


async def test_what_a_cancelled_erasure_has_hidden_is_deleted_by_the_next_sweep(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await cups(client, owner="ann")
    await fetch(service, "update conversations set ttl_s = 86400 where tenant_id = $1", client.tenant_id)

    async def cancel(number: int) -> None:
        if number == 3:  # the conversation is hidden, and some of its turns are deleted
            [running] = (await client.get("/v1/operations")).json()["data"]
            assert (await client.post(f"/v1/operations/{running['id']}/cancel")).status_code in {200, 202}

    before_each_step(monkeypatch, cancel)
    receipt = await erase(service, client, owner="ann")
    deleted = receipt["counts"]["turns"]["deleted"]
    assert receipt["status"] == "cancelled"
    assert 0 < deleted < _TURNS
    assert "conversations" not in receipt["counts"]
    checked = await client.post("/v1/erasures/verify", json={"receipt": receipt, "owner": "ann"})
    assert checked.json() == {"valid": True, "matches": True}
    assert await rows(service, client, "turns") == _TURNS - deleted
    await service.container.purger.sweep()
    assert [await rows(service, client, table) for table in ("conversations", "turns", "index_entries")] == [0, 0, 0]
    assert (await client.post("/v1/conversations", json={"id": conversation})).status_code == 201


async def test_a_large_deletion_and_an_erasure_at_the_same_time_count_each_row_in_one_place(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call returns when all rows are deleted, so it does not leave them to the erasure; the guide says so."""
    monkeypatch.setattr("app.governance.service._AT_ONCE", 10)
    monkeypatch.setattr("app.governance.purge._ROWS", 50)
    conversation = await cups(client, owner="ann")
    purger = service.container.purger
    deletion: list[asyncio.Task[Any]] = []
    before_deletion = purger.counts.copy()
    in_part, purge_some = asyncio.Event(), Purger._step  # noqa: SLF001

    async def purging(self: Purger, *args: Any, **named: Any) -> Any:
        if (purger.counts - before_deletion)["turns"] >= 100:
            in_part.set()
        return await purge_some(self, *args, **named)

    monkeypatch.setattr(Purger, "_step", purging)

    async def delete(number: int) -> None:
        if number == 1:
            deletion.append(asyncio.create_task(client.delete(f"/v1/conversations/{conversation}")))
            await in_part.wait()

    before_each_step(monkeypatch, delete)
    receipt = await erase(service, client, owner="ann")
    assert (await deletion[0]).status_code == 204
    by_call = purger.counts - before_deletion
    by_erasure = {table: count["deleted"] for table, count in receipt["counts"].items()}
    assert (receipt["status"], by_call["turns"] >= 100) == ("complete", True)
    assert by_call["turns"] + by_erasure.get("turns", 0) == _TURNS
    assert by_call["conversations"] + by_erasure.get("conversations", 0) == 1
    assert [await rows(service, client, table) for table in ("conversations", "turns", "index_entries")] == [0, 0, 0]
    # and a conversation of its own afterwards: no step of the deletion is left
    assert (await client.post("/v1/conversations", json={"id": conversation})).status_code == 201


async def test_the_erasures_of_an_owner_and_of_an_actor_count_each_row_in_one_of_both_receipts(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cups(client, owner="ann")
    of_actor: list[dict[str, Any]] = []
    running = False

    async def erase_actor(number: int) -> None:
        nonlocal running
        if number == 3 and not running:  # the conversation is hidden, and some of its turns are deleted
            running = True
            of_actor.append((await client.post("/v1/erasures", json={"actor": "ann"})).json())
            run = await service.container.operations._begin(client.tenant_id, parse_id(of_actor[0]["id"]))  # noqa: SLF001
            assert run is not None
            await service.container.operations.handlers["erasure"].run(run)

    before_each_step(monkeypatch, erase_actor)
    of_owner = await erase(service, client, owner="ann")
    receipts = [of_owner, (await client.get(f"/v1/erasures/{of_actor[0]['id']}")).json()]
    assert [receipt["status"] for receipt in receipts] == ["complete", "complete"]
    counts = [{table: count["deleted"] for table, count in receipt["counts"].items()} for receipt in receipts]
    assert all(deleted["turns"] > 0 for deleted in counts)
    for table, number in (("turns", _TURNS), ("conversations", 1), ("conversation_heads", 1)):
        assert sum(deleted.get(table, 0) for deleted in counts) == number, table
    assert [await rows(service, client, table) for table in ("conversations", "turns", "index_entries")] == [0, 0, 0]


async def test_a_sweep_deletes_no_row_of_another_tenant_with_the_same_ids_in_all_tables(
    service: Service, client: Client, other: Client
) -> None:
    """The steps run as the ops role, which row-level security does not limit."""
    conversation = await client.conversation(owner="ann", compaction={"trigger_turns": 3})
    turns = await client.append(conversation, *[f"cup {number} of tea" for number in range(6)])
    path = f"/v1/conversations/{conversation}"
    assert (await client.post(f"{path}/summaries", json={})).status_code == 200
    opened = await client.post(f"{path}/turns/open", json={"turn": {"role": "assistant"}})
    chunks = f"{path}/turns/{opened.json()['turn']['id']}/chunks?durable=true"
    assert (await client.post(chunks, json={"offset": 0, "delta": "x"})).status_code == 200
    source = {"source_turn_ids": [turns["turns"][0]["id"]]}
    fact = {"subject": "ann", "predicate": "likes", "object": "tea", **source}
    assert (await client.post("/v1/facts", json=fact)).status_code in {200, 201}
    await service.run_jobs()
    copied = await copy_rows(service, client, other)
    assert {"turns", "summaries", "turn_chunks", "facts", "fact_evidence", "index_entries"} <= copied.keys()
    await fetch(
        service,
        "update conversation_heads set deleting_at = now() where tenant_id = $1 and conversation_id = $2",
        client.tenant_id,
        parse_id(conversation),
    )
    sql = "update conversations set expires_at = now() where tenant_id = $1"
    await fetch(service, sql, client.tenant_id)
    await service.container.purger.sweep()
    assert [await rows(service, client, table) for table in ("conversations", "turns", "facts")] == [0, 0, 0]
    assert {table: await rows(service, other, table) for table in copied} == copied


async def copy_rows(service: Service, client: Client, other: Client) -> dict[str, int]:
    """Give another tenant a copy of every row of the tables of a conversation; return their numbers."""
    connection = await asyncpg.connect(service.database.superuser)
    copied: dict[str, int] = {}
    try:
        async with connection.transaction():
            await connection.execute("set local session_replication_role = replica")
            for table in REGISTRY:
                columns = ", ".join(
                    f'"{row["name"]}"'
                    for row in await connection.fetch(
                        "select attname as name from pg_attribute where attrelid = $1::text::regclass and attnum > 0"
                        " and not attisdropped and attgenerated = '' and attidentity = '' and attname <> 'tenant_id'",
                        table,
                    )
                )
                done = await connection.execute(
                    f"insert into {table} (tenant_id, {columns})"  # noqa: S608
                    f" select $2, {columns} from {table} where tenant_id = $1",
                    client.tenant_id,
                    other.tenant_id,
                )
                if count := int(done.split()[-1]):
                    copied[table] = count
    finally:
        await connection.close()
    return copied
