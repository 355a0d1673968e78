"""The embedding of a query, also while its scope is still being read."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import numpy as np

from app.core.database.transactions import FloatVector
from app.providers.schemas import Embedder, Vectors


class VectorAhead:
    """The running embedding of a query's text. Leaving the block cancels it, unless it has ended."""

    def __init__(self, embedder: Embedder, text: str) -> None:
        self._embedder: Embedder = embedder
        self._text: str = text
        self._task = asyncio.create_task(embedder.embed([text], purpose="query"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self._cancel()

    def _cancel(self) -> None:
        if not self._task.cancel() and not self._task.cancelled():
            self._task.exception()  # asyncio logs an error that was never read, with its message

    def change_to(self, embedder: Embedder, text: str) -> None:
        """Embed another text instead, unless it is this one."""
        if embedder is not self._embedder or text != self._text:
            self._cancel()
            self._embedder = embedder
            self._text = text
            self._task = asyncio.create_task(embedder.embed([text], purpose="query"))

    async def vectors(self) -> Vectors:
        """Return the vector of the text as one row. Raises the embedder's errors."""
        return await self._task


async def embed_query(
    embedder: Embedder, text: str, *, ahead: VectorAhead | None, meanwhile: Callable[[], Awaitable[None]] | None
) -> FloatVector:
    """Return the vector of a query's text with the length 1, unless it has no length. Raises the embedder's errors.

    `ahead`: the running embedding of a text that may be another one; `meanwhile` is called during it.
    """
    if ahead is None:
        vectors = await embedder.embed([text], purpose="query")
    else:
        ahead.change_to(embedder, text)
        if meanwhile is not None:
            await meanwhile()
        vectors = await ahead.vectors()
    vector: FloatVector = vectors[0]
    length = np.sqrt(np.vdot(vector, vector))  # half of the time of `linalg.norm`
    return (vector / length if length > 0 else vector).astype(np.float32, copy=False)
