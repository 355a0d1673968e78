"""The protocol server: the official SDK's, with handlers that take the caller from the request.

It is bound to no tenant: every request brings its caller (`RequestContext`), and handlers use no other. Only protocol
errors leave a handler, because the SDK sends the texts of other exceptions.
"""

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from importlib.metadata import version
from typing import TypeAlias, cast

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
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
    ToolAnnotations,
)
from mcp.types import Tool as ListedTool
from pydantic import JsonValue
from starlette.requests import Request
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from app.agents.tools.service import Tool, fit
from app.audit.schemas import Action, ObjectKind
from app.container import Container
from app.core.errors import AppError
from app.core.telemetry import error_stack, error_type, get_logger
from app.formats.schemas import JsonObject
from app.mcp import resources
from app.mcp.errors import protocol_error, tool_error
from app.mcp.outcomes import OutcomeFilter
from app.mcp.request_log import ASKING, UNKNOWN, McpRequest, RequestLog, RequestRecord
from app.mcp.tool_list import OfferedTools, instructions

Context: TypeAlias = ServerRequestContext[None, Request]


class McpServer:
    """Tools and resources for the caller of a request, over the streamable HTTP of the SDK."""

    def __init__(
        self, offer: OfferedTools, request_log: RequestLog, services: Container, *, max_request_bytes: int
    ) -> None:
        self._offer = offer
        self._request_log = request_log
        self._services = services
        self._manager = StreamableHTTPSessionManager(
            self._protocol_server(), json_response=True, stateless=True, max_request_body_size=max_request_bytes
        )

    def running(self) -> AbstractAsyncContextManager[None]:
        """Let messages be answered during the block, which one task opens and closes."""
        return self._manager.run()

    async def answer(self, scope: ASGIScope, receive: Receive, send: Send) -> str | None:
        """Answer one message. Return `ok` or the name of the error for the log; None if nothing was sent."""
        outcome = OutcomeFilter(send)
        await self._manager.handle_request(scope, receive, outcome.send)
        return outcome.status

    def _protocol_server(self) -> Server[None]:
        has_resources = self._offer.has_resources
        server = Server[None](
            "turnkeep",
            title="Turnkeep",
            version=version("turnkeep"),
            lifespan=_no_lifespan,
            get_tool_input_schema=self._input_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources if has_resources else None,
            on_list_resource_templates=self._list_templates if has_resources else None,
            on_read_resource=self._read_resource if has_resources else None,
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
        return {**result, "instructions": instructions(self._offer.tools.values(), caller)}

    def _input_schema(self, name: str) -> dict[str, object] | None:
        tool = self._offer.tools.get(name)
        return None if tool is None else tool.input_schema

    async def _list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        """List the tools that the caller may use. A call of another tool is still answered, with the reason."""
        _refuse_cursor(params)
        caller = _asking(context).caller
        return ListToolsResult(
            tools=[_listed(tool) for tool in self._offer.tools.values() if tool.access.allows(caller)]
        )

    async def _list_templates(
        self, context: Context, params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        _refuse_cursor(params)
        return ListResourceTemplatesResult(resource_templates=resources.templates(_asking(context).caller))

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        asking = _asking(context)
        record = asking.record
        tool = self._offer.tools.get(params.name)
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
                return tool_error(refusal, request_id=asking.request_id, names=self._offer.member_names)

    async def _run_tool(self, tool: Tool, arguments: dict[str, JsonValue], asking: McpRequest) -> CallToolResult:
        call = tool.prepare(arguments)
        asking.record.conversation_id = call.conversation_id
        services = self._services
        result = await call.run(services.tools, asking.caller)
        services.audit.record_read(
            asking.caller, Action.TOOL_CALL, ObjectKind.TOOL, tool.name, conversation_id=call.conversation_id
        )
        asking.record.status = "ok"
        answer: JsonObject = result.model_dump(mode="json")
        cut = None
        if tool.is_cut:
            answer, cut = fit(answer, max_bytes=services.tools.max_answer_bytes)
        texts = [result.model_dump_json() if cut is None else json.dumps(answer, ensure_ascii=False), cut]
        content = [TextContent(text=text) for text in texts if text is not None]
        return CallToolResult(content=[*content], structured_content=answer)

    async def _list_resources(self, context: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        with self._answering(context, "resources/list") as asking:
            cursor = None if params is None else params.cursor
            return await resources.list_page(self._services, asking.caller, cursor=cursor)

    async def _read_resource(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        with self._answering(context, "resources/read", uri=params.uri) as asking:
            named = resources.parse_uri(params.uri)
            if isinstance(named, resources.ConversationUri):
                asking.record.conversation_id = named.conversation_id
            return await resources.read(self._services, asking.caller, uri=params.uri, named=named)

    @contextmanager
    def _answering(self, context: Context, method: str, *, uri: str | None = None) -> Generator[McpRequest]:
        """Log a request for resources. Its errors become those of the protocol."""
        asking = _asking(context)
        with self._request_log.of_call(asking.record, method):
            try:
                yield asking
            except Exception as error:  # noqa: BLE001 - only protocol errors may reach the SDK
                refusal = _refusal(error, asking.record)
                raise protocol_error(
                    refusal, request_id=asking.request_id, version=context.protocol_version, uri=uri
                ) from None
            asking.record.status = "ok"


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


def _listed(tool: Tool) -> ListedTool:
    """Return a tool as the protocol lists it."""
    return ListedTool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=ToolAnnotations(title=tool.title, **tool.hints),
    )


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
