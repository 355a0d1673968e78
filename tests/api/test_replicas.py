"""Several processes of one installation: a key has one rate at all of them, and each is listed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.core import limits
from app.core.bus import replicas as replicas_module
from app.core.ids import format_id
from app.tenancy.limits.rate_sharing import RateSharing
from app.tenancy.schemas import RateClass, Scope
from tests.support.api import Client, Service, open_service, problem
from tests.support.postgres import TestDatabase
from tests.support.statements import counted_statements, first_words
from tests.support.timing import StoppedClock

TEN = {"rate_write_per_s": 10, "rate_burst_s": 1, "embedder": "none", "rate_share_s": 60}
"""Ten calls at once, and ten in each second; the processes share their counts only when a test says so."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    clock = StoppedClock()
    monkeypatch.setattr(limits, "monotonic", clock)
    return clock


@asynccontextmanager
async def two(database: TestDatabase, folder: Path, **settings: Any) -> AsyncIterator[tuple[Service, Service]]:
    """Two apps on one database, as two processes are."""
    async with (
        open_service(database, folder / "one", **TEN | settings) as one,
        open_service(database, folder / "two", **TEN | settings) as other,
    ):
        yield one, other


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - what is waited for comes over the bus
            await asyncio.sleep(0.01)


async def share(one: Service, other: Service) -> None:
    """Send what one process has counted, and wait until another one knows it."""
    received = asyncio.Event()
    on_message = RateSharing.on_message

    def receive(self: RateSharing, message: Any) -> None:
        on_message(self, message)
        if self is other.container.rate_sharing:
            received.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RateSharing, "on_message", receive)
        if one.container.rate_sharing.share():
            await asyncio.wait_for(received.wait(), 60)


async def accepted(client: Client, calls: int) -> int:
    """The number of calls that were not refused."""
    answers = [await client.post("/v1/conversations", json={"external_id": "x"}) for _ in range(calls)]
    assert {answer.status_code for answer in answers} <= {200, 201, 429}
    return sum(answer.status_code != 429 for answer in answers)


@pytest.mark.slow
async def test_a_key_has_one_rate_at_two_processes_up_to_the_calls_that_were_not_shared(
    words_database: TestDatabase, tmp_path: Path, clock: StoppedClock
) -> None:
    async with (
        two(words_database, tmp_path) as (one, other),
        await one.new_tenant() as here,
        other.client(here.key) as there,
    ):
        assert await accepted(here, 4) == 4
        await share(one, other)
        answer = await there.post("/v1/conversations", json={"external_id": "x"})
        assert answer.headers["RateLimit"] == '"write";r=5;t=1', "a process that saw no call of the key knows them"
        assert await accepted(there, 20) == 5
        await share(other, one)
        assert await accepted(here, 20) == 0
        # the worst case: both let a full bucket through before either knows of the other's calls
        clock.now += 100
        assert (await accepted(here, 20), await accepted(there, 20)) == (10, 10)
        await share(one, other)
        await share(other, one)
        refused = await here.post("/v1/conversations", json={"external_id": "x"})
        problem(refused, 429, "rate_limited")
        assert refused.headers["Retry-After"] == "2", "the second of the calls that both let through, and one more"
        clock.now += 1
        assert (await accepted(here, 5), await accepted(there, 5)) == (0, 0), "what was too much is made up for"
        clock.now += 1
        assert await accepted(here, 20) == 10
        await share(one, other)
        assert await accepted(there, 20) == 0
        # keys of other tenants, and other classes of calls, are not touched
        async with await other.new_tenant() as neighbour:
            assert await accepted(neighbour, 20) == 10
        assert (await there.get("/v1/conversations")).status_code == 200


