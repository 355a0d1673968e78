"""Turns over REST: append and read."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.conversations.schemas import Append, AppendResult, Turn
from app.core.paging import Page
from app.routers.body import StrictJsonRoute
from app.routers.deps import ConversationPath, Cursor, Order, QueryText, Reader, Repeat, Services, TurnPath, Writer
from app.routers.problems import problem_responses

router = APIRouter(prefix="/v1/conversations/{conversation_id}/turns", tags=["turns"], route_class=StrictJsonRoute)

Position = Annotated[int | None, Query(ge=0, le=2**53)]


@router.post(
    "",
    status_code=201,
    responses={200: {"model": AppendResult, "description": "Every turn was stored already; nothing was stored now."}}
    | problem_responses(400, 401, 403, 404, 409, 413, 415, 422, 503),
)
async def append_turns(
    conversation_id: ConversationPath,
    body: Append,
    caller: Writer,
    services: Services,
    repeat: Repeat,
    response: Response,
) -> AppendResult:
    """Append 1 to 500 turns, all or none. When this answers, they are durable and found by recall."""
    result, stored, replayed = await services.conversations.append(
        caller, conversation_id, turns=body.turns, expected_seq=body.expected_seq, repeat=repeat
    )
    response.status_code = 201 if stored else 200
    if replayed:
        response.headers["Idempotent-Replayed"] = "true"
    return result


@router.get("", responses=problem_responses(401, 403, 404, 422, 503))
async def list_turns(
    conversation_id: ConversationPath,
    caller: Reader,
    services: Services,
    after: Annotated[Position, Query(description="Only turns after this position.")] = None,
    before: Annotated[Position, Query(description="Only turns before this position.")] = None,
    actors: Annotated[list[QueryText] | None, Query(max_length=200, description="Only what these actors said.")] = None,
    order: Order = "asc",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Cursor = None,
) -> Page[Turn]:
    """Read the history: live turns in the order of their position."""
    return await services.conversations.history(
        caller,
        conversation_id,
        order=order,
        after=after,
        before=before,
        actors=actors,
        limit=limit,
        cursor=cursor,
    )


@router.get("/{turn_id}", responses=problem_responses(401, 403, 404, 422, 503))
async def get_turn(conversation_id: ConversationPath, turn_id: TurnPath, caller: Reader, services: Services) -> Turn:
    """Read one turn."""
    return await services.conversations.turn(caller, conversation_id, turn_id=turn_id)
