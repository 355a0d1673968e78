"""Erases the content of turns and leaves tombstones, in the transaction of the caller."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from app.conversations.derived_titles import DerivedTitles
from app.conversations.find import lock_conversation
from app.conversations.schemas.conversations import ErasedTurns
from app.conversations.stores import conversation_store, stream_store, turn_store
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.summaries.invalidation import compact_job, invalidate, list_retained_tombstones
from app.core.database.transactions import Transaction
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
    only_this: bool,
    index: SearchIndex,
    jobs: JobQueue,
    titles: DerivedTitles,
) -> tuple[ErasedTurns, Sequence[UUID]]:
    """Erase the named turns, all or none, and unless `only_this` every other wording of them; gives all their ids.

    A turn that is not there is NotFound, naming it. Erased ones stay so. Summaries that rest on them go too; what is
    still live is summarised anew by a job. What retention has emptied is erased as all else is: its salt goes, and the
    summaries that stand for it.
    """
    head = await lock_conversation(caller, tx, conversation_id)
    named = list(dict.fromkeys(turn_ids))
    rows = await conversation_store.find_turns(tx, caller.tenant_id, named, include_content=False)
    missing = [
        FieldError(f"/ids/{index}", "no turn of this conversation", "query")
        for index, turn_id in enumerate(turn_ids)
        if turn_id not in rows or rows[turn_id].conversation_id != conversation_id
    ]
    if missing:
        raise NotFound("not_found", "There is no such turn in this conversation; nothing was erased.", fields=missing)
    wanted = named
    if not only_this:
        wordings = await _find_wordings(caller, tx, conversation_id, list(rows.values()))
        others = [turn_id for turn_id in wordings if turn_id not in rows]
        rows |= (
            await conversation_store.find_turns(tx, caller.tenant_id, others, include_content=False) if others else {}
        )
        wanted = [*named, *others]
    fresh = [turn_id for turn_id in wanted if rows[turn_id].erased_at is None or rows[turn_id].salt is not None]
    # superseded turns are in no counter any more, and in no summary
    stale = [row for turn_id, row in rows.items() if turn_id not in fresh and row.superseded_by is None]
    told = await list_retained_tombstones(caller, tx, head, stale)
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
        if await invalidate(caller, tx, index, head, changed=changed, and_after=False, rev=rev):
            await jobs.enqueue(tx, caller.tenant_id, [compact_job(head.id)])
        await titles.invalidate(caller, tx, head, gone=fresh)
    erased = ErasedTurns(
        conversation_id=format_id(conversation_id),
        erased=[format_id(turn_id) for turn_id in fresh],
        already_erased=[format_id(turn_id) for turn_id in named if turn_id not in fresh],
        rev=rev,
    )
    return erased, wanted


async def _find_wordings(
    caller: Caller, tx: Transaction, conversation_id: ConversationId, rows: Sequence[TurnRow]
) -> Sequence[UUID]:
    """Every version of these turns, and the drafts that were to take their places.

    A draft itself (a turn that was never committed) has no other wording.
    """
    positions = sorted({row.position for row in rows if row.position is not None})
    if not positions:
        return []
    versions, drafts = await turn_store.list_wordings(tx, caller.tenant_id, conversation_id, positions)
    return [*versions, *_drafts_of(versions, drafts)]


def _drafts_of(versions: Mapping[UUID, UUID | None], drafts: Mapping[UUID, UUID | None]) -> list[UUID]:
    """The drafts that are connected to `versions` by what supersedes what, directly or through other drafts."""
    by_superseded: dict[UUID, list[UUID]] = {}
    for draft, superseded in drafts.items():
        if superseded is not None:
            by_superseded.setdefault(superseded, []).append(draft)
    found: dict[UUID, None] = {}
    ahead = list(versions)
    while ahead:
        turn_id = ahead.pop()
        superseded = versions[turn_id] if turn_id in versions else drafts[turn_id]
        for other in (*by_superseded.get(turn_id, ()), *([superseded] if superseded is not None else ())):
            if other in drafts and other not in found:
                found[other] = None
                ahead.append(other)
    return list(found)
