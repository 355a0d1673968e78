"""Queries on the usage of chat models by tenants."""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from sqlalchemy import BigInteger, ClauseElement, Date, DateTime, Integer, bindparam, cast, extract, func, select

from app.core.database.queries import Query, compiled, equals, given, page
from app.core.database.transactions import Transaction, row_as
from app.core.ids import TenantId
from app.core.paging import Window
from app.tenancy.schemas import ModelUsageDay
from app.tenancy.tables import model_usage

_U = model_usage.c


@dataclass(frozen=True, slots=True)
class SpentToday:
    """A tenant's usage since midnight UTC, and the seconds until the next midnight."""

    tokens: int
    cost: Decimal
    left_s: int


@dataclass(frozen=True, slots=True)
class Spent:
    """Usage to add to a row: calls of one purpose to one model."""

    calls: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cost: Decimal

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.calls + other.calls,
            self.failed + other.failed,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cost + other.cost,
        )


_UTC = func.timezone("UTC", func.now(), type_=DateTime)
_TODAY = cast(_UTC, Date)
_SPENT_TODAY = Query(
    select(
        cast(func.coalesce(func.sum(_U.prompt_tokens + _U.completion_tokens), 0), BigInteger).label("tokens"),
        func.coalesce(func.sum(_U.cost), 0).label("cost"),
        cast(func.ceil(extract("epoch", _TODAY + 1 - _UTC)), Integer).label("left_s"),
    ).where(*equals(model_usage, "tenant_id"), _U.day == _TODAY)
)


async def spent_today(tx: Transaction, tenant_id: TenantId) -> SpentToday:
    """Return a tenant's usage of today, for all purposes."""
    row = await _SPENT_TODAY.fetchrow(tx, tenant_id=tenant_id)
    return SpentToday(0, Decimal(0), 0) if row is None else row_as(SpentToday, row)


async def add_spent(tx: Transaction, tenant_id: TenantId, *, purpose: str, model: str, spent: Spent) -> None:
    """Add to today's row. Does nothing for a deleted tenant."""
    await tx.execute(
        """
        insert into model_usage
            (tenant_id, day, purpose, model, calls, failed, prompt_tokens, completion_tokens, cost)
        select tenant_id, (now() at time zone 'UTC')::date, $2, $3, $4, $5, $6, $7, $8
        from tenants where tenant_id = $1
        on conflict (tenant_id, day, purpose, model) do update
        set calls = model_usage.calls + excluded.calls, failed = model_usage.failed + excluded.failed,
            prompt_tokens = model_usage.prompt_tokens + excluded.prompt_tokens,
            completion_tokens = model_usage.completion_tokens + excluded.completion_tokens,
            cost = model_usage.cost + excluded.cost
        """,
        tenant_id,
        purpose,
        model,
        spent.calls,
        spent.failed,
        spent.prompt_tokens,
        spent.completion_tokens,
        spent.cost,
    )


@compiled
def _page(filters: frozenset[str], *, newest_first: bool, after: bool) -> ClauseElement:
    statement = select(model_usage).where(*equals(model_usage, *sorted(filters - {"first", "last"})))
    if "first" in filters:
        statement = statement.where(_U.day >= bindparam("first"))
    if "last" in filters:
        statement = statement.where(_U.day <= bindparam("last"))
    return page(statement, (_U.day, _U.tenant_id, _U.purpose, _U.model), newest_first=newest_first, after=after)


async def page_usage(
    tx: Transaction,
    tenant_id: TenantId | None,
    window: Window,
    *,
    days: tuple[date | None, date | None],
    purpose: str | None,
) -> list[ModelUsageDay]:
    """List rows by day, of one tenant or, with the ops role, of all; `days` are the first and the last."""
    filters = given(tenant_id=tenant_id, first=days[0], last=days[1], purpose=purpose)
    rows = await _page(frozenset(filters), **window.shape).fetch(tx, **filters, **window.arguments)
    return [ModelUsageDay.model_validate({**row, "cost": float(row["cost"])}) for row in rows]
