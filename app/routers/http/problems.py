"""Every HTTP error as RFC 9457 `application/problem+json`.

Invariant: a problem never repeats the caller's input. Pointers contain only declared members and stop before the first
undeclared one. Messages are sentences of ours or of pydantic that cannot quote the input (`core/validation/invalid`).
Of unexpected exceptions only the type and the stack are logged. Problems under `/openai/v1` have the additional member
`error`, in OpenAI's format.
"""

import difflib
import http
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope
from starlette.websockets import WebSocket

from app.core.error_codes import ERROR_CODES
from app.core.errors import (
    AppError,
    FieldError,
    Forbidden,
    Invalid,
    InvalidFields,
    Malformed,
    NotFound,
    Place,
    RateLimited,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from app.core.telemetry import error_stack, error_type, get_logger
from app.core.validation.content_codings import IDENTITY
from app.core.validation.invalid import MAX_FIELDS, cut_fields, field_errors, property_names, public_detail
from app.formats.parse.validation import MEMBER_NAMES
from app.formats.schemas import JsonObject
from app.providers.upstream import UpstreamRefusal
from app.routers.http.app_state import app_state
from app.routers.http.body_reader import UPLOAD_CODINGS, UPLOAD_PATH
from app.routers.http.routing.methods import allowed_methods
from app.routers.http.uvicorn_protocols import CUT_EXTENSION, PROBLEM_MEDIA_TYPE

OPENAI_ROOT: Final = "/openai/v1"
STATUS_OF_KIND: Final[Mapping[str, int]] = {
    "malformed": 400,
    "invalid": 422,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "conflict": 409,
    "too_large": 413,
    "rate_limited": 429,
    "unavailable": 503,
}
"""Statuses by kind of error; every other kind is a 500."""

# statuses that differ from that of the kind
_STATUS_OF_CODE: Final[Mapping[str, int]] = {
    "agent_call_invalid": 502,
    "answer_too_large": 502,
    "body_too_slow": 408,
    "method_not_allowed": 405,
    "unsupported_media_type": 415,
    "embedder_invalid": 502,
    "model_context_exceeded": 422,
    "model_error": 502,
    "model_invalid": 502,
    "model_rate_limited": 429,
    "model_refused": 422,
    "revision_changed": 412,
}

_RATE_HEADERS: Final[Mapping[str, str]] = {
    "Retry-After": "Seconds after which the request may be sent again.",
    "RateLimit-Policy": "The rate of the key for this class of calls, as in draft-ietf-httpapi-ratelimit-headers-11:"
    ' its name, `q` calls in `w` seconds. Every response to a key has it. Example: `"write";q=20000;w=10`.',
    "RateLimit": "The calls `r` that are left now, for the next `t` seconds at least; 0 if this call was refused."
    ' Example: `"write";r=19999;t=1`.',
}
_ERROR_OF_STATUS: Final[Mapping[int, tuple[type[AppError], str]]] = {
    400: (Malformed, "malformed_json"),
    401: (Unauthenticated, "unauthenticated"),
    403: (Forbidden, "forbidden"),
    404: (NotFound, "route_not_found"),
    405: (Invalid, "method_not_allowed"),
    413: (TooLarge, "body_too_large"),
    415: (Invalid, "unsupported_media_type"),
    429: (RateLimited, "rate_limited"),
    503: (Unavailable, "not_ready"),
}

_OPENAI_TYPES: Final = {
    http.HTTPStatus.UNAUTHORIZED: "authentication_error",
    http.HTTPStatus.FORBIDDEN: "permission_error",
    http.HTTPStatus.NOT_FOUND: "not_found_error",
    http.HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}

_MAX_COMPARED_PATH: Final = 200
_SIMILAR_PATH: Final = 0.7
_PARAMETER: Final = re.compile(r"\{\w+\}")


class ProblemField(BaseModel):
    """One wrong field of a request."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    pointer: str = Field(description="JSON pointer (RFC 6901) to the field, inside `in`; empty for all of it.")
    place: Place = Field(alias="in", description="The part of the request that the pointer is in.")
    detail: str = Field(description="The problem with this field. Never contains its value.")


class Problem(BaseModel):
    """An error (RFC 9457). Some codes add members of their own, such as `seq`."""

    model_config = ConfigDict(serialize_by_alias=True, extra="allow")

    type: str = Field(description="The documentation of the code, relative to this server.")
    title: str = Field(description="The meaning of the code.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="The problem of this request. Never contains content.")
    code: str = Field(
        description="The stable name of this case. A later release may add codes: where a client meets one that it does"
        " not know, it should act on `status` and `retryable`.",
        json_schema_extra={"enum": [*sorted(ERROR_CODES)]},
    )
    request_id: str = Field(description="The id of the request, also in the header X-Request-Id.")
    errors: list[ProblemField] = Field(description="The fields that are wrong, if any.")
    retryable: bool = Field(description="Whether the same request may succeed when it is sent again.")


class ProblemResponse(Response):
    """A problem as a response."""

    media_type = PROBLEM_MEDIA_TYPE


def problem_of(request_id: str, error: AppError, *, status: int, fields: Sequence[FieldError]) -> Problem:
    """Return an error as a problem; `fields` is separate because its pointers must be cut first."""
    members: dict[str, object] = {
        **error.extra,
        "type": f"/docs/errors#{error.code}",
        "title": ERROR_CODES.get(error.code) or http.HTTPStatus(status).phrase,
        "status": status,
        "detail": public_detail(error, fields),
        "code": error.code,
        "request_id": request_id,
        "errors": [{"pointer": field.pointer, "in": field.place, "detail": field.detail} for field in fields],
        "retryable": error.retryable,
    }
    if isinstance(error, UpstreamRefusal) and error.error is not None:
        members["error"] = error.error
    return Problem.model_validate(members)


def status_of(error: AppError) -> int:
    """Return the HTTP status of an error; a refusal by the model's endpoint keeps its own."""
    if isinstance(error, UpstreamRefusal):
        return error.status
    return _STATUS_OF_CODE.get(error.code) or STATUS_OF_KIND.get(error.kind, 500)


def openai_status_of(error: AppError) -> int:
    """Return the HTTP status of an error under `/openai/v1`: OpenAI has 400 where we have 422.

    Its clients raise another exception for 422. A refusal by the model's endpoint keeps its own status.
    """
    status = status_of(error)
    is_ours = not isinstance(error, UpstreamRefusal)
    return STATUS_OF_KIND["malformed"] if is_ours and status == STATUS_OF_KIND["invalid"] else status


def problem_response(scope: Scope, error: AppError, *, status: int | None = None) -> ProblemResponse:
    """Return the response for an error; middleware uses it too."""
    is_openai = _is_openai_path(scope)
    status = status or (openai_status_of(error) if is_openai else status_of(error))
    fields = _cut_fields(scope, error.fields[:MAX_FIELDS])
    problem = problem_of(request_id_of(scope), error, status=status, fields=fields)
    headers: dict[str, str] = {}
    if is_openai:
        shown = {"error": openai_error_of(error, status=status, fields=fields)} | problem.model_dump()
        problem = Problem.model_validate(shown)
        headers["x-should-retry"] = "true" if error.retryable else "false"
    if status == http.HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if status == http.HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
        is_upload = scope.get("path") == UPLOAD_PATH
        headers["Accept-Encoding"] = ", ".join(UPLOAD_CODINGS if is_upload else (IDENTITY,))
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return ProblemResponse(problem.model_dump_json(), status_code=status, headers=headers)


def openai_error_of(error: AppError, *, status: int, fields: Sequence[FieldError] = ()) -> JsonObject:
    """Return an error in OpenAI's format: our code, and the first wrong field as `param`."""
    server = http.HTTPStatus.INTERNAL_SERVER_ERROR
    kind = "server_error" if status >= server else _OPENAI_TYPES.get(http.HTTPStatus(status), "invalid_request_error")
    param = fields[0].pointer.strip("/").replace("/", ".") if fields else ""
    return {"message": public_detail(error, fields), "type": kind, "param": param or None, "code": error.code}


def internal_error_response(scope: Scope, error: BaseException) -> ProblemResponse:
    """Return a 500 for an unexpected exception, and log its type and stack, never its message."""
    get_logger().error("request.failed", code="internal_error", error_type=error_type(error), stack=error_stack(error))
    response = problem_response(scope, AppError("internal_error", "This is our fault; the log has the request id."))
    response.headers["X-Request-Id"] = request_id_of(
        scope
    )  # if it was raised outside of the middleware that adds the header
    return response


async def cut_answer(scope: Scope, receive: Receive, error: Exception) -> None:
    """End an answer that has begun and cannot be completed, by closing the connection, and log the reason once.

    Starlette raises RuntimeError from our own errors then. Raises the error again if the server cannot cut.
    """
    reason = error if isinstance(error, AppError) else error.__cause__
    if isinstance(reason, AppError):
        get_logger().warning("response.cut", code=reason.code)
    else:
        internal_error_response(scope, error)
    cut = cast("Mapping[str, Mapping[str, Callable[[], None]]]", scope.get("extensions", {})).get(CUT_EXTENSION)
    if cut is None:
        raise error
    cut["close"]()
    # the server takes an application that returns before the connection is lost for a defect
    while (await receive())["type"] != "http.disconnect":
        pass


def request_id_of(scope: Scope) -> str:
    """Return the request's id; empty without the request-id middleware."""
    state = cast("Mapping[str, object]", scope.get("state", {}))
    return str(state.get("request_id", ""))


def install_problem_handlers(app: FastAPI) -> None:
    """Turn every error of `app` into a problem: ours, FastAPI's, Starlette's and unexpected ones."""

    async def on_app_error(request: Request, error: Exception) -> Response:
        return problem_response(request.scope, cast("AppError", error))

    async def on_invalid(request: Request, raised: Exception) -> Response:
        invalid = cast("RequestValidationError", raised)
        fields = field_errors(cast("Sequence[ErrorDetails]", invalid.errors()), cast("object", invalid.body))
        error = InvalidFields(fields)
        return problem_response(request.scope, error)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        return _http_exception_response(request, cast("HTTPException", error))

    async def on_unexpected(request: Request, error: Exception) -> Response:
        return internal_error_response(request.scope, error)

    async def on_invalid_websocket(websocket: WebSocket, raised: Exception) -> Response:
        errors = cast("Sequence[ErrorDetails]", cast("WebSocketRequestValidationError", raised).errors())
        return problem_response(websocket.scope, InvalidFields(field_errors(errors, None)))

    app.add_exception_handler(AppError, on_app_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(Exception, on_unexpected)
    app.add_exception_handler(WebSocketRequestValidationError, on_invalid_websocket)  # pyright: ignore[reportArgumentType]


def problem_responses(*statuses: int) -> dict[int | str, dict[str, object]]:
    """Declare problems for the `responses=` of a route: `problem_responses(401, 404, 422)`.

    `add_problem_schemas` adds the schema that they refer to.
    """
    content = {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": http.HTTPStatus(status).phrase, "content": content} for status in statuses}


def add_problem_schemas(document: dict[str, object]) -> dict[str, object]:
    """Add the schemas of problems to an OpenAPI document, in place, and return it."""
    schema = Problem.model_json_schema(mode="serialization", ref_template="#/components/schemas/{model}")
    nested = cast("dict[str, object]", schema.pop("$defs", {}))
    components = cast("dict[str, dict[str, object]]", document.setdefault("components", {}))
    components.setdefault("schemas", {}).update({**nested, "Problem": schema})
    return document


def add_head_problem(document: dict[str, object]) -> dict[str, object]:
    """Declare 431 for every operation of an OpenAPI document, in place: the server returns it before routing."""
    paths = cast("dict[str, dict[str, dict[str, dict[str, object]]]]", document["paths"])
    for operation in (operation for operations in paths.values() for operation in operations.values()):
        operation["responses"] |= {str(status): answer for status, answer in problem_responses(431).items()}
    return document


def add_rate_problem(document: dict[str, object]) -> dict[str, object]:
    """Declare 429 with its headers for every operation that needs a key, in place."""
    headers = {name: {"$ref": f"#/components/headers/{name}"} for name in _RATE_HEADERS}
    components = cast("dict[str, dict[str, object]]", document.setdefault("components", {}))
    components["headers"] = {
        name: {"description": text, "schema": {"type": "integer" if name == "Retry-After" else "string"}}
        for name, text in _RATE_HEADERS.items()
    }
    paths = cast("dict[str, dict[str, dict[str, dict[str, object]]]]", document["paths"])
    for operation in (operation for operations in paths.values() for operation in operations.values()):
        if operation.get("security"):
            operation["responses"] |= {"429": problem_responses(429)[429] | {"headers": headers}}
    return document


def declared_members(app: FastAPI) -> frozenset[str]:
    """Return the names of all members that the API declares; computed from its OpenAPI document once."""
    state = app_state(app)
    if state.declared_members is None:
        state.declared_members = MEMBER_NAMES.union(property_names(cast("JsonValue", app.openapi())))
    return state.declared_members


def _is_openai_path(scope: Scope) -> bool:
    path = str(scope.get("path", "")).removeprefix(str(scope.get("root_path", "")))
    return path == OPENAI_ROOT or path.startswith(f"{OPENAI_ROOT}/")


def _http_exception_response(request: Request, error: HTTPException) -> Response:
    status = error.status_code
    kind, code = _ERROR_OF_STATUS.get(status, (Invalid, "invalid_request"))
    if status not in _ERROR_OF_STATUS and status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
        kind, code = AppError, "internal_error"
    detail, headers = ERROR_CODES[code], dict(error.headers or {})
    if code == "route_not_found":
        similar = _similar_path(request)
        detail += f" Did you mean `{similar}`?" if similar else " `/docs` lists all paths."
    elif code == "method_not_allowed":
        headers["Allow"] = ", ".join(allowed_methods(request))
        detail += f" It supports {headers['Allow']}."
    # the detail of the exception is not ours and may quote the request
    response = problem_response(request.scope, kind(code, detail), status=status)
    for name, value in headers.items():
        response.headers[name] = value
    return response


def _similar_path(request: Request) -> str | None:
    """Return the declared path that is most similar to that of the request, or None. It never has the caller's text."""
    path = str(request.scope["path"])
    if len(path) > _MAX_COMPARED_PATH:
        return None
    # of the routes: the OpenAPI document, made at its first use, takes more than a second
    declared = {
        str(context.path_format)
        for context in iter_route_contexts(cast("FastAPI", request.app).routes)
        if getattr(context, "include_in_schema", False)
    }
    forms = (path, f"/v1{path}")  # the prefix is forgotten often
    likeness, similar = max(((_likeness(form, one), one) for one in declared for form in forms), default=(0.0, ""))
    return similar if likeness >= _SIMILAR_PATH else None


def _likeness(path: str, declared: str) -> float:
    """Return how similar two paths are that differ in one segment, from 0 to 1. A parameter equals any segment."""
    given, wanted = path.split("/"), declared.split("/")
    if len(given) != len(wanted):
        return 0.0
    pairs = zip(given, wanted, strict=True)
    different = [(one, other) for one, other in pairs if one != other and not _PARAMETER.fullmatch(other)]
    if len(different) > 1:
        return 0.0
    if not different:
        return 1.0
    compared = difflib.SequenceMatcher(None, *different[0])
    # upper bounds that cost much less
    is_near = compared.real_quick_ratio() >= _SIMILAR_PATH and compared.quick_ratio() >= _SIMILAR_PATH
    return compared.ratio() if is_near else 0.0


def _cut_fields(scope: Scope, fields: Sequence[FieldError]) -> list[FieldError]:
    """Cut pointers into the body before the first undeclared member: its name is content."""
    if not any(field.pointer and field.place == "body" for field in fields):
        return list(fields)
    return cut_fields(fields, declared_members(cast("FastAPI", scope["app"])))
