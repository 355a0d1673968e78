"""Rates of calls: one token bucket for each key and class of calls, in the memory of this process.

A bucket holds the calls of `rate_burst_s` seconds, and gets `per_s` tokens per second. Each call takes one token; a
call that finds none is refused and takes none. Nothing is awaited and nothing is read from the database: a call costs
about a microsecond.

The processes share what they have counted (`rate_sharing`), and each takes the calls of the others from its own buckets
too. So a bucket can owe tokens. A key that reaches several processes exceeds its rate by the calls that a process has
not learned of yet, and makes up for them afterwards.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import ceil
from typing import Final, TypeAlias

from app.core.ids import KeyId, TenantId
from app.core.limits import TokenBucket
from app.settings.rates import RateSettings
from app.tenancy.limits.schemas import RatePolicy, RateStatus, RateUse
from app.tenancy.schemas import Caller, RateClass

MAX_BUCKETS: Final = 20_000
"""About 5 MB. Beyond that, the bucket that was made first is replaced: its key starts with a full one."""

_MAX_POLICIES: Final = 1000
_SHARED_PART: Final = 0.001
"""Calls are shared when they are this part of a full bucket: so a key that calls little costs no messages."""

_BucketKey: TypeAlias = tuple[TenantId, KeyId, RateClass]


class _Bucket(TokenBucket):
    """The bucket of a key. `unshared`: calls that other processes do not know."""

    __slots__ = ("policy", "unshared")

    def __init__(self, policy: RatePolicy) -> None:
        super().__init__(policy.per_s, policy.capacity)
        self.policy = policy
        self.unshared = 0

    def take(self) -> None:
        self.left -= 1
        self.unshared += 1

    def follow(self, policy: RatePolicy) -> None:
        """Use another policy from now on, with the tokens that are left."""
        self.policy, self.per_s, self.capacity = policy, policy.per_s, policy.capacity
        self.left = min(policy.capacity, self.left)


class CallRates:
    """The buckets of all keys that called this process lately."""

    def __init__(self, settings: RateSettings) -> None:
        self._is_enabled = settings.rate_limits_enabled
        self._window_s = settings.rate_burst_s
        self._defaults = default_rates(settings)
        self._buckets: dict[_BucketKey, _Bucket] = {}

    def take(self, caller: Caller, rate_class: RateClass) -> RateStatus | None:
        """Take a token for a call, unless there is none; return the state, or None if the class is not limited."""
        policy = self._policy_of(caller, rate_class)
        if policy is None:
            return None
        bucket = self._bucket(caller, policy)
        if bucket.left < 1:
            return RateStatus(policy, 0, ceil(bucket.wait_s(1)))
        bucket.take()
        return RateStatus(policy, int(bucket.left), 0)

    def delay_s(self, caller: Caller, rate_class: RateClass) -> float:
        """Take a token, of a later time if there is none now; return the seconds until that time."""
        policy = self._policy_of(caller, rate_class)
        if policy is None:
            return 0.0
        bucket = self._bucket(caller, policy)
        bucket.take()
        return bucket.wait_s(0)

    def require(self, caller: Caller, rate_class: RateClass) -> None:
        """Take a token for a call. Raises RateLimited `rate_limited` if there is none."""
        status = self.take(caller, rate_class)
        if status is not None:
            status.require()

    def take_unshared(self) -> list[RateUse]:
        """Return the calls that other processes do not know of yet, and count them as shared.

        A few calls of a key wait until they are `_SHARED_PART` of its bucket.
        """
        uses: list[RateUse] = []
        for (tenant_id, key_id, rate_class), bucket in self._buckets.items():
            if bucket.unshared and bucket.unshared >= bucket.policy.capacity * _SHARED_PART:
                uses.append(RateUse(tenant_id, key_id, rate_class, bucket.policy.per_s, bucket.unshared))
                bucket.unshared = 0
        return uses

    def add_uses(self, uses: Iterable[RateUse]) -> None:
        """Take the tokens of calls that another process has let through."""
        for use in uses:
            policy = _policy(use.rate_class, use.per_s, self._window_s)
            self._bucket_of((use.tenant_id, use.key_id, use.rate_class), policy).left -= use.calls

    def _policy_of(self, caller: Caller, rate_class: RateClass) -> RatePolicy | None:
        per_s = (caller.rates or self._defaults)[rate_class]
        return _policy(rate_class, per_s, self._window_s) if per_s and self._is_enabled else None

    def _bucket(self, caller: Caller, policy: RatePolicy) -> _Bucket:
        """Return the key's bucket, filled up to the present."""
        bucket = self._bucket_of((caller.key_tenant_id, caller.key_id, policy.name), policy)
        if bucket.policy != policy:
            bucket.follow(policy)
        return bucket

    def _bucket_of(self, key: _BucketKey, policy: RatePolicy) -> _Bucket:
        """Return a bucket, filled up to the present; a new one has this policy."""
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[key] = _Bucket(policy)
        bucket.refill()
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


@lru_cache(maxsize=_MAX_POLICIES)
def _policy(name: RateClass, per_s: float, window_s: int) -> RatePolicy:
    capacity = max(1.0, per_s * window_s)
    field = f'"{name.value}";q={int(capacity)};w={window_s}'
    return RatePolicy(name, per_s, capacity, window_s, field.encode())
