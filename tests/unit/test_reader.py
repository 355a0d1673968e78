"""Positions of the primary: which calls share a statement."""

import asyncio
from typing import Any, cast

import pytest

from app.core.database.reader import WalPosition, WalPositions
from app.core.database.transactions import Database
from app.core.errors import Unavailable


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
