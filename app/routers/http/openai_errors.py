"""Errors as OpenAI's clients read them: the member `error` that every problem under `/openai/v1` has besides."""

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


def is_spoken(scope: Scope) -> bool:
    """Whether a request came through the doors that speak OpenAI's API."""
    path = str(scope.get("path", "")).removeprefix(str(scope.get("root_path", "")))
    return path == ROOT or path.startswith(f"{ROOT}/")


def error_of(error: AppError, *, status: int, fields: Sequence[FieldError] = ()) -> JsonObject:
    """An error in OpenAI's shape: the code is ours, `param` the first field that is wrong."""
    server = http.HTTPStatus.INTERNAL_SERVER_ERROR
    kind = "server_error" if status >= server else _TYPES.get(http.HTTPStatus(status), "invalid_request_error")
    param = fields[0].pointer.strip("/").replace("/", ".") if fields else ""
    return {"message": error.detail, "type": kind, "param": param or None, "code": error.code}
