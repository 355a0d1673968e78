"""What a library must be able to do to be compared, and the messages between the comparison and its worker."""

from collections.abc import Sequence
from typing import Final, Protocol

from pydantic import BaseModel

WORKER_REQUIREMENTS: Final = (
    "numpy", "onnxruntime", "opentelemetry-api", "prometheus-client", "pydantic", "python-ulid", "tokenizers",
)  # fmt: skip
"""What the worker and Turnkeep's embedder import. A test compares it with what they import."""


class Library(Protocol):
    """A memory library, open on a database of its own."""

    async def append(self, place: int, texts: Sequence[str]) -> None:
        """Store messages in one of several conversations."""
        ...

    async def recall(self, place: int, query: str) -> int:
        """Search one conversation for the 10 nearest messages and return how many were found."""
        ...


class Work(BaseModel):
    """Calls to make, `clients` at a time: appends of batches to places, or recalls of queries in the first place."""

    batches: list[list[str]] = []
    queries: list[str] = []
    clients: int = 1


class Done(BaseModel):
    """Seconds of each call, and of all of them."""

    seconds: list[float]
    elapsed_s: float
    fewest_hits: int
