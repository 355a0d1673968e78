"""Shared parts of all endpoints with OpenAI's API: client, refusals as errors, retries, slots and usage records.

No text of an endpoint is repeated: its messages may quote the prompt and its key.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from app.core.errors import AppError, RateLimited, Unavailable
from app.core.ids import TenantId
from app.core.telemetry import get_logger
from app.core.tracing.export import trace_http_client
from app.formats.schemas import JsonObject
from app.providers.queues.endpoint_calls import EndpointCalls
from app.providers.schemas import InvalidAnswer, Ledger, ModelPurpose, ModelUsage, Refused
from app.providers.shapes import RequestVariant
from app.providers.window import LearntWindows, is_too_long
from app.settings.models import ChatSettings, Endpoint

if TYPE_CHECKING:
    import openai

Model = TypeVar("Model")

_FIRST_DELAY_S = 0.25
_REQUEST_TIMEOUT, _CONFLICT, _TOO_MANY, _SERVER_ERROR = 408, 409, 429, 500
_TIMED_OUT = frozenset({408, 504, 524})
_TOO_LONG = frozenset({400, 413, 422, 500})
"""Statuses of requests that are longer than the window; 500 by older releases of llama.cpp."""
_OVERLOADED = frozenset({503, 529})
_LONGEST_RETRY_AFTER_S = 3600


class QuotaUsedUp(RateLimited):
    """The account has no credit left; repeating the request does not help."""

    retryable = False


@dataclass(frozen=True, slots=True)
class EndpointErrors:
    """Errors of one kind of endpoint: its name in a sentence, its codes, and the log event of a refusal."""

    name: str
    rate_limited: str
    overloaded: str
    unavailable: str
    invalid: str
    expected: str
    event: str
    timeout: str | None = None
    """The code of a time-out; None: time-outs have no code of their own."""

    def refused(self, error: "openai.APIStatusError") -> AppError:
        """Return the error for a status."""
        status, wait = error.status_code, retry_after(error)
        if status == _TOO_MANY:
            kind = QuotaUsedUp if error.code == "insufficient_quota" else RateLimited
            return kind(self.rate_limited, f"{self.name} takes no more requests for now.", retry_after_s=wait)
        if status in _OVERLOADED:
            return Unavailable(self.overloaded, f"{self.name} is overloaded.", retry_after_s=wait)
        get_logger().warning(self.event, status=status)
        if self.timeout is not None and status in _TIMED_OUT:
            detail = f"{self.name} answered {status}: a limit of its own has ended the request."
            return Unavailable(self.timeout, detail)
        passing = status >= _SERVER_ERROR or status in {_CONFLICT, _REQUEST_TIMEOUT}
        return (Unavailable if passing else Refused)(
            self.unavailable, f"{self.name} answered {status}.", retry_after_s=wait
        )

    def unanswered(self) -> Unavailable:
        """Return the error for an endpoint that cannot be reached, or that loses the connection."""
        return Unavailable(self.unavailable, f"{self.name} does not answer.")

    def invalid_answer(self) -> InvalidAnswer:
        """Return the error for an answer that cannot be used."""
        return InvalidAnswer(self.invalid, f"{self.name} answered with something that is no {self.expected}.")


_TIMEOUT_CODE: Final = "model_timeout"
CHAT_ERRORS: Final = EndpointErrors(
    name="The chat model's endpoint",
    rate_limited="model_rate_limited",
    overloaded="model_overloaded",
    unavailable="model_unavailable",
    invalid="model_invalid",
    expected="answer to what it was asked",
    event="model.refused",
    timeout=_TIMEOUT_CODE,
)
_CONNECT_TIMEOUT_S: Final = 5.0
_MAX_TOKENS: Final = 10**9


def timed_out(timeout_s: float, limit: str) -> Unavailable:
    """Return the error of a chat model without an answer in time. `limit` names the setting."""
    detail = f"The chat model did not answer within {timeout_s:g} seconds ({limit})."
    return Unavailable(_TIMEOUT_CODE, detail)


def too_long() -> Refused:
    """Return the error of a request that is longer than the chat model's window."""
    detail = "The request is longer than the chat model can read in one call: send less."
    return Refused("model_context_exceeded", detail)


def context_exceeded(error: "openai.APIStatusError") -> bool:
    """Return whether an endpoint refuses a request because it is longer than the model's window."""
    if error.status_code not in _TOO_LONG:
        return False
    return is_too_long(error.code, error.message) or is_too_long(error.type, "")


def request_timeout(timeout_s: float) -> "openai.Timeout":
    """Return the client's limits of one request."""
    import openai  # noqa: PLC0415 - see `client_of`

    return openai.Timeout(timeout_s, connect=min(_CONNECT_TIMEOUT_S, timeout_s))


