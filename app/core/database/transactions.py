"""Transactions in Postgres, always of one tenant.

Hides the pool, the roles and the driver's errors. Invariants: a tenant transaction sets its tenant in the same message
as BEGIN, so row-level security is on before the first statement. A lost server, a full pool or a timeout become
`Unavailable`, a deadlock becomes `Busy`. Code that calls providers can check that no transaction is open
(`refuse_in_transaction`).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar, cast

import asyncpg
import numpy as np
import numpy.typing as npt
from pgvector.asyncpg import register_vector

from app.core.database.connections import CONNECTION_ERRORS, connect, raise_translated, unavailable
from app.core.errors import Unavailable
from app.core.ids import TenantId
from app.core.tracing.call_record import current_call

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

APP_ROLE = "turnkeep_app"
OPS_ROLE = "turnkeep_ops"
SEARCH_ROLE = "turnkeep_search"

_PING_TIMEOUT_S = 2.0
_CACHED_STATEMENTS = 100

FloatVector: TypeAlias = npt.NDArray[np.float32]
RowT = TypeVar("RowT")

END_OF_A_TRANSACTION = "end of a transaction"
"""The name of the task that commits a transaction which has changed nothing, and that returns any connection."""

_MAX_STATEMENTS = 50_000
"""A connection that has run as many is replaced: its process in Postgres caches more and more."""

_Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
_Pooled: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"


class PoolUse(NamedTuple):
    """The connections of a pool: how many there may be, are open and are used, and how many callers wait for one."""

    size: int
    open: int
    used: int
    waiting: int


class Transaction:
    """An open transaction. `tenant_id` is the tenant of row-level security; None for the ops role."""

    __slots__ = ("_connection", "after_commit", "at_commit", "node_settings", "statements", "tenant_id")

    def __init__(
        self, connection: _Pooled, tenant_id: TenantId | None, *, node_settings: Mapping[str, str] | None = None
    ) -> None:
        self._connection = connection
        self.tenant_id = tenant_id
        self.node_settings = node_settings
        """Settings that only the session on the coordinator of a Citus has; None on a single server."""
        self.statements = 0
        """The number of statements so far, without BEGIN and its like."""
        self.after_commit: list[Callable[[], None]] = []
        """Callbacks that run at once when the transaction is durable; they must not fail.

        Not called after a rollback.
        """
        self.at_commit: list[str | Callable[[], str]] = []
        """Statements without arguments that are sent in one message with the commit, and fail it if they fail.

        They take no round trip of their own. A function is called for its statement when the transaction commits.
        """

    @property
    def is_distributed(self) -> bool:
        """Whether the tables may be distributed over the nodes of Citus, which cannot run every statement."""
        return self.node_settings is not None

    async def set_on_nodes(self) -> None:
        """Set until the transaction ends what a session on a single server is set to, if there are several nodes."""
        for name, value in (self.node_settings or {}).items():
            await self.execute(f"set local {name} = '{value}'")

    async def fetch(self, sql: str, *args: object) -> "list[asyncpg.Record]":
        """Return all rows of one statement."""
        self.statements += 1
        return await self._connection.fetch(sql, *args)

    async def fetchrow(self, sql: str, *args: object) -> "asyncpg.Record | None":
        """Return the first row of one statement, or None."""
        self.statements += 1
        return await self._connection.fetchrow(sql, *args)

    async def execute(self, sql: str, *args: object) -> int:
        """Run one statement; return the number of affected rows."""
        self.statements += 1
        status = await self._connection.execute(sql, *args)
        count = status.rsplit(" ", 1)[-1]
        return int(count) if count.isdigit() else 0


def row_as(row_type: Callable[..., RowT], record: asyncpg.Record | Mapping[str, object]) -> RowT:
    """Return a dataclass or named tuple whose fields are the columns of the same names; other columns are left out."""
    return cast("RowT", _reader_of(row_type)(record))


def field_names(row_type: Callable[..., object]) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass or named tuple, in their order."""
    return cast("tuple[str, ...]", vars(row_type)["__match_args__"])


