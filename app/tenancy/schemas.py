"""The caller of a request, and the schemas of keys, tenants and tokens."""

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Annotated, Final, Generic, Literal, TypeAlias, TypeVar
from uuid import UUID

from pydantic import BaseModel, Field, StrictBool, StrictInt, StringConstraints

from app.core.database.transactions import Transaction
from app.core.errors import FieldError, Forbidden, Invalid, NotFound, Unauthenticated
from app.core.ids import NO_KEY_ID, ConversationId, KeyId, TenantId, format_id
from app.core.times import TimeIn, TimeOut
from app.core.validation.strict import Strict
from app.core.views import IdOut
from app.formats.schemas import Role
from app.tenancy.restriction import MAX_RESTRICTED, Reach, Restriction, reach_of, restriction_of
from app.tenancy.scopes import Scope

DEFAULT_AGENT: Final = "default"
"""The agent of a caller that names none."""
AGENT_PATTERN: Final = "^[!-~]([ -~]*[!-~])?$"
MAX_AGENT_CHARACTERS: Final = 256
ERASED_NAME: Final = "erased"
"""Replaces an erased name: of a tenant, of the key that is left of it, and of the actor of a turn."""


def agent_name(text: str) -> str:
    """Return the agent of a request's header. Raises Invalid for an invalid name."""
    if len(text) > MAX_AGENT_CHARACTERS or re.fullmatch(AGENT_PATTERN, text) is None:
        field = FieldError("/x-agent-id", f"1 to {MAX_AGENT_CHARACTERS} characters of ASCII", "header")
        raise Invalid("invalid_request", "The name in X-Agent-Id is not that of an agent.", fields=[field])
    return text


class RateClass(StrEnum):
    """Classes of calls that are limited separately.

    `read`; `write`; `chunk`: text of an open turn; `search`: searches and contexts; `model`: calls that call a chat
    model or the embedding endpoint.
    """

    READ = "read"
    WRITE = "write"
    CHUNK = "chunk"
    SEARCH = "search"
    MODEL = "model"


class Access(StrEnum):
    """Rights of a conversation token: reading, or reading and appending."""

    READ = "read"
    APPEND = "append"


_SCOPES_OF_ACCESS: Final[Mapping[Access, frozenset[Scope]]] = {
    Access.READ: frozenset({Scope.READ}),
    Access.APPEND: frozenset({Scope.READ, Scope.WRITE}),
}


def scopes_of(access: Access) -> frozenset[Scope]:
    """Return the scopes of a token inside its conversation; the key that creates it has them too."""
    return _SCOPES_OF_ACCESS[access]


@dataclass(frozen=True, slots=True)
class Binding:
    """The limits of a conversation token. With `append` there is an actor, and `roles` are the roles it may write."""

    conversation_id: ConversationId
    access: Access
    actor: str | None
    roles: frozenset[Role]
    expires_at: datetime

    def left_s(self) -> float:
        """Seconds until the token expires; zero or less afterwards."""
        return (self.expires_at - datetime.now(UTC)).total_seconds()


