"""Long operations over REST."""

from typing import Annotated, TypeAlias
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import StringConstraints

from app.core.paging import Page
from app.core.validation.ids import IdOf
from app.operations.schemas import Operation, OperationStatus
from app.routers.http.dependencies import NewestFirst, Reader, Services
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute

router = APIRouter(prefix="/v1/operations", tags=["governance"], route_class=StrictJsonRoute)

OperationPath: TypeAlias = Annotated[IdOf[UUID], Path(description="The operation's id: a ULID or a UUID.")]
Kind: TypeAlias = Annotated[str, StringConstraints(max_length=64, pattern=r"^[a-z][a-z0-9_]*$")]


@router.get("")
async def list_operations(
    caller: Reader,
    services: Services,
    asked: NewestFirst,
    kind: Annotated[Kind | None, Query(description="Only operations of this kind, such as `erasure`.")] = None,
    status: Annotated[OperationStatus | None, Query(description="Only operations in this state.")] = None,
) -> Page[Operation]:
    """List operations, newest first: those of the tenant for an administrator, else those that this key started."""
    return await services.operations.list_page(caller, kind=kind, status=status, asked=asked)


@router.get("/{operation_id}")
async def get_operation(operation_id: OperationPath, caller: Reader, services: Services) -> Operation:
    """Read the state, progress and result of an operation. It is kept for a day after its end (setting)."""
    return await services.operations.get(caller, operation_id)


@router.post("/{operation_id}/cancel", responses=problem_responses(409))
async def cancel_operation(operation_id: OperationPath, caller: Reader, services: Services) -> Operation:
    """Cancel an operation: it ends after its present step, and what it has done so far stays.

    A cancelled operation stays as it is; one that has ended otherwise is 409 `operation_ended`.
    """
    return await services.operations.cancel(caller, operation_id)
