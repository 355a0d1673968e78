"""The key of the request over REST. Keys are administered under `/v1/admin/keys`."""

from fastapi import APIRouter

from app.routers.http.dependencies import KeyHolder, Services
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute
from app.tenancy.schemas import OwnKey

router = APIRouter(prefix="/v1/keys", tags=["administration"], route_class=StrictJsonRoute)


@router.get("/self", responses=problem_responses(404, 422))
async def get_own_key(caller: KeyHolder, services: Services) -> OwnKey:
    """Return what the key or access token of this request is, and what it may do. Needs no scope.

    A conversation token is refused with 403 `token_not_allowed`.
    """
    return await services.administration.own_key(caller)
