"""Conversations over REST."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Response

from app.conversations.schemas.conversations import (
    Conversation,
    ConversationCreate,
    ConversationUpdate,
    ForkRequest,
    ListedConversation,
    Verification,
)
from app.conversations.schemas.listing import ConversationSearch
from app.core.paging import Page
from app.routers.http.dependencies import (
    ConversationPath,
    ConversationReader,
    EntityTags,
    NewestFirst,
    QueryText,
    Reader,
    Services,
    Writer,
)
from app.routers.http.idempotency import IdempotencyHeader, respond
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute

router = APIRouter(prefix="/v1/conversations", tags=["conversations"], route_class=StrictJsonRoute)

Text = QueryText | None
_ARCHIVED: Final[Mapping[str | None, bool | Literal["any"] | None]] = {
    "true": True,
    "false": False,
    "any": "any",
    None: None,
}


@router.post(
    "",
    status_code=201,
    responses={200: {"model": Conversation, "description": "It existed already."}} | problem_responses(404),
)
async def create_conversation(
    body: ConversationCreate, caller: Writer, services: Services, idempotency_key: IdempotencyHeader, response: Response
) -> Conversation:
    """Create a conversation, or return the one with this `id` or `external_id` (200 instead of 201).

    409 `conversation_owned` if that has another `owner`, or does not have one of the `participants`. 404 for a repeated
    request whose conversation has been deleted since.
    """
    created = await services.conversations.create(caller, body=body, idempotency_key=idempotency_key)
    return _tagged(response, respond(response, created))


@router.get("")
async def list_conversations(
    caller: Reader,
    services: Services,
    asked: NewestFirst,
    project: Text = None,
    external_id: Text = None,
    owner: Text = None,
    participant: Annotated[Text, Query(description="Conversations in which this actor takes part.")] = None,
    archived: Annotated[
        Literal["true", "false", "any"] | None,
        Query(description="Only archived conversations, or `any`. Default: `false`, and `any` with `trashed`."),
    ] = None,
    pinned: Annotated[bool | None, Query(description="Only pinned conversations, or only others.")] = None,
    trashed: Annotated[bool, Query(description="The conversations in the trash, instead of all others.")] = False,
) -> Page[ListedConversation]:
    """List conversations, last written first, with previews of their first and last message."""
    where = ConversationSearch(
        project=project,
        external_id=external_id,
        owner=owner,
        participant=participant,
        pinned=pinned,
        trashed=trashed,
        archived=_ARCHIVED[archived],
        order=asked.order,
        limit=asked.limit,
        cursor=asked.cursor,
    )
    return await services.conversations.search(caller, request=where)


@router.post("/search")
async def search_conversations(
    body: ConversationSearch, caller: Reader, services: Services
) -> Page[ListedConversation]:
    """Find conversations by project, names, metadata, times and title, last written first."""
    return await services.conversations.search(caller, request=body)


@router.get("/{conversation_id}")
async def get_conversation(
    conversation_id: ConversationPath, caller: ConversationReader, services: Services, response: Response
) -> Conversation:
    """Read one conversation with its counters. The header `ETag` is its `rev`, for `If-Match` of a change."""
    return _tagged(response, await services.conversations.get(caller, conversation_id))


@router.patch("/{conversation_id}", responses=problem_responses(409, 412))
async def update_conversation(
    conversation_id: ConversationPath,
    body: ConversationUpdate,
    caller: Writer,
    services: Services,
    tags: EntityTags,
    response: Response,
) -> Conversation:
    """Change title, metadata, participants, ttl or policies. Omitted fields stay; null clears title and ttl_s.

    `metadata` is merged into the conversation's metadata, and null removes a member (RFC 7396). With `If-Match`, a
    conversation with another `rev` is not changed: 412 `revision_changed`. Each PATCH increases `rev`; a
    title that a model writes does not.

    `participants` replaces the list, but actors that wrote turns stay in it. Their turns decide whether they are
    speakers or tools; `role` decides for the others.

    A conversation whose title is cleared gets a derived one (`title_source`); an empty title stays empty. A
    conversation without an owner takes `owner`, also for its turns, summaries and facts; one with another owner answers
    409 `conversation_owned`.
    """
    changed = await services.updates.update(caller, conversation_id, body=body, tags=tags)
    return _tagged(response, changed)


def _tagged(response: Response, conversation: Conversation) -> Conversation:
    """Return the conversation, and set its rev as the `ETag` of the response."""
    response.headers["ETag"] = f'"{conversation.rev}"'
    return conversation


@router.post(
    "/{conversation_id}/fork",
    status_code=201,
    responses={200: {"model": Conversation, "description": "This fork existed already."}},
)
async def fork_conversation(
    conversation_id: ConversationPath,
    body: ForkRequest,
    caller: Writer,
    services: Services,
    idempotency_key: IdempotencyHeader,
    response: Response,
) -> Conversation:
    """Create a conversation with copies of the live turns through one; its hash chain continues the parent's."""
    fork = await services.forker.fork(caller, conversation_id, body=body, idempotency_key=idempotency_key)
    return _tagged(response, respond(response, fork))


@router.get("/{conversation_id}/verify")
async def verify_conversation(conversation_id: ConversationPath, caller: Reader, services: Services) -> Verification:
    """Verify the hash chain: hash every turn again that is not erased, and report the first break."""
    return await services.conversations.verify(caller, conversation_id)


@router.delete("/{conversation_id}", status_code=204)
async def delete_conversation(conversation_id: ConversationPath, caller: Writer, services: Services) -> None:
    """Delete a conversation with everything derived from it, also one in the trash. This cannot be undone."""
    await services.governance.delete_conversation(caller, conversation_id)


@router.post("/{conversation_id}/trash")
async def trash_conversation(conversation_id: ConversationPath, caller: Writer, services: Services) -> Conversation:
    """Put a conversation into the trash: it is hidden everywhere, and deleted at `expires_at` unless it is restored.

    Open turns are aborted. A conversation that is in the trash already stays as it is.
    """
    return await services.trash.put(caller, conversation_id)


@router.post("/{conversation_id}/restore")
async def restore_conversation(
    conversation_id: ConversationPath, caller: Writer, services: Services, response: Response
) -> Conversation:
    """Take a conversation out of the trash, with everything that it had. One that is not there stays as it is."""
    return _tagged(response, await services.trash.restore(caller, conversation_id))
