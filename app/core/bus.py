"""Small messages between the processes of an installation, and to oneself.

What always holds: `publish` neither waits nor fails; a process's own messages reach it at once and once; messages of
one process arrive in the order they were published, or `on_loss` is called. Nothing here is durable: rows are the
truth, and a message only says that they changed or carries text that will be a row a moment later.
"""

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
