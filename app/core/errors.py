"""The errors of the whole service, free of any transport.

A kind says what the caller can do about it; a code names the exact case and never changes. Transports map kinds
once each (REST to problem+json, and later WebSocket frames, MCP tool errors and job retries). The public sentence
never repeats what the caller sent: content does not belong in errors or logs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

Place = Literal["body", "query", "path", "header"]


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong field: where it is (a JSON pointer inside `place`) and what is wrong with it.

    `is_unknown`: the last step of the pointer is the name of an unknown field, which may be repeated.
    """

    pointer: str
    detail: str
    place: Place = "body"
    is_unknown: bool = False


class AppError(Exception):
    """Base of everything the service refuses on purpose.

    `code` is the stable, lower-case name of the case; `detail` the public sentence; `fields` name what is wrong;
    `extra` are further public members (such as the current seq); `retryable` says whether the very same request
    may succeed later, `retry_after_s` when.
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


class Malformed(AppError):
    """The request is not in the language it claims to be (not JSON, not UTF-8)."""

    kind = "malformed"


class Invalid(AppError):
    """The request is well formed and breaks a rule; a field says which."""

    kind = "invalid"


class Unauthenticated(AppError):
    """No key, or one that does not hold."""

    kind = "unauthenticated"


class Forbidden(AppError):
    """A good key without the scope that this needs, or a token that is not for it."""

    kind = "forbidden"


class NotFound(AppError):
    """Absent, or another tenant's: the two are never told apart."""

    kind = "not_found"


class Conflict(AppError):
    """The state of the object does not allow it; reading it again tells why."""

    kind = "conflict"


class Busy(Conflict):
    """Somebody else is at the very same thing right now; the same request may be sent again."""

    retryable = True


class TooLarge(AppError):
    """Over a limit of size."""

    kind = "too_large"


class RateLimited(AppError):
    """Over a limit of rate."""

    kind = "rate_limited"
    retryable = True


class Unavailable(AppError):
    """Something this needs does not answer; nothing was written."""

    kind = "unavailable"
    retryable = True
