"""The unchanged API of the chat model's endpoint: requests and answers pass through unmodified.

Hides the client, retries before an answer begins, the deadline, and the usage records. Invariants: the only key that is
sent is the endpoint's own. An answer that has begun is not requested again. The ledger records all usage, also of
answers that were cut off or cancelled. An endpoint's message about a refused request is returned to the caller, and
never logged. Its message about our key is returned to no caller.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, cast

from pydantic import JsonValue

from app.core.errors import AppError, Unavailable
from app.core.ids import TenantId
from app.core.tracing.call_record import Stage
from app.core.tracing.stages import MeasuredStage
from app.formats.schemas import JsonObject
from app.providers.endpoint import (
    CHAT_ERRORS,
    ChatEndpoint,
    context_exceeded,
    reported_tokens,
    retry_after,
    timed_out,
    too_long,
    usage_in,
    wait_to_retry,
)
from app.providers.pieces import estimated_tokens
from app.providers.schemas import InvalidAnswer, LimitName, ModelPurpose, ModelUsage, UpstreamRefusal
from app.providers.shapes import first_limit_name

if TYPE_CHECKING:
    import openai

_RAW: Final = {"X-Stainless-Raw-Response": "stream"}
_MAX_ANSWER_BYTES: Final = 16 * 2**20
"""Of an answer, and of what a stream holds back: each call of a process may hold as much."""
_OK: Final = 400
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_OURS: Final = frozenset({401, 403})
"""Statuses with which an endpoint refuses our key. The caller did not send it, and does not learn of it."""
_PASSING: Final = frozenset({408, 409, 429})


class UpstreamRejection(UpstreamRefusal):
    """A refusal that repeating the request does not change."""

    retryable = False


class _Response(Protocol):
    """The used part of the client's raw response."""

    @property
    def headers(self) -> Mapping[str, str]: ...
    def iter_bytes(self) -> AsyncIterator[bytes]: ...
    async def close(self) -> None: ...