@cache
def _reader_of(row_type: Callable[..., object]) -> Callable[[asyncpg.Record | Mapping[str, object]], object]:
    # as fast as reading the values by position; passing them as keyword arguments takes three times as long
    values = cast("Callable[[object], Iterable[object]]", itemgetter(*field_names(row_type)))
    make = cast("Callable[[Iterable[object]], object] | None", getattr(row_type, "_make", None))
    return (lambda record: row_type(*values(record))) if make is None else (lambda record: make(values(record)))


class DatabaseIdentity(NamedTuple):
    """What a database has in common with its copies on standbys, and with no other one: its cluster and its number."""

    cluster: int
    database: int


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Connection settings of one pool. `role` is set by every connection if the URL's own role has more rights.

    `through_pooler`: a pooler such as PgBouncer is between the process and Postgres, and may give each transaction
    another connection. Then role and settings are set in each transaction, and no prepared statement is kept.
    `standby_of`: the database that the URL must lead to a standby of; another one is refused.
    """

    url: str
    size: int
    timeout_s: float
    role: str | None = None
    name: str = "turnkeep"
    application: str = "turnkeep"
    server_settings: Mapping[str, str] = field(default_factory=dict[str, str])
    through_pooler: bool = False
    standby_of: "DatabaseIdentity | None" = None

    @property
    def session_settings(self) -> dict[str, str]:
        """Return what each session is set to, or each transaction behind a pooler."""
        timeout_ms = str(int(self.timeout_s * 1000))
        settings = {"statement_timeout": timeout_ms, "idle_in_transaction_session_timeout": timeout_ms}
        settings |= self.server_settings
        return settings if self.role is None else {"role": self.role} | settings


async def _prepare_connection(connection: Connection) -> bool:
    """Prepare a new connection; return whether the database is one of Citus."""
    rows = await connection.fetch(
        "select e.extname, n.nspname from pg_extension e join pg_namespace n on n.oid = e.extnamespace"
        " where e.extname in ('citus', 'vector')"
    )
    schemas = {row["extname"]: row["nspname"] for row in rows}
    if "vector" in schemas:
        await register_vector(connection, schema=schemas["vector"])
    return "citus" in schemas


async def _identify(connection: "Connection | _Pooled") -> DatabaseIdentity:
    row = await connection.fetchrow(
        "select (select cluster from pg_control_system() as control (version, catalog, cluster)) as cluster,"
        " (select oid::bigint from pg_database where datname = current_database()) as database"
    )
    return DatabaseIdentity(0, 0) if row is None else row_as(DatabaseIdentity, row)


class Database:
    """A connection pool of one role."""

    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        self._pool: _Pool | None = None
        self._waiting = 0
        self._ending: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._inside: ContextVar[bool] = ContextVar(f"inside_transaction_{options.name}", default=False)
        settings = options.session_settings if options.through_pooler else {}
        self._settings = "".join(f"; set local {name} = '{value}'" for name, value in settings.items())
        self._node_settings: Mapping[str, str] | None = None

    async def open(self) -> None:
        """Connect. Raises Unavailable if the server does not answer."""
        try:
            pool = await asyncpg.create_pool(
                connect=self._connect,
                reset=_reset_nothing,
                min_size=1,
                max_size=self._options.size,
                max_queries=_MAX_STATEMENTS,
            )
        except (*CONNECTION_ERRORS, TimeoutError) as error:
            raise unavailable() from error
        self._pool = pool

    async def reopen(self) -> None:
        """Connect again, so that a URL with several servers is searched again. Work that runs keeps its connection.

        Raises Unavailable if no server answers; the connections that are open are kept then.
        """
        old = self._pool
        await self.open()
        if old is not None:
            self._closing.add(task := asyncio.create_task(self._close(old)))
            task.add_done_callback(self._closing.discard)

    async def _connect(self, *_: object, **_options: object) -> Connection:
        options = self._options
        connection = await connect(
            options.url,
            timeout_s=options.timeout_s,
            command_timeout=options.timeout_s + 1,
            server_settings={"application_name": options.application}
            | ({} if options.through_pooler else options.session_settings),
            statement_cache_size=0 if options.through_pooler else _CACHED_STATEMENTS,
            to_standby=options.standby_of is not None,
            # a search with the maximum number of words is still prepared once
            max_cacheable_statement_size=32 * 1024,
        )
        try:
            # one transaction: behind a pooler, the next one may get another connection
            async with connection.transaction():
                if await _prepare_connection(connection):
                    self._node_settings = options.server_settings
                if options.standby_of is not None and await _identify(connection) != options.standby_of:
                    raise ConnectionError("the server has a copy of another database")  # noqa: TRY301
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def close(self) -> None:
        """Wait for running work, then disconnect."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await self._close(pool)
        await asyncio.gather(*self._closing)

    async def _close(self, pool: _Pool) -> None:
        try:
            await asyncio.wait_for(pool.close(), timeout=self._options.timeout_s)
        except TimeoutError:
            pool.terminate()

    @property
    def name(self) -> str:
        """Return the name of the pool."""
        return self._options.name

    @property
    def use(self) -> PoolUse:
        """Return how many connections are open and used, and how many callers wait for one."""
        if (pool := self._pool) is None:
            return PoolUse(0, 0, 0, 0)
        size = pool.get_size()
        return PoolUse(pool.get_max_size(), size, size - pool.get_idle_size(), self._waiting)

    def refuse_in_transaction(self) -> None:
        """Raise if this task has an open transaction: providers are never called during a transaction."""
        if self._inside.get():
            raise RuntimeError("a provider was called inside a database transaction")

    async def ping(self) -> None:
        """Raise Unavailable unless the server answers within two seconds."""
        try:
            async with asyncio.timeout(_PING_TIMEOUT_S), self.across_tenants() as tx:
                await tx.fetchrow("select 1")
        except TimeoutError as error:
            raise unavailable() from error

    async def identify(self) -> DatabaseIdentity:
        """Return what this database has in common with its standbys. Raises Unavailable."""
        async with self._connected() as connection:
            return await _identify(connection)

    async def fetch_status(self, sql: str, *args: object) -> asyncpg.Record:
        """Return the row of a statement about the server, which reads no table: one round trip, no transaction.

        Raises Unavailable, also if the server refuses the statement.
        """
        async with self._connected() as connection:
            row = await connection.fetchrow(sql, *args)
        if row is None:
            raise unavailable()
        return row

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[_Pooled]:
        """Give a connection of the pool, in no transaction. Its errors become Unavailable."""
        if (pool := self._pool) is None:
            raise unavailable()
        try:
            connection = await self._acquire(pool)
            try:
                yield connection
            finally:
                await pool.release(connection)
        except (*CONNECTION_ERRORS, TimeoutError, asyncpg.PostgresError) as error:
            raise unavailable() from error

    async def _acquire(self, pool: _Pool) -> _Pooled:
        self._waiting += 1
        try:
            return await pool.acquire(timeout=self._options.timeout_s)
        finally:
            self._waiting -= 1

    async def require_role_without_bypass(self) -> None:
        """Raise Unavailable if this role can bypass row-level security: tenants would not be isolated."""
        async with self.across_tenants() as tx:
            row = await tx.fetchrow(
                "select rolsuper or rolbypassrls as unbound from pg_roles where rolname = current_user"
            )
        if row is None or row["unbound"]:
            raise Unavailable(
                "postgres_unusable", "The database role can bypass row-level security; connect as a role that cannot."
            )

    def transaction(
        self,
        tenant_id: TenantId,
        *,
        read_only: bool = False,
        repeatable_read: bool = False,
        lock_wait_ms: int | None = None,
    ) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction of one tenant; it is durable when the block has ended.

        With `repeatable_read`, all its statements read one snapshot. With `lock_wait_ms`, a statement that waits longer
        for a lock raises Busy.
        """
        mode = f"{' isolation level repeatable read' if repeatable_read else ''}{' read only' if read_only else ''}"
        # a UUID's text is safe in SQL; a function call instead of SET LOCAL would not reach Citus workers
        begin = f"begin{mode}; set local app.tenant = '{tenant_id}'"
        if lock_wait_ms is not None:
            begin += f"; set local lock_timeout = {int(lock_wait_ms)}"
        return self._run(begin, tenant_id, is_read_only=read_only)

    def across_tenants(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction of no tenant; only the ops role sees rows in it."""
        return self._run("begin", None)

    def snapshot(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a read-only transaction of no tenant whose statements all read one snapshot."""
        return self._run("begin isolation level repeatable read read only", None, is_read_only=True)

    @asynccontextmanager
    async def _run(
        self, begin: str, tenant_id: TenantId | None, *, is_read_only: bool = False
    ) -> AsyncGenerator[Transaction]:
        """Commit at the end of the block, or roll back after an exception. Translates the errors of the driver."""
        if self._inside.get():
            raise RuntimeError("a transaction is open already: the outermost service owns it")
        if (pool := self._pool) is None:
            raise unavailable()
        try:
            async with self._begun(pool, begin, tenant_id, is_read_only=is_read_only) as tx:
                yield tx
        except Exception as error:
            if isinstance(error, asyncpg.ReadOnlySQLTransactionError) and not is_read_only:
                # another server accepts writes now, and new connections find it
                await pool.expire_connections()
                raise unavailable() from error
            raise_translated(error)
            raise
        # not inside, so that tasks that the callbacks start are not in the transaction
        for callback in tx.after_commit:
            callback()

    @asynccontextmanager
    async def _begun(
        self, pool: _Pool, begin: str, tenant_id: TenantId | None, *, is_read_only: bool
    ) -> AsyncGenerator[Transaction]:
        started = perf_counter()
        connection = await self._acquire(pool)
        tx = Transaction(connection, tenant_id, node_settings=self._node_settings)
        try:
            text = begin + self._settings
            # Citus sends the message of a `set local` to the nodes, where `begin` has been sent already
            for message in (text,) if self._node_settings is None else text.split("; "):
                await connection.execute(message)
            token = self._inside.set(True)
            try:
                yield tx
            finally:
                self._inside.reset(token)
            statements = [statement if isinstance(statement, str) else statement() for statement in tx.at_commit]
            is_read = is_read_only and not statements
            if not is_read:
                await connection.execute("; ".join((*statements, "commit")))
        except BaseException:
            await _undo(pool, connection)
            raise
        finally:
            if (call := current_call()) is not None:
                call.add_transaction(tx.statements, perf_counter() - started)
        # in a task: a caller that is cancelled now keeps what it has read or stored
        task = asyncio.create_task(_end(pool, connection, commits=is_read), name=END_OF_A_TRANSACTION)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _end(pool: _Pool, connection: _Pooled, *, commits: bool) -> None:
    """Return a connection. `commits`: commit first what has changed nothing."""
    try:
        if commits:
            await connection.execute("commit")
    except Exception:  # noqa: BLE001 - what was read is answered already, and the connection is not used again
        _terminate(connection)
    finally:
        await _release(pool, connection)


async def _undo(pool: _Pool, connection: _Pooled) -> None:
    """Roll back and return a connection. One that cannot is closed; the server then rolls back."""
    try:
        await connection.execute("rollback")
    except Exception:  # noqa: BLE001 - the error of the block is the one that counts
        _terminate(connection)
    except BaseException:
        _terminate(connection)
        raise
    finally:
        await _release(pool, connection)


async def _release(pool: _Pool, connection: _Pooled) -> None:
    with suppress(asyncpg.InternalClientError):  # one that is lost meanwhile has left its pool already
        await pool.release(connection)


def _terminate(connection: _Pooled) -> None:
    with suppress(asyncpg.InterfaceError):  # a lost connection has left its pool, and refuses every call
        connection.terminate()


async def _reset_nothing(connection: object) -> None:
    """Leave a returned connection as it is: it is in no transaction, and no session has settings of its own."""
    del connection


def read_transaction(
    database: Database, ops: Database, tenant_id: TenantId | None
) -> AbstractAsyncContextManager[Transaction]:
    """Open a read-only transaction of a tenant, or, for None, one of the ops role across all tenants."""
    return ops.across_tenants() if tenant_id is None else database.transaction(tenant_id, read_only=True)
