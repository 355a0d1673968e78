"""What the buses have in common: the queue, the numbers, and a connection that is made again for as long as it takes.

Hides when things are sent, and that connections end. What always holds: messages wait only behind what is being sent
at the moment; what could not be sent, and what waited when a connection ended or the queue was full, is dropped, not
sent late, and everybody else is told of the loss as soon as anything can be sent again. A second after its last message
a process says once more how far its numbers are, so that a lost end is seen; after that it is silent.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from app.core.bus.messages import MAX_MESSAGE_BYTES, Listener, Message
from app.core.bus.wire import Origins, encode, head_of, pack, read_envelope
from app.core.ids import format_id, new_uuid
from app.core.telemetry import error_type, get_logger

_CONNECT_S = 5.0
_FIRST_WAIT_S, _LAST_WAIT_S = 0.1, 5.0
_STEADY_S = 10.0
_SEND_S = 5.0
_BATCH_BYTES = 2 * 2**20
_HEARTBEAT_S = 1.0
_PROBE_EVERY_S, _PROBE_S = 5.0, 5.0
_CLOSE_S = 1.0


class Link(Protocol):
    """A connection to a server, both ways, from when it is made to when it ends."""

    @property
    def ended(self) -> asyncio.Event:
        """Set when the connection is found to be gone."""
        ...

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Send envelopes in this order; returns when the server has them all, and raises when that is not known."""
        ...

    async def probe(self) -> None:
        """Return when the server has answered; it may take for ever where the connection is dead."""
        ...

    async def close(self) -> None:
        """Give the connection back."""
        ...


