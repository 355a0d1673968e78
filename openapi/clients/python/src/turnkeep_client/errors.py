"""Errors of the client: one class for each kind. `generated.errors` has a subclass for each code."""

from collections.abc import Mapping, Sequence
from typing import Final, cast

_MAX_SHOWN_FIELDS: Final = 5


class TurnkeepError(Exception):
    """A request that failed. `code` is stable; `remedy` says what to do; `problem` is the whole response."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        status: int = 0,
        request_id: str | None = None,
        remedy: str = "",
        is_retryable: bool = False,
        retry_after_s: float | None = None,
        problem: Mapping[str, object] | None = None,
    ) -> None:
        self.code = code
        self.detail = detail
        self.status = status
        self.request_id = request_id
        self.remedy = remedy
        self.is_retryable = is_retryable
        self.retry_after_s = retry_after_s
        self.problem = dict(problem or {})
        super().__init__(code, detail)

    def __str__(self) -> str:
        first, _, others = self.remedy.partition(". ")
        fields = self._fields()
        # a remedy begins with what is wrong, as the detail does; the fields of this request say more than it
        advice = " ".join(fields) if fields else others if first in self.detail else self.remedy
        # the detail of an invalid request names its first field
        if fields and fields[0].partition(": ")[2] in self.detail:
            advice = " ".join(fields[1:])
        said = f"{self.detail} {advice}".strip()
        return f"{self.code}: {said}" + (f" (request {self.request_id})" if self.request_id else "")

    def _fields(self) -> Sequence[str]:
        """Return what is wrong with each field, such as "/turns/0/text: Unknown field `text`."."""
        listed = self.problem.get("errors")
        fields = cast("Sequence[object]", listed) if isinstance(listed, list) else ()
        shown = [cast("Mapping[str, object]", one) for one in fields if isinstance(one, dict)][:_MAX_SHOWN_FIELDS]
        return [f"{one.get('pointer') or one.get('in', '')}: {one.get('detail', '')}" for one in shown]


class InvalidError(TurnkeepError):
    """The request breaks a rule (400, 422)."""


class UnauthenticatedError(TurnkeepError):
    """The key or token is missing or invalid (401)."""


class ForbiddenError(TurnkeepError):
    """The key may not do this (403)."""


class NotFoundError(TurnkeepError):
    """The object does not exist, or belongs to another tenant (404)."""


class ConflictError(TurnkeepError):
    """The state of the object does not allow this (409, 412)."""


class TooLargeError(TurnkeepError):
    """The body is too large (413)."""


class RateLimitedError(TurnkeepError):
    """A rate or a quota is used up (429)."""


class UnavailableError(TurnkeepError):
    """The server, or a model behind it, cannot answer now (5xx)."""


class ConnectionFailedError(TurnkeepError):
    """There was no answer: it is not known whether the request was executed."""