@dataclass(slots=True)
class _Spent:
    """Usage of one request for the ledger: as the answer reports it, else an estimate."""

    model: str
    prompt_estimate: int
    said: int = 0
    usage: JsonObject | None = None
    failed: bool = True

    def total(self) -> ModelUsage:
        if not self.usage:
            return ModelUsage(self.prompt_estimate, -(-self.said // 3))
        prompt, completion = (self.usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
        return ModelUsage(reported_tokens(prompt, otherwise=0), reported_tokens(completion, otherwise=0))


@dataclass(slots=True)
class Streamed:
    """A streamed answer: the data of each event, including the last `[DONE]` if the endpoint sends it."""

    events: AsyncIterator[str]
    _spent: _Spent = field(repr=False)

    def record_usage(self, usage: JsonObject | None, *, said: int) -> None:
        """Store the usage that the events report, and add the characters that the model has produced since."""
        self._spent.usage = usage
        self._spent.said += said

    def is_whole(self) -> None:
        """Record that the answer is complete."""
        self._spent.failed = False


class Upstream(ChatEndpoint):
    """An endpoint with OpenAI's API."""

    @property
    def limit_name(self) -> LimitName:
        """Return the name of the limit of an answer's tokens, for requests that are written here."""
        return first_limit_name(self._endpoint.base_url)

    async def post(self, tenant_id: TenantId, path: str, body: JsonObject) -> JsonObject:
        """Post a request and return its answer, a JSON object. Raises UpstreamRefusal, RateLimited, Unavailable."""
        deadline = self._deadline()
        async with self._accounted(tenant_id, body, deadline) as spent, self._opened(path, body, deadline) as response:
            answer = await self._whole(response, deadline)
            spent.usage = usage_in(answer)
            spent.said = 0 if spent.usage else len(json.dumps(answer.get("choices"), ensure_ascii=False))
            spent.failed = False
            return answer

    async def get(self, path: str) -> JsonObject:
        """Get a path; this costs nothing. Raises as `post`."""
        self._guard()
        deadline = self._deadline()
        async with self._opened(path, None, deadline) as response:
            return await self._whole(response, deadline)

    @asynccontextmanager
    async def streaming(self, tenant_id: TenantId, path: str, body: JsonObject) -> AsyncGenerator[Streamed]:
        """Post a request with a streamed answer. Its usage is recorded at the end of the block. Raises as `post`."""
        deadline = self._deadline()
        async with self._accounted(tenant_id, body, deadline) as spent, self._opened(path, body, deadline) as response:
            if "text/event-stream" not in response.headers.get("content-type", ""):
                raise CHAT_ERRORS.invalid_answer()
            yield Streamed(event_data(self._bytes(response, deadline)), spent)

    # one request

    def _timed_out(self) -> Unavailable:
        return timed_out(self._settings.generation_timeout_s, "TURNKEEP_GENERATION_TIMEOUT_S")

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._settings.generation_timeout_s

    @asynccontextmanager
    async def _accounted(self, tenant_id: TenantId, body: JsonObject, deadline: float) -> AsyncGenerator[_Spent]:
        self._guard()
        async with AsyncExitStack() as stack:
            stack.enter_context(MeasuredStage(Stage.MODEL, is_parent=False, purpose=ModelPurpose.GENERATION.value))
            await stack.enter_async_context(self._calls.passed_on(deadline=deadline))
            await self._ledger.check(tenant_id, ModelPurpose.GENERATION)
            model = body.get("model")
            asked = json.dumps([body.get(name) for name in ("messages", "tools", "input")], ensure_ascii=False)
            spent = _Spent(model if isinstance(model, str) else self.model, estimated_tokens(asked))
            try:
                with self._calls.request(is_job=False):
                    yield spent
            except UpstreamRefusal as refusal:
                if refusal.code == too_long().code:
                    text = json.dumps(refusal.error, ensure_ascii=False)
                    request_tokens = spent.prompt_estimate + _answer_limit(body)
                    self._windows.learn(tenant_id, spent.model, text, request_tokens=request_tokens)
                spent.prompt_estimate = 0  # refused before anything was read
                raise
            finally:
                await self._record(
                    tenant_id, ModelPurpose.GENERATION, model=spent.model, usage=spent.total(), failed=spent.failed
                )

    @asynccontextmanager
    async def _opened(self, path: str, body: JsonObject | None, deadline: float) -> AsyncGenerator[_Response]:
        response = await self._open(path, body, deadline)
        try:
            yield response
        finally:
            with suppress(Exception):  # a broken connection is closed already
                await response.close()

    async def _open(self, path: str, body: JsonObject | None, deadline: float) -> _Response:
        import openai  # noqa: PLC0415 - see `client_of`

        attempt = 0
        while True:
            left = deadline - asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._send(path, body)
            except TimeoutError as error:
                raise self._timed_out() from error
            except openai.APIStatusError as error:
                refusal: AppError = _refusal(error)
            except openai.APIConnectionError:
                refusal = CHAT_ERRORS.unanswered()
            except (openai.OpenAIError, ValueError, TypeError):
                raise CHAT_ERRORS.invalid_answer() from None
            await wait_to_retry(refusal, attempt, max_retries=self._settings.llm_max_retries, timeout_s=left)
            attempt += 1

    async def _send(self, path: str, body: JsonObject | None) -> _Response:
        options: dict[str, object] = {"headers": _RAW}
        if body is None:
            sent = self._client.get(path, cast_to=object, options=options)  # pyright: ignore[reportArgumentType]
        else:
            sent = self._client.post(path, cast_to=object, body=body, options=options)  # pyright: ignore[reportArgumentType]
        return cast("_Response", await sent)

    async def _whole(self, response: _Response, deadline: float) -> JsonObject:
        content = bytearray()
        async for piece in self._bytes(response, deadline):
            content += piece
            if len(content) > _MAX_ANSWER_BYTES:
                raise CHAT_ERRORS.invalid_answer()
        try:
            answer = cast("JsonValue", json.loads(content))
        except (ValueError, RecursionError):
            raise CHAT_ERRORS.invalid_answer() from None
        if not isinstance(answer, dict):
            raise CHAT_ERRORS.invalid_answer()
        return answer

    async def _bytes(self, response: _Response, deadline: float) -> AsyncGenerator[bytes]:
        pieces = response.iter_bytes()
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    piece = await anext(pieces, None)
            except TimeoutError as error:
                raise self._timed_out() from error
            except Exception as error:
                # for any exception of the client's connection: the answer was cut off
                raise InvalidAnswer("model_unavailable", "The chat model's answer was cut off.") from error
            if piece is None:
                return
            yield piece


def _answer_limit(body: JsonObject) -> int:
    """Return the tokens that a request allows for its answer; 0 if it names no limit."""
    limits = [body.get(name) for name in ("max_completion_tokens", "max_tokens", "max_output_tokens")]
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), 0)


async def event_data(pieces: AsyncIterator[bytes]) -> AsyncGenerator[str]:
    """Yield the data of the events in a stream, in linear time. Raises if one event is too large."""
    waiting, data = list[bytes](), list[bytes]()
    waiting_bytes = data_bytes = 0
    async for piece in pieces:
        waiting.append(piece)
        waiting_bytes += len(piece)
        if waiting_bytes + data_bytes > _MAX_ANSWER_BYTES:
            raise CHAT_ERRORS.invalid_answer()
        if b"\n" not in piece:
            continue
        *lines, rest = b"".join(waiting).split(b"\n")
        waiting, waiting_bytes = [rest], len(rest)
        for line in lines:
            content = line.removesuffix(b"\r")
            if content.startswith(b"data:"):
                data.append(content[5:].removeprefix(b" "))
                data_bytes += len(content)
            elif not content and data:
                yield _text(b"\n".join(data))
                data, data_bytes = [], 0
    if data:
        yield _text(b"\n".join(data))


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CHAT_ERRORS.invalid_answer() from None


def _refusal(error: "openai.APIStatusError") -> AppError:
    refusal = CHAT_ERRORS.refused(error)
    status = error.status_code
    if status in _OURS:
        return refusal
    if status < _OK:
        return CHAT_ERRORS.invalid_answer()
    if status < _SERVER_ERROR and status not in _PASSING and status != 404:  # noqa: PLR2004 - no such model
        refused = AppError("model_refused", "The chat model's endpoint refuses this request as it is.")
        refusal = too_long() if context_exceeded(error) else refused
    body = error.body
    details = cast("JsonObject", body) if isinstance(body, dict) and "message" in body else None
    wait_s = retry_after(error)
    if status == _TOO_MANY and wait_s is not None:
        refusal.retry_after_s = wait_s
    passing = status in _PASSING or status >= _SERVER_ERROR
    return (UpstreamRefusal if passing else UpstreamRejection)(refusal, status=status, error=details)
