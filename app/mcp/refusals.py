"""Errors as they leave over MCP: of tools as results that say so, of everything else as errors of the protocol.

What REST says in a problem stands in both under the same names, and content is echoed in neither.
"""

from collections.abc import Sequence
from typing import Final

from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, CallToolResult, TextContent
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import JsonValue, ValidationError

from app.core.errors import AppError, FieldError, Invalid
from app.core.invalid import MAX_FIELDS, cut_fields, field_errors

RESOURCE_NOT_FOUND: Final = -32002
"""Of revisions before 2026-07-28, which retired it: there it is INVALID_PARAMS."""
_OURS: Final = frozenset({"internal", "unavailable", "rate_limited"})
"""Kinds that the one who asks cannot mend by asking for something else."""


def refused_arguments(error: ValidationError, arguments: object) -> AppError:
    """What pydantic found wrong with the arguments of a tool."""
    fields = field_errors([{**one, "loc": ("body", *one["loc"])} for one in error.errors()], arguments)
    return Invalid("invalid_request", "The arguments break a rule; `errors` says which and where.", fields=fields)


def error_members(error: AppError, *, request_id: str, known: frozenset[str]) -> dict[str, JsonValue]:
    """The members of an error; `known` are the names that pointers may hold."""
    fields: Sequence[FieldError] = cut_fields(error.fields[:MAX_FIELDS], known)
    return {
        **error.extra,
        "code": error.code,
        "detail": error.detail,
        "retryable": error.retryable,
        "retry_after_s": error.retry_after_s,
        "errors": [{"pointer": field.pointer, "detail": field.detail} for field in fields],
        "request_id": request_id,
    }


def tool_error(error: AppError, *, request_id: str, known: frozenset[str]) -> CallToolResult:
    """An error as the result of a tool: a sentence for the model, and the members for the program around it."""
    members = error_members(error, request_id=request_id, known=known)
    where = [f"{field.pointer or 'the arguments'}: {field.detail}" for field in cut_fields(error.fields, known)]
    text = "\n".join([f"{error.code}: {error.detail}", *where[:MAX_FIELDS]])
    return CallToolResult(content=[TextContent(text=text)], structured_content=members, is_error=True)


def protocol_error(error: AppError, *, request_id: str, version: str) -> MCPError:
    """An error as one of the protocol, for a resource."""
    if error.kind == "not_found" and version not in MODERN_PROTOCOL_VERSIONS:
        code = RESOURCE_NOT_FOUND
    else:
        code = INTERNAL_ERROR if error.kind in _OURS else INVALID_PARAMS
    return MCPError(code, error.detail, error_members(error, request_id=request_id, known=frozenset()))
