"""Invalid keys by address: an address that sends too many is refused for a while, before the database is asked.

Keys that this process has found valid before work from a refused address too, because many clients may share one.
"""

from ipaddress import IPv6Address, ip_address
from math import ceil
from typing import Final

from app.core.errors import RateLimited
from app.core.limits import TokenBucket

MAX_ADDRESSES: Final = 10_000
"""Beyond that, the address whose first failure is the oldest is evicted."""
_IPV6_HOST_BITS: Final = 64
"""One customer of a provider has at least a network of this size."""
_MINUTE_S: Final = 60.0


class FailedKeys:
    """How many invalid keys each address may still send: a token bucket for each address that sent one."""

    def __init__(self, per_minute: int, *, max_known: int) -> None:
        self._per_minute = per_minute
        self._buckets: dict[str, TokenBucket] = {}
        """The buckets of networks."""
        self._valid: dict[bytes, None] = {}
        """HMACs of the keys that were valid when they were last checked, in order of their first check."""
        self._max_known = max_known

    def require_allowed(self, address: str | None, digest: bytes) -> None:
        """Raise RateLimited `too_many_failed_keys` if the address has sent too many invalid keys.

        `digest` is the HMAC of the key that it sends now.
        """
        if address is None or not self._buckets or digest in self._valid:
            return
        bucket = self._buckets.get(_network(address))
        if bucket is not None and bucket.refill() < 1:
            raise RateLimited(
                "too_many_failed_keys",
                "Too many invalid keys came from this address: wait, then send a valid one.",
                retry_after_s=ceil(bucket.wait_s(1)),
            )

    def record_success(self, digest: bytes) -> None:
        """Remember a valid key."""
        if not self._per_minute or digest in self._valid:
            return
        if len(self._valid) >= self._max_known:
            del self._valid[next(iter(self._valid))]
        self._valid[digest] = None

    def record_failure(self, address: str | None, digest: bytes) -> None:
        """Count an invalid key."""
        self._valid.pop(digest, None)
        if address is None or not self._per_minute:
            return
        network = _network(address)
        bucket = self._buckets.get(network)
        if bucket is None:
            if len(self._buckets) >= MAX_ADDRESSES:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[network] = TokenBucket(self._per_minute / _MINUTE_S, self._per_minute)
        bucket.left = bucket.refill() - 1


def _network(address: str) -> str:
    """Return the address, or the network of an IPv6 address."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(int(parsed) >> _IPV6_HOST_BITS)
