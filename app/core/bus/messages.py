"""Small messages between the processes of an installation, the sender included.

Invariants: `publish` neither waits nor fails. A process receives its own messages at once, and once. The messages of
one process arrive in the order they were published, or `on_loss` is called. Messages are not durable: they report
that rows changed, or carry text that is stored shortly after.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from pydantic import JsonValue

Message: TypeAlias = dict[str, JsonValue]
"""One message: plain JSON, whose UTF-8 form has at most `MAX_MESSAGE_BYTES`."""

MAX_MESSAGE_BYTES = 6000


@dataclass(frozen=True, slots=True)
class Listener:
    """The callbacks of a bus. They run in the event loop, must return at once and must not raise.

    A message is the object that was published or read, and must not be changed.
    `on_loss`: some messages may be missing; read the followed rows again.
    """

    on_message: Callable[[Message], None]
    on_loss: Callable[[], None]


class Bus(Protocol):
    """A message bus, open between `start` and `close`."""

    async def start(self, listener: Listener) -> None:
        """Connect and listen. If the server does not answer, retry in the background without an error."""
        ...

    def publish(self, message: Message) -> None:
        """Send a message to all processes, including this one.

        Call it after the commit of the rows that it is about.
        """
        ...

    def connected(self) -> bool:
        """Return whether messages of other processes are received at the moment."""
        ...

    async def close(self) -> None:
        """Send the queued messages, for at most one second, and disconnect."""
        ...


class ThrottledCall:
    """A call that runs at once, and then at most once per interval, for any number of requests."""

    def __init__(self, call: Callable[[], None], *, interval_s: float) -> None:
        self._call = call
        self._interval_s = interval_s
        self._is_cooling_down = False
        self._is_call_pending = False

    def __call__(self) -> None:
        """Request the call. The last request is always followed by a call."""
        if self._is_cooling_down:
            self._is_call_pending = True
            return
        self._is_cooling_down = True
        asyncio.get_running_loop().call_later(self._interval_s, self._end_cooldown)
        self._call()

    def _end_cooldown(self) -> None:
        self._is_cooling_down = False
        if self._is_call_pending:
            self._is_call_pending = False
            self()
