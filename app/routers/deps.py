"""What every route takes in the same way: who asks, which conversation, how much of a list."""

from typing import Annotated, Literal, TypeAlias, cast

from fastapi import Depends, Header, Path, Query, Request
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from pydantic import AfterValidator, StringConstraints

from app.container import Container
from app.conversations.schemas import IdIn
from app.core.ids import ConversationId, TurnId, format_id
from app.tenancy.schemas import Caller, Repeatable, Scope

_bearer = HTTPBearer(auto_error=False, description="An API key: `Authorization: Bearer tk_…`.")
_header = APIKeyHeader(name="X-API-Key", auto_error=False, description="The same key in a header of its own.")


def get_container(request: Request) -> Container:
    """The services of this process."""
    return cast("Container", request.app.state.container)


Services: TypeAlias = Annotated[Container, Depends(get_container)]


async def get_caller(
    request: Request,
    services: Services,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    key: Annotated[str | None, Depends(_header)],
) -> Caller:
    """The caller that the key stands for."""
    caller = await services.tenancy.authenticate(bearer.credentials if bearer is not None else key)
    request.state.tenant_id = format_id(caller.tenant_id)
    request.state.key_id = format_id(caller.key_id)
    return caller


async def require_caller(request: Request) -> None:
    """Refuse a request without a good key before anything of its body is read."""
    await get_caller(request, get_container(request), await _bearer(request), await _header(request))


async def get_reader(caller: Annotated[Caller, Depends(get_caller)]) -> Caller:
    """A caller whose key may read."""
    caller.require(Scope.READ)
    return caller


async def get_writer(caller: Annotated[Caller, Depends(get_caller)]) -> Caller:
    """A caller whose key may write."""
    caller.require(Scope.WRITE)
    return caller


async def get_administrator(caller: Annotated[Caller, Depends(get_caller)]) -> Caller:
    """A caller whose key administers its tenant, or the installation."""
    if Scope.OPERATOR not in caller.scopes:
        caller.require(Scope.ADMIN)
    return caller


Administrator: TypeAlias = Annotated[Caller, Depends(get_administrator)]
Reader: TypeAlias = Annotated[Caller, Depends(get_reader)]
Writer: TypeAlias = Annotated[Caller, Depends(get_writer)]


def _conversation_id(
    conversation_id: Annotated[IdIn, Path(description="The conversation's id: a ULID or a UUID.")],
) -> ConversationId:
    return ConversationId(conversation_id)


def _turn_id(turn_id: Annotated[IdIn, Path(description="The turn's id: a ULID or a UUID.")]) -> TurnId:
    return TurnId(turn_id)


ConversationPath: TypeAlias = Annotated[ConversationId, Depends(_conversation_id)]
TurnPath: TypeAlias = Annotated[TurnId, Depends(_turn_id)]


def _storable(value: str) -> str:
    if "\0" in value:
        raise ValueError("a text that holds NUL is never stored")
    return value


QueryText: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=512), AfterValidator(_storable)]
Cursor: TypeAlias = Annotated[
    str | None, Query(max_length=1024, description="`next_cursor` of the page before, with the same filters.")
]
Order: TypeAlias = Literal["asc", "desc"]


async def get_repeatable(
    request: Request,
    services: Services,
    idempotency_key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            min_length=1,
            max_length=255,
            description="The same key and body within 24 hours gives the first answer and stores nothing again.",
        ),
    ] = None,
) -> Repeatable | None:
    """The request as one that may be repeated, when it carries an Idempotency-Key."""
    if idempotency_key is None:
        return None
    body = await request.body()
    path = cast("str", request.scope["path"])
    return services.tenancy.repeatable(idempotency_key, request.method.encode(), path.encode(), body)


Repeat: TypeAlias = Annotated[Repeatable | None, Depends(get_repeatable)]
