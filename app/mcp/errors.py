"""Errors over MCP: tool errors as results, all other errors as protocol errors.

Both have the members of a REST problem under the same names, and never repeat content.
"""

import re
from collections.abc import Sequence
from typing import Final

from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, CallToolResult, TextContent
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import JsonValue

from app.agents.tools.service import error_text
from app.core.errors import AppError, FieldError
from app.core.validation.invalid import MAX_FIELDS, cut_fields, public_detail

RESOURCE_NOT_FOUND: Final = -32002
"""Used before revision 2026-07-28, which replaced it by INVALID_PARAMS."""
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]{0,2048}")
"""Addresses that an error repeats (SEP-2164): other texts may be content."""
_OURS: Final = frozenset({"internal", "unavailable", "rate_limited"})
"""Kinds of errors that the caller cannot fix by changing the request."""


def error_members(error: AppError, *, request_id: str, names: frozenset[str]) -> dict[str, JsonValue]:
    """Return the members of an error; `names` are those that pointers may contain."""
    fields: Sequence[FieldError] = cut_fields(error.fields[:MAX_FIELDS], names)
    return {
        **error.extra,
        "code": error.code,
        "detail": public_detail(error, fields),
        "retryable": error.retryable,
        "retry_after_s": error.retry_after_s,
        "errors": [{"pointer": field.pointer, "detail": field.detail} for field in fields],
        "request_id": request_id,
    }


def tool_error(error: AppError, *, request_id: str, names: frozenset[str]) -> CallToolResult:
    """Return an error as a tool result: a sentence for the model, and the members for the program."""
    members = error_members(error, request_id=request_id, names=names)
    text = TextContent(text=error_text(error, names))
    return CallToolResult(content=[text], structured_content=members, is_error=True)


def protocol_error(error: AppError, *, request_id: str, version: str, uri: str | None = None) -> MCPError:
    """Return an error as a protocol error, for a resource. `uri`: what was asked for, returned if it does not exist."""
    if error.kind == "not_found" and version not in MODERN_PROTOCOL_VERSIONS:
        code = RESOURCE_NOT_FOUND
    else:
        code = INTERNAL_ERROR if error.kind in _OURS else INVALID_PARAMS
    members = error_members(error, request_id=request_id, names=frozenset())
    if error.kind == "not_found" and uri is not None and _URI.fullmatch(uri):
        members["uri"] = uri
    return MCPError(code, str(members["detail"]), members)
