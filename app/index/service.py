"""The search index of turns, summaries, facts and memories, written in their owners' transactions.

`prepare` analyses and embeds outside any transaction; `write` stores the result inside the owner's. An embedder failure
never fails the owner: the entry is found by words at once and marked as waiting for vectors, and a job enqueued in the
same transaction makes them (`vector_backfill`). Another job resolves relative dates.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from uuid import UUID

from app.core.bus.messages import Message
from app.core.database.reader import DatabaseReader
from app.core.database.transactions import Database, FloatVector, Transaction
from app.core.errors import AppError, Conflict
from app.core.ids import ConversationId, TenantId
from app.core.jobs import JobQueue, NewJob
from app.core.limits import TenantLimiter
from app.core.telemetry import get_logger
from app.core.threads import map_in_threads
from app.index.analyser.analyser import Analyser
from app.index.analyser.query_words import MAX_QUERY_WORDS, PreparedQuery
from app.index.analyser.terms import fold_short, pack_lexemes
from app.index.backfill import store as backfill_store
from app.index.backfill.vector_backfill import VectorBackfill, VectorMaker
from app.index.pieces import TextPieces
from app.index.schemas import (
    DATES_JOB,
    VECTORS_JOB,
    DatedEntry,
    EntryKind,
    IndexDocument,
    IndexEntry,
    IndexPosition,
    Mode,
    PreparedEntries,
    SearchResult,
    SearchScope,
    UndatedEntry,
)
from app.index.search.removals import REMOVALS, Removal, delete_old_removals, removal_messages
from app.index.search.resident import ResidentIndex
from app.index.search.searcher import LoadedScope, RankingT, Searcher
from app.index.search.segment_search import EstimateMatch
from app.index.spaces.runtime import ChosenSpace, EmbeddingSpaceRegistry, EmbeddingSpaceRuntime, read_chosen_space
from app.index.vector_ahead import VectorAhead, embed_query
from app.index.write import removal_store, store
from app.index.write.batch_analyser import MAX_TEXT_BYTES, MAX_VECTORS_PER_ENTRY, BatchAnalyser, text_length
from app.index.write.entry_languages import filter_dated, inherit_languages, resolve_entry_dates
from app.index.write.key_store import find_keys, find_keys_of_tenants
from app.providers.schemas import IN_PROCESS, Embedder
from app.settings.memory import IndexSettings
from app.tenancy.schemas import Caller
from app.tenancy.service import Tenancy

__all__ = [
    "ChosenSpace",
    "EmbeddingSpaceRuntime",
    "LoadedScope",
    "PreparedQuery",
    "SearchIndex",
    "TextPieces",
    "VectorAhead",
    "VectorBackfill",
    "VectorMaker",
    "fold_short",
    "read_chosen_space",
]

_INLINE_CHARACTERS = 4_000  # analysing less text takes about a millisecond: not worth a thread
_FEW_VECTORS = 4  # as of a typical user message: made at once even under load
# bounds the vectors made while callers wait, as a number of appends of the largest allowed size
_INLINE_APPENDS = 4
_ENTRIES_PER_JOB = 50  # a short job does not delay a shutdown, and a retry repeats little work
_MIN_POOL = 100  # of each way of search in a large scope: hits by both are mostly among the first hundred of one
_DATES_FACTOR = 20  # resolving the dates of a text takes as many times as long as hashing and counting it


class SearchIndex:
    """Search index: writes and searches entries, in the embedding space that the installation searches."""

    def __init__(
        self,
        spaces: EmbeddingSpaceRegistry,
        ops: Database,
        reader: DatabaseReader,
        *,
        jobs: JobQueue,
        settings: IndexSettings,
        publish: Callable[[Message], None],
        tenancy: Tenancy,
    ) -> None:
        self.spaces = spaces
        self._quotas = tenancy.quotas
        self._ops = ops
        self._jobs = jobs
        self._publish = publish
        self.resident = ResidentIndex(max_bytes=settings.resident_index_mb * 2**20, reader=reader)
        self._searcher = Searcher(self.resident)
        self.pieces = TextPieces(spaces)
        self._settings = settings
        inline_vectors = _INLINE_APPENDS * settings.max_vectors_per_append
        self._inline = TenantLimiter(inline_vectors // 2, total=inline_vectors)
        self._log = get_logger()

    @property
    def backfill(self) -> VectorBackfill:
        """Return the backfill of the searched space."""
        return self.spaces.current.backfill

    def runtime(self, space_id: int | None) -> EmbeddingSpaceRuntime:
        """Return a space that this process can embed for; None is the searched one.

        Raises Conflict `space_not_configured` for any other.
        """
        runtime = self.spaces.current if space_id is None else self.spaces.runtimes.get(space_id)
        if runtime is None:
            raise Conflict("space_not_configured", "This process has no settings by which to embed for this space.")
        return runtime

    async def prepare(
        self, caller: Caller, documents: Sequence[IndexDocument], *, deferred: bool = False
    ) -> list[PreparedEntries]:
        """Analyse and embed documents, in order.

        If vectors are deferred, or the embedder fails or is overloaded while the caller waits, they are made later.
        """
        runtime = self.spaces.current
        analyser = BatchAnalyser(self._settings, None if deferred else runtime.embedder)
        analysed = await map_in_threads(analyser.analyse_next, documents, size=text_length, inline=_INLINE_CHARACTERS)
        wanted = [piece for analysed_text in analysed for piece in analysed_text.pieces]
        vectors = await self._embed_now(caller, runtime.embedder, wanted)
        prepared: list[PreparedEntries] = []
        start = 0
        for document, analysed_text in zip(documents, analysed, strict=True):
            entry_vectors = vectors[start : start + len(analysed_text.pieces)]
            start += len(analysed_text.pieces)
            due = runtime.embedder is not None and not entry_vectors and bool(document.text.strip())
            prepared.append(
                PreparedEntries(
                    analysed_text.analysis,
                    entry_vectors,
                    vectors_due=due,
                    deferred=deferred,
                    dates_due=analysed_text.dates_due,
                    space_id=runtime.space.id,
                    source=analysed_text.source,
                )
            )
        return prepared

    async def _embed_now(self, caller: Caller, embedder: Embedder | None, texts: Sequence[str]) -> list[FloatVector]:
        """Embed all texts while the caller waits. Returns nothing if the embedder fails or is busy."""
        if embedder is None or not texts:
            return []
        count = len(texts)
        if count <= _FEW_VECTORS:
            self._inline.add(caller.tenant_id, count)
        elif not self._inline.try_acquire(caller.tenant_id, count):
            return []
        try:
            return await self._embed_all(embedder, texts)
        except AppError as error:
            self._log.warning("embedder.failed", code=error.code, count=count)
            return []
        finally:
            self._inline.release(caller.tenant_id, count)

    async def prepare_now(self, document: IndexDocument) -> PreparedEntries:
        """Analyse and embed one document with all its vectors. Raises the embedder's errors, so that nothing is stored.

        Without an embedder the document is found by words.
        """
        runtime = self.spaces.current
        analyser = BatchAnalyser(self._settings, runtime.embedder, max_vectors=MAX_VECTORS_PER_ENTRY)
        [text] = await map_in_threads(analyser.analyse_next, [document], size=text_length, inline=_INLINE_CHARACTERS)
        vectors = await self._embed_all(runtime.embedder, text.pieces) if runtime.embedder is not None else ()
        return PreparedEntries(text.analysis, vectors, vectors_due=False, space_id=runtime.space.id)

    async def _embed_all(self, embedder: Embedder, texts: Sequence[str]) -> list[FloatVector]:
        vectors: list[FloatVector] = []
        for start in range(0, len(texts), embedder.max_batch):
            vectors.extend(await embedder.embed(texts[start : start + embedder.max_batch], purpose="document"))
        return vectors

    def prepare_words(self, documents: Sequence[IndexDocument]) -> list[PreparedEntries]:
        """Analyse a few short documents without vectors, for entries that are made inside a transaction."""
        runtime, analyser = self.spaces.current, BatchAnalyser(self._settings, None)
        due, space_id = runtime.embedder is not None, runtime.space.id
        analyses = [analyser.analyse_next(document).analysis for document in documents]
        return [PreparedEntries(analysis, (), vectors_due=due, space_id=space_id) for analysis in analyses]

    def inherit_languages(
        self, entries: Sequence[IndexEntry], *, before: str | None
    ) -> tuple[list[IndexEntry], str | None]:
        """Give entries of turns that show no language that of the turn before; return them with the last language.

        `before` is the language of the turn before the first one. Not blocking: such texts are short.
        """
        return inherit_languages(entries, before, max_bytes=MAX_TEXT_BYTES)

    async def write(
        self, caller: Caller, tx: Transaction, *, entries: Sequence[IndexEntry], also: Sequence[NewJob] = ()
    ) -> None:
        """Store entries of one kind with their vectors in the owner's transaction, and enqueue the remaining work.

        `also` are the owner's own jobs, including those for vectors of entries other than turns. Vectors in other
        maintained spaces are made later. Vectors made so far belong to the space that was searched at that time.
        """
        keys: Mapping[UUID, UUID] = {}
        if entries:
            keys = await store.insert_entries(tx, caller.tenant_id, entries)
            vectors: dict[int, dict[UUID, Sequence[FloatVector]]] = {}
            for entry in entries:
                vectors.setdefault(entry.prepared.space_id, {})[keys[entry.source_id]] = entry.prepared.vectors
            for space_id, vectors_of_space in vectors.items():
                await store.insert_vectors(tx, caller.tenant_id, space_id, vectors_of_space)
            self._quotas.count(tx, caller.tenant_id, vectors=sum(len(entry.prepared.vectors) for entry in entries))
        due = [entry for entry in entries if entry.prepared.vectors_due and entry.kind is EntryKind.TURN]
        jobs = [
            *_jobs(VECTORS_JOB, [entry.source_id for entry in due if not entry.prepared.deferred]),
            *_jobs(VECTORS_JOB, [entry.source_id for entry in due if entry.prepared.deferred], priority=-1),
            *_jobs(DATES_JOB, [entry.source_id for entry in entries if entry.prepared.dates_due]),
            *self._jobs_for_other_spaces(entries, keys),
            *also,
        ]
        await self._jobs.enqueue(tx, caller.tenant_id, jobs)

    def _jobs_for_other_spaces(self, entries: Sequence[IndexEntry], keys: Mapping[UUID, UUID]) -> list[NewJob]:
        """Return the jobs that make vectors of new entries in other maintained spaces; usually none."""
        wanted: dict[str, list[UUID]] = {}
        for entry in entries:
            for runtime in self.spaces.others(entry.prepared.space_id):
                wanted.setdefault(runtime.backfill.new_entries_kind, []).append(keys[entry.source_id])
        return [job for kind, entry_ids in wanted.items() for job in _jobs(kind, entry_ids, priority=-1)]

    async def _jobs_for_missing_vectors(
        self, caller: Caller, tx: Transaction, entry_ids: Sequence[UUID]
    ) -> list[NewJob]:
        """Return the jobs that make missing vectors of stored entries in the maintained spaces.

        With one space there is nothing to do: its missing vectors have jobs already, or `plan` finds them.
        """
        runtimes = {runtime.space.id: runtime for runtime in self.spaces.wanted()}
        if not entry_ids or runtimes.keys() <= {self.spaces.current.space.id}:
            return []
        wanted: dict[str, list[UUID]] = {}
        for space_id, entry_id in await backfill_store.filter_lacking(tx, caller.tenant_id, list(runtimes), entry_ids):
            wanted.setdefault(runtimes[space_id].backfill.new_entries_kind, []).append(entry_id)
        return [job for kind, ids in wanted.items() for job in _jobs(kind, ids, priority=-1)]

    async def resolve_dates(self, documents: Mapping[UUID, IndexDocument]) -> list[DatedEntry]:
        """Resolve the relative dates in documents of known languages, by turn; those without dates are left out."""
        items = list(documents.items())
        dated = await map_in_threads(
            resolve_entry_dates, items, size=lambda item: _DATES_FACTOR * len(item[1].text), inline=0
        )
        return [entry for entry in dated if entry is not None]

    async def read_languages(self, caller: Caller, tx: Transaction, *, turn_ids: Sequence[UUID]) -> dict[UUID, str]:
        """Return the languages in which turns were analysed."""
        return await store.read_languages(tx, caller.tenant_id, turn_ids)

    async def find_undated(self, caller: Caller, tx: Transaction, *, dated: Sequence[DatedEntry]) -> list[UndatedEntry]:
        """Return the entries of turns that have no dates yet."""
        return await store.find_undated(tx, caller.tenant_id, dated)

    async def pack_words(self, entries: Sequence[UndatedEntry]) -> list[UndatedEntry]:
        """Return the entries with packed words. In threads, so in no transaction."""
        terms = await map_in_threads(pack_lexemes, [entry.lexemes for entry in entries], size=len)
        return [replace(entry, terms=packed) for entry, packed in zip(entries, terms, strict=True)]

    async def write_dates(self, caller: Caller, tx: Transaction, *, entries: Sequence[UndatedEntry]) -> None:
        """Add resolved dates to entries whose turns the caller has locked. Entries that have changed are left out."""
        await store.add_dates(tx, caller.tenant_id, entries)

    async def retire(self, caller: Caller, tx: Transaction, *, kind: EntryKind, source_ids: Sequence[UUID]) -> None:
        """Exclude the entries of superseded sources from search."""
        keys = await find_keys(tx, caller.tenant_id, kind, source_ids)
        await store.retire_entries(tx, caller.tenant_id, list(keys.values()))

    async def set_expiry(self, caller: Caller, tx: Transaction, *, memory_id: UUID, until: datetime | None) -> None:
        """Change when the entry of a memory expires; None for never."""
        await store.set_expiry(tx, caller.tenant_id, memory_id, expires_at=until)

    async def set_owner(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId, owner: str) -> None:
        """Set the owner of the entries of a conversation that have none. The conversation and its facts are locked."""
        await store.set_owner(tx, caller.tenant_id, conversation_id, owner)

    async def restore(self, caller: Caller, tx: Transaction, *, kind: EntryKind, source_ids: Sequence[UUID]) -> None:
        """Include the retired entries of sources in search again."""
        entry_ids = list((await find_keys(tx, caller.tenant_id, kind, source_ids)).values())
        await store.restore_entries(tx, caller.tenant_id, entry_ids)
        # a backfill that ran meanwhile skipped retired entries
        await self._jobs.enqueue(tx, caller.tenant_id, await self._jobs_for_missing_vectors(caller, tx, entry_ids))

    async def change_visibility(
        self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId, hide: bool, limit: int
    ) -> bool:
        """Exclude entries of a locked conversation from search, or include those again that were excluded so.

        Return whether more than `limit` have to change. Jobs that skipped included entries are enqueued again.
        """
        if hide:
            return await store.hide_entries(tx, caller.tenant_id, conversation_id, limit=limit) == limit
        shown = await store.show_entries(tx, caller.tenant_id, conversation_id, limit=limit)
        jobs = [
            *_jobs(VECTORS_JOB, [entry.source_id for entry in shown if entry.is_turn and entry.vectors_due]),
            *_jobs(DATES_JOB, [entry.source_id for entry in shown if entry.is_turn and entry.undated], priority=-1),
            *await self._jobs_for_missing_vectors(caller, tx, [entry.entry_id for entry in shown]),
        ]
        await self._jobs.enqueue(tx, caller.tenant_id, jobs)
        return len(shown) == limit

    async def copy(
        self,
        caller: Caller,
        tx: Transaction,
        *,
        kind: EntryKind,
        conversation_id: ConversationId,
        owner: str | None,
        pairs: Sequence[tuple[UUID, UUID, int | None]],
        texts: Mapping[UUID, str],
    ) -> None:
        """Copy the entries and vectors of turns or summaries into another conversation.

        `pairs` are (source, its copy with a new id, the position of the copy). The originals are locked. Their
        unfinished jobs are enqueued for the copies; `texts` are those of the copies.
        """
        keys = await find_keys(tx, caller.tenant_id, kind, [pair[0] for pair in pairs])
        pairs = [(keys[source_id], copy_id, position) for source_id, copy_id, position in pairs if source_id in keys]
        copied = await store.copy_entries(tx, caller.tenant_id, conversation_id, owner, pairs)
        await store.copy_vectors(tx, caller.tenant_id, pairs)
        undated = [entry for entry in copied if entry.undated]
        if sum(len(texts[entry.entry_id]) for entry in undated) <= _INLINE_CHARACTERS:
            undated_ids = filter_dated(undated, texts)
        else:
            undated_ids = await asyncio.to_thread(filter_dated, undated, texts)
        jobs = [
            *_jobs(VECTORS_JOB, [entry.entry_id for entry in copied if entry.vectors_due]),
            *_jobs(DATES_JOB, undated_ids),
            *await self._jobs_for_missing_vectors(caller, tx, [entry.entry_id for entry in copied]),
        ]
        await self._jobs.enqueue(tx, caller.tenant_id, jobs)

    async def place_of(self, caller: Caller, tx: Transaction, *, turn_id: UUID) -> IndexPosition | None:
        """Return the position and session of the entry of a turn, or None."""
        return await store.read_place(tx, caller.tenant_id, turn_id)

    async def session_around(
        self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId, position: int
    ) -> int | None:
        """Return the session of the nearest entry before a position, or of the first after it; None without entries."""
        return await store.read_session_around(tx, caller.tenant_id, conversation_id, position)

    async def make_room(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId, at: int) -> None:
        """Move the entries of a conversation from a position on by one, for a turn that is stored there."""
        await store.move_entries(tx, caller.tenant_id, conversation_id, at)

    async def erase(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> dict[str, int]:
        """Delete all entries of a conversation; return the row counts by table."""
        tx.after_commit.append(lambda: self._announce(Removal(caller.tenant_id, None, conversation_id)))
        return await removal_store.delete_entries(tx, caller.tenant_id, conversation_id)

    def _announce(self, removed: Removal) -> None:
        for message in removal_messages(removed):
            self._publish(message)

    async def erase_entries(
        self, caller: Caller, tx: Transaction, *, kind: EntryKind, source_ids: Sequence[UUID]
    ) -> dict[str, int]:
        """Delete the entries of sources that the caller has locked; return the row counts by table."""
        return await self._delete(caller, tx, list((await find_keys(tx, caller.tenant_id, kind, source_ids)).values()))

    async def erase_some(
        self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID], limit: int
    ) -> dict[str, int]:
        """Delete up to `limit` entries of conversations that are being deleted; return the row counts by table."""
        entry_ids = await removal_store.list_entries(tx, caller.tenant_id, conversation_ids, limit=limit)
        return await self._delete(caller, tx, entry_ids)

    async def _delete(self, caller: Caller, tx: Transaction, entry_ids: Sequence[UUID]) -> dict[str, int]:
        tx.after_commit.append(lambda: self._announce(Removal(caller.tenant_id, entry_ids)))
        return await removal_store.delete_by_id(tx, caller.tenant_id, entry_ids)

    async def remove(self, tx: Transaction, *, memories: Sequence[tuple[TenantId, UUID]]) -> dict[str, int]:
        """Delete the entries of memories, each given with its tenant (ops role); return the counts by table."""
        entries = await find_keys_of_tenants(tx, EntryKind.MEMORY, memories)
        for tenant_id, entry_id in entries:
            tx.after_commit.append(partial(self._announce, Removal(tenant_id, [entry_id])))
        return await removal_store.delete_without_conversation(tx, entries)

    def embed_ahead(self, text: str) -> AbstractContextManager[VectorAhead | None]:
        """Begin to embed the text of a query, which may turn out to be another one. None if a call would cost money."""
        embedder = self.spaces.current.embedder
        if embedder is None or embedder.space.provider != IN_PROCESS or not embedder.reads(text):
            return nullcontext()
        return VectorAhead(embedder, text)

    async def prepare_query(
        self,
        text: str,
        mode: Mode,
        *,
        vector_text: str,
        names: Sequence[str] = (),
        runtime: EmbeddingSpaceRuntime | None = None,
        ahead: VectorAhead | None = None,
        meanwhile: Callable[[PreparedQuery], Awaitable[None]] | None = None,
    ) -> PreparedQuery:
        """Analyse `text`, and embed `vector_text` (`text` without participants' `names`), outside any transaction.

        `runtime` is another space than the searched one, `ahead` a running embedding: `meanwhile` is called during it,
        with the query that has no vector yet. A text in a script that the model does not read is searched by words
        alone. Raises the embedder's errors only if words are not searched.
        """
        runtime = runtime or self.spaces.current
        language = Analyser(self._settings.forced_language).detect(text)
        words = 0 if mode is Mode.VECTOR else MAX_QUERY_WORDS
        query = PreparedQuery(text, names, language, words, space_id=runtime.space.id)
        if mode is Mode.TEXT or runtime.embedder is None:
            return query if mode is Mode.TEXT else replace(query, degraded="embedder_none")
        if query.by_words and not runtime.embedder.reads(text):
            return query
        try:
            during = None if meanwhile is None else partial(meanwhile, query)
            vector = await embed_query(runtime.embedder, vector_text, ahead=ahead, meanwhile=during)
        except AppError as error:
            if not query.by_words:
                raise
            return replace(query, degraded=error.code)
        return replace(query, vector=vector)

    async def load(
        self, caller: Caller, tx: Transaction, *, scope: SearchScope, runtime: EmbeddingSpaceRuntime | None = None
    ) -> LoadedScope | None:
        """Bring the entries in scope into memory for a search that follows soon; None if they are not searched there.

        What is committed after this is not found by that search. `runtime` is another space than the searched one.
        """
        return await self._searcher.load(tx, caller.tenant_id, (runtime or self.spaces.current).ann, scope)

    async def match_words(self, loaded: LoadedScope, query: PreparedQuery) -> None:
        """Match the words of a query in a loaded scope, before its vector is known: for the search that follows."""
        await self._searcher.match_words(loaded, query)

    async def search(
        self,
        caller: Caller,
        tx: Transaction,
        *,
        scope: SearchScope,
        query: PreparedQuery,
        min_candidates: int,
        rank: Callable[[SearchResult], RankingT],
        estimate: EstimateMatch,
        loaded: LoadedScope | None = None,
    ) -> RankingT:
        """Rank the entries in scope by how well they match a query: all, or candidates of a large scope (`estimate`).

        These are `min_candidates` by words, and as many by vector, if it is not in memory. `rank` may run in a thread.
        """
        ann, pool = self.runtime(query.space_id).ann, max(_MIN_POOL, min_candidates)
        return await self._searcher.search(
            tx, caller.tenant_id, ann, scope, query, pool=pool, rank=rank, estimate=estimate, loaded=loaded
        )

    def evict_tenant(self, caller: Caller) -> None:
        """Let all processes evict the tenant's entries and names from memory."""
        self._publish({"k": REMOVALS, "t": str(caller.tenant_id)})

    async def sweep(self) -> int:
        """Delete old records of removed entries; return the number."""
        return await delete_old_removals(self._ops)


def _jobs(kind: str, entry_ids: Sequence[UUID], *, priority: int = 0) -> list[NewJob]:
    return [
        NewJob(kind, subject_ids=entry_ids[start : start + _ENTRIES_PER_JOB], priority=priority)
        for start in range(0, len(entry_ids), _ENTRIES_PER_JOB)
    ]
