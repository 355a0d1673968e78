"""Reader of a request body, with limits on size and time. It counts the body among the bytes in flight."""

import asyncio
from collections.abc import Mapping
from typing import Final, cast

from starlette.types import Message, Receive, Scope

from app.core.errors import AppError, RateLimited, TooLarge
from app.core.ids import TenantId
from app.core.validation.content_codings import IDENTITY
from app.routers.http.bytes_in_flight import NO_TENANT, SMALL_BODY_BYTES, BodyReservation

UPLOAD_PATH: Final = "/v1/import"
"""Path of the only request whose body is worked on while it arrives."""
UPLOAD_CODINGS: Final = ("gzip", IDENTITY)
"""Content codings of this body. Compressed lines are recognised by their first bytes, declared or not."""
_FIRST_BYTES_S: Final = 5.0
_AWAITED_BYTES_PER_S: Final = 64 * 2**10
_LOOK_AGAIN_S: Final = 1.0


def too_large(max_bytes: int) -> AppError:
    """Return the error for a body over the limit."""
    return TooLarge("body_too_large", f"A request body may have up to {max_bytes} bytes: send several appends.")


class Body:
    """A request body that is being received. `refusal` is the error that `receive` has raised, if any."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        declared: int,
        reservation: BodyReservation,
        *,
        max_bytes: int,
        timeout_s: float,
    ) -> None:
        self.refusal: AppError | None = None
        self.is_read = False
        self._scope = scope
        self._receive = receive
        self._declared = declared
        self._reservation = reservation
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._until = asyncio.get_running_loop().time() + timeout_s
        self._began = 0.0
        self._received = 0
        self._is_whole = False

    async def receive(self) -> Message:
        """Receive the next part. Raises TooLarge, RateLimited `body_too_slow`, and Unavailable `overloaded`."""
        if self._is_whole:  # the body is complete: the next message is the disconnect
            return await self._receive()
        try:
            return await self._receive_part()
        except AppError as error:
            self.refusal = error
            raise

    async def _receive_part(self) -> Message:
        if not self.is_read:
            if self._declared > SMALL_BODY_BYTES:
                await self._reservation.make(self._declared, self._tenant())
            self._began = asyncio.get_running_loop().time()
        self.is_read = True
        message = await self._receive_in_time()
        self._received += len(message.get("body", b""))
        if self._received > self._max_bytes:
            raise too_large(self._max_bytes)
        is_whole = not message.get("more_body", False)
        await self._reservation.grow_to(self._received, self._tenant(), is_whole=is_whole)
        self._is_whole = is_whole
        return message

    async def _receive_in_time(self) -> Message:
        try:
            async with asyncio.timeout_at(self._until):
                if self._reservation.is_large:
                    return await self._receive_large()
                return await self._receive()
        except TimeoutError:
            detail = f"A request body has {self._timeout_s:g} seconds to be whole, from its head on."
            raise RateLimited("body_too_slow", detail) from None

    async def _receive_large(self) -> Message:
        clock = asyncio.get_running_loop().time
        due = self._began + _FIRST_BYTES_S + self._received / _AWAITED_BYTES_PER_S
        receiving = asyncio.ensure_future(self._receive())
        try:
            while not receiving.done():
                await asyncio.wait([receiving], timeout=max(due - clock(), _LOOK_AGAIN_S))
                if not receiving.done() and self._reservation.is_awaited and clock() >= due:
                    detail = "While others wait, a large request body has to arrive at 64 KiB a second."
                    raise RateLimited("body_too_slow", detail)
            return receiving.result()
        finally:
            receiving.cancel()

    def _tenant(self) -> TenantId:
        # the request is authenticated before its body is read
        state = cast("Mapping[str, TenantId]", self._scope.get("state", {}))
        return state.get("tenant", NO_TENANT)


class StreamedBody(Body):
    """A body that is worked on while it arrives, so that only one part of it is in memory.

    It counts as one small body among the bytes in flight. Each part has the time of a whole body.
    """

    async def _receive_part(self) -> Message:
        if not self.is_read:
            await self._reservation.make(SMALL_BODY_BYTES, self._tenant())
        self.is_read = True
        try:
            async with asyncio.timeout(self._timeout_s):
                message = await self._receive()
        except TimeoutError:
            detail = f"A part of an upload has {self._timeout_s:g} seconds to arrive."
            raise RateLimited("body_too_slow", detail) from None
        self._received += len(message.get("body", b""))
        if self._received > self._max_bytes:
            raise too_large(self._max_bytes)
        self._is_whole = not message.get("more_body", False)
        return message