class LinkedBus(ABC):
    """A `Bus` over links of one kind."""

    def __init__(self, kind: str, *, envelope_bytes: int, queue_bytes: int) -> None:
        self._kind = kind
        self._envelope_bytes = envelope_bytes
        self._queue_bytes = queue_bytes
        self._origin = format_id(new_uuid())
        self._own_head = head_of(self._origin)
        self._origins = Origins()
        self._listener: Listener | None = None
        self._running: asyncio.Task[None] | None = None
        self._link: Link | None = None
        self._told_connected: bool | None = None
        self._published = 0
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._loss = False
        self._waiting = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._log = get_logger()

    @abstractmethod
    async def _connect(self, hear: Callable[[str], None], missed: Callable[[], None]) -> Link:
        """Connect and listen: `hear` gets each payload in order, `missed` is called where some were dropped."""

    async def start(self, listener: Listener) -> None:
        """Connect and listen; where that fails, or takes long, it is tried again in the background."""
        self._listener = listener
        tried = asyncio.Event()
        self._running = asyncio.create_task(self._run(tried))
        await tried.wait()

    def publish(self, message: Message) -> None:
        """Tell this process at once, and the others as soon as what is under way has been sent."""
        if self._listener is None:
            return
        data = encode(message)
        if len(data) > MAX_MESSAGE_BYTES:
            self._log.error("bus.message_too_large", kind=self._kind, bytes=len(data))
            self._lose()
        else:
            self._published += 1
            self._queue.append(data)
            self._queued_bytes += len(data)
            if self._link is None or self._queued_bytes > self._queue_bytes:
                self._drop_waiting()
            else:
                self._settled.clear()
                self._waiting.set()
        # after it has its number: what the listener publishes in turn comes behind it everywhere
        self._deliver(message)

    def connected(self) -> bool:
        """Whether messages of other processes are heard at the moment."""
        return self._link is not None and not self._link.ended.is_set()

    async def close(self) -> None:
        """Send what waits, for a second at most, and end."""
        self._listener = None
        if self._running is None:
            return
        if self._link is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), _CLOSE_S)
        running, self._running = self._running, None
        await _stop(running, again_after_s=2 * _CLOSE_S)

    # the connection

    async def _run(self, tried: asyncio.Event) -> None:
        wait_s = _FIRST_WAIT_S
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            link = await self._try()
            if link is not None:
                await self._use(link, tried)
            tried.set()
            if clock() - began_s > _STEADY_S:
                wait_s = _FIRST_WAIT_S
            # jitter, so that processes that lost their server together do not come back together
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311 - nobody gains by guessing it
            wait_s = min(2 * wait_s, _LAST_WAIT_S)

    async def _try(self) -> Link | None:
        self._origins.clear()
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await self._connect(self._hear, self._missed)
        except Exception as error:  # noqa: BLE001 - whatever a server or a driver does, it is tried again
            self._tell_disconnected(error)
            return None

    async def _use(self, link: Link, tried: asyncio.Event) -> None:
        """Send and listen until the connection ends."""
        self._link = link
        self._tell_connected()
        if tried.is_set():
            self._missed()
        tried.set()
        tasks = [asyncio.create_task(self._send_forever(link)), asyncio.create_task(self._watch(link))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._link = None
            if self._queue:
                self._drop_waiting()
            await _stop(*tasks, again_after_s=_CLOSE_S / 10)
            with suppress(Exception):  # it is left behind anyway
                async with asyncio.timeout(_CLOSE_S):
                    await link.close()
        errors = [task.exception() for task in tasks if not task.cancelled()]
        self._tell_disconnected(next((error for error in errors if error is not None), None))

    async def _watch(self, link: Link) -> None:
        """Return or raise when the connection is gone: one that died in silence answers no probe."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PROBE_EVERY_S):
                    await link.ended.wait()
                return
            async with asyncio.timeout(_PROBE_S):
                await link.probe()

    def _tell_connected(self) -> None:
        if self._told_connected is not True:
            self._told_connected = True
            self._log.info("bus.connected", kind=self._kind)

    def _tell_disconnected(self, error: BaseException | None) -> None:
        if self._told_connected is not False:
            self._told_connected = False
            cause = None if error is None else error_type(error)
            self._log.warning("bus.disconnected", kind=self._kind, error_type=cause)

    # sending

    async def _send_forever(self, link: Link) -> None:
        # an empty envelope to begin with: from it the others know of this origin, and of what it has lost so far
        await self._send(link)
        heartbeat_due = False
        while True:
            try:
                async with asyncio.timeout(_HEARTBEAT_S if heartbeat_due else None):
                    await self._waiting.wait()
            except TimeoutError:
                heartbeat_due = False
            else:
                heartbeat_due = True
            await self._send(link)

    async def _send(self, link: Link) -> None:
        """Send what waits, or an empty envelope."""
        first = self._published - len(self._queue)
        batch: list[bytes] = []
        size = 0
        while self._queue and size < _BATCH_BYTES:
            batch.append(self._queue.popleft())
            size += len(batch[-1])
        self._queued_bytes -= size
        if not self._queue:
            self._waiting.clear()
        loss, self._loss = self._loss, False
        try:
            async with asyncio.timeout(_SEND_S):
                await link.send(pack(self._origin, first, batch, limit=self._envelope_bytes, lost=loss))
        except BaseException:
            # whether the others have it is not known; they are told of a loss, and nothing is sent twice
            self._loss = True
            raise
        if not self._waiting.is_set():
            self._settled.set()

    def _drop_waiting(self) -> None:
        """Forget all that waits. Sent after an outage, it would come behind newer words of other processes."""
        count = len(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        self._lose(count)

    def _lose(self, count: int = 1) -> None:
        if not self._loss:
            self._log.warning("bus.messages_dropped", kind=self._kind, count=count)
        self._loss = True
        self._waiting.set()

    # hearing

    def _hear(self, payload: str) -> None:
        if payload.startswith(self._own_head):
            return
        envelope = read_envelope(payload)
        if envelope is None:
            self._log.warning("bus.payload_unreadable", kind=self._kind, bytes=len(payload))
            return
        lost, fresh = self._origins.note(envelope, now_s=asyncio.get_running_loop().time())
        if lost:
            self._missed()
        for message in fresh:
            self._deliver(message)

    def _deliver(self, message: Message) -> None:
        if self._listener is not None:
            self._call(lambda listener: listener.on_message(message))

    def _missed(self) -> None:
        self._call(lambda listener: listener.on_loss())

    def _call(self, told: Callable[[Listener], None]) -> None:
        if self._listener is None:
            return
        try:
            told(self._listener)
        except Exception as error:  # noqa: BLE001 - a listener that fails must end neither publisher nor connection
            self._log.error("bus.listener_failed", kind=self._kind, exc_info=error)


async def _stop(*tasks: "asyncio.Task[None]", again_after_s: float) -> None:
    """Cancel tasks and wait for their end. `wait_for` of Python 3.11 and the NATS client can swallow a cancel."""
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=again_after_s)
