"""Queries on deliveries and lanes. Each names the tenant, except those of the dispatcher's claim and of the sweep."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import ClauseElement, Interval, and_, bindparam, delete, func, select, update
from sqlalchemy import text as sql
from sqlalchemy.dialects.postgresql import insert

from app.core.database.queries import NOW, Query, arguments, columns, compiled, delete_some, equals, given, is_any, page
from app.core.database.transactions import Transaction, row_as
from app.core.ids import TenantId
from app.core.paging import Window
from app.providers.schemas import SendResult
from app.webhooks.schemas import DeliveryStatus
from app.webhooks.tables import webhook_deliveries, webhook_lanes


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A delivery as it lies in the table. `due_at` is that of its lane, if it is pending."""

    tenant_id: TenantId
    webhook_id: UUID
    event_id: UUID
    number: int
    event_type: str
    lane: UUID
    conversation_id: UUID | None
    object_id: UUID
    status: str
    attempts: int
    last_status: int | None
    last_error: str | None
    recorded_at: datetime
    retry_until: datetime
    attempted_at: datetime | None
    delivered_at: datetime | None
    due_at: datetime | None = None


class LaneKey(NamedTuple):
    """The key of a lane in a process: a conversation id is unique in its tenant only."""

    tenant_id: TenantId
    webhook_id: UUID
    lane: UUID


class ReceiverKey(NamedTuple):
    """The key of a webhook in a process."""

    tenant_id: TenantId
    webhook_id: UUID


_D, _L = webhook_deliveries.c, webhook_lanes.c
_OF_LANE = equals(webhook_lanes, "tenant_id", "webhook_id", "lane")
_MINE = (*_OF_LANE, _L.locked_by == bindparam("process"))
_UNTIL = NOW + bindparam("lease", type_=Interval)
_THIS = equals(webhook_deliveries, "tenant_id", "webhook_id", "event_id")
_ROW = (*columns(webhook_deliveries, DeliveryRow, but=("due_at",)), _L.due_at)
_WITH_LANE = webhook_deliveries.outerjoin(
    webhook_lanes,
    and_(_L.tenant_id == _D.tenant_id, _L.webhook_id == _D.webhook_id, _L.lane == _D.lane, _D.status == "pending"),
)
_RENEW = Query(update(webhook_lanes).values(locked_until=_UNTIL).where(*_MINE))
_RELEASE = Query(
    update(webhook_lanes)
    .values(locked_by=None, locked_until=None, due_at=NOW + bindparam("delay", type_=Interval))
    .where(*_MINE)
)
_PARK = Query(update(webhook_lanes).values(locked_by=None, locked_until=None, due_at=sql("'infinity'")).where(*_MINE))
_DELETE_LANE = Query(delete(webhook_lanes).where(*_MINE))
_FIRST_PENDING = Query(
    select(*_ROW)
    .select_from(_WITH_LANE)
    .where(*equals(webhook_deliveries, "tenant_id", "webhook_id", "lane"), _D.status == "pending")
    .order_by(_D.number)
    .limit(1)
)
_RECORD = Query(
    update(webhook_deliveries)
    .values(
        **arguments("status", "last_status", "last_error", "delivered_at"), attempts=_D.attempts + 1, attempted_at=NOW
    )
    .where(*_THIS)
)
_FIND = Query(select(*_ROW).select_from(_WITH_LANE).where(*_THIS))
_INSERT = Query(
    insert(webhook_deliveries).values(
        **arguments("tenant_id", "webhook_id", "event_id", "event_type", "lane", "object_id"),
        recorded_at=NOW,
        retry_until=NOW + bindparam("retry_for", type_=Interval),
    )
)
_REPLAY = Query(
    update(webhook_deliveries)
    .values(status="pending", attempts=0, retry_until=NOW + bindparam("retry_for", type_=Interval))
    .where(*equals(webhook_deliveries, "tenant_id", "webhook_id"), is_any(_D.event_id, "event_ids"))
)
_RESUME = Query(
    update(webhook_lanes)
    .values(due_at=func.least(_L.due_at, NOW))
    .where(*equals(webhook_lanes, "tenant_id", "webhook_id"))
)
_OLD = _D.recorded_at < NOW - bindparam("age", type_=Interval)
_DELETE_OLD = Query(delete_some(webhook_deliveries, _OLD))
_DELETE_OF = Query(delete_some(webhook_deliveries, *equals(webhook_deliveries, "webhook_id"), of_tenant=True))
_LANES_OF = Query(
    select(_D.lane)
    .distinct()
    .where(*equals(webhook_deliveries, "tenant_id", "webhook_id"), is_any(_D.event_id, "event_ids"))
    .order_by(_D.lane)
)


