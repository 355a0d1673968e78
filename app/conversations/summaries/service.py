"""Summaries of conversations: read the turns to summarise, and store a summary as a derived write.

Invariants: a summary and its move of the mark are one commit. A summary is stored only if its source turns are live and
unchanged, no other turn is between them, the summaries that it replaces are still valid, and the mark has not moved.
Otherwise nothing is stored, and the job reads the turns again.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.conversations.events import EventPublisher
from app.conversations.find import get_conversation, get_live_turn, lock_conversation, require_reachable
from app.conversations.schemas.conversations import Compaction, Retention
from app.conversations.schemas.summaries import (
    Discarded,
    RefusedFor,
    SourceTurn,
    Summary,
    SummaryDraft,
    SummaryKind,
    Undone,
    ValidSummaries,
)
from app.conversations.stores import retention_store, summary_store, turn_list_store, turn_store
from app.conversations.stores.conversation_store import ConversationRow
from app.conversations.stores.summary_store import SummaryRow
from app.conversations.summaries.invalidation import (
    compact_job,
    covered_through,
    retain_job,
    update_summary_mark,
    valid_summary,
)
from app.conversations.views import canonical_turn, summary_view, summary_view_for
from app.core.database.reader import DatabaseReader
from app.core.database.transactions import Database, Transaction
from app.core.errors import Conflict, NotFound
from app.core.ids import ConversationId, TurnId, format_id, new_uuid, parse_id
from app.core.jobs import JobQueue
from app.core.outbox import EventType
from app.core.paging import Cursors, LimitedList, Page, make_page, page_of_views
from app.index.schemas import EntryKind, IndexDocument, IndexEntry, PreparedEntries
from app.index.service import SearchIndex
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult, Scope, result_deleted
from app.tenancy.service import Tenancy

_NO_ACTOR = ""
_CONVERSATIONS = 500


class Summaries:
    """Reads and writes the summaries of conversations, for callers and for compaction."""

    def __init__(
        self,
        database: Database,
        ops: Database,
        reader: DatabaseReader,
        *,
        tenancy: Tenancy,
        index: SearchIndex,
        jobs: JobQueue,
        publisher: EventPublisher,
        cursors: Cursors,
        max_bytes: int,
        erase_without_summary: bool,
    ) -> None:
        """`erase_without_summary`: retention also erases turns that only highlights cover."""
        self._database = database
        self._ops = ops
        self._reader = reader
        self._idempotency = tenancy.idempotency
        self._index = index
        self._jobs = jobs
        self._publisher = publisher
        self._cursors = cursors
        self._max_bytes = max_bytes
        self._erase_without_summary = erase_without_summary

    async def list_page(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        include_replaced: bool,
        newest_first: bool,
        limit: int,
        cursor: str | None,
    ) -> Page[Summary]:
        """Return the summaries of a conversation, ordered by the end of their range.

        Conversation tokens are accepted.
        """
        caller = caller.require_conversation(Scope.READ, conversation_id)
        scope = f"summaries|{caller.tenant_id}|{conversation_id}|{include_replaced}|{newest_first}"
        after: tuple[int, UUID] | None = None
        if cursor is not None:
            position, last_id = self._cursors.read(scope, cursor)
            after = (int(position), UUID(str(last_id)))

        async def read(tx: Transaction) -> list[SummaryRow]:
            await require_reachable(caller, tx, conversation_id)
            rows = await summary_store.list_page(
                tx,
                caller.tenant_id,
                conversation_id,
                with_replaced=include_replaced,
                newest_first=newest_first,
                after=after,
                limit=limit + 1,
            )
            if not rows:
                await get_conversation(caller, tx, conversation_id)
            return rows

        rows = await self._reader.read(caller.tenant_id, read)
        page = make_page(
            rows, limit=limit, cursors=self._cursors, scope=scope, key=lambda row: [row.to_position, str(row.id)]
        )
        return page_of_views(page, Page[Summary], summary_view)

    async def get(self, caller: Caller, conversation_id: ConversationId, *, summary_id: UUID) -> Summary:
        """Return one summary of a conversation, valid or replaced. Raises NotFound.

        Conversation tokens are accepted.
        """
        caller = caller.require_conversation(Scope.READ, conversation_id)

        async def read(tx: Transaction) -> SummaryRow | None:
            await require_reachable(caller, tx, conversation_id)
            return (await summary_store.find(tx, caller.tenant_id, [summary_id])).get(summary_id)

        row = await self._reader.read(caller.tenant_id, read)
        if row is None or row.conversation_id != conversation_id:
            raise NotFound("not_found", "There is no such summary.")
        return summary_view(row)

    async def find_result(self, caller: Caller, key: IdempotencyKey | None) -> RequestResult[list[Summary]] | None:
        """Return the summaries that the first request with this key made; None if the request is new."""
        return await self._idempotency.find_before(caller, key, read=self._read)

    async def store_result(self, caller: Caller, key: IdempotencyKey, *, made: list[Summary]) -> list[Summary]:
        """Store the result of a request and return it; if the same request ended meanwhile, return its result.

        Raises Conflict, Busy.
        """
        async with self._database.transaction(caller.tenant_id) as tx:
            before = await self._idempotency.reserve(caller, tx, key, read=self._read)
            if before is not None:
                return before.value
            ids = [parse_id(summary.id) for summary in made]
            await self._idempotency.store_result(caller, tx, key, ids, is_new=False)
        return made

    async def _read(self, caller: Caller, tx: Transaction, summary_ids: Sequence[UUID]) -> list[Summary]:
        rows = await summary_store.find(tx, caller.tenant_id, summary_ids)
        if len(rows) != len(summary_ids):
            raise result_deleted()
        return [summary_view_for(caller, rows[summary_id]) for summary_id in summary_ids]

    async def list_valid(self, caller: Caller, conversation_id: ConversationId) -> ValidSummaries:
        """Return how far a conversation is summarised, and its valid summaries. Raises NotFound."""
        async with self._database.transaction(caller.tenant_id, read_only=True, repeatable_read=True) as tx:
            head = await get_conversation(caller, tx, conversation_id)
            rows = await summary_store.list_valid(tx, caller.tenant_id, conversation_id)
        return _valid_summaries(head, rows)

    async def position_of(self, caller: Caller, conversation_id: ConversationId, *, turn_id: TurnId) -> int:
        """Return the position of a live turn. Raises NotFound, or Conflict if it is superseded."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            return (await get_live_turn(caller, tx, conversation_id, turn_id)).position

    async def sources(
        self, caller: Caller, conversation_id: ConversationId, *, after: int, before: int | None, limit: int
    ) -> LimitedList[SourceTurn]:
        """Return the live turns between two positions (both exclusive), the oldest first."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            await require_reachable(caller, tx, conversation_id)
            read = await turn_list_store.list_turns(
                tx,
                caller.tenant_id,
                conversation_id,
                newest_first=False,
                after=after,
                before=before,
                limit=limit + 1,
                max_bytes=self._max_bytes,
                with_erased=False,
            )
        rows = read.rows[:limit]
        turns = [SourceTurn(row.id, canonical_turn(row), row.content_hash or b"", row.model) for row in rows]
        return LimitedList(turns, read.cut or len(read.rows) > limit)

    async def enqueue(self, caller: Caller, conversation_id: ConversationId) -> None:
        """Enqueue a job that makes the summaries that are due in a conversation."""
        async with self._database.transaction(caller.tenant_id) as tx:
            await require_reachable(caller, tx, conversation_id)
            await self._jobs.enqueue(tx, caller.tenant_id, [compact_job(conversation_id)])

    async def enqueue_highlighted(self, *, model: str, default: str) -> int:
        """Enqueue jobs that replace highlights in conversations that permit this model and where no wait runs.

        `default`: who writes summaries, where the policy does not say it. Return the number of conversations.
        """
        count, after = 0, (UUID(int=0), UUID(int=0))
        while True:
            async with self._ops.across_tenants() as tx:
                highlighted = await summary_store.list_highlighted(
                    tx, model=model, default=default, after=after, limit=_CONVERSATIONS
                )
                for tenant_id, conversation_id in highlighted:
                    await self._jobs.enqueue(tx, tenant_id, [compact_job(conversation_id, priority=-1)])
            if not highlighted:
                return count
            count, after = count + len(highlighted), highlighted[-1]

    async def postpone(
        self,
        caller: Caller,
        summary_id: UUID,
        *,
        refused_for: RefusedFor | None,
        attempts: int,
        retry_at: datetime | None,
    ) -> None:
        """Store that a model was asked in vain to replace highlights, and when a job asks it again."""
        async with self._database.transaction(caller.tenant_id) as tx:
            await summary_store.postpone(
                tx, caller.tenant_id, summary_id, refused_for=refused_for, attempts=attempts, retry_at=retry_at
            )

    async def store(
        self, caller: Caller, conversation_id: ConversationId, *, draft: SummaryDraft
    ) -> Summary | Discarded:
        """Store a summary and move the mark, or return why nothing was stored. Raises NotFound."""
        prepared = await self._prepare(caller, draft)
        summary_id = new_uuid()
        async with self._database.transaction(caller.tenant_id) as tx:
            await lock_conversation(caller, tx, conversation_id)
            # Read the row under the lock, so that a concurrent change of the owner is not missed.
            head = await get_conversation(caller, tx, conversation_id)
            discarded = await self._changed(caller, tx, head, draft)
            if discarded is not None:
                return discarded
            rev = head.rev + 1
            await summary_store.insert(
                tx, caller.tenant_id, conversation_id, summary_id=summary_id, draft=draft, rev=rev
            )
            await summary_store.replace(tx, caller.tenant_id, draft.replaces, by=summary_id)
            await self._shorten(caller, tx, draft)
            await self._index.retire(caller, tx, kind=EntryKind.SUMMARY, source_ids=list(draft.replaces))
            await self._write_entry(caller, tx, head, summary_id, draft, prepared)
            await update_summary_mark(caller, tx, head, rev=rev)
            await self._retain(caller, tx, conversation_id, draft)
            row = (await summary_store.find(tx, caller.tenant_id, [summary_id]))[summary_id]
            record(
                tx,
                caller,
                Action.SUMMARY_CREATE,
                ObjectKind.SUMMARY,
                summary_id,
                conversation_id=conversation_id,
                counts={"summaries": 1},
            )
            self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=rev)
            self._publisher.outbox.record(
                tx, caller.tenant_id, EventType.SUMMARY_CREATED, [summary_id], conversation_id=conversation_id
            )
        return summary_view_for(caller, row)

    async def _shorten(self, caller: Caller, tx: Transaction, draft: SummaryDraft) -> None:
        """Move the start of highlights to the position after the new summary, which covers their first turns."""
        if draft.shortens is None:
            return
        row = (await summary_store.find(tx, caller.tenant_id, [draft.shortens]))[draft.shortens]
        left = [line for line in row.lines if line.turn_id not in draft.sources]
        await summary_store.set_lines(tx, caller.tenant_id, row.id, lines=left, from_position=draft.to_position + 1)

    async def _retain(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, draft: SummaryDraft
    ) -> None:
        """Enqueue a job that erases the turns of this summary if the conversation does not keep them."""
        if draft.kind is not SummaryKind.SUMMARY and not self._erase_without_summary:
            return
        # Read under the lock: a concurrent change of the retention did not see this summary.
        retention = await retention_store.find_retention(tx, caller.tenant_id, conversation_id)
        if retention != Retention.FULL.value:
            await self._jobs.enqueue(tx, caller.tenant_id, [retain_job(conversation_id)])

    async def _prepare(self, caller: Caller, draft: SummaryDraft) -> PreparedEntries | None:
        if draft.kind is SummaryKind.HIGHLIGHTS:  # recall finds the turns of the lines
            return None
        [prepared] = await self._index.prepare(caller, [IndexDocument(draft.text, _NO_ACTOR, draft.occurred_at)])
        # The entry is found by words if the embedder fails: a job for vectors reads only turns.
        return replace(prepared, vectors_due=False, dates_due=False)

    async def _changed(
        self, caller: Caller, tx: Transaction, head: ConversationRow, draft: SummaryDraft
    ) -> Discarded | None:
        """Return why a draft cannot be stored; None if everything that it was made from is unchanged."""
        conversation_id = ConversationId(head.id)
        if head.summarized_position != draft.position:
            return "moved"
        ids = [*draft.replaces, *([] if draft.shortens is None else [draft.shortens])]
        stored = await summary_store.find(tx, caller.tenant_id, ids) if ids else {}
        if len(stored) != len(ids) or any(row.replaced_by is not None for row in stored.values()):
            return "moved"
        locked = await turn_store.lock_turns(tx, caller.tenant_id, list(draft.sources))
        if locked != dict(draft.sources):
            return "changed"
        # Lines are verbatim: lines of earlier highlights may quote a turn that has been erased since.
        quoted = {line.turn_id for line in draft.lines}
        if quoted - (await turn_store.lock_turns(tx, caller.tenant_id, sorted(quoted))).keys():
            return "changed"
        there = await summary_store.list_unerased(
            tx, caller.tenant_id, conversation_id, after=draft.read_after, through=draft.to_position
        )
        return None if there <= draft.sources.keys() else "changed"

    async def _write_entry(
        self,
        caller: Caller,
        tx: Transaction,
        head: ConversationRow,
        summary_id: UUID,
        draft: SummaryDraft,
        prepared: PreparedEntries | None,
    ) -> None:
        if prepared is None:
            return
        entry = summary_entry(head, summary_id, draft.occurred_at, prepared)
        await self._index.write(caller, tx, entries=[entry])

    async def undo(self, caller: Caller, conversation_id: ConversationId) -> Undone:
        """Delete the newest valid summary; the summaries that it replaced become valid again.

        Raises Conflict: `nothing_to_undo` without a valid summary, `sources_erased` if turns that only it covers were
        erased.
        """
        async with self._database.transaction(caller.tenant_id) as tx:
            head = await lock_conversation(caller, tx, conversation_id)
            rows = await summary_store.list_valid(tx, caller.tenant_id, conversation_id)
            newest = max(rows, key=lambda row: (row.rev, row.id), default=None)
            if newest is None:
                raise Conflict("nothing_to_undo", "This conversation has no valid summary.")
            if newest.from_position <= head.erased_position:
                raise Conflict(
                    "sources_erased",
                    "The turns that the newest summary covers have been erased, so it cannot be removed.",
                )
            rev = head.rev + 1
            await summary_store.delete(tx, caller.tenant_id, [newest.id])
            restored = await summary_store.restore(tx, caller.tenant_id, replaced_by=[newest.id])
            await self._index.erase_entries(caller, tx, kind=EntryKind.SUMMARY, source_ids=[newest.id])
            await self._index.restore(caller, tx, kind=EntryKind.SUMMARY, source_ids=restored)
            await update_summary_mark(caller, tx, head, rev=rev)
            after = await get_conversation(caller, tx, conversation_id)
            record(
                tx,
                caller,
                Action.CONVERSATION_UNDO_COMPACT,
                ObjectKind.SUMMARY,
                newest.id,
                conversation_id=conversation_id,
                counts={"summaries": 1},
            )
            self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=rev)
        return Undone(
            conversation_id=format_id(conversation_id),
            undone=format_id(newest.id),
            restored=[format_id(summary_id) for summary_id in restored],
            summarized_through=None if after.summarized_through is None else format_id(after.summarized_through),
            rev=rev,
        )


def _valid_summaries(head: ConversationRow, rows: Sequence[SummaryRow]) -> ValidSummaries:
    position = covered_through(rows, erased_position=head.erased_position)
    return ValidSummaries(
        policy=Compaction.model_validate(head.compaction),
        retention=Retention(head.retention),
        position=position,
        beyond=min((row.from_position for row in rows if row.from_position > position), default=None),
        turns=head.turn_count - head.summarized_turns,
        tokens=head.token_count - head.summarized_tokens,
        erased_position=head.erased_position,
        summaries=[valid_summary(row) for row in rows],
        rev=head.rev,
        summarized_through=head.summarized_through,
    )


def summary_entry(
    head: ConversationRow, summary_id: UUID, occurred_at: datetime, prepared: PreparedEntries
) -> IndexEntry:
    """Return the index entry of a summary."""
    return IndexEntry(
        source_id=summary_id,
        kind=EntryKind.SUMMARY,
        conversation_id=ConversationId(head.id),
        project=head.project,
        owner=head.owner,
        occurred_at=occurred_at,
        prepared=prepared,
    )
