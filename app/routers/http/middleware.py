"""Plain ASGI middleware of every request: id, limits, log line, metrics.

`install_middleware` orders the layers so that these invariants hold. Every answer has the request id, also for
unexpected errors. Every request is logged and counted once, by its route template, never by its raw path or query. No
body over the limit is passed on or kept, and none is awaited beyond its time. The bytes of all handled bodies stay
within their limit.
"""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final, cast

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket
from structlog.contextvars import bound_contextvars

from app.core.error_codes import ERROR_CODES
from app.core.errors import AppError, Forbidden, NotFound
from app.core.ids import format_id, new_uuid
from app.core.telemetry import get_logger
from app.routers.http.body_reader import Body, too_large
from app.routers.http.bytes_in_flight import BodyReservation, BytesInFlight
from app.routers.http.idempotency import REPLAY_HEADER
from app.routers.http.problems import internal_error_response, problem_response, request_id_of
from app.settings import Settings
from app.settings.hosts import accepts_host

REQUEST_ID_HEADER: Final = "X-Request-Id"
UNMATCHED_ROUTE: Final = "unmatched"
OTHER: Final = "other"
"""Label of an unknown method or status."""

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_KNOWN_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_CLIENT_WENT_AWAY: Final = 499
_KNOWN_STATUSES: Final = frozenset({*HTTPStatus, _CLIENT_WENT_AWAY})
_CONTENT_POLICY: Final = "default-src 'none'; frame-ancestors 'none'"
"""Policy of answers that set none, as pages do: no script runs in them, and no page may frame them."""
_PROBES: Final = frozenset({"/healthz", "/readyz"})
_METRICS: Final = "/metrics"
_PRIVATE_PATHS: Final = ("/v1", "/openai/v1", "/mcp")
_DURATION_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_CORS_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_CORS_REQUEST_HEADERS: Final = (
    "Authorization", "X-API-Key", "Content-Type", "Idempotency-Key", "Last-Event-ID", "X-Agent-Id", REQUEST_ID_HEADER,
    "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "X-Conversation-Id", "X-Project",
)  # fmt: skip
_CORS_ANSWER_HEADERS: Final = (REQUEST_ID_HEADER, "ETag", REPLAY_HEADER, "Retry-After", "X-Conversation-Id")
_CORS_MAX_AGE_S: Final = 600
_MAX_DRAIN_BYTES: Final = 64 * 2**20
_MAX_DRAIN_S: Final = 5.0
_ANSWER_SLICE_BYTES: Final = 256 * 2**10


