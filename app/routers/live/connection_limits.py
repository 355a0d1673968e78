"""Limits of the live connections of one process: their number, their rates, and rechecks of their keys."""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as MetricCounter

from app.container import Container
from app.core.errors import RateLimited, Unavailable
from app.core.ids import ConversationId, KeyId, TenantId
from app.core.limits import TenantLimiter
from app.core.telemetry import get_logger
from app.routers.http.bytes_in_flight import NO_TENANT
from app.settings.conversations import LiveSettings
from app.tenancy.schemas import Caller

ConnectionKind: TypeAlias = Literal["websocket", "events"]
_RETRY_AFTER_S: Final = 5
_MAX_PER_TOKEN: Final = 20
"""Connections of one person in one conversation: several windows on several machines."""
_KEYS_PER_TENANT: Final = 2
"""One key of a tenant, with the tokens made by it, leaves as many of its connections to the others."""
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
_PARSING_WAIT_S: Final = 600.0
"""Time that a large frame waits to be parsed: as many of a tenant as may wait, of 0.2 s each."""
MAX_EPOCHS: Final = 256
"""Open turns that a connection remembers: four times those that a conversation may have."""

CREDENTIALS_IN_QUERY: Final = frozenset(
    {"token", "key", "api_key", "apikey", "x-api-key", "access_token", "auth", "authorization", "bearer"}
)


@dataclass(frozen=True, slots=True)
class _Holder:
    """Who connections are counted for: the server, a tenant, or what `ids` name in it.

    `refusal` is the error for more than `limit`.
    """

    tenant_id: TenantId
    ids: tuple[KeyId] | tuple[ConversationId, str | bytes] | tuple[()]
    limit: int = field(compare=False)
    refusal: str = field(compare=False)


class ConnectionSlot:
    """The slot of one connection, and the holders that it counts for."""

    def __init__(self, connections: "Connections", caller: Caller) -> None:
        """Acquire the slot. Raises RateLimited if the caller has too many connections."""
        self.tenant = caller.key_tenant_id
        self._connections = connections
        self._holders = connections.acquire(caller)

    def move(self, caller: Caller) -> None:
        """Count the connection for another caller of the same tenant.

        Raises RateLimited if that caller has too many.
        """
        self._holders = self._connections.acquire(caller, instead_of=self._holders)

    def free(self) -> None:
        """Release the slot."""
        self._connections.release(self._holders)


class Connections:
    """Counter of live connections, which refuses connections over a limit.

    A tenant can use only a part of all slots, a key only a part of its tenant's, and a token holder only a part of its
    key's. Connections that are not authenticated use none of these slots and are counted separately.
    """

    def __init__(self, registry: CollectorRegistry, *, settings: LiveSettings) -> None:
        self._settings = settings
        self._unknown = 0
        self._counts: Counter[_Holder] = Counter()
        self.parsing = TenantLimiter(
            1, total=2, max_waiting=settings.live_max_connections_per_tenant, wait_s=_PARSING_WAIT_S
        )
        """Large frames are parsed one at a time for each tenant: a thread that parses delays the event loop."""
        self._server = _Holder(
            NO_TENANT,
            (),
            settings.live_max_connections,
            "This server has as many live connections as it may; connect again later.",
        )
        self._gauge = Gauge("turnkeep_live_connections", "Live connections that are open.", ["kind"], registry=registry)
        self._sent = MetricCounter(
            "turnkeep_live_frames_sent", "Frames that live connections were sent.", ["kind"], registry=registry
        )
        self._received = MetricCounter("turnkeep_live_frames_received", "Frames that clients sent.", registry=registry)

    @property
    def open(self) -> int:
        """Return the number of connections of all callers."""
        return self._counts[self._server]

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
        slot = ConnectionSlot(self, caller)
        self._gauge.labels(kind).inc()
        try:
            yield slot
        finally:
            slot.free()
            self._gauge.labels(kind).dec()

    def acquire(self, caller: Caller, *, instead_of: Sequence[_Holder] = ()) -> Sequence[_Holder]:
        """Count a connection for all its holders, or for none of them; return the holders.

        Raises RateLimited if one of them has too many. `instead_of`: holders that it was counted for until now.
        """
        holders = self._holders_of(caller)
        for holder in holders:
            if holder not in instead_of and self._counts[holder] >= holder.limit:
                raise _too_many(holder.refusal)
        self._counts.update(holders)
        self.release(instead_of)
        return holders

    def release(self, holders: Sequence[_Holder]) -> None:
        """Count a connection of these holders no more."""
        self._counts.subtract(holders)
        for holder in holders:
            if not self._counts[holder]:
                del self._counts[holder]

    def _holders_of(self, caller: Caller) -> Sequence[_Holder]:
        """Return whom a caller's connection counts for. The smallest limit of a key comes first."""
        settings, tenant_id, bound = self._settings, caller.key_tenant_id, caller.bound
        max_of_key = -(-settings.live_max_connections_per_tenant // _KEYS_PER_TENANT)
        tenant = _Holder(
            tenant_id,
            (),
            settings.live_max_connections_per_tenant,
            f"This tenant has {settings.live_max_connections_per_tenant} live connections to this server, and no more"
            " are allowed: close some, or connect again later.",
        )
        of_key = _Holder(
            tenant_id,
            (caller.key_id,),
            max_of_key,
            f"This key, with the tokens made by it, has {max_of_key} live connections to"
            " this server, and no more are allowed: close some, connect with another key, or later.",
        )
        if bound is None:
            return self._server, tenant, of_key
        # any token of its actor in its conversation; without an actor, the token itself
        of_token = _Holder(
            tenant_id,
            (bound.conversation_id, caller.digest if bound.actor is None else bound.actor),
            _MAX_PER_TOKEN,
            f"The holder of this token has {_MAX_PER_TOKEN} live connections to this server in"
            " this conversation, and no more are allowed: close some, or connect again later.",
        )
        return self._server, tenant, of_token, of_key

    def sent(self, kind: ConnectionKind, count: int = 1) -> None:
        """Count frames that were sent."""
        self._sent.labels(kind).inc(count)

    def received(self) -> None:
        """Count a frame that was received."""
        self._received.inc()


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
