"""When a request is sent again, and after which delay. Pure."""

import random
from dataclasses import dataclass
from typing import Final

from turnkeep_client.errors import ConnectionFailedError, TurnkeepError
from turnkeep_client.generated.operations import Repeat

_NOT_EXECUTED: Final = frozenset({"rate_limited", "overloaded", "not_ready", "too_many_failed_keys"})
"""Codes of requests that were refused before anything was done."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of retries: how many, and the longest delay that is waited for."""

    max_retries: int = 5
    min_wait_s: float = 0.25
    max_wait_s: float = 8.0
    max_retry_after_s: float = 60.0

    def wait_s(self, attempt: int, error: TurnkeepError, repeat: Repeat, *, is_sent: bool) -> float | None:
        """Return the delay before the next attempt, or None if there is none. `attempt` starts at 0.

        `is_sent`: whether the request may have reached the server.
        """
        if attempt >= self.max_retries or not _is_repeatable(error, repeat, is_sent=is_sent):
            return None
        if error.retry_after_s is not None and error.retry_after_s > self.max_retry_after_s:
            return None
        return max(self.backoff_s(attempt), error.retry_after_s or 0.0)

    def backoff_s(self, attempt: int) -> float:
        """Return an exponential delay; random, so that clients do not come back at one moment."""
        return min(self.max_wait_s, self.min_wait_s * 2 ** min(attempt, 30)) * random.uniform(0.5, 1.0)  # noqa: S311


def _is_repeatable(error: TurnkeepError, repeat: Repeat, *, is_sent: bool) -> bool:
    if not is_sent:
        return True
    if repeat == "unsent":
        return error.is_retryable and error.code in _NOT_EXECUTED
    return error.is_retryable or isinstance(error, ConnectionFailedError)
