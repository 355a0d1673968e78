"""Time to live: a conversation goes when its last update is so long ago, wholly, and never one that was touched."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextvars import Context
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from app.conversations.retention.expiry import ConversationExpiry
from app.core.database.transactions import Database, PoolOptions, Transaction
from app.core.errors import Unavailable
from app.core.ids import parse_id
from app.diagnostics.service import DataCheck
from app.governance import purge as purging
from app.governance import service as governance
from app.governance.registry import REGISTRY
from app.tenancy.schemas import Caller
from tests.support.api import Client, Service, open_service, problem
from tests.support.cutting import cut_off_everywhere
from tests.support.postgres import Servers, clone_template, drop_database, earlier, make_template


@pytest.fixture(scope="module")
async def service(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A service on a database of its own: a sweep is for all tenants."""
    name = f"turnkeep_ttl_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    await make_template(servers)
    database = await clone_template(servers, name)
    async with open_service(database, tmp_path_factory.mktemp("ttl"), embedder="none") as opened:
        yield opened
    await drop_database(servers, name)


@pytest.fixture
async def connection(service: Service) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    opened = await asyncpg.connect(service.database.superuser)
    yield opened
    await opened.close()


async def view(client: Client, conversation: str) -> dict[str, Any]:
    answer = await client.get(f"/v1/conversations/{conversation}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def column(connection: Any, conversation: str) -> datetime | None:
    return await connection.fetchval("select expires_at from conversations where id = $1", parse_id(conversation))


async def age(connection: Any, *conversations: str, by_s: int = 7200) -> None:
    """Let time pass for conversations."""
    ids, by = [parse_id(one) for one in conversations], "$2::interval"
    gone = timedelta(seconds=by_s)
    await connection.execute(
        f"""
        update conversations set updated_at = {earlier("updated_at", by)}, active_at = {earlier("active_at", by)},
            expires_at = {earlier("expires_at", by)}
        where id = any($1::uuid[])
        """,  # noqa: S608
        ids,
        gone,
    )
    await connection.execute(
        f"update conversation_heads set updated_at = {earlier('updated_at', by)}"  # noqa: S608
        " where conversation_id = any($1::uuid[])",
        ids,
        gone,
    )


async def left(connection: Any, tenant: UUID, conversation: str) -> dict[str, int]:
    """The rows that any table of the registry has of a conversation; of what hangs on others, of the tenant."""
    found: dict[str, int] = {}
    for table, how in REGISTRY.items():
        count = await connection.fetchval(
            f"select count(*) from {table} where tenant_id = $1 and {how.of_conversation}",  # noqa: S608
            tenant,
            parse_id(conversation),
        )
        if count:
            found[table] = count
    return found


async def sweep(service: Service) -> dict[str, int]:
    return dict(await service.container.purger.sweep())


async def make(client: Client, turns: int = 5, **body: Any) -> str:
    conversation = await client.conversation(ttl_s=3600, compaction={"trigger_turns": 3}, **body)
    await client.append(conversation, *[f"quokka number {number}" for number in range(turns)])
    await client.post(f"/v1/conversations/{conversation}/summaries", json={})
    return conversation


@pytest.mark.slow
async def test_everything_that_counts_as_an_update_moves_the_end(
    service: Service, client: Client, connection: Any
) -> None:
    """The column that the sweep looks at is never later than what is told, and no more behind than an append's age."""
    conversation = await make(client)
    path = f"/v1/conversations/{conversation}"
    [first, second, *_] = await client.history(conversation)

    async def agree() -> datetime:
        told = await view(client, conversation)
        expires = datetime.fromisoformat(told["expires_at"])
        assert expires == datetime.fromisoformat(told["updated_at"]) + timedelta(seconds=told["ttl_s"])
        at = await column(connection, conversation)
        assert at is not None
        assert at <= expires
        return expires

    before = await agree()
    for act in (
        client.post(f"{path}/turns", json={"turns": [{"role": "user", "content": "more"}]}),
        client.post(f"{path}/turns/{first['id']}/revisions", json={"content": "otherwise"}),
        client.delete(f"{path}/turns/{second['id']}"),
        client.patch(path, json={"title": "t"}),
        client.post(f"{path}/turns", json={"turns": [{"role": "user", "actor": "new here", "content": "hello"}]}),
    ):
        await age(connection, conversation, by_s=300)
        before -= timedelta(seconds=300)
        answer = await act
        assert answer.is_success, answer.text
        after = await agree()
        assert after > before + timedelta(seconds=290)
        before = after
    await client.patch(path, json={"ttl_s": 60})
    assert await agree() < before
    await client.patch(path, json={"ttl_s": None})
    assert (await view(client, conversation))["expires_at"] is None
    assert await column(connection, conversation) is None
    del service


async def test_what_has_expired_is_gone_with_everything_and_nothing_else_is(
    service: Service, client: Client, connection: Any
) -> None:
    over, kept, endless = await make(client, external_id="x"), await make(client), await client.conversation()
    await client.append(endless, "stays")
    await age(connection, over, endless)
    assert len(await left(connection, client.tenant_id, over)) > 4
    swept = await sweep(service)
    assert (swept["expired"], swept["conversations"], swept["turns"]) == (1, 1, 5)
    assert swept["summaries"] >= 1
    assert await left(connection, client.tenant_id, over) == {}
    problem(await client.get(f"/v1/conversations/{over}"), 404, "not_found")
    assert len(await client.history(kept)) == 5
    assert len(await client.history(endless)) == 1
    assert await sweep(service) == {}
    metrics = (await client.get("/metrics")).text
    assert 'turnkeep_swept_total{what="expired"}' in metrics
    assert 'turnkeep_swept_total{what="turns"}' in metrics
    # its name is free
    assert await client.conversation(external_id="x") != over


async def test_an_update_since_keeps_it(service: Service, client: Client, connection: Any) -> None:
    appended, patched, forever = [await make(client) for _ in range(3)]
    await age(connection, appended, patched, forever)
    await client.append(appended, "and on it goes")
    await client.patch(f"/v1/conversations/{patched}", json={"title": "still here"})
    await client.patch(f"/v1/conversations/{forever}", json={"ttl_s": None})
    # what an append leaves behind for at most a minute: a column that says less than what holds
    await connection.execute(
        "update conversations set expires_at = now() - interval '1 hour' where id = $1", parse_id(appended)
    )
    assert await sweep(service) == {}
    told = await view(client, appended)
    assert await column(connection, appended) == datetime.fromisoformat(told["expires_at"])


async def test_a_turn_that_is_being_written_keeps_it(service: Service, client: Client, connection: Any) -> None:
    conversation = await make(client)
    path = f"/v1/conversations/{conversation}/turns"
    opened = (await client.post(f"{path}/open", json={"turn": {"role": "assistant"}})).json()["turn"]["id"]
    await age(connection, conversation)
    assert await sweep(service) == {}
    committed = await client.post(f"{path}/{opened}/commit", json={})
    assert committed.is_success, committed.text
    await age(connection, conversation)
    assert (await sweep(service))["expired"] == 1


@pytest.mark.slow
async def test_a_conversation_that_is_being_purged_is_visible_to_no_caller(
    service: Service, client: Client, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, other = await make(client, external_id="seen", owner="ann"), await client.conversation()
    await client.append(other, "quokka elsewhere")
    turns = await client.history(conversation)
    await client.append(conversation, {"id": str(UUID(int=7)), "role": "user", "content": "once"})
    path = f"/v1/conversations/{conversation}"
    key = {"Idempotency-Key": "k"}
    again = {"turns": [{"role": "user", "content": "kept"}]}
    assert (await client.post(f"{path}/turns", json=again, headers=key)).status_code == 201
    await age(connection, conversation)
    monkeypatch.setattr(purging.Purger, "purge", _nothing)
    assert (await sweep(service))["expired"] == 1
    for method, at, body in (
        ("GET", "", None), ("PATCH", "", {"title": "t"}), ("DELETE", "", None), ("POST", "/fork", {}),
        ("GET", "/turns", None), ("GET", "/turns?include_superseded=true", None),
        ("GET", f"/turns/{turns[0]['id']}", None),
        ("POST", "/turns", {"turns": [{"role": "user", "content": "x"}]}), ("GET", "/verify", None),
        ("POST", f"/turns/{turns[0]['id']}/revisions", {"content": "x"}), ("DELETE", f"/turns/{turns[0]['id']}", None),
        ("POST", "/turns/open", {"turn": {"role": "assistant"}}), ("POST", "/context", {"token_budget": 1000}),
        ("POST", "/recall", {"query": "quokka"}), ("GET", "/summaries", None), ("POST", "/compact", {}),
        ("POST", "/tokens", {"access": "read"}),
    ):  # fmt: skip
        answer = await client.request(method, f"{path}{at}", json=body)
        assert answer.status_code == 404, (method, at, answer.status_code, answer.text)
    assert (await client.post(f"{path}/turns", json=again, headers=key)).status_code == 404
    listed = (await client.get("/v1/conversations")).json()["data"]
    assert [one["id"] for one in listed] == [other]
    assert {hit["conversation_id"] for hit in await client.recall(None, "quokka", k=3)} == {other}
    problem(
        await client.post("/v1/recall", json={"query": "quokka", "conversation_ids": [conversation]}), 404, "not_found"
    )
    assert await client.conversation(external_id="seen") != conversation
    monkeypatch.undo()
    await sweep(service)
    assert await left(connection, client.tenant_id, conversation) == {}


async def _nothing(*_args: object, **_more: object) -> dict[str, int]:
    return {}


@pytest.mark.slow
async def test_cut_off_at_any_statement_the_next_sweep_completes_it(
    service: Service, client: Client, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purging, "_ROWS", 4)
    ops = Database(PoolOptions(service.database.ops, 2, timeout_s=30, name="doctor"))
    await ops.open()
    gone, stays = [await make(client, 9) for _ in range(2)], await make(client, 3)
    await age(connection, *gone)

    async def sound() -> None:
        check = DataCheck(ops, client.tenant_id)
        assert [fault async for some in check.conversations(limit=None) for fault in some] == []
        assert await check.references() == []

    cuts = await cut_off_everywhere(lambda: sweep(service), after_each=sound, maximum=20, again_from=12)
    assert cuts > 10
    for conversation in gone:
        assert await left(connection, client.tenant_id, conversation) == {}
    assert len(await client.history(stays)) == 3
    await ops.close()


@pytest.mark.slow
async def test_two_sweepers_at_once_share_the_work(
    service: Service, client: Client, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purging, "_CONVERSATIONS", 3)
    monkeypatch.setattr(purging, "_ROWS", 4)
    over = [await client.conversation(ttl_s=3600) for _ in range(12)]
    for conversation in over:
        await client.append(conversation, *["one", "two", "three"])
    spared = await make(client, 3)
    await age(connection, *over, spared)

    async def keep_one_alive() -> None:
        for number in range(5):
            await client.append(spared, f"turn {number}")

    await client.append(spared, "just in time")
    results = await asyncio.gather(sweep(service), sweep(service), sweep(service), keep_one_alive())
    assert max(result["expired"] for result in results[:3] if result) <= 12
    await sweep(service)
    for conversation in over:
        assert await left(connection, client.tenant_id, conversation) == {}
    assert len(await client.history(spared)) == 9
    assert await connection.fetchval("select count(*) from conversations where expires_at < now()") == 0


@pytest.mark.slow
async def test_an_append_that_waits_for_the_sweep_is_refused_and_never_lost(
    service: Service, client: Client, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes first wins: the conversation goes on, or the append finds none."""
    outcomes: set[int] = set()
    monkeypatch.setattr(purging.Purger, "purge", _nothing)
    for number in range(8):
        conversation = await make(client, 3)
        await age(connection, conversation)

        async def append(pause: float = number * 0.002, to: str = conversation) -> int:
            await asyncio.sleep(pause)
            return (
                await client.post(f"/v1/conversations/{to}/turns", json={"turns": [{"role": "user", "content": "x"}]})
            ).status_code

        status, _ = await asyncio.gather(append(), sweep(service))
        outcomes.add(status)
        seen = (await client.get(f"/v1/conversations/{conversation}")).status_code
        assert (status, seen) in {(201, 200), (404, 404)}
    assert outcomes <= {201, 404}
    monkeypatch.undo()
    await sweep(service)


async def test_a_large_conversation_is_deleted_in_steps(
    service: Service, client: Client, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(governance, "_AT_ONCE", 10)
    monkeypatch.setattr(purging, "_ROWS", 7)
    conversation = await make(client, 30)
    await client.post(f"/v1/conversations/{conversation}/turns/open", json={"turn": {"role": "assistant"}})
    assert (await client.delete(f"/v1/conversations/{conversation}")).status_code == 204
    assert await left(connection, client.tenant_id, conversation) == {}
    problem(await client.delete(f"/v1/conversations/{conversation}"), 404, "not_found")
    # cut off behind the first step, the sweep goes on, ttl or none
    lasting = await client.conversation()
    await client.append(lasting, *["again"] * 30)
    monkeypatch.setattr(purging.Purger, "purge", _nothing)
    assert (await client.delete(f"/v1/conversations/{lasting}")).status_code == 204
    monkeypatch.undo()
    assert await left(connection, client.tenant_id, lasting) != {}
    assert (await sweep(service))["turns"] == 30
    assert await left(connection, client.tenant_id, lasting) == {}


@pytest.mark.slow
async def test_a_deletion_answers_when_all_is_gone_though_a_sweep_is_at_it(
    service: Service, client: Client, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(governance, "_AT_ONCE", 10)
    monkeypatch.setattr(purging, "_ROWS", 7)
    conversation = await client.conversation()
    await client.append(conversation, *["again"] * 30)
    hold, purge = ConversationExpiry.lock, purging.Purger.purge
    begun, sweeping = asyncio.Event(), list[asyncio.Task[Any]]()

    async def slowly(expiry: ConversationExpiry, *args: Any, **more: Any) -> list[UUID]:
        held = await hold(expiry, *args, **more)
        begun.set()
        await asyncio.sleep(0.3)
        return held

    async def amid_a_sweep(purger: purging.Purger, *args: Any, **more: Any) -> dict[str, int]:
        monkeypatch.setattr(purging.Purger, "purge", purge)
        monkeypatch.setattr(ConversationExpiry, "lock", slowly)
        sweeping.append(asyncio.create_task(sweep(service), context=Context()))
        await begun.wait()
        return await purge(purger, *args, **more)

    monkeypatch.setattr(purging.Purger, "purge", amid_a_sweep)
    assert (await client.delete(f"/v1/conversations/{conversation}")).status_code == 204
    assert await left(connection, client.tenant_id, conversation) == {}
    await sweeping[0]


@pytest.mark.slow
async def test_a_job_sweeps_and_the_default_is_a_setting(
    service: Service, connection: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("default")
    async with (
        open_service(service.database, folder, embedder="none", conversation_ttl_hours=1) as own,
        await own.new_tenant() as client,
    ):
        conversation = await client.conversation()
        assert (await view(client, conversation))["ttl_s"] == 3600
        await client.append(conversation, "hello")
        await age(connection, conversation)
        await connection.execute("update jobs set run_at = now() where kind = 'conversations.sweep'")
        await own.run_jobs()
        assert await left(connection, client.tenant_id, conversation) == {}


async def test_what_fails_for_one_tenant_keeps_no_other_from_being_swept(
    service: Service, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [await service.new_tenant() for _ in range(3)]
    expired = [await one.conversation(ttl_s=3600) for one in clients]
    await age(connection, *expired)
    hide = ConversationExpiry.hide_expired

    async def failing(
        self: ConversationExpiry, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID]
    ) -> int:
        if caller.tenant_id == clients[1].tenant_id:
            raise Unavailable("database_unavailable", "This tenant's shard is away.")
        return await hide(self, caller, tx, conversation_ids=conversation_ids)

    monkeypatch.setattr(ConversationExpiry, "hide_expired", failing)
    with pytest.raises(Unavailable):  # the job says so, and is tried again
        await service.container.purger.sweep()
    found = [(await one.get(f"/v1/conversations/{two}")).status_code for one, two in zip(clients, expired, strict=True)]
    assert found == [404, 200, 404]
    monkeypatch.setattr(ConversationExpiry, "hide_expired", hide)
    await service.container.purger.sweep()
    assert (await clients[1].get(f"/v1/conversations/{expired[1]}")).status_code == 404
    for one in clients:
        await one.aclose()
