"""Rates of calls: one token bucket for each key and class of calls, in the memory of this process.

A bucket holds the calls of `rate_burst_s` seconds, and gets `per_s` tokens per second. Each call takes one token; a
call that finds none is refused and takes none. Nothing is awaited and nothing is read from the database: a call costs
about a microsecond.
"""

from collections.abc import Mapping
from math import ceil
from time import monotonic
from typing import Final, TypeAlias

from app.core.ids import KeyId, TenantId
from app.settings.rates import RateSettings
from app.tenancy.limits.schemas import RatePolicy, RateStatus
from app.tenancy.schemas import Caller, RateClass

MAX_BUCKETS: Final = 20_000
"""About 5 MB. Beyond that, the bucket that was made first is replaced: its key starts with a full one."""

_MAX_POLICIES: Final = 1000

_BucketKey: TypeAlias = tuple[TenantId, KeyId, RateClass]


class _Bucket:
    __slots__ = ("at", "left")

    def __init__(self, left: float, at: float) -> None:
        self.left = left
        self.at = at


class CallRates:
    """The buckets of all keys that called this process lately."""

    def __init__(self, settings: RateSettings) -> None:
        self._is_enabled = settings.rate_limits_enabled
        self._window_s = settings.rate_burst_s
        self._defaults = default_rates(settings)
        self._policies: dict[tuple[RateClass, float], RatePolicy] = {}
        """Policies by class and rate."""
        self._buckets: dict[_BucketKey, _Bucket] = {}

    def take(self, caller: Caller, rate_class: RateClass) -> RateStatus | None:
        """Take a token for a call, unless there is none; return the state, or None if the class is not limited."""
        policy = self._policy_of(caller, rate_class)
        if policy is None:
            return None
        bucket = self._bucket(caller, policy)
        if bucket.left < 1:
            return RateStatus(policy, 0, ceil((1 - bucket.left) / policy.per_s))
        bucket.left -= 1
        return RateStatus(policy, int(bucket.left), 0)

    def delay_s(self, caller: Caller, rate_class: RateClass) -> float:
        """Take a token, of a later time if there is none now; return the seconds until that time."""
        policy = self._policy_of(caller, rate_class)
        if policy is None:
            return 0.0
        bucket = self._bucket(caller, policy)
        bucket.left -= 1
        return max(0.0, -bucket.left / policy.per_s)

    def require(self, caller: Caller, rate_class: RateClass) -> None:
        """Take a token for a call. Raises RateLimited `rate_limited` if there is none."""
        status = self.take(caller, rate_class)
        if status is not None:
            status.require()

    def _policy_of(self, caller: Caller, rate_class: RateClass) -> RatePolicy | None:
        per_s = (caller.rates or self._defaults)[rate_class]
        if not per_s or not self._is_enabled:
            return None
        policy = self._policies.get((rate_class, per_s))
        if policy is None:
            if len(self._policies) >= _MAX_POLICIES:
                self._policies.clear()
            policy = self._policies[rate_class, per_s] = _policy(rate_class, per_s, self._window_s)
        return policy

    def _bucket(self, caller: Caller, policy: RatePolicy) -> _Bucket:
        """Return the key's bucket, filled up to the present."""
        key = (caller.key_tenant_id, caller.key_id, policy.name)
        now = monotonic()
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[key] = _Bucket(policy.capacity, now)
            return bucket
        bucket.left = min(policy.capacity, bucket.left + (now - bucket.at) * policy.per_s)
        bucket.at = now
        return bucket


def default_rates(settings: RateSettings) -> Mapping[RateClass, float]:
    """Return the rates of keys for which nothing else was set, by class; 0 for no limit."""
    return {
        RateClass.READ: settings.rate_read_per_s,
        RateClass.WRITE: settings.rate_write_per_s,
        RateClass.CHUNK: settings.rate_chunk_per_s,
        RateClass.SEARCH: settings.rate_search_per_s,
        RateClass.MODEL: settings.rate_model_per_s,
    }


def _policy(name: RateClass, per_s: float, window_s: int) -> RatePolicy:
    capacity = max(1.0, per_s * window_s)
    field = f'"{name.value}";q={int(capacity)};w={window_s}'
    return RatePolicy(name, per_s, capacity, window_s, field.encode())
