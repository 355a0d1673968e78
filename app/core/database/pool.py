"""A pool of connections to Postgres.

asyncpg's own pool starts a task whenever a connection is returned, and a timer whenever one is taken: together as much
work as a statement. Here both are list operations. Invariant: an idle connection is in no transaction, or the end of
its transaction has been sent. One that may be in a transaction, because its end failed, is discarded.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import asyncpg

from app.core.database.pipeline import PipelinedConnection

Connection: TypeAlias = PipelinedConnection

_MAX_IDLE_S: Final = 300.0
_SWEEP_S: Final = 60.0
_MAX_USES: Final = 20_000
"""A connection that was used as often is replaced: its process in Postgres caches more and more."""


class PoolUse(NamedTuple):
    """The connections of a pool: how many there may be, are open and are used, and how many callers wait for one."""

    size: int
    open: int
    used: int
    waiting: int


@dataclass(slots=True, eq=False)
class PooledConnection:
    """A connection of a pool. `idle_since` is a time of the event loop."""

    connection: Connection
    uses: int = 0
    idle_since: float = 0.0


class ConnectionPool:
    """Up to `size` connections. The connection that was used last is taken first, so that the others can be closed."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], *, size: int, timeout_s: float) -> None:
        """`timeout_s` limits the wait for a connection, and the making of a new one."""
        self._connect = connect
        self._size = size
        self._timeout_s = timeout_s
        self._idle: list[PooledConnection] = []
        self._all: set[PooledConnection] = set()
        self._count = 0  # with those that are being made
        self._waiters: deque[asyncio.Future[PooledConnection | None]] = deque()
        self._closing: asyncio.Future[None] | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None

    @property
    def use(self) -> PoolUse:
        """Return how many connections are open and used, and how many callers wait for one."""
        return PoolUse(self._size, len(self._all), len(self._all) - len(self._idle), len(self._waiters))

    async def acquire(self) -> PooledConnection:
        """Return an idle connection, or a new one. Waits for one if all are used.

        Raises TimeoutError, asyncpg's InterfaceError if the pool is closed, and the driver's errors of a new
        connection.
        """
        while self._idle:
            pooled = self._idle.pop()
            if not pooled.connection.is_closed():
                pooled.uses += 1
                return pooled
            self._remove_idle(pooled)
        if self._closing is not None:
            raise _closed()
        async with asyncio.timeout(self._timeout_s):
            if self._count < self._size:
                self._count += 1
                pooled = None
            else:
                pooled = await self._wait()
            # the place of a connection that was dropped
            pooled = pooled or await self._make()
        pooled.uses += 1
        return pooled

    async def _wait(self) -> PooledConnection | None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except BaseException:
            if not waiter.done() or waiter.cancelled():
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            elif waiter.exception() is None:  # given in the same moment
                self._pass_on(waiter.result())
            raise

    async def _make(self) -> PooledConnection:
        try:
            pooled = PooledConnection(await self._connect())
        except BaseException:
            self._pass_on(None)
            raise
        self._all.add(pooled)
        return pooled

    def release(self, pooled: PooledConnection, *, has_sent_end: bool = False) -> None:
        """Return a connection. One that is still in a transaction is closed.

        `has_sent_end`: the end of its transaction was sent without waiting, so the driver does not know of it.
        """
        connection = pooled.connection
        is_usable = not connection.is_closed() and (has_sent_end or not connection.is_in_transaction())
        if not is_usable or self._closing is not None or pooled.uses >= _MAX_USES:
            self.discard(pooled)
            return
        if connection.can_send:
            connection.drop_answers()
        self._pass_on(pooled)

    def discard(self, pooled: PooledConnection) -> None:
        """Close a connection, and let the next caller make a new one."""
        if not pooled.connection.is_closed():
            pooled.connection.terminate()
        self._all.discard(pooled)
        self._pass_on(None)

    def _remove_idle(self, pooled: PooledConnection) -> None:
        """Remove an idle connection, which no caller waits for."""
        self._all.discard(pooled)
        self._count -= 1

    def _pass_on(self, pooled: PooledConnection | None) -> None:
        """Give a connection, or the place for a new one, to the caller that has waited longest."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(pooled)
                return
        if pooled is None:
            self._count -= 1
            if self._closing is not None and self._count <= 0 and not self._closing.done():
                self._closing.set_result(None)
            return
        loop = asyncio.get_running_loop()
        pooled.idle_since = loop.time()
        self._idle.append(pooled)
        if self._sweep_timer is None and len(self._idle) > 1:
            self._sweep_timer = loop.call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Close connections that were idle for long, except the one that was used last."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - _MAX_IDLE_S
        unused = [pooled for pooled in self._idle[:-1] if pooled.idle_since < oldest]
        for pooled in unused:
            self._idle.remove(pooled)
            if not pooled.connection.is_closed():
                pooled.connection.terminate()
            self._remove_idle(pooled)
        self._sweep_timer = loop.call_later(_SWEEP_S, self._sweep) if len(self._idle) > 1 else None

    async def close(self) -> None:
        """Wait until all connections are returned, and close them. Callers that wait get an error."""
        self._closing = asyncio.get_running_loop().create_future()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(_closed())
        while self._idle:
            pooled = self._idle.pop()
            await pooled.connection.close()
            self._remove_idle(pooled)
        if self._count > 0:
            await self._closing

    def terminate(self) -> None:
        """Close all connections at once, also those that are used."""
        for pooled in list(self._all):
            pooled.connection.terminate()
        self._all.clear()


def _closed() -> asyncpg.InterfaceError:
    return asyncpg.InterfaceError("the pool is closed")
