"""`/mcp`: streamable HTTP without sessions, so that any replica answers any request.

Origin, key and body of a request are checked here, before the SDK. So an unauthorised request costs no parsing, a body
is as strict as over REST, and no answer repeats the input. Refusals before the protocol starts are problems; an invalid
message is answered by a JSON-RPC error. The SDK is imported for the first message of the process: it takes 20 MB, and
a quarter of the time that all other imports take, which an installation without agents would pay at each start.
"""

import asyncio
import email.message
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, cast

from prometheus_client import CollectorRegistry
from pydantic import JsonValue
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.agents.lifecycle.schemas import PRODUCED_ITEMS
from app.container import Container
from app.core.errors import AppError, Forbidden, Invalid
from app.core.ids import format_id
from app.core.tracing.spans import describe_current_span
from app.core.validation.content_codings import IDENTITY, require_coding
from app.core.validation.invalid import cut_fields, public_detail
from app.core.validation.json_text import parse_json
from app.core.validation.strict import Unchecked
from app.mcp.request_log import ASKING, McpRequest, RequestLog, RequestRecord
from app.mcp.tool_list import CALL_TOOL, OfferedTools
from app.settings import Settings
from app.settings.hosts import host_of, is_loopback
from app.tenancy.limits.schemas import RATE_STATE, WITHOUT_SLOT, RateStatus
from app.tenancy.schemas import Caller, agent_name

if TYPE_CHECKING:
    from app.mcp.server import McpServer

_PARSE_ERROR: Final = -32700
_INVALID_REQUEST: Final = -32600
"""Codes of JSON-RPC 2.0."""
_ENVELOPE: Final = frozenset({"jsonrpc", "id", "method", "params", "name", "arguments", "_meta", "uri", "cursor"})
_ENVELOPE_DEPTH: Final = 2
"""Levels of a message around the arguments of a tool, which may be as deep as a REST body."""
_PRODUCED: Final = PRODUCED_ITEMS | {"turns"}
"""Arguments with texts and numbers of a model or a tool: their models check the rest of them."""
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_INLINE_BYTES: Final = 64 * 2**10
_NOT_ONE_MESSAGE: Final = "The body is one JSON-RPC request or notification: an object with jsonrpc, method and params."


class McpEndpoint:
    """The endpoint, as an ASGI application. The surrounding application turns its `AppError`s into problems."""

    def __init__(self, settings: Settings, registry: CollectorRegistry) -> None:
        self._settings = settings
        self._request_log = RequestLog(registry)
        self._offer = OfferedTools(settings)
        self._member_names = self._offer.member_names | _ENVELOPE
        self._protocol: _Protocol | None = None

    @property
    def names(self) -> frozenset[str]:
        """Return the names of all methods and offered tools."""
        return self._offer.names

    @asynccontextmanager
    async def open(self, services: Container) -> AsyncGenerator[None]:
        """Answer requests with these services, until the block ends; one block at a time."""
        self._protocol = protocol = _Protocol(self._settings, self._offer, self._request_log, services)
        try:
            yield
        finally:
            self._protocol = None
            await protocol.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and log it."""
        state = cast("dict[str, object]", scope["state"])
        record = RequestRecord(str(state.get("request_id", "")))
        with self._request_log.of_request(record):
            try:
                await self._answer(record, Request(scope, receive), send)
            except AppError as error:
                record.status = error.code
                raise
            except ClientDisconnect:
                raise
            except Exception:
                record.status = "internal_error"
                raise

    async def _answer(self, record: RequestRecord, request: Request, send: Send) -> None:
        if self._protocol is None:
            raise RuntimeError("a request before the application is open")
        services = self._protocol.services
        _require_origin(request.headers, self._settings)
        caller = await _authenticate(request, record, services)
        body = await request.body()
        try:
            parsed, body = await self._parse(request.headers, body)
            message = _one_message(parsed)
        except AppError as error:
            record.status = error.code
            code = _PARSE_ERROR if error.kind == "malformed" else _INVALID_REQUEST
            await self._refuse(code, error)(request.scope, request.receive, send)
            return
        record.tool = self._offer.label(*message)
        rate_class = self._offer.rate_class(*message)
        status = services.tenancy.rates.take(caller, rate_class)
        _show_rate(request, status, message[0])
        cast("dict[str, object]", request.scope["state"])[ASKING] = McpRequest(caller, record, status)
        server = await self._protocol.server()
        answer = server.answer(_trimmed(request.scope), _replaying(body, request.receive), send)
        if rate_class in WITHOUT_SLOT:
            outcome = await answer
        else:
            async with services.tenancy.slots.hold(caller.key_tenant_id):
                outcome = await answer
        if not record.is_carried and outcome is not None:
            record.status = outcome

    async def _parse(self, headers: Headers, body: bytes) -> tuple[JsonValue, bytes]:
        """Return a message, and its text as the protocol's library reads it."""
        require_coding(headers.getlist("content-encoding"))
        declared = email.message.Message()
        declared["content-type"] = headers.get("content-type", "")
        if declared.get_content_type() != "application/json":
            raise Invalid("unsupported_media_type", "Send the body as JSON, with Content-Type: application/json.")
        most = self._settings.requests.max_json_depth + _ENVELOPE_DEPTH
        if len(body) <= _INLINE_BYTES:
            return _parse_message(body, most)
        return await asyncio.to_thread(_parse_message, body, most)

    def _refuse(self, code: int, error: AppError) -> Response:
        fields = cut_fields(error.fields, self._member_names)
        data = {
            "code": error.code,
            "detail": public_detail(error, fields),
            "errors": [{"pointer": field.pointer, "detail": field.detail} for field in fields],
        }
        answer = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": data["detail"], "data": data}}
        is_of_other_type = error.code == "unsupported_media_type"
        return Response(
            json.dumps(answer),
            status_code=415 if is_of_other_type else 400,
            headers={"Accept-Encoding": IDENTITY} if is_of_other_type else None,
            media_type="application/json",
        )


