"""Transfer an open turn from one process to another, with all text that was taken.

Calls of one writer may reach any process. A process that gets a call on a turn of another holder sends the holder a
request over the bus. The holder then writes its text and releases the turn, while the other process waits. If the
holder does not release the turn in time (it has died, or the message was lost), the turn is taken over without it. Text
that was not durable is missing then, and the writer gets the offset from which to send again.

A writer that does not wait for responses makes processes request the turn from each other repeatedly. So a process that
has released a turn waits for a short time before it takes the turn back for a call of its own.
"""

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Final
from uuid import UUID

from app.conversations.events import BusEvent, EventPublisher
from app.conversations.stores import stream_store
from app.conversations.stores.stream_store import NO_HOLDER
from app.conversations.streams.buffer import OpenTurnBuffer, StreamKey
from app.conversations.streams.flush import Flusher
from app.core.database.transactions import Database
from app.core.ids import ConversationId, TenantId

_MIN_PAUSE_S: Final = 0.004
_MAX_PAUSE_S: Final = 0.05
_REQUEST_INTERVAL_S: Final = 0.2
_YIELD_S: Final = 0.25


class StreamHandover:
    """Requests open turns from other processes, and releases those of this process on request."""

    def __init__(
        self,
        database: Database,
        buffers: Mapping[StreamKey, OpenTurnBuffer],
        *,
        holder: UUID,
        publisher: EventPublisher,
        flusher: Flusher,
        wait_s: float,
    ) -> None:
        self._database = database
        self._buffers = buffers
        self._holder = holder
        self._publisher = publisher
        self._flusher = flusher
        self._wait_s = wait_s
        self._releasing: dict[StreamKey, asyncio.Task[None]] = {}
        self._released: dict[StreamKey, float] = {}
        self._checks: set[asyncio.Task[None]] = set()

    @property
    def open_turns(self) -> int:
        """Return the number of open turns that this process writes."""
        return len(self._buffers)

    async def request(self, key: StreamKey, *, holder: UUID, wait_s: float | None = None) -> bool:
        """Ask the holder of a turn to release it; return whether it has, after `wait_s` at most.

        After a release by this process, wait for the other process to take the turn first.
        """
        if holder == self._holder:
            return True
        if holder == NO_HOLDER:
            await self._wait_while(key, holder, deadline=self._released.pop(key, 0.0) + _YIELD_S)
            return True
        longest_s = self._wait_s if wait_s is None else min(wait_s, self._wait_s)
        return await self._wait_while(key, holder, deadline=monotonic() + longest_s, sends_request=True)

    async def _wait_while(self, key: StreamKey, holder: UUID, *, deadline: float, sends_request: bool = False) -> bool:
        """Wait while the holder of a turn is the same. Return whether it has changed."""
        pause_s, request_at = _MIN_PAUSE_S, 0.0
        while (now := monotonic()) < deadline:
            if sends_request and now >= request_at:
                # repeated: the holder may have released the turn and taken it back for a call of its own
                self._publisher.request_release(key.tenant_id, key.conversation_id, turn_id=key.turn_id, holder=holder)
                request_at = now + _REQUEST_INTERVAL_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            async with self._database.transaction(key.tenant_id, read_only=True) as tx:
                stream = await stream_store.find_stream(tx, key.tenant_id, key.turn_id)
            if stream is None or stream.holder != holder:
                return True
        return False

    def on_message(self, event: BusEvent) -> None:
        """Release a turn that another process requests, if this process is the holder.

        A turn that is being ended, or may lack text, stays with this process, and its text is written.
        Drop the open turns of a deleted conversation: their names and text would stay in memory until the lease ends.
        """
        if event.kind == "deleted":
            self._check_deleted(event.tenant_id, event.conversation_id)
            return
        if event.kind != "wanted" or event.turn_id is None or event.holder != self._holder:
            return
        key = StreamKey(event.tenant_id, event.conversation_id, event.turn_id)
        buffer = self._buffers.get(key)
        if buffer is None or key in self._releasing:
            return
        # a turn that may lack text is taken over without a release, so that the next holder marks it as unconfirmed
        if buffer.end_lock.locked():
            work = self._flusher.write_only(buffer)
        elif buffer.may_miss_text():
            work = self._write_only(buffer)
        else:
            work = self._release(buffer)
        self._releasing[key] = task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._releasing.pop(key, None))

    def _check_deleted(self, tenant_id: TenantId, conversation_id: ConversationId) -> None:
        """Drop the buffers of a conversation whose turns are gone. A late message about one stored again drops none."""
        turns = [
            buffer
            for key, buffer in self._buffers.items()
            if key.tenant_id == tenant_id and key.conversation_id == conversation_id
        ]
        if turns:
            task = asyncio.create_task(self._flusher.check_held(tenant_id, turns))
            self._checks.add(task)
            task.add_done_callback(self._checks.discard)

    def on_loss(self) -> None:
        """Do nothing: the sender of a lost request takes the turn over after its timeout."""

    async def _write_only(self, buffer: OpenTurnBuffer) -> None:
        async with buffer.end_lock:  # no text is taken meanwhile
            await self._flusher.write_only(buffer)

    async def _release(self, buffer: OpenTurnBuffer) -> None:
        async with buffer.end_lock:  # no text is taken meanwhile
            await buffer.wait_for_write()
            if not buffer.is_dropped:
                await self._flusher.release(buffer)
        if buffer.is_dropped:
            now = monotonic()
            self._released = {key: at for key, at in self._released.items() if now < at + _YIELD_S}
            self._released[buffer.key] = now

    async def close(self) -> None:
        """Wait for running releases and checks."""
        await asyncio.gather(*self._releasing.values(), *self._checks, return_exceptions=True)
