"""The common part of the buses: the send queue, the message numbers, and reconnection without a limit of attempts.

Invariants: a message waits only for the batch that is being sent. A message that could not be sent, or that waited when
the connection ended or the queue was full, is dropped and never sent late. The next envelope reports the loss to the
other processes. One second after its last message a process sends an empty envelope with its next number, so that the
loss of the last message is detected. After that it is silent.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from app.core.bus.messages import MAX_MESSAGE_BYTES, Listener, Message
from app.core.bus.wire import SequenceTracker, encode, envelope_prefix, pack, read_envelope
from app.core.ids import format_id, new_uuid
from app.core.telemetry import error_type, get_logger

_CONNECT_S = 5.0
_MIN_WAIT_S, _MAX_WAIT_S = 0.1, 5.0
_STABLE_S = 10.0
_SEND_S = 5.0
_BATCH_BYTES = 2 * 2**20
_HEARTBEAT_S = 1.0
_PROBE_EVERY_S, _PROBE_S = 5.0, 5.0
_CLOSE_S = 1.0
QUEUE_BYTES = 16 * 2**20
"""Messages that wait to be sent. A process that cannot send them for seconds tells the others that some are lost."""


class Link(Protocol):
    """One connection to a message server, in both directions."""

    @property
    def ended(self) -> asyncio.Event:
        """Return an event that is set when the connection is known to be closed."""
        ...

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Send envelopes in this order. Return when the server has all of them; raise if this is not known."""
        ...

    async def probe(self) -> None:
        """Return when the server has answered. On a dead connection this may never happen."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


@dataclass(frozen=True, slots=True)
class WrongSetting:
    """The setting that an error of a connection is about, and the path of its file, None for none."""

    name: str
    file: str | None


class ReconnectingBus(ABC):
    """A `Bus` that connects again when its link ends."""

    def __init__(self, kind: str, *, envelope_bytes: int, queue_bytes: int) -> None:
        self._kind = kind
        self._envelope_bytes = envelope_bytes
        self._queue_bytes = queue_bytes
        self._origin = format_id(new_uuid())
        self._own_prefix = envelope_prefix(self._origin)
        self._sequences = SequenceTracker()
        self._listener: Listener | None = None
        self._running: asyncio.Task[None] | None = None
        self._link: Link | None = None
        self._logged_connected: bool | None = None
        self._logged_setting: WrongSetting | None = None
        self._published = 0
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._has_unreported_loss = False
        self._has_work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._log = get_logger()

    @abstractmethod
    async def _connect(self, on_payload: Callable[[str], None], on_gap: Callable[[], None]) -> Link:
        """Connect and listen: `on_payload` receives each payload in order; `on_gap` reports dropped payloads."""

    def _suspect(self, error: BaseException) -> WrongSetting | None:
        """Return the setting that an error of a connection is about, if it is known."""
        del error
        return None

    async def start(self, listener: Listener) -> None:
        """Connect and listen. If this fails or takes long, retry in the background."""
        self._listener = listener
        attempted = asyncio.Event()
        self._running = asyncio.create_task(self._run(attempted))
        await attempted.wait()

    def publish(self, message: Message) -> None:
        """Deliver a message to this process at once, and to the others after the batch that is being sent."""
        if self._listener is None:
            return
        data = encode(message)
        if len(data) > MAX_MESSAGE_BYTES:
            self._log.error("bus.message_too_large", kind=self._kind, bytes=len(data))
            self._record_loss()
        else:
            self._published += 1
            self._queue.append(data)
            self._queued_bytes += len(data)
            if self._link is None or self._queued_bytes > self._queue_bytes:
                self._drop_queue()
            else:
                self._idle.clear()
                self._has_work.set()
        # deliver after numbering: messages that the listener publishes must come after this one everywhere
        self._deliver(message)

    def connected(self) -> bool:
        """Return whether messages of other processes are received at the moment."""
        return self._link is not None and not self._link.ended.is_set()

    async def close(self) -> None:
        """Send the queued messages, for at most one second, and disconnect."""
        self._listener = None
        if self._running is None:
            return
        if self._link is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), _CLOSE_S)
        running, self._running = self._running, None
        await _stop(running, again_after_s=2 * _CLOSE_S)

    # the connection

    async def _run(self, attempted: asyncio.Event) -> None:
        wait_s = _MIN_WAIT_S
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            link = await self._try_connect()
            if link is not None:
                await self._serve_link(link, attempted)
            attempted.set()
            if clock() - began_s > _STABLE_S:
                wait_s = _MIN_WAIT_S
            # jitter, so that processes that lost their server at the same time reconnect at different times
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311 - only spreads load
            wait_s = min(2 * wait_s, _MAX_WAIT_S)

    async def _try_connect(self) -> Link | None:
        self._sequences.clear()
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await self._connect(self._receive, self._report_loss)
        except Exception as error:  # noqa: BLE001 - any error of a server or driver is followed by a retry
            self._log_disconnected(error)
            return None

    async def _serve_link(self, link: Link, attempted: asyncio.Event) -> None:
        """Send and listen until the connection ends."""
        self._link = link
        self._log_connected()
        if attempted.is_set():
            self._report_loss()
        attempted.set()
        tasks = [asyncio.create_task(self._send_forever(link)), asyncio.create_task(self._probe_forever(link))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._link = None
            if self._queue:
                self._drop_queue()
            await _stop(*tasks, again_after_s=_CLOSE_S / 10)
            with suppress(Exception):  # the link is not used again
                async with asyncio.timeout(_CLOSE_S):
                    await link.close()
        errors = [task.exception() for task in tasks if not task.cancelled()]
        self._log_disconnected(next((error for error in errors if error is not None), None))

    async def _probe_forever(self, link: Link) -> None:
        """Return or raise when the connection is closed; a probe finds one that died without notice."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PROBE_EVERY_S):
                    await link.ended.wait()
                return
            async with asyncio.timeout(_PROBE_S):
                await link.probe()

    def _log_connected(self) -> None:
        if self._logged_connected is not True:
            self._logged_connected, self._logged_setting = True, None
            self._log.info("bus.connected", kind=self._kind)

    def _log_disconnected(self, error: BaseException | None) -> None:
        wrong = None if error is None else self._suspect(error)
        # a file may become wrong while the server is down
        if self._logged_connected is not False or wrong not in {None, self._logged_setting}:
            self._logged_connected, self._logged_setting = False, wrong
            cause = None if error is None else error_type(error)
            where: dict[str, str | None] = {} if wrong is None else {"setting": wrong.name, "file": wrong.file}
            self._log.warning("bus.disconnected", kind=self._kind, error_type=cause, **where)

    # sending

    async def _send_forever(self, link: Link) -> None:
        # the first envelope is empty: it announces this origin and its losses so far
        await self._send(link)
        heartbeat_due = False
        while True:
            try:
                async with asyncio.timeout(_HEARTBEAT_S if heartbeat_due else None):
                    await self._has_work.wait()
            except TimeoutError:
                heartbeat_due = False
            else:
                heartbeat_due = True
            await self._send(link)

    async def _send(self, link: Link) -> None:
        """Send the queued messages, or an empty envelope."""
        first = self._published - len(self._queue)
        batch: list[bytes] = []
        size = 0
        while self._queue and size < _BATCH_BYTES:
            batch.append(self._queue.popleft())
            size += len(batch[-1])
        self._queued_bytes -= size
        if not self._queue:
            self._has_work.clear()
        loss, self._has_unreported_loss = self._has_unreported_loss, False
        try:
            async with asyncio.timeout(_SEND_S):
                await link.send(pack(self._origin, first, batch, limit=self._envelope_bytes, has_loss=loss))
        except BaseException:
            # the other processes may not have it: a loss is reported, and nothing is sent twice
            self._has_unreported_loss = True
            raise
        if not self._has_work.is_set():
            self._idle.set()

    def _drop_queue(self) -> None:
        """Drop the queue: sent after an outage, it would come after newer messages of other processes."""
        count = len(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        self._record_loss(count)

    def _record_loss(self, count: int = 1) -> None:
        if not self._has_unreported_loss:
            self._log.warning("bus.messages_dropped", kind=self._kind, count=count)
        self._has_unreported_loss = True
        self._has_work.set()

    # receiving

    def _receive(self, payload: str) -> None:
        if payload.startswith(self._own_prefix):
            return
        envelope = read_envelope(payload)
        if envelope is None:
            self._log.warning("bus.payload_unreadable", kind=self._kind, bytes=len(payload))
            return
        has_loss, fresh = self._sequences.record(envelope, now_s=asyncio.get_running_loop().time())
        if has_loss:
            self._report_loss()
        for message in fresh:
            self._deliver(message)

    def _deliver(self, message: Message) -> None:
        if self._listener is not None:
            self._call(lambda listener: listener.on_message(message))

    def _report_loss(self) -> None:
        self._call(lambda listener: listener.on_loss())

    def _call(self, call_listener: Callable[[Listener], None]) -> None:
        if self._listener is None:
            return
        try:
            call_listener(self._listener)
        except Exception as error:  # noqa: BLE001 - a listener that fails must end neither publisher nor connection
            self._log.error("bus.listener_failed", kind=self._kind, exc_info=error)


async def _stop(*tasks: "asyncio.Task[None]", again_after_s: float) -> None:
    """Cancel tasks until they end: `wait_for` of Python 3.11 and the NATS client can swallow a cancellation."""
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=again_after_s)
