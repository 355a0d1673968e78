"""Queries on the usage of chat models by tenants."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from uuid import UUID

import asyncpg

from app.core.database.transactions import Transaction
from app.core.ids import TenantId, format_id
from app.tenancy.schemas import ModelUsageDay


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


async def spent_today(tx: Transaction, tenant_id: TenantId) -> SpentToday:
    """Return a tenant's usage of today, for all purposes."""
    row = await tx.fetchrow(
        """
        select coalesce(sum(prompt_tokens + completion_tokens), 0)::bigint as tokens, coalesce(sum(cost), 0) as cost,
               ceil(extract(epoch from (now() at time zone 'UTC')::date + 1 - now() at time zone 'UTC'))::int as left_s
        from model_usage where tenant_id = $1 and day = (now() at time zone 'UTC')::date
        """,
        tenant_id,
    )
    return SpentToday(0, Decimal(0), 0) if row is None else SpentToday(row["tokens"], row["cost"], row["left_s"])


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


async def page_usage(
    tx: Transaction,
    tenant_id: TenantId | None,
    *,
    days: tuple[date | None, date | None],
    purpose: str | None,
    newest_first: bool,
    after: tuple[date, UUID, str, str] | None,
    limit: int,
) -> list[ModelUsageDay]:
    """List rows by day, of one tenant or, with the ops role, of all; `days` are the first and the last."""
    direction, beyond = ("desc", "<") if newest_first else ("asc", ">")
    args: list[object] = [limit]
    wheres: list[str] = []

    def bind(condition: str, *values: object) -> None:
        places = [f"${len(args) + number}" for number in range(1, len(values) + 1)]
        args.extend(values)
        wheres.append(condition.format(*places))

    for condition, value in (("tenant_id = {}", tenant_id), ("day >= {}", days[0]), ("day <= {}", days[1])):
        if value is not None:
            bind(condition, value)
    if purpose is not None:
        bind("purpose = {}", purpose)
    if after is not None:
        bind(f"(day, tenant_id, purpose, model) {beyond} ({{}}, {{}}, {{}}, {{}})", *after)
    order = ", ".join(f"{column} {direction}" for column in ("day", "tenant_id", "purpose", "model"))
    where = f"where {' and '.join(wheres)}" if wheres else ""
    rows = await tx.fetch(
        "select tenant_id, day, purpose, model, calls, failed, prompt_tokens, completion_tokens, cost"  # noqa: S608
        f" from model_usage {where} order by {order} limit $1",
        *args,
    )
    return _views(rows)


def _views(rows: "Sequence[asyncpg.Record]") -> list[ModelUsageDay]:
    return [
        ModelUsageDay(
            tenant_id=format_id(row["tenant_id"]),
            day=row["day"],
            purpose=row["purpose"],
            model=row["model"],
            calls=row["calls"],
            failed=row["failed"],
            prompt_tokens=row["prompt_tokens"],
            completion_tokens=row["completion_tokens"],
            cost=float(row["cost"]),
        )
        for row in rows
    ]
