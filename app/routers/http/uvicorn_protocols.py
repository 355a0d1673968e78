"""uvicorn's protocols, with limits on peers that would hold a connection.

Limited are the size and the time of a request head, the time of a request body that the application does not read, the
size of a trailer, the time of a WebSocket handshake, the fragments of a message, and the time in which a peer reads
nothing of what waits for it. Fields of a trailer are dropped: they are no headers (RFC 9110 §6.5.1). All other limits
of WebSockets are those of uvicorn and of `websockets`. WebSockets take turns to parse what they have received, so that
a flood of frames or handshakes delays other connections by milliseconds.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from time import monotonic
from typing import ClassVar, Final, cast

from httptools import HttpRequestParser
from uvicorn._types import ASGIReceiveEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from app.core.error_codes import ERROR_CODES
from app.routers.http.request_head import effective_headers, target_of

PROBLEM_MEDIA_TYPE: Final = "application/problem+json"
MAX_HEAD_BYTES: Final = 64 * 2**10
HEAD_TIMEOUT_S: Final = 30.0
KEEP_ALIVE_S: Final = 75
"""Seconds that an idle connection is kept. The side that sends requests has to close first, or a request meets the end
of its connection: the clients of most languages do after 5 to 30 seconds, load balancers after 60."""
STALL_S: Final = 30.0
"""Time after which a connection is closed whose peer reads nothing: what waits for it is in memory."""
CUT_EXTENSION: Final = "turnkeep.cut"
"""Extension of a request's scope: `close` ends the connection, so that an answer that has begun stays incomplete."""

# the application refuses a slow body that it reads, and needs time for this answer
_ANSWER_S: Final = 10.0
_CHECK_S: Final = 1.0
_MAX_PONG_BYTES: Final = 2**20
_MAX_FRAGMENTS: Final = 20_000
"""Of one message. Empty ones add nothing to its size, and take memory."""
SLICE_BYTES: Final = 4 * 2**10
"""Received bytes that a WebSocket parses at a time: 700 of the smallest frames, which take 3 ms."""
TURNS: Final = 8
_TURNS_S: Final = 0.005
"""Turns in one iteration of the event loop, and the time after which none begins. Each lets the application run."""
_VERSION: Final = "1.1"
_HEAD_END: Final = b"\r\n\r\n"


def _head_too_large() -> bytes:
    """Return a complete answer: the head never reaches the application."""
    status, code = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large"
    problem: dict[str, object] = {
        "type": f"/docs/errors#{code}",
        "title": ERROR_CODES[code],
        "status": status,
        "detail": "Request line and headers may have 64 KiB, sent within 30 seconds.",
        "code": code,
        "request_id": "",
        "errors": [],
        "retryable": False,
    }
    body = json.dumps(problem).encode()
    head = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: {PROBLEM_MEDIA_TYPE}\r\nconnection: close\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n%s" % (len(body), body)


