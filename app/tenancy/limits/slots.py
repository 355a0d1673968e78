"""Limits the calls of each tenant that a process works on at the same time; further calls wait.

All calls share one event loop, so a call takes as long as those that run beside it. While a tenant calls alone, it has
many slots. While several call, each has a few: the calls of a tenant wait for each other, and never for those of
another. A slot is held while a call is worked on, not while its body arrives or its answer is sent.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Final
from weakref import WeakValueDictionary

from app.core.ids import TenantId
from app.settings.rates import RateSettings
from app.tenancy.limits.schemas import overloaded

SHARED_S: Final = 1.0
"""Tenants that called within this time call at the same time."""
_SHARED_CALLS: Final = 4
"""Calls of one tenant at once while others call too: enough to use the time that one of them waits for the database."""
_MAX_WAITING: Final = 256
"""Waiting calls of one tenant: each holds a connection and its body; more would only wait until they are refused."""
_WAIT_S: Final = 10.0
"""Clients and proxies give up after a similar time, mostly 30 s, and would send the call again."""


class TenantSlots:
    """The calls that run and wait, by tenant.

    Invariant: a call waits only if its tenant had all its slots when the call came. Waiting calls are admitted when one
    of the same tenant ends, as many as the tenant may then have.
    """

    def __init__(self, settings: RateSettings) -> None:
        self._alone = settings.concurrent_calls
        self._shared = min(_SHARED_CALLS, settings.concurrent_calls)
        self._max_waiting = _MAX_WAITING
        self._wait_s = _WAIT_S
        self._used_by: dict[TenantId, int] = {}
        self._waiting: dict[TenantId, deque[asyncio.Future[None]]] = {}
        self._refusals: WeakValueDictionary[TenantId, asyncio.Lock] = WeakValueDictionary()
        self._last: TenantId | None = None
        self._shared_until = 0.0

    @property
    def waiting(self) -> int:
        """Return the number of waiting calls."""
        return sum(map(len, self._waiting.values()))

    @property
    def is_awaited(self) -> bool:
        """Return whether a call of any tenant waits."""
        return bool(self._waiting)

    async def require_room(self, tenant: TenantId) -> None:
        """Raise Unavailable `overloaded` if as many calls of the tenant wait as may.

        The calls of a tenant are refused one by one, each in an iteration of the loop of its own: other tenants wait
        for one refusal at a time, and not for a flood of them.
        """
        if not self.is_full(tenant):
            return
        async with self._refusals.setdefault(tenant, asyncio.Lock()):
            await asyncio.sleep(0)
            if self.is_full(tenant):
                raise overloaded()

    @asynccontextmanager
    async def slot(self, tenant: TenantId) -> AsyncGenerator[None]:
        """Hold a slot. Raises Unavailable `overloaded` if there is none in time, or too many calls wait already."""
        await self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)

    async def acquire(self, tenant: TenantId) -> None:
        """Take a slot, when the tenant may have one more. Raises Unavailable `overloaded`."""
        await self.require_room(tenant)
        if tenant != self._last:
            if self._last is not None:
                self._shared_until = monotonic() + SHARED_S
            self._last = tenant
        if tenant not in self._waiting and self._has_slot(tenant):
            self._used_by[tenant] = self._used_by.get(tenant, 0) + 1
            return
        await self._wait(tenant)

    def release(self, tenant: TenantId) -> None:
        """Give a slot back."""
        left = self._used_by[tenant] - 1
        if left:
            self._used_by[tenant] = left
        else:
            del self._used_by[tenant]
        while tenant in self._waiting and self._has_slot(tenant):
            self._admit(tenant)

    def _has_slot(self, tenant: TenantId) -> bool:
        used = self._used_by.get(tenant, 0)
        return used < self._shared or (used < self._alone and monotonic() >= self._shared_until)

    def is_full(self, tenant: TenantId) -> bool:
        """Return whether as many calls of the tenant wait as may."""
        return len(self._waiting.get(tenant, ())) >= self._max_waiting

    async def _wait(self, tenant: TenantId) -> None:
        waiting = self._waiting.setdefault(tenant, deque())
        granted = asyncio.get_running_loop().create_future()
        waiting.append(granted)
        try:
            async with asyncio.timeout(self._wait_s):
                await granted
        except (TimeoutError, asyncio.CancelledError) as error:
            if granted.done() and not granted.cancelled():
                if isinstance(error, TimeoutError):
                    return
                self.release(tenant)
            else:
                self._stop_waiting(tenant, granted)
            if isinstance(error, TimeoutError):
                raise overloaded() from None
            raise

    def _stop_waiting(self, tenant: TenantId, granted: "asyncio.Future[None]") -> None:
        waiting = self._waiting.get(tenant)
        if waiting is not None and granted in waiting:
            waiting.remove(granted)
            if not waiting:
                del self._waiting[tenant]

    def _admit(self, tenant: TenantId) -> None:
        """Give a slot to the call that waits longest."""
        waiting = self._waiting[tenant]
        granted = waiting.popleft()
        if not waiting:
            del self._waiting[tenant]
        if not granted.done():
            self._used_by[tenant] = self._used_by.get(tenant, 0) + 1
            granted.set_result(None)
