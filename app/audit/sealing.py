"""Seals entries: gives them numbers and hashes in the chain of their tenant and day; deletes days that are too old.

A transaction that commits late only has its entry sealed later: an entry is sealed by the first pass that sees it. So
appends wait for nothing, and the order of a chain is that of sealing. The membership of an entry is the row itself
(day, number, hash), so it survives a dump and a restore.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, timedelta
from uuid import UUID

from app.audit import store
from app.audit.chain import chain_hash, chain_start
from app.audit.schemas import ChainedEntry, ChainEnd, Entry
from app.core.database.transactions import Database, Transaction
from app.core.ids import TenantId
from app.core.telemetry import get_logger

_AT_ONCE = 1_000
_MAX_PASSES = 200
_DELETED_AT_ONCE = 10_000
_MAX_DAYS = 1_000


class AuditSealer:
    """Seals entries of all tenants, with the ops role. Two passes never run at the same time."""

    def __init__(self, ops: Database, *, retention_days: int) -> None:
        self._ops = ops
        self._retention_days = retention_days
        self._log = get_logger()

    async def seal(self) -> int:
        """Seal the entries that are committed, and return their number. Does nothing while another process seals."""
        sealed = 0
        for _ in range(_MAX_PASSES):
            async with self._ops.across_tenants() as tx:
                if not await store.try_lock_sealing(tx):
                    return sealed
                count = await self._seal_some(tx)
            sealed += count
            if count < _AT_ONCE:
                break
        return sealed

    async def _seal_some(self, tx: Transaction) -> int:
        entries = await store.take_unsealed(tx, limit=_AT_ONCE)
        if not entries:
            return 0
        by_day: dict[tuple[UUID, date], list[Entry]] = defaultdict(list)
        for entry in sorted(entries, key=lambda entry: (entry.tenant_id, entry.recorded_at, entry.id)):
            by_day[entry.tenant_id, entry.recorded_at.astimezone(UTC).date()].append(entry)
        today = await store.today(tx)
        wanted = sorted({*by_day, *((tenant_id, today) for tenant_id, _ in by_day)})
        rows = await store.find_chain_ends(tx, [tenant_id for tenant_id, _ in wanted], [day for _, day in wanted])
        ends = _ChainEnds(rows, today=today)
        chained: list[ChainedEntry] = []
        for (tenant_id, day), day_entries in by_day.items():
            chained.extend(ends.add(TenantId(tenant_id), day, day_entries))
        await store.insert_sealed(tx, chained)
        await store.store_chain_ends(tx, ends.changed())
        return len(entries)

    async def delete_old(self) -> int:
        """Delete the entries of days before the retention, a whole day of a tenant in one transaction.

        Return the number of days. The ends of their chains stay, so that the chain of days can still be verified.
        """
        if not self._retention_days:
            return 0
        for count in range(_MAX_DAYS):
            async with self._ops.across_tenants() as tx:
                before = await store.today(tx) - timedelta(days=self._retention_days)
                expired = await store.lock_expired_day(tx, before=before)
                if expired is None:
                    return count
                while await store.delete_entries(tx, *expired, limit=_DELETED_AT_ONCE) == _DELETED_AT_ONCE:
                    pass
                await store.mark_deleted(tx, *expired)
            self._log.info("audit.day_deleted", tenant_id=expired[0])
        return _MAX_DAYS


class _ChainEnds:
    """The ends of the chains that a pass continues or starts."""

    def __init__(self, ends: Sequence[ChainEnd], *, today: date) -> None:
        self._ends: dict[tuple[TenantId, date], ChainEnd] = {(end.tenant_id, end.day): end for end in ends}
        self._last: dict[TenantId, ChainEnd] = {}
        for end in sorted(ends, key=lambda end: end.ordinal):
            self._last[end.tenant_id] = end
        self._today = today
        self._changed: set[tuple[TenantId, date]] = set()

    def add(self, tenant_id: TenantId, day: date, entries: Sequence[Entry]) -> list[ChainedEntry]:
        """Return the entries with their places at the end of the chain of this day.

        Entries of a day that retention has deleted get places in the chain of today.
        """
        end = self._ends.get((tenant_id, day))
        if end is not None and end.entries_deleted_at is not None:
            day = self._today
            end = self._ends.get((tenant_id, day))
        end = end or self._start(tenant_id, day)
        chained: list[ChainedEntry] = []
        number, hashed = end.entries, end.hash
        for entry in entries:
            number += 1
            hashed = chain_hash(hashed, number, entry)
            chained.append(ChainedEntry(day, number, entry, hashed))
        end = replace(end, entries=number, hash=hashed)
        self._ends[tenant_id, day] = end
        self._changed.add((tenant_id, day))
        if self._last[tenant_id].day == day:
            self._last[tenant_id] = end
        return chained

    def _start(self, tenant_id: TenantId, day: date) -> ChainEnd:
        newest = self._last.get(tenant_id)
        previous_day, entries, hashed = (None, 0, b"") if newest is None else (newest.day, newest.entries, newest.hash)
        start = chain_start(tenant_id, day, previous_day=previous_day, previous_entries=entries, previous_hash=hashed)
        end = ChainEnd(
            tenant_id, day, 1 if newest is None else newest.ordinal + 1, 0, start, previous_day, entries, hashed, None
        )
        self._last[tenant_id] = end
        return end

    def changed(self) -> list[ChainEnd]:
        """Return the chain ends to write, in a fixed order."""
        return [self._ends[key] for key in sorted(self._changed, key=lambda key: (key[0], self._ends[key].ordinal))]
