"""Reads from a standby, when it has replayed all that was committed before the read began; else from the primary.

The primary says how far its write-ahead log is on its disk: each acknowledged commit is before this position.
Reads that begin while this question is on its way share the next one. The standby says whether it has replayed as much.
So a read never shows less than the primary would have shown when the read began: this holds for writes of any process.

Invariant: nothing that happens to a standby fails a read. The read is done again on the primary, so it must change
nothing. A standby that lags, has gone or has another timeline is not asked again until it has caught up.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

import asyncpg

from app.core.database.transactions import Database, Transaction, row_as
from app.core.errors import AppError, Busy, Unavailable
from app.core.ids import TenantId
from app.core.telemetry import get_logger

T = TypeVar("T")

_RETRY_S: Final = 1.0
"""Time between two attempts to use a standby again."""
_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.008
_LOG_EVERY_S: Final = 60.0

# Without `synchronous_commit`, a commit is acknowledged before it is on the disk. The first eight digits of a segment's
# name are the timeline. A server that is no primary any more has no position.
_WAL_POSITION: Final = """
select ('x' || left(pg_walfile_name(lsn), 8))::bit(32)::int as timeline, lsn
from (
    select case when pg_is_in_recovery() then null
                when current_setting('synchronous_commit') = 'off' then pg_current_wal_insert_lsn()
                else pg_current_wal_flush_lsn() end as lsn
) as of_primary
"""
_REPLAYED: Final = """
select pg_is_in_recovery() as is_standby, pg_last_wal_replay_lsn() >= $1 as has_replayed,
       (select timeline from pg_control_recovery() as control (min_end, timeline)) as timeline
"""


class Fallback(StrEnum):
    """Why a read was done on the primary."""

    LAG = "lag"
    TIMELINE = "timeline"
    PROMOTED = "promoted"
    CONFLICT = "conflict"
    UNAVAILABLE = "unavailable"
    NO_POSITION = "no_position"
    """The primary did not say its position."""
    SUSPENDED = "suspended"
    """The standby is not asked, because of an earlier fallback."""


_OF_ONE_READ: Final = frozenset({Fallback.SUSPENDED, Fallback.CONFLICT, Fallback.NO_POSITION})


class WalPosition(NamedTuple):
    """A position in the write-ahead log of a server: bytes since its beginning, on a timeline."""

    timeline: int
    lsn: int


class StandbyState(NamedTuple):
    """What a server of the setting for standbys says. `behind_bytes` of the log of the primary, when it was asked."""

    is_standby: bool
    has_timeline: bool
    behind_bytes: int
    now: datetime


_BEHIND: Final = """
select pg_is_in_recovery() as is_standby, clock_timestamp() as now,
       (select timeline from pg_control_recovery() as control (min_end, timeline)) = $1 as has_timeline,
       coalesce(greatest($2::bigint - (pg_last_wal_replay_lsn() - '0/0'::pg_lsn), 0), 0)::bigint as behind_bytes
