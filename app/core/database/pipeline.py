"""A connection of asyncpg that can send statements without waiting for their answers.

The driver waits for the answer to each message before it sends the next one. But BEGIN, and the COMMIT of a transaction
that has changed nothing, return nothing that a caller needs. They are sent directly, and their answers are taken out of
what the server sends before the driver reads it: the server answers in the order of the messages.
"""

import asyncio
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from app.core.telemetry import get_logger

if TYPE_CHECKING:
    _Connection = asyncpg.Connection[asyncpg.Record]
else:
    _Connection = asyncpg.Connection

# each message of the server is its kind, the length of the rest with these four bytes, and the rest
_HEAD: Final = Struct("!cI")
_LENGTH: Final = Struct("!I")
_READY: Final = b"Z"
"""The last message of each answer."""
_ERROR: Final = b"E"
_AT_ANY_TIME: Final = frozenset({b"S", b"N", b"A"})
"""Settings, notices and notifications, which belong to no answer."""
_READY_HEAD: Final = b"Z\0\0\0\5"


class _AnswerFilter(asyncio.Protocol):
    """Gives the driver what the server sends, without the answers to what the driver has not sent."""

    def __init__(self, driver: asyncio.Protocol, transport: asyncio.Transport) -> None:
        self._driver = driver
        self.transport = transport
        self._rest = b""
        self._last_bytes = _READY_HEAD + b"I"
        """The last bytes for the driver: at first, the end of what it has read when it connected."""
        self.expected = 0
        """The number of answers that are not for the driver. They come before any that is."""
        self.is_broken = False

    @property
    def is_between_answers(self) -> bool:
        """Return whether the next byte of the server begins a message. False also after a setting or a notice."""
        return self.expected > 0 or self._last_bytes.startswith(_READY_HEAD)

    def data_received(self, data: bytes) -> None:
        """Take the expected answers out of some bytes, and pass the others on."""
        if self.is_broken:
            return
        if not self.expected:
            self._pass_on(data)
            return
        data = self._rest + data
        at = 0
        while self.expected and len(data) - at >= _HEAD.size:
            kind, length = _HEAD.unpack_from(data, at)
            end = at + 1 + length
            if end > len(data):
                break
            if kind == _READY:
                self.expected -= 1
            elif kind == _ERROR:
                get_logger().warning("database.statement_refused", code=_error_code(data[at + _HEAD.size : end]))
                self.is_broken = True
                self.transport.abort()
                return
            elif kind in _AT_ANY_TIME:
                self._driver.data_received(data[at:end])
            at = end
        self._rest, rest = (data[at:], b"") if self.expected else (b"", data[at:])
        if rest:
            self._pass_on(rest)

    def _pass_on(self, data: bytes) -> None:
        self._last_bytes = (data if len(data) >= len(self._last_bytes) else self._last_bytes + data)[-6:]
        self._driver.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass the end of the stream on."""
        return self._driver.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the end of the connection on."""
        self._driver.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that much waits to be sent."""
        self._driver.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that most has been sent."""
        self._driver.resume_writing()


def _error_code(fields: bytes) -> str:
    """Return the SQLSTATE of an error: its field `C`. The message may contain values, and is not read."""
    return next((field[1:].decode("ascii", "replace") for field in fields.split(b"\0") if field[:1] == b"C"), "")


class PipelinedConnection(_Connection):
    """A connection of asyncpg that also sends statements without waiting for their answers."""

    __slots__ = ("_filter",)

    def __init__(self, protocol: Any, transport: asyncio.Transport, *rest: Any) -> None:
        """Put the filter between transport and driver. The arguments are those of asyncpg."""
        super().__init__(protocol, transport, *rest)
        self._filter = _AnswerFilter(protocol, transport)
        transport.set_protocol(self._filter)

    @property
    def can_send(self) -> bool:
        """Return whether the server has answered all of the driver's statements, and has said nothing since then."""
        return self._filter.is_between_answers

    def send(self, sql: str) -> None:
        """Send statements that have no arguments and return nothing, before the next ones of the driver.

        Only while `can_send`, and if no statement of the driver was interrupted. If the server refuses them, the
        connection is closed, and the driver's next statement raises; but the server may have run it by then. Raises
        asyncpg's InterfaceError if the connection is closed already.
        """
        transport = self._filter.transport
        if transport.is_closing():
            raise asyncpg.InterfaceError("the connection is closed")
        text = sql.encode()
        self._filter.expected += 1
        transport.write(b"Q" + _LENGTH.pack(len(text) + 5) + text + b"\0")
