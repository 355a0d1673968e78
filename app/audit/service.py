"""Public API of the audit: record entries in transactions, record reads in memory, list, seal and verify entries.

Invariant: the entry of a change is stored in its transaction. Entries of requests that change nothing wait in
memory for a second, up to a number; a crash loses those.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from uuid import UUID

from app.audit import store
from app.audit.record import NO_COUNTS, entry_of_read, object_id_of, record, single
from app.audit.request_context import audited_request, request_uuid
from app.audit.schemas import (
    Action,
    Actor,
    ActorKind,
    AuditEntry,
    AuditFilter,
    AuditVerification,
    AuditVerify,
    Entry,
    ObjectKind,
)
from app.audit.sealing import AuditSealer
from app.audit.verification import (
    ChainPlace,
    Checkpoint,
    Known,
    verification_of,
    verify_audit,
    verify_part,
)
from app.core.database.transactions import Database
from app.core.errors import AppError
from app.core.ids import TenantId, new_uuid
from app.core.paging import Cursors, Page, PageRequest, page_of_views
from app.core.telemetry import get_logger
from app.core.views import view_of
from app.settings.audit import AuditSettings

__all__ = [
    "AuditSealer",
    "AuditTrail",
    "Checkpoint",
    "Known",
    "audited_request",
    "object_id_of",
    "record",
    "request_uuid",
    "single",
    "verify_audit",
]

_WRITTEN_AT_ONCE = 1_000
# a crash loses the entries of reads of this time; a statement a second costs little
_FLUSH_S = 1.0
# about 10 MB: what many callers read in a minute without a database
_MAX_WAITING = 10_000


class AuditTrail:
    """Entries of requests that change nothing, and the list of all entries."""

    def __init__(self, database: Database, ops: Database, *, cursors: Cursors, settings: AuditSettings) -> None:
        self._database = database
        self._ops = ops
        self._cursors = cursors
        self.sealer = AuditSealer(ops, retention_days=settings.audit_retention_days)
        """Adds entries to the hash chains. Run by a job."""
        self._waiting: dict[TenantId, list[Entry]] = {}
        self._size = 0
        self._lost: Counter[TenantId] = Counter()
        self._due = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._log = get_logger()

    def record_read(
        self,
        actor: Actor,
        action: Action,
        kind: ObjectKind | None = None,
        object_id: UUID | int | str | None = None,
        *,
        conversation_id: UUID | None = None,
        counts: Mapping[str, int] = NO_COUNTS,
    ) -> None:
        """Keep the entry of a request that changed nothing, or of a call of a tool, in memory until the next flush.

        `object_id` is text only if it is a name of the service's own. If too many entries wait, the tenant with the
        most of them loses one, which is counted (`audit.lose`).
        """
        entry = entry_of_read(
            actor, action, kind=kind, object_id=object_id, conversation_id=conversation_id, counts=counts
        )
        self._waiting.setdefault(actor.key_tenant_id, []).append(entry)
        self._size += 1
        self._drop_surplus()
        if self._size >= _WRITTEN_AT_ONCE:
            self._due.set()

    def _drop_surplus(self) -> None:
        while self._size > _MAX_WAITING:
            largest = max(self._waiting, key=lambda tenant_id: len(self._waiting[tenant_id]))
            self._waiting[largest].pop()
            self._size -= 1
            self._lost[largest] += 1

    async def flush(self) -> None:
        """Write the waiting entries. If that fails, they wait on. Raises AppError."""
        async with self._flushing:
            while self._size or self._lost:
                await self._flush_some()

    async def _flush_some(self) -> None:
        taken, lost = self._take(), dict(self._lost)
        self._lost.clear()
        try:
            async with self._ops.across_tenants() as tx:
                await store.insert_unsealed(tx, [*taken, *map(_entry_of_loss, lost, lost.values())])
        except BaseException:
            for entry in reversed(taken):
                self._waiting.setdefault(TenantId(entry.tenant_id), []).insert(0, entry)
            self._size += len(taken)
            self._lost.update(lost)
            self._drop_surplus()
            raise

    def _take(self) -> list[Entry]:
        """Take the oldest waiting entries of some tenants."""
        taken: list[Entry] = []
        while self._waiting and len(taken) < _WRITTEN_AT_ONCE:
            tenant_id = next(iter(self._waiting))
            entries = self._waiting[tenant_id]
            part = entries[: _WRITTEN_AT_ONCE - len(taken)]
            del entries[: len(part)]
            if not entries:
                del self._waiting[tenant_id]
            taken.extend(part)
        self._size -= len(taken)
        return taken

    async def run_forever(self) -> None:
        """Write waiting entries every second, and sooner if many wait, until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), _FLUSH_S)
            self._due.clear()
            try:
                await self.flush()
            except AppError as error:
                self._log.warning("audit.flush_failed", code=error.code)
                await asyncio.sleep(_FLUSH_S)

    async def list_entries(self, tenant_id: TenantId, *, where: AuditFilter, asked: PageRequest) -> Page[AuditEntry]:
        """Return a tenant's entries by time, sealed or not. Entries that wait in this process are written first."""
        scope = f"audit|{tenant_id}|{asked.order}|{where!r}"
        window = self._cursors.window(scope, asked, datetime.fromisoformat, UUID)
        if tenant_id in self._waiting:
            await self.flush()
        async with self._database.transaction(tenant_id, read_only=True) as tx:
            rows = await store.page_entries(tx, tenant_id, window, where=where)
        page = self._cursors.page(
            rows, asked, scope=scope, key=lambda row: [row[0].recorded_at.isoformat(), str(row[0].id)]
        )
        return page_of_views(page, Page[AuditEntry], lambda row: _view(*row))

    async def verify(self, tenant_id: TenantId, *, body: AuditVerify) -> AuditVerification:
        """Walk a bounded part of a tenant's chains. Raises Invalid `cursor_invalid`."""
        trusted = {chain.day: Checkpoint(chain.entries, bytes.fromhex(chain.hash)) for chain in body.known}
        scope = f"audit-verification|{tenant_id}|{_digest(trusted)}"
        place = ChainPlace()
        if body.cursor is not None:
            ordinal, number, last_hash = self._cursors.read(scope, body.cursor)
            place = ChainPlace(int(ordinal), int(number), bytes.fromhex(str(last_hash)))
        async with self._ops.snapshot() as tx:
            part = await verify_part(tx, tenant_id, trusted=trusted, place=place, max_entries=body.max_entries)
            unsealed = await store.count_unsealed(tx, tenant_id)
        after = part.next_place
        cursor = None if after is None else self._cursors.write(scope, [after.ordinal, after.number, after.hash.hex()])
        return verification_of(part, unsealed=unsealed, next_cursor=cursor)


def _digest(trusted: Mapping[date, Checkpoint]) -> str:
    text = "|".join(f"{day}:{at.number}:{at.hash.hex()}" for day, at in sorted(trusted.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def _entry_of_loss(tenant_id: TenantId, count: int) -> Entry:
    return Entry(
        tenant_id=tenant_id,
        id=new_uuid(),
        recorded_at=datetime.now(UTC),
        key_id=None,
        actor=ActorKind.JOB,
        action=Action.AUDIT_LOSE,
        object_kind=None,
        object_id=None,
        conversation_id=None,
        first_seq=None,
        last_seq=None,
        head_hash=None,
        counts={"entries": count},
        request_id=None,
    )


def _view(entry: Entry, day: date | None, number: int | None) -> AuditEntry:
    head_hash = None if entry.head_hash is None else entry.head_hash.hex()
    return view_of(AuditEntry, entry, head_hash=head_hash, day=day, number=number)