"""


async def examine_standby(primary: Database, standby: Database, *, wait_s: float) -> StandbyState:
    """Return the state of a standby that has had `wait_s` to catch up. Raises Unavailable."""
    position = await _read_position(primary)
    await asyncio.sleep(wait_s)
    return row_as(StandbyState, await standby.fetch_status(_BEHIND, position.timeline, position.lsn))


class WalPositions:
    """Positions of the primary. Calls that wait at the same time share one statement, sent after all of them."""

    def __init__(self, primary: Database) -> None:
        self._primary = primary
        self._running: asyncio.Task[WalPosition] | None = None
        self._next: asyncio.Task[WalPosition] | None = None

    def now(self) -> "asyncio.Task[WalPosition]":
        """Return the position of a moment after this call. Its result raises Unavailable. Do not cancel it."""
        if self._next is None:
            self._next = asyncio.create_task(self._read(after=self._running))
            # of a read that was cancelled, no one retrieves it
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._next

    async def _read(self, after: "asyncio.Task[WalPosition] | None") -> WalPosition:
        if after is not None:
            await asyncio.wait([after])
        # from here on, a new call needs a new statement
        self._running, self._next = self._next, None
        return await _read_position(self._primary)


async def _read_position(primary: Database) -> WalPosition:
    row = await primary.fetch_status(_WAL_POSITION)
    if row["lsn"] is None:
        raise Unavailable("database_unavailable", "The database accepts no writes at the moment.", retry_after_s=1)
    return row_as(WalPosition, row)


class _NotUsableError(Exception):
    """The standby does not show what was committed before the read began."""

    def __init__(self, reason: Fallback) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Read(Generic[T]):
    """What a standby has answered, which may be None."""

    value: T


async def _known(position: "Awaitable[WalPosition] | WalPosition") -> WalPosition:
    if isinstance(position, WalPosition):
        return position
    try:
        return await asyncio.shield(position)
    except Unavailable as error:
        raise _NotUsableError(Fallback.NO_POSITION) from error


class DatabaseReader:
    """Reads of tenants that change nothing. Without a standby, each is a transaction on the primary."""

    def __init__(self, primary: Database, standby: Database | None = None, *, wait_s: float = 0.0) -> None:
        """`standby` is not open yet. `wait_s`: longest time that a read waits for the standby to catch up."""
        self._primary = primary
        self.standby = standby
        self._wait_s = wait_s
        self._positions = WalPositions(primary)
        self.is_usable = False
        """Whether reads are sent to the standby now."""
        self._logged_at = -_LOG_EVERY_S
        self._recovery: asyncio.Task[None] | None = None
        self.standby_reads = 0
        """Reads that the standby has answered."""
        self.fallbacks: Counter[Fallback] = Counter()
        """Reads that were done on the primary although a standby is configured, by reason."""

    def start(self) -> None:
        """Begin to use the standby as soon as it can be used. Does not wait for it."""
        if self.standby is not None and self._recovery is None:
            self._recovery = asyncio.create_task(self._recover(self.standby))

    async def close(self) -> None:
        """Leave the standby."""
        self.is_usable = False
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.gather(self._recovery, return_exceptions=True)
        if self.standby is not None:
            await self.standby.close()

    def refuse_in_transaction(self) -> None:
        """Raise if this task has an open transaction, on either server."""
        self._primary.refuse_in_transaction()
        if self.standby is not None:
            self.standby.refuse_in_transaction()

    async def read(self, within: TenantId | Transaction, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Return what `work` returns, in a read-only transaction of a tenant.

        `within`: the tenant, or an open transaction of it. A standby then has what that has seen so far, and without
        one `work` runs in that transaction. `work` runs a second time if the standby fails during the first one, so it
        must have no effects.
        """
        if isinstance(within, Transaction):
            return await self._read_beside(within, work)
        # on its way while the transaction on the standby begins
        position = self._positions.now() if self.is_usable else None
        answer = await self._read_standby(within, position, work)
        if answer is not None:
            return answer.value
        async with self._primary.transaction(within, read_only=True) as tx:
            return await work(tx)

    async def _read_beside(self, tx: Transaction, work: Callable[[Transaction], Awaitable[T]]) -> T:
        if tx.tenant_id is None:
            raise RuntimeError("rows are read in a transaction of their tenant")
        position = None
        if self.is_usable:
            # in this transaction: to wait for another connection while holding this one could use up the pool
            row = await tx.fetchrow(_WAL_POSITION)
            position = None if row is None or row["lsn"] is None else row_as(WalPosition, row)
        answer = await self._read_standby(tx.tenant_id, position, work)
        return await work(tx) if answer is None else answer.value

    async def _read_standby(
        self,
        tenant_id: TenantId,
        position: "Awaitable[WalPosition] | WalPosition | None",
        work: Callable[[Transaction], Awaitable[T]],
    ) -> "_Read[T] | None":
        """Return what `work` returns on the standby; None if the primary must answer."""
        if self.standby is None:
            return None
        try:
            if position is None:
                raise _NotUsableError(Fallback.SUSPENDED)  # noqa: TRY301
            async with self.standby.transaction(tenant_id, read_only=True) as tx:
                await self._wait_for(tx, await _known(position))
                # each statement has a snapshot of its own, taken after the check
                answer = _Read(await work(tx))
        except _NotUsableError as error:
            self._fall_back(error.reason)
        except Busy:
            self._fall_back(Fallback.CONFLICT)
        except (Unavailable, asyncpg.PostgresError):
            self._fall_back(Fallback.UNAVAILABLE)
        except AppError:  # such as NotFound: the answer
            self.standby_reads += 1
            raise
        else:
            self.standby_reads += 1
            return answer
        return None

    async def _wait_for(self, tx: Transaction, position: WalPosition) -> None:
        """Return when the standby has replayed the primary's log up to a position; raise if it does not."""
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + self._wait_s, _FIRST_PAUSE_S
        while True:
            row = await tx.fetchrow(_REPLAYED, position.lsn)
            if row is None or not row["is_standby"]:
                raise _NotUsableError(Fallback.PROMOTED)
            # a standby that follows another server after a failover may have a log of the same length
            if row["timeline"] != position.timeline:
                raise _NotUsableError(Fallback.TIMELINE)
            if row["has_replayed"]:
                return
            if loop.time() >= until:
                raise _NotUsableError(Fallback.LAG)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _fall_back(self, reason: Fallback) -> None:
        """Count a read of the primary. Stop to use the standby, unless only this read failed there."""
        self.fallbacks[reason] += 1
        if self.standby is None or reason in _OF_ONE_READ or not self.is_usable:
            return
        self.is_usable = False
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            get_logger().warning("standby.suspended", kind=reason.value)
        self._recovery = asyncio.create_task(self._recover(self.standby, delay_s=_RETRY_S))

    async def _recover(self, standby: Database, delay_s: float = 0.0) -> None:
        """Use the standby as soon as it has caught up."""
        while True:
            await asyncio.sleep(delay_s)
            delay_s = _RETRY_S
            with suppress(AppError, asyncpg.PostgresError, _NotUsableError):
                await standby.reopen()
                position = await asyncio.shield(self._positions.now())
                async with standby.across_tenants() as tx:
                    await self._wait_for(tx, position)
                break
        self.is_usable = True