_CLAIM: Final = """
    with recursive receivers (tenant_id, webhook_id) as (
        (select tenant_id, webhook_id from webhook_lanes order by tenant_id, webhook_id limit 1)
        union all
        select n.tenant_id, n.webhook_id from receivers r cross join lateral (
            select o.tenant_id, o.webhook_id from webhook_lanes o
            where (o.tenant_id, o.webhook_id) > (r.tenant_id, r.webhook_id)
            order by o.tenant_id, o.webhook_id limit 1
        ) n
    ), due as materialized (
        select o.tenant_id, o.webhook_id, o.lane, o.due_at from receivers r cross join lateral (
            select o.tenant_id, o.webhook_id, o.lane, o.due_at from webhook_lanes o
            where o.tenant_id = r.tenant_id and o.webhook_id = r.webhook_id and o.due_at <= statement_timestamp()
              and (o.locked_until is null or o.locked_until < statement_timestamp())
            order by o.due_at limit 4 * $2::integer
        ) o
        where r.tenant_id <> all($6::uuid[]) and not exists (
            select from unnest($4::uuid[], $5::uuid[]) as b (tenant_id, webhook_id)
            where b.tenant_id = r.tenant_id and b.webhook_id = r.webhook_id
        )
        order by o.due_at limit 4 * $2::integer
    ), picked as materialized (
        select l.tenant_id, l.webhook_id, l.lane
        from due join webhook_lanes l using (tenant_id, webhook_id, lane)
        where l.due_at <= statement_timestamp()
          and (l.locked_until is null or l.locked_until < statement_timestamp())
        order by due.due_at limit $2 for update of l skip locked
    )
    update webhook_lanes l set locked_by = $1, locked_until = statement_timestamp() + $3
    from picked
    where l.tenant_id = picked.tenant_id and l.webhook_id = picked.webhook_id and l.lane = picked.lane
    returning l.tenant_id, l.webhook_id, l.lane
"""


async def claim(
    tx: Transaction,
    process: UUID,
    *,
    limit: int,
    lease: timedelta,
    busy: Sequence[ReceiverKey],
    busy_tenants: Sequence[TenantId],
) -> list[LaneKey]:
    """Claim due lanes of tenants and webhooks that are not busy, those that are due for longest first (ops role).

    It steps from receiver to receiver, so it reads few lanes however many are due, waiting or busy. It reads more than
    `limit`, for the case that other processes claim the first ones at the same time.
    """
    if tx.is_distributed:
        return await _claim_on_nodes(tx, process, limit=limit, lease=lease, busy=busy, busy_tenants=busy_tenants)
    rows = await tx.fetch(
        _CLAIM,
        process,
        limit,
        lease,
        [receiver.tenant_id for receiver in busy],
        [receiver.webhook_id for receiver in busy],
        list(busy_tenants),
    )
    return [LaneKey(*row) for row in rows]


async def _claim_on_nodes(
    tx: Transaction,
    process: UUID,
    *,
    limit: int,
    lease: timedelta,
    busy: Sequence[ReceiverKey],
    busy_tenants: Sequence[TenantId],
) -> list[LaneKey]:
    """Claim as `claim`, where tenants are on several nodes: find due lanes on all nodes, then claim one by one."""
    due = await tx.fetch(
        """
        select tenant_id, webhook_id, lane from webhook_lanes
        where due_at <= statement_timestamp() and (locked_until is null or locked_until < statement_timestamp())
          and tenant_id <> all($2::uuid[]) and tenant_id::text || webhook_id::text <> all($3::text[])
        order by due_at limit $1
        """,
        limit,
        list(busy_tenants),
        [f"{receiver.tenant_id}{receiver.webhook_id}" for receiver in busy],
    )
    claimed: list[LaneKey] = []
    # in one order, in which no two processes wait for each other
    for lane in sorted(LaneKey(*row) for row in due):
        done = await tx.execute(
            """
            update webhook_lanes l set locked_by = $4, locked_until = statement_timestamp() + $5
            where l.tenant_id = $1 and l.webhook_id = $2 and l.lane = $3 and l.due_at <= statement_timestamp()
              and (l.locked_until is null or l.locked_until < statement_timestamp())
            """,
            *lane,
            process,
            lease,
        )
        if done:
            claimed.append(lane)
    return claimed


