"""End open turns: commit them into the conversation, or abort them with their text so far.

Slow work (tokens, hashes, vectors) is done outside of a transaction. The text read before is still complete in the
transaction that writes: only this process flushes a stream under its epoch and holder, and not while it ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from app.audit.schemas import Action
from app.conversations.drafts import make_draft
from app.conversations.events import EventPublisher
from app.conversations.find import get_turn, lock_conversation
from app.conversations.schemas.frames import Ending
from app.conversations.stores import stream_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.streams.abort import TurnAborter
from app.conversations.streams.buffer import OpenTurnBuffer, fenced_error
from app.conversations.streams.chunk_merge import finished_turn
from app.conversations.turns.placement import PreparedTurn
from app.conversations.turns.replace import TurnReplacer, require_live
from app.conversations.turns.turn_writer import (
    TurnWriter,
    check_answers,
    record_turns,
    require_seq,
    results_of_history,
    turn_ids,
)
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError, Conflict, NotFound
from app.core.ids import ConversationId, TurnId
from app.settings.conversations import LimitSettings
from app.tenancy.schemas import Caller, IdempotencyKey
from app.tenancy.service import Tenancy


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
        writer: TurnWriter,
        replacer: TurnReplacer,
        aborter: TurnAborter,
        holder: UUID,
        publisher: EventPublisher,
        limits: LimitSettings,
    ) -> None:
        self._database = database
        self._idempotency = tenancy.idempotency
        self._writer = writer
        self._replacer = replacer
        self._aborter = aborter
        self._holder = holder
        self._publisher = publisher
        self._limits = limits

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
        [item] = await self._writer.prepare_turns(caller, [draft])
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
            return await self._replacer.insert(caller, tx, head, item, position=position)
        if item.draft.supersedes is None:
            await check_answers(caller, tx, conversation_id, [item], root="")
            return (await self._writer.write_last(caller, tx, head, [item])).rows[0]
        old = await get_turn(caller, tx, conversation_id, TurnId(item.draft.supersedes))
        require_live(old)
        return (await self._replacer.replace(caller, tx, head, old, item)).row

    async def commit_all(
        self,
        caller: Caller,
        buffers: Sequence[OpenTurnBuffer],
        *,
        items: Sequence[PreparedTurn],
        replaced: TurnReplacement | None,
        idempotency_key: IdempotencyKey | None,
    ) -> list[TurnRow]:
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
                rows = list((await self._writer.write_last(caller, tx, head, items)).rows)
            else:
                old = await get_turn(caller, tx, conversation_id, replaced.turn_id)
                require_live(old)
                require_seq(head, replaced.truncate_after_seq)
                and_after = replaced.truncate_after_seq is not None
                rows = [(await self._replacer.replace(caller, tx, head, old, items[0], truncate_after=and_after)).row]
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
            return await self._aborter.abort(
                caller,
                tx,
                buffer.conversation_id,
                buffer.turn_id,
                parts=await self._read_parts(tx, buffer),
                reason=reason,
            )


def not_open_error(row: TurnRow) -> AppError:
    """Return the error for a turn that is not open, by its status."""
    if row.status == "committed":
        return Conflict("turn_committed", "This turn is committed and takes no more text. Revise it instead.")
    if row.status == "aborted":
        return Conflict("turn_aborted", "This turn was aborted; open another turn that supersedes it (`supersedes`).")
    return NotFound("not_found", "There is no such open turn.")
