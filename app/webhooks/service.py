"""Public API of webhooks: create, change, rotate, test, delete; list deliveries and replay them.

All of it needs the scope `admin`, and content in events the scope `read` too. A secret is shown once.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import Final, NoReturn
from urllib.parse import urlsplit
from uuid import UUID

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.core.database.transactions import Database, Transaction
from app.core.errors import Conflict, FieldError, Invalid, NotFound
from app.core.ids import format_id, new_uuid, parse_id
from app.core.jobs import Job, JobQueue, NewJob
from app.core.paging import Cursors, Page, PageRequest, page_of_views
from app.core.views import view_of
from app.formats.schemas import JsonObject
from app.operations.schemas import Operation
from app.operations.service import OperationRun, Operations
from app.providers.service import is_address, is_public
from app.settings.webhooks import WebhookSettings
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult, Scope
from app.tenancy.service import Tenancy
from app.webhooks import delivery_store, store
from app.webhooks.delivery_store import DeliveryFilter, DeliveryRow, ReplayRange
from app.webhooks.dispatch import add_webhook_metrics, dispatching
from app.webhooks.outbox import WebhookOutbox
from app.webhooks.payloads import SHAPES
from app.webhooks.schemas import (
    TEST_EVENT,
    Delivery,
    DeliveryStatus,
    DisabledReason,
    ReplayRequest,
    SecretRotate,
    Webhook,
    WebhookCreate,
    WebhookMade,
    WebhookUpdate,
)
from app.webhooks.signing import secret_key, secret_text
from app.webhooks.store import WebhookRow

__all__ = [
    "PURGE_JOB",
    "REPLAY",
    "SECRET_PURPOSE",
    "SHAPES",
    "DeliveryFilter",
    "Webhooks",
    "add_webhook_metrics",
    "dispatching",
]

PURGE_JOB: Final = "webhooks.purge"
"""Job that deletes the deliveries of a deleted webhook. Its subject is the webhook."""
_MAX_WEBHOOKS: Final = 20
"""Webhooks of a tenant: every event is compared with each of them."""
REPLAY: Final = "webhook_replay"
"""Kind of the operation that replays many deliveries."""
SECRET_PURPOSE: Final = "webhooks"  # noqa: S105 - the name of a purpose
_DELETED_AT_ONCE: Final = 1_000
_REPLAYED_AT_ONCE: Final = 500
_MAX_SWEEPS: Final = 100
_NO_WEBHOOK: Final = "There is no such webhook."


class Webhooks:
    """Webhooks of tenants and their deliveries."""

    def __init__(
        self,
        database: Database,
        ops: Database,
        *,
        tenancy: Tenancy,
        operations: Operations,
        jobs: JobQueue,
        cursors: Cursors,
        outbox: WebhookOutbox,
        announce: Callable[[], None],
        settings: WebhookSettings,
    ) -> None:
        """`announce` tells other processes that webhooks have changed."""
        self._database = database
        self._ops = ops
        self._idempotency = tenancy.idempotency
        self._secret = tenancy.secret_for(SECRET_PURPOSE)
        self._operations = operations
        self._jobs = jobs
        self._cursors = cursors
        self._outbox = outbox
        self._announce = announce
        self._due = outbox.notify
        self._settings = settings
        self._retry_for = timedelta(seconds=settings.webhook_retry_for_s)

    # webhooks

    async def create(
        self, caller: Caller, *, body: WebhookCreate, idempotency_key: IdempotencyKey | None
    ) -> WebhookMade:
        """Create a webhook. Raises Invalid, Forbidden, Conflict `too_many_webhooks` and `secret_shown_once`."""
        _require(caller, include_content=body.include_content)
        self._require_allowed(body.url)
        webhook_id = new_uuid()
        async with self._database.transaction(caller.tenant_id) as tx:
            await self._idempotency.reserve(caller, tx, idempotency_key, read=_refuse_repeat)
            await store.lock_tenant(tx, caller.tenant_id)
            if await store.count(tx, caller.tenant_id) >= _MAX_WEBHOOKS:
                raise Conflict(
                    "too_many_webhooks",
                    f"The tenant has {_MAX_WEBHOOKS} webhooks, which is the limit; delete one first.",
                )
            row = await store.insert_webhook(tx, caller.tenant_id, webhook_id, body=body, event_types=_types(body))
            await self._idempotency.store_result(caller, tx, idempotency_key, [webhook_id], is_new=True)
            record(tx, caller, Action.WEBHOOK_CREATE, ObjectKind.WEBHOOK, webhook_id, counts={"webhooks": 1})
            tx.after_commit.append(self._announce)
        await self._outbox.refresh_or_mark_stale()
        return self._made(row)

    async def list_page(self, caller: Caller, *, asked: PageRequest) -> Page[Webhook]:
        """Return a page of the tenant's webhooks, in the order of their creation."""
        caller.require(Scope.ADMIN)
        scope = f"webhooks|{caller.tenant_id}|{asked.order}"
        window = self._cursors.window(scope, asked, UUID)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            rows = await store.list_page(tx, caller.tenant_id, window)
        page = self._cursors.page(rows, asked, scope=scope, key=lambda row: [str(row.id)])
        return page_of_views(page, Page[Webhook], _view)

    async def get(self, caller: Caller, webhook_id: UUID) -> Webhook:
        """Return a webhook. Raises NotFound."""
        caller.require(Scope.ADMIN)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            return _view(await _found(caller, tx, webhook_id))

    async def update(self, caller: Caller, webhook_id: UUID, *, body: WebhookUpdate) -> Webhook:
        """Change a webhook. Raises NotFound, Invalid, Forbidden."""
        names = body.model_fields_set
        _require(caller, include_content=bool(body.include_content))
        if body.url is not None:
            self._require_allowed(body.url)
        async with self._database.transaction(caller.tenant_id) as tx:
            row = await _found(caller, tx, webhook_id, locked=True)
            # a new receiver would get content that this key may not read
            _require(caller, include_content=row.include_content and body.include_content is None and "url" in names)
            changed = _changed(row, body)
            row = await store.update_webhook(tx, changed)
            if body.enabled:
                await delivery_store.resume(tx, caller.tenant_id, webhook_id)
                tx.after_commit.append(self._due)
            record(tx, caller, Action.WEBHOOK_UPDATE, ObjectKind.WEBHOOK, webhook_id)
            tx.after_commit.append(self._announce)
        await self._outbox.refresh_or_mark_stale()
        return _view(row)

    async def rotate_secret(
        self, caller: Caller, webhook_id: UUID, *, body: SecretRotate, idempotency_key: IdempotencyKey | None
    ) -> WebhookMade:
        """Give a webhook a new secret. Raises NotFound, Conflict `secret_shown_once` for a repeat."""
        caller.require(Scope.ADMIN)
        async with self._database.transaction(caller.tenant_id) as tx:
            await self._idempotency.reserve(caller, tx, idempotency_key, read=_refuse_repeat)
            row = await _found(caller, tx, webhook_id, locked=True)
            until = datetime.now(UTC) + timedelta(seconds=body.grace_s)
            row = await store.rotate(tx, row, until=until)
            await self._idempotency.store_result(caller, tx, idempotency_key, [webhook_id], is_new=False)
            record(tx, caller, Action.WEBHOOK_ROTATE, ObjectKind.WEBHOOK, webhook_id)
        return self._made(row)

    async def delete(self, caller: Caller, webhook_id: UUID) -> None:
        """Delete a webhook; a job deletes its deliveries. Raises NotFound."""
        caller.require(Scope.ADMIN)
        async with self._database.transaction(caller.tenant_id) as tx:
            if not await store.delete_webhook(tx, caller.tenant_id, webhook_id):
                raise NotFound("not_found", _NO_WEBHOOK)
            await self._jobs.enqueue(
                tx, caller.tenant_id, [NewJob(PURGE_JOB, [webhook_id], dedupe_key=str(webhook_id))]
            )
            record(tx, caller, Action.WEBHOOK_DELETE, ObjectKind.WEBHOOK, webhook_id, counts={"webhooks": 1})
            tx.after_commit.append(self._announce)

    async def send_test(
        self, caller: Caller, webhook_id: UUID, *, idempotency_key: IdempotencyKey | None
    ) -> RequestResult[Delivery]:
        """Store a test event, which is sent once, also by a disabled webhook. Raises NotFound."""
        caller.require(Scope.ADMIN)
        async with self._database.transaction(caller.tenant_id) as tx:
            result = await self._idempotency.run_once(
                caller,
                tx,
                idempotency_key,
                run=lambda: self._store_test(caller, tx, webhook_id),
                result_ids=lambda delivery: [webhook_id, parse_id(delivery.id)],
                read=_read_delivery,
            )
            tx.after_commit.append(self._due)
        return result

    async def _store_test(self, caller: Caller, tx: Transaction, webhook_id: UUID) -> RequestResult[Delivery]:
        await _found(caller, tx, webhook_id, locked=True)
        event_id = new_uuid()
        await delivery_store.insert_delivery(
            tx, caller.tenant_id, webhook_id, event_id, event_type=TEST_EVENT, retry_for=timedelta(0)
        )
        record(tx, caller, Action.WEBHOOK_TEST, ObjectKind.WEBHOOK, webhook_id)
        return RequestResult(await _read_delivery(caller, tx, [webhook_id, event_id]), is_new=True)

    # deliveries

    async def list_deliveries(
        self, caller: Caller, webhook_id: UUID, *, where: DeliveryFilter, asked: PageRequest
    ) -> Page[Delivery]:
        """Return a page of a webhook's deliveries, in the order of their events. Raises NotFound."""
        caller.require(Scope.ADMIN)
        scope = f"webhook_deliveries|{caller.tenant_id}|{webhook_id}|{asked.order}|{where!r}"
        window = self._cursors.window(scope, asked, int)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            await _found(caller, tx, webhook_id)
            rows = await delivery_store.list_page(tx, caller.tenant_id, webhook_id, window, where=where)
        page = self._cursors.page(rows, asked, scope=scope, key=lambda row: [row.number])
        return page_of_views(page, Page[Delivery], _delivery_view)

    async def get_delivery(self, caller: Caller, webhook_id: UUID, event_id: UUID) -> Delivery:
        """Return a delivery. Raises NotFound."""
        caller.require(Scope.ADMIN)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            return await _read_delivery(caller, tx, [webhook_id, event_id])

    async def replay(self, caller: Caller, webhook_id: UUID, event_id: UUID) -> Delivery:
        """Send an event again, with the same id and all retries. Raises NotFound."""
        caller.require(Scope.ADMIN)
        async with self._database.transaction(caller.tenant_id) as tx:
            await _read_delivery(caller, tx, [webhook_id, event_id])
            await delivery_store.replay(tx, caller.tenant_id, webhook_id, [event_id], retry_for=self._retry_for)
            record(tx, caller, Action.WEBHOOK_REPLAY, ObjectKind.WEBHOOK, webhook_id, counts={"deliveries": 1})
            tx.after_commit.append(self._due)
            return await _read_delivery(caller, tx, [webhook_id, event_id])

    async def replay_since(
        self, caller: Caller, webhook_id: UUID, *, body: ReplayRequest, idempotency_key: IdempotencyKey | None
    ) -> RequestResult[Operation]:
        """Start the operation that sends many events again. Raises NotFound, RateLimited `too_many_operations`."""
        caller.require(Scope.ADMIN)
        async with self._database.transaction(caller.tenant_id) as tx:
            return await self._idempotency.run_once(
                caller,
                tx,
                idempotency_key,
                run=lambda: self._start_replay(caller, tx, webhook_id, body),
                result_ids=lambda operation: [parse_id(operation.id)],
                read=self._read_operation,
            )

    async def _start_replay(
        self, caller: Caller, tx: Transaction, webhook_id: UUID, body: ReplayRequest
    ) -> RequestResult[Operation]:
        await _found(caller, tx, webhook_id)
        parameters: JsonObject = {
            "webhook_id": str(webhook_id),
            "statuses": [status.value for status in body.statuses],
            "since": body.since.isoformat(),
            # events of after the request are not asked for
            "until": (body.until or datetime.now(UTC)).isoformat(),
        }
        operation = await self._operations.start(caller, tx, kind=REPLAY, parameters=parameters)
        record(tx, caller, Action.WEBHOOK_REPLAY, ObjectKind.WEBHOOK, webhook_id)
        return RequestResult(operation, is_new=True)

    async def _read_operation(self, caller: Caller, tx: Transaction, ids: Sequence[UUID]) -> Operation:
        return await self._operations.find(caller, tx, operation_id=ids[0])

    async def run_replay(self, run: OperationRun) -> None:
        """Replay the next deliveries of an operation until all are pending, or a pause is due."""
        parameters = run.parameters
        webhook_id = UUID(str(parameters["webhook_id"]))
        statuses = parameters["statuses"]
        chosen = ReplayRange(
            [str(status) for status in statuses] if isinstance(statuses, list) else [],
            datetime.fromisoformat(str(parameters["since"])),
            datetime.fromisoformat(str(parameters["until"])),
        )
        while not run.has_ended and not run.pause_is_due:
            async with self._database.transaction(run.tenant_id) as tx:
                total = run.total
                if total is None:
                    total = await delivery_store.count_range(tx, run.tenant_id, webhook_id, chosen)
                after = 0 if run.state is None else int(str(run.state["after"]))
                deliveries = await delivery_store.list_range(
                    tx, run.tenant_id, webhook_id, chosen, after=after, limit=_REPLAYED_AT_ONCE
                )
                if deliveries:
                    ids = [event_id for event_id, _ in deliveries]
                    await delivery_store.replay(tx, run.tenant_id, webhook_id, ids, retry_for=self._retry_for)
                    tx.after_commit.append(self._due)
                done = run.done + len(deliveries)
                await run.checkpoint(
                    tx, done=done, total=total, state={"after": deliveries[-1][1] if deliveries else after}
                )
                if len(deliveries) < _REPLAYED_AT_ONCE:
                    await run.succeed(tx, result={"deliveries": done})

    # by jobs

    async def purge(self, job: Job) -> None:
        """Delete the deliveries of a deleted webhook, in bounded transactions."""
        [webhook_id, *_] = job.subject_ids
        deleted = _DELETED_AT_ONCE
        while deleted == _DELETED_AT_ONCE:
            async with self._ops.across_tenants() as tx:
                deleted = await delivery_store.delete_of(tx, job.tenant_id, webhook_id, limit=_DELETED_AT_ONCE)

    async def sweep(self) -> int:
        """Delete old deliveries in bounded transactions, and return their number."""
        age = timedelta(days=self._settings.webhook_deliveries_days)
        swept = 0
        for _ in range(_MAX_SWEEPS):
            async with self._ops.across_tenants() as tx:
                deleted = await delivery_store.delete_old(tx, age=age, limit=_DELETED_AT_ONCE)
            swept += deleted
            if deleted < _DELETED_AT_ONCE:
                break
        return swept

    def _require_allowed(self, url: str) -> None:
        """Raise Invalid for a URL that would never be called: http, or a private address. Names are checked later."""
        parts = urlsplit(url)
        problem = None
        if parts.scheme != "https" and not self._settings.webhook_allow_http:
            problem = "must be https; TURNKEEP_WEBHOOK_ALLOW_HTTP allows http"
        host = parts.hostname or ""
        if is_address(host) and not is_public(host) and not self._settings.webhook_allow_private:
            problem = "must not be a private, local or reserved address"
        if problem is not None:
            raise Invalid(
                "invalid_request",
                "The URL of the webhook is not allowed; nothing was changed.",
                fields=[FieldError("/url", problem)],
            )

    def _made(self, row: WebhookRow) -> WebhookMade:
        key = secret_key(self._secret, row.tenant_id, row.id, row.secret_version)
        return WebhookMade(**_view(row).model_dump(), secret=secret_text(key))


