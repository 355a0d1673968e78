"""Erasures with their receipts, and the view of an owner, over REST."""

from typing import Annotated, TypeAlias
from uuid import UUID

from fastapi import APIRouter, Path, Response

from app.audit.schemas import Action
from app.core.paging import Page
from app.core.validation.ids import IdOf
from app.governance.schemas import Erasure, ErasureCreate, OwnerLookup, OwnerView, ReceiptCheck, ReceiptVerification
from app.operations.schemas import Operation
from app.routers.http.dependencies import Admin, Administrator, NewestFirst, Services
from app.routers.http.idempotency import IdempotencyHeader, mark_replay
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute

router = APIRouter(prefix="/v1", tags=["governance"], route_class=StrictJsonRoute)

ErasurePath: TypeAlias = Annotated[IdOf[UUID], Path(description="The erasure's id, which is that of its operation.")]


@router.post("/erasures", status_code=202, responses=problem_responses(404, 429))
async def create_erasure(
    body: ErasureCreate,
    caller: Administrator,
    services: Services,
    idempotency_key: IdempotencyHeader,
    response: Response,
) -> Operation:
    """Erase all data of a conversation, an owner, an actor or a tenant. Needs the scope `admin`.

    Answers with an operation, at `Location`; its receipt has the same id. To erase a tenant, name its id: its own with
    the scope `admin`, another one with `operator`.
    """
    result = await services.erasures.start(caller, body=body, idempotency_key=idempotency_key)
    mark_replay(response, is_replay=result.is_replay)
    response.headers["Location"] = f"/v1/operations/{result.value.id}"
    return result.value


@router.get("/erasures")
async def list_erasures(caller: Admin, services: Services, asked: NewestFirst) -> Page[Erasure]:
    """List the receipts of erasures, newest first. They are kept, and have no personal data. Needs `admin`."""
    page = await services.erasures.list_page(caller, asked=asked)
    services.audit.record_read(caller, Action.ERASURE_LIST, counts={"erasures": len(page.data)})
    return page


@router.get("/erasures/{erasure_id}")
async def get_erasure(erasure_id: ErasurePath, caller: Admin, services: Services) -> Erasure:
    """Read the receipt of an erasure; its progress is that of the operation with the same id. Needs `admin`."""
    return await services.erasures.get(caller, erasure_id)


@router.post("/erasures/verify")
async def verify_erasure(body: ReceiptCheck, caller: Admin, services: Services) -> ReceiptVerification:
    """Check that this installation signed a receipt, and that it is about a given subject. Needs `admin`."""
    return services.erasures.verify(caller, body=body)


@router.post("/owners/lookup")
async def look_up_owner(body: OwnerLookup, caller: Admin, services: Services) -> OwnerView:
    """List all that is stored under an owner: conversations, facts and memories of all agents.

    The owner is in the body, so that it is in no access log. Needs the scopes `read` and `admin`.
    """
    view = await services.owners.look_up(caller, request=body)
    listed = {"conversations": view.conversations, "facts": view.facts, "memories": view.memories}
    services.audit.record_read(
        caller, Action.OWNER_READ, counts={name: len(part.data) for name, part in listed.items()}
    )
    return view
