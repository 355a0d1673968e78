"""Shared dependencies of routes: caller, conversation, paging."""

import re
from typing import Annotated, TypeAlias, cast
from uuid import UUID

from fastapi import Depends, Header, Path, Query, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from pydantic import AfterValidator, StringConstraints

from app.container import Container
from app.core.errors import FieldError, InvalidFields, PublicValueError
from app.core.ids import KeyId, TenantId, TurnId, format_id, parse_id
from app.core.paging import Order, PageRequest
from app.core.tracing.spans import describe_current_span
from app.core.validation.ids import ConversationIdIn, IdOf
from app.routers.http.app_state import app_state
from app.routers.http.rates import take_rate
from app.tenancy.schemas import AGENT_PATTERN, MAX_AGENT_CHARACTERS, Caller, Scope


async def get_container(request: Request) -> Container:
    """Return the services of this process."""
    return app_state(request.app).container


Services: TypeAlias = Annotated[Container, Depends(get_container)]


async def get_token(request: Request) -> str | None:
    """Return the key or token of a request."""
    return token_of(request.headers.get("authorization", ""), request.headers.get("x-api-key"))


def token_of(authorization: str, api_key: str | None) -> str | None:
    """Return the key or token in the headers of these names; a bearer token counts before `X-API-Key`."""
    scheme, _, credentials = authorization.partition(" ")
    return (credentials.strip() if scheme.lower() == "bearer" else "") or api_key


class CallerSecurity(SecurityBase):
    """Dependency that returns the caller of the key or token of a request.

    One dependency reads both headers, since each costs time. `openapi_document` adds the other one to the document.
    """

    def __init__(self) -> None:
        self.model = HTTPBearer(
            description="An API key, or a conversation token where it is allowed: `Authorization: Bearer tk_…` or"
            " `tkc_…`."
        )
        self.scheme_name = "HTTPBearer"

    async def __call__(self, request: Request) -> Caller:
        """Return the caller. Its users check the needed rights with `require…`."""
        tenancy = (await get_container(request)).tenancy
        cached = cast("Caller | None", getattr(request.state, "caller", None))
        if cached is not None and tenancy.is_trusted(cached):
            return cached  # checked before the body was read
        address = None if request.client is None else request.client.host
        caller = await tenancy.authenticate(await get_token(request), address=address)
        request.state.caller = caller
        request.state.tenant = caller.key_tenant_id
        request.state.tenant_id = format_id(caller.key_tenant_id)
        request.state.key_id = format_id(caller.key_id)
        describe_current_span({"turnkeep.tenant_id": request.state.tenant_id, "turnkeep.key_id": request.state.key_id})
        if cached is None:  # each request is counted once
            take_rate(request, tenancy, caller)
        return caller


get_caller = CallerSecurity()


AnyCaller: TypeAlias = Annotated[Caller, Depends(get_caller)]


class _WithScope:
    """Dependency that returns a caller whose key has a scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def __call__(self, caller: AnyCaller) -> Caller:
        caller.require(self._scope)
        return caller


async def get_key_holder(caller: AnyCaller) -> Caller:
    """Return a caller with a key or an access token, of any scope."""
    caller.require_unbound()
    return caller


async def get_administrator(caller: AnyCaller) -> Caller:
    """Return a caller whose key administers its tenant, or the installation."""
    if Scope.OPERATOR not in caller.scopes:
        caller.require(Scope.ADMIN)
    return caller


Admin: TypeAlias = Annotated[Caller, Depends(_WithScope(Scope.ADMIN))]
Operator: TypeAlias = Annotated[Caller, Depends(_WithScope(Scope.OPERATOR))]
Administrator: TypeAlias = Annotated[Caller, Depends(get_administrator)]
KeyHolder: TypeAlias = Annotated[Caller, Depends(get_key_holder)]
Reader: TypeAlias = Annotated[Caller, Depends(_WithScope(Scope.READ))]
Writer: TypeAlias = Annotated[Caller, Depends(_WithScope(Scope.WRITE))]


ConversationPath: TypeAlias = Annotated[ConversationIdIn, Path(description="The conversation's id: a ULID or a UUID.")]


class _InConversation:
    """Dependency that returns a caller that may do this in the conversation, by its key or by a token for it."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def __call__(self, caller: AnyCaller, conversation_id: ConversationPath) -> Caller:
        caller.require_conversation(self._scope, conversation_id)
        return caller


_AgentName: TypeAlias = Annotated[
    str | None,
    Header(
        alias="X-Agent-Id",
        min_length=1,
        max_length=MAX_AGENT_CHARACTERS,
        pattern=AGENT_PATTERN,
        description="The calling agent, if the key does not name one; default: `default`.",
    ),
]