class _Protocol:
    """The server of the protocol while the application is open. It is imported and started by the first message."""

    def __init__(self, settings: Settings, offer: OfferedTools, request_log: RequestLog, services: Container) -> None:
        self.services = services
        self._max_request_bytes = settings.requests.max_request_bytes
        self._offer = offer
        self._request_log = request_log
        self._stopping = asyncio.Event()
        self._server: asyncio.Future[McpServer] | None = None
        self._running: asyncio.Task[None] | None = None

    async def server(self) -> "McpServer":
        """Return the started server. The first call takes about a second; other requests are answered meanwhile."""
        if self._server is None:
            self._server = asyncio.get_running_loop().create_future()
            # in its own task: the task that opens the manager must close it, and a request ends before the application
            self._running = asyncio.create_task(self._run(self._server))
        # a client that goes away must not end the start that others wait for
        return await asyncio.shield(self._server)

    async def _run(self, server: "asyncio.Future[McpServer]") -> None:
        try:
            make = await asyncio.to_thread(_imported_server)
            started = make(self._offer, self._request_log, self.services, max_request_bytes=self._max_request_bytes)
            async with started.running():
                server.set_result(started)
                await self._stopping.wait()
        except Exception as error:
            if server.done():
                raise
            server.set_exception(error)

    async def close(self) -> None:
        """Stop the server if there is one."""
        self._stopping.set()
        if self._running is not None:
            await self._running


def _imported_server() -> "type[McpServer]":
    from app.mcp.server import McpServer  # noqa: PLC0415

    return McpServer


def _show_rate(request: Request, status: RateStatus | None, method: str) -> None:
    """Let the answer show the rate. Raises RateLimited, except for a call of a tool: its result is the error."""
    if status is not None:
        cast("dict[str, object]", request.scope["state"])[RATE_STATE] = status
        if method != CALL_TOOL:
            status.require()


async def _authenticate(request: Request, record: RequestRecord, services: Container) -> Caller:
    """Return the caller of the key or token, as the named agent. Raises the same errors as over REST."""
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    key = credentials.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key")
    address = None if request.client is None else request.client.host
    caller = await services.tenancy.authenticate(key or None, address=address)
    request.state.tenant = caller.key_tenant_id
    request.state.tenant_id = record.tenant_id = format_id(caller.key_tenant_id)
    request.state.key_id = record.key_id = format_id(caller.key_id)
    describe_current_span({"turnkeep.tenant_id": request.state.tenant_id, "turnkeep.key_id": request.state.key_id})
    named = request.headers.get("x-agent-id")
    return caller if named is None else caller.acting_as(agent_name(named))


def _require_origin(headers: Headers, settings: Settings) -> None:
    """Refuse requests that a page of another site makes a browser send. `Host` is checked earlier, for all requests."""
    origin, allowed = headers.get("origin"), settings.browsers.cors_origins or ()
    if origin is None or "*" in allowed or origin.lower() in allowed:
        return
    scheme, _, authority = origin.partition("://")
    if scheme.lower() not in {"http", "https"} or not is_loopback(host_of(authority)):
        raise Forbidden("origin_not_allowed", "Pages of this origin may not call: see TURNKEEP_CORS_ORIGINS.")


def _one_message(message: JsonValue) -> tuple[str, JsonValue]:
    """Return the method of a request or notification, and the name in its params. Answers of clients are refused."""
    refused = Invalid("invalid_request", _NOT_ONE_MESSAGE)
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise refused
    method, params, name = message.get("method"), message.get("params", {}), message.get("id", "")
    if not isinstance(method, str) or not isinstance(params, dict):
        raise refused
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise refused
    return method, params.get("name")


def _trimmed(scope: Scope) -> Scope:
    """Return the request without spaces around header values: servers keep trailing ones, and the SDK compares."""
    headers = cast("list[tuple[bytes, bytes]]", scope["headers"])
    return {**scope, "headers": [(name, value.strip(b" \t")) for name, value in headers]}


def _parse_message(body: bytes, max_depth: int) -> tuple[JsonValue, bytes]:
    """Parse a message. Turns and items to store may have texts and numbers of a model or a tool.

    The library refuses halves of surrogate pairs, so it gets NUL in their place, which their readers leave out too.
    """
    parsed = parse_json(body, max_depth=max_depth, produced="params".__eq__)
    if not isinstance(parsed, Unchecked):
        return parsed, body
    params = parsed.get("params")
    arguments = params.get("arguments") if isinstance(params, dict) else None
    if isinstance(params, dict) and isinstance(arguments, dict):
        checked = {name: value for name, value in arguments.items() if name not in _PRODUCED}
        parse_json(json.dumps(parsed | {"params": params | {"arguments": checked}}).encode(), max_depth=max_depth)
    else:
        parse_json(body, max_depth=max_depth)
    text = json.dumps(parsed, ensure_ascii=False).encode("utf-16-le", "surrogatepass")
    return parsed, _HALF_PAIR.sub(r"\\u0000", text.decode("utf-16-le", "surrogatepass")).encode()


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns the read body first, and then the following messages."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
