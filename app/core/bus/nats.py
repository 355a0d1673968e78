"""The bus over core NATS: for many replicas, or when Postgres should do nothing but store.

Hides the client and its ways. It is made anew for every connection, and never reconnects by itself: it would give up
for good when a server refuses the login for a moment, and send late what waited meanwhile. What always holds: a `tls://`
URL is never spoken to in the clear, and the login of the URL reaches neither a log line nor an error.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, Self, cast
from urllib.parse import SplitResult, unquote, urlsplit

from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from app.core.bus.connection import Link, LinkedBus
from app.core.telemetry import error_type, get_logger

_ENVELOPE_BYTES = 32 * 2**10
_CONNECT_S, _RETRY_S, _FLUSH_S, _PING_S = 2, 1, 5, 5
_PENDING_MESSAGES, _PENDING_BYTES = 2**20, 256 * 2**20


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """Where the servers of one cluster are, who logs in, and the subject of this installation."""

    servers: Sequence[str]
    subject: str
    queue_bytes: int
    user: str | None = None
    password: str | None = None
    token: str | None = None

    @classmethod
    def of(cls, urls: str, *, subject: str, queue_bytes: int) -> Self:
        """Read comma-separated URLs; the login of the first that has one (user and password, or a token) is for all."""
        parts = [urlsplit(url.strip()) for url in urls.split(",")]
        options = cls([_without_login(part) for part in parts], subject, queue_bytes)
        login = next((part for part in parts if part.username), None)
        if login is None or login.username is None:
            return options
        if login.password is None:
            return replace(options, token=unquote(login.username))
        return replace(options, user=unquote(login.username), password=unquote(login.password))


def _without_login(parts: SplitResult) -> str:
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], path="", query="", fragment="").geturl()


class NatsBus(LinkedBus):
    """A bus over the NATS servers at a URL."""

    def __init__(self, options: NatsOptions) -> None:
        super().__init__("nats", envelope_bytes=_ENVELOPE_BYTES, queue_bytes=options.queue_bytes)
        self._options = options

    async def _connect(self, hear: Callable[[str], None], missed: Callable[[], None]) -> Link:
        link = _NatsLink(self._options.subject, missed)
        try:
            await link.open(self._options, hear)
        except BaseException:
            with suppress(Exception):  # half made: there is nothing in it to keep
                await asyncio.wait_for(link.close(), _RETRY_S)
            raise
        return link


class _SafeClient(Client):
    """The library's client, without two of its traps."""

    async def confirm(self) -> None:
        """Return when the server has all that was sent before."""
        if not self.is_connected or self._flush_queue is None:
            # a flush would return as if all were well
            raise errors.ConnectionClosedError
        # its ping goes out at once, before what still waits to be written: without this it would confirm nothing
        written = asyncio.get_running_loop().create_future()
        await self._flush_queue.put(written)
        await written
        await self.flush(_FLUSH_S)

    def _connect_command(self) -> bytes:
        # with a server that offers no TLS, the library falls back to sending the login in the clear
        server = self._current_server
        if server is not None and server.uri.scheme == "tls" and not self._server_info.get("tls_required"):
            raise errors.Error("nats: the server offers no TLS")
        return super()._connect_command()


class _Subscribing(Protocol):
    """What is used of `Client.subscribe`, whose own types are unfinished."""

    async def subscribe(
        self,
        subject: str,
        *,
        cb: Callable[[Msg], Awaitable[None]],
        pending_msgs_limit: int,
        pending_bytes_limit: int,
    ) -> object: ...


class _NatsLink:
    """One client, from its connection to the end of that."""

    def __init__(self, subject: str, missed: Callable[[], None]) -> None:
        self._client = _SafeClient()
        self._subject = subject
        self._missed = missed
        self.ended = asyncio.Event()

    async def open(self, options: NatsOptions, hear: Callable[[str], None]) -> None:
        """Connect and subscribe; returns when the server has the subscription."""

        async def heard(message: Msg) -> None:
            hear(message.data.decode(errors="replace"))

        async def ended() -> None:
            self.ended.set()

        await self._client.connect(
            list(options.servers),
            name="turnkeep",
            user=options.user,
            password=options.password,
            token=options.token,
            no_echo=True,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=_RETRY_S,
            connect_timeout=_CONNECT_S,
            # of its own, besides our probes: where its reader has died, a flush returns without having asked
            ping_interval=_PING_S,
            error_cb=self._failed,
            disconnected_cb=ended,
            closed_cb=ended,
        )
        await cast("_Subscribing", self._client).subscribe(
            self._subject, cb=heard, pending_msgs_limit=_PENDING_MESSAGES, pending_bytes_limit=_PENDING_BYTES
        )
        await self._client.confirm()

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, errors.SlowConsumerError):
            self._missed()
        elif not self._client.is_connected:
            return  # told by `ended`, or raised by `open`
        else:
            # mostly a missing permission for the subject, with which nothing would ever be heard
            get_logger().warning("bus.refused", kind="nats", error_type=error_type(error))
            self.ended.set()

    async def send(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            await self._client.publish(self._subject, payload)
        await self._client.confirm()

    async def probe(self) -> None:
        await self._client.confirm()

    async def close(self) -> None:
        await self._client.close()
