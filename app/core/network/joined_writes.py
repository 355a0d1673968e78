"""A transport that can send bytes together with those that follow, in one system call.

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


class JoinedWrites(_Transport):
    """A transport that can send bytes with the next ones. Everything else is passed on to the transport below it.

    Bytes that wait are sent with the next write, or else when the event loop has run what is ready now.
    """

    __slots__ = ("_later", "_loop", "below")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.below = transport
        self._loop = asyncio.get_running_loop()
        self._later = b""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return getattr(self.below, name)

    def write_later(self, data: bytes) -> None:
        """Send bytes with the next ones, in their order."""
        if not self._later:
            self._loop.call_soon(self.flush)
        self._later += data

    def flush(self) -> None:
        """Send the bytes that wait, unless the connection is closed meanwhile."""
        data, self._later = self._later, b""
        if data and not self.below.is_closing():
            self.below.write(data)

    def write(self, data: Buffer) -> None:
        """Send bytes after those that wait."""
        if self._later:
            first, self._later = self._later, b""
            data = b"".join((first, data))
        self.below.write(data)  # pyright: ignore[reportArgumentType]

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send some parts after the bytes that wait."""
        self.flush()
        self.below.writelines(list_of_data)  # pyright: ignore[reportArgumentType]

    def close(self) -> None:
        """Send the bytes that wait, and close the connection."""
        self.flush()
        self.below.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._later = b""
        self.below.abort()
