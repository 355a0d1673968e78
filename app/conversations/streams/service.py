"""Streamed turns: open, chunk, commit or abort, and resume after a lost connection (decision 0019).

Invariants: text below `durable_offset` survives a crash. Text is taken once, in order. An open turn is in no context.
A commit stores the whole text or nothing. A fenced writer writes nothing.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic
from uuid import UUID

from app.conversations.drafts import make_draft
from app.conversations.events import EventPublisher
from app.conversations.find import get_turn, name_conflict
from app.conversations.schemas.conversations import Turn
from app.conversations.schemas.frames import (
    CONTENT,
    MAX_CHUNK_BYTES,
    Aborting,
    Chunk,
    ChunkResult,
    Ending,
    OpenedTurn,
    Opening,
    Resuming,
)
from app.conversations.stores import stream_store
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.streams import access
from app.conversations.streams.abort import TurnAborter
from app.conversations.streams.access import StreamCall, contention_error
from app.conversations.streams.buffer import OpenPartBuffer, OpenTurnBuffer, StreamKey, StreamListener, fenced_error
from app.conversations.streams.chunk_merge import new_turn
from app.conversations.streams.commit import TurnFinalizer
from app.conversations.streams.exchanges import Exchanges
from app.conversations.streams.flush import Flusher
from app.conversations.streams.handover import StreamHandover
from app.conversations.streams.open import TurnOpener
from app.conversations.streams.permissions import permitted_opening, require_may_continue, turn_author
from app.conversations.streams.take_over import MAX_TAKE_OVERS, TurnTakeOver
from app.conversations.turns.turn_writer import TurnWriter
from app.conversations.views import turn_view_for
from app.core.database.transactions import Database
from app.core.errors import AppError, Conflict, FieldError, InvalidFields, TooLarge, Unavailable
from app.core.ids import ConversationId, TurnId, format_id
from app.core.telemetry import error_type, get_logger
from app.formats.schemas import Role
from app.settings import Settings
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult, Scope
from app.tenancy.service import Tenancy

_SWEEP_LIMIT = 1000
# a replica writes an open turn within two debounces; a client waits meanwhile
_HANDOVER_S = 1.0
# characters accepted while the database does not respond: 64 to 256 MiB of memory
_MAX_UNFLUSHED = 64 * 2**20
_STALE_CODES = frozenset({"stream_fenced", "stream_gap"})
_ENDED_CODES = frozenset({"stream_fenced", "turn_committed", "turn_aborted"})


class Streams:
    """The open turns of which this process is the holder, and calls on any open turn."""

    def __init__(
        self,
        database: Database,
        ops: Database,
        *,
        tenancy: Tenancy,
        writer: TurnWriter,
        aborter: TurnAborter,
        finalizer: TurnFinalizer,
        opener: TurnOpener,
        publisher: EventPublisher,
        settings: Settings,
        holder: UUID,
    ) -> None:
        """`holder` is the id of this process as the holder of open turns."""
        self._database = database
        self._ops = ops
        self._idempotency = tenancy.idempotency
        self._aborter = aborter
        self._publisher = publisher
        self._limits = settings.limits
        self._settings = streams = settings.streams
        self._wait_s = settings.database.database_timeout_s
        self._buffers: dict[StreamKey, OpenTurnBuffer] = {}
        self._finalizer = finalizer
        self._opener = opener
        self._flusher = Flusher(database, self._buffers, holder=holder, settings=streams)
        self.handover = StreamHandover(
            database,
            self._buffers,
            holder=holder,
            publisher=publisher,
            flusher=self._flusher,
            wait_s=_HANDOVER_S,
        )
        """Transfers open turns between processes."""
        self._takes = TurnTakeOver(
            database,
            self._buffers,
            holder=holder,
            opener=opener,
            flusher=self._flusher,
            handover=self.handover,
            publisher=publisher,
            settings=streams,
        )
        self.exchanges = Exchanges(
            database,
            tenancy=tenancy,
            writer=writer,
            opener=opener,
            aborter=aborter,
            finalizer=finalizer,
            flusher=self._flusher,
            make_buffer=self._takes.add_new_buffer,
            limits=settings.limits,
        )
        """Opens and commits messages together with their answer."""
        self._log = get_logger()

    async def run_forever(self) -> None:
        """Flush and renew, until cancelled."""
        await self._flusher.run_forever()

    async def close(self) -> None:
        """Make all taken text durable and release the open turns, if the database answers."""
        await self.handover.close()
        await self._flusher.flush_last()
        await self._flusher.release_all()
        await self.handover.close()

    # open

    async def open(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        opening: Opening,
        listener: StreamListener | None = None,
        idempotency_key: IdempotencyKey | None = None,
    ) -> RequestResult[OpenedTurn]:
        """Open a turn.

        A `listener` gets the reports of the turn from now on, also if the turn was opened before.
        Raises NotFound, Invalid, RateLimited `too_many_open_turns`, Conflict `already_superseded`, `turn_id_conflict`.
        """
        opening, bound = permitted_opening(caller, opening), caller.bound
        if idempotency_key is not None:
            idempotency_key = idempotency_key.for_caller(caller)
        caller = caller.require_conversation(Scope.WRITE, conversation_id)
        make_draft(new_turn(opening.turn), limits=self._limits, now=datetime.now(UTC), root="/turn")

        async def store() -> tuple[RequestResult[TurnRow], OpenedTurn]:
            async with self._database.transaction(caller.tenant_id) as tx:
                result = await self._idempotency.run_once(
                    caller,
                    tx,
                    idempotency_key,
                    result_ids=lambda row: [row.id],
                    run=lambda: self._opener.open(caller, tx, conversation_id, opening, bound=bound),
                    read=lambda caller, tx, ids: get_turn(caller, tx, conversation_id, TurnId(ids[0])),
                )
                return result, (await self._opener.read(caller, tx, result.value)).turn

        result, opened = await name_conflict(store)
        row = result.value
        if result.is_replay:
            return result.with_value(opened)
        if result.is_new:
            self._takes.add_opened_buffer(caller, row, opened, listener)
        elif listener is not None:
            # the connection continues the turn in this process, wherever it was opened
            key = StreamKey(caller.tenant_id, conversation_id, TurnId(row.id))
            call = StreamCall(caller, bound, key, opened.epoch)
            buffer = await self._takes.take_over(call)
            buffer.listener, buffer.active_at = listener, monotonic()
            buffer.unconfirmed_parts.clear()  # the response contains the offset of each part
            opened = opened.model_copy(update={"parts": buffer.offsets()})
        return result.with_value(opened)

    # write

    async def chunk(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        turn_id: TurnId,
        chunk: Chunk,
        epoch: int | None,
        wait: bool,
        listener: StreamListener | None = None,
        is_local: bool = False,
    ) -> ChunkResult:
        """Take more text of an open turn; with `wait`, return when it is durable. A `listener` gets later reports.

        Without a `listener`, the calls of one writer may reach several processes: each takes the turn over, and the
        first text of a part is durable on return. `is_local`: the writer is this process, so nothing waits.

        Raises Conflict `stream_gap` (with `expected_offset`), `stream_fenced`, `turn_committed`, `turn_aborted`,
        `writer_mismatch`; TooLarge; NotFound.
        """
        if len(chunk.delta) * 4 > MAX_CHUNK_BYTES and len(chunk.delta.encode()) > MAX_CHUNK_BYTES:
            problem = FieldError("/delta", f"over {MAX_CHUNK_BYTES} bytes in UTF-8")
            raise TooLarge(
                "chunk_too_large", f"A chunk may have {MAX_CHUNK_BYTES} bytes; send it in several.", fields=[problem]
            )
        call = StreamCall.authorize(caller, conversation_id, turn_id, epoch)
        buffer = await self._find_or_take_over(call)
        if listener is None and not is_local and chunk.part != CONTENT and buffer.is_new_part(chunk.part):
            wait = True  # a process that takes the turn over after this one has died finds every part of it
        for _ in range(MAX_TAKE_OVERS):
            try:
                return await self._take_chunk(buffer, chunk, wait=wait, listener=listener)
            except Conflict as error:
                if listener is not None or error.code not in _STALE_CODES:
                    raise
                previous, buffer = buffer, await self._takes.take_over(replace(call, epoch=buffer.epoch))
                if buffer is previous:  # no call of the same writer went to another process meanwhile
                    raise
        raise contention_error()

    async def _take_chunk(
        self, buffer: OpenTurnBuffer, chunk: Chunk, *, wait: bool, listener: StreamListener | None
    ) -> ChunkResult:
        if buffer.end_lock.locked():
            async with buffer.end_lock:
                pass
        if buffer.is_dropped:
            raise fenced_error()
        buffer.active_at = monotonic()
        if chunk.part != CONTENT and buffer.author.role is not Role.ASSISTANT:
            problem = FieldError("/part", "only an assistant turn calls tools")
            raise InvalidFields([problem])
        # a new part is stored only with its first text
        part = buffer.parts.get(chunk.part) or OpenPartBuffer()
        offset = part.taken
        size = len(chunk.delta[max(0, offset - chunk.offset) :].encode())
        buffer.require_space(size, max_bytes=self._limits.max_text_bytes)
        if self._flusher.unflushed > _MAX_UNFLUSHED:
            raise Unavailable(
                "database_unavailable", "Too much text waits to be stored; send this text again later.", retry_after_s=1
            )
        new_text = part.take(chunk.offset, chunk.delta)
        if new_text or chunk.offset == offset:  # a repeated older chunk does not confirm the text after it
            buffer.unconfirmed_parts.discard(chunk.part)
        if listener is not None:
            buffer.listener = listener
        if new_text:
            buffer.parts[chunk.part] = part
            buffer.size += size
            self._publisher.publish_delta(
                buffer.tenant_id,
                buffer.conversation_id,
                turn_id=buffer.turn_id,
                epoch=buffer.epoch,
                part=chunk.part,
                offset=offset,
                text=new_text,
            )
            self._flusher.taken(len(new_text))
        end = chunk.offset + len(chunk.delta)
        if (
            wait or (buffer.is_uncertain and listener is None)
        ) and part.durable < end:  # another process may have the turn
            durable = asyncio.get_running_loop().create_future()
            buffer.waiters.append((chunk.part, end, durable))
            try:
                await asyncio.wait_for(durable, self._wait_s)
            except TimeoutError as error:
                detail = "The text was received and is not durable yet; send it again."
                raise Unavailable("database_unavailable", detail, retry_after_s=1) from error
        return ChunkResult(
            turn_id=format_id(buffer.turn_id), part=chunk.part, offset=part.taken, durable_offset=part.durable
        )

    def renew(self, caller: Caller, conversation_id: ConversationId, *, epochs: Mapping[TurnId, int]) -> None:
        """Mark turns of a conversation as active, by their epochs, since their writer is still connected.

        Raises Forbidden for a caller that may not write there.
        """
        if not epochs:
            return
        tenant_id = caller.require_conversation(Scope.WRITE, conversation_id).tenant_id
        for turn_id, epoch in epochs.items():
            buffer = self._buffers.get(StreamKey(tenant_id, conversation_id, turn_id))
            if buffer is not None and buffer.epoch == epoch:
                buffer.active_at = monotonic()

    def leave(self, listener: StreamListener) -> None:
        """Remove a listener; its turns stay open until their leases expire."""
        for buffer in self._buffers.values():
            if buffer.listener is listener:
                buffer.listener = None

    # resume

    async def resume(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        turn_id: TurnId,
        resuming: Resuming,
        listener: StreamListener | None = None,
    ) -> OpenedTurn:
        """Continue an open turn as the same writer, with all text that was taken.

        Connections that wrote it before are fenced. A holder that does not answer is replaced without its last text.
        """
        call = StreamCall.authorize(caller, conversation_id, turn_id)
        return await self._takes.resume(call, resuming, listener)

    # end

    async def commit(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        turn_id: TurnId,
        ending: Ending,
        epoch: int | None = None,
    ) -> Turn:
        """Store an open turn; a repeated call returns the same turn. An API key without read access gets no content.

        Raises as `append` does, and Conflict `length_mismatch`.
        """
        return await self._end(StreamCall.authorize(caller, conversation_id, turn_id, epoch), ending)

    async def abort(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        turn_id: TurnId,
        aborting: Aborting,
        epoch: int | None = None,
    ) -> Turn:
        """Abort an open turn; a repeated call changes nothing."""
        return await self._end(StreamCall.authorize(caller, conversation_id, turn_id, epoch), aborting)

    async def _end(self, call: StreamCall, end: Ending | Aborting) -> Turn:
        expected_code = "turn_committed" if isinstance(end, Ending) else "turn_aborted"
        try:
            buffer = await self._find_or_take_over(call)
            try:
                row = await self._end_locally(call.caller, buffer, end)
            except Conflict as error:
                if error.code != "stream_fenced":
                    raise
                buffer = await self._takes.take_over(replace(call, epoch=buffer.epoch))
                row = await self._end_locally(call.caller, buffer, end)
        except Conflict as error:
            if error.code != expected_code:
                raise
            # The turn has ended in this way before: the response to the first call may have been lost.
            async with self._database.transaction(call.caller.tenant_id, read_only=True) as tx:
                row = await get_turn(call.caller, tx, call.key.conversation_id, call.key.turn_id)
            require_may_continue(call.bound, turn_author(row))
        return turn_view_for(call.caller, row)

    async def _end_locally(self, caller: Caller, buffer: OpenTurnBuffer, end: Ending | Aborting) -> TurnRow:
        try:
            async with buffer.end_lock:
                await buffer.wait_for_write()
                return await self._end_now(caller, buffer, end)
        finally:
            # after a refusal the turn stays open, and its tail must be written
            if buffer.has_tail():
                self._flusher.wake()

    async def _end_now(self, caller: Caller, buffer: OpenTurnBuffer, end: Ending | Aborting) -> TurnRow:
        await self._flusher.renew_lease(buffer)
        try:
            if isinstance(end, Ending):
                row = await self._finalizer.commit(caller, buffer, ending=end)
            else:
                row = await self._finalizer.abort(caller, buffer, reason=end.reason)
        except Conflict as error:
            if error.code in _ENDED_CODES:
                self._flusher.drop(buffer, error)
            raise
        self._flusher.drop(buffer, None)
        return row

    async def _find_or_take_over(self, call: StreamCall) -> OpenTurnBuffer:
        buffer = self._buffers.get(call.key)
        if buffer is not None and (
            buffer.key_id == call.caller.key_id if call.epoch is None else buffer.epoch == call.epoch
        ):
            require_may_continue(call.bound, buffer.author)
            await access.require_buffer_reachable(self._database, call, buffer)
            return buffer
        # the buffer may be outdated: the rows decide who writes
        return await self._takes.take_over(call)

    async def abort_expired(self) -> int:
        """Abort the open turns of all tenants whose leases have expired, and return their number."""
        lease_s = self._settings.stream_lease_s
        async with self._ops.across_tenants() as tx:
            expired = await stream_store.list_expired(tx, lease_s=lease_s, limit=_SWEEP_LIMIT)
        ended = 0
        for tenant_id, turn_id in expired:
            try:
                async with self._database.transaction(tenant_id) as tx:
                    ended += await self._aborter.expire(tx, tenant_id, turn_id)
            except Exception as error:  # noqa: BLE001 - the others are aborted anyway
                code = error.code if isinstance(error, AppError) else "internal_error"
                self._log.error(
                    "stream.abort_failed", tenant_id=tenant_id, turn_id=turn_id, code=code, error_type=error_type(error)
                )
        if ended:
            self._log.info("stream.leases_over", count=ended)
        return ended
