"""Connections of a pool that are lost while a task uses them: the task's own error counts."""

import asyncio
import gc
from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from app.core.database.transactions import Database, PoolOptions
from app.core.errors import AppError
from app.core.ids import TenantId
from tests.support.postgres import TestDatabase

TENANT = TenantId(uuid4())


@pytest.fixture
async def pool(database: TestDatabase) -> AsyncIterator[Database]:
    opened = Database(PoolOptions(database.app, 2, timeout_s=5))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def superuser(database: TestDatabase) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(database.superuser)
    yield connection
    await connection.close()


async def test_a_task_that_goes_on_after_errors_ends_when_it_is_cancelled_and_its_connection_lost(
    pool: Database, superuser: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    for _ in range(10):
        used: asyncio.Queue[int] = asyncio.Queue()

        async def go_on(used: asyncio.Queue[int] = used) -> None:
            while True:
                try:
                    async with pool.transaction(TENANT) as tx:
                        row = await tx.fetchrow("select pg_backend_pid() as pid")
                        assert row is not None
                        used.put_nowait(row["pid"])
                        await tx.execute("select pg_sleep(60)")
                except AppError:
                    continue

        task = asyncio.create_task(go_on())
        async with asyncio.timeout(30):
            killing = asyncio.create_task(superuser.execute("select pg_terminate_backend($1)", await used.get()))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task, killing})
        assert task.cancelled()
    assert pool.use.used == 0


async def test_a_task_that_is_cancelled_after_its_connection_was_lost_stays_cancelled(
    pool: Database, superuser: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    used: asyncio.Queue[int] = asyncio.Queue()

    async def wait() -> None:
        async with pool.transaction(TENANT) as tx:
            row = await tx.fetchrow("select pg_backend_pid() as pid")
            assert row is not None
            used.put_nowait(row["pid"])
            await asyncio.sleep(60)

    task = asyncio.create_task(wait())
    await superuser.execute("select pg_terminate_backend($1)", await used.get())
    await asyncio.sleep(0.2)  # until the driver has seen the end
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_a_read_whose_connection_is_lost_before_its_commit_is_answered_in_silence(
    pool: Database, superuser: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    for _ in range(5):
        async with pool.transaction(TENANT, read_only=True) as tx:
            row = await tx.fetchrow("select pg_backend_pid() as pid")
            assert row is not None
            await superuser.execute("select pg_terminate_backend($1)", row["pid"])
            await asyncio.sleep(0.1)
    await asyncio.sleep(0.1)
    asyncio.get_running_loop().set_exception_handler(None)
    assert reported == []
    assert pool.use.used == 0


async def test_a_connection_that_is_lost_while_it_is_returned_is_no_error(pool: Database) -> None:
    reported: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    async with pool.transaction(TENANT) as tx:
        row = await tx.fetchrow("select pg_backend_pid() as pid")
        assert row is not None
        used = next(
            found
            for found in gc.get_objects()
            if type(found) is asyncpg.Connection and not found.is_closed() and found.get_server_pid() == row["pid"]
        )
    loop.call_soon(used.terminate)  # runs after the pool has seen an open connection, and before it takes it back
    await asyncio.sleep(0.1)
    gc.collect()
    loop.set_exception_handler(None)
    assert used.is_closed()
    assert reported == []
    assert pool.use.used == 0
