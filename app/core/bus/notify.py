"""The bus over LISTEN and NOTIFY of Postgres: it needs no other server than the database.

It has two connections with the application's role, one that listens and one that notifies. A channel belongs to its
database, so installations in one server do not receive each other's messages. Every role that may connect to the
database can read all payloads: row-level security does not cover them, so PUBLIC has no CONNECT privilege.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import asyncpg

from app.core.bus.connection import QUEUE_BYTES, Link, ReconnectingBus
from app.core.database.connections import connect

CHANNEL = "turnkeep_bus"
NOTIFY = "select pg_notify($1, p) from unnest($2::text[]) p"
PROBE = "select 'turnkeep_bus'"
_ENVELOPE_BYTES = 7900  # Postgres refuses payloads of 8000 and more
_TIMEOUT_S = 5.0


class NotifyBus(ReconnectingBus):
    """A bus over the database of the installation."""

    def __init__(self, url: str, *, role: str | None, application: str, queue_bytes: int = QUEUE_BYTES) -> None:
        """`role` is set if that of the URL has more privileges; `{}` in `application` becomes `listen` or `notify`."""
        super().__init__("postgres", envelope_bytes=_ENVELOPE_BYTES, queue_bytes=queue_bytes)
        self._url = url
        self._role = role
        self._application = application

    async def _connect(self, on_payload: Callable[[str], None], on_gap: Callable[[], None]) -> Link:
        del on_gap  # Postgres drops no notification while the connection lasts
        listening = await self._open("listen")
        notifying: asyncpg.Connection[asyncpg.Record] | None = None
        try:
            notifying = await self._open("notify")
            await listening.add_listener(CHANNEL, lambda _connection, _pid, _channel, payload: on_payload(str(payload)))
        except BaseException:
            for connection in (listening, notifying):
                if connection is not None:
                    connection.terminate()
            raise
        return _NotifyLink(listening, notifying)

    async def _open(self, use: str) -> "asyncpg.Connection[asyncpg.Record]":
        server_settings = {
            "application_name": self._application.format(use),
            # messages are not durable, and waiting for the disk would delay the next ones
            "synchronous_commit": "off",
        }
        if self._role is not None:
            server_settings["role"] = self._role
        return await connect(
            self._url, timeout_s=_TIMEOUT_S, command_timeout=_TIMEOUT_S, server_settings=server_settings
        )


class _NotifyLink:
    """The two connections. When one ends, both are replaced."""

    def __init__(
        self, listening: "asyncpg.Connection[asyncpg.Record]", notifying: "asyncpg.Connection[asyncpg.Record]"
    ) -> None:
        self._listening = listening
        self._notifying = notifying
        self._sending = asyncio.Lock()
        self.ended = asyncio.Event()
        for connection in (listening, notifying):
            connection.add_termination_listener(lambda _connection: self.ended.set())

    async def send(self, payloads: Sequence[bytes]) -> None:
        async with self._sending:
            await self._notifying.execute(NOTIFY, CHANNEL, [payload.decode() for payload in payloads])

    async def probe(self) -> None:
        await self._listening.execute(PROBE)
        async with self._sending:
            await self._notifying.execute(PROBE)

    async def close(self) -> None:
        for connection in (self._listening, self._notifying):
            with suppress(Exception):  # terminated below if it does not close in time
                await asyncio.wait_for(connection.close(), _TIMEOUT_S / 20)
            if not connection.is_closed():
                connection.terminate()
