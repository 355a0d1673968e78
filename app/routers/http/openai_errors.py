"""Errors in OpenAI's format: the additional member `error` of every problem under `/openai/v1`."""

import http
from collections.abc import Sequence
from typing import Final

from starlette.types import Scope

from app.core.errors import AppError, FieldError
from app.formats.schemas import JsonObject

ROOT: Final = "/openai/v1"
_TYPES: Final = {
    http.HTTPStatus.UNAUTHORIZED: "authentication_error",
    http.HTTPStatus.FORBIDDEN: "permission_error",
    http.HTTPStatus.NOT_FOUND: "not_found_error",
    http.HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}


def is_openai_path(scope: Scope) -> bool:
    """Return whether a request is for the OpenAI API."""
    path = str(scope.get("path", "")).removeprefix(str(scope.get("root_path", "")))
    return path == ROOT or path.startswith(f"{ROOT}/")


def error_of(error: AppError, *, status: int, fields: Sequence[FieldError] = ()) -> JsonObject:
    """Return an error in OpenAI's format: our code, and the first wrong field as `param`."""
    server = http.HTTPStatus.INTERNAL_SERVER_ERROR
    kind = "server_error" if status >= server else _TYPES.get(http.HTTPStatus(status), "invalid_request_error")
    param = fields[0].pointer.strip("/").replace("/", ".") if fields else ""
    return {"message": error.detail, "type": kind, "param": param or None, "code": error.code}
