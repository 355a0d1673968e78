"""Revises turns: a new turn supersedes an old one at its position; the old one stays stored and points to the new one.

Defaults come from members of the old turn that never change. Whether it is still live is checked again under the lock
of the head.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias
from uuid import UUID

from app.audit.schemas import Action
from app.conversations.derived_titles import DerivedTitles
from app.conversations.drafts import InheritedFields, make_revision
from app.conversations.find import get_turn, lock_conversation
from app.conversations.policies import withdraw_jobs
from app.conversations.schemas.conversations import Revision, RevisionResult
from app.conversations.stores import conversation_store, stream_store, turn_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.summaries.invalidation import compact_job, invalidate
from app.conversations.turns.append import (
    Appender,
    check_answers,
    record_turns,
    require_seq,
    require_unerased,
    same_turn,
)
from app.conversations.turns.placement import PreparedTurn, RevisionPlacement, place_revision
from app.conversations.views import turn_view_for
from app.core.database.transactions import Database, Transaction
from app.core.errors import Conflict, FieldError
from app.core.ids import ConversationId, TenantId, TurnId, format_id, new_uuid
from app.core.jobs import JobQueue
from app.core.outbox import EventOutbox, EventType
from app.formats.schemas import Kind, Role
from app.index.schemas import EntryKind, IndexPosition
from app.index.service import SearchIndex
from app.settings.conversations import LimitSettings
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult, result_deleted
from app.tenancy.service import Tenancy

Expire: TypeAlias = Callable[[Transaction, TenantId, TurnId], Awaitable[bool]]
"""Aborts an open turn whose lease has expired; returns false if the lease is valid or the turn has ended."""


@dataclass(frozen=True, slots=True)
class ReplacedTurn:
    """A revision, and the number of turns that it superseded."""

    row: TurnRow
    superseded_count: int


class Reviser:
    """The revision operation of turns."""

    def __init__(
        self,
        database: Database,
        *,
        tenancy: Tenancy,
        index: SearchIndex,
        appender: Appender,
        limits: LimitSettings,
        jobs: JobQueue,
        outbox: EventOutbox,
        titles: DerivedTitles,
    ) -> None:
        self._outbox = outbox
        self._database = database
        self._idempotency = tenancy.idempotency
        self._index = index
        self._appender = appender
        self._limits = limits
        self._jobs = jobs
        self._titles = titles

    async def revise(
        self, caller: Caller, conversation_id: ConversationId, *, turn_id: TurnId, body: Revision,
        idempotency_key: IdempotencyKey | None, expire: Expire,
    ) -> RequestResult[RevisionResult]:  # fmt: skip
        """Store a turn as the revision of another one."""
        async with self._database.transaction(caller.tenant_id) as tx:
            before = await self._idempotency.find(caller, tx, idempotency_key, read=self._read)
            if before is not None:
                return before.with_value(_result(caller, before.value))
            old = await get_turn(caller, tx, conversation_id, turn_id)
        inherited = InheritedFields(old.id, Role(old.role), Kind(old.kind), old.actor)
        draft = make_revision(inherited, body, limits=self._limits, now=datetime.now(UTC))
        if draft.id is None:  # another may be stored already: see `_store`
            self._appender.require_quota(caller)
        [item] = await self._appender.prepare_turns(caller, [draft])
        async with self._database.transaction(caller.tenant_id) as tx:
            stored = await self._idempotency.run_once(
                caller, tx, idempotency_key, result_ids=lambda replaced: [replaced.row.id], read=self._read,
                run=lambda: self._store(caller, tx, conversation_id, turn_id, item, body, expire),
            )  # fmt: skip
        return stored.with_value(_result(caller, stored.value))

    async def _store(
        self,
        caller: Caller,
        tx: Transaction,
        conversation_id: ConversationId,
        turn_id: TurnId,
        item: PreparedTurn,
        body: Revision,
        expire: Expire,
    ) -> RequestResult[ReplacedTurn]:
        head = await lock_conversation(caller, tx, conversation_id)
        known = await self._known(caller, tx, conversation_id, item)
        if known is not None:
            return RequestResult(await self._replaced(caller, tx, known), is_new=False)
        self._appender.require_quota(caller)
        old = await get_turn(caller, tx, conversation_id, turn_id)
        if old.status == "pending":
            # its lease may have expired and its writer may have been refused, before the sweep aborts it
            await expire(tx, caller.tenant_id, turn_id)
            old = await get_turn(caller, tx, conversation_id, turn_id)
        require_live(old)
        require_seq(head, body.expected_seq)
        replaced = await self.replace(caller, tx, head, old, item, truncate_after=body.truncate_after)
        record_turns(tx, caller, Action.TURN_REVISE, [replaced.row])
        return RequestResult(replaced, is_new=True)

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
        await self._appender.write(caller, tx, head, placed, [item.draft])
        changed = [(one, position) for one in superseded_ids]
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
            return (await self._appender.write_last(caller, tx, head, [item])).rows[0]
        await check_answers(caller, tx, conversation_id, [item], root="", before=position)
        await stream_store.reserve_positions(tx, caller.tenant_id, conversation_id, by=-1)
        before = await turn_store.count_live_before(tx, caller.tenant_id, conversation_id, position)
        if before == head.turn_count:
            placed = await self._appender.write_last(caller, tx, head, [item], position=position)
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
            await self._appender.write(caller, tx, head, placed, [item.draft])
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
            replaced = ReplacedTurn((await self._appender.write_last(caller, tx, head, [item])).rows[0], 0)
        row = replaced.row
        await turn_store.supersede_aborted(tx, caller.tenant_id, aborted.id, by=row.id, rev=row.rev)
        return replaced

    async def _known(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, item: PreparedTurn
    ) -> TurnRow | None:
        """Return the turn that this revision stored before. Raises Conflict if the id is erased or of another turn."""
        if item.draft.id is None:
            return None
        row = (await conversation_store.find_turns(tx, caller.tenant_id, [item.draft.id])).get(item.draft.id)
        if row is None:
            return None
        require_unerased(row, conversation_id, "/id")
        if not same_turn(row, item.draft, conversation_id):
            raise Conflict(
                "turn_id_conflict",
                "The turn id is taken by another turn; nothing was stored.",
                fields=[FieldError("/id", "a turn of this id has another body, or is of another conversation")],
            )
        return row

    async def _index_place(self, caller: Caller, tx: Transaction, head: ConversationRow, old: TurnRow) -> IndexPosition:
        conversation_id = ConversationId(head.id)
        found = await self._index.place_of(caller, tx, turn_id=old.id)
        if found is not None:
            return found
        # a turn without index entry (erased, or an instruction) has the session of its neighbours
        position = 1 + await turn_store.count_live_before(tx, caller.tenant_id, conversation_id, old.position or 0)
        session = await self._index.session_around(caller, tx, conversation_id=conversation_id, position=position)
        return IndexPosition(position, session or head.session)

    async def _replaced(self, caller: Caller, tx: Transaction, row: TurnRow) -> ReplacedTurn:
        superseded = await turn_store.count_superseded_by(
            tx, caller.tenant_id, ConversationId(row.conversation_id), by=row.id, position=row.position or 0
        )
        return ReplacedTurn(row, superseded)

    async def _read(self, caller: Caller, tx: Transaction, turn_ids: Sequence[UUID]) -> ReplacedTurn:
        row = (await conversation_store.find_turns(tx, caller.tenant_id, turn_ids)).get(turn_ids[0])
        if row is None:
            raise result_deleted()
        return await self._replaced(caller, tx, row)


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


def _result(caller: Caller, replaced: ReplacedTurn) -> RevisionResult:
    row = replaced.row
    return RevisionResult(
        conversation_id=format_id(row.conversation_id),
        turn=turn_view_for(caller, row),
        superseded_count=replaced.superseded_count,
        seq=row.seq or 0,
        rev=row.rev,
        head_hash=(row.chain_hash or b"").hex(),
    )
