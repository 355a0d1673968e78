"""Erases the content of turns and leaves tombstones, in the transaction of the caller."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from app.conversations.derived_titles import DerivedTitles
from app.conversations.events import EventPublisher
from app.conversations.find import lock_conversation
from app.conversations.responses import store as response_store
from app.conversations.schemas.conversations import ErasedTurns
from app.conversations.stores import conversation_store, stream_store, turn_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.summaries.invalidation import compact_job, invalidate, list_retained_tombstones
from app.core.database.transactions import Transaction
from app.core.errors import FieldError, NotFound
from app.core.ids import ConversationId, format_id
from app.core.jobs import JobQueue
from app.core.outbox import EventType
from app.index.service import SearchIndex
from app.tenancy.schemas import Caller


class TurnErasure(NamedTuple):
    """The result of an erasure, and the ids of the erased turns and of all their revisions."""

    result: ErasedTurns
    turn_ids: Sequence[UUID]


class ConversationEraser:
    """Deletes conversations and erases turns, in the caller's transactions."""

    def __init__(self, *, index: SearchIndex, jobs: JobQueue, titles: DerivedTitles, publisher: EventPublisher) -> None:
        self._index = index
        self._jobs = jobs
        self._titles = titles
        self._publisher = publisher

    async def lock(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> str:
        """Lock a conversation until the transaction ends, so that nothing is appended; return its project.

        Raises NotFound.
        """
        return (await lock_conversation(caller, tx, conversation_id)).project

    async def erase(
        self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId, project: str
    ) -> dict[str, int]:
        """Delete a conversation and its turns."""
        self._publisher.publish_deleted(tx, caller.tenant_id, conversation_id)
        self._publisher.record_conversation(
            tx, caller.tenant_id, EventType.CONVERSATION_DELETED, conversation_id, project=project
        )
        return await stream_store.delete_conversation(tx, caller.tenant_id, conversation_id)

    async def erase_turns(
        self,
        caller: Caller,
        tx: Transaction,
        *,
        conversation_id: ConversationId,
        turn_ids: Sequence[UUID],
        only_this: bool,
    ) -> TurnErasure:
        """Erase the named turns, all or none, and their other revisions unless `only_this`.

        Raises NotFound with the missing turns. A turn that is already erased stays erased. Summaries of erased turns
        are deleted; a job summarises the turns that are still live. A turn whose content retention has erased loses
        its salt and its summaries too.
        """
        head = await lock_conversation(caller, tx, conversation_id)
        named = list(dict.fromkeys(turn_ids))
        rows = await conversation_store.find_turns(tx, caller.tenant_id, named, include_content=False)
        _require_all(conversation_id, turn_ids, rows)
        erased_ids = named
        if not only_this:
            revisions = await _find_revisions(caller, tx, conversation_id, list(rows.values()))
            others = [turn_id for turn_id in revisions if turn_id not in rows]
            if others:
                rows |= await conversation_store.find_turns(tx, caller.tenant_id, others, include_content=False)
            erased_ids = [*named, *others]
        fresh = [turn_id for turn_id in erased_ids if rows[turn_id].erased_at is None or rows[turn_id].salt is not None]
        # counters and summaries no longer include superseded turns
        stale = [row for turn_id, row in rows.items() if turn_id not in fresh and row.superseded_by is None]
        retained = await list_retained_tombstones(caller, tx, head, stale)
        rev = head.rev
        if fresh or retained:
            rev += 1
            live = [rows[turn_id] for turn_id in fresh if rows[turn_id].superseded_by is None]
            await self._empty(caller, tx, head, fresh, live, rev=rev)
            changed = [*((row.id, row.position or 0) for row in live), *retained]
            if await invalidate(caller, tx, self._index, head, changed=changed, and_after=False, rev=rev):
                await self._jobs.enqueue(tx, caller.tenant_id, [compact_job(head.id)])
            await self._titles.invalidate(caller, tx, head, removed_ids=fresh)
        erased = ErasedTurns(
            conversation_id=format_id(conversation_id),
            erased=[format_id(turn_id) for turn_id in fresh],
            already_erased=[format_id(turn_id) for turn_id in named if turn_id not in fresh],
            rev=rev,
        )
        self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=rev)
        self._publisher.outbox.record(
            tx, caller.tenant_id, EventType.TURN_ERASED, fresh, conversation_id=conversation_id
        )
        return TurnErasure(erased, erased_ids)

    async def _empty(
        self,
        caller: Caller,
        tx: Transaction,
        head: ConversationRow,
        turn_ids: Sequence[UUID],
        live: Sequence[TurnRow],
        *,
        rev: int,
    ) -> None:
        """Replace turns by tombstones, and update the counters of the head by the live ones."""
        # locked before the turns, in the same order as when an open turn ends
        await stream_store.delete_open(tx, caller.tenant_id, turn_ids)
        await turn_store.erase(tx, caller.tenant_id, turn_ids, rev=rev)
        await response_store.delete(tx, caller.tenant_id, turn_ids)
        behind = [row for row in live if (row.position or 0) > head.summarized_position and row.erased_at is None]
        tokens = sum(row.content_tokens for row in live)
        await turn_store.update_after_erase(
            tx, caller.tenant_id, ConversationId(head.id), rev=rev, tokens=tokens, unsummarised=len(behind)
        )


def _require_all(conversation_id: ConversationId, turn_ids: Sequence[UUID], rows: Mapping[UUID, TurnRow]) -> None:
    missing = [
        FieldError(f"/ids/{number}", "no turn of this conversation", "query")
        for number, turn_id in enumerate(turn_ids)
        if turn_id not in rows or rows[turn_id].conversation_id != conversation_id
    ]
    if missing:
        raise NotFound("not_found", "There is no such turn in this conversation; nothing was erased.", fields=missing)


async def _find_revisions(
    caller: Caller, tx: Transaction, conversation_id: ConversationId, rows: Sequence[TurnRow]
) -> Sequence[UUID]:
    """Return the ids of all revisions of these turns, and of the uncommitted drafts of revisions.

    A draft has no other revisions.
    """
    positions = sorted({row.position for row in rows if row.position is not None})
    if not positions:
        return []
    revisions, drafts = await turn_store.list_revisions(tx, caller.tenant_id, conversation_id, positions)
    return [*revisions, *_drafts_of(revisions, drafts)]


def _drafts_of(revisions: Mapping[UUID, UUID | None], drafts: Mapping[UUID, UUID | None]) -> list[UUID]:
    """Return the drafts that supersede one of `revisions`, directly or through other drafts."""
    by_superseded: dict[UUID, list[UUID]] = {}
    for draft, superseded in drafts.items():
        if superseded is not None:
            by_superseded.setdefault(superseded, []).append(draft)
    belonging: dict[UUID, None] = {}
    ahead = list(revisions)
    while ahead:
        turn_id = ahead.pop()
        superseded = revisions[turn_id] if turn_id in revisions else drafts[turn_id]
        for other in (*by_superseded.get(turn_id, ()), *([superseded] if superseded is not None else ())):
            if other in drafts and other not in belonging:
                belonging[other] = None
                ahead.append(other)
    return list(belonging)
