"""The live connections of one process: how many, how busy, and whether their keys still hold."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge

from app.container import Container
from app.core.errors import RateLimited, Unavailable
from app.core.ids import ConversationId
from app.core.telemetry import get_logger
from app.tenancy.schemas import Caller

Kind: TypeAlias = Literal["websocket", "events"]

CREDENTIALS_IN_QUERY: Final = frozenset(
    {"token", "key", "api_key", "apikey", "x-api-key", "access_token", "auth", "authorization", "bearer"}
)


class Connections:
    """Counts live connections, and refuses those over the limit."""

    def __init__(self, registry: CollectorRegistry, *, most: int) -> None:
        self._most = most
        self._open = 0
        self._gauge = Gauge("turnkeep_live_connections", "Live connections that are open.", ["kind"], registry=registry)
        self._sent = Counter(
            "turnkeep_live_frames_sent", "Frames that live connections were sent.", ["kind"], registry=registry
        )
        self._received = Counter("turnkeep_live_frames_received", "Frames that clients sent.", registry=registry)

    @contextmanager
    def entered(self, kind: Kind) -> Generator[None]:
        """Count a connection for as long as the block lasts; RateLimited when there are too many."""
        if self._open >= self._most:
            raise RateLimited("rate_limited", "Too many live connections here; connect again later.", retry_after_s=5)
        self._open += 1
        self._gauge.labels(kind).inc()
        try:
            yield
        finally:
            self._open -= 1
            self._gauge.labels(kind).dec()

    def sent(self, kind: Kind, count: int = 1) -> None:
        """Count frames that were sent."""
        self._sent.labels(kind).inc(count)

    def received(self) -> None:
        """Count a frame that was received."""
        self._received.inc()


def add_live_metrics(registry: CollectorRegistry, container: Container) -> None:
    """Show who follows in this process."""
    follower, watcher = container.follower, container.watcher
    shown: tuple[tuple[str, str, Callable[[], float]], ...] = (
        ("turnkeep_live_subscribers", "Who follows a conversation.", lambda: follower.subscribers),
        ("turnkeep_live_channels", "Conversations that somebody follows.", lambda: follower.channels),
        ("turnkeep_live_watchers", "Who watches a list of conversations.", lambda: watcher.watches),
        ("turnkeep_live_rereads", "Subscribers dropped for not reading, since the start.", lambda: follower.rereads),
    )
    for name, text, value in shown:
        Gauge(name, text, registry=registry).set_function(value)


class Bucket:
    """Lets so much through a second; a second's worth may come at once, and what is beyond waits."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._left = per_s
        self._at = asyncio.get_running_loop().time()

    async def take(self, amount: float = 1) -> None:
        """Wait until so much more may pass."""
        now = asyncio.get_running_loop().time()
        self._left = min(self._per_s, self._left + (now - self._at) * self._per_s) - amount
        self._at = now
        if self._left < 0:
            await asyncio.sleep(-self._left / self._per_s)


def log_closed(kind: Kind, caller: Caller | None, conversation_id: ConversationId | None, **fields: object) -> None:
    """Say that a live connection has ended."""
    who: dict[str, object] = {} if caller is None else {"tenant_id": caller.key_tenant_id, "key_id": caller.key_id}
    get_logger().info("live.closed", kind=kind, conversation_id=conversation_id, **who, **fields)


def log_connected(kind: Kind, caller: Caller, conversation_id: ConversationId | None) -> None:
    """Say that a live connection has begun."""
    get_logger().info(
        "live.connected",
        kind=kind,
        conversation_id=conversation_id,
        tenant_id=caller.key_tenant_id,
        key_id=caller.key_id,
    )


async def recheck(container: Container, token: str | None) -> Caller | None:
    """The caller a key stands for now; None when nobody can tell at the moment. Raises when it does not hold."""
    try:
        return await container.tenancy.authenticate(token)
    except Unavailable:
        return None
