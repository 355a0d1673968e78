"""The running processes of the installation, as far as their messages reach this one over the bus.

Each announces itself every ten seconds, at its start, and when another one starts, and announces its end. Nothing is
stored. A process that has been silent for 30 seconds is left out: it has died, or one of the two is not connected to
the bus.
"""

import asyncio
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, TypeAlias
from uuid import UUID

from pydantic import StringConstraints, TypeAdapter

from app.core.bus.messages import Message, ThrottledCall
from app.core.database.revisions import head_revision
from app.core.telemetry import get_logger
from app.core.times import truncate_ms

ReplicaKind: TypeAlias = Literal["server", "worker"]
REPLICA: Final = "replica"
"""The kind of the messages."""
ANNOUNCED_EVERY_S: Final = 10.0
SILENT_S: Final = 30.0
MAX_REPLICAS: Final = 1_000
_ANSWERS_EVERY_S: Final = 1.0
_MAX_NAME: Final = 255
_Name: TypeAlias = Annotated[str, StringConstraints(max_length=_MAX_NAME)]


@dataclass(frozen=True, slots=True)
class Replica:
    """A process, as it announces itself. `schema_revision`: the newest that its build knows."""

    id: UUID
    kind: ReplicaKind
    runs_jobs: bool
    version: _Name
    schema_revision: _Name
    host: _Name
    process_number: int
    started_at: datetime


_REPLICA: Final = TypeAdapter(Replica)


@dataclass(frozen=True, slots=True)
class SeenReplica:
    """A process, and the time of its last message: as a time of day, and in seconds of the monotonic clock."""

    replica: Replica
    seen_at: datetime
    seen_s: float


class Replicas:
    """The processes whose messages arrived lately, this one included once it announces itself."""

    def __init__(self, publish: Callable[[Message], None]) -> None:
        self._publish = publish
        self._own: Replica | None = None
        self._seen: dict[UUID, SeenReplica] = {}
        self._answer = ThrottledCall(self.announce, interval_s=_ANSWERS_EVERY_S)
        self._log = get_logger()

    @property
    def own_id(self) -> UUID | None:
        """Return the id of this process, or None while it does not announce itself."""
        return None if self._own is None else self._own.id

    @asynccontextmanager
    async def announced(
        self, process_id: UUID, *, kind: ReplicaKind, runs_jobs: bool, version: str
    ) -> AsyncGenerator[None]:
        """Announce this process during the block. The bus is open."""
        self._own = Replica(
            id=process_id,
            kind=kind,
            runs_jobs=runs_jobs,
            version=version,
            schema_revision=head_revision(),
            host=socket.gethostname()[:_MAX_NAME],
            process_number=os.getpid(),
            started_at=truncate_ms(datetime.now(UTC)),
        )
        self._publish(self._message(self._own) | {"new": True})
        task = asyncio.create_task(self._announce_forever())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._publish({"k": REPLICA, "p": str(process_id), "ended": True})
            self._own = None

    async def _announce_forever(self) -> None:
        while True:
            await asyncio.sleep(ANNOUNCED_EVERY_S)
            self.announce()

    def announce(self) -> None:
        """Announce this process once."""
        if self._own is not None:
            self._publish(self._message(self._own))

    @staticmethod
    def _message(replica: Replica) -> Message:
        return {"k": REPLICA, "p": str(replica.id), "replica": _REPLICA.dump_python(replica, mode="json")}

    def on_message(self, message: Message) -> None:
        """Take the announcement of a process, this one included."""
        try:
            process_id = UUID(str(message["p"]))
            if message.get("ended") is True:
                self._seen.pop(process_id, None)
                return
            replica = _REPLICA.validate_python(message["replica"])
        except (KeyError, TypeError, ValueError):
            self._log.warning("message.unreadable")
            return
        self._drop_silent()
        if process_id in self._seen or len(self._seen) < MAX_REPLICAS:
            self._seen[process_id] = SeenReplica(replica, truncate_ms(datetime.now(UTC)), time.monotonic())
        if message.get("new") is True and process_id != self.own_id:
            self._answer()

    def seen(self) -> list[SeenReplica]:
        """Return the processes whose messages arrived lately, by id: in the order of their start."""
        self._drop_silent()
        return sorted(self._seen.values(), key=lambda process: process.replica.id)

    def _drop_silent(self) -> None:
        before = time.monotonic() - SILENT_S
        for process_id in [process_id for process_id, seen in self._seen.items() if seen.seen_s < before]:
            del self._seen[process_id]