def _require(caller: Caller, *, include_content: bool) -> None:
    caller.require(Scope.ADMIN)
    if include_content:
        caller.require(Scope.READ)


def _types(body: WebhookCreate | WebhookUpdate) -> list[str] | None:
    return None if body.event_types is None else sorted({event_type.value for event_type in body.event_types})


def _changed(row: WebhookRow, body: WebhookUpdate) -> WebhookRow:
    """Return a webhook with the values that a request gives."""
    names = body.model_fields_set
    changed = replace(
        row,
        url=body.url or row.url,
        description=body.description if "description" in names else row.description,
        event_types=_types(body) if "event_types" in names else row.event_types,
        project=body.project if "project" in names else row.project,
        include_content=row.include_content if body.include_content is None else body.include_content,
    )
    if body.enabled is None or body.enabled == row.is_enabled:
        return changed
    reason = None if body.enabled else DisabledReason.REQUEST.value
    return replace(changed, is_enabled=body.enabled, disabled_reason=reason, failing_since=None)


async def _found(caller: Caller, tx: Transaction, webhook_id: UUID, *, locked: bool = False) -> WebhookRow:
    row = await store.find(tx, caller.tenant_id, webhook_id, locked=locked)
    if row is None:
        raise NotFound("not_found", _NO_WEBHOOK)
    return row


