"""The errors of the whole service, independent of the transport.

A kind determines what the caller can do. A code names the exact case and never changes. Each transport maps kinds once
(REST problems, WebSocket frames, MCP tool errors, job retries). The public sentence never repeats the caller's input:
content does not belong in errors or logs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

Place = Literal["body", "query", "path", "header"]


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong field: a JSON pointer inside `place`, and the problem.

    `is_unknown`: the last step of the pointer is the name of an unknown field, which may be repeated.
    """

    pointer: str
    detail: str
    place: Place = "body"
    is_unknown: bool = False


class AppError(Exception):
    """Base of all errors that the service raises on purpose.

    `code` is the stable, lower-case name of the case. `detail` is the public sentence. `fields` are the wrong fields.
    `extra` are further public members (such as the current seq). `retryable`: the same request may succeed later, after
    `retry_after_s` seconds if given.
    """

    kind: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        fields: Sequence[FieldError] = (),
        extra: dict[str, int | str] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.fields = tuple(fields)
        self.extra = extra or {}
        self.retry_after_s = retry_after_s


class PublicValueError(ValueError):
    """Raised by a validator of input, with a sentence of ours that quotes nothing: the caller sees it."""


class Malformed(AppError):
    """The request is not in its declared format (not JSON, not UTF-8)."""

    kind = "malformed"


class Invalid(AppError):
    """The request is well formed and breaks a rule. `fields` names the wrong fields."""

    kind = "invalid"


class InvalidFields(Invalid):
    """Fields of the request break rules. The public sentence is the first of them; transports add its pointer."""

    def __init__(self, fields: Sequence[FieldError], *, code: str = "invalid_request") -> None:
        super().__init__(code, fields[0].detail, fields=fields)


class Unauthenticated(AppError):
    """No API key, or an invalid one."""

    kind = "unauthenticated"


class Forbidden(AppError):
    """A valid key without the needed scope, or a token for another purpose."""

    kind = "forbidden"


class NotFound(AppError):
    """The object does not exist, or belongs to another tenant: the two are not distinguished."""

    kind = "not_found"


class Conflict(AppError):
    """The state of the object does not allow the request. Reading the object again shows the reason."""

    kind = "conflict"


class Busy(Conflict):
    """Another request is changing the same object. The same request may be sent again."""

    retryable = True


class TooLarge(AppError):
    """A size limit is exceeded."""

    kind = "too_large"


class RateLimited(AppError):
    """A rate limit is exceeded."""

    kind = "rate_limited"
    retryable = True


class Unavailable(AppError):
    """A needed service does not answer; nothing was written."""

    kind = "unavailable"
    retryable = True
