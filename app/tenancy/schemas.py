"""Who is asking."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StringConstraints

from app.core.errors import Forbidden
from app.core.ids import KeyId, TenantId
from app.core.times import TimeIn, TimeOut


class Scope(StrEnum):
    """What a key may do. `admin` is for one tenant's administration, `operator` for the whole installation."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Caller:
    """A checked key: everything a service may know of who asks. `tenant_id` bounds all it can reach.

    `digest` is what is stored of the secret that was given, by which the present one is told from the one before.
    """

    tenant_id: TenantId
    key_id: KeyId
    scopes: frozenset[Scope]
    agent_id: str | None
    long_term_enabled: bool
    digest: bytes = field(default=b"", repr=False)

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


_Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class _Sent(BaseModel):
    model_config = ConfigDict(extra="forbid")


class KeyCreate(_Sent):
    """A key to make. Its scopes are some of the caller's own."""

    name: _Name
    scopes: list[Scope] = Field(default=[Scope.READ, Scope.WRITE], min_length=1, max_length=4)
    expires_at: TimeIn | None = None
    agent_id: _Name | None = None
    long_term_enabled: StrictBool = True


class KeyRotate(_Sent):
    """A new secret for a key. The old one holds for `grace_s` seconds more."""

    grace_s: Annotated[StrictInt, Field(ge=0, le=86_400)] = 0


class Key(BaseModel):
    """A key, without its secret. `previous_expires_at`: until when the secret before the last rotation holds."""

    id: str
    name: str
    scopes: list[Scope]
    state: Literal["valid", "expired", "revoked"]
    agent_id: str | None
    long_term_enabled: bool
    created_at: TimeOut
    expires_at: TimeOut | None
    revoked_at: TimeOut | None
    previous_expires_at: TimeOut | None
    last_used_at: TimeOut | None


class KeyMade(Key):
    """A key with its text, which is given this once and kept nowhere."""

    key: str


class TenantCreate(_Sent):
    """A tenant to make."""

    name: _Name


class TenantUpdate(_Sent):
    """What of a tenant may change."""

    name: _Name


class Tenant(BaseModel):
    """A customer of the installation."""

    id: str
    name: str
    created_at: TimeOut


class TenantMade(Tenant):
    """A tenant with its first key (read, write, admin), whose text is given this once and kept nowhere."""

    first_key: KeyMade