class _WatchedConnection(asyncio.Protocol):
    """A connection that is checked every second, and is aborted if its peer reads nothing for `stall_s`."""

    stall_s: ClassVar[float] = STALL_S
    _connection: asyncio.Transport
    _timer: asyncio.TimerHandle | None = None
    _unread_bytes: int = 0
    _is_paused: bool = False
    _read_at: float = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the checks."""
        super().connection_made(transport)
        self._connection = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_CHECK_S, self._check_again)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the checks."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Note that the buffer of what the peer has to read is full."""
        super().pause_writing()
        self._is_paused = True
        self._note_unread(self._connection.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Note that the peer has read."""
        super().resume_writing()
        self._is_paused = False

    def _check_again(self) -> None:
        if self._connection.get_protocol() is self:  # else it has become a WebSocket
            self._timer = self._loop.call_later(_CHECK_S, self._check_again)
            self._check()

    def _check(self) -> None:
        unread_bytes = self._connection.get_write_buffer_size()
        is_waiting = self._is_paused or self._connection.is_closing()
        if not is_waiting or unread_bytes < self._unread_bytes:  # slow progress is enough
            self._note_unread(unread_bytes)
        elif self._loop.time() > self._read_at + self.stall_s:
            self._connection.abort()

    def _note_unread(self, unread_bytes: int) -> None:
        self._unread_bytes, self._read_at = unread_bytes, self._loop.time()


class BoundedProtocol(_WatchedConnection, HttpToolsProtocol):
    """A connection that ends if a head is too large or too slow, or what follows an answered request does not end.

    The application gives bodies that it reads a time of its own.
    """

    body_limit_s: ClassVar[float] = 60.0 + _ANSWER_S
    _in_head: bool = True
    _head_bytes: int = 0
    _head_tail: bytes = b""
    _bytes_since_body: int = 0
    """Bytes after the last part of a body: trailers, and chunk sizes with their extensions."""
    _due: float | None = None
    """The time at which this head or body has to be complete; None before the first bytes of the next head."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the time of the first head."""
        super().connection_made(transport)
        self._due = self._loop.time() + HEAD_TIMEOUT_S

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a head before they are parsed."""
        if self._in_head:
            received = self._head_tail + data  # the end of the head may be split
            end = received.find(_HEAD_END)
            head_bytes = self._head_bytes + (0 if end < 0 else end - len(self._head_tail))
            self._head_bytes, self._head_tail = self._head_bytes + len(data), received[-len(_HEAD_END) + 1 :]
            if head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
                return
            if self._due is None:
                self._due = self._loop.time() + HEAD_TIMEOUT_S
        else:
            self._bytes_since_body += len(data)
        super().data_received(data)
        if self._bytes_since_body > MAX_HEAD_BYTES and not self._in_head:
            self._connection.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Drop the fields of a trailer."""
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Note that the body goes on."""
        self._bytes_since_body = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Start the time of the body, and apply the rules that need the request line (RFC 9110, RFC 9112)."""
        self._in_head, self._head_bytes, self._head_tail, self._bytes_since_body = False, 0, b"", 0
        self._due = self._loop.time() + self.body_limit_s
        self.scope["extensions"] = {CUT_EXTENSION: {"close": self._connection.close}}
        parser = cast("HttpRequestParser", self.parser)
        version = parser.get_http_version()
        if version != _VERSION or parser.should_upgrade() or not self.url.startswith(b"/"):
            target, method = target_of(self.url), parser.get_method()
            self.url = target.path
            self.headers[:] = effective_headers(
                self.headers, method=method, version=version, authority=target.authority
            )
            self.expect_100_continue &= version == _VERSION
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End the time of the body. The next bytes are a new head."""
        self._in_head, self._due = True, None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Read on when the pipelined requests are answered: uvicorn reads more of them after each answer."""
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()

    def _check(self) -> None:
        super()._check()
        if self._due is None or self._loop.time() < self._due or self._connection.is_closing():
            return
        if self._in_head:
            self._refuse_head()
        elif self.cycle.response_complete:
            self._connection.close()
        else:  # the application reads it in the time that it gives, or has an earlier request to answer
            self._due = self._loop.time() + self.body_limit_s

    def _refuse_head(self) -> None:
        if self._connection.is_closing():
            return
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is None or cycle.response_complete:  # else it would be part of an answer
            self._connection.write(_head_too_large())
        self._connection.close()


class SocketTurns:
    """What the WebSockets of a process have to do, in order: a few at a time, and other work between."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def add(self, work: Callable[[], None]) -> None:
        """Run `work` soon, after what waits already."""
        self._waiting.append(work)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        self._schedule()
        until = monotonic() + _TURNS_S
        for _ in range(min(TURNS, len(self._waiting))):
            self._waiting.popleft()()
            if monotonic() > until:
                break


class BoundedSocket(_WatchedConnection, WebSocketsSansIOProtocol):
    """A WebSocket that ends if its handshake is not complete in time, or its peer pings and reads no answer.

    It reads no more while what it has received is longer than a slice, or while the application has messages to
    receive.
    """

    turns: ClassVar[SocketTurns]
    _handshake_due: float = 0.0
    _has_turn: bool = False
    _is_new: bool = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the time of the handshake."""
        super().connection_made(transport)
        self._unparsed = bytearray()
        self._handshake_due = self._loop.time() + HEAD_TIMEOUT_S

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop what was received and not parsed: it cannot be answered."""
        self._unparsed.clear()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """Parse the last bytes, a slice at most, while the connection can still be answered."""
        if self._unparsed:
            self._parse_next(len(self._unparsed))
        super().eof_received()

    def data_received(self, data: bytes) -> None:
        """Parse what was received in its turn. Abort if the answers to pings fill the memory.

        uvicorn writes these answers to a full buffer too.
        """
        if self._is_paused and self._connection.get_write_buffer_size() > self._unread_bytes + _MAX_PONG_BYTES:
            self._connection.abort()
            return
        self._unparsed += data
        self._wait_for_turn()

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message for the application, and go on with what was received."""
        message = await super().receive()
        self._wait_for_turn()
        return message

    def _wait_for_turn(self) -> None:
        if len(self._unparsed) > SLICE_BYTES:
            self._connection.pause_reading()
        if self._unparsed and not self._has_turn and not self.read_paused:
            self._has_turn = True
            self.turns.add(self._take_turn)

    def _take_turn(self) -> None:
        self._has_turn = False
        if not self._unparsed or self.disconnected:
            return
        # the first bytes are the head of the handshake: `BoundedProtocol` has checked its size
        self._parse_next(len(self._unparsed) if self._is_new else SLICE_BYTES)
        if len(self._unparsed) <= SLICE_BYTES and not self.read_paused:
            self._connection.resume_reading()
        self._wait_for_turn()

    def _parse_next(self, size: int) -> None:
        self._is_new = False
        data = bytes(self._unparsed[:size])
        del self._unparsed[:size]
        super().data_received(data)
        if len(self.frames) > _MAX_FRAGMENTS:
            self._connection.abort()

    def _check(self) -> None:
        super()._check()
        self._wait_for_turn()  # uvicorn reads on after it has sent a close
        if not self.handshake_complete and self._loop.time() > self._handshake_due:
            self._connection.abort()


def protocols(*, stall_s: float, body_timeout_s: float) -> tuple[type[BoundedProtocol], type[BoundedSocket]]:
    """Return the protocols for HTTP and WebSocket, with their settings as class attributes: uvicorn creates them."""
    limits = {"stall_s": stall_s, "body_limit_s": body_timeout_s + _ANSWER_S}
    http = type("BoundedProtocol", (BoundedProtocol,), limits)
    socket = type("BoundedSocket", (BoundedSocket,), {"stall_s": stall_s, "turns": SocketTurns()})
    return http, socket
