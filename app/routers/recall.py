"""Recall over REST."""

from fastapi import APIRouter

from app.recall.schemas import ConversationRecall, Recall, RecallResult
from app.routers.body import StrictJsonRoute
from app.routers.deps import ConversationPath, Reader, Services
from app.routers.problems import problem_responses

router = APIRouter(prefix="/v1", tags=["recall"], route_class=StrictJsonRoute)


@router.post("/recall", responses=problem_responses(400, 401, 403, 404, 413, 415, 422, 503))
async def recall(body: Recall, caller: Reader, services: Services) -> RecallResult:
    """Search across conversations: those named, a project's, an owner's, or all of the tenant's."""
    return await services.recaller.recall(caller, request=body)


@router.post(
    "/conversations/{conversation_id}/recall", responses=problem_responses(400, 401, 403, 404, 413, 415, 422, 503)
)
async def recall_in_conversation(
    conversation_id: ConversationPath, body: ConversationRecall, caller: Reader, services: Services
) -> RecallResult:
    """Search within one conversation."""
    return await services.recaller.recall_in(caller, conversation_id, request=body)
