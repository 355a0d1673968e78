"""Idempotency over HTTP: the key of a request, and the header of a replay."""

from typing import Annotated, Final, TypeAlias, TypeVar, cast

from fastapi import Depends, Header, Request, Response

from app.routers.http.dependencies import Services
from app.tenancy.schemas import IdempotencyKey, RequestResult

REPLAY_HEADER: Final = "Idempotent-Replayed"
_T = TypeVar("_T")


async def get_idempotency_key(
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
) -> IdempotencyKey | None:
    """Return the request's idempotency key, if it has an Idempotency-Key."""
    if idempotency_key is None:
        return None
    body = await request.body()
    path = cast("str", request.scope["path"])
    return services.tenancy.idempotency.key_of(idempotency_key, request.method.encode(), path.encode(), body)


IdempotencyHeader: TypeAlias = Annotated[IdempotencyKey | None, Depends(get_idempotency_key)]


def respond(response: Response, result: RequestResult[_T]) -> _T:
    """Return the value of a result; set the status 200 if nothing was stored, and the header of a replay."""
    if not result.is_new:
        response.status_code = 200
    mark_replay(response, is_replay=result.is_replay)
    return result.value


def mark_replay(response: Response, *, is_replay: bool) -> None:
    """Set `Idempotent-Replayed: true` on the response to a repeated request."""
    if is_replay:
        response.headers[REPLAY_HEADER] = "true"
