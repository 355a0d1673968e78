"""The protocols of uvicorn with limits on slow, large and stalled peers.

The request head is read before authentication, so any peer could exhaust memory or connections; a body may never end. A
peer that does not read its answer occupies a connection and its buffer, and is disconnected.
"""

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar, Final, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import SecurityError
from websockets.frames import Frame
from websockets.http11 import Response as HandshakeAnswer
from websockets.server import ServerProtocol
from websockets.typing import StatusLike

from app.core.error_codes import ERROR_CODES
from app.routers.http.request_head import effective_headers, target_of

PROBLEM_MEDIA_TYPE: Final = "application/problem+json"
_HANDSHAKE_PROBLEMS: Final = {
    False: ("malformed_request", "This is no valid handshake of a WebSocket of version 13 (RFC 6455)."),
    True: ("internal_error", "The server ended before it had answered."),
}
"""Code and detail of a refused handshake, by whether the server is the reason."""

MAX_HEAD_BYTES: Final = 64 * 2**10
HEAD_TIMEOUT_S: Final = 30.0
KEEP_ALIVE_S: Final = 75
"""Seconds that an idle connection is kept. The side that sends requests has to close first, or a request meets the end
of its connection: the clients of most languages do after 5 to 30 seconds, load balancers after 60."""
# the application answers for the body that it reads, and needs time for it
_ANSWER_S: Final = 10.0
_FIRST_REQUEST_S: Final = 2.0
"""Seconds that a new connection has for its first request when the server stops."""

CUT_EXTENSION: Final = "turnkeep.cut"
"""Extension of a request's scope: `close` ends the connection, so that an answer that has begun stays incomplete."""

MAX_FRAGMENTS: Final = 4096
NOT_READ: Final = 4408
_CLOSE_S: Final = 2.0

_VERSION: Final = "1.1"
_HEAD_START: Final = b"HTTP/1.1 "
_HEAD_END: Final = b"\r\n\r\n"


def _problem(status: HTTPStatus, code: str, detail: str) -> bytes:
    """Return a problem, for requests that never reach the application."""
    problem: dict[str, object] = {
        "type": f"/docs/errors#{code}",
        "title": ERROR_CODES[code],
        "status": status,
        "detail": detail,
        "code": code,
        "request_id": "",
        "errors": [],
        "retryable": False,
    }
    return json.dumps(problem).encode()


def _refusal(status: HTTPStatus, code: str, detail: str) -> bytes:
    """Return a complete answer with a problem."""
    body = _problem(status, code, detail)
    head = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: {PROBLEM_MEDIA_TYPE}\r\nconnection: close\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n%s" % (len(body), body)


def _head_too_large() -> bytes:
    return _refusal(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        "head_too_large",
        "Request line and headers may have 64 KiB, sent within 30 seconds; those of a WebSocket 128 headers of 8 KiB.",
    )


def _malformed_request() -> bytes:
    return _refusal(HTTPStatus.BAD_REQUEST, "malformed_request", "This is no HTTP request that can be read.")


class StallGuard:
    """Watchdog of a full write buffer: calls `on_stall` if the peer reads none of it for `stall_s`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        stall_s: float,
        on_stall: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._stall_s = stall_s
        self._on_stall = on_stall
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start watching: the transport's buffer is full."""
        self.stop()
        self._waiting = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(self._stall_s, self._look)

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        # slow progress is enough
        if self._transport.get_write_buffer_size() < self._waiting:
            self.start()
        else:
            self._on_stall()


