"""Supersedes turns, and inserts turns at reserved positions, in the transaction of the caller.

The old turn stays stored and points to the new one, which takes its position. The caller has locked the head.
"""

from dataclasses import dataclass, replace

from app.conversations.derived_titles import DerivedTitles
from app.conversations.policies import withdraw_jobs
from app.conversations.stores import conversation_store, stream_store, turn_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.summaries.invalidation import compact_job, invalidate
from app.conversations.turns.placement import PreparedTurn, RevisionPlacement, place_revision
from app.conversations.turns.turn_writer import TurnWriter, check_answers
from app.core.database.transactions import Transaction
from app.core.errors import Conflict
from app.core.ids import ConversationId, format_id, new_uuid
from app.core.jobs import JobQueue
from app.core.outbox import EventOutbox, EventType
from app.index.schemas import EntryKind, IndexPosition
from app.index.service import SearchIndex
from app.tenancy.schemas import Caller


@dataclass(frozen=True, slots=True)
class ReplacedTurn:
    """A revision, and the number of turns that it superseded."""

    row: TurnRow
    superseded_count: int


class TurnReplacer:
    """Stores turns in the place of others or between them, in the caller's transactions."""

    def __init__(
        self,
        *,
        index: SearchIndex,
        writer: TurnWriter,
        jobs: JobQueue,
        outbox: EventOutbox,
        titles: DerivedTitles,
    ) -> None:
        self._index = index
        self._writer = writer
        self._jobs = jobs
        self._outbox = outbox
        self._titles = titles

    async def replace(
        self,
        caller: Caller,
        tx: Transaction,
        head: ConversationRow,
        old: TurnRow,
        item: PreparedTurn,
        *,
        truncate_after: bool = False,
    ) -> ReplacedTurn:
        """Supersede a turn by a new one, under the lock of the head.

        A new turn for an aborted one takes the position of the turn that the aborted one was to supersede, if that is
        still live. Otherwise it is the newest turn.
        """
        if old.status == "aborted":
            return await self._regenerate(caller, tx, head, old, item, truncate_after=truncate_after)
        conversation_id = ConversationId(head.id)
        position = old.position or 0
        require_kept(head, old, truncate_after=truncate_after)
        await check_answers(caller, tx, conversation_id, [item], root="", before=position)
        new_id = item.draft.id or new_uuid()
        index_position, session = await self._index_place(caller, tx, head, old)
        superseded = await turn_store.supersede(
            tx,
            caller.tenant_id,
            conversation_id,
            position=position,
            and_after=truncate_after,
            by=new_id,
            rev=head.rev + 1,
        )
        spot = RevisionPlacement(
            position=position,
            index_position=index_position,
            session=session,
            is_last=truncate_after or index_position >= head.turn_count,
            superseded_turns=len(superseded),
            superseded_tokens=sum(turn.tokens for turn in superseded),
        )
        tombstones = sum(turn.is_erased for turn in superseded)
        if position > head.summarized_position:  # tombstones after the summarized position were counted as summarized
            head = replace(head, summarized_turns=head.summarized_turns - tombstones)
        superseded_ids = [turn.id for turn in superseded]
        placed = place_revision(head, item, turn_id=new_id, spot=spot)
        self._outbox.record(
            tx, caller.tenant_id, EventType.TURN_SUPERSEDED, superseded_ids, conversation_id=conversation_id
        )
        await self._index.retire(caller, tx, kind=EntryKind.TURN, source_ids=superseded_ids)
        await self._writer.write(caller, tx, head, placed, [item.draft])
        changed = [(turn_id, position) for turn_id in superseded_ids]
        recount, rev = tombstones > 0, placed.rev
        due = withdraw_jobs(superseded_ids) if head.facts_held else []
        if await invalidate(
            caller, tx, self._index, head, changed=changed, and_after=truncate_after, recount=recount, rev=rev
        ):
            due.append(compact_job(head.id))
        await self._jobs.enqueue(tx, caller.tenant_id, due)
        await self._titles.invalidate(caller, tx, head, removed_ids=superseded_ids)
        return ReplacedTurn(placed.rows[0], len(superseded))

    async def insert(
        self, caller: Caller, tx: Transaction, head: ConversationRow, item: PreparedTurn, *, position: int
    ) -> TurnRow:
        """Store a turn at a position that it has reserved, under the lock of the head.

        Summaries of the turns around it are deleted and made again. If retention has erased the turns up to there, the
        turn is the newest one: a summary stands for its neighbours.
        """
        conversation_id = ConversationId(head.id)
        if position <= head.erased_position:
            await check_answers(caller, tx, conversation_id, [item], root="")
            return (await self._writer.write_last(caller, tx, head, [item])).rows[0]
        await check_answers(caller, tx, conversation_id, [item], root="", before=position)
        await stream_store.reserve_positions(tx, caller.tenant_id, conversation_id, by=-1)
        before = await turn_store.count_live_before(tx, caller.tenant_id, conversation_id, position)
        if before == head.turn_count:
            placed = await self._writer.write_last(caller, tx, head, [item], position=position)
        else:
            await self._index.make_room(caller, tx, conversation_id=conversation_id, at=before + 1)
            session = await self._index.session_around(caller, tx, conversation_id=conversation_id, position=before + 1)
            spot = RevisionPlacement(
                position=position,
                index_position=before + 1,
                session=session or head.session,
                is_last=False,
                superseded_turns=0,
                superseded_tokens=0,
            )
            placed = place_revision(head, item, turn_id=item.draft.id or new_uuid(), spot=spot)
            await self._writer.write(caller, tx, head, placed, [item.draft])
            await self._titles.renew_from(caller, tx, head, turn_id=placed.rows[0].id, kind=placed.rows[0].kind)
        row = placed.rows[0]
        changed = [(row.id, position)]
        if await invalidate(
            caller, tx, self._index, head, changed=changed, and_after=False, is_new=True, rev=placed.rev
        ):
            await self._jobs.enqueue(tx, caller.tenant_id, [compact_job(head.id)])
        return row

    async def _regenerate(
        self,
        caller: Caller,
        tx: Transaction,
        head: ConversationRow,
        aborted: TurnRow,
        item: PreparedTurn,
        *,
        truncate_after: bool,
    ) -> ReplacedTurn:
        behind: TurnRow | None = None
        if aborted.supersedes is not None:
            behind = (await conversation_store.find_turns(tx, caller.tenant_id, [aborted.supersedes])).get(
                aborted.supersedes
            )
        if behind is not None and behind.status == "committed" and behind.superseded_by is None:
            replaced = await self.replace(caller, tx, head, behind, item, truncate_after=truncate_after)
        else:
            await check_answers(caller, tx, ConversationId(head.id), [item], root="")
            replaced = ReplacedTurn((await self._writer.write_last(caller, tx, head, [item])).rows[0], 0)
        row = replaced.row
        await turn_store.supersede_aborted(tx, caller.tenant_id, aborted.id, by=row.id, rev=row.rev)
        return replaced

    async def _index_place(self, caller: Caller, tx: Transaction, head: ConversationRow, old: TurnRow) -> IndexPosition:
        conversation_id = ConversationId(head.id)
        place = await self._index.place_of(caller, tx, turn_id=old.id)
        if place is not None:
            return place
        # a turn without index entry (erased, or an instruction) has the session of its neighbours
        position = 1 + await turn_store.count_live_before(tx, caller.tenant_id, conversation_id, old.position or 0)
        session = await self._index.session_around(caller, tx, conversation_id=conversation_id, position=position)
        return IndexPosition(position, session or head.session)


def require_live(old: TurnRow) -> None:
    """Raise Conflict if a turn cannot be revised: it is superseded or still open."""
    if old.status == "pending":
        raise Conflict("turn_pending", "The turn is still being written; commit or abort it first.")
    # an aborted turn is superseded by itself until a revision supersedes it
    if old.superseded_by is not None and (old.status, old.superseded_by) != ("aborted", old.id):
        raise Conflict(
            "already_superseded",
            "The turn has been superseded; revise the turn that replaced it.",
            extra={"superseded_by": format_id(old.superseded_by)},
        )


def require_kept(head: ConversationRow, old: TurnRow, *, truncate_after: bool) -> None:
    """Raise Conflict if retention has erased the turn, because its revision would delete the summary of its neighbours.

    A truncation is allowed: it explicitly supersedes the neighbours after the turn too.
    """
    if (old.position or 0) <= head.erased_position and old.position and not truncate_after:
        raise Conflict(
            "sources_erased",
            "The conversation's retention has erased this turn, and a summary covers it; nothing was stored.",
        )
