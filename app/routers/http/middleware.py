"""Plain ASGI middleware of every request: id, limits, log line, metrics.

`install_middleware` orders the layers so that these invariants hold. Every answer has the request id, also for
unexpected errors. Every request is logged and counted once, by its route template, never by its raw path or query. No
body over the limit is passed on or kept, and none is awaited beyond its time. The bytes of all handled bodies stay
within their limit.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, cast

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from prometheus_client import Gauge
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket
from structlog.contextvars import bind_contextvars, reset_contextvars

from app.audit.service import audited_request
from app.core.error_codes import ERROR_CODES
from app.core.errors import AppError, Forbidden, NotFound
from app.core.ids import TenantId, format_id, new_unordered_uuid
from app.core.telemetry import get_logger
from app.core.tracing.call_record import CallRecord, recorded_call
from app.core.tracing.spans import current_trace
from app.diagnostics.service import FinishedCall
from app.routers.http.app_state import AppState, app_state
from app.routers.http.body_reader import UPLOAD_PATH, Body, StreamedBody, too_large
from app.routers.http.bytes_in_flight import BodyReservation, BytesInFlight
from app.routers.http.idempotency import REPLAY_HEADER
from app.routers.http.metrics import CLIENT_WENT_AWAY, OTHER, HttpMetrics
from app.routers.http.problems import cut_answer, internal_error_response, problem_response, request_id_of
from app.routers.http.rates import POLICY_HEADER, STATE_HEADER, rate_headers, route_class
from app.routers.http.request_head import (
    MALFORMED,
    REQUEST_ID_HEADER,
    REQUEST_ID_NAME,
    SERVER_PATH,
    Headers,
    RequestHead,
    framing_error,
    host_error,
    target_error,
)
from app.settings import Settings
from app.settings.hosts import accepts_host

UNMATCHED_ROUTE: Final = "unmatched"

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_KNOWN_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_CONTENT_POLICY: Final = "default-src 'none'; frame-ancestors 'none'"
"""Policy of answers that set none, as pages do: no script runs in them, and no page may frame them."""
_ALWAYS: Final = {b"x-content-type-options": b"nosniff", b"content-security-policy": _CONTENT_POLICY.encode()}
_REPLACED: Final = frozenset({REQUEST_ID_NAME, b"x-content-type-options", b"accept-ranges"})
_RANGE_HEADERS: Final = frozenset({b"range", b"if-range"})
_STARTS: Final = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
_PROBES: Final = frozenset({"/healthz", "/readyz"})
_METRICS: Final = "/metrics"
_PRIVATE_PATHS: Final = ("/v1", "/openai/v1", "/mcp")
_CORS_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_CORS_REQUEST_HEADERS: Final = (
    "Authorization", "X-API-Key", "Content-Type", "Idempotency-Key", "Last-Event-ID", "X-Agent-Id", REQUEST_ID_HEADER,
    "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "X-Conversation-Id", "X-Project",
)  # fmt: skip
_CORS_ANSWER_HEADERS: Final = (
    REQUEST_ID_HEADER, "ETag", REPLAY_HEADER, "Retry-After", "X-Conversation-Id", STATE_HEADER, POLICY_HEADER,
    "X-Turnkeep-Erased", "X-Turnkeep-Stored",
)  # fmt: skip
_CORS_MAX_AGE_S: Final = 600
_STREAM_TYPES: Final = (b"text/event-stream", b"application/x-ndjson")
_MAX_DRAIN_BYTES: Final = 64 * 2**20
_MAX_DRAIN_S: Final = 5.0
_ANSWER_SLICE_BYTES: Final = 64 * 2**10


def install_middleware(app: FastAPI, state: AppState) -> None:
    """Install all middleware. Call it after any other `add_middleware`: `RequestMiddleware` must be outermost."""
    settings, bytes_in_flight = state.settings, state.bytes_in_flight
    gauge = Gauge(
        "turnkeep_request_bytes_in_flight", "Bytes of request bodies being worked on.", registry=state.registry
    )
    gauge.set_function(lambda: float(bytes_in_flight.used))
    app.add_middleware(
        BodyLimitMiddleware,
        max_bytes=settings.requests.max_request_bytes,
        max_upload_bytes=settings.requests.import_max_bytes,
        timeout_s=settings.requests.body_timeout_s,
        bytes_in_flight=bytes_in_flight,
    )
    if settings.browsers.cors_origins is not None:
        # outside of all layers that answer, so that pages can read refusals and failures; before authentication,
        # because a preflight has no key. Keys and tokens are headers, never cookies: no credentials in the sense of
        # CORS
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.browsers.cors_origins,
            allow_methods=_CORS_METHODS,
            allow_headers=_CORS_REQUEST_HEADERS,
            expose_headers=_CORS_ANSWER_HEADERS,
            max_age=_CORS_MAX_AGE_S,
        )
    app.add_middleware(RequestMiddleware, metrics=HttpMetrics(state.registry), addresses=AddressCheck(settings))


class AddressCheck:
    """Refuses connections that are addressed to another server, or to a port that does not serve their path."""

    def __init__(self, settings: Settings) -> None:
        self._allowed_hosts = settings.browsers.allowed_hosts
        self._bound_to = settings.server.host
        self._metrics_port = settings.telemetry.metrics_port
        self._last_host: bytes | None = None
        """The `Host` that was accepted last: nearly all requests have the same."""

    def refusal(self, path: str, hosts: Sequence[bytes], port: int | None, *, version: str = "1.1") -> AppError | None:
        """Return the error for a connection with these `Host` headers on a port, or None."""
        is_accepted = len(hosts) == 1 and hosts[0] == self._last_host
        if not is_accepted and (error := host_error(hosts, version=version)) is not None:
            return error
        if path in _PROBES:
            return None
        if path != _METRICS and not (is_accepted or self._accepts(hosts)):
            return Forbidden(
                "host_not_allowed", "This server does not answer to this Host: see TURNKEEP_ALLOWED_HOSTS."
            )
        if self._metrics_port is not None and (path == _METRICS) is not (port == self._metrics_port):
            return NotFound("route_not_found", ERROR_CODES["route_not_found"])
        return None

    def _accepts(self, hosts: Sequence[bytes]) -> bool:
        names = [host.decode("latin-1").strip(" \t") for host in hosts]
        is_accepted = accepts_host(names, allowed=self._allowed_hosts, bound_to=self._bound_to)
        if is_accepted and len(hosts) == 1:
            self._last_host = hosts[0]
        return is_accepted


class _Ended(NamedTuple):
    """The end of an HTTP request. A stream ends when the client decides so."""

    path: str
    status: int
    duration_s: float
    is_stream: bool


class RequestMiddleware:
    """The outermost middleware. One layer, because each one costs every request and every part of an answer.

    In this order, it:

    1. Removes one slash from the end of a path: `/v1/conversations/` becomes `/v1/conversations`. The path is not
       redirected: a redirect would lose the body in some clients, and WebSockets follow none. An empty segment stays
       and is not found (`//`): an empty id must not name the list. An encoded slash is data.
    2. Sets the id of the request (the caller's, if valid), and the common headers of every answer.
    3. Writes `request.finished` and the metrics, once per HTTP request, and gives the request to the monitor.
    4. Refuses requests and WebSockets without one valid host, and those in a transfer coding that is not undone; ends
       their connections. Refuses those for the host name of another server: see `accepts_host`. Otherwise a page of
       another site could use its own DNS name to reach a server that only this machine should reach. Health probes and
       metrics are exempt: they address a replica by its IP address, which no list names, and they return no content.
    5. Refuses requests and WebSockets on the wrong port: `/metrics` is served on `metrics_port` only, if that is set,
       and nothing else there except the health probes.
    6. Removes `Range`: no route answers with a part of a file. Answers `OPTIONS *`.
    """

    def __init__(self, app: ASGIApp, *, metrics: HttpMetrics, addresses: AddressCheck) -> None:
        self.app = app
        self._metrics = metrics
        self._addresses = addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a connection on, or refuse it."""
        is_http = scope["type"] == "http"
        if not is_http and scope["type"] != "websocket":
            await self.app(scope, receive, send)
            return
        scope = _without_slash(scope)
        path, head = _path(scope), RequestHead.of(cast("Headers", scope["headers"]))
        if head.has_range:
            scope = _without_range(scope)
        request_id = valid_request_id(head.request_id)
        cast("dict[str, object]", scope.setdefault("state", {}))["request_id"] = request_id
        headers = answer_headers(path, request_id)
        app: FastAPI = scope["app"]  # a mounted application replaces itself in the scope
        status, is_stream = CLIENT_WENT_AWAY, False
        started = time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            nonlocal status, is_stream
            if message["type"] in _STARTS:
                status, is_stream = message.get("status", status), _is_stream(message)
                message["headers"] = _with_headers(message.get("headers", ()), headers) + rate_headers(scope)
            await send(message)

        bound = bind_contextvars(request_id=request_id)
        with recorded_call() as record:
            try:
                if (error := self._refusal(scope, head, path)) is not None:
                    await _refuse_connection(scope, receive, send_with_headers, error)
                elif path == SERVER_PATH:
                    allowed = Response(status_code=204, headers={"Allow": ", ".join(sorted(_KNOWN_METHODS))})
                    await allowed(scope, receive, send_with_headers)
                else:
                    with audited_request(request_id):
                        await self.app(scope, receive, send_with_headers)
            finally:
                if is_http:
                    ended = _Ended(path, status, time.perf_counter() - started, is_stream)
                    self._finish(scope, app, ended, record)
                reset_contextvars(**bound)

    def _refusal(self, scope: Scope, head: RequestHead, path: str) -> AppError | None:
        """Return the error for a request that no route answers, or None."""
        version: str = scope.get("http_version", "1.1")
        _, port = cast("tuple[str, int | None]", scope.get("server") or ("", None))
        return (
            framing_error(head, version=version)
            or target_error(scope.get("method", "GET"), path)
            or self._addresses.refusal(path, head.hosts, port, version=version)
        )

    def _finish(self, scope: Scope, app: FastAPI, ended: "_Ended", record: CallRecord) -> None:
        method = scope["method"] if scope["method"] in _KNOWN_METHODS else OTHER
        route = route_template(scope, app)
        status, duration_s = ended.status, ended.duration_s
        traced = current_trace()
        exemplar = None if traced is None else {"trace_id": traced[0], "span_id": traced[1]}
        self._metrics.observe(method=method, route=route, status=status, duration_s=duration_s, exemplar=exemplar)
        state = cast("Mapping[str, object]", scope.get("state", {}))
        app_state(app).monitor.observe(
            FinishedCall(
                tenant_id=cast("TenantId | None", state.get("tenant")),
                request_id=request_id_of(scope),
                trace_id=None if traced is None else traced[0],
                method=method,
                route=route,
                route_class=route_class(scope, ended.path),
                status=status,
                duration_s=None if ended.is_stream else duration_s,
                record=record,
            )
        )
        who = {name: state[name] for name in ("tenant_id", "key_id") if name in state}
        if traced is not None:
            who["trace_id"] = traced[0]
        get_logger().info(
            "request.finished",
            method=method,
            route=route,
            status=status,
            duration_ms=round(duration_s * 1000, 1),
            request_id=request_id_of(scope),
            **who,
        )


def _without_slash(scope: Scope) -> Scope:
    """Return the scope with its path in the form of the routes."""
    path: str = scope["path"]
    if not path.endswith("/") or path.endswith("//") or _path(scope) == "/":
        return scope
    raw_path = cast("bytes | None", scope.get("raw_path"))
    if raw_path is not None and not raw_path.endswith(b"/"):
        return scope
    return {**scope, "path": path[:-1], "raw_path": raw_path and raw_path[:-1]}


def _without_range(scope: Scope) -> Scope:
    """Return the scope without `Range`: every answer is whole, so no part of a file can be refused."""
    headers = cast("Iterable[tuple[bytes, bytes]]", scope["headers"])
    return {**scope, "headers": [pair for pair in headers if pair[0] not in _RANGE_HEADERS]}


def valid_request_id(sent: str) -> str:
    """Return the id that a caller gave, if it is valid, or else a new one."""
    return sent if _REQUEST_ID.fullmatch(sent) else format_id(new_unordered_uuid())


def answer_headers(path: str, request_id: str) -> dict[bytes, bytes]:
    """Return the headers of every answer to a path. Those in `_REPLACED` replace the route's own."""
    headers = {REQUEST_ID_NAME: request_id.encode("latin-1"), **_ALWAYS}
    if any(path == root or path.startswith(f"{root}/") for root in _PRIVATE_PATHS):
        headers[b"cache-control"] = b"no-store"
    return headers


def _with_headers(own: Iterable[tuple[bytes, bytes]], common: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    pairs = [pair for pair in own if pair[0] not in _REPLACED]
    names = {name for name, _ in pairs}
    return pairs + [pair for pair in common.items() if pair[0] not in names]


class BodyLimitMiddleware:
    """Middleware that refuses bodies over the limit with a 413, and answers 500 for unhandled exceptions.

    A body is refused by its declared length or when it exceeds the limit. A started answer cannot become a problem: the
    exception is raised again, and the server closes the connection. No server prints the messages of exceptions.

    A body that is incomplete in time is refused with a 408, because a slow sender would occupy a connection and memory.
    A body without room among the bytes in flight waits, unread, and is then refused with a 503. Other bodies count
    until their answer is sent.

    The answer is sent while the client may still be sending. The rest of the body is discarded, up to limits of time
    and size, before the connection is closed. Closing it with unread bytes resets it, and the client never sees the
    answer.
    """

    def __init__(
        self, app: ASGIApp, max_bytes: int, max_upload_bytes: int, timeout_s: float, bytes_in_flight: BytesInFlight
    ) -> None:
        self.app = app
        self._max_bytes = max_bytes
        self._max_upload_bytes = max_upload_bytes
        self._timeout_s = timeout_s
        self._bytes_in_flight = bytes_in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its body within the limits."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        reservation = BodyReservation(self._bytes_in_flight)
        declared = _declared_length(scope)
        max_bytes = self._max_bytes
        if scope["method"] == "POST" and _path(scope) == UPLOAD_PATH:
            # read and released part by part: neither its size nor its duration is limited here
            body: Body = StreamedBody(
                scope, receive, declared, reservation, max_bytes=self._max_upload_bytes, timeout_s=self._timeout_s
            )
            max_bytes = self._max_upload_bytes
        else:
            body = Body(scope, receive, declared, reservation, max_bytes=max_bytes, timeout_s=self._timeout_s)
        answer = _Answer(send, body, reservation)
        try:
            await self._pass_on(scope, body, answer, declared=declared, max_bytes=max_bytes)
            if body.refusal is not None and not answer.has_begun:
                answer.has_begun = True
                is_sending = body.is_read or not _expects_continue(scope)
                await _refuse(scope, receive, send, body.refusal, is_sending=is_sending)
        except ClientDisconnect:
            return  # the client has disconnected
        except Exception as error:  # noqa: BLE001 - every exception is answered, or ends the answer
            if answer.has_begun:
                await cut_answer(scope, receive, error)
            else:
                await internal_error_response(scope, error)(scope, receive, send)
        finally:
            reservation.release()

    async def _pass_on(self, scope: Scope, body: Body, answer: "_Answer", *, declared: int, max_bytes: int) -> None:
        """Pass a request on. If its body is refused, the error is in `body.refusal`."""
        if declared > max_bytes:
            body.refusal = too_large(max_bytes)
            return
        try:
            await self.app(scope, body.receive, answer.send)
        except Exception:  # the application may have converted the refusal
            if answer.has_begun or body.refusal is None:
                raise


class _Answer:
    """The answer to a request. None of it is sent after the body was refused, unless it has begun before."""

    __slots__ = ("_body", "_reservation", "_send", "has_begun")

    def __init__(self, send: Send, body: Body, reservation: BodyReservation) -> None:
        self._send = send
        self._body = body
        self._reservation = reservation
        self.has_begun = False

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if self._body.refusal is not None and not self.has_begun:
            return
        self.has_begun = True
        if _is_stream(message):
            self._reservation.release()  # a stream may last for hours, and the body was handled before it starts
        await _send_in_slices(self._send, message)


def _declared_length(scope: Scope) -> int:
    for name, value in cast("Iterable[tuple[bytes, bytes]]", scope["headers"]):
        if name == b"content-length":
            return int(value[:20]) if value.isdigit() else 0
    return 0


def _expects_continue(scope: Scope) -> bool:
    """Return whether the client expects 100 Continue: it sends nothing before the body is read."""
    return any(name == b"expect" for name, _ in cast("Iterable[tuple[bytes, bytes]]", scope["headers"]))


def _is_stream(message: Message) -> bool:
    if message["type"] != "http.response.start":
        return False
    headers = cast("Iterable[tuple[bytes, bytes]]", message.get("headers", ()))
    return any(name == b"content-type" and value.startswith(_STREAM_TYPES) for name, value in headers)


async def _send_in_slices(send: Send, message: Message) -> None:
    """Send a part of an answer; a long part in slices, each after the client has read most of the one before.

    Other requests have their turn between two slices: the buffers of the system take megabytes at once.
    """
    body: bytes = message.get("body", b"")
    if message["type"] != "http.response.body" or len(body) <= _ANSWER_SLICE_BYTES:
        await send(message)
        return
    for start in range(0, len(body), _ANSWER_SLICE_BYTES):
        end = start + _ANSWER_SLICE_BYTES
        is_last = end >= len(body) and not message.get("more_body", False)
        await send({"type": message["type"], "body": body[start:end], "more_body": not is_last})
        await asyncio.sleep(0)


async def _refuse_connection(scope: Scope, receive: Receive, send: Send, error: AppError) -> None:
    """Answer a request or the handshake of a WebSocket with a problem."""
    response = problem_response(scope, error)
    if scope["type"] == "http" and error.code == MALFORMED:
        # the body may look like the next request
        await _refuse(scope, receive, send, error, is_sending=not _expects_continue(scope))
    elif scope["type"] == "http":
        await response(scope, receive, send)
    else:
        await WebSocket(scope, receive, send).send_denial_response(response)


async def _refuse(scope: Scope, receive: Receive, send: Send, error: AppError, *, is_sending: bool) -> None:
    response = problem_response(scope, error)
    response.headers["Connection"] = "close"
    start: Message = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
    await send(start)
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    if is_sending:
        await _drain(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drain(receive: Receive) -> None:
    drained = 0
    try:
        async with asyncio.timeout(_MAX_DRAIN_S):
            while drained < _MAX_DRAIN_BYTES:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                drained += len(message.get("body", b""))
    except TimeoutError:
        return


def _path(scope: Scope) -> str:
    return str(scope["path"]).removeprefix(str(scope.get("root_path", "")))


def route_template(scope: Scope, app: FastAPI) -> str:
    """Return the route template of a request, such as `/v1/conversations/{id}`, or `unmatched`.

    A router has its prefix itself, so it is in the template of its routes. Mounts and Starlette's routes leave only the
    endpoint in the scope.
    """
    template: object = getattr(scope.get("route"), "path_format", None)
    if isinstance(template, str) and template:
        return template
    endpoint: object = scope.get("endpoint")
    if endpoint is not None:
        for candidate in iter_route_contexts(app.routes):
            if endpoint in (candidate.endpoint, getattr(candidate, "app", None)):
                return candidate.path_format or UNMATCHED_ROUTE
    return UNMATCHED_ROUTE
