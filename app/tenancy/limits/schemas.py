"""A class's limit, and the state of a key after a call."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from app.core.errors import RateLimited
from app.tenancy.schemas import RateClass

RATE_STATE: Final = "rate"
"""Key of the `RateStatus` in the state of a request."""


@dataclass(frozen=True, slots=True)
class RatePolicy:
    """The limit of one class of calls: `per_s` calls per second on average, at most `capacity` at once.

    `window_s`: seconds in which an empty bucket is filled. `field`: the policy as an item of a structured field
    (RFC 9651), for the header `RateLimit-Policy`.
    """

    name: RateClass
    per_s: float
    capacity: float
    window_s: int
    field: bytes


class RateStatus(NamedTuple):
    """The state of a key after a call: `left` calls of the policy. `retry_after_s` is 0 unless the call is refused."""

    policy: RatePolicy
    left: int
    retry_after_s: int

    def require(self) -> None:
        """Raise RateLimited `rate_limited` if the call is refused."""
        if not self.retry_after_s:
            return
        name = self.policy.name.value
        raise RateLimited(
            "rate_limited",
            f"This key has used its rate of calls of the class {name} ({self.policy.per_s:g} per second): send this one"
            " again later.",
            retry_after_s=self.retry_after_s,
            extra={"policy": name},
        )
