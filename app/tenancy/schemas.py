"""Who is asking."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from app.core.errors import Forbidden
from app.core.ids import KeyId, TenantId


class Scope(StrEnum):
    """What a key may do. `admin` is for one tenant's administration, `operator` for the whole installation."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Caller:
    """A checked key: everything a service may know of who asks. `tenant_id` bounds all it can reach."""

    tenant_id: TenantId
    key_id: KeyId
    scopes: frozenset[Scope]
    agent_id: str | None
    long_term_enabled: bool

    def require(self, scope: Scope) -> None:
        """Raise Forbidden unless the key has `scope`."""
        if scope not in self.scopes:
            raise Forbidden("forbidden", f"This key does not have the scope {scope.value}.")


def job_caller(tenant_id: TenantId) -> Caller:
    """Who a job of a tenant runs as: it reads and writes there, and stands for no key."""
    return Caller(
        tenant_id=tenant_id,
        key_id=KeyId(UUID(int=0)),
        scopes=frozenset({Scope.READ, Scope.WRITE}),
        agent_id=None,
        long_term_enabled=False,
    )


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A stored key, without its secret."""

    tenant_id: TenantId
    key_id: KeyId
    name: str
    scopes: Sequence[Scope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class Repeatable:
    """A request that carries an Idempotency-Key: the key, and an HMAC of the request it stands for."""

    key: str
    request_hmac: bytes


@dataclass(frozen=True, slots=True)
class Replay:
    """What a request with this key did the first time: enough to render the same answer from the rows."""

    status: int
    result_ids: Sequence[UUID]
