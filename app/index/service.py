"""One search index for everything that can be recalled, written in its owners' transactions.

`prepare` analyses and embeds outside any transaction; `write` stores what it made inside the owner's. A failing
embedder never fails the owner: the entry is found by words at once, and is marked as waiting for its vectors.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from app.core.db import Database, FloatVector, Transaction
from app.core.errors import AppError
from app.core.ids import ConversationId
from app.core.telemetry import get_logger
from app.index import store, wide
from app.index.analyser import Analyser
from app.index.schemas import Analysis, Document, Entry, Found, Prepared, Scope
from app.index.tiers import TierOptions, Tiers
from app.index.wide import Space
from app.providers.schemas import Embedder
from app.tenancy.schemas import Caller

__all__ = ["IndexOptions", "Query", "SearchIndex", "Space", "TierOptions", "Tiers", "ensure_space"]

# analysing less than this takes under a millisecond or so: not worth a thread
_INLINE_CHARACTERS = 4_000


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Settings of the index."""

    max_vectors_per_entry: int
    max_vectors_per_append: int
    index_text_bytes: int
    recall_pool: int


@dataclass(frozen=True, slots=True)
class Query:
    """A prepared query. `vector` is None when there is no embedder, or it failed with `degraded`."""

    vector: FloatVector | None
    lexemes: Sequence[str]
    degraded: str | None


class SearchIndex:
    """Writes and searches index entries in one embedding space."""

    def __init__(self, embedder: Embedder | None, *, tiers: Tiers, options: IndexOptions) -> None:
        self._embedder = embedder
        self._tiers = tiers
        self._space_id = tiers.space.id
        self._options = options
        self._log = get_logger()

    @property
    def space(self) -> str | None:
        """The embedding space searched, as `provider/model/dimensions`; None without an embedder."""
        if self._embedder is None:
            return None
        space = self._embedder.space
        return f"{space.provider}/{space.model}/{space.dimensions}"

    async def prepare(self, documents: Sequence[Document]) -> list[Prepared]:
        """Analyse and embed documents, in order; a failing embedder leaves them waiting for their vectors."""
        if sum(len(document.text) for document in documents) <= _INLINE_CHARACTERS:
            analyses, pieces = self._analyse(documents)
        else:
            analyses, pieces = await asyncio.to_thread(self._analyse, documents)
        wanted = [piece for some in pieces for piece in some]
        vectors: Sequence[FloatVector] = ()
        if self._embedder is not None and wanted:
            vectors = await self._embed(self._embedder, wanted)
        prepared: list[Prepared] = []
        start = 0
        for document, analysis, some in zip(documents, analyses, pieces, strict=True):
            own = vectors[start : start + len(some)] if vectors else ()
            start += len(some)
            due = self._embedder is not None and not own and bool(document.text.strip())
            prepared.append(Prepared(analysis, own, vectors_due=due))
        return prepared

    async def _embed(self, embedder: Embedder, texts: Sequence[str]) -> Sequence[FloatVector]:
        """The vectors of all texts, or none when the embedder fails: the entries are marked as waiting."""
        vectors: list[FloatVector] = []
        try:
            for start in range(0, len(texts), embedder.max_batch):
                vectors.extend(await embedder.embed(texts[start : start + embedder.max_batch], purpose="document"))
        except AppError as error:
            self._log.warning("embedder.failed", code=error.code, count=len(texts))
            return ()
        return vectors

    def _analyse(self, documents: Sequence[Document]) -> tuple[list[Analysis], list[list[str]]]:
        analyser = Analyser()
        analyses = [
            analyser.document(
                document.text,
                actor=document.actor,
                occurred_at=document.occurred_at,
                max_bytes=self._options.index_text_bytes,
            )
            for document in documents
        ]
        left = self._options.max_vectors_per_append
        pieces: list[list[str]] = []
        for document in documents:
            some = self._split(document.text)
            # all pieces of a text or none: half a text would never be known to be half
            some = some if len(some) <= left else []
            left -= len(some)
            pieces.append(some)
        return analyses, pieces

    def _split(self, text: str) -> list[str]:
        if self._embedder is None or not text.strip():
            return []
        return self._embedder.split(text, most=self._options.max_vectors_per_entry)

    async def write(self, caller: Caller, tx: Transaction, *, entries: Sequence[Entry]) -> None:
        """Store entries and their vectors, in the transaction of what they stand for."""
        if entries:
            await store.insert_entries(tx, caller.tenant_id, entries)
            await store.insert_vectors(tx, caller.tenant_id, self._space_id, entries)

    async def erase(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> dict[str, int]:
        """Delete all of a conversation from the index; says how many rows of each table."""
        return await store.delete_of_conversation(tx, caller.tenant_id, conversation_id)

    async def prepare_query(self, text: str, *, bare_text: str, by_words: bool, by_vector: bool) -> Query:
        """Analyse `text` and embed `bare_text` (the same without names); outside any transaction."""
        lexemes = Analyser().query(text) if by_words else []
        if not by_vector:
            return Query(None, lexemes, None)
        if self._embedder is None:
            return Query(None, lexemes, "embedder_none")
        try:
            vectors = await self._embedder.embed([bare_text], purpose="query")
        except AppError as error:
            return Query(None, lexemes, error.code)
        return Query(vectors[0], lexemes, None)

    async def search(self, caller: Caller, tx: Transaction, *, scope: Scope, query: Query, at_least: int) -> Found:
        """The candidates for a query: at least `at_least` by each way of searching, where the scope has as many.

        Exact where the scope has few entries; by the indexes where it is wide; exactly again where these gave too few.
        """
        pool = max(self._options.recall_pool, at_least)
        wide_tenant = self._tiers.is_wide(holding := await self._tiers.look(tx, caller.tenant_id))
        if wide_tenant:
            found = await self._search_wide(caller, tx, scope, query, pool, by_vector=holding.tiered_and_indexed)
            if found is not None:
                return found
        return await store.search(
            tx,
            caller.tenant_id,
            scope,
            space_id=self._space_id,
            vector=query.vector,
            lexemes=query.lexemes,
            pool=pool,
            # in a wide tenant this scope is a small part of what the text index would find
            by_index=scope.conversation_ids is None and not wide_tenant,
        )

    async def _search_wide(
        self, caller: Caller, tx: Transaction, scope: Scope, query: Query, pool: int, *, by_vector: bool
    ) -> Found | None:
        """By the indexes; None where the scope is narrow, or they do not give enough."""
        if query.vector is not None and not by_vector:
            return None
        options = self._tiers.options
        is_wide, rare = await wide.measure(
            tx,
            caller.tenant_id,
            scope,
            query.lexemes,
            entries=options.exact_scope_entries,
            matches=options.text_candidates,
        )
        if not is_wide:
            return None
        return await wide.search_wide(
            tx,
            caller.tenant_id,
            scope,
            space=self._tiers.space,
            vector=query.vector,
            lexemes=query.lexemes,
            rare=rare,
            pool=pool,
        )


async def ensure_space(ops: Database, embedder: Embedder | None) -> Space:
    """The embedder's space, made at first use; of id 0 without an embedder."""
    if embedder is None:
        return Space(0, 0)
    space = embedder.space
    async with ops.across_tenants() as tx:
        id_ = await store.ensure_space(tx, provider=space.provider, model=space.model, dimensions=space.dimensions)
    return Space(id_, space.dimensions)
