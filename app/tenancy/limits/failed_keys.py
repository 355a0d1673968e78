"""Invalid keys by address: an address that sends too many is refused for a while, before the database is asked.

Keys that this process has found valid before work from a refused address too, because many clients may share one.
"""

from ipaddress import IPv6Address, ip_address
from math import ceil
from time import monotonic
from typing import Final

from app.core.errors import RateLimited

MAX_ADDRESSES: Final = 10_000
"""Beyond that, the address whose first failure is the oldest is evicted."""
_IPV6_HOST_BITS: Final = 64
"""One customer of a provider has at least a network of this size."""
_MINUTE_S: Final = 60.0


class FailedKeys:
    """How many invalid keys each address may still send: a token bucket for each address that sent one."""

    def __init__(self, per_minute: int, *, max_known: int) -> None:
        self._capacity = float(per_minute)
        self._per_s = per_minute / _MINUTE_S
        self._left: dict[str, tuple[float, float]] = {}
        """The tokens of a network, and when that was so."""
        self._valid: dict[bytes, None] = {}
        """HMACs of the keys that were valid when they were last checked, in order of their first check."""
        self._max_known = max_known

    def require_allowed(self, address: str | None, digest: bytes) -> None:
        """Raise RateLimited `too_many_failed_keys` if the address has sent too many invalid keys.

        `digest` is the HMAC of the key that it sends now.
        """
        if address is None or not self._left or digest in self._valid:
            return
        left = self._now(_network(address))
        if left < 1:
            raise RateLimited(
                "too_many_failed_keys",
                "Too many invalid keys came from this address: wait, then send a valid one.",
                retry_after_s=ceil((1 - left) / self._per_s),
            )

    def record_success(self, digest: bytes) -> None:
        """Remember a valid key."""
        if not self._capacity or digest in self._valid:
            return
        if len(self._valid) >= self._max_known:
            del self._valid[next(iter(self._valid))]
        self._valid[digest] = None

    def record_failure(self, address: str | None, digest: bytes) -> None:
        """Count an invalid key."""
        self._valid.pop(digest, None)
        if address is None or not self._capacity:
            return
        network = _network(address)
        left = self._now(network) - 1
        if network not in self._left and len(self._left) >= MAX_ADDRESSES:
            del self._left[next(iter(self._left))]
        self._left[network] = (left, monotonic())

    def _now(self, network: str) -> float:
        known = self._left.get(network)
        if known is None:
            return self._capacity
        left, at = known
        return min(self._capacity, left + (monotonic() - at) * self._per_s)


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
