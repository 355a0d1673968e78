"""The embedding of a query while its scope is still being read."""

import asyncio
from types import TracebackType
from typing import Self

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
