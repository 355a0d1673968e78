"""Reads from a standby: what they show, and what happens when the standby lags, conflicts, dies or is promoted."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.core.database.reader import DatabaseReader, Fallback
from app.core.ids import parse_id
from app.diagnostics.schemas import Check, Level
from app.diagnostics.service import examine
from app.settings import Settings
from tests.support.api import Client, Service, open_service
from tests.support.postgres import TestDatabase
from tests.support.replicated import ReplicatedPostgres
from tests.support.statements import counted_statements, first_words

pytestmark = pytest.mark.slow

_PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def postgres() -> Iterator[ReplicatedPostgres]:
    servers = ReplicatedPostgres()
    servers.start()
    yield servers
    servers.stop()


def as_database(url: str) -> TestDatabase:
    return TestDatabase(superuser=url, owner=url, app=url, ops=url)


@asynccontextmanager
async def opened(postgres: ReplicatedPostgres, folder: Path, **more: Any) -> AsyncIterator[Service]:
    """A process with a standby, once that one is in use."""
    more = {"migrate_on_start": True, "database_read_url": postgres.standby_url, "key_cache_s": 60} | more
    async with open_service(as_database(postgres.url), folder, **more) as service:
        await in_use(service.container.reader)
        yield service


async def in_use(reader: DatabaseReader) -> None:
    """Wait until the standby answers reads."""
    until = time.monotonic() + _PATIENCE_S
    while not reader.is_usable:
        assert time.monotonic() < until, reader.fallbacks
        await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
async def service(postgres: ReplicatedPostgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    async with opened(postgres, tmp_path_factory.mktemp("one"), standby_wait_s=10) as service:
        yield service


@pytest.fixture(scope="module")
async def other(
    service: Service, postgres: ReplicatedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Service]:
    """Another process of the same installation, which waits for the standby no more than shortly."""
    del service  # it has migrated
    async with opened(postgres, tmp_path_factory.mktemp("two"), standby_wait_s=0.02) as other:
        yield other


@pytest.fixture
async def client(service: Service) -> Client:
    await in_use(service.container.reader)
    return await service.new_tenant()


@contextmanager
def replay_paused(postgres: ReplicatedPostgres) -> Iterator[None]:
    postgres.on_standby("select pg_wal_replay_pause()")
    until = time.monotonic() + _PATIENCE_S
    while postgres.on_standby("select pg_get_wal_replay_pause_state()") != "paused":
        assert time.monotonic() < until
        time.sleep(0.02)
    try:
        yield
    finally:
        postgres.on_standby("select pg_wal_replay_resume()")


async def everything_read(client: Client, conversation: str) -> dict[str, Any]:
    """What each read that may go to a standby answers."""
    paths = (
        f"/v1/conversations/{conversation}", f"/v1/conversations/{conversation}/turns", "/v1/conversations",
        f"/v1/conversations/{conversation}/summaries", "/v1/facts", "/v1/memories",
    )  # fmt: skip
    found: dict[str, Any] = {}
    for path in paths:
        response = await client.get(path)
        assert response.status_code == 200, response.text
        found[path] = response.json()
    turn = found[paths[1]]["data"][0]["id"]
    response = await client.get(f"/v1/conversations/{conversation}/turns/{turn}")
    return found | {"turn": response.json()}


async def test_reads_go_to_the_standby_and_show_what_was_just_written(service: Service, client: Client) -> None:
    reader = service.container.reader
    conversation = await client.conversation(title="Parrots")
    await client.append(conversation, "first", "second")
    response = await client.post(
        "/v1/facts", json={"subject": "Mia", "predicate": "likes", "object": "tea", "owner": "mia"}
    )
    assert response.status_code == 201, response.text
    before, fallbacks = reader.standby_reads, +reader.fallbacks
    for number in range(20):
        await client.append(conversation, f"turn {number}")
        found = await everything_read(client, conversation)
        assert found[f"/v1/conversations/{conversation}/turns"]["data"][-1]["content"] == f"turn {number}"
        assert found[f"/v1/conversations/{conversation}"]["turn_count"] == number + 3
        assert [fact["object"] for fact in found["/v1/facts"]["data"]] == ["tea"]
        assert found["turn"]["content"] == "first"
    assert reader.standby_reads == before + 20 * 7
    assert reader.fallbacks == fallbacks


async def test_a_read_asks_the_primary_for_no_more_than_its_position(
    service: Service, client: Client, postgres: ReplicatedPostgres
) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "one", "two")
    await client.history(conversation)
    with counted_statements() as sent:
        await client.history(conversation)
    position = [one for one in sent if "pg_current_wal_flush_lsn" in one]
    check = [one for one in sent if "pg_last_wal_replay_lsn" in one]
    rest = first_words([one for one in sent if one not in (*position, *check)])
    assert len(position) == len(check) == 1
    assert rest == ["begin", "select", "select"]
    assert service.container.reader.standby is not None
    # both servers have the row of the tenant under its row-level security only
    for url in (postgres.primary_url, postgres.standby_url):
        connection = await asyncpg.connect(url, server_settings={"role": "turnkeep_app"})
        try:
            assert await connection.fetchval("select count(*) from turns") == 0
        finally:
            await connection.close()


async def test_what_was_written_is_shown_by_every_process_while_the_standby_lags(
    other: Service, client: Client, postgres: ReplicatedPostgres
) -> None:
    await in_use(other.container.reader)
    beside = other.client(client.key)
    conversation = await client.conversation()
    await client.append(conversation, "before")
    assert (await beside.history(conversation))[-1]["content"] == "before"
    lagged = other.container.reader.fallbacks[Fallback.LAG]
    with replay_paused(postgres):
        await client.append(conversation, "while it lags")
        for _ in range(5):
            assert [turn["content"] for turn in await beside.history(conversation)] == ["before", "while it lags"]
            listed = (await beside.get("/v1/conversations")).json()["data"]
            assert listed[0]["turn_count"] == 2
        assert other.container.reader.fallbacks[Fallback.LAG] == lagged + 1, "only the first read waits"
        assert other.container.reader.fallbacks[Fallback.SUSPENDED] >= 9
        # a deletion is a write, too
        response = await client.delete(f"/v1/conversations/{conversation}")
        assert response.status_code in {200, 202, 204}, response.text
        assert (await beside.get(f"/v1/conversations/{conversation}")).status_code == 404
    await in_use(other.container.reader)
    before = other.container.reader.standby_reads
    assert (await beside.get("/v1/conversations")).json()["data"] == []
    assert other.container.reader.standby_reads == before + 1


async def test_a_read_waits_for_a_standby_that_catches_up_soon(
    service: Service, client: Client, postgres: ReplicatedPostgres
) -> None:
    reader = service.container.reader
    conversation = await client.conversation()
    before = reader.standby_reads
    with replay_paused(postgres):
        await client.append(conversation, "late")
        reading = asyncio.create_task(client.history(conversation))
        await asyncio.sleep(0.2)
        assert not reading.done()
    assert [turn["content"] for turn in await reading] == ["late"]
    assert reader.standby_reads == before + 1


async def test_two_tenants_with_the_same_ids_see_their_own_rows_on_the_standby(
    service: Service, client: Client
) -> None:
    second = await service.new_tenant()
    same = "00000000-0000-7000-8000-00000000beef"
    for one, text in ((client, "of the first"), (second, "of the second")):
        response = await one.post("/v1/conversations", json={"id": same})
        assert response.status_code == 201, response.text
        await one.append(same, text)
    before = service.container.reader.standby_reads
    third = await service.new_tenant()
    seen = await asyncio.gather(*(one.history(same) for one in (client, second) * 10))
    assert [turns[0]["content"] for turns in seen] == ["of the first", "of the second"] * 10
    assert (await third.get(f"/v1/conversations/{same}/turns")).status_code == 404
    assert service.container.reader.standby_reads == before + 21


async def test_a_read_that_replay_cancels_is_answered_by_the_primary(
    service: Service, client: Client, postgres: ReplicatedPostgres
) -> None:
    reader = service.container.reader
    postgres.on_standby("alter system set max_standby_streaming_delay = 0")
    postgres.on_standby("select pg_reload_conf()")
    postgres.on_primary("create table conflicting as select 1 as number")
    postgres.on_primary("grant select on conflicting to turnkeep_app")
    before, reads, calls = reader.fallbacks[Fallback.CONFLICT], reader.standby_reads, 0

    async def read(tx: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:  # on the standby: its lock is in the way when the drop is replayed
            reading = asyncio.create_task(tx.fetchrow("select pg_sleep(20) from conflicting"))
            await asyncio.sleep(0.5)
            await asyncio.to_thread(postgres.on_primary, "drop table conflicting")
            await reading
        return calls

    try:
        assert await reader.read(client.tenant_id, read) == 2
    finally:
        postgres.on_standby("alter system reset max_standby_streaming_delay")
        postgres.on_standby("select pg_reload_conf()")
    assert (reader.fallbacks[Fallback.CONFLICT], reader.standby_reads) == (before + 1, reads)
    await in_use(reader)


async def test_a_search_reads_a_large_segment_from_the_standby_and_misses_no_change(
    service: Service, other: Service, client: Client, postgres: ReplicatedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.index.search.resident._MANY_READ", 20)
    await in_use(other.container.reader)
    beside = other.client(client.key)
    conversation = await client.conversation()
    turns = (await client.append(conversation, *[f"the parrot has number {number}" for number in range(30)]))["turns"]
    before = service.container.reader.standby_reads
    assert len(await client.recall(conversation, "parrot", k=50)) == 30
    assert service.container.reader.standby_reads == before + 1
    # a transaction that is running when the segment is read, and commits later
    running = await asyncpg.connect(postgres.primary_url)
    try:
        await running.execute("begin")
        await running.execute("update index_entries set actor = 'late' where entry_id = $1", parse_id(turns[0]["id"]))
        assert len(await beside.recall(conversation, "parrot", k=50)) == 30
        assert other.container.reader.standby_reads > 0
        await running.execute("commit")
    finally:
        await running.close()
    assert [hit["turn"]["id"] for hit in await beside.recall(conversation, "parrot", filters={"actors": ["late"]})] == [
        turns[0]["id"]
    ]
    # a segment that is read while the standby lags has what was committed before
    with replay_paused(postgres):
        await client.append(conversation, "the parrot is late")
        response = await client.request("DELETE", f"/v1/conversations/{conversation}/turns/{turns[1]['id']}")
        assert response.status_code == 204, response.text
        other.container.index.resident.evict_all()
        found = {hit["turn"]["content"] for hit in await beside.recall(conversation, "parrot", k=50)}
        assert "the parrot is late" in found
        assert "the parrot has number 1" not in found
        assert len(found) == 30
    assert {hit["turn"]["content"] for hit in await client.recall(conversation, "parrot", k=50)} == found


async def test_without_the_setting_a_read_asks_nothing_more(
    postgres: ReplicatedPostgres, client: Client, tmp_path: Path
) -> None:
    async with open_service(as_database(postgres.url), tmp_path, key_cache_s=60) as without:
        assert without.container.reader.standby is None
        own = without.client(client.key)
        conversation = await own.conversation()
        await own.append(conversation, "one")
        await own.history(conversation)
        with counted_statements() as sent:
            await own.history(conversation)
    assert first_words(sent) == ["begin", "select", "select"]


async def test_a_url_of_another_database_or_of_no_standby_is_never_read(
    postgres: ReplicatedPostgres, client: Client, tmp_path: Path
) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "one")
    postgres.on_primary("create database other_one")
    wrong = (postgres.standby_url.replace("/turnkeep", "/other_one"), postgres.primary_url,
             postgres.standby_url.replace("postgres@", "stranger@"))  # fmt: skip
    for number, url in enumerate(wrong):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with open_service(as_database(postgres.url), folder, database_read_url=url) as misled:
            reader = misled.container.reader
            await asyncio.sleep(1.5)
            assert [turn["content"] for turn in await misled.client(client.key).history(conversation)] == ["one"]
            assert (reader.standby_reads, reader.is_usable) == (0, False), url


async def test_the_doctor_says_whether_the_standby_can_be_used(
    postgres: ReplicatedPostgres, client: Client, tmp_path: Path
) -> None:
    async def found(url: str) -> dict[str, Check]:
        settings = Settings(
            database_url=postgres.url, database_read_url=url, embedder="none", data_dir=tmp_path, port=0
        )
        checks = await examine(settings, environment={})
        return {check.name: check for check in checks if check.name.startswith("standby")}

    conversation = await client.conversation()
    assert {name: check.level for name, check in (await found(postgres.standby_url)).items()} == {
        "standby": Level.OK,
        "standby: clock": Level.OK,
    }
    with replay_paused(postgres):
        await client.append(conversation, "late")
        lagging = await found(postgres.standby_url)
    assert lagging["standby"].level is Level.WARN
    assert lagging["standby"].found.endswith("bytes of the log behind")
    assert "not in recovery" in (await found(postgres.primary_url))["standby"].found
    wrong = (await found(postgres.standby_url.replace("postgres@", "stranger@")))["standby"]
    assert (wrong.level, wrong.found) == (
        Level.WARN, "no standby of this database answers, so the primary answers all reads",
    )  # fmt: skip


async def test_the_metrics_count_reads_by_place(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    await client.history(conversation)
    lines = (await service.client(None).get("/metrics")).text.splitlines()
    reads = next(float(line.split()[1]) for line in lines if line.startswith("turnkeep_standby_reads_total "))
    assert reads == service.container.reader.standby_reads > 0
    conflicts = float(service.container.reader.fallbacks[Fallback.CONFLICT])
    assert f'turnkeep_standby_fallbacks_total{{reason="conflict"}} {conflicts}' in lines
    assert any(line.startswith('turnkeep_database_connections{pool="standby"') for line in lines)


async def test_no_read_misses_an_acknowledged_write_while_replay_stops_and_goes_on(
    other: Service, client: Client, postgres: ReplicatedPostgres
) -> None:
    """Writers and readers at two processes. A reader knows how many turns were acknowledged before it began."""
    await in_use(other.container.reader)
    beside = other.client(client.key)
    conversations = [await client.conversation() for _ in range(3)]
    acknowledged = dict.fromkeys(conversations, 0)
    reads, ends = 0, time.monotonic() + 12

    async def write(conversation: str) -> None:
        while time.monotonic() < ends:
            await (client if acknowledged[conversation] % 2 else beside).append(conversation, "a turn")
            acknowledged[conversation] += 1

    async def read(one: Client, conversation: str) -> None:
        nonlocal reads
        while time.monotonic() < ends:
            least = acknowledged[conversation]
            response = await one.get(f"/v1/conversations/{conversation}/turns", params={"limit": 1})
            seen = response.json()["data"][0]["seq"] if response.json()["data"] else 0
            assert seen >= least
            reads += 1

    async def disturb() -> None:
        while time.monotonic() < ends - 2:
            await asyncio.sleep(0.7)
            with replay_paused(postgres):
                await asyncio.sleep(0.5)

    before = other.container.reader.standby_reads
    readers = [read(one, conversation) for one in (client, beside) for conversation in conversations]
    await asyncio.gather(disturb(), *map(write, conversations), *readers)
    assert reads > 50
    assert min(acknowledged.values()) > 1  # few on a busy machine
    assert other.container.reader.standby_reads > before
    assert other.container.reader.fallbacks[Fallback.LAG] > 0


async def test_reads_go_on_when_the_standby_is_killed_and_when_it_is_promoted(
    service: Service, client: Client, postgres: ReplicatedPostgres
) -> None:
    """Last in this module: the servers are others afterwards."""
    reader = service.container.reader
    conversation = await client.conversation()
    await client.append(conversation, "one")
    await asyncio.to_thread(postgres.kill_standby)
    for number in range(5):
        assert len(await client.history(conversation)) == number + 1
        await client.append(conversation, f"{number}")
    assert reader.fallbacks[Fallback.UNAVAILABLE] >= 1
    assert not reader.is_usable
    await asyncio.to_thread(postgres.repair)
    await in_use(reader)
    before = reader.standby_reads
    assert len(await client.history(conversation)) == 6
    assert reader.standby_reads == before + 1

    await asyncio.to_thread(postgres.kill_primary)
    await asyncio.to_thread(postgres.promote)
    postgres.commit_alone()
    until = time.monotonic() + _PATIENCE_S
    while (
        await client.post(f"/v1/conversations/{conversation}/turns", json={"turns": [{"role": "user", "content": "!"}]})
    ).status_code >= 500:
        assert time.monotonic() < until
    before = reader.standby_reads
    assert (await client.history(conversation))[-1]["content"] == "!"
    assert reader.standby_reads == before, "the standby is the primary now"
    assert reader.fallbacks[Fallback.PROMOTED] + reader.fallbacks[Fallback.UNAVAILABLE] >= 2
