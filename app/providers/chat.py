"""A chat model behind HTTP: OpenAI's, or any endpoint with its API (Ollama, vLLM, a gateway).

Hides the client, the ways in which endpoints accept a schema, retries and time limits. Invariants: every call has one
deadline for all its tries. No answer is returned that is cut off, empty or of another shape. The ledger records the
tokens of every call, also of failed and cancelled ones, before the call's slot is released. So a budget is exceeded at
most by the calls that are running. Neither errors nor logs contain prompts or answers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, Unpack, cast

from app.core.errors import RateLimited, Unavailable
from app.core.ids import TenantId, format_id
from app.core.tracing.call_record import Stage
from app.core.tracing.stages import MeasuredStage
from app.providers.calling import calls_of, message_param, tool_params, words_of
from app.providers.endpoint import (
    CHAT_ERRORS,
    ChatEndpoint,
    client_of,
    context_exceeded,
    reported_tokens,
    request_timeout,
    timed_out,
    too_long,
    wait_to_retry,
)
from app.providers.pieces import estimated_tokens
from app.providers.schemas import (
    CallOptions,
    ChatMessage,
    InvalidAnswer,
    ModelAnswer,
    ModelCall,
    ModelPurpose,
    ModelReply,
    ModelUsage,
    Refused,
    Shape,
    ToolOffer,
)
from app.providers.shapes import (
    RequestVariant,
    ShapeRequest,
    UnusableError,
    cleaned,
    described_variant,
    first_limit_name,
    other_variant,
    shape_request,
)
from app.providers.window import output_tokens
from app.settings.models import Endpoint

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletion, ChatCompletionMessageParam, ChatCompletionToolParam
    from openai.types.chat.completion_create_params import ResponseFormat

Result = TypeVar("Result")

_INTERACTIVE: Final = frozenset({ModelPurpose.GENERATION, ModelPurpose.AGENT})
_FILTERED: Final = frozenset({"content_filter", "content_policy_violation"})
_COMPLAINTS: Final = frozenset({400, 404, 415, 422, 501})
"""Statuses with which an endpoint may reject one parameter of a request."""
_MAX_VARIANTS: Final = 1000
_JOB_WAITS: Final = 2
"""How many times its time limit a call of a job may wait in our own queue."""
_PROBE_TIMEOUT_S: Final = 10.0


@dataclass(slots=True)
class _Call:
    """One call: its tenant, purpose and model, and the tokens that its requests have used so far."""

    tenant_id: TenantId
    purpose: ModelPurpose
    model: str
    max_output_tokens: int
    timeout_s: float
    limit: str
    """The setting that limits its time, for the error of a time-out."""
    is_trial: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def is_job(self) -> bool:
        return self.purpose not in _INTERACTIVE

    @property
    def usage(self) -> ModelUsage:
        return ModelUsage(self.prompt_tokens, self.completion_tokens)


class ChatModel(ChatEndpoint):
    """A chat model: answers messages with text, with a value of a given shape, or with calls of tools.

    Never runs while a transaction is open. An answer is never longer than a quarter of the window. The ledger records
    every call, also failed ones, with its tenant and purpose.

    Raises RateLimited `model_rate_limited` or `model_budget_exhausted` (the tenant's budget, with the time of its
    reset). Raises Unavailable `model_overloaded`, `model_unavailable`, `model_timeout` (the same request takes as long
    again: ask for less), `model_context_exceeded` (longer than the window: not retryable, ask for less),
    `model_invalid` (an answer that is cut off, empty, or still of the wrong shape after a repair), or `model_refused`
    (the model or a content filter declines: not retryable). No error repeats prompts or answers.
    """

    async def answer(
        self, messages: Sequence[ChatMessage], *, shape: type[Shape], **options: Unpack[CallOptions]
    ) -> ModelAnswer[Shape]:
        """Answer with a validated value of `shape`, which the messages need not describe.

        An invalid answer is sent back once, with its errors.
        """
        call, asked = self._call(options), shape_request(shape)
        return await self._accounted(call, lambda: self._shaped(call, messages, asked))

    async def text(self, messages: Sequence[ChatMessage], **options: Unpack[CallOptions]) -> ModelAnswer[str]:
        """Answer with text that is complete and not empty."""
        call = self._call(options)
        return await self._accounted(call, lambda: self._complete(call, messages, None))

    async def converse(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[ToolOffer], **options: Unpack[CallOptions]
    ) -> ModelAnswer[ModelReply]:
        """Answer with calls of tools, or with text. Calls are not executed here, and may name any tool."""
        call = self._call(options)

        async def reply() -> ModelReply:
            return (await self._chosen(call, messages, None, tools)).reply()

        return await self._accounted(call, reply)

    def _call(self, options: CallOptions) -> _Call:
        tenant_id, purpose, settings = options["tenant_id"], options["purpose"], self._settings
        model, timeout_s = options.get("model") or self.model, options.get("timeout_s")
        longest = options.get("max_output_tokens") or settings.llm_max_output_tokens
        output = output_tokens(self.window(tenant_id, model), max_tokens=longest)
        if timeout_s is not None:
            limit = "the caller's own limit"
        elif purpose in _INTERACTIVE:
            timeout_s, limit = settings.llm_timeout_s, "TURNKEEP_LLM_TIMEOUT_MS"
        else:
            timeout_s, limit = settings.llm_job_timeout_s, "TURNKEEP_LLM_JOB_TIMEOUT_S"
        return _Call(tenant_id, purpose, model, output, timeout_s, limit)

    # limits and the ledger

    async def _accounted(self, call: _Call, work: Callable[[], Awaitable[Result]]) -> ModelAnswer[Result]:
        self._guard()
        # callers choose other models by any name
        label = self.model if call.model == self.model else "other"
        with MeasuredStage(Stage.MODEL, purpose=call.purpose.value, model=label):
            # a job may wait longer in our own queue: that costs nothing, and a new attempt would wait as long
            wait_s = call.timeout_s * (_JOB_WAITS if call.is_job else 1)
            async with self._calls.slot(is_job=call.is_job, wait_s=wait_s) as call.is_trial:
                value = await self._answered(call, work)
        return ModelAnswer(value, call.model, call.usage)

    async def _answered(self, call: _Call, work: Callable[[], Awaitable[Result]]) -> Result:
        await self._ledger.check(call.tenant_id, call.purpose)
        failed = True
        started_at = asyncio.get_running_loop().time()
        try:
            # a trial may wait at the endpoint for a call that has as much time
            async with asyncio.timeout(call.timeout_s * (2 if call.is_trial else 1)):
                value = await work()
            failed = False
        except TimeoutError as error:
            self._calls.back_off(is_job=call.is_job, sent_at=started_at)
            raise timed_out(call.timeout_s, call.limit) from error
        finally:
            await self._record(call.tenant_id, call.purpose, model=call.model, usage=call.usage, failed=failed)
        return value

    # one call: its shape, its tries

    async def _shaped(self, call: _Call, messages: Sequence[ChatMessage], asked: ShapeRequest[Shape]) -> Shape:
        said = await self._complete(call, messages, asked)
        try:
            return asked.read(said)
        except UnusableError as error:
            unusable = error
        self._log.info("model.repair", tenant_id=format_id(call.tenant_id), kind=call.purpose.value)
        again = await self._complete(call, asked.repair_messages(messages, said, unusable.problems), asked)
        self._describe_shape(call, asked, is_json=unusable.is_json)
        try:
            return asked.read(again)
        except UnusableError:
            raise CHAT_ERRORS.invalid_answer() from None  # `from None`: the causes would quote the answer

    async def _complete(self, call: _Call, messages: Sequence[ChatMessage], asked: ShapeRequest[Shape] | None) -> str:
        return (await self._chosen(call, messages, asked)).text()

    async def _chosen(
        self,
        call: _Call,
        messages: Sequence[ChatMessage],
        asked: ShapeRequest[Shape] | None,
        tools: Sequence[ToolOffer] = (),
    ) -> "_FirstChoice":
        """Return the model's answer.

        Retry if that can help, and use another variant if the endpoint rejects this one.
        """
        key = (call.model, None if asked is None else asked.name)
        accepted = variant = self._variants.get(key, self._first_variant())
        attempt = 0
        while True:
            try:
                with self._calls.request(is_job=call.is_job, is_trial=call.is_trial):
                    said = await self._request(call, messages, asked, variant, tools)
            except _VariantRefusedError as refusal:
                variant = refusal.other
            except (RateLimited, Unavailable) as error:
                max_retries = self._settings.llm_max_retries
                await wait_to_retry(error, attempt, max_retries=max_retries, timeout_s=call.timeout_s)
                attempt += 1
            else:
                if variant != accepted:
                    self._keep_variant(key, variant)
                return said

    def _first_variant(self) -> RequestVariant:
        return RequestVariant(limit=first_limit_name(self._endpoint.base_url))

    def _describe_shape(self, call: _Call, asked: ShapeRequest[Shape], *, is_json: bool) -> None:
        """Describe the shape in words from now on: the endpoint accepts a schema, and may ignore it."""
        key = (call.model, asked.name)
        self._keep_variant(key, described_variant(self._variants.get(key, self._first_variant()), is_json=is_json))

    def _keep_variant(self, key: tuple[str, str | None], variant: RequestVariant) -> None:
        if len(self._variants) >= _MAX_VARIANTS:
            del self._variants[next(iter(self._variants))]
        self._variants[key] = variant

    def _learn_window(self, call: _Call, complaint: str, asked: Sequence[str]) -> None:
        request_tokens = _estimated(asked) + call.max_output_tokens
        window = self._windows.learn(call.tenant_id, call.model, complaint, request_tokens=request_tokens)
        self._log.warning("model.window_learnt", count=window)

    async def _request(
        self,
        call: _Call,
        messages: Sequence[ChatMessage],
        asked: ShapeRequest[Shape] | None,
        variant: RequestVariant,
        tools: Sequence[ToolOffer],
    ) -> "_FirstChoice":
        """Send one request and return its answer. Raises _VariantRefusedError if another variant may be accepted."""
        import openai  # noqa: PLC0415 - see `client_of`

        if asked is not None and (variant.described or variant.format != "schema"):
            messages = asked.instructed(messages)
        try:
            completion = await self._client.chat.completions.create(
                model=call.model,
                messages=[cast("ChatCompletionMessageParam", message_param(message)) for message in messages],
                response_format=_response_format(asked, variant) or openai.omit,
                tools=cast("list[ChatCompletionToolParam]", tool_params(tools)) or openai.omit,
                max_tokens=call.max_output_tokens if variant.limit == "max_tokens" else openai.omit,
                max_completion_tokens=call.max_output_tokens if variant.limit != "max_tokens" else openai.omit,
                temperature=0 if variant.temperature else openai.omit,
                timeout=request_timeout(2 * call.timeout_s),
            )
            choice = _choice(completion)
            _count(call, words_of(messages, tools), completion, choice)
        except openai.APIStatusError as error:
            if context_exceeded(error):
                self._learn_window(call, _error_text(error), words_of(messages, tools))
                raise too_long() from None
            other = other_variant(variant, _error_text(error)) if error.status_code in _COMPLAINTS else None
            if other is not None and (other.format == variant.format or asked is not None):
                raise _VariantRefusedError(other) from None
            raise (_declined() if error.code in _FILTERED else CHAT_ERRORS.refused(error)) from None
        except openai.APIConnectionError as error:
            raise CHAT_ERRORS.unanswered() from error
        except asyncio.CancelledError:
            # the tokens of a cancelled answer are unknown; the prompt at least has been read
            call.prompt_tokens += _estimated(words_of(messages, tools))
            raise
        # an invalid answer raises one of these, depending on the part that is read first
        except (openai.OpenAIError, ValueError, TypeError, AttributeError, KeyError, IndexError):
            raise CHAT_ERRORS.invalid_answer() from None
        return choice


@dataclass(frozen=True, slots=True)
class _FirstChoice:
    """The part of an answer that is read. Its types are unchecked, because endpoints differ."""

    content: object
    refusal: object
    finish_reason: object
    calls: tuple[ModelCall, ...] = ()

    def text(self) -> str:
        text = self._whole()
        if not text:
            raise CHAT_ERRORS.invalid_answer()
        return text

    def reply(self) -> ModelReply:
        text = self._whole()
        if not text and not self.calls:
            raise CHAT_ERRORS.invalid_answer()
        return ModelReply(text, self.calls)

    def _whole(self) -> str:
        if self.refusal or self.finish_reason == "content_filter":
            raise _declined()
        if self.finish_reason == "length":
            raise InvalidAnswer(
                "model_invalid",
                "The chat model's answer was cut off: it is longer than the limit of the request allows.",
            )
        return cleaned(self.content) if isinstance(self.content, str) else ""


class _VariantRefusedError(Exception):
    """Raised if the endpoint rejects a parameter. It may accept the request in the `other` variant."""

    def __init__(self, other: RequestVariant) -> None:
        super().__init__("another manner")
        self.other = other


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of listing the models of an endpoint, which costs nothing.

    `trouble` is empty if the endpoint answers. `refused`: it rejects the key. `listed` is whether it lists the model,
    or None if it does not list its models.
    """

    trouble: str
    refused: bool = False
    listed: bool | None = None