async def renew(tx: Transaction, process: UUID, lane: LaneKey, *, lease: timedelta) -> bool:
    """Lock and renew a claimed lane; false if another process has claimed it since, or it is gone."""
    return await _RENEW.execute(tx, process=process, lease=lease, **lane._asdict()) > 0


async def release(tx: Transaction, process: UUID, lane: LaneKey, *, delay: timedelta) -> None:
    """Give a claimed lane back: it is due again after `delay`."""
    await _RELEASE.execute(tx, process=process, delay=delay, **lane._asdict())


async def park(tx: Transaction, process: UUID, lane: LaneKey) -> None:
    """Give a claimed lane of a disabled webhook back: it is due when the webhook is enabled."""
    await _PARK.execute(tx, process=process, **lane._asdict())


async def delete_lane(tx: Transaction, process: UUID, lane: LaneKey) -> None:
    """Delete a claimed lane. Under the lock of `renew`, a statement before this one has seen no pending delivery."""
    await _DELETE_LANE.execute(tx, process=process, **lane._asdict())


async def first_pending(tx: Transaction, lane: LaneKey) -> DeliveryRow | None:
    """Return the first pending delivery of a lane."""
    row = await _FIRST_PENDING.fetchrow(tx, **lane._asdict())
    return None if row is None else row_as(DeliveryRow, row)


async def record_attempt(
    tx: Transaction, row: DeliveryRow, status: DeliveryStatus, result: SendResult, *, now: datetime
) -> None:
    """Record the outcome of an attempt, after which the delivery has this status."""
    await _RECORD.execute(
        tx,
        tenant_id=row.tenant_id,
        webhook_id=row.webhook_id,
        event_id=row.event_id,
        status=status.value,
        last_status=result.status,
        last_error=None if result.error is None else result.error.value,
        delivered_at=now if status is DeliveryStatus.DELIVERED else None,
    )


async def find(tx: Transaction, tenant_id: TenantId, webhook_id: UUID, event_id: UUID) -> DeliveryRow | None:
    """Return a delivery, or None."""
    row = await _FIND.fetchrow(tx, tenant_id=tenant_id, webhook_id=webhook_id, event_id=event_id)
    return None if row is None else row_as(DeliveryRow, row)


async def insert_delivery(
    tx: Transaction, tenant_id: TenantId, webhook_id: UUID, event_id: UUID, *, event_type: str, retry_for: timedelta
) -> None:
    """Store a delivery of an event of the webhook itself, in a lane of its own."""
    await _INSERT.execute(
        tx,
        tenant_id=tenant_id,
        webhook_id=webhook_id,
        event_id=event_id,
        event_type=event_type,
        lane=event_id,
        object_id=webhook_id,
        retry_for=retry_for,
    )
    await make_due(tx, tenant_id, webhook_id, [event_id])


async def replay(
    tx: Transaction, tenant_id: TenantId, webhook_id: UUID, event_ids: Sequence[UUID], *, retry_for: timedelta
) -> int:
    """Make deliveries pending and due with all their retries; return their number.

    The lanes are locked before the deliveries, as by the process that sends.
    """
    chosen = {"tenant_id": tenant_id, "webhook_id": webhook_id, "event_ids": event_ids}
    lanes = [row["lane"] for row in await _LANES_OF.fetch(tx, **chosen)]
    await make_due(tx, tenant_id, webhook_id, lanes)
    return await _REPLAY.execute(tx, **chosen, retry_for=retry_for)


