"""Writes the turns, participants, index entries and counters of a conversation that an import or a fork stores.

Used under the lock of the head, in the transaction of the import or fork.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from app.conversations.events import EventPublisher
from app.conversations.policies import facts_job
from app.conversations.responses import store as response_store
from app.conversations.responses.store import ResponseRow
from app.conversations.schemas.conversations import plain_text
from app.conversations.stores import conversation_store, turn_list_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.stores.summary_store import SummaryRow
from app.conversations.summaries.service import summary_entry
from app.conversations.turns.hashes import TurnChain
from app.conversations.turns.placement import new_participants, turn_entry
from app.conversations.views import turn_view
from app.core.database.transactions import Transaction
from app.core.errors import FieldError
from app.core.ids import ConversationId
from app.index.schemas import IndexDocument, IndexEntry
from app.index.service import SearchIndex
from app.settings.conversations import ConversationSettings
from app.tenancy.schemas import Caller
from app.tenancy.service import Tenancy
from app.transfer import restore_store as store
from app.transfer.outcomes import NotExactError, RecordRefusedError
from app.transfer.restore_store import HeadCounters

BATCH_BYTES = 2 * 2**20
_ANALYSED = 200


class ConversationWriter:
    """Writer of copied and restored conversations."""

    def __init__(
        self, *, tenancy: Tenancy, index: SearchIndex, publisher: EventPublisher, settings: ConversationSettings
    ) -> None:
        self._quotas = tenancy.quotas
        self._index = index
        self._publisher = publisher
        self._gap = timedelta(seconds=settings.session_gap_s)

    @property
    def has_vectors(self) -> bool:
        """Return whether turns wait for vectors."""
        return self._index.spaces.current.embedder is not None

    async def insert_turns(self, caller: Caller, tx: Transaction, rows: Sequence[TurnRow]) -> None:
        """Insert turns, and count them for the quotas."""
        await conversation_store.insert_turns(tx, caller.tenant_id, rows)
        size = sum(row.stored_bytes for row in rows)
        self._quotas.count(tx, caller.tenant_id, turns=len(rows), size=size)

    async def insert_responses(self, caller: Caller, tx: Transaction, rows: Sequence[ResponseRow]) -> None:
        """Insert the responses of turns that were inserted."""
        for row in rows:
            await response_store.insert(tx, caller.tenant_id, row)
            self._quotas.count(tx, caller.tenant_id, size=len(row.request.encode()))

    async def insert_summaries(
        self, caller: Caller, tx: Transaction, head: ConversationRow, rows: Sequence[SummaryRow]
    ) -> None:
        """Insert summaries, and the index entries of valid ones of a model. Raises NotExactError if an id is taken."""
        if not await store.insert_summaries(tx, caller.tenant_id, rows):
            raise NotExactError
        indexed = [row for row in rows if row.kind == "summary" and row.replaced_by is None and row.text]
        if indexed:
            documents = [IndexDocument(row.text or "", "", row.created_at) for row in indexed]
            prepared = await self._index.prepare(caller, documents, deferred=True)
            entries = [
                # a job for vectors reads only turns; the backfill finds the others
                summary_entry(head, row.id, row.created_at, replace(analysed, vectors_due=False, dates_due=False))
                for row, analysed in zip(indexed, prepared, strict=True)
            ]
            await self._index.write(caller, tx, entries=entries)

    async def name_speakers(
        self, caller: Caller, tx: Transaction, head: ConversationRow, rows: Sequence[TurnRow]
    ) -> None:
        """Add the actors of turns to the participants, as an append does."""
        speakers, tools = new_participants(head, rows)
        if speakers or tools:
            await conversation_store.update_activity(
                tx,
                caller.tenant_id,
                ConversationId(head.id),
                active_at=head.listed_at,
                participants=speakers,
                tools=tools,
                title=None,
            )

    async def finish(
        self,
        caller: Caller,
        tx: Transaction,
        head: ConversationRow,
        *,
        chain: TurnChain,
        rev: int,
        line: int,
        after_seq: int = 0,
        updated_at: datetime | None = None,
    ) -> None:
        """Check the links of the turns, index those after a seq, and write the head with the end of the chain.

        Raises RecordRefusedError, with the line of the conversation. `updated_at`: when it was changed, if it was.
        """
        conversation_id = ConversationId(head.id)
        if await store.has_wrong_links(tx, caller.tenant_id, conversation_id, through=head.summarized_through):
            raise RecordRefusedError(line, [FieldError("", "Its turns have wrong links, or two share a position.")])
        counters = await self._index_turns(caller, tx, head, after_seq=after_seq)
        await store.write_head(
            tx, caller.tenant_id, conversation_id, chain=chain, rev=rev, counters=counters, updated_at=updated_at
        )
        if head.facts.get("enabled"):
            await self._index.write(caller, tx, entries=[], also=[facts_job(conversation_id)])
        self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=rev)

    async def _index_turns(
        self, caller: Caller, tx: Transaction, head: ConversationRow, *, after_seq: int
    ) -> HeadCounters:
        """Write the entries of live turns after a seq; sessions and positions follow from all live turns."""
        after = position = session = 0
        said_at: datetime | None = None
        language: str | None = None
        while True:
            page = await turn_list_store.list_turns(
                tx,
                caller.tenant_id,
                ConversationId(head.id),
                newest_first=False,
                after=after,
                limit=_ANALYSED,
                max_bytes=BATCH_BYTES,
            )
            if not page.rows:
                return HeadCounters(session, said_at, language)
            due: list[tuple[TurnRow, tuple[int, int]]] = []
            for row in page.rows:
                position += 1
                session += said_at is None or abs(row.occurred_at - said_at) > self._gap
                said_at = row.occurred_at
                if row.index_state != "none" and (row.seq or 0) > after_seq:
                    due.append((row, (position, session)))
            if due:
                documents = [IndexDocument(plain_text(turn_view(row)), row.actor, row.occurred_at) for row, _ in due]
                prepared = await self._index.prepare(caller, documents, deferred=True)
                pairs = zip(due, prepared, strict=True)
                entries: list[IndexEntry] = [turn_entry(head, row, analysed, place) for (row, place), analysed in pairs]
                entries, language = self._index.inherit_languages(entries, before=language)
                await self._index.write(caller, tx, entries=entries)
            after = page.rows[-1].position or 0