class _WatchedWriting(asyncio.Protocol):
    """A connection that is watched by its guard while answers wait to be read."""

    stall_s: ClassVar[float] = 30.0
    _guard: StallGuard | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        if self._guard is not None:
            self._guard.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start watching whether the peer reads."""
        super().pause_writing()
        if self._guard is not None:
            self._guard.start()

    def resume_writing(self) -> None:
        """Stop watching: the peer has read."""
        super().resume_writing()
        if self._guard is not None:
            self._guard.stop()


class BoundedProtocol(_WatchedWriting, HttpToolsProtocol):
    """A protocol that closes a connection whose head is too large or slow, whose body never ends, or that is not read.

    The application refuses bodies. But it answers many requests without reading their bodies, which then have no time
    limit.
    """

    body_limit_s: ClassVar[float] = 60.0 + _ANSWER_S
    _head_bytes: int = 0
    _head_tail: bytes = b""
    _in_head: bool = True
    _deadline: asyncio.TimerHandle | None = None
    _is_parsing: bool = False
    _wanted: tuple[float, Callable[[], None]] | None = None
    """The timer to start after the received bytes: most requests are whole by then, and need none."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer of the first head."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._guard = StallGuard(self.loop, self.transport, self.stall_s, self.transport.abort)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a head before it is parsed."""
        if self._in_head:
            received = self._head_tail + data  # the end of the head may be split
            end = received.find(_HEAD_END)
            counted = self._head_bytes + (0 if end < 0 else end - len(self._head_tail))
            self._head_bytes, self._head_tail = self._head_bytes + len(data), received[-len(_HEAD_END) + 1 :]
            if counted > MAX_HEAD_BYTES:
                self._refuse()
                return
        self._is_parsing = True
        super().data_received(data)
        self._is_parsing = False
        if self._wanted is not None:
            (delay_s, expire), self._wanted = self._wanted, None
            self._deadline = self.loop.call_later(delay_s, expire)

    def on_message_begin(self) -> None:
        """Start the timer of a head."""
        self._start_clock()
        super().on_message_begin()
        self.scope["extensions"] = {CUT_EXTENSION: {"close": self.transport.close}}

    def on_headers_complete(self) -> None:
        """Stop counting the head, and start the timer of the body."""
        self._in_head, self._head_bytes, self._head_tail = False, 0, b""
        self._start_body_clock()
        self._apply_rules_of_the_head()
        super().on_headers_complete()

    def _should_upgrade(self) -> bool:
        return self.scope.get("http_version") == _VERSION and super()._should_upgrade()

    def _apply_rules_of_the_head(self) -> None:
        """Put the host of an absolute target into `Host`; ignore `Expect` in HTTP/1.0."""
        parser = self.parser
        if parser is None or ((version := parser.get_http_version()) == _VERSION and self.url.startswith(b"/")):
            return
        target = target_of(self.url)
        self.url = target.path
        self.headers[:] = effective_headers(self.headers, version=version, authority=target.authority)
        self.expect_100_continue &= version == _VERSION

    def on_message_complete(self) -> None:
        """Stop the timer of the body. The next bytes are a new head."""
        self._in_head = True
        self._stop_clock()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """Stop the timer: the connection changes its protocol, which sends each frame at once."""
        self._stop_clock()
        super().handle_websocket_upgrade()

    def _start_clock(self) -> None:
        self._expire_after(HEAD_TIMEOUT_S, self._refuse)

    def _start_body_clock(self) -> None:
        self._expire_after(self.body_limit_s, self._cut)

    def _expire_after(self, delay_s: float, expire: Callable[[], None]) -> None:
        self._stop_clock()
        if self._is_parsing:
            self._wanted = delay_s, expire
        else:
            self._deadline = self.loop.call_later(delay_s, expire)

    def _cut(self) -> None:
        if self.pipeline:  # it is not read before the previous request is answered
            self._start_body_clock()
        elif not self.transport.is_closing():
            self.transport.close()

    def _stop_clock(self) -> None:
        self._wanted = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_head_too_large())
            self.transport.close()

    def shutdown(self) -> None:
        """Close when the answer is sent. The first request of a new connection may be on its way, and is answered."""
        if self.cycle is None:  # pyright: ignore[reportUnnecessaryComparison] - of uvicorn, until there is a request
            self.loop.call_later(_FIRST_REQUEST_S, self._shut_down)
        else:
            super().shutdown()

    def _shut_down(self) -> None:
        if self in self.connections:  # not one that has ended, or is a WebSocket now
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that the parser cannot read, with a problem."""
        del msg
        self.transport.write(_malformed_request())
        self.transport.close()