async def make_due(tx: Transaction, tenant_id: TenantId, webhook_id: UUID, lanes: Sequence[UUID]) -> None:
    """Make lanes due now, given in ascending order, and lock them until the transaction ends."""
    await tx.execute(
        """
        insert into webhook_lanes (tenant_id, webhook_id, lane, due_at)
        select o.tenant_id, $2, lane, statement_timestamp() from tenants o cross join unnest($3::uuid[]) as lane
        where o.tenant_id = $1
        on conflict (tenant_id, webhook_id, lane) do update set due_at = least(webhook_lanes.due_at, excluded.due_at)
        """,
        tenant_id,
        webhook_id,
        lanes,
    )


async def resume(tx: Transaction, tenant_id: TenantId, webhook_id: UUID) -> None:
    """Make all lanes of a webhook due now."""
    await _RESUME.execute(tx, tenant_id=tenant_id, webhook_id=webhook_id)


@compiled
def _page(filters: frozenset[str], *, newest_first: bool, after: bool) -> ClauseElement:
    statement = select(*_ROW).select_from(_WITH_LANE).where(*equals(webhook_deliveries, "tenant_id", "webhook_id"))
    own = filters & {"status", "event_type", "conversation_id"}
    statement = statement.where(*equals(webhook_deliveries, *sorted(own)))
    if "since" in filters:
        statement = statement.where(_D.recorded_at >= bindparam("since", type_=_D.recorded_at.type))
    if "until" in filters:
        statement = statement.where(_D.recorded_at < bindparam("until", type_=_D.recorded_at.type))
    return page(statement, (_D.number,), newest_first=newest_first, after=after)


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """Filters of a list of deliveries: `since` or later, before `until`."""

    status: str | None = None
    event_type: str | None = None
    conversation_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None


async def list_page(
    tx: Transaction, tenant_id: TenantId, webhook_id: UUID, window: Window, *, where: DeliveryFilter
) -> list[DeliveryRow]:
    """Return deliveries in the order of their events."""
    filters = given(**asdict(where))
    query = _page(frozenset(filters), **window.shape)
    rows = await query.fetch(tx, tenant_id=tenant_id, webhook_id=webhook_id, **filters, **window.arguments)
    return [row_as(DeliveryRow, row) for row in rows]


_OF_RANGE = (
    *equals(webhook_deliveries, "tenant_id", "webhook_id"),
    is_any(_D.status, "statuses"),
    _D.recorded_at >= bindparam("since", type_=_D.recorded_at.type),
    _D.recorded_at < bindparam("until", type_=_D.recorded_at.type),
)
_COUNT_RANGE = Query(select(func.count().label("count")).where(*_OF_RANGE))
_LIST_RANGE = Query(
    select(_D.event_id, _D.number)
    .where(*_OF_RANGE, _D.number > bindparam("after"))
    .order_by(_D.number)
    .limit(bindparam("limit"))
)


class ReplayRange(NamedTuple):
    """Deliveries to replay: of these statuses, recorded at `since` or later and before `until`."""

    statuses: Sequence[str]
    since: datetime
    until: datetime


async def count_range(tx: Transaction, tenant_id: TenantId, webhook_id: UUID, chosen: ReplayRange) -> int:
    """Return the number of deliveries to replay."""
    row = await _COUNT_RANGE.fetchrow(tx, tenant_id=tenant_id, webhook_id=webhook_id, **chosen._asdict())
    return 0 if row is None else int(row["count"])


async def list_range(
    tx: Transaction, tenant_id: TenantId, webhook_id: UUID, chosen: ReplayRange, *, after: int, limit: int
) -> list[tuple[UUID, int]]:
    """Return the ids and numbers of the next deliveries to replay, in their order."""
    rows = await _LIST_RANGE.fetch(
        tx, tenant_id=tenant_id, webhook_id=webhook_id, after=after, limit=limit, **chosen._asdict()
    )
    return [(row["event_id"], row["number"]) for row in rows]


async def delete_old(tx: Transaction, *, age: timedelta, limit: int) -> int:
    """Delete deliveries of old events; return their number (ops role)."""
    return await _DELETE_OLD.execute(tx, age=age, limit=limit)


async def delete_of(tx: Transaction, tenant_id: TenantId, webhook_id: UUID, *, limit: int) -> int:
    """Delete deliveries of a webhook; return their number (ops role)."""
    return await _DELETE_OF.execute(tx, tenant_id=tenant_id, webhook_id=webhook_id, limit=limit)
