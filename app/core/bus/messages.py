"""Small messages between the processes of an installation, and to oneself.

What always holds: `publish` neither waits nor fails; a process's own messages reach it at once and once; messages of
one process arrive in the order they were published, or `on_loss` is called. Nothing here is durable: rows are the
truth, and a message only says that they changed or carries text that will be a row a moment later.
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
    """Who is told. Both are called in the event loop, must return at once and must not raise.

    A message is the very object that was published or read, and must not be changed.
    `on_loss`: some messages may have been missed; read again whatever is followed.
    """

    on_message: Callable[[Message], None]
    on_loss: Callable[[], None]


class Bus(Protocol):
    """A bus, open between `start` and `close`."""

    async def start(self, listener: Listener) -> None:
        """Connect and listen. A server that does not answer yet is tried again in the background, never raised."""
        ...

    def publish(self, message: Message) -> None:
        """Tell everybody, this process included. Called after the commit of what it is about."""
        ...

    def connected(self) -> bool:
        """Whether messages of other processes are heard at the moment."""
        ...

    async def close(self) -> None:
        """Send what waits, for a second at most, and end."""
        ...


class Coalesced:
    """A call that is made at once, and then at most once an interval however often it is asked for."""

    def __init__(self, call: Callable[[], None], *, interval_s: float) -> None:
        self._call = call
        self._interval_s = interval_s
        self._resting = False
        self._asked = False

    def __call__(self) -> None:
        """Ask for the call; the last one asked for is never left out."""
        if self._resting:
            self._asked = True
            return
        self._resting = True
        asyncio.get_running_loop().call_later(self._interval_s, self._rested)
        self._call()

    def _rested(self) -> None:
        self._resting = False
        if self._asked:
            self._asked = False
            self()