async def get_agent_reader(caller: Reader, agent_id: _AgentName = None) -> Caller:
    """Return a caller whose key may read, as its own or the named agent."""
    return caller.acting_as(agent_id)


async def get_agent_writer(caller: Writer, agent_id: _AgentName = None) -> Caller:
    """Return a caller whose key may write, as its own or the named agent."""
    return caller.acting_as(agent_id)


AgentReader: TypeAlias = Annotated[Caller, Depends(get_agent_reader)]
AgentWriter: TypeAlias = Annotated[Caller, Depends(get_agent_writer)]
ConversationReader: TypeAlias = Annotated[Caller, Depends(_InConversation(Scope.READ))]
ConversationWriter: TypeAlias = Annotated[Caller, Depends(_InConversation(Scope.WRITE))]


MemoryPath: TypeAlias = Annotated[IdOf[UUID], Path(description="The memory's id: a ULID or a UUID.")]
KeyPath: TypeAlias = Annotated[IdOf[KeyId], Path(description="The key's id: a ULID or a UUID.")]
TenantPath: TypeAlias = Annotated[IdOf[TenantId], Path(description="The tenant's id: a ULID or a UUID.")]
TurnPath: TypeAlias = Annotated[IdOf[TurnId], Path(description="The turn's id: a ULID or a UUID.")]


def _storable(value: str) -> str:
    if "\0" in value:
        raise PublicValueError("a text with NUL is never stored")
    return value


QueryText: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=512), AfterValidator(_storable)]
Cursor: TypeAlias = Annotated[
    str | None, Query(max_length=1024, description="`next_cursor` of the page before, with the same filters.")
]
PageLimit: TypeAlias = Annotated[int, Query(ge=1, le=200)]


async def _newest_first(order: Order = "desc", limit: PageLimit = 20, cursor: Cursor = None) -> PageRequest:
    return PageRequest(order, limit, cursor)


async def _oldest_first(order: Order = "asc", limit: PageLimit = 20, cursor: Cursor = None) -> PageRequest:
    return PageRequest(order, limit, cursor)


NewestFirst: TypeAlias = Annotated[PageRequest, Depends(_newest_first)]
OldestFirst: TypeAlias = Annotated[PageRequest, Depends(_oldest_first)]
QueryCounter: TypeAlias = Annotated[int | None, Query(ge=0, le=2**53 - 1)]
"""A position, seq or rev in a query."""
_MAX_NAMED = 500
_MAX_NAMED_CHARACTERS = 37 * _MAX_NAMED


async def _named_turns(
    ids: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=_MAX_NAMED_CHARACTERS)]],
        Query(max_length=_MAX_NAMED, description="1 to 500 turn ids, separated by commas or as several `ids`."),
    ],
) -> list[TurnId]:
    named = [turn_id for text in ids for turn_id in text.split(",")]
    if len(named) > _MAX_NAMED:
        problem = FieldError("/ids", f"at most {_MAX_NAMED} ids; erase the rest with another call", "query")
        raise InvalidFields([problem])
    parsed: list[TurnId] = []
    wrong: list[FieldError] = []
    for index, turn_id in enumerate(named):
        try:
            parsed.append(TurnId(parse_id(turn_id)))
        except ValueError:
            wrong.append(FieldError(f"/ids/{index}", "an id is a ULID (26 characters) or a UUID", "query"))
    if wrong:
        raise InvalidFields(wrong)
    return parsed


NamedTurns: TypeAlias = Annotated[list[TurnId], Depends(_named_turns)]


_TAG = re.compile(r'(W/)?"([^"]*)"')
_TAGS = re.compile(r'[ \t]*(?:W/)?"[^"]*"(?:[ \t]*,[ \t]*(?:W/)?"[^"]*")*[ \t]*')


async def _entity_tags(
    if_match: Annotated[
        str | None,
        Header(
            alias="If-Match",
            min_length=1,
            max_length=1024,
            description='The `ETag` of the conversation when it was read: its `rev`, such as `"7"`. 412 if it differs.',
        ),
    ] = None,
) -> frozenset[str] | None:
    """Return the revs of which one must match; None if any may. A weak tag never matches (RFC 9110)."""
    if if_match is None or if_match.strip() == "*":
        return None
    if _TAGS.fullmatch(if_match) is None:
        problem = FieldError("/If-Match", 'entity tags in quotes, such as "7", or *', "header")
        raise InvalidFields([problem])
    return frozenset(tag for weak, tag in _TAG.findall(if_match) if not weak)


EntityTags: TypeAlias = Annotated[frozenset[str] | None, Depends(_entity_tags)]
