"""The HTTP protocol of uvicorn with what it leaves open: how large and slow a head may be, and how slow a body.

All are paid for before any key is seen, so anybody could take the process's memory or its connections.
"""

import asyncio
import json
from typing import ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.core.error_codes import ERROR_CODES

MAX_HEAD_BYTES: Final = 64 * 2**10
HEAD_TIMEOUT_S: Final = 30.0
# the application answers for the body that it reads, and needs a moment to
_ANSWER_S: Final = 10.0

_CODE: Final = "head_too_large"
_BODY: Final = json.dumps(
    {
        "type": f"/docs/errors#{_CODE}",
        "title": ERROR_CODES[_CODE],
        "status": 431,
        "detail": "Request line and headers may have 64 KiB, sent within 30 seconds.",
        "code": _CODE,
        "request_id": "",
        "errors": [],
        "retryable": False,
    }
).encode()
_REFUSAL: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/problem+json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


def bounded_protocol(*, body_timeout_s: float) -> "type[BoundedProtocol]":
    """The protocol for a server; it makes one for each connection, from nothing but the server's own arguments."""

    class Bounded(BoundedProtocol):
        body_limit_s = body_timeout_s + _ANSWER_S

    return Bounded


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection whose request head grows past the limit or is not complete in time, or whose body is not.

    A body is the application's to refuse. But it answers many requests without reading theirs, and then there is no
    limit to how long one goes on.
    """

    body_limit_s: ClassVar[float]
    _head_bytes: int = 0
    _in_head: bool = True
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the clock of the first head."""
        super().connection_made(transport)  # pyright: ignore[reportArgumentType]
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head before it is parsed."""
        if self._in_head:
            self._head_bytes += len(data)
            # what has arrived with the end of a head, a body, is no more than one read of the socket
            if self._head_bytes - len(data) > MAX_HEAD_BYTES:
                self._refuse()
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Count anew: another head begins."""
        self._in_head, self._head_bytes = True, 0
        self._start_clock()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop counting: the head is whole, and the clock is the body's."""
        self._in_head, self._head_bytes = False, 0
        self._start_body_clock()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop the clock: the body is whole."""
        self._stop_clock()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """Stop the clock: the connection is another protocol's."""
        self._stop_clock()
        super().handle_websocket_upgrade()

    def _start_clock(self) -> None:
        self._stop_clock()
        self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self._refuse)

    def _start_body_clock(self) -> None:
        self._stop_clock()
        self._deadline = self.loop.call_later(self.body_limit_s, self._cut)

    def _cut(self) -> None:
        if self.pipeline:  # nothing of it is read before the request before it is answered
            self._start_body_clock()
        elif not self.transport.is_closing():
            self.transport.close()

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_REFUSAL)
            self.transport.close()
