"""Index writes after the append: vectors and resolved dates.

Each is derived from turns, and has the content hashes of the turns it read. The write locks these turns. It leaves out
all that are deleted, superseded, erased or changed since. The head is locked before the turns, as everywhere, so that
no deadlock can occur.
"""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from app.conversations.schemas.conversations import plain_text, turn_text
from app.conversations.stores import conversation_store, summary_store, turn_list_store, turn_store
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.stores.summary_store import SummaryRow
from app.conversations.views import turn_view
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError
from app.core.ids import ConversationId
from app.core.telemetry import get_logger
from app.core.threads import pause_after_step
from app.index.schemas import EntryKind, IndexDocument
from app.index.service import SearchIndex, VectorBackfill, VectorMaker
from app.tenancy.schemas import Caller

# turns per batch: this many long turns have a thousand vectors, this many short ones are one request
_TURNS = 32
# bytes of text per batch: one turn may be as large as a request, and several jobs read at once
_BYTES = 2 * 2**20
# limits of one backfill job, in entries and in reads: after either, another job continues
_MAX_FILLED = 400
_MAX_PASSES = 40
# pause after a batch, relative to its duration, so that half of the time is left to appends; the maximum applies to
# batches that wait for an endpoint, which costs appends nothing


@dataclass(frozen=True, slots=True)
class _Source:
    """A turn that gets vectors, without its content: of a long text only the first pieces are embedded."""

    id: UUID
    conversation_id: UUID
    content_hash: bytes | None
    pieces: Sequence[str]


