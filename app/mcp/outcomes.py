"""Status of requests that the SDK answered without one of our handlers, read from the answer."""

import json
from typing import Final, cast

from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR
from mcp_types.jsonrpc import HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY, UNSUPPORTED_PROTOCOL_VERSION
from starlette.types import Message, Send

_CODES: Final = {
    PARSE_ERROR: "malformed_json",
    INVALID_REQUEST: "invalid_request",
    METHOD_NOT_FOUND: "unknown_method",
    INVALID_PARAMS: "invalid_params",
    INTERNAL_ERROR: "internal_error",
    HEADER_MISMATCH: "header_mismatch",
    MISSING_REQUIRED_CLIENT_CAPABILITY: "capability_missing",
    UNSUPPORTED_PROTOCOL_VERSION: "revision_unknown",
}
_OTHER: Final = "protocol_error"
_LEAST_ERROR_STATUS: Final = 400
_MAX_ERROR_BYTES: Final = 16 * 2**10
"""Longer answers are no errors: an error of the SDK is one sentence."""


class OutcomeFilter:
    """A filter that forwards an answer. `status` is `ok` or an error name for the log; None: nothing was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._http_status: int | None = None
        self._body = bytearray()

    async def send(self, message: Message) -> None:
        """Forward one part of the answer."""
        if message["type"] == "http.response.start":
            self._http_status = int(message["status"])
        elif len(self._body) <= _MAX_ERROR_BYTES:
            self._body += cast("bytes", message.get("body", b""))[: _MAX_ERROR_BYTES + 1]
        await self._send(message)

    @property
    def status(self) -> str | None:
        """Return the status of the answer."""
        if self._http_status is None:
            return None
        code = self._error_code()
        if code is not None:
            return _CODES.get(code, _OTHER)
        return "ok" if self._http_status < _LEAST_ERROR_STATUS else _OTHER

    def _error_code(self) -> int | None:
        if len(self._body) > _MAX_ERROR_BYTES or b'"error"' not in self._body:
            return None
        try:
            answer = cast("object", json.loads(self._body))
        except ValueError:
            return None
        error = cast("dict[str, object]", answer).get("error") if isinstance(answer, dict) else None
        code = cast("dict[str, object]", error).get("code") if isinstance(error, dict) else None
        return code if isinstance(code, int) else None
