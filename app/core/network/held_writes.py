"""A transport on which bytes can wait for those that follow, so that one system call sends both.

Each system call that sends takes about as long as a hundred calls in Python, since it wakes the other side, often on
another processor.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from typing_extensions import Buffer

if TYPE_CHECKING:
    _Transport = asyncio.Transport
else:
    _Transport = object


class HeldWrites(_Transport):
    """A transport that sends bytes with the next ones. Everything else is passed on to the transport below it.

    Held bytes wait for the next write, or else until the event loop has run what is ready now.
    """

    __slots__ = ("_held", "_loop", "below")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.below = transport
        self._loop = asyncio.get_running_loop()
        self._held = b""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return getattr(self.below, name)

    def hold(self, data: bytes) -> None:
        """Send bytes with the next ones, in their order."""
        if not self._held:
            self._loop.call_soon(self.send_held)
        self._held += data

    def send_held(self) -> None:
        """Send the bytes that wait, unless the connection is closed meanwhile."""
        held, self._held = self._held, b""
        if held and not self.below.is_closing():
            self.below.write(held)

    def write(self, data: Buffer) -> None:
        """Send bytes after those that wait."""
        if self._held:
            held, self._held = self._held, b""
            data = b"".join((held, data))
        self.below.write(data)  # pyright: ignore[reportArgumentType]

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send some parts after the bytes that wait."""
        self.send_held()
        self.below.writelines(list_of_data)  # pyright: ignore[reportArgumentType]

    def close(self) -> None:
        """Send the bytes that wait, and close the connection."""
        self.send_held()
        self.below.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._held = b""
        self.below.abort()
