"""Public API of limits: an operator sets those of a tenant, an administrator those of its keys; both see the usage."""

from collections.abc import Mapping
from datetime import UTC, datetime

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.core.database.transactions import Database
from app.core.errors import Forbidden, NotFound
from app.core.ids import KeyId, TenantId, format_id
from app.core.times import next_midnight
from app.settings.models import ChatSettings
from app.settings.rates import RateSettings
from app.tenancy import store as tenancy_store
from app.tenancy.limits import store
from app.tenancy.limits.quotas import QUOTA_NAMES, TenantQuotas
from app.tenancy.limits.rates import default_rates
from app.tenancy.limits.schemas import (
    DefaultLimits,
    KeyLimitsView,
    LimitsView,
    OwnLimits,
    OwnQuotas,
    OwnRates,
    QuotaLimits,
    QuotasView,
    QuotaView,
    Rates,
    TenantLimits,
    merged_quotas,
    merged_rates,
    rates_view,
)
from app.tenancy.schemas import Caller, RateClass, Scope
from app.tenancy.service import Tenancy
from app.tenancy.spending import store as spending_store


class LimitAdministration:
    """Limits of tenants and keys. A change takes effect within `key_cache_s` on every replica."""

    def __init__(self, ops: Database, *, tenancy: Tenancy, rates: RateSettings, chat: ChatSettings) -> None:
        self._ops = ops
        self._tenancy = tenancy
        self._quotas: TenantQuotas = tenancy.quotas
        self._rates: Mapping[RateClass, float] = default_rates(rates)
        self._defaults = _default_limits(rates, chat)

    async def limits(self, caller: Caller, tenant_id: TenantId | None = None) -> LimitsView:
        """Return the limits and the usage of the caller's tenant, or, for an operator, of another one."""
        if tenant_id is None:
            caller.require(Scope.ADMIN)
            tenant_id = caller.tenant_id
        else:
            caller.require(Scope.OPERATOR)
        async with self._ops.across_tenants() as tx:
            if not await tenancy_store.tenant_exists(tx, tenant_id):
                raise NotFound("not_found", "There is no such tenant.")
            limits = await store.read_limits(tx, tenant_id)
            usage = await store.read_usage(tx, tenant_id)
            spent = await spending_store.spent_today(tx, tenant_id)
        quotas = merged_quotas(self._defaults.quotas, limits.quotas)
        used: dict[str, float] = dict(zip(QUOTA_NAMES, self._quotas.used_by(tenant_id, usage), strict=True))
        used |= {"daily_model_tokens": spent.tokens, "daily_model_cost": float(spent.cost)}
        return LimitsView(
            tenant_id=format_id(tenant_id),
            rates=rates_view(merged_rates(self._rates, limits.rates, Rates())),
            quotas=QuotasView(**{name: QuotaView(limit=getattr(quotas, name), used=used[name]) for name in used}),
            resets_at=next_midnight(datetime.now(UTC)),
            own=OwnLimits(rates=_own_rates(limits.rates), quotas=OwnQuotas.model_validate(limits.quotas.model_dump())),
            defaults=self._defaults,
        )

    async def set_limits(self, caller: Caller, tenant_id: TenantId, *, body: TenantLimits) -> LimitsView:
        """Replace the limits of a tenant."""
        caller.require(Scope.OPERATOR)
        async with self._ops.across_tenants() as tx:
            if not await store.write_limits(tx, tenant_id, body):
                raise NotFound("not_found", "There is no such tenant.")
            record(tx, caller, Action.TENANT_LIMIT, ObjectKind.TENANT, tenant_id, counts={"tenants": 1})
        self._tenancy.clear_checked()
        return await self.limits(caller, tenant_id)

    async def key_limits(self, caller: Caller, key_id: KeyId) -> KeyLimitsView:
        """Return the rates of a key of the caller's tenant."""
        caller.require(Scope.ADMIN)
        async with self._ops.across_tenants() as tx:
            own = await store.read_key_rates(tx, caller.tenant_id, key_id)
            limits = await store.read_limits(tx, caller.tenant_id)
        if own is None:
            raise NotFound("not_found", "There is no such key.")
        return KeyLimitsView(
            key_id=format_id(key_id),
            rates=rates_view(merged_rates(self._rates, limits.rates, own)),
            own=_own_rates(own),
            tenant=rates_view(merged_rates(self._rates, limits.rates, Rates())),
        )

    async def set_key_limits(self, caller: Caller, key_id: KeyId, *, body: Rates) -> KeyLimitsView:
        """Replace the rates of another key; those above the tenant's have no effect. Raises Forbidden for its own."""
        caller.require(Scope.ADMIN)
        if key_id == caller.key_id and Scope.OPERATOR not in caller.scopes:
            raise Forbidden("forbidden", "A key does not change its own rates: use another one.")
        async with self._ops.across_tenants() as tx:
            if not await store.write_key_rates(tx, caller.tenant_id, key_id, body):
                raise NotFound("not_found", "There is no such key.")
            record(tx, caller, Action.KEY_LIMIT, ObjectKind.KEY, key_id, counts={"keys": 1})
        self._tenancy.clear_checked()
        return await self.key_limits(caller, key_id)


def _own_rates(rates: Rates) -> OwnRates:
    return OwnRates.model_validate(rates.model_dump())


def _default_limits(rates: RateSettings, chat: ChatSettings) -> DefaultLimits:
    return DefaultLimits(
        rates_enabled=rates.rate_limits_enabled,
        burst_s=rates.rate_burst_s,
        rates=rates_view(default_rates(rates)),
        quotas=QuotaLimits(
            daily_turns=rates.quota_daily_turns,
            daily_bytes=rates.quota_daily_bytes,
            daily_vectors=rates.quota_daily_vectors,
            daily_model_tokens=chat.llm_daily_tokens,
            daily_model_cost=chat.llm_daily_cost,
        ),
    )