class HttpMetrics:
    """Counts and durations of requests, in the given registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "turnkeep_http_requests",
            "Requests answered, by method, route template and status.",
            ["method", "route", "status"],
            registry=registry,
        )
        self._duration = Histogram(
            "turnkeep_http_request_duration_seconds",
            "Time from the first byte of a request to the end of its answer.",
            ["method", "route"],
            registry=registry,
            buckets=_DURATION_BUCKETS_S,
        )

    def observe(self, *, method: str, route: str, status: int, duration_s: float) -> None:
        """Count one finished request."""
        # every label has a bounded set of values: a model's endpoint may return any status
        self._requests.labels(method, route, str(status) if status in _KNOWN_STATUSES else OTHER).inc()
        self._duration.labels(method, route).observe(duration_s)


def install_middleware(app: FastAPI, settings: Settings, registry: CollectorRegistry) -> None:
    """Install all middleware, with path and request id outermost. Call it after any other `add_middleware`.

    Other transports also count their bytes in `app.state.bytes_in_flight`.
    """
    bytes_in_flight = BytesInFlight(max_bytes=settings.bytes_in_flight, wait_s=settings.requests.in_flight_wait_s)
    app.state.bytes_in_flight = bytes_in_flight
    gauge = Gauge("turnkeep_request_bytes_in_flight", "Bytes of request bodies being worked on.", registry=registry)
    gauge.set_function(lambda: float(bytes_in_flight.used))
    app.add_middleware(
        BodyLimitMiddleware,
        max_bytes=settings.requests.max_request_bytes,
        timeout_s=settings.requests.body_timeout_s,
        bytes_in_flight=bytes_in_flight,
    )
    app.add_middleware(UnexpectedErrorMiddleware)
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
    if settings.telemetry.metrics_port is not None:
        app.add_middleware(MetricsPortMiddleware, port=settings.telemetry.metrics_port)
    app.add_middleware(HostMiddleware, allowed=settings.browsers.allowed_hosts, bound_to=settings.server.host)
    app.add_middleware(AccessMiddleware, metrics=HttpMetrics(registry))
    app.add_middleware(RequestIdMiddleware)
    # outside of all layers that compare paths: limits on hosts and ports, headers, routes, idempotency keys
    app.add_middleware(TrailingSlashMiddleware)


class TrailingSlashMiddleware:
    """Middleware that removes one slash from the end of a path: `/v1/conversations/` becomes `/v1/conversations`.

    The path is rewritten, not redirected: a redirect would lose the body in some clients, and WebSockets follow none.
    An empty segment stays and is not found (`//`): an empty id must not name the list. An encoded slash is data.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a connection on with its path in the form of the routes."""
        if scope["type"] in {"http", "websocket"}:
            path, raw_path = str(scope["path"]), cast("bytes | None", scope.get("raw_path"))
            is_plain = raw_path is None or raw_path.endswith(b"/")
            if path.endswith("/") and not path.endswith("//") and is_plain and _path(scope) != "/":
                scope = {**scope, "path": path[:-1], "raw_path": raw_path and raw_path[:-1]}
        await self.app(scope, receive, send)


class RequestIdMiddleware:
    """Middleware that sets the id of every request (the caller's, if valid) and the common headers of every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a connection on with its id."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = given if _REQUEST_ID.fullmatch(given) else format_id(new_uuid())
        cast("dict[str, object]", scope.setdefault("state", {}))["request_id"] = request_id
        path = _path(scope)
        is_private = any(path == root or path.startswith(f"{root}/") for root in _PRIVATE_PATHS)

        async def send_with_headers(message: Message) -> None:
            if message["type"] in {"http.response.start", "websocket.accept", "websocket.http.response.start"}:
                message.setdefault("headers", [])
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = request_id
                headers["X-Content-Type-Options"] = "nosniff"
                headers.setdefault("Content-Security-Policy", _CONTENT_POLICY)
                if is_private:
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        with bound_contextvars(request_id=request_id):
            await self.app(scope, receive, send_with_headers)


class MetricsPortMiddleware:
    """Middleware that serves `/metrics` on the given port only, and nothing else there except the health probes."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a connection on, or answer 404."""
        if scope["type"] in {"http", "websocket"}:
            _, port = cast("tuple[str, int | None]", scope.get("server") or ("", None))
            path = _path(scope)
            if path not in _PROBES and (path == _METRICS) is not (port == self._port):
                error = NotFound("route_not_found", ERROR_CODES["route_not_found"])
                await _refuse_connection(scope, receive, send, error)
                return
        await self.app(scope, receive, send)


class HostMiddleware:
    """Middleware that refuses requests and WebSockets for the host name of another server: see `accepts_host`.

    Without it, a page of another site could use its own DNS name to reach a server that only this machine should reach.
    Health probes and metrics are exempt: they address a replica by its IP address, which no list names, and they return
    no content.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str] | None, bound_to: str) -> None:
        self.app = app
        self._allowed = allowed
        self._bound_to = bound_to

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a connection on, or answer 403."""
        if scope["type"] not in {"http", "websocket"} or _path(scope) in {*_PROBES, _METRICS}:
            await self.app(scope, receive, send)
            return
        given = [one.strip(" \t") for one in Headers(scope=scope).getlist("host")]
        if accepts_host(given, allowed=self._allowed, bound_to=self._bound_to):
            await self.app(scope, receive, send)
            return
        error = Forbidden("host_not_allowed", "This server does not answer to this Host: see TURNKEEP_ALLOWED_HOSTS.")
        await _refuse_connection(scope, receive, send, error)


class AccessMiddleware:
    """Middleware that writes `request.finished` and the metrics, once per HTTP request."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and log it when it ends."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        app = cast("FastAPI", scope["app"])  # a mounted application replaces itself in the scope
        status = _CLIENT_WENT_AWAY
        started = time.perf_counter()

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, send_noting_status)
        finally:
            self._finish(scope, app, status=status, duration_s=time.perf_counter() - started)

    def _finish(self, scope: Scope, app: FastAPI, *, status: int, duration_s: float) -> None:
        method = scope["method"] if scope["method"] in _KNOWN_METHODS else OTHER
        route = route_template(scope, app)
        self._metrics.observe(method=method, route=route, status=status, duration_s=duration_s)
        state = cast("Mapping[str, object]", scope.get("state", {}))
        who = {name: state[name] for name in ("tenant_id", "key_id") if name in state}
        get_logger().info(
            "request.finished",
            method=method,
            route=route,
            status=status,
            duration_ms=round(duration_s * 1000, 1),
            request_id=request_id_of(scope),
            **who,
        )


class UnexpectedErrorMiddleware:
    """Middleware that answers 500 for unhandled exceptions, so that no server prints their messages.

    A started answer cannot become a problem: the exception is raised again, and the server closes the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and answer 500 for an unhandled exception."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_begun = False

        async def send_noting_start(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, receive, send_noting_start)
        except ClientDisconnect:
            return  # the client has disconnected
        except Exception as error:
            response = internal_error_response(scope, error)
            if has_begun:
                raise
            await response(scope, receive, send)


class BodyLimitMiddleware:
    """Middleware that refuses bodies over the limit with a 413, by their declared length or when they exceed it.

    A body that is incomplete in time is refused with a 408, because a slow sender would occupy a connection and memory.
    A body without room among the bytes in flight waits, unread, and is then refused with a 503. Other bodies count
    until their answer is sent.

    The answer is sent while the client may still be sending. The rest of the body is discarded, up to limits of time
    and size, before the connection is closed. Closing it with unread bytes resets it, and the client never sees the
    answer.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float, bytes_in_flight: BytesInFlight) -> None:
        self.app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._bytes_in_flight = bytes_in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its body within the limits."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        declared = int(length[:20]) if length.isdecimal() else 0
        if declared > self._max_bytes:
            # a client that expects 100 Continue sends nothing before the body is read
            await _refuse(
                scope, receive, send, too_large(self._max_bytes), is_sending="expect" not in Headers(scope=scope)
            )
            return
        reservation = BodyReservation(self._bytes_in_flight)
        try:
            await self._pass_on(scope, receive, send, declared, reservation)
        finally:
            reservation.release()

    async def _pass_on(
        self, scope: Scope, receive: Receive, send: Send, declared: int, reservation: BodyReservation
    ) -> None:
        body = Body(scope, receive, declared, reservation, max_bytes=self._max_bytes, timeout_s=self._timeout_s)
        has_begun = False

        async def send_unless_refused(message: Message) -> None:
            nonlocal has_begun
            if body.refusal is None or has_begun:
                has_begun = True
                if _is_event_stream(message):
                    reservation.release()  # a stream may last for hours, and the body was handled before it starts
                await _send_in_slices(send, message)

        try:
            await self.app(scope, body.receive, send_unless_refused)
        except Exception:  # the application may have converted the refusal
            if has_begun or body.refusal is None:
                raise
        if body.refusal is not None and not has_begun:
            # a client that expects 100 Continue sends nothing before the body is read
            is_sending = body.is_read or "expect" not in Headers(scope=scope)
            await _refuse(scope, receive, send, body.refusal, is_sending=is_sending)


def _is_event_stream(message: Message) -> bool:
    if message["type"] != "http.response.start":
        return False
    return Headers(raw=message.get("headers", [])).get("content-type", "").startswith("text/event-stream")


async def _send_in_slices(send: Send, message: Message) -> None:
    """Send a part of an answer; a long part in slices, each after the client has read most of the one before."""
    body: bytes = message.get("body", b"")
    if message["type"] != "http.response.body" or len(body) <= _ANSWER_SLICE_BYTES:
        await send(message)
        return
    for start in range(0, len(body), _ANSWER_SLICE_BYTES):
        end = start + _ANSWER_SLICE_BYTES
        is_last = end >= len(body) and not message.get("more_body", False)
        await send({"type": message["type"], "body": body[start:end], "more_body": not is_last})


async def _refuse_connection(scope: Scope, receive: Receive, send: Send, error: AppError) -> None:
    """Answer a request or the handshake of a WebSocket with a problem."""
    response = problem_response(scope, error)
    if scope["type"] == "http":
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

    For a route of an included router, FastAPI keeps the template with the router's prefix in a context of its own
    (`scope["route"]` is without the prefix). For mounts and Starlette's routes it keeps only the endpoint.
    """
    fastapi_scope = cast("Mapping[str, object]", scope.get("fastapi", {}))
    context = fastapi_scope.get("effective_route_context")
    for route in (getattr(context, "starlette_route", None), context, scope.get("route")):
        template: object = getattr(route, "path_format", None)
        if isinstance(template, str) and template:
            return template
    endpoint: object = scope.get("endpoint")
    if endpoint is not None:
        for candidate in iter_route_contexts(app.routes):
            if endpoint in (candidate.endpoint, getattr(candidate, "app", None)):
                return candidate.path_format or UNMATCHED_ROUTE
    return UNMATCHED_ROUTE
