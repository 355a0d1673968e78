"""Streaming append over plain HTTP: open, chunk, commit, abort, resume."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.conversations.schemas.conversations import Turn
from app.conversations.schemas.frames import Aborting, Chunk, ChunkResult, Ending, OpenedTurn, Opening, Resuming
from app.routers.http.dependencies import ConversationPath, ConversationWriter, Services, TurnPath
from app.routers.http.idempotency import IdempotencyHeader, respond
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import TurnsRoute

router = APIRouter(prefix="/v1/conversations/{conversation_id}/turns", tags=["streaming"], route_class=TurnsRoute)

Epoch = Annotated[
    int | None,
    Query(ge=1, le=2**31 - 1, description="The `epoch` that open or resume gave; needed only by another key."),
]

Durable = Annotated[bool, Query(description="Answer only when the text is durable, not when it is taken.")]


@router.post(
    "/open",
    status_code=201,
    responses={200: {"model": OpenedTurn, "description": "This turn was opened before, and is still open."}}
    | problem_responses(429),
)
async def open_turn(
    conversation_id: ConversationPath,
    body: Opening,
    caller: ConversationWriter,
    services: Services,
    idempotency_key: IdempotencyHeader,
    response: Response,
) -> OpenedTurn:
    """Open a turn that is written while it streams. No context shows it before its commit."""
    opened = await services.streams.open(caller, conversation_id, opening=body, idempotency_key=idempotency_key)
    return respond(response, opened)


@router.post("/{turn_id}/chunks", responses=problem_responses(409))
async def append_chunk(
    conversation_id: ConversationPath,
    turn_id: TurnPath,
    body: Chunk,
    caller: ConversationWriter,
    services: Services,
    epoch: Epoch = None,
    durable: Durable = False,
) -> ChunkResult:
    """Append text to an open turn. The answer is sent when the text is accepted; subscribers see it at once.

    `durable_offset` is the length that survives a crash. Keep the rest until a later answer covers it, and send it
    again from `expected_offset` after a 409 `stream_gap`. With `durable=true` the answer is sent when the text is
    durable, which takes a quarter of a second because writes are batched; the same holds for the first text of a part
    of a tool call. A repeat changes nothing. A commit stores all accepted text, or is refused with 409 `stream_gap`.
    """
    return await services.streams.chunk(caller, conversation_id, turn_id=turn_id, chunk=body, epoch=epoch, wait=durable)


@router.post("/{turn_id}/commit", responses=problem_responses(409))
async def commit_turn(
    conversation_id: ConversationPath,
    turn_id: TurnPath,
    body: Ending,
    caller: ConversationWriter,
    services: Services,
    epoch: Epoch = None,
) -> Turn:
    """Commit an open turn: it gets its seq, and recall finds it. A repeat returns the same answer."""
    return await services.streams.commit(caller, conversation_id, turn_id=turn_id, ending=body, epoch=epoch)


@router.post("/{turn_id}/abort", responses=problem_responses(409))
async def abort_turn(
    conversation_id: ConversationPath,
    turn_id: TurnPath,
    body: Aborting,
    caller: ConversationWriter,
    services: Services,
    epoch: Epoch = None,
) -> Turn:
    """Abort an open turn. The row keeps its text for audit; a repeat changes nothing."""
    return await services.streams.abort(caller, conversation_id, turn_id=turn_id, aborting=body, epoch=epoch)


@router.post("/{turn_id}/resume", responses=problem_responses(409))
async def resume_turn(
    conversation_id: ConversationPath, turn_id: TurnPath, body: Resuming, caller: ConversationWriter, services: Services
) -> OpenedTurn:
    """Continue an open turn as the same writer, from `durable_offset`; the previous connection loses the turn."""
    return await services.streams.resume(caller, conversation_id, turn_id=turn_id, resuming=body)
