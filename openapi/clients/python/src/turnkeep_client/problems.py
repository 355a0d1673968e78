"""Turns failed responses, `error` frames and close codes into errors. Pure."""

import json
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final, cast

from turnkeep_client import errors
from turnkeep_client.generated.errors import ERRORS, REMEDIES

_CLASSES: Final[Mapping[int, type[errors.TurnkeepError]]] = {
    400: errors.InvalidError,
    401: errors.UnauthenticatedError,
    403: errors.ForbiddenError,
    404: errors.NotFoundError,
    409: errors.ConflictError,
    412: errors.ConflictError,
    413: errors.TooLargeError,
    422: errors.InvalidError,
    429: errors.RateLimitedError,
}
_STRANGER_STATUSES: Final = frozenset({301, 302, 303, 307, 308, 404, 405})
"""Statuses that another service than a Turnkeep answers to its paths."""
_SERVER_FAULT: Final = 500
_PROXY_STATUSES: Final = frozenset({502, 503, 504})
_FINAL_CLOSES: Final = {
    1003: "invalid_request",
    1007: "invalid_request",
    1009: "chunk_too_large",
    4400: "invalid_request",
    4401: "unauthenticated",
    4403: "forbidden",
    4404: "not_found",
}


def error_of_response(status: int, headers: Mapping[str, str], content: bytes) -> errors.TurnkeepError:
    """Return the error of a response; one that no Turnkeep sent has the code `http_error`."""
    try:
        parsed = cast("object", json.loads(content))
    except ValueError:
        parsed = None
    problem = cast("dict[str, object]", parsed) if isinstance(parsed, dict) else {}
    is_problem = "code" in problem
    code = str(problem["code"]) if is_problem else "http_error"
    return _error(
        code,
        str(problem.get("detail", "")) if is_problem else _without_problem(status),
        status=status,
        request_id=cast("str | None", problem.get("request_id")) or headers.get("x-request-id"),
        is_retryable=problem.get("retryable") is True if is_problem else status in _PROXY_STATUSES,
        retry_after_s=retry_after_of(headers),
        problem=problem,
    )


def _without_problem(status: int) -> str:
    advice = ": is `url` a Turnkeep?" if status in _STRANGER_STATUSES else "."
    return f"The server answers {status} without a problem document{advice}"


def error_of_frame(frame: Mapping[str, object]) -> errors.TurnkeepError:
    """Return the error of an `error` frame."""
    is_retryable = frame.get("retryable") is True
    return _error(str(frame.get("code")), str(frame.get("detail", "")), is_retryable=is_retryable, problem=frame)


def error_of_close(close_code: int, reason: str) -> errors.TurnkeepError | None:
    """Return the error of a close code after which another connection cannot help."""
    code = _FINAL_CLOSES.get(close_code)
    if code is None:
        return None
    return _error(reason if reason in ERRORS else code, f"The server closed the connection with {close_code}.")


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `Retry-After`, which is a number or a date."""
    value = headers.get("retry-after", "")
    if value.isdecimal():
        return float(value)
    try:
        end = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, end.timestamp() - _now_of(headers, end.timestamp()))


def _now_of(headers: Mapping[str, str], otherwise: float) -> float:
    # by the server's clock: that of this machine may differ
    try:
        return parsedate_to_datetime(headers.get("date", "")).timestamp()
    except ValueError:
        return otherwise


def _error(
    code: str,
    detail: str,
    *,
    status: int = 0,
    request_id: str | None = None,
    is_retryable: bool = False,
    retry_after_s: float | None = None,
    problem: Mapping[str, object] | None = None,
) -> errors.TurnkeepError:
    otherwise = errors.UnavailableError if status >= _SERVER_FAULT else errors.TurnkeepError
    kind = ERRORS.get(code) or _CLASSES.get(status) or otherwise
    return kind(
        code, detail, status=status, request_id=request_id, remedy=REMEDIES.get(code, ""), is_retryable=is_retryable,
        retry_after_s=retry_after_s, problem=problem,
    )  # fmt: skip
