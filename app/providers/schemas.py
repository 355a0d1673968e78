"""The vocabulary of the outside model world: what each kind of model promises, whoever provides it.

Nothing here knows a model. A provider is made by the container and handed to the capabilities as one of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from app.core.ids import TenantId
from app.formats.schemas import JsonObject

Purpose = Literal["query", "document", "backlog"]
"""What a text is embedded for: a search, a write whose caller waits, or a job."""
Vectors: TypeAlias = NDArray[np.float32]
Shape = TypeVar("Shape", bound=BaseModel)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class EmbeddingSpaceName:
    """Names a space of vectors. Vectors of two names are never compared, whatever their dimensions."""

    provider: str
    model: str
    dimensions: int


class Embedder(Protocol):
    """Turns text into unit vectors.

    `embed` takes at most `max_batch` texts and returns float32 of shape (len(texts), dimensions), L2-normalised, in
    the order given; no texts give shape (0, dimensions). The same text gives the same vector whatever else is asked
    for at the same time. It raises Unavailable when it cannot answer, and never runs while a transaction is open.
    """

    @property
    def space(self) -> EmbeddingSpaceName:
        """The space of every vector this makes."""
        ...

    @property
    def max_batch(self) -> int:
        """The most texts one call of `embed` takes."""
        ...

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Vectors:
        """Embed texts; queries go ahead of documents, and these ahead of the backlog."""
        ...

    def split(self, text: str, *, most: int | None = None) -> list[str]:
        """Cut text into pieces the model reads whole, slightly overlapping, at most `most` of them from the start.

        Never empty: a short text is its own single piece, unchanged.
        """
        ...

    def ready(self) -> bool:
        """Whether `embed` would be answered without loading anything first."""
        ...


class ModelPurpose(StrEnum):
    """What a chat model is asked for: a ledger counts by it."""

    SUMMARY = "summary"
    FACTS = "facts"
    REDACTION = "redaction"
    GENERATION = "generation"
    AGENT = "ask_agent"
    TITLE = "title"


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """A tool that a model may call: what it is called, what it is for, and the JSON schema of its arguments."""

    name: str
    description: str
    parameters: JsonObject


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A model's wish to call a tool. `arguments` is the text that it wrote, which need not be JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message to a chat model.

    Of the assistant, `calls` are those that it made; a tool's message says by `call_id` which of them it answers.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: tuple[ModelCall, ...] = ()
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """What a model said with tools at hand: calls, or a text, or both; never neither."""

    text: str
    calls: tuple[ModelCall, ...]


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """Tokens that an answer took, with all that was asked for on the way to it: retries, and the repair of a shape."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class ModelAnswer(Generic[Value]):
    """What a chat model said. `model` is the name it was asked by."""

    value: Value
    model: str
    usage: ModelUsage


class ChatModel(Protocol):
    """Answers messages, as text or as a value of a given shape.

    Never runs while a transaction is open. Without `model` the configured one is asked, without `max_output_tokens`
    for as many as are configured. Every call, failed ones too, is in the ledger under its tenant and purpose.

    Raises RateLimited `model_rate_limited` or `model_budget_exhausted` (the tenant's own, with the time when it goes
    on), Unavailable `model_overloaded`, `model_unavailable`, `model_invalid` (an answer that is cut off, empty or not
    of the shape, even when told so), or `model_refused` (it, or a filter before it, declines: not retryable). None of
    them repeats what was asked or answered.
    """

    @property
    def model(self) -> str:
        """The name of the model that is asked where a call names none."""
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
    ) -> ModelAnswer[Shape]:
        """Answer with a value of `shape`, validated. The messages need not describe the shape."""
        ...

    async def text(
        self,
        messages: Sequence[ChatMessage],
        *,
        tenant_id: TenantId,
        purpose: ModelPurpose,
        model: str | None = None,
        max_output_tokens: int | None = None,
    ) -> ModelAnswer[str]:
        """Answer with text: not empty, and whole."""
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
    ) -> ModelAnswer[Said]:
        """Answer with calls of these tools, or with text; nothing is called here. A call may name any tool."""
        ...


class Ledger(Protocol):
    """What tenants spend on chat models, and whether they may go on. Kept by a capability above the providers."""

    async def check(self, tenant_id: TenantId, purpose: ModelPurpose) -> None:
        """Raise RateLimited `model_budget_exhausted` when the tenant has spent what it may today."""
        ...

    async def record(
        self, tenant_id: TenantId, purpose: ModelPurpose, *, model: str, usage: ModelUsage, failed: bool
    ) -> None:
        """Add one call. Never fails: what cannot be written now is written with a later one."""
        ...


class TokenCounter(Protocol):
    """Counts the tokens of a text the way one family of models does."""

    @property
    def name(self) -> str:
        """Name of the encoding, as stored beside every count."""
        ...

    @property
    def exact(self) -> bool:
        """Whether the count is that of the model's own tokenizer; if not, it is never under it."""
        ...

    def count(self, text: str) -> int:
        """Count tokens; what looks like a special token in the text counts as the plain text it is."""
        ...
