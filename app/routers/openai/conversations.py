"""OpenAI's Conversations over REST, as used by the official client's `client.conversations`."""

from typing import Annotated, TypeAlias

from fastapi import APIRouter, Body, Depends, Path, Query, Response

from app.agents.generation.schemas import (
    CONVERSATION_PREFIX,
    ChangedConversation,
    DeletedConversation,
    Items,
    NewConversation,
    NewItems,
    OpenAIConversation,
)
from app.core.errors import NotFound
from app.core.ids import ConversationId, parse_id
from app.core.paging import Order
from app.routers.http.dependencies import Reader, Services, Writer
from app.routers.http.idempotency import IdempotencyHeader, respond
from app.routers.http.problems import OPENAI_ROOT, problem_responses
from app.routers.http.routing.strict_route import OpenAIRoute
from app.routers.openai.chat_completions import Passed


class ItemsRoute(OpenAIRoute):
    """A route whose body may have `items`, which are checked when they are read."""

    produced_members = frozenset({"items"})


router = APIRouter(prefix=f"{OPENAI_ROOT}/conversations", tags=["openai"], route_class=ItemsRoute)


async def _conversation(
    conversation_id: Annotated[str, Path(max_length=64, description="`conv_` and the conversation's id, or the id.")],
) -> ConversationId:
    try:
        return ConversationId(parse_id(conversation_id.removeprefix(CONVERSATION_PREFIX)))
    except ValueError:
        raise NotFound("not_found", "There is no such conversation.") from None


Conversation: TypeAlias = Annotated[ConversationId, Depends(_conversation)]
ItemId: TypeAlias = Annotated[str, Path(max_length=64, description="The item's id.")]
Include: TypeAlias = Annotated[
    list[str] | None,
    Query(max_length=20, description="Accepted for compatibility, and ignored: all data is always included."),
]
After: TypeAlias = Annotated[str | None, Query(max_length=64, description="The last item of the page before.")]
Limit: TypeAlias = Annotated[int, Query(ge=1, le=100)]
_READING = (400, 401, 403, 404, 503)
_WRITING = (*_READING, 408, 409, 413, 415)


@router.post("", responses=problem_responses(*_WRITING))
async def create_openai_conversation(
    caller: Writer,
    services: Services,
    idempotency_key: IdempotencyHeader,
    response: Response,
    body: Annotated[NewConversation | None, Body()] = None,
) -> OpenAIConversation:
    """Create a conversation, with or without items."""
    created = await services.openai_conversations.create(
        caller, body=body or NewConversation(), idempotency_key=idempotency_key
    )
    return respond(response, created)


@router.get("/{conversation_id}", responses=problem_responses(*_READING))
async def get_openai_conversation(
    conversation_id: Conversation, caller: Reader, services: Services
) -> OpenAIConversation:
    """Read one conversation."""
    return await services.openai_conversations.get(caller, conversation_id)


@router.post("/{conversation_id}", responses=problem_responses(*_WRITING))
async def update_openai_conversation(
    conversation_id: Conversation, body: ChangedConversation, caller: Writer, services: Services
) -> OpenAIConversation:
    """Replace the metadata of a conversation."""
    return await services.openai_conversations.update(caller, conversation_id, body=body)


@router.delete("/{conversation_id}", responses=problem_responses(*_READING))
async def delete_openai_conversation(
    conversation_id: Conversation, caller: Writer, services: Services
) -> DeletedConversation:
    """Delete a conversation with everything derived from it."""
    return await services.openai_conversations.delete(caller, conversation_id)


@router.post("/{conversation_id}/items", responses=problem_responses(*_WRITING))
async def create_openai_items(
    conversation_id: Conversation, body: NewItems, caller: Writer, services: Services, include: Include = None
) -> Items:
    """Append items of OpenAI's Responses, all or none; each becomes a turn and is returned unchanged."""
    del include
    return await services.openai_conversations.append(caller, conversation_id, body=body)


@router.get("/{conversation_id}/items", responses=problem_responses(*_READING))
async def list_openai_items(
    conversation_id: Conversation,
    caller: Reader,
    services: Services,
    after: After = None,
    order: Order = "desc",
    limit: Limit = 20,
    include: Include = None,
) -> Items:
    """List the items of a conversation; turns of any origin are shown as items."""
    del include
    return await services.openai_conversations.list_items(
        caller, conversation_id, after=after, order=order, limit=limit
    )


@router.get("/{conversation_id}/items/{item_id}", response_model=Passed, responses=problem_responses(*_READING))
async def get_openai_item(
    conversation_id: Conversation, item_id: ItemId, caller: Reader, services: Services, include: Include = None
) -> dict[str, object]:
    """Read one item."""
    del include
    return {**await services.openai_conversations.item(caller, conversation_id, item_id=item_id)}


@router.delete("/{conversation_id}/items/{item_id}", responses=problem_responses(*_READING))
async def delete_openai_item(
    conversation_id: Conversation, item_id: ItemId, caller: Writer, services: Services
) -> OpenAIConversation:
    """Erase an item with all items of its turn, and all other revisions of that turn; tombstones stay."""
    return await services.openai_conversations.delete_item(caller, conversation_id, item_id=item_id)
