"""A query, analysed and embedded. The embedding may run while the scope of the query is still being read."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

from app.core.database.transactions import FloatVector
from app.core.errors import AppError
from app.index.analyser.analyser import Analyser
from app.index.analyser.query_words import QueryText, QueryWords
from app.index.spaces.runtime import EmbeddingSpaceRuntime
from app.providers.schemas import Embedder, Vectors
from app.settings.memory import IndexSettings

_MAX_WORDS: Final = 64
"""The work grows with the entries in scope times the words of the query; questions have fewer."""


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """A prepared query.

    `vector` is None if words alone are searched: without an embedder, for a text in a script that its model does not
    read, or if it failed with the error code `degraded`.

    `runtime` is the embedding space of the vector. The search uses it even if the searched space changes meanwhile.
    """

    vector: FloatVector | None
    words: QueryText | QueryWords
    degraded: str | None
    runtime: EmbeddingSpaceRuntime | None = None

    def with_names(self, names: Sequence[str]) -> "PreparedQuery":
        """Return the same query with participants' names; without them, names count as any other word.

        Raises TypeError if its words are analysed already, because names have to be analysed with them.
        """
        if not isinstance(self.words, QueryText):
            raise TypeError("names are added to the text of a query, not to its words")
        return replace(self, words=replace(self.words, names=names))


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
    meanwhile: Callable[[QueryText], Awaitable[None]] | None,
    settings: IndexSettings,
) -> PreparedQuery:
    """Prepare a query: see `SearchIndex.prepare_query`. `meanwhile` is called while a text is embedded `ahead`."""
    max_words = _MAX_WORDS if by_words else 0
    words = QueryText(text, names, Analyser(settings.forced_language).detect(text), max_words)
    if not by_vector:
        return PreparedQuery(None, words, None, runtime)
    if runtime.embedder is None:
        return PreparedQuery(None, words, "embedder_none", runtime)
    if by_words and not runtime.embedder.reads(text):
        return PreparedQuery(None, words, None, runtime)
    try:
        if ahead is None:
            vectors = await runtime.embedder.embed([vector_text], purpose="query")
        else:
            ahead.change_to(runtime.embedder, vector_text)
            if meanwhile is not None:
                await meanwhile(words)
            vectors = await ahead.vectors()
    except AppError as error:
        if not by_words:
            raise
        return PreparedQuery(None, words, error.code, runtime)
    return PreparedQuery(vectors[0], words, None, runtime)