def token_expired() -> Unauthenticated:
    """Return the error for an expired token."""
    return Unauthenticated("token_expired", "This conversation token has expired; ask for another.")


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated key or conversation token: all that a service knows of the caller.

    A caller with a token is `bound`: it has no scope, and `tenant_id`, which every statement needs, raises. A service
    method for tokens calls `require_conversation`; every other method therefore refuses tokens. `key_tenant_id` is for
    logs and the audit. `agent_id` is the key's agent; if the key has none, the request's. `digest` identifies the given
    secret or token among those of the same key.
    """

    key_tenant_id: TenantId
    key_id: KeyId
    scopes: frozenset[Scope]
    agent_id: str | None
    long_term_enabled: bool
    bound: Binding | None = None
    digest: bytes = field(default=b"", repr=False)
    via_token: bool = False
    """Whether a conversation token was given, also after `require_conversation`."""
    is_person: bool = False
    """Whether an access token of an issuer was given. `key_id` is then a keyed hash of issuer and subject."""
    rates: Mapping[RateClass, float] | None = field(default=None, compare=False)
    """Calls per second of each class, 0 for no limit; None for the defaults."""
    restriction: Restriction | None = None
    """Projects and owners outside of which the caller finds nothing; None for no restriction."""
    expires_at: datetime | None = field(default=None, compare=False)
    """When the key or access token expires; None for never. The expiry of a conversation token is in `bound`."""

    @property
    def tenant_id(self) -> TenantId:
        """The tenant that limits everything the caller can reach. Raises Forbidden for a bound caller."""
        self._refuse_bound()
        return self.key_tenant_id

    @property
    def agent(self) -> str:
        """The calling agent: the key's, else the one that the request names, else `default`."""
        return self.agent_id or DEFAULT_AGENT

    def acting_as(self, agent_id: str | None) -> "Caller":
        """Return the caller as the request's agent; a key with an agent keeps its own."""
        return self if agent_id is None or self.agent_id is not None else replace(self, agent_id=agent_id)

    def require_long_term(self) -> None:
        """Raise Forbidden unless the key has long-term memory."""
        self._refuse_bound()
        if not self.long_term_enabled:
            raise Forbidden("long_term_disabled", "This key has no long-term memory.")

    def require_unbound(self) -> None:
        """Raise Forbidden for a caller with a conversation token; a key or access token needs no scope."""
        self._refuse_bound()

    def require(self, scope: Scope) -> None:
        """Raise Forbidden unless the key has `scope`; always, for a bound caller."""
        self._refuse_bound()
        if scope not in self.scopes:
            raise Forbidden("forbidden", f"This key does not have the scope {scope.value}.")

    def reaches(self, project: str, owner: str | None) -> bool:
        """Return whether the caller's restriction includes an object of this project and owner."""
        return self.restriction is None or self.restriction.includes(project, owner)

    def reaches_owner(self, owner: str | None) -> bool:
        """Return whether the caller's restriction includes an object of this owner that belongs to no project."""
        return self.restriction is None or self.restriction.includes_owner(owner)

    def reach(self, *, project: str | None = None, owner: str | None = None) -> Reach:
        """Return what a query across conversations may find: within the given filters and the restriction."""
        return reach_of(self.restriction, project=project, owner=owner)

    def owner_of_new(self, project: str, owner: str | None) -> str | None:
        """Return the owner of a new object: the given one, else the only one that the key is restricted to.

        Raises Forbidden `key_restricted` for an object that would be outside of the restriction.
        """
        return owner if self.restriction is None else self.restriction.owner_of_new(project, owner)

    def owner_of_new_memory(self, owner: str | None) -> str | None:
        """Return the owner of a new memory, which belongs to no project, as `owner_of_new`."""
        return owner if self.restriction is None else replace(self.restriction, projects=None).owner_of_new("", owner)

    def require_conversation(self, scope: Scope, conversation_id: ConversationId) -> "Caller":
        """Return the caller for one conversation, which a conversation token may open.

        The result is no longer bound: use it only for this conversation, and only in a service method that is meant for
        tokens. `require_may_write` of conversations checks what tokens may write. Raises Forbidden, and NotFound for
        any other conversation than the token's.
        """
        if self.bound is None:
            self.require(scope)
            return self
        if conversation_id != self.bound.conversation_id:
            raise NotFound("not_found", "There is no such conversation.")
        scopes = scopes_of(self.bound.access)
        if scope not in scopes:
            raise Forbidden("token_not_allowed", "This conversation token is for reading.")
        return replace(self, scopes=scopes, bound=None)

    def _refuse_bound(self) -> None:
        if self.bound is not None:
            raise Forbidden("token_not_allowed", "A conversation token does not open this; use an API key.")


def job_caller(tenant_id: TenantId) -> Caller:
    """Return the caller of a tenant's job: it may read and write there, and has no key."""
    return Caller(
        key_tenant_id=tenant_id,
        key_id=NO_KEY_ID,
        scopes=frozenset({Scope.READ, Scope.WRITE}),
        agent_id=None,
        long_term_enabled=False,
    )


