"""The latest slow calls of one process, by tenant. Pure."""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from typing import Final
from uuid import UUID

from app.core.ids import TenantId
from app.core.tracing.call_record import CallRecord

_MAX_TENANTS: Final = 200
"""Tenants whose slow calls are kept at once: those with the latest ones."""


@dataclass(frozen=True, slots=True)
class SlowCallEntry:
    """A slow call. `number` counts all slow calls of the process, from 1."""

    number: int
    ended_at: datetime
    tenant_id: TenantId | None
    request_id: UUID | None
    trace_id: str | None
    method: str
    route: str
    status: int
    duration_ms: float
    record: CallRecord


class SlowCalls:
    """The latest slow calls of each tenant, and of calls without a tenant: at most `max_per_tenant` of each."""

    def __init__(self, *, max_per_tenant: int) -> None:
        self._max_per_tenant = max_per_tenant
        self._of_tenant: OrderedDict[TenantId, deque[SlowCallEntry]] = OrderedDict()
        self._without_tenant: deque[SlowCallEntry] = deque(maxlen=max_per_tenant)
        self.count = 0
        """The number of slow calls since the start."""

    def add(self, entry: SlowCallEntry) -> None:
        """Keep a slow call, and drop the oldest one of its tenant if there are too many."""
        self.count = entry.number
        if entry.tenant_id is None:
            self._without_tenant.append(entry)
            return
        calls = self._of_tenant.setdefault(entry.tenant_id, deque(maxlen=self._max_per_tenant))
        calls.append(entry)
        self._of_tenant.move_to_end(entry.tenant_id)
        if len(self._of_tenant) > _MAX_TENANTS:
            self._of_tenant.popitem(last=False)

    def of_tenant(self, tenant_id: TenantId) -> Iterable[SlowCallEntry]:
        """Return the slow calls of a tenant, oldest first."""
        return self._of_tenant.get(tenant_id, ())

    def of_all(self) -> Iterator[SlowCallEntry]:
        """Return the slow calls of all tenants, and those without a tenant, oldest first."""
        return merge(self._without_tenant, *self._of_tenant.values(), key=lambda entry: entry.number)
