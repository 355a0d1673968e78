"""Limits of a process: buckets of tokens for rates, and shares of tenants in what is used at once.

All calls share one event loop and one memory: calls, bytes of bodies and vectors made by appends are limited by tenant.
A tenant that is alone may use much; while several call, each has a smaller share, so that the requests of a tenant wait
for each other and not for those of another.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from math import inf
from time import monotonic
from typing import Final
from weakref import WeakValueDictionary

from app.core.errors import Unavailable
from app.core.ids import TenantId

SHARED_S: Final = 1.0
"""Tenants that asked within this time ask at the same time."""
_MAX_WAITING: Final = 32
"""Limit per tenant, because waiting requests take memory too."""


class TokenBucket:
    """Tokens that are added at `per_s` a second up to `capacity`. `left` is negative for one that owes tokens."""

    __slots__ = ("_at", "capacity", "left", "per_s")

    def __init__(self, per_s: float, capacity: float) -> None:
        self.per_s = per_s
        self.capacity = capacity
        self.left = capacity
        self._at = monotonic()

    def refill(self) -> float:
        """Add the tokens of the time since the last call, and return how many there are."""
        now = monotonic()
        self.left = min(self.capacity, self.left + (now - self._at) * self.per_s)
        self._at = now
        return self.left

    def wait_s(self, tokens: float) -> float:
        """Return the seconds until there are so many tokens."""
        return max(0.0, (tokens - self.left) / self.per_s)

    async def take_in_turn(self, tokens: float) -> None:
        """Take tokens, and wait until the time that they are of."""
        self.left = self.refill() - tokens
        if self.left < 0:
            await asyncio.sleep(self.wait_s(0))


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    number: int
    tenant: TenantId
    amount: int
    granted: "asyncio.Future[None]"

    @property
    def is_granted(self) -> bool:
        return self.granted.done() and not self.granted.cancelled()


class TenantLimiter:
    """Amounts that tenants use and wait for.

    `share`: largest amount of a tenant. While other tenants ask too, it is `crowded_share`. `total`: largest amount of
    all. `detail` and `retry_after_s` are those of the error for a request that has waited `wait_s`, or that comes when
    `max_waiting` of its tenant wait.

    Invariants: a waiting request is not served before an earlier one of its tenant, nor before an earlier one that fits
    the share of its own tenant.
    """

    def __init__(
        self,
        share: int,
        *,
        crowded_share: int | None = None,
        total: float = inf,
        max_waiting: int = _MAX_WAITING,
        wait_s: float = 0.0,
        detail: str = "This server is overloaded.",
        retry_after_s: int = 1,
    ) -> None:
        self._share = share
        self._crowded_share = share if crowded_share is None else crowded_share
        self._total = total
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._detail = detail
        self._retry_after_s = retry_after_s
        self._numbers = count()
        self._used_by: dict[TenantId, int] = {}
        self._waiting: dict[TenantId, list[_Waiter]] = {}
        self._refusals: WeakValueDictionary[TenantId, asyncio.Lock] = WeakValueDictionary()
        self._newest_tenant: TenantId | None = None
        self._crowded_until = 0.0

    @property
    def used(self) -> int:
        """Return the amount in use by all tenants."""
        return sum(self._used_by.values())

    @property
    def waiting(self) -> int:
        """Return the number of waiting requests."""
        return sum(map(len, self._waiting.values()))

    def try_acquire(self, tenant: TenantId, amount: int = 1) -> bool:
        """Use `amount` more at once; return whether there is room."""
        has_room = self._fits_share(tenant, amount) and self._fits(amount)
        if has_room:
            self.add(tenant, amount)
        return has_room

    def acquire_now(self, tenant: TenantId, amount: int) -> None:
        """Use `amount` more at once. Raises Unavailable `overloaded` if there is no room."""
        if not self.try_acquire(tenant, amount):
            raise self._overloaded()

    def add(self, tenant: TenantId, amount: int) -> None:
        """Use `amount` more, with or without room."""
        self._used_by[tenant] = self._used_by.get(tenant, 0) + amount

    async def require_room(self, tenant: TenantId) -> None:
        """Raise Unavailable `overloaded` if as many requests of the tenant wait as may.

        Those of a tenant are refused one by one, each in an iteration of the loop of its own: other tenants wait for
        one refusal at a time, and not for a flood of them.
        """
        if not self._is_full(tenant):
            return
        async with self._refusals.setdefault(tenant, asyncio.Lock()):
            await asyncio.sleep(0)
            if self._is_full(tenant):
                raise self._overloaded()

    @asynccontextmanager
    async def hold(self, tenant: TenantId, amount: int = 1) -> AsyncGenerator[None]:
        """Use `amount` during the block. Raises Unavailable as `acquire` does."""
        await self.acquire(tenant, amount)
        try:
            yield
        finally:
            self.release(tenant, amount)

    async def acquire(self, tenant: TenantId, amount: int = 1) -> None:
        """Use `amount` more when there is room. Raises Unavailable `overloaded` if there is none in time."""
        await self.require_room(tenant)
        if tenant != self._newest_tenant:
            if self._newest_tenant is not None:
                self._crowded_until = monotonic() + SHARED_S
            self._newest_tenant = tenant
        if not self._waiting and self.try_acquire(tenant, amount):
            return
        waiter = _Waiter(next(self._numbers), tenant, amount, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(tenant, []).append(waiter)
        self._admit()
        try:
            async with asyncio.timeout(self._wait_s):
                await waiter.granted
        except TimeoutError:
            if not waiter.is_granted:
                self._stop_waiting(waiter)
                raise self._overloaded() from None
        except asyncio.CancelledError:
            if waiter.is_granted:
                self.release(tenant, amount)
            else:
                self._stop_waiting(waiter)
            raise

    def release(self, tenant: TenantId, amount: int = 1) -> None:
        """Release `amount`."""
        self._used_by[tenant] -= amount
        if self._used_by[tenant] == 0:
            del self._used_by[tenant]
        self._admit()

    def _stop_waiting(self, waiter: _Waiter) -> None:
        self._remove(waiter)
        self._admit()  # a later request may be next

    def _remove(self, waiter: _Waiter) -> None:
        queue = self._waiting[waiter.tenant]
        queue.remove(waiter)
        if not queue:
            del self._waiting[waiter.tenant]

    def _admit(self) -> None:
        """Serve the waiting requests that have room, in order."""
        while (waiter := self._next()) is not None and self._fits(waiter.amount):
            self._remove(waiter)
            self.add(waiter.tenant, waiter.amount)
            waiter.granted.set_result(None)

    def _next(self) -> _Waiter | None:
        """Return the earliest of the first requests of all tenants that fits the share of its tenant."""
        # one that is done was cancelled: its task removes it
        firsts = [queue[0] for queue in self._waiting.values() if not queue[0].granted.done()]
        fitting = [waiter for waiter in firsts if self._fits_share(waiter.tenant, waiter.amount)]
        return min(fitting, key=lambda waiter: waiter.number, default=None)

    def _is_full(self, tenant: TenantId) -> bool:
        return len(self._waiting.get(tenant, ())) >= self._max_waiting

    def _fits_share(self, tenant: TenantId, amount: int) -> bool:
        used = self._used_by.get(tenant, 0) + amount
        return used <= self._crowded_share or (used <= self._share and monotonic() >= self._crowded_until)

    def _fits(self, amount: int) -> bool:
        return self._total == inf or self.used + amount <= self._total

    def _overloaded(self) -> Unavailable:
        return Unavailable("overloaded", self._detail, retry_after_s=self._retry_after_s)