@dataclass(frozen=True, slots=True)
class TokenEpochs:
    """Validity of tokens, read from the conversations, inside the given transaction of its tenant.

    `current` returns the epoch that a token of the conversation must have, None for an unknown conversation. `move`
    changes it, so that no earlier token is valid; false for an unknown conversation. `require_reachable` raises
    NotFound for a conversation outside of the caller's restriction.
    """

    current: Callable[[Transaction, TenantId, ConversationId], Awaitable[str | None]]
    move: Callable[[Transaction, TenantId, ConversationId], Awaitable[bool]]
    require_reachable: Callable[[Caller, Transaction, ConversationId], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The Idempotency-Key of a request, which is never stored in plain text, and an HMAC of the request."""

    text: str
    request_hmac: bytes

    def for_caller(self, caller: Caller) -> "IdempotencyKey":
        """Return the key for this caller: holders of tokens have keys of their own."""
        bound = caller.bound
        if bound is None:
            return self
        name = f"{format_id(bound.conversation_id)}:{bound.actor}:{self.text}"
        return replace(self, text=f"token:{hashlib.sha256(name.encode()).hexdigest()}")

    def for_agent(self, agent_id: str) -> "IdempotencyKey":
        """Return the key for this agent, which a header names and the HMAC does not contain."""
        return replace(self, request_hmac=hashlib.sha256(self.request_hmac + agent_id.encode()).digest())

    def text_of(self, caller: Caller) -> str:
        """Return the text under which a caller's key is known: restricted callers have keys of their own.

        So none of them reads the result of another key, or continues what another one created.
        """
        return self.text if caller.restriction is None else f"restricted:{format_id(caller.key_id)}:{self.text}"

    def derive_id(self, caller: Caller) -> UUID:
        """Return the id of the object that this request creates, the same for every repeat."""
        name = caller.tenant_id.bytes + self.request_hmac + self.text_of(caller).encode()
        return UUID(bytes=hashlib.sha256(name).digest()[:16], version=4)


_T = TypeVar("_T")
_U = TypeVar("_U")


def result_deleted() -> NotFound:
    """Return the error for a repeated request whose stored result was deleted."""
    return NotFound("not_found", "The result of this Idempotency-Key has been deleted since.")


@dataclass(frozen=True, slots=True)
class RequestResult(Generic[_T]):
    """The result of a request that can be repeated.

    `is_new`: it stored something that was not stored before. `is_replay`: it is the stored result of an earlier request
    with the same idempotency key, and `is_new` is that of the earlier request.
    """

    value: _T
    is_new: bool
    is_replay: bool = False

    def with_value(self, value: _U) -> "RequestResult[_U]":
        """Return this result with its value in another form."""
        return RequestResult(value, self.is_new, self.is_replay)


_Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256)]


_ProjectName: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class KeyCreate(Strict):
    """A key to create. Its scopes must be among the caller's own.

    With `projects` or `owners`, the key finds nothing outside of them: neither conversations of other projects or
    owners, nor their facts and memories. Such a key has only the scopes `read` and `write`, and long-term memory only
    with an `agent_id`.
    """

    name: _Name
    scopes: list[Scope] = Field(default=[Scope.READ, Scope.WRITE], min_length=1, max_length=4)
    expires_at: TimeIn | None = None
    agent_id: _Name | None = None
    long_term_enabled: StrictBool = True
    projects: Annotated[list[_ProjectName], Field(min_length=1, max_length=MAX_RESTRICTED)] | None = None
    owners: Annotated[list[_Name], Field(min_length=1, max_length=MAX_RESTRICTED)] | None = None

    @property
    def restriction(self) -> Restriction | None:
        """The restriction of the key; None if there is none."""
        return restriction_of(self.projects, self.owners)


class KeyRotate(Strict):
    """A new secret for a key. The old one is valid for `grace_s` more seconds."""

    grace_s: Annotated[StrictInt, Field(ge=0, le=86_400)] = 0


class Key(BaseModel):
    """A key, without its secret. `previous_expires_at`: end of validity of the secret before the last rotation.

    `last_used_at` is up to a minute old. `projects` and `owners`: what the key is restricted to, null for all.
    """

    id: IdOut
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
    projects: list[str] | None
    owners: list[str] | None


class InstalledKey(Key):
    """A key of any tenant of the installation."""

    tenant_id: IdOut


class KeyMade(Key):
    """A key with its text, which only this response contains."""

    key: str


class OwnKey(BaseModel):
    """The key or access token of the request, without its secret, and what it may do.

    `kind`: `key`, or `person` for an access token of an identity provider. The id of a person is a keyed hash, as in
    the audit, and `name` is null. `long_term_enabled`: whether it may use long-term memory. `projects` and `owners`:
    what it is restricted to, null for all.
    """

    id: str
    kind: Literal["key", "person"]
    name: str | None
    tenant_id: str
    tenant_name: str
    scopes: list[Scope]
    agent_id: str | None
    long_term_enabled: bool
    expires_at: TimeOut | None
    projects: list[str] | None
    owners: list[str] | None


class TenantCreate(Strict):
    """A tenant to create."""

    name: _Name


class TenantUpdate(Strict):
    """The fields of a tenant that may change."""

    name: _Name


class Tenant(BaseModel):
    """A customer of the installation."""

    id: IdOut
    name: str
    created_at: TimeOut


class TenantMade(Tenant):
    """A tenant with its first key (read, write, admin), whose text only this response contains."""

    first_key: KeyMade


class TokenCreate(Strict):
    """A short-lived token for one conversation: to read it, or to read it and append to it.

    A token that appends needs an `actor`: it writes turns of this actor only, in one of `roles`. A token that only
    reads ignores `roles`. `ttl_s` defaults to the setting (15 minutes), and is at most an hour.
    """

    access: Access
    actor: _Name | None = None
    roles: list[Literal[Role.USER, Role.ASSISTANT, Role.TOOL]] = Field(default=[Role.USER], min_length=1, max_length=3)
    ttl_s: Annotated[StrictInt, Field(ge=1, le=3600)] | None = None


class TokenMade(BaseModel):
    """A conversation token, whose text only this response contains."""

    token: str
    expires_at: TimeOut
    conversation_id: str
    access: Access
    actor: str | None
    roles: list[Role]


class ModelUsageDay(BaseModel):
    """A tenant's usage of a chat model on one day (UTC), for one purpose.

    `calls` are calls that used tokens, `failed` those of them without a result. `cost` is in the currency of the prices
    that were set at that time.
    """

    tenant_id: IdOut
    day: date
    purpose: str
    model: str
    calls: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cost: float
