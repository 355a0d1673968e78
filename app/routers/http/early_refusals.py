"""Refuses calls of a tenant that has too many while their head is read, before there is a request.

A call that goes through the application to be refused costs several times as much, and a flood of them takes the
processor from the calls that are worked on. A call is refused here only if the application would refuse it with the
same answer: its host and port are right, its key was checked lately, its route takes a slot, and its body is small. All
others go to the application.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, cast

from fastapi import FastAPI
from fastapi.routing import APIRoute

from app.container import Container
from app.core.ids import KeyId, TenantId, format_id
from app.core.telemetry import get_logger
from app.core.tracing.call_record import CallRecord
from app.diagnostics.service import FinishedCall, Monitor
from app.routers.http.dependencies import token_of
from app.routers.http.metrics import HttpMetrics
from app.routers.http.middleware import AddressCheck, answer_headers, valid_request_id
from app.routers.http.problems import PROBLEM_MEDIA_TYPE, problem_of, status_of
from app.routers.http.rates import class_of, rate_fields
from app.routers.http.request_head import REQUEST_ID_NAME
from app.routers.http.routing.route_index import RouteIndex
from app.routers.http.routing.strict_route import StrictJsonRoute
from app.tenancy.limits.schemas import WITHOUT_SLOT, overloaded
from app.tenancy.schemas import Caller

MAX_AT_ONCE: Final = 16
"""Refusals in one iteration of the event loop. Those beyond go to the application, which spreads them."""
MAX_BODY_BYTES: Final = 64 * 2**10
"""Largest declared body of a call that is refused here: it arrives after the answer, and is discarded."""
_LENGTH_DIGITS: Final = 8
"""A longer length, such as one with zeros before it, goes to the application."""
_LOG_S: Final = 1.0
_API: Final = b"/v1/"
_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
# a page must be able to read the answer, and a client that waits for 100 Continue gets none
_UNUSUAL_HEADERS: Final = frozenset({b"origin", b"expect", b"transfer-encoding", b"upgrade"})
_ID_PLACE: Final = "{id}"


class EarlyRefusals:
    """Answers for calls of tenants that have too many.

    Each is counted as a request, without a duration. The log has one line a second for each key; those of the last
    second before a stop are not logged.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._at_once = 0
        self._unlogged: Counter[tuple[TenantId, KeyId]] = Counter()
        error = overloaded()
        self._status = status_of(error)
        text = problem_of(_ID_PLACE, error, status=self._status, fields=()).model_dump_json()
        self._before_id, self._after_id = (part.encode() for part in text.split(_ID_PLACE))
        self._type = b"content-type: %s\r\n" % PROBLEM_MEDIA_TYPE.encode()
        self._retry = b"retry-after: %d\r\n" % (error.retry_after_s or 1)

    def answer(
        self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], *, port: int | None
    ) -> bytes | None:
        """Return the headers and the body of a refusal with 503; None if the application has to answer.

        `target` is the path with its query. The names of the headers are lower case. `port`: where the call arrived.
        """
        container = cast("Container | None", getattr(self._app.state, "container", None))
        if container is None or not container.tenancy.slots.is_awaited or self._at_once >= MAX_AT_ONCE:
            return None
        given = _plain_headers(headers)
        if given is None or method not in _METHODS or not target.startswith(_API):
            return None
        tenancy = container.tenancy
        token = token_of(_text(given, b"authorization"), _text(given, b"x-api-key") or None)
        caller = None if token is None else tenancy.checked_caller(token)
        if caller is None or not tenancy.slots.is_full(caller.key_tenant_id):
            return None
        path = target.partition(b"?")[0].decode("ascii", "replace")
        route = self._route(method, path) if self._is_for_us(path, given.get(b"host"), port) else None
        if route is None or (rate_class := class_of(route.name, method)) in WITHOUT_SLOT:
            return None
        status = tenancy.rates.take(caller, rate_class)
        if status is not None and status.is_refused:
            return None
        request_id = valid_request_id(_text(given, REQUEST_ID_NAME))
        self._count(caller, FinishedCall(
            tenant_id=caller.key_tenant_id, request_id=request_id, trace_id=None, method=method,
            route=route.path_format, route_class=rate_class.value, status=self._status, duration_s=None,
            record=CallRecord(),
        ))  # fmt: skip
        fields = [*answer_headers(path, request_id).items(), *rate_fields(status)]
        return self._refusal(request_id, fields)

    def _is_for_us(self, path: str, host: bytes | None, port: int | None) -> bool:
        addresses = cast("AddressCheck", self._app.state.address_check)
        return host is not None and addresses.refusal(path, [host], port) is None

    def _route(self, method: str, path: str) -> APIRoute | None:
        """Return the route of a call if it takes a slot."""
        if "%" in path:
            return None
        index = cast("RouteIndex", self._app.router.middleware_stack)
        for route in index.router_of(path).routes:
            if isinstance(route, APIRoute) and method in (route.methods or ()) and route.path_regex.match(path):
                return route if isinstance(route, StrictJsonRoute) and route.takes_slot else None
        return None

    def _refusal(self, request_id: str, fields: Sequence[tuple[bytes, bytes]]) -> bytes:
        body = self._before_id + request_id.encode() + self._after_id
        lines = b"".join(b"%s: %s\r\n" % pair for pair in fields)
        length = b"content-length: %d\r\n\r\n" % len(body)
        return b"".join((self._type, self._retry, lines, length, body))

    def _count(self, caller: Caller, call: FinishedCall) -> None:
        loop = asyncio.get_running_loop()
        if not self._at_once:
            loop.call_soon(self._start_again)
        self._at_once += 1
        state = self._app.state
        cast("HttpMetrics", state.http_metrics).observe(
            method=call.method, route=call.route, status=call.status, duration_s=None
        )
        cast("Monitor", state.monitor).observe(call)
        if not self._unlogged:
            loop.call_later(_LOG_S, self._log)
        self._unlogged[caller.key_tenant_id, caller.key_id] += 1

    def _start_again(self) -> None:
        self._at_once = 0

    def _log(self) -> None:
        refused, self._unlogged = self._unlogged, Counter()
        for (tenant_id, key_id), count in refused.items():
            who = {"tenant_id": format_id(tenant_id), "key_id": format_id(key_id)}
            get_logger().warning("calls.refused", code="overloaded", count=count, **who)


def _plain_headers(headers: Sequence[tuple[bytes, bytes]]) -> Mapping[bytes, bytes] | None:
    """Return the headers by name; None if one is repeated, or if they ask for more than a plain answer."""
    given = dict(headers)
    length = given.get(b"content-length", b"0")
    is_small = len(length) <= _LENGTH_DIGITS and length.isdigit() and int(length) <= MAX_BODY_BYTES
    return given if is_small and len(given) == len(headers) and given.keys().isdisjoint(_UNUSUAL_HEADERS) else None


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")
