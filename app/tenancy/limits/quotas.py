"""Quotas of tenants for a day (UTC): turns, their bytes, and vectors.

Soft: each process counts what it commits and writes the counts in one statement a minute. It learns what
others have written when it writes itself, and whenever it looks up a key of the tenant. So a tenant can exceed a quota
by what other replicas have stored since they wrote last, and by the calls under way. A process that is killed loses the
counts of that time; the rows themselves are counted nowhere else.
"""

import asyncio
from datetime import UTC, date, datetime
from functools import partial
from typing import Final

from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError, RateLimited
from app.core.ids import TenantId
from app.core.telemetry import get_logger
from app.core.times import format_time, next_midnight
from app.settings.rates import RateSettings
from app.tenancy.limits import store
from app.tenancy.limits.schemas import Quotas
from app.tenancy.limits.store import Usage
from app.tenancy.schemas import Caller

MAX_TENANTS: Final = 10_000
_FLUSH_S: Final = 60.0
"""Quotas are for a day, so what is counted in a minute is little of them; a shorter time would only cost statements."""
QUOTA_NAMES: Final = ("daily_turns", "daily_bytes", "daily_vectors")
_Amounts = tuple[int, int, int]
_NOTHING: Final[_Amounts] = (0, 0, 0)


class _TenantUsage:
    """What a tenant may store in a day, what is written of it, and what this process has counted since."""

    __slots__ = ("counted", "day", "limits", "sending", "written")

    def __init__(self, limits: _Amounts) -> None:
        self.limits = limits
        self.day = date.min
        self.written: _Amounts = _NOTHING
        self.counted: _Amounts = _NOTHING
        self.sending: _Amounts = _NOTHING
        """Counts of a running flush."""

    def used(self) -> _Amounts:
        return _sum(_sum(self.written, self.counted), self.sending)


class TenantQuotas:
    """What tenants store, as far as this process knows."""

    def __init__(self, ops: Database, *, settings: RateSettings) -> None:
        self._ops = ops
        self._defaults = Quotas(
            daily_turns=settings.quota_daily_turns,
            daily_bytes=settings.quota_daily_bytes,
            daily_vectors=settings.quota_daily_vectors,
        )
        self._known: dict[TenantId, _TenantUsage] = {}
        self._flushing = asyncio.Lock()
        self._log = get_logger()

    def limits(self, quotas: Quotas) -> _Amounts:
        """Return the limits of a tenant, in the order of `QUOTA_NAMES`; 0 for none."""
        return _amounts(quotas, self._defaults)

    def observe(self, tenant_id: TenantId, *, quotas: Quotas, usage: Usage | None) -> None:
        """Take what was read for a tenant: its own quotas, and what is written of today."""
        tenant_usage = self._of(tenant_id)
        tenant_usage.limits = self.limits(quotas)
        if tenant_usage.sending == _NOTHING:  # otherwise what was read may contain it already
            today = _today()
            tenant_usage.day = today if usage is None else usage.day
            tenant_usage.written = _NOTHING if usage is None else (usage.turns, usage.bytes, usage.vectors)

    def require(self, caller: Caller) -> None:
        """Raise RateLimited `quota_exhausted` if the caller's tenant has used up a quota of today."""
        tenant_usage = self._known.get(caller.tenant_id)
        if tenant_usage is None or tenant_usage.limits == _NOTHING:
            return None
        for name, limit, used in zip(QUOTA_NAMES, tenant_usage.limits, tenant_usage.used(), strict=True):
            if limit and used >= limit:
                if tenant_usage.day != _today():
                    tenant_usage.written, tenant_usage.day = _NOTHING, _today()
                    return self.require(caller)
                raise _exhausted(name, limit)
        return None

    def count(self, tx: Transaction, tenant_id: TenantId, *, turns: int = 0, size: int = 0, vectors: int = 0) -> None:
        """Count what a transaction stores, when it is committed."""
        if turns or size or vectors:
            tx.after_commit.append(partial(self._add, tenant_id, (turns, size, vectors)))

    def _add(self, tenant_id: TenantId, amounts: _Amounts) -> None:
        tenant_usage = self._of(tenant_id)
        tenant_usage.counted = _sum(tenant_usage.counted, amounts)

    def _of(self, tenant_id: TenantId) -> _TenantUsage:
        tenant_usage = self._known.get(tenant_id)
        if tenant_usage is None:
            if len(self._known) >= MAX_TENANTS:
                self._evict_one()
            tenant_usage = self._known[tenant_id] = _TenantUsage(self.limits(Quotas()))
        return tenant_usage

    def _evict_one(self) -> None:
        """Evict the tenant that was added first, if possible one without unwritten counts."""
        idle = (
            tenant_id
            for tenant_id, tenant_usage in self._known.items()
            if tenant_usage.counted == tenant_usage.sending == _NOTHING
        )
        del self._known[next(idle, next(iter(self._known)))]

    async def flush(self) -> None:
        """Write what was counted. If that fails, it is kept for the next time. Raises Unavailable."""
        async with self._flushing:
            sent = {
                tenant_id: tenant_usage
                for tenant_id, tenant_usage in self._known.items()
                if tenant_usage.counted != _NOTHING
            }
            if not sent:
                return
            for tenant_usage in sent.values():
                tenant_usage.sending, tenant_usage.counted = tenant_usage.counted, _NOTHING
            try:
                turns, sizes, vectors = zip(*(tenant_usage.sending for tenant_usage in sent.values()), strict=True)
                async with self._ops.across_tenants() as tx:
                    rows = await store.add_usage(tx, list(sent), turns=turns, sizes=sizes, vectors=vectors)
            except AppError:
                for tenant_usage in sent.values():
                    tenant_usage.counted = _sum(tenant_usage.counted, tenant_usage.sending)
                raise
            finally:
                for tenant_usage in sent.values():
                    tenant_usage.sending = _NOTHING
            for tenant_id, usage in rows.items():
                sent[tenant_id].day = usage.day
                sent[tenant_id].written = (usage.turns, usage.bytes, usage.vectors)

    async def flush_forever(self) -> None:
        """Write what was counted every minute, until cancelled."""
        while True:
            await asyncio.sleep(_FLUSH_S)
            try:
                await self.flush()
            except AppError as error:
                self._log.warning("tenancy.tending_failed", code=error.code)

    def used_by(self, tenant_id: TenantId, usage: Usage | None) -> _Amounts:
        """Return what a tenant has used today: what was read, and what this process has not written yet."""
        written = _NOTHING if usage is None else (usage.turns, usage.bytes, usage.vectors)
        tenant_usage = self._known.get(tenant_id)
        return written if tenant_usage is None else _sum(written, tenant_usage.counted)


def _exhausted(name: str, limit: int) -> RateLimited:
    now = datetime.now(UTC)
    midnight = next_midnight(now)
    return RateLimited(
        "quota_exhausted",
        f"This tenant has used up its quota {name} ({limit}). It can store again at midnight, UTC.",
        retry_after_s=int((midnight - now).total_seconds()) + 1,
        extra={"quota": name, "resumes_at": format_time(midnight)},
    )


def _amounts(quotas: Quotas, defaults: Quotas) -> _Amounts:
    pairs = ((getattr(quotas, name), getattr(defaults, name)) for name in QUOTA_NAMES)
    turns, size, vectors = (own if own is not None else default or 0 for own, default in pairs)
    return turns, size, vectors


def _sum(left: _Amounts, right: _Amounts) -> _Amounts:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2]


def _today() -> date:
    return datetime.now(UTC).date()
