"""The live connections of one process: how many, how busy, and whether their keys still hold."""

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
from app.tenancy.schemas import Caller

Kind: TypeAlias = Literal["websocket", "events"]
_Counted = TypeVar("_Counted")
_RETRY_AFTER_S: Final = 5

CREDENTIALS_IN_QUERY: Final = frozenset(
    {"token", "key", "api_key", "apikey", "x-api-key", "access_token", "auth", "authorization", "bearer"}
)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be at once: in all, of a tenant, of a key with its tokens, of who has a token.

    `unknown`: of those that have not said who they are, besides.
    """

    most: int
    of_tenant: int
    of_key: int
    of_token: int
    unknown: int


@dataclass(frozen=True, slots=True)
class _Key:
    """A key, with the tokens made by it."""

    tenant_id: TenantId
    key_id: KeyId


@dataclass(frozen=True, slots=True)
class _Holder:
    """Who has a token: its actor in its conversation, whatever token that one has now; else the token itself."""

    tenant_id: TenantId
    conversation_id: ConversationId
    who: str | bytes


def _counted_to(caller: Caller) -> Sequence[_Key | _Holder]:
    """Whom a caller's connection is counted to, besides its tenant; who has the smallest limit first."""
    key, bound = _Key(caller.key_tenant_id, caller.key_id), caller.bound
    if bound is None:
        return (key,)
    holder = caller.digest if bound.actor is None else bound.actor
    return _Holder(caller.key_tenant_id, bound.conversation_id, holder), key


class Place:
    """The place that a connection takes up, and whom it is counted to."""

    def __init__(self, connections: "Connections", caller: Caller) -> None:
        """RateLimited when the caller has too many."""
        self.tenant = caller.key_tenant_id
        self._connections = connections
        self._counted_to = _counted_to(caller)
        connections.acquire(self._counted_to)

    def move(self, caller: Caller) -> None:
        """Count the connection to another caller of the same tenant. RateLimited when that one has too many."""
        before, now = self._counted_to, _counted_to(caller)
        self._connections.acquire([one for one in now if one not in before])
        self._connections.release([one for one in before if one not in now])
        self._counted_to = now

    def leave(self) -> None:
        """Give the place back."""
        self._connections.release(self._counted_to)


class Connections:
    """Counts live connections, and refuses those over a limit.

    Of all places no tenant takes more than so many, of a tenant's no key, of a key's nobody who has one of its tokens.
    Who has not said who it is takes none of them, and is counted apart.
    """

    def __init__(self, registry: CollectorRegistry, *, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._unknown = 0
        self._open = 0
        self._of_tenant: dict[TenantId, int] = {}
        self._of: dict[_Key | _Holder, int] = {}
        self._gauge = Gauge("turnkeep_live_connections", "Live connections that are open.", ["kind"], registry=registry)
        self._sent = Counter(
            "turnkeep_live_frames_sent", "Frames that live connections were sent.", ["kind"], registry=registry
        )
        self._received = Counter("turnkeep_live_frames_received", "Frames that clients sent.", registry=registry)

    @contextmanager
    def arriving(self) -> Generator[None]:
        """Count a connection that has not said who it is, as long as the block lasts; RateLimited over the limit."""
        if self._unknown >= self._limits.unknown:
            raise _too_many(
                "Too many connections here have not said yet who they are: bring the key with the connection, in a"
                " header or as a subprotocol, or connect again later."
            )
        self._unknown += 1
        try:
            yield
        finally:
            self._unknown -= 1

    @contextmanager
    def entered(self, kind: Kind, caller: Caller) -> Generator[Place]:
        """Count a caller's connection as long as the block lasts; RateLimited when there are too many."""
        tenant_id, limits = caller.key_tenant_id, self._limits
        if self._open >= limits.most:
            raise _too_many("This server has as many live connections as it may; connect again later.")
        if self._of_tenant.get(tenant_id, 0) >= limits.of_tenant:
            raise _too_many(
                f"This tenant has {limits.of_tenant} live connections to this server, and no more are allowed: close"
                " some, or connect again later."
            )
        place = Place(self, caller)
        self._open += 1
        _count(self._of_tenant, tenant_id, 1)
        self._gauge.labels(kind).inc()
        try:
            yield place
        finally:
            self._open -= 1
            _count(self._of_tenant, tenant_id, -1)
            place.leave()
            self._gauge.labels(kind).dec()

    def acquire(self, whose: Sequence[_Key | _Holder]) -> None:
        """Count one more of each, or of none: RateLimited when one of them has too many."""
        for one in whose:
            if self._of.get(one, 0) >= (self._limits.of_key if isinstance(one, _Key) else self._limits.of_token):
                raise self._too_many_of(one)
        for one in whose:
            _count(self._of, one, 1)

    def release(self, whose: Sequence[_Key | _Holder]) -> None:
        """Count one less of each."""
        for one in whose:
            _count(self._of, one, -1)

    def _too_many_of(self, whose: _Key | _Holder) -> RateLimited:
        if isinstance(whose, _Key):
            return _too_many(
                f"This key, with the tokens made by it, has {self._limits.of_key} live connections to this server, and"
                " no more are allowed: close some, connect with another key, or later."
            )
        return _too_many(
            f"Who has this token has {self._limits.of_token} live connections to this server in this conversation, and"
            " no more are allowed: close some, or connect again later."
        )

    def sent(self, kind: Kind, count: int = 1) -> None:
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
    """Show who follows in this process."""
    subscriptions, list_subscriptions = container.subscriptions, container.list_subscriptions
    shown: tuple[tuple[str, str, Callable[[], float]], ...] = (
        ("turnkeep_live_subscribers", "Who follows a conversation.", lambda: subscriptions.subscribers),
        ("turnkeep_live_channels", "Conversations that somebody follows.", lambda: subscriptions.channels),
        ("turnkeep_live_watchers", "Who watches a list of conversations.", lambda: list_subscriptions.count),
        (
            "turnkeep_live_rereads",
            "Subscribers dropped for not reading, since the start.",
            lambda: subscriptions.rereads,
        ),
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
