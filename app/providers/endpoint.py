"""What all endpoints that speak OpenAI's API have in common: their refusals, mapped once, and when to try again.

Nothing of what an endpoint says is repeated: its messages may quote what it was asked, and its key.
"""

import random
from dataclasses import dataclass
from typing import Final

import openai

from app.core.errors import AppError, RateLimited, Unavailable
from app.core.telemetry import get_logger
from app.formats.schemas import JsonObject
from app.providers.schemas import ChatModel

_FIRST_DELAY_S = 0.25
_TIMEOUT, _CONFLICT, _TOO_MANY, _SERVER_ERROR = 408, 409, 429, 500
_OVERLOADED = frozenset({503, 529})
_LONGEST_RETRY_AFTER_S = 3600


class QuotaUsedUp(RateLimited):
    """An empty account, which sending the same again does not fill."""

    retryable = False


class Refused(Unavailable):
    """A request that is refused as it is: a wrong key, model or URL."""

    retryable = False


class InvalidAnswer(Unavailable):
    """An answer that is not what was asked for; the very same request is not sent again at once."""


@dataclass(frozen=True, slots=True)
class EndpointErrors:
    """The cases of one kind of endpoint: its name in a sentence, its codes, and the log event of a refusal."""

    name: str
    rate_limited: str
    overloaded: str
    unavailable: str
    invalid: str
    expected: str
    event: str

    def refused(self, error: openai.APIStatusError) -> AppError:
        """What a status means."""
        status, wait = error.status_code, retry_after(error)
        if status == _TOO_MANY:
            kind = QuotaUsedUp if error.code == "insufficient_quota" else RateLimited
            return kind(self.rate_limited, f"{self.name} takes no more requests for now.", retry_after_s=wait)
        if status in _OVERLOADED:
            return Unavailable(self.overloaded, f"{self.name} has too much to do.", retry_after_s=wait)
        get_logger().warning(self.event, status=status)
        passing = status >= _SERVER_ERROR or status in {_CONFLICT, _TIMEOUT}
        return (Unavailable if passing else Refused)(
            self.unavailable, f"{self.name} answered {status}.", retry_after_s=wait
        )

    def unanswered(self) -> Unavailable:
        """No answer, or none in time."""
        return Unavailable(self.unavailable, f"{self.name} does not answer.")

    def invalid_answer(self) -> InvalidAnswer:
        """An answer, and not one that can be used."""
        return InvalidAnswer(self.invalid, f"{self.name} answered with something that is no {self.expected}.")


CHAT_ERRORS: Final = EndpointErrors(
    name="The chat model's endpoint",
    rate_limited="model_rate_limited",
    overloaded="model_overloaded",
    unavailable="model_unavailable",
    invalid="model_invalid",
    expected="answer to what it was asked",
    event="model.refused",
)
CONNECT_TIMEOUT_S: Final = 5.0
_MAX_TOKENS: Final = 10**9


def delay(error: AppError, attempt: int, *, max_retries: int, timeout_s: float) -> float | None:
    """Seconds until the next try: what the endpoint asks for, or twice as long each time, spread; None: no more tries.

    Waiting longer than the request may take would only turn a clear answer into a time-out.
    """
    if not error.retryable or isinstance(error, InvalidAnswer) or attempt >= max_retries:
        return None
    if error.retry_after_s is not None:
        wait = error.retry_after_s + random.uniform(0, _FIRST_DELAY_S)  # noqa: S311 - spreads load, hides nothing
    else:
        wait = _FIRST_DELAY_S * 2**attempt * random.uniform(0.5, 1.5)  # noqa: S311
    return wait if wait < timeout_s / 2 else None


def retry_after(error: openai.APIStatusError) -> int | None:
    """`Retry-After` in seconds, rounded up; a date is left out: clocks differ."""
    try:
        seconds = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return min(int(-(-seconds // 1)), _LONGEST_RETRY_AFTER_S) if 0 <= seconds < float("inf") else None


def usage_in(answer: JsonObject) -> JsonObject | None:
    """What an answer, or a piece of one, says that it took; None where it says nothing."""
    usage = answer.get("usage")
    return usage if isinstance(usage, dict) else None


def reported_tokens(value: object, *, otherwise: int) -> int:
    """A count of tokens as an endpoint tells it; `otherwise` where that is none."""
    return value if isinstance(value, int) and 0 <= value <= _MAX_TOKENS else otherwise


def require_model(chat: ChatModel | None) -> ChatModel:
    """The chat model; raises Unavailable `model_not_configured` where there is none."""
    if chat is None:
        raise Refused("model_not_configured", "No chat model is configured here; TURNKEEP_LLM_MODEL names one.")
    return chat
