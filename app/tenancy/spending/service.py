"""Usage of chat models by tenants: counted by day (UTC), purpose and model, and limited by budgets.

A budget is checked before a call and counted after it, so only running calls can exceed it. Usage that could not be
written is kept in the process and written with the tenant's next call, or at the end, on the day of writing.
"""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TypeAlias

from app.core.database.transactions import Database, read_transaction
from app.core.errors import AppError, RateLimited
from app.core.ids import TenantId, format_id, parse_id
from app.core.paging import Cursors, Page, PageRequest
from app.core.telemetry import get_logger
from app.core.times import format_time, next_midnight
from app.providers.schemas import ModelPurpose, ModelUsage
from app.providers.service import cleaned
from app.settings.models import ChatSettings
from app.tenancy.limits import store as limits_store
from app.tenancy.schemas import Caller, ModelUsageDay, Scope
from app.tenancy.spending import store as spending_store
from app.tenancy.spending.store import Spent

_PER_PRICE = 1_000_000
_MAX_UNWRITTEN = 10_000
_LONGEST_MODEL = 256

_Row: TypeAlias = tuple[TenantId, str, str]


class Spending:
    """The ledger of chat models, and its reports."""

    def __init__(self, database: Database, ops: Database, *, cursors: Cursors, settings: ChatSettings) -> None:
        self._database = database
        self._ops = ops
        self._cursors = cursors
        self._settings = settings
        self._unwritten: dict[_Row, Spent] = {}
        self._log = get_logger()

    # as the ledger

    async def check(self, tenant_id: TenantId, purpose: ModelPurpose) -> None:
        """Raise RateLimited `model_budget_exhausted`, with the time of its renewal, if the day's budget is used up."""
        async with self._database.transaction(tenant_id, read_only=True) as tx:
            own = (await limits_store.read_limits(tx, tenant_id)).quotas
            settings = self._settings
            max_tokens = settings.llm_daily_tokens if own.daily_model_tokens is None else own.daily_model_tokens
            max_cost = settings.llm_daily_cost if own.daily_model_cost is None else own.daily_model_cost
            if not max_tokens and not max_cost:
                return
            spent = await spending_store.spent_today(tx, tenant_id)
        waiting = [unwritten for row, unwritten in self._unwritten.items() if row[0] == tenant_id]
        tokens = spent.tokens + sum(unwritten.prompt_tokens + unwritten.completion_tokens for unwritten in waiting)
        cost = spent.cost + sum(unwritten.cost for unwritten in waiting)
        over = bool(max_tokens) and tokens >= max_tokens
        if over or (max_cost and cost >= Decimal(str(max_cost))):
            self._log.info("model.budget_exhausted", tenant_id=format_id(tenant_id), kind=purpose.value)
            raise RateLimited(
                "model_budget_exhausted",
                "The daily budget of this tenant for chat models is used up. It is renewed at midnight, UTC.",
                retry_after_s=spent.left_s,
                extra={"resumes_at": format_time(_renewal_time(spent.left_s))},
            )

    async def record(
        self, tenant_id: TenantId, purpose: ModelPurpose, *, model: str, usage: ModelUsage, failed: bool
    ) -> None:
        """Add one call. Never fails: unwritten usage is written later."""
        spent = Spent(1, int(failed), usage.prompt_tokens, usage.completion_tokens, self._cost(usage))
        # a caller may have named the model: an unstorable name must not fail the answer
        self._keep((tenant_id, purpose.value, cleaned(model)[:_LONGEST_MODEL]), spent)
        await self._write(tenant_id)

    async def flush(self) -> None:
        """Write kept usage; if that fails again, it is lost and logged."""
        for tenant_id in {row[0] for row in self._unwritten}:
            await self._write(tenant_id)

    def _cost(self, usage: ModelUsage) -> Decimal:
        prices = self._settings.llm_price_prompt, self._settings.llm_price_completion
        prompt, completion = (Decimal(str(price)) for price in prices)
        return (prompt * usage.prompt_tokens + completion * usage.completion_tokens) / _PER_PRICE

    def _keep(self, row: _Row, spent: Spent) -> None:
        unwritten = self._unwritten.get(row)
        if unwritten is None and len(self._unwritten) >= _MAX_UNWRITTEN:
            self._log.error("model.usage_lost", tenant_id=format_id(row[0]), count=spent.calls)
            return
        self._unwritten[row] = spent if unwritten is None else unwritten + spent

    async def _write(self, tenant_id: TenantId) -> None:
        rows = {row: self._unwritten.pop(row) for row in sorted(self._unwritten) if row[0] == tenant_id}
        try:
            async with self._database.transaction(tenant_id) as tx:
                for (_, purpose, model), spent in rows.items():
                    await spending_store.add_spent(tx, tenant_id, purpose=purpose, model=model, spent=spent)
        except AppError as error:
            for row, spent in rows.items():
                self._keep(row, spent)
            self._log.warning("model.usage_unwritten", tenant_id=format_id(tenant_id), code=error.code)

    # for administrators

    async def list_usage(
        self,
        caller: Caller,
        *,
        all_tenants: bool,
        days: tuple[date | None, date | None],
        purpose: ModelPurpose | None,
        asked: PageRequest,
    ) -> Page[ModelUsageDay]:
        """List usage by day: of the caller's tenant, or of all, which needs an operator.

        `days`: the first and the last.
        """
        caller.require(Scope.OPERATOR if all_tenants else Scope.ADMIN)
        tenant_id = None if all_tenants else caller.tenant_id
        scope = f"usage|{tenant_id}|{asked.order}|{days[0]}|{days[1]}|{purpose}"
        window = self._cursors.window(scope, asked, date.fromisoformat, parse_id, str, str)
        async with read_transaction(self._database, self._ops, tenant_id) as tx:
            rows = await spending_store.page_usage(tx, tenant_id, window, days=days, purpose=purpose)
        return self._cursors.page(
            rows, asked, scope=scope, key=lambda row: [row.day.isoformat(), row.tenant_id, row.purpose, row.model]
        )


def _renewal_time(left_s: int) -> datetime:
    """Return the midnight that is about `left_s` seconds away by the clock of the database."""
    # counted from noon, so that a clock of this process that is wrong by some hours gives the same midnight
    return next_midnight(datetime.now(UTC) + timedelta(seconds=left_s) - timedelta(hours=12))