async def test_sharing_costs_no_statement_of_a_call(words_database: TestDatabase, tmp_path: Path) -> None:
    settings = {"rate_write_per_s": 1000, "rate_share_s": 0.05, "key_cache_s": 60}
    async with two(words_database, tmp_path, **settings) as (one, other), await one.new_tenant() as client:
        conversation = await client.conversation(compaction={"trigger_turns": 1000})
        for _ in range(2):
            await client.append(conversation, "warm")
        with counted_statements() as sent:
            for _ in range(20):
                await client.append(conversation, "one")
                one.container.rate_sharing.share()
        assert first_words(sent) == 20 * [
            "begin", "select", "insert into turns", "insert into index_entries", "update conversation_heads set",
            "insert into audit_unsealed; commit",
        ]  # fmt: skip
        buckets = other.container.tenancy.rates._buckets  # noqa: SLF001
        await until(lambda: any(key[0] == client.tenant_id and key[2] is RateClass.WRITE for key in buckets))


async def test_a_message_that_is_not_one_of_rates_changes_nothing(service: Service, client: Client) -> None:
    await client.conversation()
    sharing, buckets = service.container.rate_sharing, service.container.tenancy.rates._buckets  # noqa: SLF001
    before = {key: bucket.left for key, bucket in buckets.items()}
    tenant, key = client.tenant_id.hex, client.tenant_id.hex
    for uses in (None, 3, [1], [[tenant, key, "write", 1]], [[tenant, key, "x", 1, 1]], [["x", key, "write", 1, 1]]):
        sharing.on_message({"k": "rates", "p": "other", "u": uses})  # pyright: ignore[reportArgumentType]
    sharing.on_message({"k": "rates", "p": "other"})
    assert {key: bucket.left for key, bucket in buckets.items()} == before


@pytest.mark.slow
async def test_the_running_processes_are_listed_until_they_end_or_are_silent(
    words_database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_service(words_database, tmp_path / "one", embedder="none") as one:
        tenant = await one.new_tenant()
        key = await one.container.tenancy.create_key(tenant.tenant_id, name="operator", scopes=list(Scope))
        problem(await tenant.get("/v1/admin/replicas"), 403, "forbidden")
        operator = one.client(str(key))
        own = (await operator.get("/v1/admin/samples")).json()["process_id"]

        async def listed(client: Client, **params: Any) -> list[str]:
            found: list[str] = []
            cursor = None
            while True:
                given = params | ({} if cursor is None else {"cursor": cursor})
                page = (await client.get("/v1/admin/replicas", params={"limit": 1, **given})).json()
                found += [row["id"] for row in page["data"]]
                cursor = page["next_cursor"]
                if cursor is None:
                    return found

        async with open_service(words_database, tmp_path / "two", embedder="none") as two:
            there = two.client(str(key))
            other = (await there.get("/v1/admin/samples")).json()["process_id"]
            for service in (one, two):  # the one that started first answers the other one's announcement
                await until(lambda service=service: len(service.container.replicas.seen()) == 2)
            assert await listed(operator) == await listed(there) == [own, other]
            assert await listed(operator, order="desc") == [other, own]
            rows = (await there.get("/v1/admin/replicas")).json()["data"]
            assert [(row["kind"], row["is_this"], row["runs_jobs"]) for row in rows] == [
                ("server", False, False), ("server", True, False)
            ]  # fmt: skip
            assert rows[0]["version"] == rows[1]["version"] == one.app.version
            assert rows[0]["schema_revision"].isdigit()
            assert rows[0]["started_at"] <= rows[0]["seen_at"]
        await until(lambda: len(one.container.replicas.seen()) == 1)
        assert await listed(operator) == [own]
        worker_id = format_id(one.container.replicas.seen()[0].replica.id)
        assert worker_id == own
        # one that is killed says nothing more
        monkeypatch.setattr(replicas_module, "SILENT_S", -1.0)
        assert await listed(operator) == []
        await tenant.aclose()


async def test_a_message_that_is_not_one_of_a_process_changes_nothing(service: Service) -> None:
    known, before = service.container.replicas, service.container.replicas.seen()
    for message in (
        {},
        {"p": "x"},
        {"p": "x", "ended": True},
        {"p": format_id(before[0].replica.id), "kind": "server"},
    ):
        known.on_message({"k": "replica", **message})  # pyright: ignore[reportArgumentType]
    assert [one.replica for one in known.seen()] == [one.replica for one in before]
