"""Where a bus runs, for tests that hold for every bus: how to open one there, and how to trouble its server."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import asyncpg

from app.core.bus.connection import ReconnectingBus
from app.core.bus.messages import Bus, Listener, Message
from app.core.bus.nats import NatsBus, NatsCluster
from app.core.bus.notify import NotifyBus
from app.settings.server import BusSettings
from tests.support.nats import NatsServer
from tests.support.postgres import TestDatabase
from tests.support.proxy import Proxy, Target

QUEUE_BYTES = 16 * 2**20
_APPLICATION = "bus-test"


@dataclass
class RecordingListener:
    """What one process has heard. Messages of no test (the application's own bus shares the database) are left out."""

    messages: list[Message] = field(default_factory=list)
    losses: int = 0
    delay_s: float = 0.0

    @property
    def callbacks(self) -> Listener:
        return Listener(self._on_message, self._on_loss)

    def _on_message(self, message: Message) -> None:
        if self.delay_s:
            time.sleep(self.delay_s)
        if "test" in message:
            self.messages.append(message)

    def _on_loss(self) -> None:
        self.losses += 1

    def tests(self, sender: str | None = None) -> list[Any]:
        return [message["test"] for message in self.messages if sender is None or message.get("by") == sender]


class BusServer(Protocol):
    """A server, and buses on it."""

    def bus(self, proxy: Proxy | None = None, *, queue_bytes: int = QUEUE_BYTES) -> ReconnectingBus: ...

    def target(self) -> Target: ...

    async def break_connections(self) -> None:
        """End every connection of the buses here, from the server's side; they may come back at once."""
        ...

    async def close(self) -> None: ...


class PostgresPlace:
    """The database of this worker."""

    def __init__(self, database: TestDatabase) -> None:
        self._database = database

    def bus(self, proxy: Proxy | None = None, *, queue_bytes: int = QUEUE_BYTES) -> ReconnectingBus:
        url = self._database.app
        application = f"{_APPLICATION}-{{}}"
        return NotifyBus(proxy.url(url) if proxy else url, role=None, application=application, queue_bytes=queue_bytes)

    def target(self) -> Target:
        return Target.of(self._database.app)

    async def break_connections(self) -> None:
        connection = await asyncpg.connect(self._database.superuser)
        ended = await connection.fetch(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name like $1",
            f"{_APPLICATION}%",
        )
        assert ended
        await connection.close()

    async def close(self) -> None:
        pass


class NatsPlace:
    """A server of this worker, and a subject of this test."""

    def __init__(self, server: NatsServer, subject: str) -> None:
        self.server = server
        self._subject = subject

    def bus(self, proxy: Proxy | None = None, *, queue_bytes: int = QUEUE_BYTES) -> ReconnectingBus:
        url = proxy.url(self.server.url) if proxy else self.server.url
        settings = BusSettings(nats_subject=self._subject)
        return NatsBus(NatsCluster.from_urls(url), settings=settings, queue_bytes=queue_bytes)

    def target(self) -> Target:
        return Target.of(self.server.url)

    async def break_connections(self) -> None:
        self.server.kill()
        self.server.start()

    async def close(self) -> None:
        pass


async def until(condition: Callable[[], bool], *, seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in callbacks
            await asyncio.sleep(0.01)


async def replica(bus: Bus, listeners: list[RecordingListener] | None = None) -> RecordingListener:
    """Start a bus with an ear of its own."""
    listener = RecordingListener()
    await bus.start(listener.callbacks)
    if listeners is not None:
        listeners.append(listener)
    return listener
