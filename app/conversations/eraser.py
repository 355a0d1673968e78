"""Erases what turns say and leaves tombstones, in the transaction of whoever erases."""

from collections.abc import Sequence
from uuid import UUID

from app.conversations import store, stream_store, turn_store
from app.conversations.covering import compact_job, still_told, withdraw
from app.conversations.finding import lock_conversation
from app.conversations.schemas import ErasedTurns
from app.core.db import Transaction
from app.core.errors import FieldError, NotFound
from app.core.ids import ConversationId, format_id
from app.core.jobs import JobQueue
from app.index.service import SearchIndex
from app.tenancy.schemas import Caller


async def erase_turns(
    caller: Caller,
    tx: Transaction,
    conversation_id: ConversationId,
    turn_ids: Sequence[UUID],
    *,
    index: SearchIndex,
    jobs: JobQueue,
) -> ErasedTurns:
    """Erase the named turns, all or none; one that is not there is NotFound, naming it. Erased ones stay so.

    Summaries that rest on them go too; what still stands is summarised anew by a job. What retention has emptied is
    erased as all else is: its salt goes, and the summaries that stand for it.
    """
    head = await lock_conversation(caller, tx, conversation_id)
    wanted = list(dict.fromkeys(turn_ids))
    rows = await store.find_turns(tx, caller.tenant_id, wanted, bare=True)
    missing = [
        FieldError(f"/ids/{index}", "no turn of this conversation", "query")
        for index, turn_id in enumerate(turn_ids)
        if turn_id not in rows or rows[turn_id].conversation_id != conversation_id
    ]
    if missing:
        raise NotFound("not_found", "There is no such turn in this conversation; nothing was erased.", fields=missing)
    fresh = [turn_id for turn_id in wanted if rows[turn_id].erased_at is None or rows[turn_id].salt is not None]
    # superseded turns are in no counter any more, and in no summary
    stale = [row for turn_id, row in rows.items() if turn_id not in fresh and row.superseded_by is None]
    told = await still_told(caller, tx, head, stale)
    rev = head.rev
    if fresh or told:
        rev += 1
        live = [rows[turn_id] for turn_id in fresh if rows[turn_id].superseded_by is None]
        tokens = sum(row.content_tokens for row in live)
        # before the turns, as whoever ends an open turn does; an erased one counts as given up
        await stream_store.delete_open(tx, caller.tenant_id, fresh)
        await turn_store.erase(tx, caller.tenant_id, fresh, rev=rev)
        behind = [row for row in live if (row.position or 0) > head.summarized_position and row.erased_at is None]
        await turn_store.update_after_erase(
            tx, caller.tenant_id, conversation_id, rev=rev, tokens=tokens, unsummarised=len(behind)
        )
        changed = [*((row.id, row.position or 0) for row in live), *told]
        if await withdraw(caller, tx, index, head, changed=changed, and_after=False, rev=rev):
            await jobs.enqueue(tx, caller.tenant_id, [compact_job(head.id)])
    return ErasedTurns(
        conversation_id=format_id(conversation_id),
        erased=[format_id(turn_id) for turn_id in fresh],
        already_erased=[format_id(turn_id) for turn_id in wanted if turn_id not in fresh],
        rev=rev,
    )
