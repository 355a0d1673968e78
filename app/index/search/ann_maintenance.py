"""Maintenance of the vector index (ANN) of large tenants.

Appends never touch the vector index: their vectors are stored outside of it, and a search compares those one by one.
`AnnMaintenance` notices a large tenant when it is searched, and moves its vectors into the index in the background. It
moves some at a time, and for at most a quarter of the time, so that appends are not delayed. The index of a space is
created for the first large tenant; until it exists, large scopes are searched exactly. Every step may be interrupted.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError
from app.core.ids import TenantId
from app.core.telemetry import get_logger
from app.index.search import ann_search
from app.index.search.ann_search import Space, TenantCounts
from app.settings.memory import IndexSettings

_COUNTS_TTL_S = 30.0
_MAX_CACHED_TENANTS = 10_000
_FRESH_VECTORS = 2_000  # outside of the index; a search compares them one by one, in milliseconds
_BATCH = 50  # takes about a third of a second; a longer batch would delay appends
_PAUSE_S = 5.0
_PAUSE_FACTOR = 3  # times the duration of a batch
_LOCK = 0x74696572  # "tier"


class AnnMaintenance:
    """Cache of the size of each tenant, and maintenance of the vector index of large tenants.

    `make_index` creates the index of the space as the owner of the tables, and returns whether it exists.
    """

    def __init__(
        self, ops: Database, *, space: Space, settings: IndexSettings, make_index: Callable[[], Awaitable[bool]]
    ) -> None:
        self.space = space
        self.settings = settings
        self._ops = ops
        self._make_index = make_index
        self._counts: OrderedDict[TenantId, tuple[float, TenantCounts]] = OrderedDict()
        self._due: dict[TenantId, None] = {}
        self._wake = asyncio.Event()
        self._log = get_logger()

    async def read_counts(self, tx: Transaction, tenant_id: TenantId) -> TenantCounts:
        """Return the tenant's counts, cached for half a minute. Stale counts cost time but never change results."""
        now = time.monotonic()
        cached = self._counts.get(tenant_id)
        if cached is not None and now - cached[0] < _COUNTS_TTL_S:
            return cached[1]
        counts = await ann_search.count_tenant(
            tx, tenant_id, self.space, entries=self.exact_entries, fresh=_FRESH_VECTORS
        )
        self._counts[tenant_id] = (now, counts)
        self._counts.move_to_end(tenant_id)
        if len(self._counts) > _MAX_CACHED_TENANTS:
            self._counts.popitem(last=False)
        if self.needs_ann(counts) and self._is_due(counts):
            self._due[tenant_id] = None
            self._wake.set()
        return counts

    @property
    def exact_entries(self) -> int:
        """Return the number of entries up to which a scope is searched exactly."""
        return self.settings.exact_entries(self.space.dimensions)

    def needs_ann(self, counts: TenantCounts) -> bool:
        """Return whether a tenant is too large for the exact search."""
        return counts.entries > self.exact_entries

    def _is_due(self, counts: TenantCounts) -> bool:
        return not counts.index_ready or not counts.tiered or counts.fresh > _FRESH_VECTORS

    async def schedule(self, tx: Transaction, tenant_ids: Sequence[TenantId]) -> int:
        """Schedule large tenants that were not searched in this space yet; return the number of due tenants."""
        for tenant_id in tenant_ids:
            self._counts.pop(tenant_id, None)
            await self.read_counts(tx, tenant_id)
        return len(self._due)

    async def run_forever(self) -> None:
        """Move due vectors whenever a search has scheduled some."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.index_due()
            except AppError as error:
                self._log.warning("tier.failed", code=error.code)
            await asyncio.sleep(_PAUSE_S)

    async def index_due(self) -> None:
        """Move the vectors of all due tenants, then create the index: one build over all vectors is cheapest."""
        due = list(self._due)
        for tenant_id in due:
            self._due.pop(tenant_id, None)
            try:
                await self._move(tenant_id)
            except AppError as error:
                self._log.warning("tier.failed", code=error.code, tenant_id=tenant_id)
        if due:
            await self._index(due)

    async def index_tenant(self, tenant_id: TenantId) -> int:
        """Move all of a tenant's vectors into the index, which is created if missing; return the number moved."""
        if self.space.id == 0:
            return 0
        moved = await self._move(tenant_id)
        await self._index([tenant_id])
        return moved

    async def _index(self, tenant_ids: Sequence[TenantId]) -> None:
        stands = await self._make_index()
        for tenant_id in tenant_ids:
            if not stands:
                self._log.warning("tier.without_index", tenant_id=tenant_id)
            self._counts.pop(tenant_id, None)

    async def _move(self, tenant_id: TenantId) -> int:
        moved = 0
        while True:
            started = time.monotonic()
            async with self._ops.across_tenants() as tx:
                count = await ann_search.index_some_vectors(tx, tenant_id, self.space, lock=_LOCK, limit=_BATCH)
            moved += count
            if count < _BATCH:
                break
            await asyncio.sleep(_PAUSE_FACTOR * (time.monotonic() - started))  # the rest of the time is left to appends
        self._counts.pop(tenant_id, None)
        self._log.info("tier.kept", tenant_id=tenant_id, vectors=moved)
        return moved
