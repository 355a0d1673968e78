"""One search index for everything that can be recalled, written in its owners' transactions.

`prepare` analyses and embeds outside any transaction; `write` stores what it made inside the owner's. A failing
embedder never fails the owner: the entry is found by words at once, is marked as waiting for its vectors, and a job
enqueued in the same transaction makes them (`late`). Another resolves relative dates.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.core.database.transactions import Database, FloatVector, Transaction
from app.core.errors import AppError, Conflict
from app.core.fair_shares import TenantShares
from app.core.ids import ConversationId, TenantId
from app.core.jobs import JobQueue, NewJob
from app.core.telemetry import get_logger
from app.core.threads import map_in_threads
from app.index.analyser.analyser import Analyser, quote
from app.index.analyser.dates import date_words, may_have_dates, resolve_dates
from app.index.backfill import store as late_store
from app.index.backfill.vector_backfill import LateVectors, Maker
from app.index.schemas import (
    DATES_JOB,
    VECTORS_JOB,
    Analysis,
    DatedEntry,
    Document,
    Entry,
    EntryKind,
    Found,
    Prepared,
    Scope,
)
from app.index.search import ann_search, exact_search
from app.index.search.ann_maintenance import AnnMaintenance, TierOptions
from app.index.search.ann_search import Holding, Space
from app.index.spaces.runtime import ChosenSpace, EmbeddingSpaceRuntime, Spaces, chosen_space
from app.index.write import removal_store, store
from app.providers.schemas import Embedder
from app.settings import Settings
from app.tenancy.schemas import Caller

__all__ = [
    "AnnMaintenance", "ChosenSpace", "EmbeddingSpaceRuntime", "IndexOptions", "LateVectors", "Query", "SearchIndex",
    "Space", "Spaces", "TierOptions", "chosen_space", "ensure_space",
]  # fmt: skip

# analysing less than this takes under a millisecond or so: not worth a thread
_INLINE_CHARACTERS = 4_000
# up to so many vectors, as of a message that a person writes, are made at once also under load
_FEW_VECTORS = 4
# vectors that are made at once while callers wait, in appends of the largest allowed number each
_INLINE_APPENDS = 4
# a job is short, so that a stop does not wait long for it and a retry does not repeat much
_ENTRIES_PER_JOB = 50

_DATES_FACTOR = 20
"""Reading the dates of a text takes so many times as long as hashing and counting it, and more at worst."""


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Settings of the index."""

    max_vectors_per_entry: int
    max_vectors_per_append: int
    index_text_bytes: int
    recall_pool: int
    max_query_lexemes: int

    @classmethod
    def of(cls, settings: Settings) -> "IndexOptions":
        """Take them out of the settings."""
        return cls(
            max_vectors_per_entry=settings.max_vectors_per_entry,
            max_vectors_per_append=settings.max_vectors_per_append,
            index_text_bytes=settings.index_text_bytes,
            recall_pool=settings.recall_pool,
            max_query_lexemes=settings.max_query_lexemes,
        )


@dataclass(frozen=True, slots=True)
class Query:
    """A prepared query. `vector` is None when there is no embedder, or it failed with `degraded`.

    `side` is the embedding space of the vector, in which the search ends whatever is switched meanwhile.
    """

    vector: FloatVector | None
    lexemes: Sequence[str]
    degraded: str | None
    side: EmbeddingSpaceRuntime | None = None


