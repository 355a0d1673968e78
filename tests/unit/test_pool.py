"""The pool of connections: limits, waiting, and what happens to a connection that cannot be used again."""

import asyncio
from typing import Any, cast

import asyncpg
import pytest

from app.core.database.pool import Connection, ConnectionPool


class _Connection:
    can_send = False

    def __init__(self) -> None:
        self.closed = False
        self.in_transaction = False

    def is_closed(self) -> bool:
        return self.closed

    def is_in_transaction(self) -> bool:
        return self.in_transaction

    def terminate(self) -> None:
        self.closed = True

    async def close(self) -> None:
        self.closed = True


class _Server:
    def __init__(self) -> None:
        self.made: list[_Connection] = []
        self.refuses = False

    async def connect(self) -> Connection:
        await asyncio.sleep(0)
        if self.refuses:
            raise OSError
        self.made.append(_Connection())
        return cast("Connection", self.made[-1])

    def pool(self, size: int = 2, timeout_s: float = 5.0) -> ConnectionPool:
        return ConnectionPool(self.connect, size=size, timeout_s=timeout_s)


async def test_a_returned_connection_is_used_again_and_the_last_one_first() -> None:
    server = _Server()
    pool = server.pool()
    first, second = await pool.acquire(), await pool.acquire()
    pool.release(first)
    pool.release(second)
    assert await pool.acquire() is second
    assert await pool.acquire() is first
    assert len(server.made) == 2


async def test_callers_wait_for_a_connection_in_their_order() -> None:
    pool = _Server().pool(size=1)
    used = await pool.acquire()
    order: list[int] = []

    async def work(number: int) -> None:
        pooled = await pool.acquire()
        order.append(number)
        pool.release(pooled)

    tasks = [asyncio.create_task(work(number)) for number in range(3)]
    await asyncio.sleep(0)
    pool.release(used)
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]


async def test_a_caller_that_waits_too_long_gets_a_timeout_and_leaves_the_queue() -> None:
    pool = _Server().pool(size=1, timeout_s=0.01)
    used = await pool.acquire()
    with pytest.raises(TimeoutError):
        await pool.acquire()
    pool.release(used)
    assert await pool.acquire() is used


async def test_a_connection_given_to_a_cancelled_caller_is_not_lost() -> None:
    pool = _Server().pool(size=1)
    used = await pool.acquire()
    waiting = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    pool.release(used)
    waiting.cancel()  # it has been given the connection, and has not run since
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await pool.acquire() is used


@pytest.mark.parametrize("state", ["closed", "in_transaction"])
async def test_a_connection_that_is_closed_or_in_a_transaction_is_replaced(state: str) -> None:
    server = _Server()
    pool = server.pool(size=1)
    used = await pool.acquire()
    waiting = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    setattr(server.made[0], state, True)
    pool.release(used)
    other = await waiting
    assert other is not used
    assert server.made[0].closed
    pool.release(other)
    server.made[1].closed = True  # by the server, while idle
    assert (await pool.acquire()).connection is cast("Any", server.made[2])


async def test_a_failed_connect_leaves_room_for_the_next_caller() -> None:
    server = _Server()
    pool = server.pool(size=1)
    server.refuses = True
    for _ in range(3):
        with pytest.raises(OSError):  # noqa: PT011 - the driver's own
            await pool.acquire()
    server.refuses = False
    await pool.acquire()


async def test_closing_waits_for_used_connections_and_refuses_callers() -> None:
    server = _Server()
    pool = server.pool()
    used, idle = await pool.acquire(), await pool.acquire()
    pool.release(idle)
    closing = asyncio.create_task(pool.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    with pytest.raises(asyncpg.InterfaceError):
        await pool.acquire()
    pool.release(used)
    await closing
    assert all(one.closed for one in server.made)
