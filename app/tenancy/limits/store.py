"""Queries on limits and on what tenants use."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from app.core.database.transactions import Transaction, row_as
from app.core.ids import KeyId, TenantId
from app.tenancy.limits.schemas import Quotas, Rates, TenantLimits
from app.tenancy.schemas import ERASED_NAME


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tenant has stored on a day (UTC)."""

    day: date
    turns: int
    bytes: int
    vectors: int


async def add_usage(
    tx: Transaction,
    tenant_ids: Sequence[TenantId],
    *,
    turns: Sequence[int],
    sizes: Sequence[int],
    vectors: Sequence[int],
) -> dict[TenantId, Usage]:
    """Add to today's rows of tenants, and return these rows; deleted and erased tenants have none (ops role)."""
    rows = await tx.fetch(
        """
        insert into tenant_usage (tenant_id, day, turns, bytes, vectors)
        select t.tenant_id, (now() at time zone 'UTC')::date, u.turns, u.bytes, u.vectors
        from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[]) as u (tenant_id, turns, bytes, vectors)
        join tenants t on t.tenant_id = u.tenant_id and t.name <> $5
        order by t.tenant_id
        on conflict (tenant_id, day) do update
        set turns = tenant_usage.turns + excluded.turns, bytes = tenant_usage.bytes + excluded.bytes,
            vectors = tenant_usage.vectors + excluded.vectors
        returning tenant_id, day, turns, bytes, vectors
        """,
        tenant_ids,
        turns,
        sizes,
        vectors,
        ERASED_NAME,
    )
    return {row["tenant_id"]: row_as(Usage, row) for row in rows}


async def read_limits(tx: Transaction, tenant_id: TenantId) -> TenantLimits:
    """Return the limits that were set for a tenant."""
    row = await tx.fetchrow("select rates, quotas from tenant_limits where tenant_id = $1", tenant_id)
    if row is None:
        return TenantLimits()
    return TenantLimits(rates=Rates.model_validate_json(row["rates"]), quotas=Quotas.model_validate_json(row["quotas"]))


async def read_usage(tx: Transaction, tenant_id: TenantId) -> Usage | None:
    """Return what a tenant has stored today, or None for nothing."""
    row = await tx.fetchrow(
        "select day, turns, bytes, vectors from tenant_usage"
        " where tenant_id = $1 and day = (now() at time zone 'UTC')::date",
        tenant_id,
    )
    return None if row is None else row_as(Usage, row)


async def write_limits(tx: Transaction, tenant_id: TenantId, limits: TenantLimits) -> bool:
    """Replace the limits of a tenant; false if there is no such tenant (ops role)."""
    return (
        await tx.execute(
            """
            insert into tenant_limits (tenant_id, rates, quotas)
            select tenant_id, $2::jsonb, $3::jsonb from tenants where tenant_id = $1
            on conflict (tenant_id) do update
            set rates = excluded.rates, quotas = excluded.quotas, updated_at = excluded.updated_at
            """,
            tenant_id,
            limits.rates.model_dump_json(exclude_none=True),
            limits.quotas.model_dump_json(exclude_none=True),
        )
        == 1
    )


async def read_key_rates(tx: Transaction, tenant_id: TenantId, key_id: KeyId) -> Rates | None:
    """Return the rates that were set for a key; None if there is no such key."""
    row = await tx.fetchrow("select rates from api_keys where tenant_id = $1 and id = $2", tenant_id, key_id)
    if row is None:
        return None
    return Rates() if row["rates"] is None else Rates.model_validate_json(row["rates"])


async def write_key_rates(tx: Transaction, tenant_id: TenantId, key_id: KeyId, rates: Rates) -> bool:
    """Replace the rates of a key; false if there is no such key (ops role)."""
    text = rates.model_dump_json(exclude_none=True)
    return (
        await tx.execute(
            "update api_keys set rates = $3::jsonb where tenant_id = $1 and id = $2", tenant_id, key_id, text
        )
        == 1
    )
