"""Write the text of open turns to the database, a debounce after it was taken, and renew their leases.

Invariants: each turn has at most one write per debounce; the turns of a tenant are written in transactions of up to 500
turns. A lock on the streams of one tenant does not delay the writes and leases of other tenants. Text leaves memory
only when it is durable or another process has taken over its turn. After a write with an unknown result, the durable
lengths are read before anything is written again.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from time import monotonic
from typing import TypeAlias
from uuid import UUID

from app.conversations.stores import stream_store
from app.conversations.stores.stream_store import NewChunk, OpenStream
from app.conversations.streams.buffer import OpenTurnBuffer, StreamKey, fenced_error
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError
from app.core.ids import TenantId, format_id
from app.core.telemetry import error_type, get_logger
from app.core.tracing.spans import root_span
from app.settings.conversations import StreamSettings

_MAX_TURNS_PER_WRITE = 500
_MAX_CONCURRENT_WRITES = 4
_MAX_CONCURRENT_RENEWALS = 2
_CHECKS_PER_LEASE = 6
_RENEWALS_PER_LEASE = 3
_MAX_ACKNOWLEDGED = 10_000
_MAX_LAST_FLUSHES = 3
_LAST_WAIT_S = 0.2


SentChunk: TypeAlias = tuple[OpenTurnBuffer, NewChunk, int]
"""A chunk that was sent to the database: its buffer, and the number of pieces of the tail in it."""


class _TenantTasks:
    """Runs at most one task per tenant, so that a tenant that waits for a lock does not delay the others."""

    def __init__(self, on_missed: Callable[[], None] | None = None) -> None:
        """`on_missed` is called after a tenant's task, if another start was requested meanwhile."""
        self._tasks: dict[TenantId, asyncio.Task[None]] = {}
        self._missed_tenants: set[TenantId] = set()
        self._missed = on_missed

    def start(self, tenant_id: TenantId, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Start a tenant's task, unless its last one is still running."""
        if tenant_id in self._tasks:
            self._missed_tenants.add(tenant_id)
            return
        self._tasks[tenant_id] = task = asyncio.create_task(work())
        task.add_done_callback(lambda _: self._ended(tenant_id))

    def _ended(self, tenant_id: TenantId) -> None:
        del self._tasks[tenant_id]
        if tenant_id in self._missed_tenants:
            self._missed_tenants.discard(tenant_id)
            if self._missed is not None:
                self._missed()

    async def wait_until_done(self) -> None:
        """Wait until no task is running; a cancelled wait does not cancel the tasks."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))


class Flusher:
    """Writes the tails of the open turns of this process."""

    def __init__(
        self,
        database: Database,
        buffers: dict[StreamKey, OpenTurnBuffer],
        *,
        holder: UUID,
        settings: StreamSettings,
    ) -> None:
        self._database = database
        self._buffers = buffers
        self._holder = holder
        self._settings = settings
        self._dirty = asyncio.Event()
        self._checked_at = monotonic()
        self._writing, self._renewing = _TenantTasks(self.wake), _TenantTasks()
        self._write_slots = asyncio.Semaphore(_MAX_CONCURRENT_WRITES)
        self._renewal_slots = asyncio.Semaphore(_MAX_CONCURRENT_RENEWALS)
        self._log = get_logger()
        self._acknowledged: dict[StreamKey, tuple[int, dict[str, int]]] = {}
        self.unflushed = 0
        """The number of code points that are not durable, of all turns of this process."""

    def taken(self, length: int) -> None:
        """Count newly taken text."""
        self.unflushed += length
        self.wake()

    def wake(self) -> None:
        """Schedule a write."""
        self._dirty.set()

    def drop(self, buffer: OpenTurnBuffer, error: AppError | None) -> None:
        """Remove a buffer: its turn has ended, or with an `error` another process is the holder. Idempotent."""
        if buffer.is_dropped:
            return
        if self._buffers.get(buffer.key) is buffer:
            del self._buffers[buffer.key]
        self._keep_acknowledged(buffer, ended=error is None or error.code != "stream_fenced")
        self.unflushed -= buffer.unflushed()
        buffer.discard()
        if error is None:
            buffer.resolve_waiters()
        else:
            buffer.notify_lost(error)

    def _keep_acknowledged(self, buffer: OpenTurnBuffer, *, ended: bool) -> None:
        """Keep the acknowledged lengths of a dropped tail until the turn has ended or has another epoch."""
        self.remove_acknowledged(buffer.key)
        if not ended and (owing := buffer.lengths_at_risk()):
            self._acknowledged[buffer.key] = (buffer.epoch, owing)
            if len(self._acknowledged) > _MAX_ACKNOWLEDGED:
                del self._acknowledged[next(iter(self._acknowledged))]

    def acknowledged_lengths(self, key: StreamKey, epoch: int) -> dict[str, int]:
        """Return the acknowledged length of each part of which this process has lost text under this epoch."""
        of, lengths = self._acknowledged.get(key, (epoch, {}))
        return lengths if of == epoch else {}

    def remove_acknowledged(self, key: StreamKey) -> None:
        """Remove the acknowledged lengths of a turn: it has ended, or another one was opened under its key."""
        self._acknowledged.pop(key, None)

    async def run_forever(self) -> None:
        """Flush and renew, until cancelled."""
        while True:
            with suppress(TimeoutError):
                # not `wait_for`, which can lose a cancellation that arrives together with the event
                async with asyncio.timeout(self._settings.stream_lease_s / _CHECKS_PER_LEASE):
                    await self._dirty.wait()
            if self._dirty.is_set():
                await asyncio.sleep(self._settings.debounce_s)
                self._dirty.clear()
                self._attempt("stream.flush_crashed", self._start_writing)
            if monotonic() - self._checked_at >= self._settings.stream_lease_s / _CHECKS_PER_LEASE:
                self._checked_at = monotonic()
                self._attempt("stream.renewal_crashed", self._start_renewing)

    def _attempt(self, failed: str, start: Callable[[], None]) -> None:
        try:
            start()
        except Exception as error:  # noqa: BLE001 - the loop goes on, and tries again a debounce later
            self._dirty.set()
            self._log.error(failed, error_type=error_type(error), exc_info=error)

    async def flush_last(self) -> None:
        """Write all text that is not durable, with retries, and wait for all running tasks."""
        await self._writing.wait_until_done()
        for _ in range(_MAX_LAST_FLUSHES):
            await self.flush()
            if not self.unflushed:
                break
            await asyncio.sleep(_LAST_WAIT_S)
        await self._renewing.wait_until_done()

    async def flush(self) -> None:
        """Write all text that is not durable; the text of a failed write is written next time."""
        self._start_writing()
        await self._writing.wait_until_done()

    def _start_writing(self) -> None:
        waiting = [buffer for buffer in self._buffers.values() if buffer.has_tail()]
        # counted again, since ending turns changes it too
        self.unflushed = sum(buffer.unflushed() for buffer in self._buffers.values())
        for tenant_id, turns in _by_tenant(waiting).items():
            self._writing.start(tenant_id, partial(self._flush_turns, tenant_id, turns))

    async def _flush_turns(self, tenant_id: TenantId, turns: Sequence[OpenTurnBuffer]) -> None:
        async with self._write_slots:
            for start in range(0, len(turns), _MAX_TURNS_PER_WRITE):
                await self._flush_batch(tenant_id, turns[start : start + _MAX_TURNS_PER_WRITE])

    async def _flush_batch(self, tenant_id: TenantId, batch: Sequence[OpenTurnBuffer]) -> None:
        turns = [
            buffer
            for buffer in batch
            if buffer.has_tail() and buffer.pending_write is None and not buffer.end_lock.locked()
        ]
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # set before any await, so that no commit starts in between
        for buffer in turns:
            buffer.pending_write = written
        try:
            if turns:
                named: dict[str, str | int] = {"turnkeep.tenant_id": format_id(tenant_id), "turnkeep.turns": len(turns)}
                with root_span("flush", named):
                    await self._write(tenant_id, turns)
        except Exception as error:  # noqa: BLE001 - after any error the text is kept and written later
            for buffer in turns:
                buffer.is_uncertain = True
            self._dirty.set()
            self._log.warning("stream.flush_failed", code=_code(error), error_type=error_type(error), count=len(turns))
        except asyncio.CancelledError:  # the process stops, and the result of the write is unknown
            for buffer in turns:
                buffer.is_uncertain = True
            raise
        finally:
            for buffer in turns:
                buffer.pending_write = None
            if not written.done():
                written.set_result(None)

    async def _write(self, tenant_id: TenantId, turns: Sequence[OpenTurnBuffer]) -> None:
        """Write the text of some turns. It is durable when this transaction commits."""
        sent: list[SentChunk] = []
        async with self._database.transaction(tenant_id) as tx:
            ours = await stream_store.lock_streams(
                tx, tenant_id, [_open_stream(buffer) for buffer in turns], holder=self._holder
            )
            await self._reconcile_uncertain(tx, tenant_id, [buffer for buffer in turns if _open_stream(buffer) in ours])
            for buffer in turns:
                if _open_stream(buffer) in ours:
                    sent.extend(_chunks(buffer))
            if sent:
                await stream_store.insert_chunks(tx, tenant_id, [chunk for _, chunk, _ in sent])
        self.record_written(sent)
        for buffer in turns:
            if _open_stream(buffer) in ours:
                buffer.resolve_waiters()
            else:
                self.drop(buffer, fenced_error())

    def record_written(self, sent: Iterable[SentChunk]) -> None:
        """Remove text from the buffers that is durable now, and report it to the writers."""
        for buffer, chunk, pieces in sent:
            if buffer.is_dropped:  # during the write; `drop` has updated the count
                continue
            buffer.part(chunk.part).mark_flushed(pieces, len(chunk.text))
            self.unflushed -= len(chunk.text)
            buffer.renewed_at = monotonic()
            if buffer.listener is not None:
                buffer.listener.on_durable(buffer.turn_id, chunk.part, chunk.start + len(chunk.text))

    async def release(self, buffer: OpenTurnBuffer) -> None:
        """Write the text of a turn and release it for another process; the caller has its `end_lock`.

        A failure changes nothing: the other process takes the turn over without the text.
        """
        sent: list[SentChunk] = []
        try:
            async with self._database.transaction(buffer.tenant_id) as tx:
                stream = await stream_store.lock_stream(tx, buffer.tenant_id, buffer.turn_id)
                named = None if stream is None else OpenStream(stream.conversation_id, stream.turn_id, stream.epoch)
                if stream is not None and (named, stream.holder) == (_open_stream(buffer), self._holder):
                    sent = await self.write_tail(tx, buffer)
                    await stream_store.take_stream(
                        tx,
                        buffer.tenant_id,
                        buffer.turn_id,
                        holder=stream_store.NO_HOLDER,
                        epoch=buffer.epoch,
                        key_id=buffer.key_id,
                    )
        except Exception as error:  # noqa: BLE001 - after any error the text is kept and written later
            buffer.is_uncertain = True
            self._dirty.set()
            self._log.warning("stream.release_failed", code=_code(error), error_type=error_type(error))
            return
        self.record_written(sent)
        buffer.resolve_waiters()
        self.drop(buffer, fenced_error())

    async def write_tail(self, tx: Transaction, buffer: OpenTurnBuffer) -> list[SentChunk]:
        """Write the text of a turn, whose stream is locked, for its next holder; the caller has its `end_lock`.

        Pass the result to `record_written` when the transaction has committed.
        """
        await self._reconcile_uncertain(tx, buffer.tenant_id, [buffer])
        sent = list(_chunks(buffer))
        if sent:
            await stream_store.insert_chunks(tx, buffer.tenant_id, [chunk for _, chunk, _ in sent])
        buffer.is_uncertain = True  # until the transaction has committed
        return sent

    async def write_only(self, buffer: OpenTurnBuffer) -> None:
        """Write the text of a turn whose `end_lock` is taken, since another process may take the turn over.

        The buffer keeps its text: the operation that ends the turn reads both, and the next write reconciles them.
        """
        await buffer.wait_for_write()
        buffer.pending_write = written = asyncio.get_running_loop().create_future()
        buffer.is_uncertain = True
        try:
            async with self._database.transaction(buffer.tenant_id) as tx:
                stream = _open_stream(buffer)
                if await stream_store.lock_streams(tx, buffer.tenant_id, [stream], holder=self._holder):
                    stored = await stream_store.durable_lengths(tx, buffer.tenant_id, [buffer.turn_id])
                    lengths = {part: length for part, (length, _) in stored.get(buffer.turn_id, {}).items()}
                    if chunks := list(_chunks_after(buffer, lengths)):
                        await stream_store.insert_chunks(tx, buffer.tenant_id, chunks)
        except Exception as error:  # noqa: BLE001 - after any error the text is kept
            self._log.warning("stream.release_failed", code=_code(error), error_type=error_type(error))
        finally:
            buffer.pending_write = None
            written.set_result(None)
            self.wake()

    async def release_all(self) -> None:
        """Release the open turns of this process, which stops, if all their text is durable.

        Other processes then take these turns without a request to this process.
        """
        idle = [buffer for buffer in self._buffers.values() if not buffer.end_lock.locked()]
        for tenant_id, turns in _by_tenant(idle).items():
            async with AsyncExitStack() as locks:
                for buffer in turns:
                    await locks.enter_async_context(buffer.end_lock)  # no text is taken and no turn ends meanwhile
                await self._release_complete(tenant_id, [buffer for buffer in turns if _is_complete(buffer)])

    async def _release_complete(self, tenant_id: TenantId, turns: Sequence[OpenTurnBuffer]) -> None:
        named = [_open_stream(buffer) for buffer in turns]
        try:
            async with self._database.transaction(tenant_id) as tx:
                released = await stream_store.release_streams(tx, tenant_id, named, holder=self._holder)
        except Exception as error:  # noqa: BLE001 - after any error the other tenants' turns are released
            self._log.warning("stream.release_failed", code=_code(error), error_type=error_type(error))
            return
        for buffer in turns:
            if _open_stream(buffer) in released:
                self.drop(buffer, fenced_error())

    async def _reconcile_uncertain(self, tx: Transaction, tenant_id: TenantId, turns: Sequence[OpenTurnBuffer]) -> None:
        unsure = [buffer for buffer in turns if buffer.is_uncertain]
        if not unsure:
            return
        lengths = await stream_store.durable_lengths(tx, tenant_id, [buffer.turn_id for buffer in unsure])
        for buffer in unsure:
            before = buffer.unflushed()
            buffer.reconcile_durable({part: length for part, (length, _) in lengths.get(buffer.turn_id, {}).items()})
            self.unflushed -= before - buffer.unflushed()

    async def renew_lease(self, buffer: OpenTurnBuffer) -> None:
        """Mark a turn as active, and renew its lease if it is due, before a long operation."""
        buffer.active_at = monotonic()
        if self._is_due(buffer):
            await self._renew_batch(buffer.tenant_id, [buffer])

    async def check_held(self, tenant_id: TenantId, turns: Sequence[OpenTurnBuffer]) -> None:
        """Renew the leases of turns, and drop those that this process does not hold any more."""
        await self._renew_turns(tenant_id, turns)

    async def _renew(self) -> None:
        self._start_renewing()
        await self._renewing.wait_until_done()

    def _start_renewing(self) -> None:
        """Renew the leases of active writers without new text, and drop the buffers of inactive ones."""
        now = monotonic()
        for buffer in self._buffers.values():
            if buffer.end_lock.locked():  # its writer waits for the answer
                buffer.active_at = now
        for buffer in [
            buffer for buffer in self._buffers.values() if now - buffer.active_at > 2 * self._settings.stream_lease_s
        ]:
            self.drop(buffer, fenced_error())
        due = [buffer for buffer in self._buffers.values() if self._is_due(buffer)]
        for tenant_id, turns in _by_tenant(due).items():
            self._renewing.start(tenant_id, partial(self._renew_turns, tenant_id, turns))

    def _is_due(self, buffer: OpenTurnBuffer) -> bool:
        return (
            buffer.active_at > buffer.renewed_at
            and monotonic() - buffer.renewed_at > self._settings.stream_lease_s / _RENEWALS_PER_LEASE
        )

    async def _renew_turns(self, tenant_id: TenantId, turns: Sequence[OpenTurnBuffer]) -> None:
        async with self._renewal_slots:
            for start in range(0, len(turns), _MAX_TURNS_PER_WRITE):
                try:
                    await self._renew_batch(tenant_id, turns[start : start + _MAX_TURNS_PER_WRITE])
                except Exception as error:  # noqa: BLE001 - after any error the other leases are renewed
                    self._log.error("stream.renewal_crashed", error_type=error_type(error), exc_info=error)

    async def _renew_batch(self, tenant_id: TenantId, turns: Sequence[OpenTurnBuffer]) -> None:
        now = monotonic()
        try:
            async with self._database.transaction(tenant_id) as tx:
                named = [_open_stream(buffer) for buffer in turns]
                ours = await stream_store.renew_streams(tx, tenant_id, named, holder=self._holder)
        except AppError as error:
            self._log.warning("stream.renewal_failed", code=error.code, count=len(turns))
            return
        for buffer in turns:
            if _open_stream(buffer) in ours:
                buffer.renewed_at = now
            elif not buffer.end_lock.locked():  # the operation that ends the turn reports the reason
                self.drop(buffer, fenced_error())


def _is_complete(buffer: OpenTurnBuffer) -> bool:
    return not (buffer.is_dropped or buffer.has_tail() or buffer.pending_write is not None or buffer.may_miss_text())


def _code(error: Exception) -> str:
    return error.code if isinstance(error, AppError) else "internal_error"


def _open_stream(buffer: OpenTurnBuffer) -> OpenStream:
    return OpenStream(buffer.conversation_id, buffer.turn_id, buffer.epoch)


def _chunks_after(buffer: OpenTurnBuffer, lengths: Mapping[str, int]) -> Iterable[NewChunk]:
    """Yield the text of a buffer that follows the durable lengths of its parts."""
    for name, part in buffer.parts.items():
        start = max(part.durable, lengths.get(name, 0))
        if text := "".join(part.tail)[start - part.durable :]:
            yield NewChunk(buffer.turn_id, name, start, text)


def _chunks(buffer: OpenTurnBuffer) -> Iterable[SentChunk]:
    for name, part in buffer.parts.items():
        if part.tail:
            chunk = NewChunk(buffer.turn_id, name, part.durable, "".join(part.tail))
            yield buffer, chunk, len(part.tail)


def _by_tenant(turns: Iterable[OpenTurnBuffer]) -> dict[TenantId, list[OpenTurnBuffer]]:
    of_tenant: dict[TenantId, list[OpenTurnBuffer]] = {}
    for buffer in turns:
        of_tenant.setdefault(buffer.tenant_id, []).append(buffer)
    return of_tenant
