"""Turns that are written while they stream: open, chunk, commit or abort, and resume after a lost connection.

Hides who holds an open turn, when its text becomes durable, and how a writer that went away is told from one that is
slow (decision 0019). What always holds: `durable_offset` covers nothing that a crash could take; text is taken once, in
order; an open turn is in nobody's context; a commit stores all of the text or nothing; whoever was fenced off writes
nothing any more.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from uuid import UUID

from app.conversations.drafts import DraftLimits, make_draft
from app.conversations.events import Announcer
from app.conversations.find import get_turn
from app.conversations.schemas.conversations import Turn
from app.conversations.schemas.frames import (
    CONTENT,
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
from app.conversations.stores.stream_store import StreamRow
from app.conversations.streams.access import FindStream, StreamCall, require_writer, taken_in_turns
from app.conversations.streams.buffer import HeldPart, OpenTurnBuffer, StreamKey, StreamListener, fenced
from app.conversations.streams.chunk_merge import opened_turn
from app.conversations.streams.commit import Ender, not_open
from app.conversations.streams.exchanges import Exchanges
from app.conversations.streams.flush import Flusher
from app.conversations.streams.handover import Handover
from app.conversations.streams.open import Opener, StreamOptions
from app.conversations.streams.permissions import permitted_opening, require_may_continue, turn_author
from app.conversations.turns.append import Appender
from app.conversations.turns.revise import Reviser
from app.conversations.views import turn_view_for
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError, Conflict, FieldError, Invalid, TooLarge, Unavailable
from app.core.ids import ConversationId, KeyId, TenantId, TurnId, format_id, new_uuid
from app.core.jobs import JobQueue
from app.core.telemetry import error_type, get_logger
from app.formats.schemas import Role
from app.tenancy.schemas import Caller, IdempotencyKey, Scope
from app.tenancy.service import Tenancy

_CREATED, _OK = 201, 200
_SWEEP_LIMIT = 1000
_TAKE_OVERS = 20
_MAYBE_STALE = frozenset({"stream_fenced", "stream_gap"})
_OVER = frozenset({"stream_fenced", "turn_committed", "turn_aborted"})


class Streams:
    """The open turns of the installation, as one process sees and holds them."""

    def __init__(
        self,
        database: Database,
        ops: Database,
        *,
        tenancy: Tenancy,
        appender: Appender,
        reviser: Reviser,
        announcer: Announcer,
        limits: DraftLimits,
        options: StreamOptions,
        jobs: JobQueue,
    ) -> None:
        self._database = database
        self._ops = ops
        self._tenancy = tenancy
        self._announcer = announcer
        self._limits = limits
        self._options = options
        self._holder = new_uuid()
        self._held: dict[StreamKey, OpenTurnBuffer] = {}
        self._ender = Ender(database, appender=appender, reviser=reviser, holder=self._holder, announcer=announcer,
                            limits=limits, jobs=jobs)  # fmt: skip
        self._opener = Opener(limits=limits, options=options, holder=self._holder, ender=self._ender,
                              announcer=announcer)  # fmt: skip
        self._flusher = Flusher(database, self._held, holder=self._holder, debounce_s=options.debounce_s,
                                lease_s=options.lease_s)  # fmt: skip
        self.handover = Handover(database, self._held, holder=self._holder, announcer=announcer, flusher=self._flusher,
                                 wait_s=options.handover_s)  # fmt: skip
        """Open turns that go from one process to another."""
        self.exchanges = Exchanges(database, tenancy=tenancy, appender=appender, opener=self._opener, ender=self._ender,
                                   flusher=self._flusher, hold=self._hold_new, limits=limits)  # fmt: skip
        """Messages and the answer to them, committed together."""
        self._log = get_logger()

    async def run_forever(self) -> None:
        """Flush and renew, until cancelled."""
        await self._flusher.run_forever()

    async def close(self) -> None:
        """Make durable what was taken and release the open turns, as far as the database answers."""
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
        repeat: IdempotencyKey | None = None,
    ) -> tuple[OpenedTurn, bool, bool]:
        """Open a turn. Says whether it was opened now, and whether it is a replay by key.

        A `listener` is told of the turn from now on, though it was opened before.
        Raises NotFound, Invalid, RateLimited `too_many_open_turns`, Conflict `already_superseded`, `turn_id_conflict`.
        """
        opening, bound = permitted_opening(caller, opening), caller.bound
        repeat = None if repeat is None else repeat.of(caller)
        caller = caller.require_conversation(Scope.WRITE, conversation_id)
        make_draft(opened_turn(opening.turn), limits=self._limits, now=datetime.now(UTC), root="/turn")
        async with self._database.transaction(caller.tenant_id) as tx:
            if repeat is not None:
                replay = await self._tenancy.claim(caller, tx, request=repeat)
                if replay is not None:
                    turn_id = TurnId(replay.result_ids[0])
                    row = await get_turn(caller, tx, conversation_id, turn_id)
                    opened, _ = await self._opener.read(caller, tx, row)
                    return opened, replay.status == _CREATED, True
            row, created = await self._opener.open(caller, tx, conversation_id, opening, bound=bound)
            if repeat is not None:
                status = _CREATED if created else _OK
                await self._tenancy.remember(caller, tx, request=repeat, status=status, result_ids=[row.id])
            opened, _ = await self._opener.read(caller, tx, row)
        if created:
            self._hold_opened(caller, row, opened, listener)
        elif listener is not None:
            # its connection goes on with the turn here, wherever it was opened
            key = StreamKey(caller.tenant_id, conversation_id, TurnId(row.id))
            call = StreamCall(caller, bound, key, opened.epoch)
            held = await self._take_over(call)
            held.listener, held.heard = listener, monotonic()
            held.unconfirmed.clear()  # the answer says how far each part is
            opened = opened.model_copy(update={"parts": held.offsets()})
        return opened, created, False

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
    ) -> ChunkResult:
        """Take more text of an open turn; with `wait`, answer when it is durable. A `listener` is told from now on.

        Without a `listener`, the calls of one writer may reach several processes: each takes the turn over.

        Raises Conflict `stream_gap` (with `expected_offset`), `stream_fenced`, `turn_committed`, `turn_aborted`,
        `writer_mismatch`; TooLarge; NotFound.
        """
        most = self._options.max_chunk_bytes
        if len(chunk.delta) * 4 > most and len(chunk.delta.encode()) > most:
            problem = FieldError("/delta", f"over {most} bytes in UTF-8")
            raise TooLarge("chunk_too_large", f"A chunk may have {most} bytes; send it in several.", fields=[problem])
        call = StreamCall.of(caller, conversation_id, turn_id, epoch)
        held = await self._hold_here(call)
        if listener is None and chunk.part != CONTENT and held.part_is_new(chunk.part):
            wait = True  # a process that takes the turn over after this one has died finds every part of it
        for _ in range(_TAKE_OVERS):
            try:
                return await self._take(held, chunk, wait=wait, listener=listener)
            except Conflict as error:
                if listener is not None or error.code not in _MAYBE_STALE:
                    raise
                before, held = held, await self._take_over(replace(call, epoch=held.epoch))
                if held is before:  # no call of the same writer went to another process meanwhile
                    raise
        raise taken_in_turns()

    async def _take(
        self, held: OpenTurnBuffer, chunk: Chunk, *, wait: bool, listener: StreamListener | None
    ) -> ChunkResult:
        if held.ending.locked():
            async with held.ending:
                pass
        if held.dropped:
            raise fenced()
        held.heard = monotonic()
        if chunk.part != CONTENT and held.author.role is not Role.ASSISTANT:
            problem = FieldError("/part", "only an assistant turn calls tools")
            raise Invalid("invalid_request", "The turn breaks a rule; nothing was stored.", fields=[problem])
        # a part is there once some text of it was taken
        part = held.parts.get(chunk.part) or HeldPart()
        offset = part.taken
        size = len(chunk.delta[max(0, offset - chunk.offset) :].encode())
        held.require_space(size, most=self._limits.max_text_bytes)
        if self._flusher.unflushed > self._options.max_unflushed:
            raise Unavailable("database_unavailable", "Too much text waits; send it again.", retry_after_s=1)
        fresh = part.take(chunk.offset, chunk.delta)
        if fresh or chunk.offset == offset:  # an old chunk that is sent again says nothing of what came after it
            held.unconfirmed.discard(chunk.part)
        if listener is not None:
            held.listener = listener
        if fresh:
            held.parts[chunk.part] = part
            held.size += size
            self._announcer.delta(
                held.tenant_id,
                held.conversation_id,
                turn_id=held.turn_id,
                epoch=held.epoch,
                part=chunk.part,
                offset=offset,
                text=fresh,
            )
            self._flusher.taken(len(fresh))
        end = chunk.offset + len(chunk.delta)
        if (wait or (held.unsure and listener is None)) and part.durable < end:  # unsure: another may have the turn
            durable = asyncio.get_running_loop().create_future()
            held.waiters.append((chunk.part, end, durable))
            try:
                await asyncio.wait_for(durable, self._options.wait_s)
            except TimeoutError as error:
                detail = "The text was taken and is not durable yet; send it again."
                raise Unavailable("database_unavailable", detail, retry_after_s=1) from error
        return ChunkResult(
            turn_id=format_id(held.turn_id), part=chunk.part, offset=part.taken, durable_offset=part.durable
        )

    def renew(self, caller: Caller, conversation_id: ConversationId, *, epochs: Mapping[TurnId, int]) -> None:
        """Note that the caller, who writes these turns of a conversation under these epochs, is still connected.

        Raises Forbidden for a caller that may not write there.
        """
        if not epochs:
            return
        tenant_id = caller.require_conversation(Scope.WRITE, conversation_id).tenant_id
        for turn_id, epoch in epochs.items():
            held = self._held.get(StreamKey(tenant_id, conversation_id, turn_id))
            if held is not None and held.epoch == epoch:
                held.heard = monotonic()

    def leave(self, listener: StreamListener) -> None:
        """Tell a connection nothing any more; its turns stay open until their leases end."""
        for held in self._held.values():
            if held.listener is listener:
                held.listener = None

    # take over and resume

    async def _take_over(self, call: StreamCall) -> OpenTurnBuffer:
        """Hold an open turn that another process held, for a call of its writer that came here."""
        for _ in range(_TAKE_OVERS):
            async with self._database.transaction(call.caller.tenant_id, read_only=True) as tx:
                stream, _ = await self._find(call, tx, stream_store.find_stream)
                require_writer(call.caller, key_id=stream.key_id, current=stream.epoch, epoch=call.epoch)
            released = await self.handover.request(call.key, holder=stream.holder)
            held = await self._take_from(call, silent=None if released else stream.holder)
            if held is not None:
                return held
        raise taken_in_turns()

    async def _take_from(self, call: StreamCall, *, silent: UUID | None) -> OpenTurnBuffer | None:
        """Hold an open turn that no process holds, or the `silent` one; None where another one holds it, with text."""
        caller = call.caller
        async with self._database.transaction(caller.tenant_id) as tx:
            stream, row = await self._lock(call, tx)
            require_writer(caller, key_id=stream.key_id, current=stream.epoch, epoch=call.epoch)
            ours = stream.holder == self._holder
            if ours and (known := self._known(call.key, stream.epoch)) is not None:
                return known
            if not ours and stream.holder not in {stream_store.NO_HOLDER, silent}:
                return None
            key_id = KeyId(stream.key_id)
            await stream_store.take(
                tx, caller.tenant_id, call.key.turn_id, holder=self._holder, epoch=stream.epoch, key_id=key_id
            )
            opened, size = await self._opener.read(caller, tx, row)
        if ours and (known := self._known(call.key, stream.epoch)) is not None:
            return known  # another call took it over at the same time, and may have taken text since
        held = self._hold(caller, row, opened, None, key_id=key_id, size=size)
        # so too where the row names this process: the answer to its first attempt was lost
        if stream.holder != stream_store.NO_HOLDER:
            held.unconfirmed.update((CONTENT, *held.parts))
        return held

    def _known(self, key: StreamKey, epoch: int) -> OpenTurnBuffer | None:
        held = self._held.get(key)
        return held if held is not None and held.epoch == epoch else None

    async def resume(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        turn_id: TurnId,
        resuming: Resuming,
        listener: StreamListener | None = None,
    ) -> OpenedTurn:
        """Go on with an open turn as the same writer; whoever wrote before, anywhere, is fenced off."""
        call = StreamCall.of(caller, conversation_id, turn_id)
        caller = call.caller
        async with self._database.transaction(caller.tenant_id) as tx:
            stream, row = await self._lock(call, tx)
            if stream.writer != resuming.writer:
                raise Conflict("writer_mismatch", "Another writer opened this turn; only the same one may resume it.")
            epoch = stream.epoch + 1
            await stream_store.take(
                tx, caller.tenant_id, turn_id, holder=self._holder, epoch=epoch, key_id=caller.key_id
            )
            opened, size = await self._opener.read(caller, tx, row)
            self._announcer.turn(tx, "resumed", caller.tenant_id, conversation_id, turn_id=turn_id, epoch=epoch)
        self._hold(caller, row, opened, listener, key_id=caller.key_id, size=size)
        return opened

    async def _lock(self, call: StreamCall, tx: Transaction) -> tuple[StreamRow, TurnRow]:
        """An open turn that the caller may write, its stream locked and within its lease; else why it is not open."""
        return await self._find(call, tx, stream_store.lock_stream)

    async def _find(self, call: StreamCall, tx: Transaction, read: FindStream) -> tuple[StreamRow, TurnRow]:
        stream = await read(tx, call.key.tenant_id, call.key.turn_id)
        row = await get_turn(call.caller, tx, call.key.conversation_id, call.key.turn_id)
        require_may_continue(call.bound, turn_author(row))
        if stream is None or stream.conversation_id != call.key.conversation_id:
            raise not_open(row)
        if stream.age_s > self._options.lease_s:
            raise Conflict("turn_aborted", "The lease of this turn is over: it was aborted with what it had.")
        return stream, row

    def _hold(
        self,
        caller: Caller,
        row: TurnRow,
        opened: OpenedTurn,
        listener: StreamListener | None,
        *,
        key_id: KeyId,
        size: int,
    ) -> OpenTurnBuffer:
        now = monotonic()
        key = StreamKey(caller.tenant_id, ConversationId(row.conversation_id), TurnId(row.id))
        held = OpenTurnBuffer(
            key=key,
            author=turn_author(row),
            writer=opened.writer,
            key_id=key_id,
            epoch=opened.epoch,
            size=size,
            listener=listener,
            heard=now,
            renewed=now,
        )
        for one in opened.parts:
            part = held.part(one.part)
            part.taken = part.durable = one.durable_offset
        before = self._held.pop(key, None)
        if before is not None:
            self._flusher.drop(before, fenced())
        held.owed = self._flusher.owed(key, held.epoch)
        self._held[key] = held
        return held

    def _hold_opened(
        self, caller: Caller, row: TurnRow, opened: OpenedTurn, listener: StreamListener | None
    ) -> OpenTurnBuffer:
        """Hold a turn that was opened now. A turn that once had its key, in a deleted conversation, left nothing."""
        held = self._hold(caller, row, opened, listener, key_id=caller.key_id, size=0)
        self._flusher.forget_owed(held.key)
        held.owed = {}
        return held

    def _hold_new(self, caller: Caller, row: TurnRow, writer: str) -> OpenTurnBuffer:
        left = datetime.now(UTC) + timedelta(seconds=self._options.lease_s)
        opened = OpenedTurn(turn=turn_view_for(caller, row), writer=writer, epoch=1, durable_offset=0, parts=[],
                            lease_expires_at=left)  # fmt: skip
        return self._hold_opened(caller, row, opened, None)

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
        """Store an open turn; again gives the same. A key that may not read is told no content.

        Raises as `append` does, and Conflict `length_mismatch`.
        """
        return await self._end(StreamCall.of(caller, conversation_id, turn_id, epoch), ending)

    async def abort(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        turn_id: TurnId,
        aborting: Aborting,
        epoch: int | None = None,
    ) -> Turn:
        """Give an open turn up; again changes nothing."""
        return await self._end(StreamCall.of(caller, conversation_id, turn_id, epoch), aborting)

    async def _end(self, call: StreamCall, how: Ending | Aborting) -> Turn:
        done = "turn_committed" if isinstance(how, Ending) else "turn_aborted"
        try:
            held = await self._hold_here(call)
            try:
                row = await self._end_here(call.caller, held, how)
            except Conflict as error:
                if error.code != "stream_fenced":
                    raise
                row = await self._end_here(call.caller, await self._take_over(replace(call, epoch=held.epoch)), how)
        except Conflict as error:
            if error.code != done:
                raise
            # it had ended so before: the answer to the first call was perhaps lost
            async with self._database.transaction(call.caller.tenant_id, read_only=True) as tx:
                row = await get_turn(call.caller, tx, call.key.conversation_id, call.key.turn_id)
            require_may_continue(call.bound, turn_author(row))
        return turn_view_for(call.caller, row)

    async def _end_here(self, caller: Caller, held: OpenTurnBuffer, how: Ending | Aborting) -> TurnRow:
        try:
            async with held.ending:
                if held.flush is not None:
                    # one write is of many turns: who goes away while it waits must not end it for the others
                    await asyncio.shield(held.flush)
                return await self._end_now(caller, held, how)
        finally:
            # refused, so that it goes on: what was not written meanwhile is due
            if held.has_tail():
                self._flusher.wake()

    async def _end_now(self, caller: Caller, held: OpenTurnBuffer, how: Ending | Aborting) -> TurnRow:
        await self._flusher.hear(held)
        try:
            if isinstance(how, Ending):
                row = await self._ender.commit(caller, held, ending=how)
            else:
                row = await self._ender.abort(caller, held, reason=how.reason)
        except Conflict as error:
            if error.code in _OVER:
                self._flusher.drop(held, error)
            raise
        self._flusher.drop(held, None)
        return row

    async def _hold_here(self, call: StreamCall) -> OpenTurnBuffer:
        held = self._held.get(call.key)
        if held is not None and (held.key_id == call.caller.key_id if call.epoch is None else held.epoch == call.epoch):
            require_may_continue(call.bound, held.author)
            return held
        # what is remembered here may be over: the rows say who writes
        return await self._take_over(call)

    async def expire(self, tx: Transaction, tenant_id: TenantId, turn_id: TurnId) -> bool:
        """Give an open turn up whose lease is over, in the transaction of whoever asks; false when it is not."""
        return await self._ender.expire(tx, tenant_id, turn_id, lease_s=self._options.lease_s)

    async def abort_expired(self) -> int:
        """Give up the open turns, of every tenant, whose writers were not heard of for a lease; says how many."""
        lease_s = self._options.lease_s
        async with self._ops.across_tenants() as tx:
            expired = await stream_store.list_expired(tx, lease_s=lease_s, limit=_SWEEP_LIMIT)
        ended = 0
        for tenant_id, turn_id in expired:
            try:
                ended += await self._ender.abort_expired(tenant_id, turn_id, lease_s=lease_s)
            except Exception as error:  # noqa: BLE001 - one that cannot be ended must not keep the others open
                code = error.code if isinstance(error, AppError) else "internal_error"
                self._log.error(
                    "stream.abort_failed", tenant_id=tenant_id, turn_id=turn_id, code=code, error_type=error_type(error)
                )
        if ended:
            self._log.info("stream.leases_over", count=ended)
        return ended