async def wait_to_retry(
    error: AppError, attempt: int, *, max_retries: int, timeout_s: float, event: str = "model.retry"
) -> None:
    """Log and sleep until the next try. Raises the error if there is none.

    The delay is `Retry-After`, or doubles with each try, with random jitter. A delay that is too long for the request's
    time limit ends the tries: it would turn a clear error into a time-out. A request that timed out is not repeated: it
    would take as long again.
    """
    is_final = isinstance(error, InvalidAnswer) or error.code == _TIMEOUT_CODE
    if not error.retryable or is_final or attempt >= max_retries:
        raise error
    if error.retry_after_s is not None:
        delay_s = error.retry_after_s + random.uniform(0, _FIRST_DELAY_S)  # noqa: S311 - jitter, no cryptography
    else:
        delay_s = _FIRST_DELAY_S * 2**attempt * random.uniform(0.5, 1.5)  # noqa: S311
    if delay_s >= timeout_s / 2:
        raise error
    get_logger().info(event, code=error.code, attempt=attempt + 1)
    await asyncio.sleep(delay_s)


def retry_after(error: "openai.APIStatusError") -> int | None:
    """Return `Retry-After` in seconds, rounded up. None for a date, because clocks differ."""
    try:
        seconds = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return min(int(-(-seconds // 1)), _LONGEST_RETRY_AFTER_S) if 0 <= seconds < float("inf") else None


def usage_in(answer: JsonObject) -> JsonObject | None:
    """Return the usage of an answer or of one event of it; None if it reports none."""
    usage = answer.get("usage")
    return usage if isinstance(usage, dict) else None


def reported_tokens(value: object, *, otherwise: int) -> int:
    """Return a reported count of tokens; `otherwise` if it is not valid."""
    return value if isinstance(value, int) and 0 <= value <= _MAX_TOKENS else otherwise


def require_model(model: Model | None) -> Model:
    """Return the chat model, or its endpoint. Raises Unavailable `model_not_configured` if there is none."""
    if model is not None:
        return model
    raise Refused(
        "model_not_configured",
        "No chat model is configured. Set TURNKEEP_LLM_MODEL, and TURNKEEP_LLM_API_KEY or TURNKEEP_LLM_BASE_URL for its"
        " endpoint, and start the server again.",
    )


def client_of(endpoint: Endpoint, *, timeout_s: float) -> "openai.AsyncOpenAI":
    """Return a client of an endpoint, which does not repeat requests by itself."""
    import openai  # noqa: PLC0415 - the client takes 15 MB: imported where an endpoint is configured

    http_client = openai.DefaultAsyncHttpxClient()
    trace_http_client(http_client)
    return openai.AsyncOpenAI(
        http_client=http_client,
        # an endpoint without keys ignores it, and the client requires one
        api_key=endpoint.api_key or "none",
        base_url=endpoint.base_url,
        timeout=request_timeout(timeout_s),
        max_retries=0,  # our retries respect the deadline and the error kinds
    )


class ChatEndpoint:
    """The endpoint of the chat model: the base of the chat model and of the unchanged API.

    `guard` is called at the beginning of every call. It raises if model calls are not allowed there.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        settings: ChatSettings,
        ledger: Ledger,
        guard: Callable[[], None],
        calls: EndpointCalls | None = None,
        windows: LearntWindows | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._ledger = ledger
        self._guard = guard
        self._calls = calls or EndpointCalls(settings)
        self._windows = windows or LearntWindows(settings.llm_context_tokens)
        self._variants: dict[tuple[str, str | None], RequestVariant] = {}
        """The variants of requests that the endpoint accepts, by model and shape."""
        self._recording: set[asyncio.Task[None]] = set()
        self._log = get_logger()
        self._client = client_of(endpoint, timeout_s=settings.generation_timeout_s)

    @property
    def model(self) -> str:
        """Return the default model, for requests that name none."""
        return self._endpoint.model

    def window(self, tenant_id: TenantId, model: str | None = None) -> int:
        """Return the tokens that a model reads and writes in one call.

        This is the configured number, or less once the endpoint has refused a request of this tenant as too long.
        """
        return self._windows.of(tenant_id, model or self.model)

    async def close(self) -> None:
        """Wait until all usage is recorded, and close the connections."""
        await asyncio.gather(*self._recording, return_exceptions=True)
        await self._client.close()

    async def _record(
        self, tenant_id: TenantId, purpose: ModelPurpose, *, model: str, usage: ModelUsage, failed: bool
    ) -> None:
        """Record one call that used tokens, even if the caller of the model is cancelled meanwhile."""
        if usage.prompt_tokens + usage.completion_tokens == 0:
            return
        task = asyncio.create_task(self._ledger.record(tenant_id, purpose, model=model, usage=usage, failed=failed))
        self._recording.add(task)
        task.add_done_callback(self._recording.discard)
        await asyncio.shield(task)