async def _read_delivery(caller: Caller, tx: Transaction, ids: Sequence[UUID]) -> Delivery:
    webhook_id, event_id = ids
    await _found(caller, tx, webhook_id)
    row = await delivery_store.find(tx, caller.tenant_id, webhook_id, event_id)
    if row is None:
        raise NotFound("not_found", "There is no such delivery, or it is too old to be kept.")
    return _delivery_view(row)


async def _refuse_repeat(caller: Caller, tx: Transaction, result_ids: Sequence[UUID]) -> NoReturn:
    await _found(caller, tx, result_ids[0])
    raise Conflict(
        "secret_shown_once",
        "This request was done, and its answer had a secret that is shown once. Rotate the secret to get another.",
        extra={"id": format_id(result_ids[0])},
    )


def _view(row: WebhookRow) -> Webhook:
    return view_of(Webhook, row, enabled=row.is_enabled)


def _delivery_view(row: DeliveryRow) -> Delivery:
    is_waiting = row.status == DeliveryStatus.PENDING.value and row.due_at is not None
    # infinity, which the driver reads as the last time: the webhook is disabled
    is_disabled = row.due_at is not None and row.due_at.year == MAXYEAR
    due_at = row.due_at if is_waiting and not is_disabled else None
    return view_of(Delivery, row, id=row.event_id, type=row.event_type, next_attempt_at=due_at)
