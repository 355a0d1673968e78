"""Webhooks: what receivers get, in which order, how often, and where requests may lead. Receivers speak real HTTP."""

import asyncio
import base64
import json
import re
import socket
import ssl
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError
from structlog.testing import capture_logs

from app.core.database.transactions import Transaction
from app.core.errors import Conflict
from app.core.ids import format_id, parse_id
from app.core.outbox import EventType
from app.providers.receivers.destinations import is_public
from app.providers.receivers.webhook_sender import WebhookSender
from app.settings.webhooks import WebhookSettings
from app.tenancy.schemas import Scope
from app.webhooks import delivery_store
from app.webhooks.delivery_store import DeliveryRow, LaneKey
from app.webhooks.dispatch import Dispatcher
from app.webhooks.rendering import EventRenderer
from app.webhooks.signing import signed_headers
from tests.support.api import Client, Service, open_service, problem
from tests.support.postgres import TestDatabase
from tests.support.receiver import Receiver, receiving
from tests.support.statements import counted_statements, first_words


@pytest.fixture(scope="module")
async def service(database: TestDatabase, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A service whose webhooks may lead to this machine, and are sent when a test says so."""
    options = {"webhook_allow_private": True, "webhook_allow_http": True, "webhook_timeout_s": 3.0, "max_webhooks": 5}
    async with open_service(database, tmp_path_factory.mktemp("data"), **options) as opened:
        yield opened


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    async with await service.new_tenant() as client:
        yield client


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


async def hook(client: Client, receiver: Receiver, **body: Any) -> dict[str, Any]:
    response = await client.post("/v1/webhooks", json={"url": receiver.url} | body)
    assert response.status_code == 201, response.text
    return response.json()


async def deliver(service: Service) -> None:
    """Send all that is due."""
    await service.container.webhooks.dispatcher.drain()


async def deliveries(client: Client, made: dict[str, Any], **params: Any) -> list[dict[str, Any]]:
    response = await client.get(f"/v1/webhooks/{made['id']}/deliveries", params={"order": "asc"} | params)
    assert response.status_code == 200, response.text
    return response.json()["data"]


async def run_sql(service: Service, sql: str, *args: object) -> None:
    connection = await asyncpg.connect(service.database.superuser)
    await connection.execute(sql, *args)
    await connection.close()


async def make_due(service: Service, client: Client) -> None:
    """Let the delays of retries pass."""
    await run_sql(service, "update webhook_lanes set due_at = now() where tenant_id = $1", client.tenant_id)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - what a receiver on another connection has got
            await asyncio.sleep(0.01)


# what is sent


async def test_every_change_of_a_conversation_is_sent_in_the_order_of_the_commits(
    service: Service, client: Client, receiver: Receiver
) -> None:
    await hook(client, receiver)
    conversation = await client.conversation(project="p", external_id="x")
    first, second = (await client.append(conversation, "one", "two"))["turns"]
    path = f"/v1/conversations/{conversation}"
    revised = (await client.post(f"{path}/turns/{second['id']}/revisions", json={"content": "zwei"})).json()["turn"]
    await client.patch(path, json={"title": "t"})
    await client.delete(f"{path}/turns/{first['id']}")
    assert (await client.delete(path)).status_code == 204
    await deliver(service)
    assert receiver.types == [
        "conversation.created", "turn.committed", "turn.committed", "turn.superseded", "turn.committed",
        "conversation.updated", "turn.erased", "conversation.deleted",
    ]  # fmt: skip
    about = [one.data.get("turn_id") for one in receiver.received]
    assert about == [None, first["id"], second["id"], second["id"], revised["id"], None, first["id"], None]
    assert {one.data["conversation_id"] for one in receiver.received} == {conversation}
    # all is gone by now: nothing of it is sent
    assert {one.data["omitted"] for one in receiver.received} == {"deleted"}
    assert len(set(receiver.ids)) == 8


async def test_an_event_has_its_object_as_rest_shows_it(service: Service, client: Client, receiver: Receiver) -> None:
    made = await hook(client, receiver, event_types=["turn.committed", "conversation.created"])
    conversation = await client.conversation(title="Parrots")
    [turn] = (await client.append(conversation, "the parrot"))["turns"]
    await deliver(service)
    created, committed = receiver.received
    assert created.data["conversation"]["title"] == "Parrots"
    shown = (await client.get(f"/v1/conversations/{conversation}/turns/{turn['id']}")).json()
    assert committed.data == {
        "conversation_id": conversation, "turn_id": turn["id"], "turn": shown, "omitted": None
    }  # fmt: skip
    assert committed.headers["content-type"] == "application/json"
    assert committed.headers["user-agent"].startswith("Turnkeep/")
    [_, delivery] = await deliveries(client, made)
    assert (delivery["id"], delivery["type"], delivery["object_id"]) == (committed.id, "turn.committed", turn["id"])
    assert (delivery["status"], delivery["attempts"], delivery["last_status"]) == ("delivered", 1, 204)
    assert committed.event["timestamp"] == delivery["recorded_at"]


async def test_facts_and_summaries_are_sent(service: Service, client: Client, receiver: Receiver) -> None:
    await hook(client, receiver, event_types=[one for one in EventType if one.startswith(("fact.", "summary."))])
    conversation = await client.conversation(owner="ann")
    turns = (await client.append(conversation, *[f"the parrot says {n}" for n in range(6)]))["turns"]
    said = {"subject": "ann", "predicate": "likes", "object": "tea"}
    fact = (await client.post("/v1/facts", json=said | {"source_turn_ids": [turns[0]["id"]]})).json()["fact"]
    assert (await client.delete(f"/v1/facts/{fact['id']}")).status_code == 200
    other = (await client.post("/v1/facts", json=said | {"object": "rum", "owner": "bob"})).json()["fact"]
    milk = (await client.post("/v1/facts", json=said | {"object": "milk"})).json()["fact"]
    assert (await client.post(f"/v1/facts/{milk['id']}/undo")).status_code == 200
    made = await client.post(f"/v1/conversations/{conversation}/summaries", json={"through": turns[3]["id"]})
    assert made.status_code in {200, 201}, made.text
    await deliver(service)
    assert sorted(receiver.types) == [*["fact.recorded"] * 3, *["fact.retracted"] * 2, "summary.created"]
    assert milk["id"] in {one.data["fact_id"] for one in receiver.received if one.type == "fact.retracted"}
    recorded = {one.data["fact_id"]: one.data for one in receiver.received if one.type == "fact.recorded"}
    assert recorded[other["id"]]["conversation_id"] is None
    assert recorded[other["id"]]["fact"]["object"] == "rum"
    assert recorded[fact["id"]]["conversation_id"] == conversation
    [summary] = [one.data["summary"] for one in receiver.received if one.type == "summary.created"]
    assert "parrot" in summary["text"]


async def test_erased_content_is_not_sent_later(service: Service, client: Client, receiver: Receiver) -> None:
    await hook(client, receiver, event_types=["turn.committed"])
    conversation = await client.conversation()
    [turn] = (await client.append(conversation, "a secret parrot"))["turns"]
    await client.delete(f"/v1/conversations/{conversation}/turns/{turn['id']}")
    await deliver(service)
    [sent] = receiver.received
    assert sent.data["turn"]["content"] is None
    assert b"parrot" not in sent.body


async def test_content_that_is_erased_between_two_attempts_is_not_sent_again(
    service: Service, client: Client, receiver: Receiver
) -> None:
    await hook(client, receiver, event_types=["turn.committed"])
    conversation = await client.conversation()
    receiver.statuses = [500]
    await client.append(conversation, "a secret parrot")
    await deliver(service)
    await client.delete(f"/v1/conversations/{conversation}")
    await make_due(service, client)
    await deliver(service)
    before, after = receiver.received
    assert before.id == after.id
    assert b"parrot" in before.body
    assert b"parrot" not in after.body


async def test_a_webhook_gets_only_what_its_filters_allow(service: Service, client: Client, receiver: Receiver) -> None:
    tricky = "p'); drop table x; -- \\ é"
    made = await hook(client, receiver, project=tricky, event_types=["conversation.deleted", "turn.committed"])
    assert made["project"] == tricky
    for project in (tricky, "default"):
        conversation = await client.conversation(project=project)
        await client.append(conversation, project)
        await client.delete(f"/v1/conversations/{conversation}")
    await deliver(service)
    assert receiver.types == ["turn.committed", "conversation.deleted"]


async def test_without_content_an_event_has_ids_only(service: Service, client: Client, receiver: Receiver) -> None:
    await hook(client, receiver, include_content=False)
    conversation = await client.conversation(title="parrot")
    await client.append(conversation, "parrot")
    await deliver(service)
    assert receiver.types == ["conversation.created", "turn.committed"]
    assert {one.data["omitted"] for one in receiver.received} == {"content_off"}
    assert not any(b"parrot" in one.body for one in receiver.received)


async def test_an_event_that_would_be_too_large_has_ids_only(
    service: Service, client: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hook(client, receiver, event_types=["turn.committed"])
    conversation = await client.conversation()
    await client.append(conversation, "x" * 600_000, {"role": "user", "content": [{"type": "text", "text": "y"}]})
    monkeypatch.setattr("app.webhooks.rendering._MAX_BODY_BYTES", 500_000)
    await deliver(service)
    assert [one.data["omitted"] for one in receiver.received] == ["too_large", None]


async def test_a_large_conversation_is_deleted_with_one_event_and_expiry_sends_it_too(
    service: Service, client: Client, receiver: Receiver
) -> None:
    await hook(client, receiver, event_types=["conversation.deleted"], project="p")
    large, expired = await client.conversation(project="p"), await client.conversation(ttl_s=60, project="p")
    sql = "update conversation_heads set last_seq = 1001 where tenant_id = $1 and conversation_id = $2"
    await run_sql(service, sql, client.tenant_id, parse_id(large))
    assert (await client.delete(f"/v1/conversations/{large}")).status_code == 204
    late = "update {} set {} where tenant_id = $1 and {} = $2"
    hour = "now() - interval '1 hour'"
    for table, columns, key in (
        ("conversation_heads", f"updated_at = {hour}", "conversation_id"),
        ("conversations", f"updated_at = {hour}, expires_at = {hour}", "id"),
    ):
        await run_sql(service, late.format(table, columns, key), client.tenant_id, parse_id(expired))
    await service.container.purger.sweep()
    await deliver(service)
    assert sorted(one.data["conversation_id"] for one in receiver.received) == sorted([large, expired])


async def test_the_trash_sends_when_it_hides_shows_and_deletes(
    service: Service, client: Client, receiver: Receiver
) -> None:
    await hook(client, receiver, event_types=[one for one in EventType if one.startswith("conversation.")])
    by_call, by_time = await client.conversation(), await client.conversation()
    for conversation in (by_call, by_time):
        assert (await client.post(f"/v1/conversations/{conversation}/trash")).status_code == 200
    assert (await client.post(f"/v1/conversations/{by_call}/restore")).status_code == 200
    await client.post(f"/v1/conversations/{by_call}/trash")
    assert (await client.delete(f"/v1/conversations/{by_call}")).status_code == 204
    await run_sql(
        service, "update conversations set expires_at = now() where tenant_id = $1 and id = $2", client.tenant_id,
        parse_id(by_time),
    )  # fmt: skip
    await service.container.purger.sweep()
    await deliver(service)

    def of(conversation: str) -> list[str]:
        own = [one for one in receiver.received if one.data["conversation_id"] == conversation]
        return [one.type.removeprefix("conversation.") for one in own]

    assert of(by_call) == ["created", "trashed", "restored", "trashed", "deleted"]
    assert of(by_time) == ["created", "trashed", "deleted"]


async def test_a_change_that_is_rolled_back_sends_nothing(client: Client, receiver: Receiver) -> None:
    made = await hook(client, receiver)
    conversation = await client.conversation()
    await client.append(conversation, "one")
    problem(
        await client.post(
            f"/v1/conversations/{conversation}/turns",
            json={"turns": [{"role": "user", "content": "x"}], "expected_seq": 7},
        ),
        409,
        "conversation_advanced",
    )
    assert [one["type"] for one in await deliveries(client, made)] == ["conversation.created", "turn.committed"]


async def test_a_repeated_append_sends_its_events_once(service: Service, client: Client, receiver: Receiver) -> None:
    await hook(client, receiver, event_types=["turn.committed"])
    conversation = await client.conversation()
    headers = {"Idempotency-Key": "once"}
    body = {"turns": [{"role": "user", "content": "x"}]}
    for _ in range(2):
        await client.post(f"/v1/conversations/{conversation}/turns", json=body, headers=headers)
    await deliver(service)
    assert receiver.types == ["turn.committed"]


# order, retries, dead letters


async def test_the_next_event_of_a_conversation_waits_for_the_earlier_one_and_others_do_not(
    service: Service, client: Client, receiver: Receiver
) -> None:
    made = await hook(client, receiver, event_types=["turn.committed"])
    one, other = await client.conversation(), await client.conversation()
    receiver.statuses = [500]
    await client.append(one, "a1", "a2")
    await deliver(service)
    assert len(receiver.received) == 1
    await client.append(other, "b1")
    await client.append(one, "a3")
    await deliver(service)
    texts = [sent.data["turn"]["content"] for sent in receiver.received]
    assert texts == ["a1", "b1"]
    [waiting, *_] = await deliveries(client, made, status="pending")
    assert (waiting["attempts"], waiting["last_status"], waiting["last_error"]) == (1, 500, "status")
    assert datetime.fromisoformat(waiting["next_attempt_at"]) > datetime.now(UTC) + timedelta(seconds=2)
    await make_due(service, client)
    await deliver(service)
    texts = [sent.data["turn"]["content"] for sent in receiver.received]
    assert texts == ["a1", "b1", "a1", "a2", "a3"]
    assert receiver.ids[0] == receiver.ids[2]


async def test_delays_grow_to_hours_with_jitter_and_as_the_receiver_asks(service: Service) -> None:
    from app.providers.schemas import DeliveryError, SendResult  # noqa: PLC0415

    delay = service.container.webhooks.dispatcher._delay  # noqa: SLF001
    failed = SendResult(503, DeliveryError.STATUS)

    def after(attempts: int, result: SendResult = failed) -> float:
        return delay(type("Row", (), {"attempts": attempts})(), result).total_seconds()  # type: ignore[arg-type]

    for attempts, middle in ((0, 5), (1, 15), (3, 135), (6, 3645), (8, 14_400), (500, 14_400)):
        found = {after(attempts) for _ in range(50)}
        assert middle * 0.75 <= min(found) < max(found) <= middle * 1.25
    assert after(0, SendResult(503, DeliveryError.STATUS, 900)) == 900


async def test_an_event_that_is_too_old_to_be_retried_is_dead_and_can_be_replayed(
    service: Service, client: Client, receiver: Receiver
) -> None:
    made = await hook(client, receiver, event_types=["turn.committed"])
    conversation = await client.conversation()
    receiver.status, receiver.body = 500, b"the receiver's words"
    await client.append(conversation, "a1", "a2")
    await run_sql(service, "update webhook_deliveries set retry_until = now() where tenant_id = $1", client.tenant_id)
    await deliver(service)
    # each gets one attempt: the later one does not wait for a dead one
    assert len(receiver.received) == 2
    dead = await client.get(f"/v1/webhooks/{made['id']}/deliveries", params={"status": "dead", "order": "asc"})
    assert "words" not in dead.text
    first, second = dead.json()["data"]
    assert (first["last_status"], first["last_error"], first["next_attempt_at"]) == (500, "status", None)
    receiver.status = 200
    path = f"/v1/webhooks/{made['id']}/deliveries"
    replayed = await client.post(f"{path}/{second['id']}/replay")
    assert replayed.status_code == 202
    assert (replayed.json()["status"], replayed.json()["attempts"]) == ("pending", 0)
    await deliver(service)
    assert receiver.ids[2:] == [second["id"]]
    shown = (await client.get(f"{path}/{second['id']}")).json()
    assert (shown["status"], shown["attempts"], shown["last_error"]) == ("delivered", 1, None)
    problem(await client.post(f"{path}/{conversation}/replay"), 404, "not_found")


async def test_all_dead_events_since_a_time_are_replayed_in_their_order(
    service: Service, client: Client, receiver: Receiver
) -> None:
    made = await hook(client, receiver, event_types=["turn.committed"])
    conversation = await client.conversation()
    since = datetime.now(UTC).isoformat()
    receiver.status = 500
    await client.append(conversation, *[f"t{n}" for n in range(4)])
    await run_sql(service, "update webhook_deliveries set retry_until = now() where tenant_id = $1", client.tenant_id)
    await deliver(service)
    receiver.status = 200
    await client.append(conversation, "delivered")
    await deliver(service)
    path = f"/v1/webhooks/{made['id']}/deliveries/replay"
    started = await client.post(path, json={"since": since}, headers={"Idempotency-Key": "r"})
    assert started.status_code == 202, started.text
    again = await client.post(path, json={"since": since}, headers={"Idempotency-Key": "r"})
    assert (again.json()["id"], again.headers["Idempotent-Replayed"]) == (started.json()["id"], "true")
    await service.run_jobs()
    await deliver(service)
    operation = (await client.get(started.headers["Location"])).json()
    assert (operation["status"], operation["result"]) == ("succeeded", {"deliveries": 4})
    texts = [sent.data["turn"]["content"] for sent in receiver.received]
    assert texts[5:] == ["t0", "t1", "t2", "t3"]
    late = {"since": (datetime.now(UTC) + timedelta(days=1)).isoformat(), "statuses": ["dead", "delivered"]}
    started = await client.post(path, json=late)
    await service.run_jobs()
    assert (await client.get(started.headers["Location"])).json()["result"] == {"deliveries": 0}


async def test_an_attempt_whose_process_dies_before_it_is_recorded_is_repeated_with_its_id(
    service: Service, client: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await deliver(service)  # events of other tests that are due
    made = await hook(client, receiver, event_types=["turn.committed"])
    conversation = await client.conversation()
    await client.append(conversation, "a1", "a2")
    record = Dispatcher._record  # noqa: SLF001

    async def die(dispatcher: Dispatcher, tx: Transaction, ended: Any) -> Any:
        if ended.row.tenant_id != client.tenant_id:  # an event of another test
            return await record(dispatcher, tx, ended)
        raise asyncio.CancelledError

    monkeypatch.setattr(Dispatcher, "_record", die)
    with pytest.raises(asyncio.CancelledError):
        await deliver(service)
    monkeypatch.setattr(Dispatcher, "_record", record)
    assert len(receiver.received) == 1
    [first, _] = await deliveries(client, made)
    assert (first["status"], first["attempts"]) == ("pending", 0)
    await deliver(service)
    assert len(receiver.received) == 1, "the lease of the dead process holds"
    await run_sql(service, "update webhook_lanes set locked_until = now() where tenant_id = $1", client.tenant_id)
    await deliver(service)
    assert receiver.ids == [first["id"], first["id"], receiver.ids[2]]


async def test_a_process_that_lost_its_lease_records_nothing(
    service: Service, client: Client, receiver: Receiver
) -> None:
    made = await hook(client, receiver, event_types=["turn.committed"])
    conversation = await client.conversation()
    receiver.hold = asyncio.Event()
    await client.append(conversation, "a1")
    sending = asyncio.create_task(deliver(service))
    await until(lambda: len(receiver.received) == 1)
    await run_sql(
        service, "update webhook_lanes set locked_by = $1 where tenant_id = $2", uuid.uuid4(), client.tenant_id
    )
    receiver.hold.set()
    await sending
    [one] = await deliveries(client, made)
    assert (one["status"], one["attempts"]) == ("pending", 0)
    await run_sql(service, "delete from webhook_lanes where tenant_id = $1", client.tenant_id)


async def test_a_process_sends_a_lane_once_at_a_time_after_its_own_lease_has_ended(
    service: Service, client: Client, receiver: Receiver
) -> None:
    await hook(client, receiver, event_types=["turn.committed"])
    conversation = await client.conversation()
    receiver.hold = asyncio.Event()
    await client.append(conversation, "a1", "a2")
    first = asyncio.create_task(deliver(service))
    await until(lambda: len(receiver.received) == 1)
    await run_sql(service, "update webhook_lanes set locked_until = now() where tenant_id = $1", client.tenant_id)
    second = asyncio.create_task(deliver(service))
    await asyncio.sleep(0.2)
    sent_meanwhile = len(receiver.received)
    receiver.hold.set()
    await asyncio.gather(first, second)
    assert sent_meanwhile == 1
    assert len(receiver.ids) == len(set(receiver.ids)) == 2


async def rows_read(tx: Transaction) -> int:
    """Rows of `webhook_lanes` that this connection has read and not reported yet, also in earlier transactions."""
    row = await tx.fetchrow(
        "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::bigint as rows from pg_stat_xact_user_tables"
        " where relname = 'webhook_lanes'"
    )
    assert row is not None
    return int(row["rows"])


async def test_a_claim_reads_few_lanes_of_a_large_backlog(service: Service, client: Client) -> None:
    # a claim reads some rows of each receiver, and other tests have left receivers in this database
    await run_sql(service, "delete from webhook_lanes")
    # of a few thousand lanes, the planner may rightly read all instead of looking up 200
    async with await service.new_tenant() as waiting:
        busy, later = uuid.uuid4(), uuid.uuid4()
        insert = (
            "insert into webhook_lanes (tenant_id, webhook_id, lane, due_at)"
            " select $1, $2, gen_random_uuid(), now() + $3 from generate_series(1, 50000)"
        )
        await run_sql(service, insert, client.tenant_id, busy, timedelta(hours=-1))
        await run_sql(service, insert, waiting.tenant_id, later, timedelta(hours=1))
        await run_sql(service, insert.replace("50000", "3"), waiting.tenant_id, uuid.uuid4(), timedelta(seconds=-1))
        await run_sql(service, "analyze webhook_lanes")
        async with service.container.ops.across_tenants() as tx:
            before = await rows_read(tx)
            claimed = await delivery_store.claim(
                tx, uuid.uuid4(), limit=50, lease=timedelta(seconds=9), busy=[], busy_tenants=[client.tenant_id]
            )
            read = await rows_read(tx) - before
        for one in (client, waiting):
            await run_sql(service, "delete from webhook_lanes where tenant_id = $1", one.tenant_id)
    assert [lane.tenant_id for lane in claimed] == [waiting.tenant_id] * 3
    assert read < 500


async def test_a_receiver_gets_a_few_requests_at_once(service: Service, client: Client, receiver: Receiver) -> None:
    await hook(client, receiver, event_types=["conversation.created"])
    for _ in range(9):
        await client.conversation()
    receiver.hold = asyncio.Event()
    sending = asyncio.create_task(deliver(service))
    await until(lambda: receiver.under_way == 4)
    await asyncio.sleep(0.1)
    assert receiver.under_way == 4
    receiver.hold.set()
    await sending
    await deliver(service)
    assert len(receiver.received) == 9
    assert receiver.max_under_way == 4
    assert receiver.connections <= 4


async def test_a_webhook_that_fails_for_long_is_disabled_and_sends_what_waited_when_enabled(
    service: Service, client: Client, receiver: Receiver
) -> None:
    made = await hook(client, receiver, event_types=["turn.committed"])
    conversation = await client.conversation()
    receiver.status = 500
    await client.append(conversation, "a1")
    await deliver(service)
    path = f"/v1/webhooks/{made['id']}"
    failing = (await client.get(path)).json()
    assert failing["failing_since"] is not None
    assert failing["enabled"] is True
    await run_sql(
        service, "update webhooks set failing_since = now() - interval '6 days' where tenant_id = $1", client.tenant_id
    )
    await make_due(service, client)
    await deliver(service)
    disabled = (await client.get(path)).json()
    assert (disabled["enabled"], disabled["disabled_reason"]) == (False, "failing")
    entries = (await client.get("/v1/admin/audit", params={"action": "webhooks.disable"})).json()["data"]
    assert [one["object_id"] for one in entries] == [made["id"]]
    await service.container.webhooks.outbox.refresh()
    await client.append(conversation, "not stored")
    receiver.status = 200
    await make_due(service, client)
    await deliver(service)
    assert len(receiver.received) == 2
    [waiting] = await deliveries(client, made)
    assert waiting["next_attempt_at"] is None
    enabled = await client.patch(path, json={"enabled": True})
    assert (enabled.json()["enabled"], enabled.json()["failing_since"]) == (True, None)
    await deliver(service)
    await client.append(conversation, "a2")
    await deliver(service)
    assert [one.data["turn"]["content"] for one in receiver.received[2:]] == ["a1", "a2"]


async def test_a_receiver_that_is_gone_disables_its_webhook(
    service: Service, client: Client, receiver: Receiver
) -> None:
    made = await hook(client, receiver)
    receiver.status = 410
    await client.conversation()
    await deliver(service)
    assert (await client.get(f"/v1/webhooks/{made['id']}")).json()["disabled_reason"] == "gone"


async def test_a_test_event_is_sent_once_also_by_a_disabled_webhook(
    service: Service, client: Client, receiver: Receiver
) -> None:
    made = await hook(client, receiver)
    path = f"/v1/webhooks/{made['id']}"
    await client.patch(path, json={"enabled": False})
    for status in (200, 500):
        receiver.status = status
        sent = await client.post(f"{path}/test")
        assert sent.status_code == 202, sent.text
        await deliver(service)
    assert receiver.types == ["webhook.test"] * 2
    assert receiver.received[0].data == {"webhook_id": made["id"]}
    assert [one["status"] for one in await deliveries(client, made, type="webhook.test")] == ["delivered", "dead"]


# signatures


async def test_a_signature_is_verified_by_the_library_of_the_specification(
    service: Service, client: Client, receiver: Receiver
) -> None:
    made = await hook(client, receiver)
    await client.conversation(title="é🦜")
    await deliver(service)
    [sent] = receiver.received
    assert made["secret"].startswith("whsec_")
    assert Verifier(made["secret"]).verify(sent.body, sent.headers)["data"]["conversation"]["title"] == "é🦜"
    with pytest.raises(WebhookVerificationError):
        Verifier(made["secret"]).verify(sent.body.replace(b"created", b"deleted"), sent.headers)
    key = base64.b64decode(made["secret"].removeprefix("whsec_"))
    now = datetime.now(UTC)
    Verifier(made["secret"]).verify(b"{}", signed_headers(uuid.uuid4(), b"{}", [key], at=now))
    late = signed_headers(uuid.uuid4(), b"{}", [key], at=now - timedelta(minutes=6))
    with pytest.raises(WebhookVerificationError):
        Verifier(made["secret"]).verify(b"{}", late)


async def test_the_function_of_the_guide_verifies_a_signature(
    service: Service, client: Client, receiver: Receiver
) -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/webhooks.md").read_text()
    [code] = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - the code of the guide
    made = await hook(client, receiver)
    await client.conversation(title="é🦜")
    await deliver(service)
    [sent] = receiver.received
    assert names["verify"](made["secret"], sent.headers, sent.body)
    assert not names["verify"](made["secret"], sent.headers, sent.body + b" ")
    assert not names["verify"](made["secret"], sent.headers | {"webhook-id": "other"}, sent.body)
    assert not names["verify"](made["secret"], sent.headers | {"webhook-timestamp": "1"}, sent.body)


async def test_during_a_rotation_both_secrets_verify_and_afterwards_the_new_one(
    service: Service, client: Client, receiver: Receiver
) -> None:
    made = await hook(client, receiver, event_types=["conversation.created"])
    path = f"/v1/webhooks/{made['id']}"
    response = await client.post(f"{path}/rotate-secret", json={}, headers={"Idempotency-Key": "r"})
    rotated = response.json()
    assert rotated["secret"] != made["secret"]
    repeated = await client.post(f"{path}/rotate-secret", json={}, headers={"Idempotency-Key": "r"})
    assert problem(repeated, 409, "secret_shown_once")["id"] == made["id"]
    await client.conversation()
    await deliver(service)
    for secret in (made["secret"], rotated["secret"]):
        Verifier(secret).verify(receiver.received[0].body, receiver.received[0].headers)
    last = (await client.post(f"{path}/rotate-secret", json={"grace_s": 0})).json()["secret"]
    await client.conversation()
    await deliver(service)
    sent = receiver.received[1]
    Verifier(last).verify(sent.body, sent.headers)
    for secret in (made["secret"], rotated["secret"]):
        with pytest.raises(WebhookVerificationError):
            Verifier(secret).verify(sent.body, sent.headers)


# tenants


async def test_two_tenants_with_the_same_ids_get_only_their_own(service: Service, receiver: Receiver) -> None:
    conversation, turn = format_id(uuid.uuid4()), format_id(uuid.uuid4())
    async with await service.new_tenant() as one, await service.new_tenant() as other, receiving() as second:
        hooks = [await hook(one, receiver), await hook(other, second)]
        for client, text in ((one, "ALPHA"), (other, "BRAVO")):
            await client.conversation(id=conversation, title=text)
            await client.append(conversation, {"id": turn, "role": "user", "content": text})
        # the same event ids too
        connection = await asyncpg.connect(service.database.superuser)
        for at, of in enumerate(("conversation.created", "turn.committed")):
            await connection.execute(
                "update webhook_deliveries set event_id = $1 where event_type = $2 and tenant_id = any($3)",
                uuid.UUID(int=at + 1), of, [one.tenant_id, other.tenant_id],
            )  # fmt: skip
        await connection.close()
        await deliver(service)
        for client, got, text, foreign in ((one, receiver, "ALPHA", "BRAVO"), (other, second, "BRAVO", "ALPHA")):
            assert got.types == ["conversation.created", "turn.committed"]
            assert all(text.encode() in sent.body and foreign.encode() not in sent.body for sent in got.received)
            assert len((await client.get("/v1/webhooks")).json()["data"]) == 1
        for path in ("", "/deliveries", f"/deliveries/{format_id(uuid.UUID(int=1))}"):
            problem(await one.get(f"/v1/webhooks/{hooks[1]['id']}{path}"), 404, "not_found")
        for path in ("/test", f"/deliveries/{format_id(uuid.UUID(int=1))}/replay"):
            problem(await one.post(f"/v1/webhooks/{hooks[1]['id']}{path}"), 404, "not_found")
        problem(await one.delete(f"/v1/webhooks/{hooks[1]['id']}"), 404, "not_found")
        Verifier(hooks[0]["secret"]).verify(receiver.received[0].body, receiver.received[0].headers)
        with pytest.raises(WebhookVerificationError):
            Verifier(hooks[1]["secret"]).verify(receiver.received[0].body, receiver.received[0].headers)


async def test_an_append_of_a_tenant_without_webhooks_pays_nothing_and_with_one_no_round_trip(
    client: Client, receiver: Receiver
) -> None:
    conversation = await client.conversation()
    for _ in range(2):
        await client.append(conversation, "warm")

    async def shortest() -> list[str]:
        # an append can pay for a key or limits that are read again after some time
        runs: list[list[str]] = []
        for _ in range(3):
            with counted_statements() as sent:
                await client.append(conversation, "said")
            runs.append(sent)
        return min(runs, key=len)

    before = await shortest()
    assert "webhook" not in " ".join(before)
    await hook(client, receiver)
    after = await shortest()
    assert first_words(after)[:-1] == first_words(before)[:-1]
    assert after[-1].count("insert into webhook_deliveries") == 1
    assert after[-1].endswith("commit")


async def test_a_process_that_does_not_know_the_webhooks_stores_events_all_the_same(
    service: Service, client: Client, receiver: Receiver
) -> None:
    made = await hook(client, receiver)
    service.container.webhooks.outbox.mark_stale()
    await client.conversation()
    assert len(await deliveries(client, made)) == 1


@pytest.mark.slow
async def test_concurrent_changes_of_many_conversations_are_all_sent_in_order(
    service: Service, client: Client, receiver: Receiver
) -> None:
    await hook(client, receiver, event_types=["turn.committed"])
    conversations = [await client.conversation() for _ in range(5)]

    async def talk(conversation: str) -> None:
        for n in range(8):
            await client.append(conversation, str(n))
            await deliver(service)

    await asyncio.gather(*map(talk, conversations))
    await deliver(service)
    for conversation in conversations:
        own = [one for one in receiver.received if one.data["conversation_id"] == conversation]
        assert [one.data["turn"]["content"] for one in own] == [str(n) for n in range(8)]


# destinations

PRIVATE = (
    "127.0.0.1", "127.1.2.3", "0.0.0.0", "10.1.2.3",  # noqa: S104 - refused
    "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "100.100.100.200", "168.63.129.16", "192.0.0.192", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1",
    "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "64:ff9b:1:a9fe:a9:fe08:808:808", "::ffff:0:127.0.0.1", "5f00::1",
    "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:db8::1", "localhost", "",
)  # fmt: skip
PUBLIC = ("93.184.215.14", "1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::1")


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_inside_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(address)


@pytest.fixture(scope="module")
async def guarded(database: TestDatabase, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A service whose webhooks may use http, and not lead to this machine."""
    options = {"webhook_allow_http": True, "webhook_timeout_s": 1.0}
    async with open_service(database, tmp_path_factory.mktemp("guarded"), **options) as opened:
        yield opened


async def outcome(service: Service, client: Client, url: str) -> str | None:
    """The error of the last attempt to send a test to a URL."""
    made = await client.post("/v1/webhooks", json={"url": url})
    assert made.status_code == 201, made.text
    path = f"/v1/webhooks/{made.json()['id']}"
    await client.post(f"{path}/test")
    await deliver(service)
    [one] = (await client.get(f"{path}/deliveries")).json()["data"]
    await client.delete(path)
    return one["last_error"]


async def test_a_name_that_leads_inside_is_refused_before_a_connection(guarded: Service, receiver: Receiver) -> None:
    async with await guarded.new_tenant() as client:
        url = f"http://localhost:{receiver.port}/"
        assert await outcome(guarded, client, url) == "address"
        assert receiver.connections == 0
        for literal in (f"http://127.0.0.1:{receiver.port}/", "http://[::ffff:127.0.0.1]/", "http://169.254.169.254/"):
            problem(await client.post("/v1/webhooks", json={"url": literal}), 422, "invalid_request", "/url")
        # forms that only a resolver reads as an address
        for odd in (f"http://2130706433:{receiver.port}/", f"http://0x7f.1:{receiver.port}/", "http://0/"):
            assert await outcome(guarded, client, odd) in {"address", "name"}
        assert receiver.connections == 0


async def test_a_name_that_changes_its_address_after_the_check_gains_nothing(
    guarded: Service, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    real = socket.getaddrinfo

    def resolve(host: str, port: int, **options: Any) -> Any:
        if host != "rebinding.example":  # what other tests have left
            return real(host, port, **options)
        asked.append(host)
        address = "203.0.113.9" if len(asked) == 1 else "127.0.0.1"
        return [(2, 1, 6, "", (address, port))]

    connected: list[str] = []

    async def connect(_self: object, host: str, port: int, **_options: object) -> None:  # noqa: ARG001
        connected.append(host)
        raise OSError

    backend = guarded.container.webhooks.sender._backend  # noqa: SLF001
    monkeypatch.setattr("socket.getaddrinfo", resolve)
    monkeypatch.setattr("app.providers.receivers.webhook_sender.is_public", lambda address: address == "203.0.113.9")
    monkeypatch.setattr(type(backend._backend), "connect_tcp", connect)  # noqa: SLF001
    async with await guarded.new_tenant() as client:
        assert await outcome(guarded, client, f"http://rebinding.example:{receiver.port}/") == "connection"
    assert (asked, connected) == (["rebinding.example"], ["203.0.113.9"])
    assert receiver.connections == 0


async def test_a_name_server_that_does_not_answer_delays_no_other_tenant(
    service: Service, client: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, real = threading.Event(), socket.getaddrinfo

    def resolve(host: str, port: int, **options: Any) -> Any:
        if host == "unanswered.example":
            answer.wait(10)
            raise OSError
        return real(host, port, **options)

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    await hook(client, receiver, url="http://unanswered.example/", event_types=["conversation.created"])
    for _ in range(4):
        await client.conversation()
    async with await service.new_tenant() as other:
        await hook(other, receiver, event_types=["conversation.created"])
        await other.conversation()
        await deliver(service)
        answer.set()
    assert len(receiver.received) == 1


async def test_certificates_are_not_read_on_the_event_loop_for_each_connection(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []
    real = ssl.SSLContext.load_verify_locations

    def load(context: ssl.SSLContext, *given: Any, **named: Any) -> None:
        readers.append(threading.current_thread())
        real(context, *given, **named)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", load)
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for _ in range(2):
        assert await outcome(service, client, f"https://127.0.0.1:{port}/") in {"tls", "connection"}
    server.close()
    assert len(readers) <= 1
    assert threading.current_thread() not in readers


async def test_the_scheme_of_a_url_may_be_in_capitals() -> None:
    sender = WebhookSender(WebhookSettings(webhook_allow_private=True), guard=lambda: None)
    result = await sender.send("HTTPS://127.0.0.1:1/", headers={}, body=b"{}")
    await sender.close()
    assert result.error == "connection"


async def test_a_redirect_is_not_followed(service: Service, client: Client, receiver: Receiver) -> None:
    async with receiving() as other:
        receiver.status, receiver.headers = 307, f"location: {other.url}\r\n"
        assert await outcome(service, client, receiver.url) == "redirect"
        assert other.connections == 0


async def test_what_a_receiver_does_wrong_is_named(service: Service, client: Client, receiver: Receiver) -> None:
    receiver.hold = asyncio.Event()
    assert await outcome(service, client, receiver.url) == "timeout"
    receiver.hold = None

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"hello, this is no protocol that you speak\r\n\r\n" * 9)
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await outcome(service, client, f"https://127.0.0.1:{port}/") == "tls"
    assert await outcome(service, client, f"http://127.0.0.1:{port}/") == "protocol"
    server.close()
    assert await outcome(service, client, "http://no-such-name.invalid/") == "name"
    assert await outcome(service, client, "http://127.0.0.1:1/") == "connection"
    receiver.drips = True  # an endless body: the status counts
    assert await outcome(service, client, receiver.url) is None


async def test_cookies_of_a_receiver_are_not_sent_back(service: Service, client: Client, receiver: Receiver) -> None:
    receiver.headers = "set-cookie: a=b\r\n"
    for _ in range(2):
        assert await outcome(service, client, receiver.url) is None
    assert not any("cookie" in one.headers for one in receiver.received)


# the resource


@pytest.mark.slow
async def test_webhooks_are_listed_changed_and_deleted_with_their_deliveries(
    service: Service, client: Client, receiver: Receiver
) -> None:
    made = [await hook(client, receiver, description=str(n)) for n in range(3)]
    page = (await client.get("/v1/webhooks", params={"limit": 2})).json()
    assert [one["id"] for one in page["data"]] == [made[2]["id"], made[1]["id"]]
    rest = (await client.get("/v1/webhooks", params={"limit": 2, "cursor": page["next_cursor"]})).json()
    assert [one["id"] for one in rest["data"]] == [made[0]["id"]]
    assert "whsec_" not in json.dumps(page)
    path = f"/v1/webhooks/{made[0]['id']}"
    changed = await client.patch(path, json={"event_types": ["turn.committed"], "description": None, "project": "p"})
    assert changed.json() == (await client.get(path)).json()
    assert (changed.json()["event_types"], changed.json()["description"]) == (["turn.committed"], None)
    assert (await client.patch(path, json={"event_types": None})).json()["event_types"] is None
    await client.conversation(project="p")
    assert len(await deliveries(client, made[0])) == 1
    assert (await client.delete(path)).status_code == 204
    problem(await client.get(path), 404, "not_found")
    await service.run_jobs()
    connection = await asyncpg.connect(service.database.superuser)
    left = await connection.fetchval(
        "select count(*) from webhook_deliveries where tenant_id = $1 and webhook_id = $2",
        client.tenant_id, parse_id(made[0]["id"]),
    )  # fmt: skip
    await connection.close()
    assert left == 0
    await deliver(service)
    assert len(receiver.received) == 2


async def test_deliveries_have_filters_and_pages_and_are_deleted_by_age(
    service: Service, client: Client, receiver: Receiver
) -> None:
    made = await hook(client, receiver)
    one, other = await client.conversation(), await client.conversation()
    await client.append(one, "a")
    path = f"/v1/webhooks/{made['id']}/deliveries"
    page = (await client.get(path, params={"limit": 2})).json()
    assert [item["type"] for item in page["data"]] == ["turn.committed", "conversation.created"]
    rest = (await client.get(path, params={"limit": 2, "cursor": page["next_cursor"]})).json()
    assert [item["conversation_id"] for item in rest["data"]] == [one]
    assert rest["has_more"] is False
    assert len(await deliveries(client, made, conversation_id=other)) == 1
    assert len(await deliveries(client, made, type="turn.committed", status="pending")) == 1
    now = datetime.now(UTC)
    assert await deliveries(client, made, since=(now + timedelta(hours=1)).isoformat()) == []
    assert len(await deliveries(client, made, until=(now + timedelta(hours=1)).isoformat())) == 3
    problem(await client.get(path, params={"type": "turn.forgotten"}), 422, "invalid_request")
    await run_sql(
        service, "update webhook_deliveries set recorded_at = now() - interval '15 days' where tenant_id = $1",
        client.tenant_id,
    )  # fmt: skip
    await service.container.webhooks.api.sweep()
    assert await deliveries(client, made) == []
    await deliver(service)
    assert receiver.received == []


@pytest.mark.parametrize(
    "url",
    ["ftp://example.com/", "https://", "example.com", "https://user:pass@example.com/", "https://example.com/#x",
     "https://exa mple.com/", "https://example.com:0/", "https://example.com:99999/", "https://[::1", "", "x" * 3000],
)  # fmt: skip
async def test_a_url_that_is_none_is_refused(client: Client, url: str) -> None:
    response = await client.post("/v1/webhooks", json={"url": url})
    problem(response, 422, "invalid_request", "/url")
    assert "pass" not in response.text


async def test_bad_requests_are_refused(client: Client, receiver: Receiver) -> None:
    url = receiver.url
    for body, pointer in (
        ({"url": url, "event_types": ["turn.forgotten"]}, "/event_types/0"),
        ({"url": url, "event_types": []}, "/event_types"),
        ({"url": url, "secret": "x"}, "/secret"),
        ({}, "/url"),
    ):
        problem(await client.post("/v1/webhooks", json=body), 422, "invalid_request", pointer)
    made = [await hook(client, receiver) for _ in range(5)]
    problem(await client.post("/v1/webhooks", json={"url": url}), 409, "too_many_webhooks")
    problem(await client.patch(f"/v1/webhooks/{made[0]['id']}", json={"url": None}), 422, "invalid_request")


async def test_content_needs_the_scope_read_and_all_of_it_admin(
    service: Service, client: Client, receiver: Receiver
) -> None:
    made = await hook(client, receiver)

    async def key(*scopes: str) -> Client:
        made_key = await service.container.tenancy.create_key(
            client.tenant_id, name="k", scopes=[Scope(one) for one in scopes]
        )
        return service.client(str(made_key))

    async with await key("admin") as blind:
        problem(await blind.post("/v1/webhooks", json={"url": receiver.url}), 403, "forbidden")
        ids_only = await blind.post("/v1/webhooks", json={"url": receiver.url, "include_content": False})
        assert ids_only.status_code == 201
        path = f"/v1/webhooks/{ids_only.json()['id']}"
        problem(await blind.patch(path, json={"include_content": True}), 403, "forbidden")
        # nor may it lead another's content elsewhere
        problem(await blind.patch(f"/v1/webhooks/{made['id']}", json={"url": receiver.url}), 403, "forbidden")
    async with await key("read", "write") as writer:
        problem(await writer.get("/v1/webhooks"), 403, "forbidden")
        problem(await writer.post(f"/v1/webhooks/{made['id']}/test"), 403, "forbidden")


async def test_erasing_the_tenant_deletes_its_webhooks(service: Service, client: Client, receiver: Receiver) -> None:
    await hook(client, receiver)
    await client.append(await client.conversation(), "parrot")
    started = await client.post("/v1/erasures", json={"tenant": format_id(client.tenant_id)})
    assert started.status_code == 202, started.text
    await service.run_jobs()
    connection = await asyncpg.connect(service.database.superuser)
    for table in ("webhooks", "webhook_deliveries", "webhook_lanes"):
        sql = f"select count(*) from {table} where tenant_id = $1"  # noqa: S608
        assert await connection.fetchval(sql, client.tenant_id) == 0, table
    await connection.close()


def test_a_statement_of_the_commit_has_no_text_of_a_caller() -> None:
    from app.settings.webhooks import WebhookSettings  # noqa: PLC0415
    from app.webhooks.outbox import WebhookOutbox  # noqa: PLC0415

    outbox = WebhookOutbox(None, settings=WebhookSettings(), notify=lambda: None)  # type: ignore[arg-type]
    tx = Transaction(None, None)  # type: ignore[arg-type]
    outbox.record(tx, uuid.uuid4(), EventType.FACT_DELETED, [uuid.uuid4()], project="'; drop table turns; --")  # type: ignore[arg-type]
    [statement] = tx.at_commit
    assert callable(statement)
    assert "drop" not in statement()


@pytest.mark.parametrize(
    "error", [RuntimeError("words of a turn"), Conflict("conflict", "words of a turn")], ids=["unexpected", "lasting"]
)
async def test_an_event_that_cannot_be_rendered_is_dead_and_its_conversation_goes_on(
    error: Exception, service: Service, client: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await hook(client, receiver, event_types=["turn.committed"])
    conversation = await client.conversation()
    await client.append(conversation, "a1", "a2")
    render, failed = EventRenderer.render, list[object]()

    async def fail_once(self: EventRenderer, row: DeliveryRow, *, include_content: bool) -> bytes:
        if row.tenant_id == client.tenant_id and not failed:  # others may have events that are due
            failed.append(row.event_id)
            raise error
        return await render(self, row, include_content=include_content)

    monkeypatch.setattr(EventRenderer, "render", fail_once)
    with capture_logs() as logs:
        await deliver(service)
    assert "words of a turn" not in str([{**line, "exc_info": None} for line in logs])
    first, second = await deliveries(client, made)
    assert (first["status"], first["last_error"], second["status"]) == ("dead", "internal", "delivered")
    assert receiver.ids == [second["id"]]
    assert (await client.get(f"/v1/webhooks/{made['id']}")).json()["failing_since"] is None


async def test_the_dispatcher_goes_on_after_an_unexpected_exception(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> list[LaneKey]:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(delivery_store, "claim", fail)
    assert await service.container.webhooks.dispatcher.drain() == 0
