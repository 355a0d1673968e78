"""Queries on webhooks, and the statement that stores events. Each names the tenant, except `list_wanted`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import ClauseElement, bindparam, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.core.database.queries import NOW, Query, arguments, columns, compiled, equals, page
from app.core.database.transactions import Transaction, row_as
from app.core.ids import TenantId
from app.core.outbox import EventType
from app.core.paging import Window
from app.webhooks.schemas import WebhookCreate
from app.webhooks.tables import webhook_lanes, webhooks

ALL_TYPES: Final = frozenset(event_type.value for event_type in EventType)


@dataclass(frozen=True, slots=True)
class WebhookRow:
    """A webhook as it lies in the table."""

    tenant_id: TenantId
    id: UUID
    url: str
    description: str | None
    event_types: Sequence[str] | None
    project: str | None
    include_content: bool
    is_enabled: bool
    disabled_reason: str | None
    failing_since: datetime | None
    secret_version: int
    previous_secret_until: datetime | None
    created_at: datetime
    updated_at: datetime


_W = webhooks.c
_ROW = columns(webhooks, WebhookRow)
_THIS = equals(webhooks, "tenant_id", "id")
_CHANGEABLE = ("url", "description", "event_types", "project", "include_content", "is_enabled", "disabled_reason")
_INSERT = Query(
    insert(webhooks)
    .values(
        **arguments("tenant_id", "id", "url", "description", "event_types", "project", "include_content"),
        created_at=NOW,
        updated_at=NOW,
    )
    .returning(*webhooks.c)
)
_FIND = Query(select(*_ROW).where(*_THIS))
_LOCK = Query(select(*_ROW).where(*_THIS).with_for_update())
_COUNT = Query(select(func.count().label("count")).where(*equals(webhooks, "tenant_id")))
_UPDATE = Query(
    update(webhooks)
    .values(**arguments(*_CHANGEABLE, "failing_since"), updated_at=NOW)
    .where(*_THIS)
    .returning(*webhooks.c)
)
_ROTATE = Query(
    update(webhooks)
    .values(
        secret_version=_W.secret_version + 1,
        previous_secret_until=bindparam("until", type_=_W.previous_secret_until.type),
        updated_at=NOW,
    )
    .where(*_THIS)
    .returning(*webhooks.c)
)
_DELETE = Query(delete(webhooks).where(*_THIS))
_DELETE_LANES = Query(delete(webhook_lanes).where(*equals(webhook_lanes, "tenant_id", "webhook_id")))
_FAILING = Query(
    update(webhooks).values(failing_since=func.least(_W.failing_since, NOW)).where(*_THIS).returning(*webhooks.c)
)
_SUCCEEDED = Query(update(webhooks).values(failing_since=None).where(*_THIS, _W.failing_since.is_not(None)))
_DISABLE = Query(
    update(webhooks)
    .values(is_enabled=False, disabled_reason=bindparam("reason"), updated_at=NOW)
    .where(*_THIS, _W.is_enabled)
)
_WANTED = Query(select(_W.tenant_id, _W.event_types).where(_W.is_enabled))
_LOCK_TENANT = Query(select(func.pg_advisory_xact_lock(bindparam("key"))))


def insert_events(tenant_id: TenantId, events: Mapping[UUID, str], *, retry_for_s: float) -> str:
    """Return the statements that store events for the enabled webhooks that want them, and make their lanes due.

    `events` has rows of SQL literals by event id: number, event_id, event_type, lane, conversation_id, object_id,
    project. The second statement locks lanes in the order of their keys; it looks at what the first one has stored, not
    at what the webhooks want now, which may have changed. An event without a project has that of its conversation.

    Because of the returned column, Citus does not copy the rows to the node, which row-level security would refuse.
    The ops role may join conversations there only as a subquery that names the tenant.
    """
    ids = ", ".join(f"'{event_id}'" for event_id in events)
    return f"""
        insert into webhook_deliveries (tenant_id, webhook_id, event_id, event_type, lane, conversation_id, object_id,
                                        recorded_at, retry_until)
        select w.tenant_id, w.id, event.event_id, event.event_type, event.lane, event.conversation_id,
               event.object_id, statement_timestamp(),
               statement_timestamp() + make_interval(secs => {float(retry_for_s)})
        from webhooks w join (
            values {", ".join(events.values())}
        ) as event (number, event_id, event_type, lane, conversation_id, object_id, project)
            on (w.event_types is null or event.event_type = any(w.event_types))
        left join (select id, project from conversations where tenant_id = '{tenant_id}') c
            on c.id = event.conversation_id
        where w.tenant_id = '{tenant_id}' and w.is_enabled
          and (w.project is null or w.project = coalesce(event.project, c.project))
        order by event.number, w.id
        returning number;
        insert into webhook_lanes (tenant_id, webhook_id, lane, due_at)
        select w.tenant_id, w.id, d.lane, statement_timestamp() from webhooks w
        join webhook_deliveries d on d.tenant_id = w.tenant_id and d.webhook_id = w.id and d.event_id in ({ids})
        where w.tenant_id = '{tenant_id}'
        group by w.tenant_id, w.id, d.lane order by w.id, d.lane
        on conflict (tenant_id, webhook_id, lane) do update set due_at = webhook_lanes.due_at
    """  # noqa: S608


async def list_wanted(tx: Transaction) -> Mapping[TenantId, frozenset[str]]:
    """Return the types of events that the enabled webhooks of each tenant want (ops role)."""
    wanted: dict[TenantId, frozenset[str]] = {}
    for row in await _WANTED.fetch(tx):
        types: Sequence[str] | None = row["event_types"]
        tenant_id = TenantId(row["tenant_id"])
        wanted[tenant_id] = wanted.get(tenant_id, frozenset()) | (ALL_TYPES if types is None else frozenset(types))
    return wanted


async def lock_tenant(tx: Transaction, tenant_id: TenantId) -> None:
    """Let one transaction at a time add webhooks to a tenant, so that their number is exact."""
    await _LOCK_TENANT.execute(tx, key=tenant_id.int >> 65)


async def count(tx: Transaction, tenant_id: TenantId) -> int:
    """Return the number of a tenant's webhooks."""
    row = await _COUNT.fetchrow(tx, tenant_id=tenant_id)
    return 0 if row is None else int(row["count"])


