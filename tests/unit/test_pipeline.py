"""Statements that are sent without waiting: whose answers are taken out, and what happens when one is refused."""

import asyncio
import ssl
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from struct import pack
from typing import Any, cast
from uuid import UUID, uuid4

import asyncpg
import pytest
import uvloop

from app.core.database.connections import connect
from app.core.database.pipeline import PipelinedConnection, _AnswerFilter
from app.core.database.transactions import Database, PoolOptions
from app.core.errors import Unavailable
from app.core.ids import TenantId
from tests.support.api import Client, Service
from tests.support.byte_search import memory_with
from tests.support.certificates import Authority
from tests.support.postgres import TestDatabase
from tests.support.proxy import Proxy, Target
from tests.support.statements import counted_statements, first_words

_TENANT = "select current_setting('app.tenant', true)"


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + pack("!I", len(body) + 4) + body


BEGIN_ANSWER = message(b"C", b"BEGIN\0") + message(b"C", b"SET\0") + message(b"Z", b"T")
COMMIT_ANSWER = message(b"C", b"COMMIT\0") + message(b"Z", b"I")
SETTING = message(b"S", b"TimeZone\0UTC\0")
ROW = message(b"2") + message(b"D", b"Z" * 40) + message(b"C", b"SELECT 1\0") + message(b"Z", b"T")


class _Side:
    """The driver, and the transport."""

    def __init__(self) -> None:
        self.received = b""
        self.is_aborted = False

    def data_received(self, data: bytes) -> None:
        self.received += data

    def abort(self) -> None:
        self.is_aborted = True


def filtered(side: _Side, data: bytes, *, expected: int, size: int) -> _AnswerFilter:
    """Let a filter read some bytes in parts of a size."""
    answers = _AnswerFilter(cast("Any", side), cast("Any", side))
    answers.expected = expected
    for at in range(0, len(data), size):
        answers.data_received(data[at : at + size])
    return answers


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 26, 1000])
def test_the_driver_reads_only_the_answers_to_its_own_statements(size: int) -> None:
    for before, expected in (
        (b"", 0),
        (BEGIN_ANSWER, 1),
        (COMMIT_ANSWER + BEGIN_ANSWER, 2),
        (COMMIT_ANSWER + BEGIN_ANSWER + COMMIT_ANSWER + BEGIN_ANSWER, 4),
    ):
        side = _Side()
        answers = filtered(side, before + ROW + SETTING + ROW, expected=expected, size=size)
        assert (side.received, answers.expected, side.is_aborted) == (ROW + SETTING + ROW, 0, False)


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_settings_and_notices_among_other_answers_reach_the_driver(size: int) -> None:
    side, notice = _Side(), message(b"N", b"SWARNING\0M?\0\0")
    filtered(side, SETTING + BEGIN_ANSWER[:11] + notice + BEGIN_ANSWER[11:] + ROW, expected=1, size=size)
    assert side.received == SETTING + notice + ROW


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_error_in_such_an_answer_ends_the_connection_and_the_driver_reads_nothing_more(size: int) -> None:
    side = _Side()
    error = message(b"E", b"SERROR\0C22023\0Ma secret value\0\0")
    filtered(side, error + message(b"Z", b"I") + ROW + ROW, expected=1, size=size)
    assert (side.received, side.is_aborted) == (b"", True)