class SearchIndex:
    """Writes and searches index entries, in the embedding space that the installation searches."""

    def __init__(self, spaces: Spaces, *, jobs: JobQueue, options: IndexOptions) -> None:
        self.spaces = spaces
        self.makers: list[Maker] = []
        """Those who own entries besides turns: told as they are made, asked when vectors are made later."""
        self._jobs = jobs
        self._options = options
        self._inline = TenantShares(_INLINE_APPENDS * options.max_vectors_per_append)
        self._log = get_logger()

    @property
    def late(self) -> LateVectors:
        """What makes vectors after the append, in the space that is searched."""
        return self.spaces.current.late

    def space_of(self, query: Query) -> str | None:
        """The embedding space that a query is searched in, as `provider/model/dimensions`; None without an embedder."""
        return (query.side or self.spaces.current).name

    def side(self, space_id: int) -> EmbeddingSpaceRuntime:
        """A space that this process can embed for. Raises Conflict `space_not_configured` for any other."""
        found = self.spaces.sides.get(space_id)
        if found is None:
            raise Conflict("space_not_configured", "This process has no settings by which to embed for this space.")
        return found

    async def prepare(self, caller: Caller, documents: Sequence[Document]) -> list[Prepared]:
        """Analyse and embed documents, in order.

        Where the embedder fails, or there is too much to embed while the caller waits, vectors are due later.
        """
        side = self.spaces.current
        analysing = _Analysing(self._options, side.embedder)
        analysed = await map_in_threads(analysing.take, documents, size=_size, inline=_INLINE_CHARACTERS)
        wanted = [piece for one in analysed for piece in one.pieces]
        vectors = await self._embed_now(caller, side.embedder, wanted)
        prepared: list[Prepared] = []
        start = 0
        for document, one in zip(documents, analysed, strict=True):
            own = vectors[start : start + len(one.pieces)] if vectors else ()
            start += len(one.pieces)
            due = side.embedder is not None and not own and bool(document.text.strip())
            prepared.append(
                Prepared(one.analysis, own, vectors_due=due, dates_due=one.dates_due, space_id=side.space.id)
            )
        return prepared

    async def _embed_now(
        self, caller: Caller, embedder: Embedder | None, texts: Sequence[str]
    ) -> Sequence[FloatVector]:
        """The vectors of all texts while their caller waits; none where the embedder fails or has enough to do."""
        if embedder is None or not texts:
            return ()
        count = len(texts)
        if count <= _FEW_VECTORS:
            self._inline.add(caller.tenant_id, count)
        elif not self._inline.take(caller.tenant_id, count):
            return ()
        try:
            return await self._embed_all(embedder, texts)
        except AppError as error:
            self._log.warning("embedder.failed", code=error.code, count=count)
            return ()
        finally:
            self._inline.give_back(caller.tenant_id, count)

    async def prepare_now(self, document: Document) -> Prepared:
        """Analyse and embed one document with all its vectors; raises as the embedder does, so that nothing is stored.

        Without an embedder it is found by words.
        """
        side = self.spaces.current
        analysing = _Analysing(self._options, side.embedder, max_vectors=self._options.max_vectors_per_entry)
        [one] = await map_in_threads(analysing.take, [document], size=_size, inline=_INLINE_CHARACTERS)
        vectors: list[FloatVector] = []
        if side.embedder is not None and one.pieces:
            vectors = await self._embed_all(side.embedder, one.pieces)
        return Prepared(one.analysis, vectors, vectors_due=False, space_id=side.space.id)

    async def _embed_all(self, embedder: Embedder, texts: Sequence[str]) -> list[FloatVector]:
        vectors: list[FloatVector] = []
        for start in range(0, len(texts), embedder.max_batch):
            vectors.extend(await embedder.embed(texts[start : start + embedder.max_batch], purpose="document"))
        return vectors

    def prepare_words(self, documents: Sequence[Document]) -> list[Prepared]:
        """Analyse few and short documents, without vectors: for what comes up in a transaction, where none are made."""
        side, analysing = self.spaces.current, _Analysing(self._options, None)
        due = side.embedder is not None
        return [
            Prepared(analysing.take(document).analysis, (), vectors_due=due, space_id=side.space.id)
            for document in documents
        ]

    async def write(
        self, caller: Caller, tx: Transaction, *, entries: Sequence[Entry], also: Sequence[NewJob] = ()
    ) -> None:
        """Store entries and their vectors, in the transaction of what they stand for, and enqueue what is due later.

        `also`: what else the owner has due, which goes with that; the late vectors of anything but turns too. Vectors
        in other spaces that are kept up to date are due later; those made by now are of the space that was searched
        when they were made.
        """
        if entries:
            await store.insert_entries(tx, caller.tenant_id, entries)
            vectors: dict[int, dict[UUID, Sequence[FloatVector]]] = {}
            for entry in entries:
                vectors.setdefault(entry.prepared.space_id, {})[entry.entry_id] = entry.prepared.vectors
            for space_id, some in vectors.items():
                await store.insert_vectors(tx, caller.tenant_id, space_id, some)
        jobs = [
            *_jobs(VECTORS_JOB, [entry.entry_id for entry in entries if _is_due(entry)]),
            *_jobs(DATES_JOB, [entry.entry_id for entry in entries if entry.prepared.dates_due]),
            *self._elsewhere(entries),
            *also,
        ]
        await self._jobs.enqueue(tx, caller.tenant_id, jobs)

    def _elsewhere(self, entries: Sequence[Entry]) -> list[NewJob]:
        """The jobs that make vectors of new entries in the other spaces that are to have them; mostly there is none."""
        wanted: dict[str, list[UUID]] = {}
        for entry in entries:
            for side in self.spaces.others(entry.prepared.space_id):
                wanted.setdefault(side.late.new_kind, []).append(entry.entry_id)
        return [job for kind, entry_ids in wanted.items() for job in _jobs(kind, entry_ids, priority=-1)]

    async def _lacking(self, caller: Caller, tx: Transaction, entry_ids: Sequence[UUID]) -> list[NewJob]:
        """The jobs that make the vectors that stored entries lack in spaces that are to have them.

        With one space there is none to move to, and what lacks vectors has jobs of its own or is looked for.
        """
        sides = {side.space.id: side for side in self.spaces.wanted()}
        if not entry_ids or sides.keys() <= {self.spaces.current.space.id}:
            return []
        wanted: dict[str, list[UUID]] = {}
        for space_id, entry_id in await late_store.lacking_of(tx, caller.tenant_id, list(sides), entry_ids):
            wanted.setdefault(sides[space_id].late.new_kind, []).append(entry_id)
        return [job for kind, ids in wanted.items() for job in _jobs(kind, ids, priority=-1)]

    async def resolve_dates(self, documents: Mapping[UUID, Document]) -> list[DatedEntry]:
        """What relative dates in documents mean, by entry; only those that have any."""
        items = list(documents.items())
        found = await map_in_threads(_dated, items, size=lambda one: _DATES_FACTOR * len(one[1].text), inline=0)
        return [entry for entry in found if entry is not None]

    async def write_dates(self, caller: Caller, tx: Transaction, *, entries: Sequence[DatedEntry]) -> None:
        """Add resolved dates to entries, whose sources the caller has locked and found unchanged."""
        await store.add_dates(tx, caller.tenant_id, entries)

    async def retire(self, caller: Caller, tx: Transaction, *, entry_ids: Sequence[UUID]) -> None:
        """Let entries be found no more, because what they stand for is superseded."""
        await store.retire_entries(tx, caller.tenant_id, entry_ids)

    async def set_expiry(self, caller: Caller, tx: Transaction, *, entry_id: UUID, expires_at: datetime | None) -> None:
        """Let an entry be found until another time, or for good."""
        await store.set_expiry(tx, caller.tenant_id, entry_id, expires_at=expires_at)

    async def set_owner(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId, owner: str) -> None:
        """Set the owner of the entries of a conversation that have none. Its head is locked, and their facts are."""
        await store.set_owner(tx, caller.tenant_id, conversation_id, owner)

    async def restore(self, caller: Caller, tx: Transaction, *, entry_ids: Sequence[UUID]) -> None:
        """Let entries be found again that were retired."""
        await store.restore_entries(tx, caller.tenant_id, entry_ids)
        # what was retired was passed over by whoever filled a space meanwhile
        await self._jobs.enqueue(tx, caller.tenant_id, await self._lacking(caller, tx, entry_ids))

    async def copy(
        self,
        caller: Caller,
        tx: Transaction,
        *,
        conversation_id: ConversationId,
        owner: str | None,
        pairs: Sequence[tuple[UUID, UUID, int | None]],
        texts: Mapping[UUID, str],
    ) -> None:
        """Copy entries and vectors into another conversation; pairs are (entry, its copy, the copy's position).

        The sources of the originals are held. What their jobs have not done yet is enqueued for the copies; `texts` are
        those of the copies.
        """
        copied = await store.copy_entries(tx, caller.tenant_id, conversation_id, owner, pairs)
        await store.copy_vectors(tx, caller.tenant_id, pairs)
        undated = [one.entry_id for one in copied if one.undated]
        if sum(len(texts[entry_id]) for entry_id in undated) <= _INLINE_CHARACTERS:
            undated = _worth_resolving(undated, texts)
        else:
            undated = await asyncio.to_thread(_worth_resolving, undated, texts)
        jobs = [
            *_jobs(VECTORS_JOB, [one.entry_id for one in copied if one.vectors_due]),
            *_jobs(DATES_JOB, undated),
            *await self._lacking(caller, tx, [one.entry_id for one in copied]),
        ]
        await self._jobs.enqueue(tx, caller.tenant_id, jobs)

    async def place_of(self, caller: Caller, tx: Transaction, *, entry_id: UUID) -> tuple[int, int] | None:
        """Position and session of an entry; None where there is none."""
        return await store.place_of(tx, caller.tenant_id, entry_id)

    async def session_around(
        self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId, position: int
    ) -> int | None:
        """The session of the nearest entry before a position, or of the first after it; None without entries."""
        return await store.session_around(tx, caller.tenant_id, conversation_id, position)

    async def erase(
        self,
        caller: Caller,
        tx: Transaction,
        *,
        conversation_id: ConversationId,
        entry_ids: Sequence[UUID] | None = None,
    ) -> dict[str, int]:
        """Delete all of a conversation from the index, or some entries of it; says how many rows of each table."""
        return await removal_store.delete_entries(tx, caller.tenant_id, conversation_id, entry_ids)

    async def erase_entries(self, caller: Caller, tx: Transaction, *, entry_ids: Sequence[UUID]) -> dict[str, int]:
        """Delete entries whose sources the caller has locked; says how many rows of each table."""
        return await removal_store.delete_by_id(tx, caller.tenant_id, entry_ids)

    async def erase_some(
        self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID], limit: int
    ) -> dict[str, int]:
        """Delete up to `limit` entries of conversations that are being deleted; says how many rows of each table."""
        entry_ids = await removal_store.list_of_conversations(tx, caller.tenant_id, conversation_ids, limit=limit)
        return await removal_store.delete_by_id(tx, caller.tenant_id, entry_ids)

    async def remove(self, tx: Transaction, *, entries: Sequence[tuple[TenantId, UUID]]) -> dict[str, int]:
        """Delete entries that belong to no conversation, each named with its tenant; says how many of each table.

        Besides a tenant's own transaction, for sweeps of the ops role.
        """
        tenant_ids = [tenant_id for tenant_id, _ in entries]
        return await removal_store.delete_unplaced(
            tx, tenant_ids=tenant_ids, entry_ids=[entry_id for _, entry_id in entries]
        )

    async def prepare_query(
        self, text: str, *, bare_text: str, by_words: bool, by_vector: bool, side: EmbeddingSpaceRuntime | None = None
    ) -> Query:
        """Analyse `text` and embed `bare_text` (the same without names); outside any transaction.

        `side`: in another space than the one searched.

        Without words to go by a failing embedder leaves nothing to search with: then it raises as the embedder does.
        """
        # the work grows with the entries in scope times the words asked for
        lexemes = Analyser().query(text)[: self._options.max_query_lexemes] if by_words else []
        side = side or self.spaces.current
        if not by_vector:
            return Query(None, lexemes, None, side)
        if side.embedder is None:
            return Query(None, lexemes, "embedder_none", side)
        try:
            vectors = await side.embedder.embed([bare_text], purpose="query")
        except AppError as error:
            if not by_words:
                raise
            return Query(None, lexemes, error.code, side)
        return Query(vectors[0], lexemes, None, side)

    async def search(self, caller: Caller, tx: Transaction, *, scope: Scope, query: Query, at_least: int) -> Found:
        """The candidates for a query: at least `at_least` by each way of searching, where the scope has as many.

        Exact where the scope has few entries; by the indexes where it is wide; exactly again where these gave too few.
        """
        pool = max(self._options.recall_pool, at_least)
        tiers = (query.side or self.spaces.current).tiers
        wide_tenant = tiers.is_wide(holding := await tiers.look(tx, caller.tenant_id))
        if wide_tenant:
            found = await self._search_wide(caller, tx, scope, query, pool, holding, tiers)
            if found is not None:
                return found
        return await exact_search.search(
            tx,
            caller.tenant_id,
            scope,
            space_id=tiers.space.id,
            vector=query.vector,
            lexemes=query.lexemes,
            pool=pool,
            # in a wide tenant, or without turns, this scope is a small part of what the text index would find
            by_index=scope.conversation_ids is None and not wide_tenant and EntryKind.TURN in scope.kinds,
        )

    async def _search_wide(
        self, caller: Caller, tx: Transaction, scope: Scope, query: Query, pool: int, holding: Holding,
        tiers: AnnMaintenance,
    ) -> Found | None:  # fmt: skip
        """By the indexes; None where the scope is narrow, or they do not give enough."""
        if query.vector is not None and not holding.tiered_and_indexed:
            return None
        options = tiers.options
        corpus = await ann_search.measure(
            tx, caller.tenant_id, scope, query.lexemes, entries=options.exact_scope_entries
        )
        if corpus.entries <= options.exact_scope_entries:
            return None
        by_words = await ann_search.best_by_words(
            tx, scope, query.lexemes, corpus, pool=pool, matches=options.text_candidates
        )
        return await ann_search.search_wide(
            tx,
            caller.tenant_id,
            scope,
            ann_search.Wanted(query.vector, query.lexemes, by_words, corpus, pool),
            space=tiers.space,
            uncovered=holding.uncovered,
        )


