"""Make this process the holder of an open turn: for a call of its writer, or for a writer that resumes it.

Invariants: text that was taken goes to the next holder. The holder writes its text first: in this process in the
transaction of the resumption, in another process on request. A holder that does not answer in time (it has died, or a
message was lost) is replaced without its text that is not durable. In one process, one call at a time changes the
holder of a turn.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.conversations.events import EventPublisher
from app.conversations.find import get_turn
from app.conversations.schemas.frames import CONTENT, OpenedTurn, Resuming
from app.conversations.stores import stream_store
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.stores.stream_store import NO_HOLDER, StreamRow
from app.conversations.streams.access import StreamCall, StreamReader, contention_error, require_writer
from app.conversations.streams.buffer import OpenTurnBuffer, StreamKey, StreamListener, fenced_error
from app.conversations.streams.commit import not_open_error
from app.conversations.streams.flush import Flusher, SentChunk
from app.conversations.streams.handover import StreamHandover
from app.conversations.streams.open import StoredOpenTurn, TurnOpener
from app.conversations.streams.permissions import require_may_continue, turn_author
from app.conversations.views import turn_view_for
from app.core.database.transactions import Database, Transaction
from app.core.errors import Conflict
from app.core.ids import ConversationId, KeyId, TurnId
from app.settings.conversations import StreamSettings
from app.tenancy.schemas import Caller

MAX_TAKE_OVERS: Final = 20
RESUME_WAIT_S: Final = 0.1
"""How long a writer that resumes waits until the holder, another process, has written its text."""


class TurnTakeOver:
    """Takes open turns over and resumes them; keeps the buffers of the turns of this process."""

    def __init__(
        self,
        database: Database,
        buffers: dict[StreamKey, OpenTurnBuffer],
        *,
        holder: UUID,
        opener: TurnOpener,
        flusher: Flusher,
        handover: StreamHandover,
        publisher: EventPublisher,
        settings: StreamSettings,
    ) -> None:
        self._database = database
        self._buffers = buffers
        self._holder = holder
        self._opener = opener
        self._flusher = flusher
        self._handover = handover
        self._publisher = publisher
        self._settings = settings
        self._changing: WeakValueDictionary[StreamKey, asyncio.Lock] = WeakValueDictionary()

    def _change_lock(self, key: StreamKey) -> asyncio.Lock:
        """Return the lock under which this process changes the holder of a turn."""
        lock = self._changing.get(key)
        if lock is None:
            self._changing[key] = lock = asyncio.Lock()
        return lock

    # for a call of the writer

    async def take_over(self, call: StreamCall) -> OpenTurnBuffer:
        """Make this process the holder of an open turn, for a call of its writer."""
        for _ in range(MAX_TAKE_OVERS):
            async with self._database.transaction(call.caller.tenant_id, read_only=True) as tx:
                stream, _ = await self._find(call, tx, stream_store.find_stream)
                require_writer(call.caller, key_id=stream.key_id, current=stream.epoch, epoch=call.epoch)
            released = await self._handover.request(call.key, holder=stream.holder)
            async with self._change_lock(call.key):
                buffer = await self._take_stream(call, unresponsive=None if released else stream.holder)
            if buffer is not None:
                return buffer
        raise contention_error()

    async def _take_stream(self, call: StreamCall, *, unresponsive: UUID | None) -> OpenTurnBuffer | None:
        """Take a turn that has no holder or the `unresponsive` one. Return None if another process is the holder."""
        caller = call.caller
        async with self._database.transaction(caller.tenant_id) as tx:
            stream, row = await self._find(call, tx, stream_store.lock_stream)
            require_writer(caller, key_id=stream.key_id, current=stream.epoch, epoch=call.epoch)
            is_holder = stream.holder == self._holder
            if is_holder and (existing := self._find_buffer(call.key, stream.epoch)) is not None:
                return existing
            if not is_holder and stream.holder not in {NO_HOLDER, unresponsive}:
                return None
            key_id = KeyId(stream.key_id)
            await stream_store.take_stream(
                tx, caller.tenant_id, call.key.turn_id, holder=self._holder, epoch=stream.epoch, key_id=key_id
            )
            stored = await self._opener.read(caller, tx, row)
        buffer = self.add_buffer(caller, row, stored, None, key_id=key_id)
        # Also if the row names this process: the result of its first attempt was lost.
        if stream.holder != NO_HOLDER:
            buffer.unconfirmed_parts.update((CONTENT, *buffer.parts))
        return buffer

    def _find_buffer(self, key: StreamKey, epoch: int) -> OpenTurnBuffer | None:
        buffer = self._buffers.get(key)
        return buffer if buffer is not None and buffer.epoch == epoch else None

    # for a writer that resumes

    async def resume(self, call: StreamCall, resuming: Resuming, listener: StreamListener | None) -> OpenedTurn:
        """Continue an open turn under the next epoch, with all text that its holder has taken."""
        unresponsive: UUID | None = None
        for _ in range(MAX_TAKE_OVERS):
            async with self._change_lock(call.key):
                resumed = await self._resume_stream(call, resuming, listener, unresponsive)
            if isinstance(resumed, OpenedTurn):
                return resumed
            released = await self._handover.request(call.key, holder=resumed, wait_s=RESUME_WAIT_S)
            unresponsive = None if released else resumed
        raise contention_error()

    async def _resume_stream(
        self, call: StreamCall, resuming: Resuming, listener: StreamListener | None, unresponsive: UUID | None
    ) -> OpenedTurn | UUID:
        """Resume a turn, or return its holder, which is another process that was not asked for its text."""
        buffer = self._buffers.get(call.key)
        if buffer is None:
            return await self._resume_after(call, resuming, listener, unresponsive, None)
        async with buffer.end_lock:  # no text is taken meanwhile
            try:
                await buffer.wait_for_write()
                return await self._resume_after(call, resuming, listener, unresponsive, buffer)
            finally:
                if buffer.has_tail():  # after a refusal the writer before continues
                    self._flusher.wake()

    async def _resume_after(
        self,
        call: StreamCall,
        resuming: Resuming,
        listener: StreamListener | None,
        unresponsive: UUID | None,
        buffer: OpenTurnBuffer | None,
    ) -> OpenedTurn | UUID:
        """Resume a turn of which this process has this buffer; the caller has its `end_lock`."""
        caller, turn_id, conversation_id = call.caller, call.key.turn_id, call.key.conversation_id
        sent: Sequence[SentChunk] = ()
        async with self._database.transaction(caller.tenant_id) as tx:
            stream, row = await self._find(call, tx, stream_store.lock_stream)
            if stream.writer != resuming.writer:
                raise Conflict("writer_mismatch", "Another writer opened this turn; only the same one may resume it.")
            if stream.holder not in {self._holder, NO_HOLDER, unresponsive}:
                return stream.holder
            if buffer is not None and (buffer.epoch, self._holder) == (stream.epoch, stream.holder):
                sent = await self._flusher.write_tail(tx, buffer)
            epoch = stream.epoch + 1
            await stream_store.take_stream(
                tx, caller.tenant_id, turn_id, holder=self._holder, epoch=epoch, key_id=caller.key_id
            )
            stored = await self._opener.read(caller, tx, row)
            record(tx, caller, Action.TURN_RESUME, ObjectKind.TURN, turn_id, conversation_id=conversation_id)
            self._publisher.publish_turn(tx, "resumed", caller.tenant_id, conversation_id, turn_id=turn_id, epoch=epoch)
        self._flusher.record_written(sent)
        if buffer is not None:
            buffer.resolve_waiters()
        self.add_buffer(caller, row, stored, listener, key_id=caller.key_id)
        return stored.turn

    # rows and buffers

    async def _find(self, call: StreamCall, tx: Transaction, read: StreamReader) -> tuple[StreamRow, TurnRow]:
        """Return an open turn that the caller may write, within its lease, or raise."""
        stream = await read(tx, call.key.tenant_id, call.key.turn_id)
        row = await get_turn(call.caller, tx, call.key.conversation_id, call.key.turn_id)
        require_may_continue(call.bound, turn_author(row))
        if stream is None or stream.conversation_id != call.key.conversation_id:
            raise not_open_error(row)
        if stream.age_s > self._settings.stream_lease_s:
            raise Conflict("turn_aborted", "The lease of this turn has expired: it was aborted with its text so far.")
        return stream, row

    def add_buffer(
        self,
        caller: Caller,
        row: TurnRow,
        stored: StoredOpenTurn,
        listener: StreamListener | None,
        *,
        key_id: KeyId,
    ) -> OpenTurnBuffer:
        """Add the buffer of a turn that this process holds now; the buffer of an earlier epoch is dropped.

        Raises Conflict `stream_fenced` if the turn was resumed in this process meanwhile.
        """
        now, opened = monotonic(), stored.turn
        key = StreamKey(caller.tenant_id, ConversationId(row.conversation_id), TurnId(row.id))
        previous = self._buffers.get(key)
        if previous is not None and previous.epoch > opened.epoch:
            raise fenced_error()
        buffer = OpenTurnBuffer(
            key=key,
            author=turn_author(row),
            writer=opened.writer,
            key_id=key_id,
            epoch=opened.epoch,
            size=stored.size,
            listener=listener,
            active_at=now,
            renewed_at=now,
        )
        for offset in opened.parts:
            part = buffer.part(offset.part)
            part.taken = part.durable = offset.durable_offset
        if previous is not None:
            self._flusher.drop(previous, fenced_error())
        buffer.acknowledged = self._flusher.acknowledged_lengths(key, buffer.epoch)
        self._buffers[key] = buffer
        return buffer

    def add_opened_buffer(
        self, caller: Caller, row: TurnRow, opened: OpenedTurn, listener: StreamListener | None
    ) -> OpenTurnBuffer:
        """Add the buffer of a new turn. Its key may be that of an earlier turn in a deleted conversation."""
        buffer = self.add_buffer(caller, row, StoredOpenTurn(opened, 0), listener, key_id=caller.key_id)
        self._flusher.remove_acknowledged(buffer.key)
        buffer.acknowledged = {}
        return buffer

    def add_new_buffer(self, caller: Caller, row: TurnRow, writer: str) -> OpenTurnBuffer:
        """Add the buffer of a new turn that was opened without a response to its writer."""
        expires_at = datetime.now(UTC) + timedelta(seconds=self._settings.stream_lease_s)
        opened = OpenedTurn(
            turn=turn_view_for(caller, row),
            writer=writer,
            epoch=1,
            durable_offset=0,
            parts=[],
            lease_expires_at=expires_at,
        )
        return self.add_opened_buffer(caller, row, opened, None)