async def probe(endpoint: Endpoint, *, timeout_s: float) -> Probe:
    """List the models of the endpoint, once."""
    import openai  # noqa: PLC0415 - see `client_of`

    client = client_of(endpoint, timeout_s=timeout_s)
    try:
        async with asyncio.timeout(min(timeout_s, _PROBE_TIMEOUT_S)):
            names = [model.id async for model in client.models.list()]
    except (openai.AuthenticationError, openai.PermissionDeniedError):
        return Probe("it refuses the key", refused=True)
    except openai.APIStatusError as error:
        passing = error.status_code >= 500 or error.status_code == 429  # noqa: PLR2004 - as HTTP has them
        return Probe(f"it answered {error.status_code}") if passing else Probe("")
    except (openai.APIConnectionError, TimeoutError):
        return Probe("it does not answer")
    except (openai.OpenAIError, ValueError, TypeError, AttributeError, KeyError):
        return Probe("")
    finally:
        await client.close()
    return Probe("", listed=endpoint.model in names)


def _response_format(asked: ShapeRequest[Shape] | None, variant: RequestVariant) -> "ResponseFormat | None":
    if asked is None or variant.format == "text":
        return None
    if variant.format == "object":
        return {"type": "json_object"}
    schema = cast("dict[str, object]", asked.schema)
    return {"type": "json_schema", "json_schema": {"name": asked.name, "schema": schema, "strict": True}}


