"""Hands an open turn over from one process to another, with all text that was taken.

Calls of one writer may reach any process. A process that gets a call on a turn which another process holds asks that
one over the bus to write its text and to release the turn, and waits for this. When no answer comes in time (the other
process has died, or the message was lost), the turn is taken over without it: text that was not durable is missing
then, and the writer is told the offset from which to send again.

A writer that does not wait for its answers makes processes ask each other again and again. So a process that has
released a turn leaves it to the one that asked, for a moment, before it takes it back for a call of its own.
"""

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Final
from uuid import UUID

from app.conversations.events import Announcer, BusEvent
from app.conversations.stores import stream_store
from app.conversations.stores.stream_store import NO_HOLDER
from app.conversations.streams.buffer import OpenTurnBuffer, StreamKey
from app.conversations.streams.flush import Flusher
from app.core.database.transactions import Database

_FIRST_PAUSE_S: Final = 0.004
_LONGEST_PAUSE_S: Final = 0.05
_ASK_AGAIN_S: Final = 0.2
_GIVE_WAY_S: Final = 0.25


class Handover:
    """Asks other processes for open turns, and releases those of this process when it is asked."""

    def __init__(
        self,
        database: Database,
        held: Mapping[StreamKey, OpenTurnBuffer],
        *,
        holder: UUID,
        announcer: Announcer,
        flusher: Flusher,
        wait_s: float,
    ) -> None:
        self._database = database
        self._held = held
        self._holder = holder
        self._announcer = announcer
        self._flusher = flusher
        self._wait_s = wait_s
        self._releasing: dict[StreamKey, asyncio.Task[None]] = {}
        self._released: dict[StreamKey, float] = {}

    async def request(self, key: StreamKey, *, holder: UUID) -> bool:
        """Ask the process that holds a turn to release it, and return whether it has, after `wait_s` at most.

        A turn that this process has just released is left to the process that asked for it, for a moment.
        """
        if holder == self._holder:
            return True
        if holder == NO_HOLDER:
            await self._wait_while(key, holder, until=self._released.pop(key, 0.0) + _GIVE_WAY_S)
            return True
        return await self._wait_while(key, holder, until=monotonic() + self._wait_s, asks=True)

    async def _wait_while(self, key: StreamKey, holder: UUID, *, until: float, asks: bool = False) -> bool:
        """Wait while the holder of a turn is the same. Return whether it has changed."""
        pause_s, ask_at = _FIRST_PAUSE_S, 0.0
        while (now := monotonic()) < until:
            if asks and now >= ask_at:
                # more than once: it may have released the turn and taken it back for a call of its own
                self._announcer.wanted(key.tenant_id, key.conversation_id, turn_id=key.turn_id, holder=holder)
                ask_at = now + _ASK_AGAIN_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            async with self._database.transaction(key.tenant_id, read_only=True) as tx:
                stream = await stream_store.find_stream(tx, key.tenant_id, key.turn_id)
            if stream is None or stream.holder != holder:
                return True
        return False

    def hear(self, told: BusEvent) -> None:
        """Release a turn that another process asks for, if this one holds it."""
        if told.what != "wanted" or told.turn_id is None or told.holder != self._holder:
            return
        key = StreamKey(told.tenant_id, told.conversation_id, told.turn_id)
        held = self._held.get(key)
        # a turn that may lack text is taken over by force, so that the next process knows it too
        if held is None or key in self._releasing or held.ending.locked() or held.lacks_text():
            return
        self._releasing[key] = task = asyncio.create_task(self._release(held))
        task.add_done_callback(lambda _: self._releasing.pop(key, None))

    def on_loss(self) -> None:
        """A request may have been missed: its sender takes the turn over by itself."""

    async def _release(self, held: OpenTurnBuffer) -> None:
        async with held.ending:  # nothing is taken meanwhile
            if held.flush is not None:
                await asyncio.shield(held.flush)
            if not held.dropped:
                await self._flusher.release(held)
        if held.dropped:
            now = monotonic()
            self._released = {key: at for key, at in self._released.items() if now < at + _GIVE_WAY_S}
            self._released[held.key] = now

    async def close(self) -> None:
        """Wait for what is being released."""
        await asyncio.gather(*self._releasing.values(), return_exceptions=True)