async def insert_webhook(
    tx: Transaction, tenant_id: TenantId, webhook_id: UUID, *, body: WebhookCreate, event_types: Sequence[str] | None
) -> WebhookRow:
    """Store an enabled webhook."""
    values = body.model_dump(include={"url", "description", "project", "include_content"})
    row = await _INSERT.fetchrow(tx, tenant_id=tenant_id, id=webhook_id, event_types=event_types, **values)
    if row is None:
        raise RuntimeError("an insert gave no row")
    return row_as(WebhookRow, row)


async def find(tx: Transaction, tenant_id: TenantId, webhook_id: UUID, *, locked: bool = False) -> WebhookRow | None:
    """Return a webhook, or None; `locked` until the transaction ends."""
    row = await (_LOCK if locked else _FIND).fetchrow(tx, tenant_id=tenant_id, id=webhook_id)
    return None if row is None else row_as(WebhookRow, row)


async def update_webhook(tx: Transaction, row: WebhookRow) -> WebhookRow:
    """Store the changed values of a locked webhook."""
    values = {name: getattr(row, name) for name in (*_CHANGEABLE, "failing_since")}
    changed = await _UPDATE.fetchrow(tx, tenant_id=row.tenant_id, id=row.id, **values)
    return row if changed is None else row_as(WebhookRow, changed)


async def rotate(tx: Transaction, row: WebhookRow, *, until: datetime) -> WebhookRow:
    """Give a locked webhook its next secret; the present one also signs until then."""
    changed = await _ROTATE.fetchrow(tx, tenant_id=row.tenant_id, id=row.id, until=until)
    return row if changed is None else row_as(WebhookRow, changed)


async def delete_webhook(tx: Transaction, tenant_id: TenantId, webhook_id: UUID) -> bool:
    """Delete a webhook and its lanes; return whether there was one. A sweep deletes its deliveries."""
    deleted = await _DELETE.execute(tx, tenant_id=tenant_id, id=webhook_id)
    await _DELETE_LANES.execute(tx, tenant_id=tenant_id, webhook_id=webhook_id)
    return deleted > 0


async def record_failure(tx: Transaction, tenant_id: TenantId, webhook_id: UUID) -> WebhookRow | None:
    """Record that an attempt failed; return the webhook with the time of its first failure since the last success."""
    row = await _FAILING.fetchrow(tx, tenant_id=tenant_id, id=webhook_id)
    return None if row is None else row_as(WebhookRow, row)


async def record_success(tx: Transaction, tenant_id: TenantId, webhook_id: UUID) -> None:
    """Record that an attempt succeeded."""
    await _SUCCEEDED.execute(tx, tenant_id=tenant_id, id=webhook_id)


async def disable(tx: Transaction, tenant_id: TenantId, webhook_id: UUID, *, reason: str) -> bool:
    """Disable an enabled webhook; return whether it was enabled."""
    return await _DISABLE.execute(tx, tenant_id=tenant_id, id=webhook_id, reason=reason) > 0


@compiled
def _page(*, newest_first: bool, after: bool) -> ClauseElement:
    return page(select(*_ROW).where(*equals(webhooks, "tenant_id")), (_W.id,), newest_first=newest_first, after=after)


async def list_page(tx: Transaction, tenant_id: TenantId, window: Window) -> list[WebhookRow]:
    """Return webhooks in the order of their creation."""
    rows = await _page(**window.shape).fetch(tx, tenant_id=tenant_id, **window.arguments)
    return [row_as(WebhookRow, row) for row in rows]
