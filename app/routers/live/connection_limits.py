"""Limits of the live connections of one process: their number, their rates, and rechecks of their keys."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge

from app.container import Container
from app.core.errors import RateLimited, Unavailable
from app.core.ids import ConversationId, KeyId, TenantId
from app.core.telemetry import get_logger
from app.settings.conversations import LiveSettings
from app.tenancy.schemas import Caller

ConnectionKind: TypeAlias = Literal["websocket", "events"]
_Counted = TypeVar("_Counted")
_RETRY_AFTER_S: Final = 5
_MAX_PER_TOKEN: Final = 20
"""Connections of one person in one conversation: several windows on several machines."""
_MAX_UNAUTHENTICATED: Final = 500
"""Each takes little and lasts `AUTH_TIMEOUT_S` at most; without a limit, a flood would take all file handles."""
AUTH_TIMEOUT_S: Final = 5.0
"""Time for the first frame: clients send it with the connection."""
RECHECK_S: Final = 5.0
"""Time between two checks of the key of a connection. A revoked key is followed no longer than that."""
FRAMES_PER_S: Final = 2000.0
"""Ten times the frames of a model that streams fast; one process handles some tens of thousands."""
BYTES_PER_S: Final = 2 * 2**20
"""Thirty of the largest chunks."""
BAD_FRAMES: Final = 20
"""Consecutive invalid frames after which a client is closed: it does not learn from their errors."""
ANSWER_BYTES: Final = 2**20
"""Answers that a client has not read, from which on it is not read either."""
MAX_EPOCHS: Final = 256
"""Open turns that a connection remembers: four times those that a conversation may have."""

CREDENTIALS_IN_QUERY: Final = frozenset(
    {"token", "key", "api_key", "apikey", "x-api-key", "access_token", "auth", "authorization", "bearer"}
)


@dataclass(frozen=True, slots=True)
class _CountedKey:
    """A key, with the tokens made by it."""

    tenant_id: TenantId
    key_id: KeyId


@dataclass(frozen=True, slots=True)
class _CountedToken:
    """The holder of a token: its actor in its conversation, for any token of that actor.

    Without an actor, the token itself.
    """

    tenant_id: TenantId
    conversation_id: ConversationId
    who: str | bytes


def _counted_to(caller: Caller) -> Sequence[_CountedKey | _CountedToken]:
    """Return the holders, apart from the tenant, that a caller's connection counts for.

    The smallest limit comes first.
    """
    key, bound = _CountedKey(caller.key_tenant_id, caller.key_id), caller.bound
    if bound is None:
        return (key,)
    holder = caller.digest if bound.actor is None else bound.actor
    return _CountedToken(caller.key_tenant_id, bound.conversation_id, holder), key


class ConnectionSlot:
    """The slot of one connection, and the holders that it counts for."""

    def __init__(self, connections: "Connections", caller: Caller) -> None:
        """Acquire the slot. Raises RateLimited if the caller has too many connections."""
        self.tenant = caller.key_tenant_id
        self._connections = connections
        self._counted_to = _counted_to(caller)
        connections.acquire(self._counted_to)

    def move(self, caller: Caller) -> None:
        """Count the connection for another caller of the same tenant.

        Raises RateLimited if that caller has too many.
        """
        before, now = self._counted_to, _counted_to(caller)
        self._connections.acquire([one for one in now if one not in before])
        self._connections.release([one for one in before if one not in now])
        self._counted_to = now

    def free(self) -> None:
        """Release the slot."""
        self._connections.release(self._counted_to)


class Connections:
    """Counter of live connections, which refuses connections over a limit.

    A tenant can use only a part of all slots, a key only a part of its tenant's, and a token holder only a part of its
    key's. Connections that are not authenticated use none of these slots and are counted separately.
    """

    def __init__(self, registry: CollectorRegistry, *, settings: LiveSettings) -> None:
        self._settings = settings
        self._unknown = 0
        self._open = 0
        self._of_tenant: dict[TenantId, int] = {}
        self._of: dict[_CountedKey | _CountedToken, int] = {}
        self._gauge = Gauge("turnkeep_live_connections", "Live connections that are open.", ["kind"], registry=registry)
        self._sent = Counter(
            "turnkeep_live_frames_sent", "Frames that live connections were sent.", ["kind"], registry=registry
        )
        self._received = Counter("turnkeep_live_frames_received", "Frames that clients sent.", registry=registry)

    @property
    def open(self) -> int:
        """Return the number of connections of all callers."""
        return self._open

    @contextmanager
    def arriving(self) -> Generator[None]:
        """Count an unauthenticated connection until the block ends. Raises RateLimited over the limit."""
        if self._unknown >= _MAX_UNAUTHENTICATED:
            raise _too_many(
                "Too many connections here are not authenticated yet: send the key with the connection, in a"
                " header or as a subprotocol, or connect again later."
            )
        self._unknown += 1
        try:
            yield
        finally:
            self._unknown -= 1

    @contextmanager
    def entered(self, kind: ConnectionKind, caller: Caller) -> Generator[ConnectionSlot]:
        """Count a caller's connection until the block ends. Raises RateLimited if there are too many."""
        tenant_id, of_tenant = caller.key_tenant_id, self._settings.live_max_connections_per_tenant
        if self._open >= self._settings.live_max_connections:
            raise _too_many("This server has as many live connections as it may; connect again later.")
        if self._of_tenant.get(tenant_id, 0) >= of_tenant:
            raise _too_many(
                f"This tenant has {of_tenant} live connections to this server, and no more are allowed: close"
                " some, or connect again later."
            )
        slot = ConnectionSlot(self, caller)
        self._open += 1
        _count(self._of_tenant, tenant_id, 1)
        self._gauge.labels(kind).inc()
        try:
            yield slot
        finally:
            self._open -= 1
            _count(self._of_tenant, tenant_id, -1)
            slot.free()
            self._gauge.labels(kind).dec()

    def acquire(self, whose: Sequence[_CountedKey | _CountedToken]) -> None:
        """Add one to the count of each holder, or of none: raises RateLimited if one of them has too many."""
        for one in whose:
            if self._of.get(one, 0) >= (
                self._settings.live_max_connections_per_key if isinstance(one, _CountedKey) else _MAX_PER_TOKEN
            ):
                raise self._too_many_of(one)
        for one in whose:
            _count(self._of, one, 1)

    def release(self, whose: Sequence[_CountedKey | _CountedToken]) -> None:
        """Subtract one from the count of each holder."""
        for one in whose:
            _count(self._of, one, -1)

    def _too_many_of(self, whose: _CountedKey | _CountedToken) -> RateLimited:
        if isinstance(whose, _CountedKey):
            most = self._settings.live_max_connections_per_key
            return _too_many(
                f"This key, with the tokens made by it, has {most} live connections to this server, and no more are"
                " allowed: close some, connect with another key, or later."
            )
        return _too_many(
            f"The holder of this token has {_MAX_PER_TOKEN} live connections to this server in this conversation, and"
            " no more are allowed: close some, or connect again later."
        )

    def sent(self, kind: ConnectionKind, count: int = 1) -> None:
        """Count frames that were sent."""
        self._sent.labels(kind).inc(count)

    def received(self) -> None:
        """Count a frame that was received."""
        self._received.inc()


