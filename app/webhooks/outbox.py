"""The outbox: stores the events of a transaction with its commit, as one delivery for each webhook that wants them.

Invariants: a transaction of a tenant without an enabled webhook gets no statement. Deliveries are stored with the
change, or neither is. Each process knows which tenants have webhooks: its own changes at once, those of other replicas
after a message or the next poll. While it does not know, it asks in the statement of each commit.

The statement has literals only, because it is sent with the commit: ids, times, names of this module, and texts of
callers in hexadecimal.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final
from uuid import UUID

from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError
from app.core.ids import TenantId, new_unordered_uuid
from app.core.outbox import EventType
from app.core.telemetry import get_logger
from app.settings.webhooks import WebhookSettings
from app.webhooks import store

POLL_S: Final = 2.0
"""Time between two looks for due deliveries and for webhooks of other replicas; messages announce most earlier."""
_OUTDATED_AFTER: Final = 5
"""Polls without a result after which a process no longer trusts what it knows."""


class _Events:
    """The events of one transaction, rendered as SQL when it commits."""

    def __init__(self, tenant_id: TenantId, *, retry_for_s: float) -> None:
        self.tenant_id = tenant_id
        self._retry_for_s = retry_for_s
        self._rows: dict[UUID, str] = {}

    def add(self, event_type: EventType, object_id: UUID, *, conversation_id: UUID | None, project: str | None) -> None:
        """Add an event after the others."""
        conversation = "null" if conversation_id is None else f"'{conversation_id}'"
        event_id = new_unordered_uuid()
        self._rows[event_id] = (
            f"({len(self._rows)}, '{event_id}'::uuid, '{event_type.value}',"
            f" '{conversation_id or object_id}'::uuid, {conversation}::uuid, '{object_id}'::uuid,"
            f" {_text(project)}::text)"
        )

    def __call__(self) -> str:
        """Return the statements that store the events for the webhooks that want them."""
        return store.insert_events(self.tenant_id, self._rows, retry_for_s=self._retry_for_s)


class WebhookOutbox:
    """The outbox of this process."""

    def __init__(self, ops: Database, *, settings: WebhookSettings, notify: Callable[[], None]) -> None:
        self._ops = ops
        self._settings = settings
        self.notify = notify
        """Informs the processes that send: deliveries are due."""
        self._wanted: Mapping[TenantId, frozenset[str]] = {}
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self._changed = asyncio.Event()
        self._log = get_logger()

    def record(
        self,
        tx: Transaction,
        tenant_id: TenantId,
        event_type: EventType,
        object_ids: Iterable[UUID],
        *,
        conversation_id: UUID | None = None,
        project: str | None = None,
    ) -> None:
        """Record one event for each object: see `EventOutbox.record`."""
        if self._is_known and event_type.value not in self._wanted.get(tenant_id, ()):
            return
        events: _Events | None = None
        for object_id in object_ids:
            events = events or self._events_of(tx, tenant_id)
            events.add(event_type, object_id, conversation_id=conversation_id, project=project)

    def _events_of(self, tx: Transaction, tenant_id: TenantId) -> _Events:
        for statement in tx.at_commit:
            if isinstance(statement, _Events) and statement.tenant_id == tenant_id:
                return statement
        # all together, so that lanes are always locked in the same order
        events = _Events(tenant_id, retry_for_s=self._settings.webhook_retry_for_s)
        tx.at_commit.append(events)
        tx.after_commit.append(self.notify)
        return events

    @property
    def _is_known(self) -> bool:
        limit_s = _OUTDATED_AFTER * POLL_S
        return self._read_at is not None and time.monotonic() - self._read_at < limit_s

    def refresh_soon(self) -> None:
        """Read again which tenants have webhooks: a message says that one has changed."""
        self._changed.set()

    def mark_stale(self) -> None:
        """Stop using the list in memory until it is read again, because a message may have been lost."""
        self._read_at = None
        self._changed.set()

    async def refresh(self) -> None:
        """Read which tenants have webhooks, and for which events. Raises AppError."""
        # one at a time, so that an earlier result never replaces a later one
        async with self._reading:
            began = time.monotonic()
            async with self._ops.across_tenants() as tx:
                self._wanted = await store.list_wanted(tx)
            self._read_at = began

    async def refresh_or_mark_stale(self) -> None:
        """Read it after a change in this process, whose next transaction must see it."""
        try:
            await self.refresh()
        except AppError:
            self.mark_stale()

    async def follow_forever(self) -> None:
        """Read at each change, and every `POLL_S`, until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), POLL_S)
            self._changed.clear()
            try:
                await self.refresh()
            except AppError as error:
                self._log.warning("webhooks.refresh_failed", code=error.code)


def _text(text: str | None) -> str:
    # hexadecimal, so that no text of a caller can end the literal
    return "null" if text is None else f"convert_from('\\x{text.encode().hex()}'::bytea, 'UTF8')"
