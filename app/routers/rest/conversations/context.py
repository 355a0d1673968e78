"""Build context over REST."""

from fastapi import APIRouter

from app.audit.schemas import Action
from app.context.schemas import Context, ContextRequest
from app.routers.http.dependencies import AgentReader, ConversationPath, Services
from app.routers.http.routing.strict_route import StrictJsonRoute

router = APIRouter(prefix="/v1/conversations/{conversation_id}/context", tags=["context"], route_class=StrictJsonRoute)


@router.post("")
async def build_context(
    conversation_id: ConversationPath, body: ContextRequest, caller: AgentReader, services: Services
) -> Context:
    """Build the message list for one model call, never over `token_budget`."""
    built = await services.contexts.build(caller, conversation_id, request=body)
    services.audit.record_read(
        caller, Action.CONTEXT_BUILD, conversation_id=conversation_id, counts={"messages": len(built.messages)}
    )
    return built
