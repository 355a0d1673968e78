"""A connection of asyncpg that can send statements without waiting for their answers.

The driver waits for the answer to each message before it sends the next one. But BEGIN, and the COMMIT of a transaction
that has changed nothing, return nothing that a caller needs. They are sent with the next message, and their answers are
taken out of what the server sends before the driver reads it: the server answers in the order of the messages.
"""

import asyncio
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, cast

import asyncpg
from asyncpg.protocol import Protocol as Driver

from app.core.network.joined_writes import JoinedWrites
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
_NO_SETTING: Final = b"S\0\0\0\x06\0\0"
"""A setting without a name and a value, which the driver takes at any time."""


class _AnswerFilter(asyncio.Protocol):
    """Gives the driver what the server sends, without the answers to what the driver has not sent."""

    def __init__(self, driver: asyncio.Protocol, transport: JoinedWrites | None = None) -> None:
        self.driver = driver
        self.transport = cast("JoinedWrites", transport)  # None until there is a connection
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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the driver write to a transport that joins its messages with those that are sent without waiting."""
        self.transport = JoinedWrites(cast("asyncio.Transport", transport))
        self.driver.connection_made(self.transport)

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
                self.driver.data_received(data[at:end])
            at = end
        self._rest, rest = (data[at:], b"") if self.expected else (b"", data[at:])
        if rest:
            self._pass_on(rest)

    def _pass_on(self, data: bytes) -> None:
        self._last_bytes = (data if len(data) >= len(self._last_bytes) else self._last_bytes + data)[-6:]
        self.driver.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass the end of the stream on."""
        return self.driver.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the end of the connection on."""
        self.driver.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that much waits to be sent."""
        self.driver.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that most has been sent."""
        self.driver.resume_writing()


def _error_code(fields: bytes) -> str:
    """Return the SQLSTATE of an error: its field `C`. The message may contain values, and is not read."""
    return next((field[1:].decode("ascii", "replace") for field in fields.split(b"\0") if field[:1] == b"C"), "")


class _FilteringLoop:
    """The running event loop, as the driver uses it to connect: the filter is between its sockets and the driver."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        # used for every statement
        self.create_future = self.loop.create_future
        self.call_later = self.loop.call_later

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loop, name)

    async def create_connection(self, factory: "_Factory", *where: Any, **options: Any) -> "_Connected":
        """Connect to a host and a port."""
        return await self._connect(self.loop.create_connection, factory, *where, **options)

    async def create_unix_connection(self, factory: "_Factory", *where: Any) -> "_Connected":
        """Connect to a socket in a folder."""
        return await self._connect(self.loop.create_unix_connection, factory, *where)

    async def _connect(
        self, connect: Callable[..., Awaitable["_Connected"]], factory: "_Factory", *where: Any, **options: Any
    ) -> "_Connected":
        def make() -> asyncio.BaseProtocol:
            made = factory()
            # to ask for TLS, the driver has another protocol first
            return _AnswerFilter(cast("asyncio.Protocol", made)) if isinstance(made, Driver) else made

        transport, protocol = await connect(make, *where, **options)
        if isinstance(protocol, _AnswerFilter):
            return protocol.transport, protocol.driver
        return JoinedWrites(cast("asyncio.Transport", transport)), protocol

    async def start_tls(self, transport: JoinedWrites, *rest: Any, **options: Any) -> JoinedWrites | None:
        """Begin TLS on a connection."""
        made = await self.loop.start_tls(transport.below, *rest, **options)
        return None if made is None else JoinedWrites(made)


_Factory = Callable[[], asyncio.BaseProtocol]
_Connected = tuple[asyncio.BaseTransport, asyncio.BaseProtocol]


class PipelinedConnection(_Connection):
    """A connection of asyncpg that also sends statements without waiting for their answers: see `connect`."""

    __slots__ = ("_filter",)

    def __init__(self, protocol: Any, transport: JoinedWrites, loop: _FilteringLoop, *rest: Any) -> None:
        """Find the filter, or put it between transport and driver. The arguments are those of asyncpg."""
        super().__init__(protocol, transport, loop.loop, *rest)
        found = transport.get_protocol()
        if not isinstance(found, _AnswerFilter):
            found = _AnswerFilter(protocol, transport)
            transport.set_protocol(found)
        self._filter = found

    @property
    def can_send(self) -> bool:
        """Return whether the server has answered all of the driver's statements, and has said nothing since then."""
        return self._filter.is_between_answers

    def drop_answers(self) -> None:
        """Remove the last two parts of answers that the driver has kept: they may have texts. Only while `can_send`.

        The driver keeps what it has read last until it has read more, and an idle connection reads nothing.
        """
        for _ in range(2):
            self._filter.driver.data_received(_NO_SETTING)

    def send(self, sql: str) -> None:
        """Send statements that have no arguments and return nothing, with the next one of the driver or soon.

        Only while `can_send`, and if no statement of the driver was interrupted. If the server refuses them, the
        connection is closed, and the driver's next statement raises; but the server may have run it by then. Raises
        asyncpg's InterfaceError if the connection is closed already.
        """
        transport = self._filter.transport
        if transport.is_closing():
            raise asyncpg.InterfaceError("the connection is closed")
        text = sql.encode()
        self._filter.expected += 1
        transport.write_later(b"Q" + _LENGTH.pack(len(text) + 5) + text + b"\0")


async def connect(url: str, **options: Any) -> PipelinedConnection:
    """Connect as asyncpg does, with its options and errors."""
    loop = cast("asyncio.AbstractEventLoop", cast("object", _FilteringLoop()))
    return await asyncpg.connect(url, loop=loop, connection_class=PipelinedConnection, **options)