@pytest.mark.parametrize("size", [1, 4, 5, 6, 7, 1000])
def test_nothing_can_be_sent_before_the_driver_has_its_whole_answer(size: int) -> None:
    side, notice = _Side(), message(b"N", b"SWARNING\0M?\0\0")
    answers = _AnswerFilter(cast("Any", side), cast("Any", side))
    assert answers.is_between_answers
    data = ROW + ROW
    for at in range(0, len(data), size):
        answers.data_received(data[at : at + size])
        read = min(at + size, len(data))
        assert answers.is_between_answers == (read in {len(ROW), len(data)})
    # a setting or notice may have arrived in part: the next answer of the driver decides
    answers.data_received(notice[:9])
    assert not answers.is_between_answers
    answers.data_received(notice[9:] + ROW)
    assert answers.is_between_answers
    assert side.received == data + notice + ROW


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    """What a server shows that has TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority(tmp_path).issue("server"))
    return context


@asynccontextmanager
async def reached(url: str, how: str, tls: ssl.SSLContext) -> AsyncGenerator[str]:
    """The URL of a server over its own socket, or over TCP, with or without TLS."""
    if how == "socket":
        yield url
        return
    proxy = Proxy(Target.of(url), tls=tls if how == "TLS" else None)
    await proxy.open()
    yield f"{proxy.url(url)}?sslmode={'require' if how == 'TLS' else 'prefer'}"
    await proxy.cut()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("how", ["socket", "TCP without TLS", "TLS"])
def test_sent_statements_take_effect_before_the_next_one_of_the_driver(
    database: TestDatabase, loop: Any, how: str, tls: ssl.SSLContext
) -> None:
    async def run() -> None:
        async with reached(database.app, how, tls) as url:
            await check(await connect(url))

    async def check(connection: PipelinedConnection) -> None:
        is_tls = await connection.fetchval("select 1") and connection._transport.get_extra_info("ssl_object")  # noqa: SLF001
        assert (is_tls is not None) is (how == "TLS")
        try:
            for name in ("a", "b", "c"):
                connection.send(f"begin read only; set local app.tenant = '{name}'")
                assert await connection.fetchval(_TENANT) == name
                # a statement that is not prepared yet takes several messages
                assert await connection.fetchval(f"select '{name}'") == name
                connection.send("commit")
                connection.send("begin")
                connection.send("commit")
            assert await connection.fetchval(_TENANT) == ""
        finally:
            await connection.close()
        with pytest.raises(asyncpg.InterfaceError):
            connection.send("commit")

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("refused", ["begin; set local statement_timeout = 'x'", "no statement", "select 1 / 0"])
async def test_a_refused_statement_closes_the_connection(database: TestDatabase, refused: str) -> None:
    connection = await connect(database.superuser)
    connection.send(refused)
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
        await connection.execute("select 1")
    assert connection.is_closed()


async def test_nothing_is_stored_after_a_setting_that_is_refused_with_begin(database: TestDatabase) -> None:
    connection, name = await connect(database.superuser), f"never_{uuid4().hex}"
    connection.send("begin; set local statement_timeout = 'x'")
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
        await connection.execute(f"create table {name} (n int)")
    other = await connect(database.superuser)
    assert await other.fetchval("select to_regclass($1)", name) is None
    await other.close()


async def test_a_write_of_a_tenant_without_its_begin_stores_nothing(service: Service, client: Client) -> None:
    """The worst case: the server refuses BEGIN alone, and runs the statement after it."""
    conversation = await client.conversation()
    connection = await connect(service.database.app)
    connection.send("begin isolation level nonsense")
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await connection.execute("update conversations set title = 'x'")
    assert (await client.get(f"/v1/conversations/{conversation}")).json()["title"] is None


async def test_a_write_of_the_ops_role_waits_for_its_begin(service: Service) -> None:
    async with service.container.ops.across_tenants() as tx:
        await tx.fetchrow("select 1")
    with counted_statements() as sent:
        async with service.container.ops.across_tenants() as tx:
            await tx.fetchrow("select 1")
    assert first_words(sent) == ["begin", "select", "commit"]


def pool_of(url: str, *, size: int = 1) -> Database:
    return Database(PoolOptions(url, size, 5.0))


async def require_own_tenant(pool: Database) -> None:
    """A new transaction has its own tenant."""
    tenant = uuid4()
    async with pool.transaction(TenantId(tenant), read_only=True) as tx:
        row = await tx.fetchrow(_TENANT)
        assert row is not None
        assert row[0] == str(tenant)


async def test_each_transaction_of_a_connection_has_its_own_tenant(database: TestDatabase) -> None:
    pool = pool_of(database.app, size=2)
    await pool.open()

    async def read(tenant: UUID) -> None:
        async with pool.transaction(TenantId(tenant), read_only=True) as tx:
            for _ in range(3):
                row = await tx.fetchrow(_TENANT)
                assert row is not None
                assert row[0] == str(tenant)
                await asyncio.sleep(0)

    await asyncio.gather(*(read(uuid4()) for _ in range(60)))
    row = await pool.fetch_status(_TENANT)
    assert row[0] == ""
    await pool.close()


@pytest.mark.parametrize("read_only", [True, False])
async def test_an_idle_connection_keeps_nothing_that_was_read(
    database: TestDatabase, monkeypatch: pytest.MonkeyPatch, *, read_only: bool
) -> None:
    sent: list[bytes] = []
    receive = _AnswerFilter.data_received

    def note(answers: _AnswerFilter, data: bytes) -> None:
        sent.append(data)
        receive(answers, data)

    pool = pool_of(database.app)
    await pool.open()
    monkeypatch.setattr(_AnswerFilter, "data_received", note)
    async with pool.transaction(TenantId(uuid4()), read_only=read_only) as tx:
        await tx.fetchrow("select repeat('quokka', 3)")
    assert any(b"quokkaquokka" in data for data in sent)
    assert memory_with(pool, "quokkaquokka") == []
    # the driver also keeps the part before the last one, where the garbage collector does not see it
    assert max(sys.getrefcount(sent[place]) for place in range(len(sent))) == 2
    assert pool.use.open == 1
    await pool.close()


async def test_a_read_only_transaction_has_ended_when_the_next_one_begins(database: TestDatabase) -> None:
    pool = pool_of(database.app)
    await pool.open()
    seen: list[tuple[int, object]] = []
    for number in range(3):
        async with pool.transaction(TenantId(uuid4()), read_only=True) as tx:
            row = await tx.fetchrow("select pg_backend_pid(), pg_current_snapshot()::text, now()")
            assert row is not None
            seen.append((row[0], row[2]))
            if number == 0:  # the failed statement ends the transaction: its COMMIT rolls it back
                with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
                    await tx.execute("create temp table nothing (n int)")
    assert len({pid for pid, _ in seen}) == 1
    assert len({now for _, now in seen}) == 3
    watcher = await connect(database.superuser)
    await pool.fetch_status("select 1")  # answered after the last COMMIT
    assert await watcher.fetchval("select state from pg_stat_activity where pid = $1", seen[0][0]) == "idle"
    await watcher.close()
    await pool.close()


async def test_a_server_that_ends_the_session_makes_the_next_transaction_unavailable_once(
    database: TestDatabase,
) -> None:
    pool = pool_of(database.app)
    await pool.open()
    watcher = await connect(database.superuser)

    async def lose(pid: object, *, first: bool) -> None:
        async with pool.transaction(TenantId(uuid4())) as tx:
            if not first:
                await tx.fetchrow("select 1")
            await watcher.fetchval("select pg_terminate_backend($1, 5000)", pid)
            await tx.fetchrow("select 1")

    for first in (True, False):
        async with pool.transaction(TenantId(uuid4()), read_only=True) as tx:
            row = await tx.fetchrow("select pg_backend_pid()")
            assert row is not None
        with pytest.raises(Unavailable):
            await lose(row[0], first=first)
        async with pool.transaction(TenantId(uuid4())) as tx:
            assert await tx.fetchrow("select 1") is not None
    await watcher.close()
    await pool.close()


async def test_a_cancelled_transaction_leaves_a_connection_that_can_be_used(database: TestDatabase) -> None:
    pool = pool_of(database.app)
    await pool.open()

    async def sleep(tenant: UUID, statement: str) -> None:
        async with pool.transaction(TenantId(tenant), read_only=True) as tx:
            await tx.fetch(statement)

    for delay_s in (0.0, 0.0001, 0.001, 0.01):
        for statement in ("select pg_sleep(5)", "select 1"):
            task = asyncio.create_task(sleep(uuid4(), statement))
            await asyncio.sleep(delay_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await require_own_tenant(pool)
    await pool.close()


async def test_begin_goes_with_the_first_statement_and_the_end_of_a_read_soon(database: TestDatabase) -> None:
    pool = pool_of(database.app)
    await pool.open()
    await require_own_tenant(pool)
    await pool.fetch_status("select 1")
    pooled = pool._pool._idle[-1] if pool._pool else None  # noqa: SLF001
    assert pooled is not None
    written: list[bytes] = []
    transport = pooled.connection._filter.transport  # noqa: SLF001
    below = transport.below

    class Recorded:
        def write(self, data: Any) -> None:
            written.append(bytes(data))
            below.write(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(below, name)

    transport.below = cast("Any", Recorded())
    await require_own_tenant(pool)
    first = written[0]
    assert first.startswith(b"Q")
    assert b"begin read only" in first
    assert b"__asyncpg_stmt_" in first
    assert written[1:] == []  # the end waits until what is ready has run
    await asyncio.sleep(0.01)
    assert written[1:] == [message(b"Q", b"commit\0")]
    transport.below = below
    await pool.close()


async def test_a_statement_that_was_interrupted_in_a_read_does_not_disturb_the_next_one(database: TestDatabase) -> None:
    pool = pool_of(database.app)
    await pool.open()

    async def interrupted() -> None:
        async with pool.transaction(TenantId(uuid4()), read_only=True) as tx:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.005):
                    await tx.fetchrow("select pg_sleep(1)")

    for _ in range(10):
        await interrupted()
        await require_own_tenant(pool)
    await pool.close()


async def test_begin_is_waited_for_if_the_server_has_said_something_since_its_last_answer(
    database: TestDatabase,
) -> None:
    pool = pool_of(database.app)
    await pool.open()
    await require_own_tenant(pool)
    for said, begin in (("", "(begin)"), ("a part of a notice", "begin")):
        pooled = pool._pool._idle[-1] if pool._pool else None  # noqa: SLF001
        assert pooled is not None
        await pool.fetch_status("select 1")  # the answer to the last COMMIT has been read
        if said:
            pooled.connection._filter._last_bytes = said.encode()[-6:]  # noqa: SLF001
        with counted_statements() as sent:
            await require_own_tenant(pool)
        assert first_words(sent) == [begin, "select", "(commit)"]
    await pool.close()


async def test_an_empty_transaction_begins_and_ends(database: TestDatabase) -> None:
    pool = pool_of(database.app)
    await pool.open()
    for read_only in (True, False):
        async with pool.transaction(TenantId(uuid4()), read_only=read_only):
            pass
    row = await pool.fetch_status(_TENANT)
    assert row[0] == ""
    await pool.close()
