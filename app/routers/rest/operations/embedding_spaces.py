"""Embedding spaces over REST, for operators."""

from typing import Annotated, TypeAlias

from fastapi import APIRouter, Path

from app.audit.schemas import Action, ObjectKind
from app.index.schemas import EmbeddingSpace, EmbeddingSpaces, SpaceAdd, SpaceSwitch
from app.recall.schemas import SpaceComparison, SpaceComparisonResult
from app.routers.http.dependencies import Operator, Services
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute

router = APIRouter(prefix="/v1/admin/embedding-spaces", tags=["administration"], route_class=StrictJsonRoute)

SpacePath: TypeAlias = Annotated[int, Path(ge=1, le=2**31 - 1, description="The space's number, as the list has it.")]


@router.get("", responses=problem_responses(422))
async def list_spaces(caller: Operator, services: Services) -> EmbeddingSpaces:
    """List the embedding spaces with their states and how far they are filled. Needs the scope `operator`.

    For a large installation the figures are estimated from a sample, at a constant cost.
    """
    spaces = await services.spaces.list_spaces(caller)
    services.audit.record_read(caller, Action.SPACE_LIST)
    return spaces


@router.post("", responses=problem_responses(409))
async def add_space(body: SpaceAdd, caller: Operator, services: Services) -> EmbeddingSpace:
    """Start to fill the space of the second configured embedder. Needs the scope `operator`.

    With `{}`: the space that is not searched. Nothing else changes; a repeat changes nothing.
    """
    return await services.spaces.add(caller, body=body)


@router.post("/rollback", responses=problem_responses(409, 422))
async def roll_back_space(caller: Operator, services: Services) -> EmbeddingSpace:
    """Search the space again that was searched before the last switch. Needs the scope `operator`."""
    return await services.spaces.roll_back(caller)


@router.post("/{space_id}/compare", responses=problem_responses(409, 429, 502))
async def compare_space(
    space_id: SpacePath, body: SpaceComparison, caller: Operator, services: Services
) -> SpaceComparisonResult:
    """Run queries in a space and in the searched one, in the key's tenant. Needs the scope `operator`.

    Returns how similar the results are, and the hits of both by id.
    """
    result = await services.recall_service.compare(caller, space_id, request=body)
    services.audit.record_read(caller, Action.SPACE_COMPARE, ObjectKind.SPACE, space_id)
    return result


@router.post("/{space_id}/switch", responses=problem_responses(409))
async def switch_space(space_id: SpacePath, body: SpaceSwitch, caller: Operator, services: Services) -> EmbeddingSpace:
    """Search a space from now on, on every replica within a second. Needs the scope `operator`.

    No search fails meanwhile: each ends in the space in which it started. The previous space is kept up to date for a
    rollback.
    """
    return await services.spaces.switch(caller, space_id, body=body)


@router.delete("/{space_id}", status_code=202, responses=problem_responses(409))
async def drop_space(space_id: SpacePath, caller: Operator, services: Services) -> EmbeddingSpace:
    """Delete a space's vectors and its vector index, in the background. Needs the scope `operator`.

    The space stays in the list, `dropping` and then `idle`. The searched space cannot be dropped.
    """
    return await services.spaces.drop(caller, space_id)
