"""The vocabulary of the outside model world: what an embedder and a token counter promise, whoever provides them.

Nothing here knows a model. A provider is made by the container and handed to the capabilities as one of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Purpose = Literal["document", "query"]
Vectors: TypeAlias = NDArray[np.float32]


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
        """Embed texts; queries go ahead of documents."""
        ...

    def split(self, text: str, *, most: int | None = None) -> list[str]:
        """Cut text into pieces the model reads whole, slightly overlapping, at most `most` of them from the start.

        Never empty: a short text is its own single piece, unchanged.
        """
        ...

    def ready(self) -> bool:
        """Whether `embed` would be answered without loading anything first."""
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