def _is_due(entry: Entry) -> bool:
    return entry.prepared.vectors_due and entry.kind is EntryKind.TURN


def _jobs(kind: str, entry_ids: Sequence[UUID], *, priority: int = 0) -> list[NewJob]:
    return [
        NewJob(kind, subject_ids=entry_ids[start : start + _ENTRIES_PER_JOB], priority=priority)
        for start in range(0, len(entry_ids), _ENTRIES_PER_JOB)
    ]


def _worth_resolving(entry_ids: Sequence[UUID], texts: Mapping[UUID, str]) -> list[UUID]:
    return [entry_id for entry_id in entry_ids if may_have_dates(texts[entry_id])]


def _dated(item: tuple[UUID, Document]) -> DatedEntry | None:
    entry_id, document = item
    found = resolve_dates(document.text, occurred_at=document.occurred_at)
    if not found:
        return None
    words = date_words(found, occurred_at=document.occurred_at)
    lexemes = list(dict.fromkeys(Analyser().lexemes(words, query=False)))
    literal = " ".join(f"{quote(lexeme)}:{place}" for place, lexeme in enumerate(lexemes, start=1))
    shown = [
        {
            "start": one.start,
            "end": one.end,
            "first_day": one.first_day.isoformat(),
            "last_day": one.last_day.isoformat(),
        }
        for one in found
    ]
    return DatedEntry(entry_id, json.dumps(shown), literal, len(lexemes))


