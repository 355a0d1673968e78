"""The latest slow calls of one process, by tenant. Pure."""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Final, NamedTuple

from app.core.ids import TenantId
from app.diagnostics.schemas import SlowCall

_MAX_TENANTS: Final = 200
"""Tenants whose slow calls are kept at once: those with the latest ones."""


class KeptCall(NamedTuple):
    """A slow call. `number` counts all slow calls of the process, from 1."""

    number: int
    call: SlowCall


class SlowCalls:
    """The latest slow calls of each tenant, and of calls without a tenant: at most `max_per_tenant` of each."""

    def __init__(self, *, max_per_tenant: int) -> None:
        self._max_per_tenant = max_per_tenant
        self._of_tenant: OrderedDict[TenantId, deque[KeptCall]] = OrderedDict()
        self._without_tenant: deque[KeptCall] = deque(maxlen=max_per_tenant)
        self.count = 0
        """The number of slow calls since the start."""

    def add(self, tenant_id: TenantId | None, call: SlowCall) -> None:
        """Keep a slow call, and drop the oldest one of its tenant if there are too many."""
        self.count += 1
        kept_call = KeptCall(self.count, call)
        if tenant_id is None:
            self._without_tenant.append(kept_call)
            return
        self._of_tenant.setdefault(tenant_id, deque(maxlen=self._max_per_tenant)).append(kept_call)
        self._of_tenant.move_to_end(tenant_id)
        if len(self._of_tenant) > _MAX_TENANTS:
            self._of_tenant.popitem(last=False)

    def of_tenant(self, tenant_id: TenantId) -> Iterable[KeptCall]:
        """Return the slow calls of a tenant, oldest first."""
        return self._of_tenant.get(tenant_id, ())

    def of_all(self) -> Iterator[KeptCall]:
        """Return the slow calls of all tenants, and those without a tenant, oldest first."""
        return merge(self._without_tenant, *self._of_tenant.values(), key=lambda kept_call: kept_call.number)