def _count(counts: dict[_Counted, int], what: _Counted, step: int) -> None:
    counts[what] = counts.get(what, 0) + step
    if counts[what] == 0:
        del counts[what]


def _too_many(detail: str) -> RateLimited:
    return RateLimited("too_many_connections", detail, retry_after_s=_RETRY_AFTER_S)


def add_live_metrics(registry: CollectorRegistry, container: Container) -> None:
    """Register gauges of the subscribers in this process."""
    subscriptions, list_subscriptions = container.subscriptions, container.list_subscriptions
    shown: tuple[tuple[str, str, Callable[[], float]], ...] = (
        ("turnkeep_live_subscribers", "Who follows a conversation.", lambda: subscriptions.subscribers),
        ("turnkeep_live_channels", "Conversations with at least one subscriber.", lambda: subscriptions.channels),
        ("turnkeep_live_watchers", "Who watches a list of conversations.", lambda: list_subscriptions.count),
        (
            "turnkeep_live_rereads",
            "Subscribers dropped for not reading, since the start.",
            lambda: subscriptions.rereads,
        ),
    )
    for name, text, value in shown:
        Gauge(name, text, registry=registry).set_function(value)


class RateLimiter:
    """A rate limiter that allows `per_s` per second. One second's amount may come at once; anything more waits."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._left = per_s
        self._at = asyncio.get_running_loop().time()

    async def take(self, amount: float = 1) -> None:
        """Wait until `amount` may pass."""
        now = asyncio.get_running_loop().time()
        self._left = min(self._per_s, self._left + (now - self._at) * self._per_s) - amount
        self._at = now
        if self._left < 0:
            await asyncio.sleep(-self._left / self._per_s)


def log_closed(
    kind: ConnectionKind, caller: Caller | None, conversation_id: ConversationId | None, **fields: object
) -> None:
    """Log that a live connection has ended."""
    who: dict[str, object] = {} if caller is None else {"tenant_id": caller.key_tenant_id, "key_id": caller.key_id}
    get_logger().info("live.closed", kind=kind, conversation_id=conversation_id, **who, **fields)


def log_connected(kind: ConnectionKind, caller: Caller, conversation_id: ConversationId | None) -> None:
    """Log that a live connection has begun."""
    get_logger().info(
        "live.connected",
        kind=kind,
        conversation_id=conversation_id,
        tenant_id=caller.key_tenant_id,
        key_id=caller.key_id,
    )


async def recheck(container: Container, token: str | None) -> Caller | None:
    """Return the current caller of a key, or None if this cannot be checked now. Raises if the key is not valid."""
    try:
        return await container.tenancy.authenticate(token)
    except Unavailable:
        return None