def _choice(completion: "ChatCompletion") -> _FirstChoice:
    choice = completion.choices[0]
    message = choice.message
    # endpoints omit members that the client's types require
    return _FirstChoice(
        message.content,
        getattr(message, "refusal", None),
        getattr(choice, "finish_reason", None),
        calls_of(getattr(message, "tool_calls", None)),
    )


def _count(call: _Call, asked: Sequence[str], completion: "ChatCompletion", choice: _FirstChoice) -> None:
    """Add the tokens that the endpoint reports. Add an estimate for each count that it does not report."""
    content = choice.content if isinstance(choice.content, str) else ""
    content += "".join(f" {tool_call.name} {tool_call.arguments}" for tool_call in choice.calls)
    usage: object = completion.usage
    prompt, said = (cast("object", getattr(usage, name, None)) for name in ("prompt_tokens", "completion_tokens"))
    call.prompt_tokens += reported_tokens(prompt, otherwise=_estimated(asked))
    call.completion_tokens += reported_tokens(said, otherwise=estimated_tokens(content))


def _estimated(texts: Sequence[str]) -> int:
    return sum(map(estimated_tokens, texts))


def _error_text(error: "openai.APIStatusError") -> str:
    """Return all texts of an error. They may quote the prompt, so they are only searched for parameter names."""
    return f"{error.param or ''} {error.code or ''} {error.message} {error.body}"


def _declined() -> Refused:
    return Refused("model_refused", "The chat model, or a filter before it, declines to answer this.")