class Indexing:
    """The derived writes of the index. Each can be repeated: work that is already done is skipped."""

    def __init__(self, database: Database, *, index: SearchIndex, makers: Mapping[EntryKind, VectorMaker]) -> None:
        """`makers` make the vectors of the entries of other packages."""
        self._database = database
        self._index = index
        self._makers: Mapping[EntryKind, VectorMaker] = {EntryKind.SUMMARY: self._make_of_summaries, **makers}
        self._log = get_logger()

    async def make_vectors(self, caller: Caller, *, turn_ids: Sequence[UUID]) -> None:
        """Make the vectors that turns wait for. Raises errors of the embedder; vectors that were made are stored."""
        refused: list[AppError] = []
        backfill = self._index.backfill
        async for sources in self._sources(caller, backfill, turn_ids, only_pending=True):
            await self._make(caller, backfill, sources, refused)
        _raise_first(refused)

    async def make_new(self, caller: Caller, backfill: VectorBackfill, *, entry_ids: Sequence[UUID]) -> None:
        """Make the vectors that these entries lack in a space; mostly new entries of a space kept up to date."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            lacking = await backfill.lacking_of(caller, tx, entry_ids=entry_ids)
        refused: list[AppError] = []
        async for sources in self._sources(caller, backfill, lacking.get(EntryKind.TURN, ())):
            await self._make(caller, backfill, sources, refused)
        for kind, make in self._makers.items():
            await make(caller, backfill, lacking.get(kind, ()))
        _raise_first(refused)

    async def fill(self, caller: Caller, backfill: VectorBackfill, *, after: UUID | None) -> None:
        """Make the vectors that live entries of any age and embedder lack in a space.

        Handles some hundred entries in the order of ids, starting after `after`, and enqueues the job for the next
        ones. Raises an error of the embedder; vectors that were made before it are kept and not made again.
        """
        filled = 0
        for _ in range(_MAX_PASSES):
            async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
                step = await backfill.find_lacking(caller, tx, after=after)
            began = time.monotonic()
            async for sources in self._sources(caller, backfill, step.lacking.get(EntryKind.TURN, ())):
                filled += await self._make(caller, backfill, sources, [])  # the backfill finds refused entries again
                await pause_after_step(began)
                began = time.monotonic()
            for kind, make in self._makers.items():
                filled += await make(caller, backfill, step.lacking.get(kind, ()))
            after = step.after
            if after is None or filled >= _MAX_FILLED:
                break
        self._log.info("vectors.filled", tenant_id=caller.tenant_id, count=filled, space_id=backfill.space.id)
        if after is not None:
            async with self._database.transaction(caller.tenant_id) as tx:
                await backfill.enqueue_continuation(caller, tx, after=after)

    async def _sources(
        self, caller: Caller, backfill: VectorBackfill, turn_ids: Sequence[UUID], *, only_pending: bool = False
    ) -> AsyncIterator[list[_Source]]:
        left = list(turn_ids)
        while left:
            sources, left = await self._read_pieces(caller, backfill, left, only_pending=only_pending)
            yield sources

    async def _read_pieces(
        self, caller: Caller, backfill: VectorBackfill, turn_ids: list[UUID], *, only_pending: bool
    ) -> tuple[list[_Source], list[UUID]]:
        rows, left = await self._read(caller, turn_ids)
        if only_pending:
            rows = [row for row in rows if row.index_state == "pending"]
        pieces = await backfill.split_each({row.id: plain_text(turn_view(row)) for row in rows})
        return [_Source(row.id, row.conversation_id, row.content_hash, pieces[row.id]) for row in rows], left

    async def _make(
        self, caller: Caller, backfill: VectorBackfill, sources: Sequence[_Source], refused: list[AppError]
    ) -> int:
        """Make and store the vectors of these turns, and return the number of turns. Turns changed since are left out.

        Errors of single turns that the embedder refused are appended to `refused`.
        """
        if not sources:
            return 0
        vectors = await backfill.embed_each({source.id: source.pieces for source in sources}, refused)
        if not vectors or not self._index.spaces.still_needs(backfill):
            return 0
        async with self._database.transaction(caller.tenant_id) as tx:
            same = await self._lock_unchanged(caller, tx, [source for source in sources if source.id in vectors])
            # turns wait for the vectors of the space that is searched
            searched = self._index.spaces.searches(backfill)
            own = {turn_id: vectors[turn_id] for turn_id in same}
            await backfill.write(caller, tx, kind=EntryKind.TURN, vectors=own, searched=searched)
            if searched:
                await turn_store.mark_indexed(tx, caller.tenant_id, list(same))
        return len(same)

    async def _make_of_summaries(self, caller: Caller, backfill: VectorBackfill, summary_ids: Sequence[UUID]) -> int:
        """Make and store the vectors of summaries, and return their number."""
        if not summary_ids:
            return 0
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            stored = await summary_store.find(tx, caller.tenant_id, list(summary_ids))
        rows = [row for row in stored.values() if _is_valid(row)]
        count = 0
        for start in range(0, len(rows), _TURNS):
            summaries = {row.id: row for row in rows[start : start + _TURNS]}
            pieces = await backfill.split_each({row.id: row.text or "" for row in summaries.values()})
            vectors = await backfill.embed_each(pieces, [])
            if not self._index.spaces.still_needs(backfill):
                return count
            async with self._database.transaction(caller.tenant_id) as tx:
                for conversation_id in sorted({row.conversation_id for row in summaries.values()}):
                    await conversation_store.lock_conversation(tx, caller.tenant_id, ConversationId(conversation_id))
                # summaries change only under the lock of the conversation's head
                now = await summary_store.find(tx, caller.tenant_id, list(vectors))
                same = {
                    key: vectors[key] for key, row in now.items() if _is_valid(row) and row.text == summaries[key].text
                }
                searched = self._index.spaces.searches(backfill)
                await backfill.write(caller, tx, kind=EntryKind.SUMMARY, vectors=same, searched=searched)
            count += len(same)
        return count

    async def resolve_dates(self, caller: Caller, *, turn_ids: Sequence[UUID]) -> None:
        """Resolve relative dates in turns, so that recall finds the turns by these dates."""
        left = list(turn_ids)
        while left:
            rows, left = await self._read(caller, left)
            await self._resolve(caller, rows)

    async def _resolve(self, caller: Caller, rows: Sequence[TurnRow]) -> None:
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            languages = await self._index.read_languages(caller, tx, turn_ids=[row.id for row in rows])
        # the text that a hit shows, because the offsets of the phrases refer to it
        documents = {
            row.id: IndexDocument(turn_text(turn_view(row)), row.actor, row.occurred_at, languages.get(row.id))
            for row in rows
        }
        dated = await self._index.resolve_dates(documents)
        if not dated:
            return
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            undated = await self._index.find_undated(caller, tx, dated=dated)
        packed = {entry.dated.source_id: entry for entry in await self._index.pack_words(undated)}
        async with self._database.transaction(caller.tenant_id) as tx:
            same = await self._lock_unchanged(caller, tx, [row for row in rows if row.id in packed])
            await self._index.write_dates(caller, tx, entries=[packed[turn_id] for turn_id in same])

    async def _read(self, caller: Caller, turn_ids: list[UUID]) -> tuple[list[TurnRow], list[UUID]]:
        """Return the live turns of the next batch of these ids, in their order, and the ids left after it.

        The size of a batch is limited to bound the memory.
        """
        asked = turn_ids[:_TURNS]
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            turns = await turn_list_store.find_ordered(tx, caller.tenant_id, asked, max_bytes=_BYTES)
        # after a cut, continue after the last turn read; deleted turns are not read again
        left = turn_ids[asked.index(turns.rows[-1].id) + 1 :] if turns.cut else turn_ids[_TURNS:]
        live = [
            row
            for row in turns.rows
            if row.status == "committed" and row.superseded_by is None and row.erased_at is None
        ]
        return live, left

    async def _lock_unchanged(self, caller: Caller, tx: Transaction, rows: Sequence[TurnRow | _Source]) -> set[UUID]:
        """Lock these turns until the transaction ends; return those that are live and unchanged."""
        for conversation_id in sorted({row.conversation_id for row in rows}):
            await conversation_store.lock_conversation(tx, caller.tenant_id, ConversationId(conversation_id))
        hashes = await turn_store.lock_turns(tx, caller.tenant_id, [row.id for row in rows])
        return {row.id for row in rows if row.content_hash is not None and hashes.get(row.id) == row.content_hash}


def _raise_first(refused: Sequence[AppError]) -> None:
    """Raise the first error, so that the job is tried again for the rest, and shows the reason when it is parked."""
    if refused:
        raise refused[0]


def _is_valid(row: SummaryRow) -> bool:
    return row.replaced_by is None and bool(row.text)
