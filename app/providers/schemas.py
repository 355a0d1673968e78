"""Protocols of external models and receivers: embedder, chat model, ledger, token counter, event sender.

Nothing here depends on one model. The container creates the providers and passes them to the capabilities.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from app.core.ids import TenantId
from app.formats.schemas import JsonObject

Purpose = Literal["query", "document", "backlog"]
"""Purpose of an embedding: a search, a write whose caller waits, or a job."""
Vectors: TypeAlias = NDArray[np.float32]
Shape = TypeVar("Shape", bound=BaseModel)
Value = TypeVar("Value")


IN_PROCESS: Final = "local"
"""The provider of embedding spaces whose model runs in this process: a call costs nothing but its CPU time."""


@dataclass(frozen=True, slots=True)
class EmbeddingSpaceName:
    """The name of an embedding space. Vectors of two spaces are never compared, even with equal dimensions."""

    provider: str
    model: str
    dimensions: int


class Embedder(Protocol):
    """An embedder: converts text to unit vectors.

    `embed` takes at most `max_batch` texts and returns float32 of shape (len(texts), dimensions), L2-normalised, in the
    order of the texts. No texts give shape (0, dimensions). The vector of a text does not depend on other texts or
    requests. It raises Unavailable if it cannot answer, and never runs while a transaction is open.
    """

    @property
    def space(self) -> EmbeddingSpaceName:
        """Return the embedding space of all vectors of this embedder."""
        ...

    @property
    def max_batch(self) -> int:
        """Return the maximum number of texts of one `embed` call."""
        ...

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Vectors:
        """Embed texts. Queries go before documents, and documents before the backlog."""
        ...

    def split(self, text: str, *, most: int | None = None) -> list[str]:
        """Split text into pieces that the model reads completely, slightly overlapping: at most the first `most`.

        Never empty: a short text is one piece, unchanged.
        """
        ...

    def reads(self, text: str) -> bool:
        """Return whether the model has words in the script of a text. If not, its vectors say little about the text."""
        ...

    def ready(self) -> bool:
        """Return whether `embed` can answer without loading anything first."""
        ...


class ModelPurpose(StrEnum):
    """Purpose of a call of a chat model. The ledger counts by purpose."""

    SUMMARY = "summary"
    FACTS = "facts"
    REDACTION = "redaction"
    GENERATION = "generation"
    AGENT = "ask_agent"
    TITLE = "title"


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """A tool that a model may call: its name, its description, and the JSON schema of its arguments."""

    name: str
    description: str
    parameters: JsonObject


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A tool call of a model. `arguments` is the model's text, which need not be JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message to a chat model.

    `calls` are the tool calls of an assistant message. `call_id` of a tool message names the call that it answers.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: tuple[ModelCall, ...] = ()
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ModelReply:
    """Answer of a model that was offered tools: calls, a text, or both."""

    text: str
    calls: tuple[ModelCall, ...]


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """Tokens of an answer, with those of retries and of the repair of a shape."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class ModelAnswer(Generic[Value]):
    """Answer of a chat model. `model` is the requested name."""

    value: Value
    model: str
    usage: ModelUsage


class ChatModel(Protocol):
    """A chat model: answers messages with text or with a value of a given shape.

    Never runs while a transaction is open. Without `model` or `max_output_tokens`, the configured values are used. An
    answer is never longer than a quarter of the window. `timeout_s` is the rest of the caller's own limit. Without it,
    calls of jobs and interactive calls have a limit each, by their purpose. The ledger records every call, also failed
    ones, with its tenant and purpose.

    Raises RateLimited `model_rate_limited` or `model_budget_exhausted` (the tenant's budget, with the time of its
    reset). Raises Unavailable `model_overloaded`, `model_unavailable`, `model_timeout` (the same request takes as long
    again: ask for less), `model_context_exceeded` (longer than the window: not retryable, ask for less),
    `model_invalid` (an answer that is cut off, empty, or still of the wrong shape after a repair), or `model_refused`
    (the model or a content filter declines: not retryable). No error repeats prompts or answers.
    """

    @property
    def model(self) -> str:
        """Return the name of the default model."""
        ...

    def window(self, tenant_id: TenantId, model: str | None = None) -> int:
        """Return the tokens that a model reads and writes in one call.

        This is the configured number, or less once the endpoint has refused a request of this tenant as too long.
        """
        ...

    async def answer(
        self,
        messages: Sequence[ChatMessage],
        *,
        shape: type[Shape],
        tenant_id: TenantId,
        purpose: ModelPurpose,
        model: str | None = None,
        max_output_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> ModelAnswer[Shape]:
        """Answer with a validated value of `shape`. The messages need not describe the shape."""
        ...

    async def text(
        self,
        messages: Sequence[ChatMessage],
        *,
        tenant_id: TenantId,
        purpose: ModelPurpose,
        model: str | None = None,
        max_output_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> ModelAnswer[str]:
        """Answer with text that is complete and not empty."""
        ...

    async def converse(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolOffer],
        tenant_id: TenantId,
        purpose: ModelPurpose,
        model: str | None = None,
        max_output_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> ModelAnswer[ModelReply]:
        """Answer with tool calls or with text. Calls are not executed here, and may name any tool."""
        ...


class Ledger(Protocol):
    """Usage of chat models by tenants, and their budgets. Implemented by a capability above the providers."""

    async def check(self, tenant_id: TenantId, purpose: ModelPurpose) -> None:
        """Raise RateLimited `model_budget_exhausted` if the tenant has used its budget of today."""
        ...

    async def record(
        self, tenant_id: TenantId, purpose: ModelPurpose, *, model: str, usage: ModelUsage, failed: bool
    ) -> None:
        """Add one call. Never fails: usage that cannot be written now is written with a later call."""
        ...


class TokenCounter(Protocol):
    """A counter of the tokens of a text, for one family of models."""

    @property
    def name(self) -> str:
        """Return the name of the encoding, as stored with every count."""
        ...

    @property
    def exact(self) -> bool:
        """Return whether the count is that of the model's own tokenizer. If not, it is never lower."""
        ...

    def count(self, text: str) -> int:
        """Count tokens. Names of special tokens in the text count as plain text."""
        ...


class DeliveryError(StrEnum):
    """Why an attempt to deliver an event failed. The text of a receiver is never kept."""

    STATUS = "status"
    REDIRECT = "redirect"
    TIMEOUT = "timeout"
    NAME = "name"
    ADDRESS = "address"
    CONNECTION = "connection"
    TLS = "tls"
    PROTOCOL = "protocol"
    INTERNAL = "internal"
    """A defect of the service, which a retry would meet again: the event is dead at once."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of one attempt. `error` is None for a status of 200 to 299.

    `retry_after_s`: the delay that the receiver asked for.
    """

    status: int | None
    error: DeliveryError | None
    retry_after_s: int | None = None


SEND_TIMEOUT_S: Final = 15.0
"""Time for one attempt to send an event, the look-up of the name included: receivers store it and answer."""
MAX_SENDS: Final = 32
"""Attempts at once in a process: most of their time they wait for receivers, which may take many seconds."""


class EventSender(Protocol):
    """Sender of events to receivers that tenants choose."""

    async def send(self, url: str, *, headers: Mapping[str, str], body: bytes) -> SendResult:
        """Send one POST. Never raises for what a receiver does, and never runs while a transaction is open."""
        ...
