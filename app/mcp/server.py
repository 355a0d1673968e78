"""The protocol server: the official SDK's, with handlers that take the caller from the request.

It is bound to no tenant: every request brings its caller (`RequestContext`), and handlers use no other. Only protocol
errors leave a handler, because the SDK sends the texts of other exceptions.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final, TypeAlias, TypeVar, cast

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    CallToolRequestParams,
    CallToolResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    TextContent,
)
from pydantic import JsonValue
from starlette.requests import Request

from app.agents.tools.tool import Tool
from app.audit.schemas import Action, ObjectKind
from app.container import Container
from app.core.errors import AppError
from app.core.telemetry import error_stack, error_type, get_logger
from app.core.validation.invalid import property_names
from app.formats.parse.validation import MEMBER_NAMES
from app.mcp import resources
from app.mcp.errors import protocol_error, tool_error
from app.mcp.request_log import UNKNOWN, RequestLog, RequestRecord
from app.mcp.tool_list import agent_is_exclusive, instructions, listed, offered_tools, rate_class_of
from app.settings import Settings
from app.tenancy.limits.schemas import RateStatus
from app.tenancy.schemas import Caller, RateClass

CALL_TOOL: Final = "tools/call"
ASKING: Final = "mcp_asking"
"""Key of a `RequestContext` in the state of a request."""

_METHODS: Final = frozenset(
    {
        "initialize", "ping", "server/discover", "notifications/initialized", "notifications/cancelled",
        "tools/list", "resources/list", "resources/templates/list", "resources/read",
    }
)  # fmt: skip
"""Methods that the log names; `tools/call` is logged by the name of the tool."""

Context: TypeAlias = ServerRequestContext[None, Request]
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class McpRequest:
    """The caller, the log entry and the rate of a request. A call of a tool may be over its rate."""

    caller: Caller
    record: RequestRecord
    rate: RateStatus | None

    @property
    def request_id(self) -> str:
        """Return the id of the request."""
        return self.record.request_id


class McpServer:
    """Tools and resources for the caller of a request. `services` is set when the application opens."""

    def __init__(self, settings: Settings, request_log: RequestLog) -> None:
        self.services: Container | None = None
        self._request_log = request_log
        self._tools = offered_tools(settings)
        self._has_resources = not agent_is_exclusive(settings)
        schemas = [tool.input_schema for tool in self._tools.values()]
        self.known: Final = MEMBER_NAMES.union(
            name for one in schemas for name in property_names(cast("JsonValue", one))
        )
        """All member names that arguments may have."""

    @property
    def names(self) -> frozenset[str]:
        """Return the names of all methods and offered tools."""
        return frozenset(self._tools) | frozenset(_METHODS)

    def rate_class(self, method: str, name: JsonValue) -> RateClass:
        """Return the class in which a message is counted."""
        tool = self._tools.get(name) if method == CALL_TOOL and isinstance(name, str) else None
        return RateClass.READ if tool is None else rate_class_of(tool)

    def label(self, method: str, name: JsonValue) -> str:
        """Return the log label of a message: the tool, else the method; `unknown` for other names."""
        if method == CALL_TOOL:
            return name if isinstance(name, str) and name in self._tools else UNKNOWN
        return method if method in _METHODS else UNKNOWN

    def protocol_server(self) -> Server[None]:
        """Return a new SDK server with these handlers; the application needs a new one each time it opens."""
        server = Server[None](
            "turnkeep",
            title="Turnkeep",
            version=version("turnkeep"),
            lifespan=_no_lifespan,
            get_tool_input_schema=self._input_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources if self._has_resources else None,
            on_list_resource_templates=self._list_templates if self._has_resources else None,
            on_read_resource=self._read_resource if self._has_resources else None,
        )
        # drops the SDK's tracing: its span names contain the caller's input; the application traces requests
        server.middleware[:] = [_unquoted, self._instruct]
        return server

    async def _instruct(self, ctx: ServerRequestContext[None, object], call_next: CallNext) -> HandlerResult:
        """Add the instructions for the caller: the SDK has one text for all callers."""
        result = await call_next(ctx)
        if ctx.method not in {"initialize", "server/discover"} or not isinstance(result, dict):
            return result
        caller = _asking(cast("Context", ctx)).caller
        return {**result, "instructions": instructions(self._tools.values(), caller)}

    def _input_schema(self, name: str) -> dict[str, object] | None:
        tool = self._tools.get(name)
        return None if tool is None else tool.input_schema

    async def _list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        """List the tools that the caller may use. A call of another tool is still answered, with the reason."""
        _refuse_cursor(params)
        caller = _asking(context).caller
        return ListToolsResult(tools=[listed(tool) for tool in self._tools.values() if tool.access.allows(caller)])

    async def _list_templates(
        self, context: Context, params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        _refuse_cursor(params)
        return ListResourceTemplatesResult(resource_templates=resources.templates(_asking(context).caller))

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        asking = _asking(context)
        record = asking.record
        tool = self._tools.get(params.name)
        with self._request_log.of_call(record, UNKNOWN if tool is None else tool.name):
            if tool is None:
                record.status = "unknown_tool"
                raise MCPError(INVALID_PARAMS, "Unknown tool; tools/list returns the known tools.")
            try:
                if asking.rate is not None:
                    asking.rate.require()
                return await self._run_tool(tool, params.arguments or {}, asking)
            except Exception as error:  # noqa: BLE001 - only tool errors may reach the SDK
                refusal = _refusal(error, record)
                return tool_error(refusal, request_id=asking.request_id, known=self.known)

    async def _run_tool(self, tool: Tool, arguments: dict[str, JsonValue], asking: McpRequest) -> CallToolResult:
        call = tool.prepare(arguments)
        asking.record.conversation_id = call.conversation_id
        services = self._services()
        result = await call.run(services.tools, asking.caller)
        services.audit.record_read(
            asking.caller, Action.TOOL_CALL, ObjectKind.TOOL, tool.name, conversation_id=call.conversation_id
        )
        asking.record.status = "ok"
        text = TextContent(text=result.model_dump_json())
        return CallToolResult(content=[text], structured_content=result.model_dump(mode="json"))

    async def _list_resources(self, context: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        async def run(asking: McpRequest) -> ListResourcesResult:
            cursor = None if params is None else params.cursor
            return await resources.list_page(self._services(), asking.caller, cursor=cursor)

        return await self._answer(context, "resources/list", run)

    async def _read_resource(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        async def run(asking: McpRequest) -> ReadResourceResult:
            named = resources.parse_uri(params.uri)
            if isinstance(named, resources.ConversationUri):
                asking.record.conversation_id = named.conversation_id
            return await resources.read(self._services(), asking.caller, uri=params.uri, named=named)

        return await self._answer(context, "resources/read", run)

    async def _answer(self, context: Context, method: str, run: Callable[[McpRequest], Awaitable[ResultT]]) -> ResultT:
        asking = _asking(context)
        with self._request_log.of_call(asking.record, method):
            try:
                result = await run(asking)
            except Exception as error:  # noqa: BLE001 - only protocol errors may reach the SDK
                refusal = _refusal(error, asking.record)
                raise protocol_error(refusal, request_id=asking.request_id, version=context.protocol_version) from None
            asking.record.status = "ok"
            return result

    def _services(self) -> Container:
        if self.services is None:
            raise RuntimeError("a request before the application is open")
        return self.services


@asynccontextmanager
async def _no_lifespan(_server: Server[None]) -> AsyncGenerator[None]:
    yield None


async def _unquoted(ctx: ServerRequestContext[None, object], call_next: CallNext) -> HandlerResult:
    """Remove the method name from the SDK's refusal: input is not repeated."""
    try:
        return await call_next(ctx)
    except MCPError as error:
        if error.code != METHOD_NOT_FOUND:
            raise
        raise MCPError(METHOD_NOT_FOUND, "Method not found") from None


def _asking(context: Context) -> McpRequest:
    """Return the context of the request that a handler is called for."""
    if context.request is None:
        raise RuntimeError("a call without a request")
    return cast("McpRequest", context.request.scope["state"][ASKING])


def _refuse_cursor(params: PaginatedRequestParams | None) -> None:
    if params is not None and params.cursor is not None:
        raise MCPError(INVALID_PARAMS, "This list has one page; no cursor belongs to it.")


def _refusal(error: Exception, record: RequestRecord) -> AppError:
    """Return the public error for an exception, and log unexpected ones with their stack."""
    if not isinstance(error, AppError):
        get_logger().error("mcp.failed", code="internal_error", error_type=error_type(error), stack=error_stack(error))
        error = AppError("internal_error", "This is our fault; the log has the request id.")
    record.status = error.code
    return error
