"""A repeat of a request whose commit no standby has yet: it is acknowledged once a standby has it."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import open_service
from tests.support.postgres import TestDatabase
from tests.support.replicated import ReplicatedPostgres

pytestmark = pytest.mark.slow

_PATIENCE_S = 30.0


@pytest.fixture
def postgres() -> Iterator[ReplicatedPostgres]:
    servers = ReplicatedPostgres()
    servers.start()
    yield servers
    servers.stop()


@pytest.mark.parametrize("named_by", ["Idempotency-Key", "turn id"])
async def test_a_repeat_is_acknowledged_once_a_standby_has_what_the_first_request_stored(
    postgres: ReplicatedPostgres, tmp_path: Path, named_by: str
) -> None:
    url = postgres.url
    database = TestDatabase(superuser=url, owner=url, app=url, ops=url)
    options: dict[str, Any] = {"migrate_on_start": True, "key_cache_s": 60, "database_timeout_s": 2}
    async with open_service(database, tmp_path, **options) as service:
        client = await service.new_tenant()
        path = f"/v1/conversations/{await client.conversation()}/turns"
        turn, headers = {"role": "user", "content": "tea"}, {}
        if named_by == "turn id":
            turn["id"] = "01977a44-4e8a-7e29-9b61-0d4b8a1f6c11"
        else:
            headers = {"Idempotency-Key": "once"}

        async def send() -> int:
            return (await client.post(path, json={"turns": [turn]}, headers=headers)).status_code

        postgres.lose_standby()
        assert await send() == 503
        postgres.restart_primary()  # what waited for the standby is visible now, and only here
        until = time.monotonic() + _PATIENCE_S
        while (listed := await client.get(path)).status_code != 200:
            assert time.monotonic() < until, listed.text
            await asyncio.sleep(0.1)
        assert len(listed.json()["data"]) == 1
        assert [await send() for _ in range(3)] == [503] * 3
        postgres.return_standby()
        while (status := await send()) == 503:
            assert time.monotonic() < until
            await asyncio.sleep(0.1)
        assert status in {200, 201}
        assert len((await client.get(path)).json()["data"]) == 1
