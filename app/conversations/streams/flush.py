"""Makes the text of open turns durable, a debounce after it was taken, and keeps their leases.

What always holds: at most one write a debounce for each turn, one transaction for all of a tenant's turns; a tenant
whose streams somebody has locked holds up no other's writes and leases; text leaves memory only when it is durable or
its turn is somebody else's; after a write whose end was not heard of, what is durable is asked before anything is
written again.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from time import monotonic
from uuid import UUID

from app.conversations.stores import stream_store
from app.conversations.stores.stream_store import NewChunk, OpenStream
from app.conversations.streams.buffer import OpenTurnBuffer, StreamKey, fenced
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError
from app.core.ids import TenantId
from app.core.telemetry import error_type, get_logger

_TURNS_A_WRITE = 500
_WRITES_AT_ONCE = 4
_RENEWALS_AT_ONCE = 2
_LOOKS_PER_LEASE = 6
_RENEWALS_PER_LEASE = 3
_MAX_OWED = 10_000
_LAST_FLUSHES = 3
_LAST_WAIT_S = 0.2


class _TenantTasks:
    """One task for each tenant at most: whoever waits, for a lock perhaps, holds up no other tenant."""

    def __init__(self, missed: Callable[[], None] | None = None) -> None:
        """`missed` is called when a tenant's task is over and another was asked for meanwhile."""
        self._tasks: dict[TenantId, asyncio.Task[None]] = {}
        self._behind: set[TenantId] = set()
        self._missed = missed

    def begin(self, tenant_id: TenantId, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Begin a tenant's task, unless its last one is under way."""
        if tenant_id in self._tasks:
            self._behind.add(tenant_id)
            return
        self._tasks[tenant_id] = task = asyncio.create_task(work())
        task.add_done_callback(lambda _: self._ended(tenant_id))

    def _ended(self, tenant_id: TenantId) -> None:
        del self._tasks[tenant_id]
        if tenant_id in self._behind:
            self._behind.discard(tenant_id)
            if self._missed is not None:
                self._missed()

    async def over(self) -> None:
        """Wait until nothing is under way; who goes away while it waits ends nothing."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))


class Flusher:
    """Writes what the open turns in `held` have taken."""

    def __init__(
        self,
        database: Database,
        held: dict[StreamKey, OpenTurnBuffer],
        *,
        holder: UUID,
        debounce_s: float,
        lease_s: float,
    ) -> None:
        self._database = database
        self._held = held
        self._holder = holder
        self._debounce_s = debounce_s
        self._lease_s = lease_s
        self._dirty = asyncio.Event()
        self._looked = monotonic()
        self._writing, self._renewing = _TenantTasks(self.wake), _TenantTasks()
        self._write_places = asyncio.Semaphore(_WRITES_AT_ONCE)
        self._renewal_places = asyncio.Semaphore(_RENEWALS_AT_ONCE)
        self._log = get_logger()
        self._owed: dict[StreamKey, tuple[int, dict[str, int]]] = {}
        self.unflushed = 0
        """Code points that are not durable, of all turns held here."""

    def taken(self, length: int) -> None:
        """So much more was taken."""
        self.unflushed += length
        self.wake()

    def wake(self) -> None:
        """There is something to write."""
        self._dirty.set()

    def drop(self, held: OpenTurnBuffer, error: AppError | None) -> None:
        """Hold a turn no more: it has ended, or with an `error` somebody else writes it. Again changes nothing."""
        if held.dropped:
            return
        if self._held.get(held.key) is held:
            del self._held[held.key]
        self._remember(held, ended=error is None or error.code != "stream_fenced")
        self.unflushed -= held.unflushed()
        held.forget()
        if error is None:
            held.tell_durable()
        else:
            held.lose(error)

    def _remember(self, held: OpenTurnBuffer, *, ended: bool) -> None:
        """Keep what is owed of a turn whose text is dropped, until it has ended or is written under another epoch."""
        self.forget_owed(held.key)
        if not ended and (owing := held.owing()):
            self._owed[held.key] = (held.epoch, owing)
            if len(self._owed) > _MAX_OWED:
                del self._owed[next(iter(self._owed))]

    def owed(self, key: StreamKey, epoch: int) -> dict[str, int]:
        """How much of each part this process once took under this epoch, and lost some of."""
        of, lengths = self._owed.get(key, (epoch, {}))
        return lengths if of == epoch else {}

    def forget_owed(self, key: StreamKey) -> None:
        """Forget what is owed of a turn: it has ended, or another one was opened under its key."""
        self._owed.pop(key, None)

    async def run_forever(self) -> None:
        """Flush and renew, until cancelled."""
        while True:
            with suppress(TimeoutError):
                # not `wait_for`, which forgets a cancellation that comes together with what it waited for
                async with asyncio.timeout(self._lease_s / _LOOKS_PER_LEASE):
                    await self._dirty.wait()
            if self._dirty.is_set():
                await asyncio.sleep(self._debounce_s)
                self._dirty.clear()
                self._attempt("stream.flush_crashed", self._begin_writing)
            if monotonic() - self._looked >= self._lease_s / _LOOKS_PER_LEASE:
                self._looked = monotonic()
                self._attempt("stream.renewal_crashed", self._begin_renewing)

    def _attempt(self, failed: str, begin: Callable[[], None]) -> None:
        try:
            begin()
        except Exception as error:  # noqa: BLE001 - whatever it was, the loop goes on; it looks again a debounce later
            self._dirty.set()
            self._log.error(failed, error_type=error_type(error), exc_info=error)

    async def flush_last(self) -> None:
        """Write all that is not durable yet, again where a write failed; nothing is under way any more after it."""
        await self._writing.over()
        for _ in range(_LAST_FLUSHES):
            await self.flush()
            if not self.unflushed:
                break
            await asyncio.sleep(_LAST_WAIT_S)
        await self._renewing.over()

    async def flush(self) -> None:
        """Write all that is not durable yet; what cannot be written now stays for the next time."""
        self._begin_writing()
        await self._writing.over()

    def _begin_writing(self) -> None:
        waiting = [held for held in self._held.values() if held.has_tail()]
        # ends of turns change what is not durable too
        self.unflushed = sum(held.unflushed() for held in self._held.values())
        for tenant_id, turns in _by_tenant(waiting).items():
            self._writing.begin(tenant_id, partial(self._flush_turns, tenant_id, turns))

    async def _flush_turns(self, tenant_id: TenantId, turns: Sequence[OpenTurnBuffer]) -> None:
        async with self._write_places:
            for start in range(0, len(turns), _TURNS_A_WRITE):
                await self._flush_some(tenant_id, turns[start : start + _TURNS_A_WRITE])

    async def _flush_some(self, tenant_id: TenantId, some: Sequence[OpenTurnBuffer]) -> None:
        turns = [held for held in some if held.has_tail() and held.flush is None and not held.ending.locked()]
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # noted before anything else runs, so that no commit begins in between
        for held in turns:
            held.flush = over
        try:
            if turns:
                await self._write(tenant_id, turns)
        except Exception as error:  # noqa: BLE001 - whatever it was, the text is kept and written later
            for held in turns:
                held.unsure = True
            self._dirty.set()
            self._log.warning("stream.flush_failed", code=_code(error), error_type=error_type(error), count=len(turns))
        except asyncio.CancelledError:  # the process stops, and does not know what was written
            for held in turns:
                held.unsure = True
            raise
        finally:
            for held in turns:
                held.flush = None
            if not over.done():
                over.set_result(None)

    async def _write(self, tenant_id: TenantId, turns: Sequence[OpenTurnBuffer]) -> None:
        sent: list[tuple[OpenTurnBuffer, NewChunk, int]] = []
        async with self._database.transaction(tenant_id) as tx:
            ours = await stream_store.hold_streams(tx, tenant_id, [_named(held) for held in turns], holder=self._holder)
            await self._ask_unsure(tx, tenant_id, [held for held in turns if _named(held) in ours])
            for held in turns:
                if _named(held) in ours:
                    sent.extend(_chunks(held))
            if sent:
                await stream_store.insert_chunks(tx, tenant_id, [chunk for _, chunk, _ in sent])
        self._note_written(sent)
        for held in turns:
            if _named(held) in ours:
                held.tell_durable()
            else:
                self.drop(held, fenced())

    def _note_written(self, sent: Iterable[tuple[OpenTurnBuffer, NewChunk, int]]) -> None:
        for held, chunk, pieces in sent:
            if held.dropped:  # while it was written; what was not durable is not counted any more
                continue
            held.part(chunk.part).flushed(pieces, len(chunk.text))
            self.unflushed -= len(chunk.text)
            held.renewed = monotonic()
            if held.listener is not None:
                held.listener.durable(held.turn_id, chunk.part, chunk.start + len(chunk.text))

    async def release(self, held: OpenTurnBuffer) -> None:
        """Write the text of a turn and let another process hold it; its lock `ending` is held by the caller.

        Where this fails nothing changes: the other process takes the turn over without the text.
        """
        sent: list[tuple[OpenTurnBuffer, NewChunk, int]] = []
        try:
            async with self._database.transaction(held.tenant_id) as tx:
                stream = await stream_store.lock_stream(tx, held.tenant_id, held.turn_id)
                named = None if stream is None else OpenStream(stream.conversation_id, stream.turn_id, stream.epoch)
                if stream is not None and (named, stream.holder) == (_named(held), self._holder):
                    await self._ask_unsure(tx, held.tenant_id, [held])
                    sent = list(_chunks(held))
                    if sent:
                        await stream_store.insert_chunks(tx, held.tenant_id, [chunk for _, chunk, _ in sent])
                    await stream_store.take(
                        tx,
                        held.tenant_id,
                        held.turn_id,
                        holder=stream_store.NO_HOLDER,
                        epoch=held.epoch,
                        key_id=held.key_id,
                    )
        except Exception as error:  # noqa: BLE001 - whatever it was, the text is kept and written later
            held.unsure = True
            self._dirty.set()
            self._log.warning("stream.release_failed", code=_code(error), error_type=error_type(error))
            return
        self._note_written(sent)
        held.tell_durable()
        self.drop(held, fenced())

    async def release_all(self) -> None:
        """Let other processes hold the open turns of this one, which stops: all whose text is durable as it was taken.

        Their calls find the turns released, and need not wait for an answer of this process.
        """
        idle = [held for held in self._held.values() if not held.ending.locked()]
        for tenant_id, turns in _by_tenant(idle).items():
            async with AsyncExitStack() as locks:
                for held in turns:
                    await locks.enter_async_context(held.ending)  # nothing is taken and nothing ends meanwhile
                await self._release_whole(tenant_id, [held for held in turns if _is_whole(held)])

    async def _release_whole(self, tenant_id: TenantId, turns: Sequence[OpenTurnBuffer]) -> None:
        named = [_named(held) for held in turns]
        try:
            async with self._database.transaction(tenant_id) as tx:
                released = await stream_store.release(tx, tenant_id, named, holder=self._holder)
        except Exception as error:  # noqa: BLE001 - whatever it was, the others are released
            self._log.warning("stream.release_failed", code=_code(error), error_type=error_type(error))
            return
        for held in turns:
            if _named(held) in released:
                self.drop(held, fenced())

    async def _ask_unsure(self, tx: Transaction, tenant_id: TenantId, turns: Sequence[OpenTurnBuffer]) -> None:
        unsure = [held for held in turns if held.unsure]
        if not unsure:
            return
        found = await stream_store.durable_lengths(tx, tenant_id, [held.turn_id for held in unsure])
        for held in unsure:
            before = held.unflushed()
            held.found_durable({part: length for part, (length, _) in found.get(held.turn_id, {}).items()})
            self.unflushed -= before - held.unflushed()

    async def hear(self, held: OpenTurnBuffer) -> None:
        """Note that a turn's writer was heard of, and if need be renew its lease at once, for what takes long."""
        held.heard = monotonic()
        if self._is_due(held):
            await self._renew_some(held.tenant_id, [held])

    async def _renew(self) -> None:
        self._begin_renewing()
        await self._renewing.over()

    def _begin_renewing(self) -> None:
        """Renew leases of writers that were heard of but brought no text, and forget whom nothing was heard of."""
        now = monotonic()
        for held in self._held.values():
            if held.ending.locked():  # its writer waits for the answer
                held.heard = now
        for held in [held for held in self._held.values() if now - held.heard > 2 * self._lease_s]:
            self.drop(held, fenced())
        due = [held for held in self._held.values() if self._is_due(held)]
        for tenant_id, turns in _by_tenant(due).items():
            self._renewing.begin(tenant_id, partial(self._renew_turns, tenant_id, turns))

    def _is_due(self, held: OpenTurnBuffer) -> bool:
        return held.heard > held.renewed and monotonic() - held.renewed > self._lease_s / _RENEWALS_PER_LEASE

    async def _renew_turns(self, tenant_id: TenantId, turns: Sequence[OpenTurnBuffer]) -> None:
        async with self._renewal_places:
            for start in range(0, len(turns), _TURNS_A_WRITE):
                try:
                    await self._renew_some(tenant_id, turns[start : start + _TURNS_A_WRITE])
                except Exception as error:  # noqa: BLE001 - whatever it was, the others are renewed
                    self._log.error("stream.renewal_crashed", error_type=error_type(error), exc_info=error)

    async def _renew_some(self, tenant_id: TenantId, turns: Sequence[OpenTurnBuffer]) -> None:
        now = monotonic()
        try:
            async with self._database.transaction(tenant_id) as tx:
                named = [_named(held) for held in turns]
                ours = await stream_store.renew(tx, tenant_id, named, holder=self._holder)
        except AppError as error:
            self._log.warning("stream.renewal_failed", code=error.code, count=len(turns))
            return
        for held in turns:
            if _named(held) in ours:
                held.renewed = now
            elif not held.ending.locked():  # what ends it finds out by itself, and says why
                self.drop(held, fenced())


def _is_whole(held: OpenTurnBuffer) -> bool:
    return not (held.dropped or held.has_tail() or held.flush is not None or held.lacks_text())


def _code(error: Exception) -> str:
    return error.code if isinstance(error, AppError) else "internal_error"


def _named(held: OpenTurnBuffer) -> OpenStream:
    return OpenStream(held.conversation_id, held.turn_id, held.epoch)


def _chunks(held: OpenTurnBuffer) -> Iterable[tuple[OpenTurnBuffer, NewChunk, int]]:
    for name, part in held.parts.items():
        if part.tail:
            chunk = NewChunk(held.turn_id, held.epoch, name, part.durable, "".join(part.tail))
            yield held, chunk, len(part.tail)


def _by_tenant(turns: Iterable[OpenTurnBuffer]) -> dict[TenantId, list[OpenTurnBuffer]]:
    of_tenant: dict[TenantId, list[OpenTurnBuffer]] = {}
    for held in turns:
        of_tenant.setdefault(held.tenant_id, []).append(held)
    return of_tenant
