"""What the embedder needs to know of a model that runs in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from app.providers.schemas import EmbeddingSpaceName, Vectors


class LocalModel(Protocol):
    """A loaded model: one text in, one unit vector out. Blocking, safe to share between threads."""

    def embed_one(self, text: str, *, return_memory: bool = False) -> Vectors:
        """Return the vector of a text, of shape (dimensions,). `return_memory`: keep no working memory afterwards."""
        ...

    def split(self, text: str, *, most: int | None) -> list[str]:
        """Split text into pieces that the model reads completely: at most the first `most`."""
        ...


@dataclass(frozen=True, slots=True)
class LocalModelKind:
    """A model that can be loaded: its embedding space, the function that loads it, and the bytes of a short text.

    `load` raises Unavailable if the files of the model are missing or damaged. Text of up to `short_text_bytes` is one
    piece, so it is not given to the model to split.
    """

    space: EmbeddingSpaceName
    load: Callable[[], LocalModel]
    short_text_bytes: int
