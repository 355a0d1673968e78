"""The bytes of request bodies that one process handles at once, by tenant.

A body takes several times its size in memory until its answer is sent. A large request without room waits, unread, for
a limited time. Bodies of up to 64 KiB have a separate limit, and count only when they are complete: neither large
requests nor stalled senders block small ones.
"""

from typing import Final
from uuid import UUID

from app.core.ids import TenantId
from app.core.limits import TenantLimiter

NO_TENANT: Final = TenantId(UUID(int=0))
"""Tenant of bodies that are read without authentication."""
SMALL_BODY_BYTES: Final = 64 * 2**10
_SMALL_PART: Final = 4
"""Small bodies have a quarter of the limit of large ones, in addition."""
_WAIT_S: Final = 10.0
"""Time that a large request waits, unread, for room: as long as a call waits for a slot (`Tenancy.slots`)."""


class BytesInFlight:
    """Counter of the bytes of small and of large bodies that are being handled."""

    def __init__(self, *, max_bytes: int) -> None:
        self.large = _limiter(max_bytes)
        self.small = _limiter(max(max_bytes // _SMALL_PART, 2 * SMALL_BODY_BYTES))

    @property
    def used(self) -> int:
        """Return the number of bytes that are being handled."""
        return self.large.used + self.small.used


def _limiter(max_bytes: int) -> TenantLimiter:
    detail = "This server has too many bytes of requests to work on; send the request again later."
    return TenantLimiter(max_bytes // 2, total=max_bytes, wait_s=_WAIT_S, detail=detail, retry_after_s=2)


class BodyReservation:
    """The bytes of one body, from before it is read until its answer is sent."""

    def __init__(self, bytes_in_flight: BytesInFlight) -> None:
        self._bytes_in_flight = bytes_in_flight
        self._limiter: TenantLimiter = bytes_in_flight.small
        self._tenant = NO_TENANT
        self._size = 0

    async def make(self, size: int, tenant: TenantId) -> None:
        """Reserve the bytes of a body of this size. Raises Unavailable `overloaded` if there is no room in time."""
        limiter = self._limiter_for(size)
        await limiter.acquire(tenant, size)
        self._limiter, self._tenant, self._size = limiter, tenant, size

    async def grow_to(self, size: int, tenant: TenantId, *, is_whole: bool) -> None:
        """Reserve more for a partly received body. Raises Unavailable `overloaded`.

        A small body waits for room when it is complete. A large one without a declared length does not wait, because
        two such bodies could wait for each other.
        """
        if size <= SMALL_BODY_BYTES and not self._size:
            if is_whole and size:
                await self.make(size, tenant)
            return
        if size <= self._size:
            return
        limiter = self._limiter_for(size)
        limiter.acquire_now(tenant, size - self._size if limiter is self._limiter else size)
        if limiter is not self._limiter:
            self.release()
        self._limiter, self._tenant, self._size = limiter, tenant, size

    @property
    def is_large(self) -> bool:
        """Return whether a large body is reserved."""
        return self._size > SMALL_BODY_BYTES

    @property
    def is_awaited(self) -> bool:
        """Return whether a large request waits for room."""
        return self._bytes_in_flight.large.waiting > 0

    def release(self) -> None:
        """Release the bytes. May be called again."""
        if self._size:
            self._limiter.release(self._tenant, self._size)
            self._size = 0

    def _limiter_for(self, size: int) -> TenantLimiter:
        return self._bytes_in_flight.small if size <= SMALL_BODY_BYTES else self._bytes_in_flight.large
