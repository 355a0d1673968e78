"""Preparation of a query. Its embedding may run while the scope of the query is still being read."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import numpy as np

from app.core.database.transactions import FloatVector
from app.core.errors import AppError
from app.index.analyser.analyser import Analyser
from app.index.analyser.query_words import PreparedQuery
from app.index.spaces.runtime import EmbeddingSpaceRuntime
from app.providers.schemas import Embedder, Vectors
from app.settings.memory import IndexSettings


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


async def prepare_query(
    text: str,
    *,
    vector_text: str,
    by_words: bool,
    by_vector: bool,
    names: Sequence[str],
    runtime: EmbeddingSpaceRuntime,
    ahead: VectorAhead | None,
    meanwhile: Callable[[PreparedQuery], Awaitable[None]] | None,
    settings: IndexSettings,
) -> PreparedQuery:
    """Prepare a query: see `SearchIndex.prepare_query`. `meanwhile` is called while a text is embedded `ahead`."""
    # the work grows with the entries in scope times the words of the query
    max_words = settings.max_query_lexemes if by_words else 0
    language = Analyser(settings.forced_language).detect(text)
    query = PreparedQuery(text, names, language, max_words, space_id=runtime.space.id)
    if not by_vector:
        return query
    if runtime.embedder is None:
        return replace(query, degraded="embedder_none")
    if by_words and not runtime.embedder.reads(text):
        return query
    try:
        if ahead is None:
            vectors = await runtime.embedder.embed([vector_text], purpose="query")
        else:
            ahead.change_to(runtime.embedder, vector_text)
            if meanwhile is not None:
                await meanwhile(query)
            vectors = await ahead.vectors()
    except AppError as error:
        if not by_words:
            raise
        return replace(query, degraded=error.code)
    return replace(query, vector=_normalise(vectors[0]))


def _normalise(vector: FloatVector) -> FloatVector:
    """Return a vector with the length 1, unless it has no length."""
    length = np.sqrt(np.vdot(vector, vector))  # half of the time of `linalg.norm`
    return (vector / length if length > 0 else vector).astype(np.float32, copy=False)
