"""A bounded amount that tenants share: a tenant gets at most half of it, and requests wait in order."""

import asyncio
from dataclasses import dataclass
from typing import Final

from app.core.ids import TenantId

_MAX_WAITING: Final = 32
"""Limit per tenant, because waiting requests take memory too."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    tenant: TenantId
    amount: int
    granted: "asyncio.Future[None]"

    @property
    def has_it(self) -> bool:
        return self.granted.done() and not self.granted.cancelled()


class TenantShares:
    """Use of a bounded amount by each tenant.

    Invariants: `try_acquire` and `wait` give a tenant at most half, so that there is room for another one. A waiting
    request is not served before an earlier one of its tenant, nor before an earlier one that would fit its own tenant's
    half.
    """

    def __init__(self, amount: int) -> None:
        self._amount = amount
        self._used = 0
        self._used_by: dict[TenantId, int] = {}
        self._waiting: list[_Waiter] = []

    @property
    def used(self) -> int:
        """Return the amount in use by all tenants."""
        return self._used

    @property
    def is_awaited(self) -> bool:
        """Return whether a request waits."""
        return bool(self._waiting)

    def try_acquire(self, tenant: TenantId, amount: int) -> bool:
        """Use `amount` more at once; return whether there is room."""
        has_room = self._fits_share(tenant, amount) and self._fits(amount)
        if has_room:
            self.add(tenant, amount)
        return has_room

    def add(self, tenant: TenantId, amount: int) -> None:
        """Use `amount` more, with or without room."""
        self._used += amount
        self._used_by[tenant] = self._used_by.get(tenant, 0) + amount

    async def wait(self, tenant: TenantId, amount: int, *, timeout_s: float) -> bool:
        """Use `amount` more when there is room; return whether there was in time.

        If many requests of the tenant wait already, return False at once.
        """
        if sum(one.tenant == tenant for one in self._waiting) >= _MAX_WAITING:
            return False
        waiter = _Waiter(tenant, amount, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._admit()
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.granted
        except TimeoutError:
            if not waiter.has_it:
                self._stop_waiting(waiter)
        except asyncio.CancelledError:
            if waiter.has_it:
                self.release(tenant, amount)
            else:
                self._stop_waiting(waiter)
            raise
        return waiter.has_it

    def release(self, tenant: TenantId, amount: int) -> None:
        """Release `amount`."""
        self._used -= amount
        self._used_by[tenant] -= amount
        if self._used_by[tenant] == 0:
            del self._used_by[tenant]
        self._admit()

    def _stop_waiting(self, waiter: _Waiter) -> None:
        self._waiting.remove(waiter)
        self._admit()  # a later request may be next

    def _admit(self) -> None:
        """Serve the waiting requests that have room, in order."""
        behind: set[TenantId] = set()
        for waiter in list(self._waiting):
            if waiter.granted.done() or waiter.tenant in behind:
                continue
            if not self._fits_share(waiter.tenant, waiter.amount):
                behind.add(waiter.tenant)
            elif not self._fits(waiter.amount):
                return
            else:
                self._waiting.remove(waiter)
                self.add(waiter.tenant, waiter.amount)
                waiter.granted.set_result(None)

    def _fits_share(self, tenant: TenantId, amount: int) -> bool:
        return self._used_by.get(tenant, 0) + amount <= self._amount // 2

    def _fits(self, amount: int) -> bool:
        return self._used + amount <= self._amount
