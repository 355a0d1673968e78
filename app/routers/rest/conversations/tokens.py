"""Conversation tokens over REST: create one for a browser, revoke all of a conversation."""

from fastapi import APIRouter

from app.routers.http.dependencies import ConversationPath, Services, Writer
from app.routers.http.routing.strict_route import StrictJsonRoute
from app.tenancy.schemas import TokenCreate, TokenMade

router = APIRouter(prefix="/v1/conversations/{conversation_id}/tokens", tags=["tokens"], route_class=StrictJsonRoute)


@router.post("", status_code=201)
async def create_conversation_token(
    conversation_id: ConversationPath, body: TokenCreate, caller: Writer, services: Services
) -> TokenMade:
    """Create a short-lived token for this conversation, for a browser: to read it, or to read it and append to it.

    The response is the only one that shows its text. A repeated request creates another token, so `Idempotency-Key` is
    not accepted.
    """
    return await services.tenancy.create_token(caller, conversation_id, body=body)


@router.delete("", status_code=204)
async def void_conversation_tokens(conversation_id: ConversationPath, caller: Writer, services: Services) -> None:
    """Revoke every token of this conversation: at once in this process, within the key cache's time in others."""
    await services.tenancy.revoke_tokens(caller, conversation_id)
