"""Types of external models and receivers, and Protocols of the embedder, the ledger and the event sender.

Nothing here depends on one model. The container creates the providers and passes them to the capabilities.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, Literal, Protocol, Required, TypeAlias, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from app.core.errors import AppError, Unavailable
from app.core.ids import TenantId
from app.formats.schemas import JsonObject

Purpose = Literal["query", "document", "backlog"]
"""Purpose of an embedding: a search, a write whose caller waits, or a job."""
Vectors: TypeAlias = NDArray[np.float32]
Shape = TypeVar("Shape", bound=BaseModel)
Value = TypeVar("Value")

LimitName: TypeAlias = Literal["max_tokens", "max_completion_tokens"]
"""Names of the limit of an answer's tokens: endpoints know one or the other."""
DONE: Final = "[DONE]"
"""The data of the last event of a streamed answer."""
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

    def split(self, text: str, *, max_pieces: int | None = None) -> list[str]:
        """Split text into pieces that the model reads completely, slightly overlapping: at most the first `max_pieces`.

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


class CallOptions(TypedDict, total=False):
    """Options of a call of the chat model. Without `model` or `max_output_tokens`, the configured values are used.

    `timeout_s` is the rest of the caller's own limit. Without it, calls of jobs and interactive calls have a limit
    each, by their purpose.
    """

    tenant_id: Required[TenantId]
    purpose: Required[ModelPurpose]
    model: str | None
    max_output_tokens: int | None
    timeout_s: float | None


class Refused(Unavailable):
    """A request that is refused permanently: a wrong key, model or URL."""

    retryable = False


class InvalidAnswer(Unavailable):
    """An answer of the wrong form. The same request is not repeated at once."""


class UpstreamRefusal(Unavailable):
    """A refusal by the endpoint: its status, and its `error` if that has OpenAI's shape."""

    def __init__(self, refusal: AppError, *, status: int, error: JsonObject | None) -> None:
        super().__init__(refusal.code, refusal.detail, retry_after_s=refusal.retry_after_s)
        self.status = status
        self.error = error


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
