"""Nothing depends on where the process and the database believe to be: all times are moments, all days are of UTC."""

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.core.database.transactions import Database, PoolOptions
from app.diagnostics.service import DataCheck
from tests.support.api import Client, Service, open_service
from tests.support.postgres import TestDatabase


@pytest.fixture(params=["Asia/Kolkata", "America/Los_Angeles", "Pacific/Kiritimati"])
async def elsewhere(
    request: pytest.FixtureRequest, database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Service]:
    """A service whose process and database are in another zone, and not in the same one."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    connection = await asyncpg.connect(database.superuser)
    name = await connection.fetchval("select quote_ident(current_database())")
    await connection.execute(f"alter database {name} set timezone = 'Asia/Tokyo'")
    try:
        async with open_service(database, tmp_path) as opened:
            yield opened
    finally:
        await connection.execute(f"alter database {name} reset timezone")
        await connection.close()
        monkeypatch.undo()
        time.tzset()


async def faults(service: Service, client: Client) -> list[str]:
    ops = Database(PoolOptions(service.database.ops, 2, timeout_s=30, name="doctor-zones"))
    await ops.open()
    try:
        check = DataCheck(ops, client.tenant_id)
        found = [fault.code async for some in check.conversations(limit=None) for fault in some]
        return found + [fault.code for fault in await check.references()]
    finally:
        await ops.close()


async def test_days_are_those_of_utc_wherever_the_service_runs(elsewhere: Service) -> None:
    async with elsewhere.container.database.across_tenants() as tx:
        row = await tx.fetchrow("show timezone")
        assert row is not None
        assert row[0] == "Asia/Tokyo"
    async with await elsewhere.new_tenant() as client:
        conversation = await client.conversation(ttl_s=3600)
        # the 10th in Kolkata, and in UTC still the 9th
        said = {"role": "user", "content": "We sailed yesterday.", "occurred_at": "2023-05-10T00:20:00+05:30"}
        late = {"role": "user", "content": "We ate.", "occurred_at": "2023-05-09T23:59:59.999Z"}
        await client.append(conversation, said, late, "now and here")
        await elsewhere.run_jobs()
        turns = await client.history(conversation)
        assert [turn["occurred_at"] for turn in turns[:2]] == ["2023-05-09T18:50:00.000Z", "2023-05-09T23:59:59.999Z"]
        hits = await client.recall(conversation, "sailed yesterday", mode="text", k=1)
        assert [(date["first_day"], date["last_day"]) for date in hits[0]["dates"]] == [("2023-05-08", "2023-05-08")]
        for day, found in (("8 May", {"We sailed yesterday."}), ("9 May", {"We sailed yesterday.", "We ate."})):
            hits = await client.recall(conversation, f"on {day} 2023", mode="text", explain=True)
            assert found <= {hit["text"] for hit in hits}, day
        filters: dict[str, Any] = {"occurred_after": "2023-05-09T18:50:00Z", "occurred_before": "2023-05-10T00:00:00Z"}
        hits = await client.recall(conversation, "anything", filters=filters)
        assert [hit["text"] for hit in hits] == ["We ate."]


async def test_what_is_written_now_is_now_and_its_hash_holds(elsewhere: Service, service: Service) -> None:
    before = datetime.now(UTC)
    async with await elsewhere.new_tenant() as client:
        conversation = await client.conversation(ttl_s=3600)
        await client.append(conversation, "now and here", "it was yesterday")
        fork = (await client.post(f"/v1/conversations/{conversation}/fork", json={})).json()
        shown = (await client.get(f"/v1/conversations/{conversation}")).json()
        expires_at = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
        key = await client.post("/v1/admin/keys", json={"name": "short", "expires_at": expires_at})
        assert key.json()["state"] == "valid"
        for value in (shown["created_at"], shown["active_at"], (await client.history(fork["id"]))[0]["occurred_at"]):
            assert abs(datetime.fromisoformat(value) - before) < timedelta(minutes=1)
        gap = datetime.fromisoformat(shown["expires_at"]) - datetime.fromisoformat(shown["updated_at"])
        assert gap == timedelta(hours=1)
        # and holds for one that is somewhere else
        async with service.client(client.key) as home:
            for one in (conversation, fork["id"]):
                for reader in (client, home):
                    assert (await reader.get(f"/v1/conversations/{one}/verify")).json()["valid"]
        assert await faults(elsewhere, client) == []
