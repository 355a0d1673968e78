"""Positions of the primary: which calls share a statement. And what a read does with each answer of a standby."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import asyncpg
import pytest

from app.core.database.reader import DatabaseReader, Fallback, WalPosition, WalPositions
from app.core.database.transactions import Database, Transaction
from app.core.errors import Busy, NotFound, Unavailable
from app.core.ids import TenantId, new_uuid


class FakePrimary:
    """Answers each statement when it is let go, with the number of the statement as the position."""

    def __init__(self) -> None:
        self.statements = 0
        self.waiting: list[asyncio.Future[None]] = []

    async def fetch_status(self, sql: str) -> Any:
        assert "pg_current_wal_flush_lsn" in sql
        self.statements += 1
        number = self.statements
        self.waiting.append(asyncio.get_running_loop().create_future())
        await self.waiting[-1]
        return {"timeline": 1, "lsn": number}


async def turn_over() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_reads_that_begin_while_the_primary_is_asked_share_the_next_answer_and_not_that_one() -> None:
    primary = FakePrimary()
    positions = WalPositions(cast("Database", primary))
    first = [positions.now() for _ in range(3)]
    await turn_over()
    assert primary.statements == 1
    later = [positions.now() for _ in range(4)]
    await turn_over()
    assert primary.statements == 1, "one statement at a time"
    primary.waiting[0].set_result(None)
    await turn_over()
    assert [one.result() for one in first] == [WalPosition(1, 1)] * 3
    assert primary.statements == 2
    primary.waiting[1].set_result(None)
    assert await asyncio.gather(*later) == [WalPosition(1, 2)] * 4
    assert not first[0].cancelled()


async def test_a_failed_answer_fails_those_who_wait_for_it_and_no_others() -> None:
    primary = FakePrimary()
    positions = WalPositions(cast("Database", primary))
    first = positions.now()
    await turn_over()
    second = positions.now()
    primary.waiting[0].set_exception(Unavailable("database_unavailable", "gone"))
    await turn_over()
    primary.waiting[1].set_result(None)
    with pytest.raises(Unavailable):
        await first
    assert await second == WalPosition(1, 2)


class FakeServer:
    """A primary at 2/100, or a standby that gives `answers` to the check, one after the other, then the last again."""

    def __init__(self, name: str, *answers: dict[str, Any]) -> None:
        self.name = name
        self.answers = list(answers)
        self.failure: Exception | None = None
        self.lsn: int | None = 100
        self.checks = 0

    async def fetch_status(self, _sql: str) -> Any:
        return {"timeline": 2, "lsn": self.lsn}

    async def reopen(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        pass

    async def fetchrow(self, _sql: str, lsn: int) -> Any:
        assert lsn == 100
        self.checks += 1
        return self.answers.pop(0) if self.answers[1:] else self.answers[0]

    @asynccontextmanager
    async def transaction(self, _tenant_id: TenantId, *, read_only: bool) -> AsyncIterator[Any]:
        assert read_only
        if self.failure is not None:
            raise self.failure
        yield self

    @asynccontextmanager
    async def across_tenants(self) -> AsyncIterator[Any]:
        yield self


CAUGHT_UP = {"is_standby": True, "has_replayed": True, "timeline": 2}
BEHIND = CAUGHT_UP | {"has_replayed": False}
TENANT = TenantId(new_uuid())


async def answered_by(tx: Transaction) -> str:
    return cast("FakeServer", tx).name


async def in_use(reader: DatabaseReader) -> None:
    for _ in range(1000):
        if reader.is_usable:
            return
        await asyncio.sleep(0.01)
    pytest.fail("the standby is not used")


async def opened(standby: FakeServer, **more: Any) -> DatabaseReader:
    reader = DatabaseReader(cast("Database", FakeServer("primary")), cast("Database", standby), **more)
    answers, standby.answers = standby.answers, [CAUGHT_UP]
    reader.start()
    await in_use(reader)
    standby.answers, standby.checks = answers, 0
    return reader


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (BEHIND, Fallback.LAG),
        (CAUGHT_UP | {"timeline": 1}, Fallback.TIMELINE),
        (CAUGHT_UP | {"timeline": None}, Fallback.TIMELINE),
        (CAUGHT_UP | {"has_replayed": None}, Fallback.LAG),
        (CAUGHT_UP | {"is_standby": False}, Fallback.PROMOTED),
    ],
)
async def test_a_standby_that_may_show_less_than_the_primary_is_not_read_from(
    answer: dict[str, Any], reason: Fallback
) -> None:
    standby = FakeServer("standby", answer)
    reader = await opened(standby)
    try:
        assert [await reader.read(TENANT, answered_by) for _ in range(3)] == ["primary"] * 3
        assert reader.fallbacks == {reason: 1, Fallback.SUSPENDED: 2}
        assert (reader.standby_reads, standby.checks) == (0, 1)
        standby.answers = [CAUGHT_UP]
        await in_use(reader)
        assert await reader.read(TENANT, answered_by) == "standby"
    finally:
        await reader.close()


async def test_a_read_waits_until_the_standby_has_caught_up() -> None:
    standby = FakeServer("standby", BEHIND, BEHIND, BEHIND, CAUGHT_UP)
    reader = await opened(standby, wait_s=10.0)
    assert await reader.read(TENANT, answered_by) == "standby"
    assert (reader.standby_reads, standby.checks, +reader.fallbacks) == (1, 4, {})
    await reader.close()


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Unavailable("database_unavailable", "gone"), Fallback.UNAVAILABLE),
        (Busy("resource_busy", "cancelled by the replay"), Fallback.CONFLICT),
        (asyncpg.InvalidPasswordError("no"), Fallback.UNAVAILABLE),
    ],
)
async def test_the_primary_answers_when_a_standby_fails_before_or_during_a_read(
    failure: Exception, reason: Fallback
) -> None:
    standby = FakeServer("standby", CAUGHT_UP)
    reader = await opened(standby)

    async def fail_there(tx: Transaction) -> str:
        if await answered_by(tx) == "standby":
            raise failure
        return "primary"

    assert await reader.read(TENANT, fail_there) == "primary"
    assert reader.fallbacks == {reason: 1}
    assert reader.is_usable is (reason is Fallback.CONFLICT), "a conflict is of one statement"
    await reader.close()
    again = await opened(standby)
    standby.failure = failure
    assert await again.read(TENANT, answered_by) == "primary"
    await again.close()


async def test_what_a_read_does_not_find_on_the_standby_is_not_looked_for_again() -> None:
    reader = await opened(FakeServer("standby", CAUGHT_UP))
    calls = 0

    async def missing(_tx: Transaction) -> str:
        nonlocal calls
        calls += 1
        raise NotFound("not_found", "There is no such conversation.")

    with pytest.raises(NotFound):
        await reader.read(TENANT, missing)
    assert (calls, reader.standby_reads) == (1, 1)
    await reader.close()


async def test_a_primary_without_a_position_answers_itself_and_the_standby_stays_in_use() -> None:
    standby = FakeServer("standby", CAUGHT_UP)
    reader = await opened(standby)
    cast("FakeServer", reader._primary).lsn = None  # noqa: SLF001
    assert await reader.read(TENANT, answered_by) == "primary"
    assert (reader.fallbacks, reader.is_usable) == ({Fallback.NO_POSITION: 1}, True)
    await reader.close()
