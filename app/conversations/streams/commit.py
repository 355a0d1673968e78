"""Ends open turns: commits them into the conversation, or aborts them with what they had.

Everything slow (tokens, hashes, vectors) is worked out with no transaction open; what was read is still true in the one
that writes, because a stream under the same epoch and holder is flushed by this process alone, and not while it ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from app.conversations.drafts import DraftLimits, make_draft
from app.conversations.events import Announcer
from app.conversations.find import get_turn, lock_conversation
from app.conversations.schemas.conversations import Retention
from app.conversations.schemas.frames import Ending
from app.conversations.stores import retention_store, stream_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.streams.buffer import OpenTurnBuffer, fenced
from app.conversations.streams.chunk_merge import aborted_columns, committed_turn
from app.conversations.summaries.invalidation import retain_job
from app.conversations.turns.append import Appender, check_answers, require_seq
from app.conversations.turns.placement import Incoming
from app.conversations.turns.revise import Reviser, require_standing
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError, Conflict, NotFound
from app.core.ids import ConversationId, TenantId, TurnId
from app.core.jobs import JobQueue
from app.tenancy.schemas import Caller, IdempotencyKey, job_caller

LEASE_EXPIRED = "lease_expired"
_OK = 200


@dataclass(frozen=True, slots=True)
class Replaced:
    """A turn whose place another takes at its commit; all behind it goes too where the conversation is at this seq."""

    turn_id: TurnId
    and_after_at: int | None = None


class Ender:
    """Commits and aborts."""

    def __init__(
        self,
        database: Database,
        *,
        appender: Appender,
        reviser: Reviser,
        holder: UUID,
        announcer: Announcer,
        limits: DraftLimits,
        jobs: JobQueue,
    ) -> None:
        self._database = database
        self._appender = appender
        self._reviser = reviser
        self._holder = holder
        self._announcer = announcer
        self._limits = limits
        self._jobs = jobs

    async def commit(self, caller: Caller, held: OpenTurnBuffer, *, ending: Ending) -> TurnRow:
        """Store an open turn with all that was taken of it. Nothing is flushed of it meanwhile."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            await self._require_ours(caller, tx, held, lock=False)
            row = await get_turn(caller, tx, held.conversation_id, held.turn_id)
            parts = await self._whole(tx, held)
        if held.falls_short(parts):
            # what was acknowledged, if not as durable, is not left out in silence: the writer sends it again
            raise fenced()
        held.require_confirmed(content=ending.length is not None)
        turn = committed_turn(row, parts, ending)
        draft = make_draft(
            turn,
            limits=self._limits,
            now=datetime.now(UTC),
            supersedes=row.supersedes,
            created_at=row.created_at,
        )
        [item] = await self._appender.work_out(caller, [draft])
        async with self._database.transaction(caller.tenant_id) as tx:
            head = await lock_conversation(caller, tx, held.conversation_id)
            await self._require_ours(caller, tx, held, lock=True)
            await stream_store.delete_pending(tx, caller.tenant_id, held.turn_id)
            stored = await self._place(caller, tx, head, item)
            self._announcer.turn(
                tx,
                "ended",
                caller.tenant_id,
                held.conversation_id,
                turn_id=held.turn_id,
                epoch=held.epoch,
            )
        return stored

    async def _place(self, caller: Caller, tx: Transaction, head: ConversationRow, item: Incoming) -> TurnRow:
        conversation_id = ConversationId(head.id)
        if item.draft.supersedes is None:
            await check_answers(caller, tx, conversation_id, [item], root="")
            return (await self._appender.write_last(caller, tx, head, [item])).rows[0]
        old = await get_turn(caller, tx, conversation_id, TurnId(item.draft.supersedes))
        require_standing(old)
        row, _ = await self._reviser.replace(caller, tx, head, old, item)
        return row

    async def commit_all(
        self,
        caller: Caller,
        helds: Sequence[OpenTurnBuffer],
        *,
        items: Sequence[Incoming],
        replaced: Replaced | None,
        repeat: IdempotencyKey | None,
    ) -> list[TurnRow]:
        """Store open turns of one conversation together, as `items` say them, whose ids are theirs: all or none.

        Where a turn is `replaced`, there is one item, which takes its place.
        """
        conversation_id = helds[0].conversation_id
        async with self._database.transaction(caller.tenant_id) as tx:
            if repeat is not None:
                await self._appender.require_unanswered(caller, tx, repeat, claiming=True)
            head = await lock_conversation(caller, tx, conversation_id)
            for held in sorted(helds, key=lambda held: held.turn_id):
                await self._require_ours(caller, tx, held, lock=True)
            for held in helds:
                await stream_store.delete_pending(tx, caller.tenant_id, held.turn_id)
            if replaced is None:
                await check_answers(caller, tx, conversation_id, items)
                rows = list((await self._appender.write_last(caller, tx, head, items)).rows)
            else:
                old = await get_turn(caller, tx, conversation_id, replaced.turn_id)
                require_standing(old)
                require_seq(head, replaced.and_after_at)
                and_after = replaced.and_after_at is not None
                row, _ = await self._reviser.replace(caller, tx, head, old, items[0], truncate_after=and_after)
                rows = [row]
            if repeat is not None:
                await self._appender.remember(caller, tx, repeat, rows, status=_OK)
            for held in helds:
                self._announcer.turn(
                    tx, "ended", caller.tenant_id, conversation_id, turn_id=held.turn_id, epoch=held.epoch
                )
        return rows

    async def _require_ours(self, caller: Caller, tx: Transaction, held: OpenTurnBuffer, *, lock: bool) -> None:
        read = stream_store.lock_stream if lock else stream_store.find_stream
        stream = await read(tx, caller.tenant_id, held.turn_id)
        if stream is None:
            raise not_open(await get_turn(caller, tx, held.conversation_id, held.turn_id))
        ours = (held.conversation_id, held.epoch, self._holder)
        if held.dropped or (stream.conversation_id, stream.epoch, stream.holder) != ours:
            raise fenced()

    async def _whole(self, tx: Transaction, held: OpenTurnBuffer) -> dict[str, str]:
        """All text of a held turn: what is durable, and the tail that is here. Parts without any are left out."""
        texts = (await stream_store.read_texts(tx, held.tenant_id, [held.turn_id])).get(held.turn_id, {})
        held.found_durable({part: len(text) for part, text in texts.items()})
        names = dict.fromkeys([*texts, *held.parts])
        whole = {name: texts.get(name, "") + "".join(held.part(name).tail) for name in names}
        return {name: text for name, text in whole.items() if text}

    async def abort(self, caller: Caller, held: OpenTurnBuffer, *, reason: str | None) -> TurnRow:
        """Give an open turn up with all that was taken of it."""
        async with self._database.transaction(caller.tenant_id) as tx:
            await self._require_ours(caller, tx, held, lock=True)
            return await self._abort(
                caller, tx, held.conversation_id, held.turn_id, parts=await self._whole(tx, held), reason=reason
            )

    async def _abort(
        self,
        caller: Caller,
        tx: Transaction,
        conversation_id: ConversationId,
        turn_id: TurnId,
        *,
        parts: Mapping[str, str],
        reason: str | None,
    ) -> TurnRow:
        row = await get_turn(caller, tx, conversation_id, turn_id)
        content, calls, metadata = aborted_columns(row, parts, reason)
        await stream_store.abort(tx, caller.tenant_id, turn_id, content=content, tool_calls=calls, metadata=metadata)
        await stream_store.delete_open(tx, caller.tenant_id, [turn_id])
        # what stood around it when it was begun may be erased by now
        retention = await retention_store.find_retention(tx, caller.tenant_id, conversation_id)
        if retention not in {None, Retention.FULL.value}:
            await self._jobs.enqueue(tx, caller.tenant_id, [retain_job(conversation_id)])
        self._announcer.turn(tx, "ended", caller.tenant_id, conversation_id, turn_id=turn_id)
        return await get_turn(caller, tx, conversation_id, turn_id)

    async def abort_expired(self, tenant_id: TenantId, turn_id: TurnId, *, lease_s: float) -> bool:
        """Give an open turn up whose writer was not heard of for so long; false when it was, or has ended."""
        async with self._database.transaction(tenant_id) as tx:
            return await self.expire(tx, tenant_id, turn_id, lease_s=lease_s)

    async def expire(self, tx: Transaction, tenant_id: TenantId, turn_id: TurnId, *, lease_s: float) -> bool:
        """The same, in the transaction of whoever asks."""
        stream = await stream_store.lock_stream(tx, tenant_id, turn_id)
        if stream is None or stream.age_s <= lease_s:
            return False
        texts = (await stream_store.read_texts(tx, tenant_id, [turn_id])).get(turn_id, {})
        await self._abort(
            job_caller(tenant_id),
            tx,
            ConversationId(stream.conversation_id),
            turn_id,
            parts=texts,
            reason=LEASE_EXPIRED,
        )
        return True


def not_open(row: TurnRow) -> AppError:
    """Why a turn is not open."""
    if row.status == "committed":
        return Conflict("turn_committed", "This turn is committed; nothing can be added. Revise it instead.")
    if row.status == "aborted":
        return Conflict("turn_aborted", "This turn was aborted; open another, with `supersedes` to stand in its place.")
    return NotFound("not_found", "There is no such open turn.")
