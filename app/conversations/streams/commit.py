"""End open turns: commit them into the conversation, or abort them with their text so far.

Slow work (tokens, hashes, vectors) is done outside of a transaction. The text read before is still complete in the
transaction that writes: only this process flushes a stream under its epoch and holder, and not while it ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.conversations.drafts import make_draft
from app.conversations.events import EventPublisher
from app.conversations.find import get_turn, lock_conversation
from app.conversations.schemas.conversations import Retention
from app.conversations.schemas.frames import Ending
from app.conversations.stores import retention_store, stream_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.streams.buffer import OpenTurnBuffer, fenced_error
from app.conversations.streams.chunk_merge import aborted_columns, finished_turn
from app.conversations.summaries.invalidation import retain_job
from app.conversations.turns.append import (
    Appender,
    check_answers,
    record_turns,
    require_seq,
    results_of_history,
    turn_ids,
)
from app.conversations.turns.placement import PreparedTurn
from app.conversations.turns.revise import Reviser, require_live
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError, Conflict, NotFound
from app.core.ids import ConversationId, TenantId, TurnId
from app.core.jobs import JobQueue
from app.settings.conversations import LimitSettings
from app.tenancy.schemas import Caller, IdempotencyKey, job_caller
from app.tenancy.service import Tenancy

LEASE_EXPIRED = "lease_expired"
TRASHED = "conversation_trashed"
_ABORTED_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class TurnReplacement:
    """The turn that an exchange replaces at its commit; with `truncate_after_seq` also the turns after it.

    `truncate_after_seq` is the expected last seq of the conversation.
    """

    turn_id: TurnId
    truncate_after_seq: int | None = None


class TurnFinalizer:
    """Commits and aborts open turns."""

    def __init__(
        self,
        database: Database,
        *,
        tenancy: Tenancy,
        appender: Appender,
        reviser: Reviser,
        holder: UUID,
        publisher: EventPublisher,
        limits: LimitSettings,
        jobs: JobQueue,
    ) -> None:
        self._database = database
        self._idempotency = tenancy.idempotency
        self._appender = appender
        self._reviser = reviser
        self._holder = holder
        self._publisher = publisher
        self._limits = limits
        self._jobs = jobs

    async def commit(self, caller: Caller, buffer: OpenTurnBuffer, *, ending: Ending) -> TurnRow:
        """Store an open turn with all taken text. The caller has its `end_lock`, so nothing is flushed meanwhile."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            await self._require_holder(caller, tx, buffer, lock=False)
            row = await get_turn(caller, tx, buffer.conversation_id, buffer.turn_id)
            parts = await self._read_parts(tx, buffer)
        if buffer.is_missing_text(parts):
            # acknowledged text is missing: the writer has to send it again
            raise fenced_error()
        buffer.require_confirmed(content=ending.length is not None)
        turn = finished_turn(row, parts, ending)
        draft = make_draft(
            turn,
            limits=self._limits,
            now=datetime.now(UTC),
            supersedes=row.supersedes,
            created_at=row.created_at,
        )
        [item] = await self._appender.prepare_turns(caller, [draft])
        async with self._database.transaction(caller.tenant_id) as tx:
            head = await lock_conversation(caller, tx, buffer.conversation_id)
            await self._require_holder(caller, tx, buffer, lock=True)
            await stream_store.delete_pending(tx, caller.tenant_id, buffer.turn_id)
            stored = await self._store(caller, tx, head, item, position=row.position)
            record_turns(tx, caller, Action.TURN_COMMIT, [stored])
            self._publisher.publish_turn(
                tx,
                "ended",
                caller.tenant_id,
                buffer.conversation_id,
                turn_id=buffer.turn_id,
                epoch=buffer.epoch,
            )
        return stored

    async def _store(
        self, caller: Caller, tx: Transaction, head: ConversationRow, item: PreparedTurn, *, position: int | None
    ) -> TurnRow:
        """Store a turn: as a revision, at the position that it has reserved, or as the newest one."""
        conversation_id = ConversationId(head.id)
        if position is not None:
            return await self._reviser.insert(caller, tx, head, item, position=position)
        if item.draft.supersedes is None:
            await check_answers(caller, tx, conversation_id, [item], root="")
            return (await self._appender.write_last(caller, tx, head, [item])).rows[0]
        old = await get_turn(caller, tx, conversation_id, TurnId(item.draft.supersedes))
        require_live(old)
        return (await self._reviser.replace(caller, tx, head, old, item)).row

    async def commit_all(
        self, caller: Caller, buffers: Sequence[OpenTurnBuffer], *, items: Sequence[PreparedTurn],
        replaced: TurnReplacement | None, idempotency_key: IdempotencyKey | None,
    ) -> list[TurnRow]:  # fmt: skip
        """Store open turns of one conversation in one transaction, with the content of `items`, which have their ids.

        With `replaced` there is one item, which supersedes that turn.
        """
        conversation_id = buffers[0].conversation_id
        async with self._database.transaction(caller.tenant_id) as tx:
            await self._idempotency.reserve(caller, tx, idempotency_key, read=self._idempotency.refuse_repeat)
            head = await lock_conversation(caller, tx, conversation_id)
            for buffer in sorted(buffers, key=lambda buffer: buffer.turn_id):
                await self._require_holder(caller, tx, buffer, lock=True)
            for buffer in buffers:
                await stream_store.delete_pending(tx, caller.tenant_id, buffer.turn_id)
            if replaced is None:
                *messages, _ = [item.draft for item in items]
                await check_answers(caller, tx, conversation_id, items, of_history=results_of_history(messages))
                rows = list((await self._appender.write_last(caller, tx, head, items)).rows)
            else:
                old = await get_turn(caller, tx, conversation_id, replaced.turn_id)
                require_live(old)
                require_seq(head, replaced.truncate_after_seq)
                and_after = replaced.truncate_after_seq is not None
                rows = [(await self._reviser.replace(caller, tx, head, old, items[0], truncate_after=and_after)).row]
            record_turns(tx, caller, Action.TURN_COMMIT, rows)
            await self._idempotency.store_result(caller, tx, idempotency_key, turn_ids(rows), is_new=False)
            for buffer in buffers:
                self._publisher.publish_turn(
                    tx, "ended", caller.tenant_id, conversation_id, turn_id=buffer.turn_id, epoch=buffer.epoch
                )
        return rows

    async def _require_holder(self, caller: Caller, tx: Transaction, buffer: OpenTurnBuffer, *, lock: bool) -> None:
        read = stream_store.lock_stream if lock else stream_store.find_stream
        stream = await read(tx, caller.tenant_id, buffer.turn_id)
        if stream is None:
            raise not_open_error(await get_turn(caller, tx, buffer.conversation_id, buffer.turn_id))
        ours = (buffer.conversation_id, buffer.epoch, self._holder)
        if buffer.is_dropped or (stream.conversation_id, stream.epoch, stream.holder) != ours:
            raise fenced_error()

    async def _read_parts(self, tx: Transaction, buffer: OpenTurnBuffer) -> dict[str, str]:
        """Read the whole text of a turn: the durable text and the tail of the buffer. Empty parts are left out."""
        texts = (await stream_store.read_texts(tx, buffer.tenant_id, [buffer.turn_id])).get(buffer.turn_id, {})
        buffer.reconcile_durable({part: len(text) for part, text in texts.items()})
        names = dict.fromkeys([*texts, *buffer.parts])
        whole = {name: texts.get(name, "") + "".join(buffer.part(name).tail) for name in names}
        return {name: text for name, text in whole.items() if text}

    async def abort(self, caller: Caller, buffer: OpenTurnBuffer, *, reason: str | None) -> TurnRow:
        """Abort an open turn with all taken text."""
        async with self._database.transaction(caller.tenant_id) as tx:
            await self._require_holder(caller, tx, buffer, lock=True)
            return await self._abort(
                caller,
                tx,
                buffer.conversation_id,
                buffer.turn_id,
                parts=await self._read_parts(tx, buffer),
                reason=reason,
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
        await stream_store.abort_turn(
            tx, caller.tenant_id, turn_id, content=content, tool_calls=calls, metadata=metadata
        )
        await stream_store.delete_open(tx, caller.tenant_id, [turn_id])
        record(
            tx,
            caller,
            Action.TURN_ABORT,
            ObjectKind.TURN,
            turn_id,
            conversation_id=conversation_id,
            counts={"turns": 1},
        )
        # the retention of the conversation may have changed since the turn was opened
        retention = await retention_store.find_retention(tx, caller.tenant_id, conversation_id)
        if retention not in {None, Retention.FULL.value}:
            await self._jobs.enqueue(tx, caller.tenant_id, [retain_job(conversation_id)])
        self._publisher.publish_turn(tx, "ended", caller.tenant_id, conversation_id, turn_id=turn_id)
        return await get_turn(caller, tx, conversation_id, turn_id)

    async def abort_expired(self, tenant_id: TenantId, turn_id: TurnId, *, lease_s: float) -> bool:
        """Abort an open turn if its lease has expired. Return False if it has not expired, or the turn has ended."""
        async with self._database.transaction(tenant_id) as tx:
            return await self.expire(tx, tenant_id, turn_id, lease_s=lease_s)

    async def expire(self, tx: Transaction, tenant_id: TenantId, turn_id: TurnId, *, lease_s: float) -> bool:
        """Abort an open turn in a given transaction if its lease has expired. Return as `abort_expired` does."""
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

    async def abort_open(self, caller: Caller, tx: Transaction, conversation_id: ConversationId) -> None:
        """Abort the open turns of a conversation, whose head is locked, with their durable text."""
        while opened := await stream_store.list_open(tx, caller.tenant_id, conversation_id, limit=_ABORTED_AT_ONCE):
            turn_ids = [TurnId(row.id) for row, _ in opened]
            await self.abort_these(caller, tx, conversation_id, turn_ids, reason=TRASHED)

    async def abort_these(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, turn_ids: Sequence[TurnId], *,
        reason: str,
    ) -> None:  # fmt: skip
        """Abort those turns of a conversation, whose head is locked, that are open, with their durable text."""
        opened: list[TurnId] = []
        for turn_id in sorted(turn_ids):
            stream = await stream_store.lock_stream(tx, caller.tenant_id, turn_id)
            if stream is not None and stream.conversation_id == conversation_id:
                opened.append(turn_id)
        texts = await stream_store.read_texts(tx, caller.tenant_id, opened)
        for turn_id in opened:
            await self._abort(caller, tx, conversation_id, turn_id, parts=texts.get(turn_id, {}), reason=reason)


def not_open_error(row: TurnRow) -> AppError:
    """Return the error for a turn that is not open, by its status."""
    if row.status == "committed":
        return Conflict("turn_committed", "This turn is committed and takes no more text. Revise it instead.")
    if row.status == "aborted":
        return Conflict("turn_aborted", "This turn was aborted; open another turn that supersedes it (`supersedes`).")
    return NotFound("not_found", "There is no such open turn.")
