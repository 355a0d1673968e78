"""Limits and their use: rates of keys, quotas of tenants."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple, TypeAlias

from pydantic import BaseModel, Field

from app.core.errors import RateLimited
from app.core.ids import KeyId, TenantId
from app.core.times import TimeOut
from app.core.validation.strict import Strict
from app.tenancy.schemas import RateClass

RATE_STATE: Final = "rate"
"""Key of the `RateStatus` in the state of a request."""
WITHOUT_SLOT: Final = frozenset({RateClass.CHUNK, RateClass.MODEL})
"""Classes of calls that take no slot: they mostly wait for a flush or for a model."""

_Rate: TypeAlias = Annotated[float | None, Field(ge=0, le=10_000_000, allow_inf_nan=False)]
_Amount: TypeAlias = Annotated[int | None, Field(ge=0, le=2**53 - 1)]
_Cost: TypeAlias = Annotated[float | None, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class RatePolicy:
    """The limit of one class of calls: `per_s` calls per second on average, at most `capacity` at once.

    `window_s`: seconds in which an empty bucket is filled. `field`: the policy as an item of a structured field
    (RFC 9651), for the header `RateLimit-Policy`.
    """

    name: RateClass
    per_s: float
    capacity: float
    window_s: int
    field: bytes


class RateStatus(NamedTuple):
    """The state of a key after a call: `left` calls of the policy. `retry_after_s` is 0 unless the call is refused."""

    policy: RatePolicy
    left: int
    retry_after_s: int

    @property
    def is_refused(self) -> bool:
        """Return whether the call is refused."""
        return self.retry_after_s > 0

    def require(self) -> None:
        """Raise RateLimited `rate_limited` if the call is refused."""
        if not self.is_refused:
            return
        name = self.policy.name.value
        raise RateLimited(
            "rate_limited",
            f"This key has used its rate of calls of the class {name} ({self.policy.per_s:g} per second): send this one"
            " again later.",
            retry_after_s=self.retry_after_s,
            extra={"policy": name},
        )


class RateUse(NamedTuple):
    """Calls of one class that a process has counted for a key since it last shared its counts.

    `per_s` is the rate of the key, so that a process that has not seen the key can count them.
    """

    tenant_id: TenantId
    key_id: KeyId
    rate_class: RateClass
    per_s: float
    calls: int


class Rates(Strict):
    """Calls per second of each class, for each key. `null`: the default; 0: no limit."""

    read: _Rate = None
    write: _Rate = None
    chunk: _Rate = None
    search: _Rate = None
    model: _Rate = None

    def by_class(self) -> dict[RateClass, float]:
        """Return the given rates."""
        rates = {of: getattr(self, of.value) for of in RateClass}
        return {of: per_s for of, per_s in rates.items() if per_s is not None}


class Quotas(Strict):
    """What a tenant may use in a day (UTC). `null`: the default of the installation; 0: no limit.

    `daily_bytes` are bytes of turns and memories in UTF-8, `daily_vectors` their vectors. `daily_model_tokens` and
    `daily_model_cost` are the budget for chat models.
    """

    daily_turns: _Amount = None
    daily_bytes: _Amount = None
    daily_vectors: _Amount = None
    daily_model_tokens: _Amount = None
    daily_model_cost: _Cost = None


class TenantLimits(Strict):
    """The limits of a tenant that differ from the installation's; they replace all limits that were set before."""

    rates: Rates = Rates()
    quotas: Quotas = Quotas()


class RatesView(BaseModel):
    """Calls per second of each class, for each key; 0: no limit."""

    read: float
    write: float
    chunk: float
    search: float
    model: float


class OwnRates(BaseModel):
    """Calls per second of each class that were set; null where nothing was set, and 0 for no limit."""

    read: float | None
    write: float | None
    chunk: float | None
    search: float | None
    model: float | None


class QuotaLimits(BaseModel):
    """What a tenant may use in a day; 0 for no limit."""

    daily_turns: int
    daily_bytes: int
    daily_vectors: int
    daily_model_tokens: int
    daily_model_cost: float


class OwnQuotas(BaseModel):
    """Quotas that were set; null where nothing was set, and 0 for no limit."""

    daily_turns: int | None
    daily_bytes: int | None
    daily_vectors: int | None
    daily_model_tokens: int | None
    daily_model_cost: float | None


class DefaultLimits(BaseModel):
    """The limits of the installation, which its settings give to tenants and keys for which nothing else was set.

    `rates_enabled`: whether rates are limited at all. A key can make the calls of `burst_s` seconds at once.
    """

    rates_enabled: bool
    burst_s: int
    rates: RatesView
    quotas: QuotaLimits


class OwnLimits(BaseModel):
    """The limits that were set for a tenant."""

    rates: OwnRates
    quotas: OwnQuotas


class QuotaView(BaseModel):
    """A limit for the day, 0 if there is none, and what is used of it."""

    limit: float
    used: float


class QuotasView(BaseModel):
    """The quotas of a tenant for the day."""

    daily_turns: QuotaView
    daily_bytes: QuotaView
    daily_vectors: QuotaView
    daily_model_tokens: QuotaView
    daily_model_cost: QuotaView


class LimitsView(BaseModel):
    """The limits of a tenant, and what it has used today (UTC). Quotas start again at `resets_at`.

    `rates` and the limits of `quotas` are those that apply: `own` where that is set, else `defaults`. What replicas
    have counted and not written yet is missing: at most the last minute.
    """

    tenant_id: str
    rates: RatesView
    quotas: QuotasView
    resets_at: TimeOut
    own: OwnLimits
    defaults: DefaultLimits


class KeyLimitsView(BaseModel):
    """The rates of a key. `rates` are those that apply: `own` where that is set and lower, else `tenant`."""

    key_id: str
    rates: RatesView
    own: OwnRates
    tenant: RatesView


def merged_quotas(defaults: QuotaLimits, own: Quotas) -> QuotaLimits:
    """Return the quotas of a tenant: its own, else the defaults; 0 for no limit."""
    return defaults.model_copy(update=own.model_dump(exclude_none=True))


def merged_rates(defaults: Mapping[RateClass, float], tenant: Rates, key: Rates) -> dict[RateClass, float]:
    """Return the rates of a key by class: the tenant's, else the default, or the key's own where it is lower."""
    rates = {**defaults, **tenant.by_class()}
    for of, per_s in key.by_class().items():
        if per_s and (not rates[of] or per_s < rates[of]):
            rates[of] = per_s
    return rates


def rates_view(rates: Mapping[RateClass, float]) -> RatesView:
    """Return rates as they are shown."""
    return RatesView.model_validate({of.value: rates.get(of, 0.0) for of in RateClass})