class _Handshake(ServerProtocol):
    """A handshake that is refused with a problem."""

    def reject(self, status: StatusLike, text: str) -> HandshakeAnswer:
        """Return a refusal: of a broken handshake, or of a server that stops."""
        answer = super().reject(status, text)
        is_ours = answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR
        code, detail = _HANDSHAKE_PROBLEMS[is_ours]
        answer.body = _problem(HTTPStatus(answer.status_code), code, detail)
        for name, value in (("Content-Length", str(len(answer.body))), ("Content-Type", PROBLEM_MEDIA_TYPE)):
            del answer.headers[name]
            answer.headers[name] = value
        answer.headers["Sec-WebSocket-Version"] = "13"
        return answer


class BoundedSocket(_WatchedWriting, WebSocketsSansIOProtocol):
    """A WebSocket that is closed if its peer does not read, or sends endless fragments or invalid UTF-8."""

    def __init__(self, config: Config, *args: Any, **options: Any) -> None:
        super().__init__(config, *args, **options)
        self.conn = _Handshake(max_size=config.ws_max_size, logger=self.logger)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Watch the connection from its start."""
        super().connection_made(transport)
        self._guard = StallGuard(self.loop, self.transport, self.stall_s, self._close_stalled)

    def data_received(self, data: bytes) -> None:
        """Answer an unreadable handshake: uvicorn leaves such a connection open without an answer."""
        super().data_received(data)
        error = self.conn.handshake_exc
        if error is not None and not self.handshake_initiated and not self.transport.is_closing():
            is_large = any(isinstance(one, SecurityError) for one in (error, error.__cause__))
            self.handshake_complete = self.close_sent = True
            self.transport.write(_head_too_large() if is_large else _malformed_request())
            self.transport.close()

    def send_receive_event_to_app(self) -> None:
        """Pass a message on; text that is not UTF-8 closes the connection with 1007 and is not logged as an error."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.conn.fail(1007, "text that is not UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Answer, unless earlier answers wait to be read."""
        answer = b"".join(self.conn.data_to_send())
        if self.writable.is_set():
            self.transport.write(answer)

    def handle_cont(self, event: Frame) -> None:
        """Accept another fragment of a message, within a limit: empty fragments take memory too."""
        if len(self.frames) >= MAX_FRAGMENTS:
            self.conn.fail(1009, "too many fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    async def run_asgi(self) -> None:
        """Run the application; disconnect a peer that does not read its end."""
        await super().run_asgi()
        self.loop.call_later(self.close_timeout + _CLOSE_S, self._cut)

    def keepalive_timeout(self) -> None:
        """Disconnect a peer that does not answer pings."""
        super().keepalive_timeout()
        self._cut_soon()

    def shutdown(self) -> None:
        """Announce the shutdown; disconnect a peer that does not read it."""
        super().shutdown()
        self._cut_soon()

    def _close_stalled(self) -> None:
        if not self.close_sent and self.handshake_complete and not self.transport.is_closing():
            self.conn.fail(NOT_READ, "what was sent is not read")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": NOT_READ})
        self._cut_soon()

    def _cut_soon(self) -> None:
        self.loop.call_later(_CLOSE_S, self._cut)

    def _cut(self) -> None:
        if not self.disconnected:
            self.transport.abort()


def protocols(*, stall_s: float, body_timeout_s: float) -> tuple[type[BoundedProtocol], type[BoundedSocket]]:
    """Return the protocols for HTTP and WebSocket, with their settings as class attributes: uvicorn creates them."""
    limits = {"stall_s": stall_s, "body_limit_s": body_timeout_s + _ANSWER_S}
    http = type("BoundedProtocol", (BoundedProtocol,), limits)
    socket = type("BoundedSocket", (BoundedSocket,), {"stall_s": stall_s})
    return http, socket