async def ensure_space(ops: Database, embedder: Embedder | None) -> Space:
    """The embedder's space, made at first use; of id 0 without an embedder."""
    if embedder is None:
        return Space(0, 0)
    space = embedder.space
    async with ops.across_tenants() as tx:
        id_ = await store.ensure_space(tx, provider=space.provider, model=space.model, dimensions=space.dimensions)
    return Space(id_, space.dimensions)


@dataclass(frozen=True, slots=True)
class _Analysed:
    """What is indexed of a document, the pieces of it that are embedded at once, and whether dates are due."""

    analysis: Analysis
    pieces: Sequence[str]
    dates_due: bool


class _Analysing:
    """Analyses documents one after the other. Of their pieces, so many are embedded at once as an append may have."""

    def __init__(self, options: IndexOptions, embedder: Embedder | None, *, max_vectors: int | None = None) -> None:
        self._options = options
        self._embedder = embedder
        self._analyser = Analyser()
        self._left = options.max_vectors_per_append if max_vectors is None else max_vectors

    def take(self, document: Document) -> _Analysed:
        """Analyse the next document. Blocking."""
        analysis = self._analyser.document(
            document.text,
            actor=document.actor,
            occurred_at=document.occurred_at,
            max_bytes=self._options.index_text_bytes,
        )
        return _Analysed(analysis, self._pieces(document.text), may_have_dates(document.text))

    def _pieces(self, text: str) -> Sequence[str]:
        """All pieces of a text up to the limit, or none where that is more than there is room for."""
        if self._embedder is None or self._left == 0 or not text.strip():
            return ()
        # one more than there is room for is enough to know that there is none
        pieces = self._embedder.split(text, most=min(self._left + 1, self._options.max_vectors_per_entry))
        if len(pieces) > self._left:
            return ()
        self._left -= len(pieces)
        return pieces


def _size(document: Document) -> int:
    return len(document.text)
