"""Conversations and turns as resources: what a program may show a model without a tool call."""

import re
from typing import Final
from uuid import UUID

from mcp.types import ReadResourceResult, Resource, ResourceTemplate, TextResourceContents
from pydantic import BaseModel

from app.container import Container
from app.conversations.schemas import Conversation, ConversationFilter
from app.core.errors import NotFound
from app.core.ids import ConversationId, TurnId, parse_id
from app.mcp.schemas import ConversationContents
from app.tenancy.schemas import Caller, Scope

NEWEST_TURNS: Final = 50
"""Turns that the resource of a conversation shows; `get_history` gives the rest."""
PAGE: Final = 50
_JSON: Final = "application/json"
_ID: Final = "[0-9A-Za-z-]{26,36}"
_URI: Final = re.compile(f"conversation://(?P<id>{_ID})(?:/turns/(?P<turn>{_ID}))?")


def templates() -> list[ResourceTemplate]:
    """How resources are named."""
    return [
        ResourceTemplate(
            uri_template="conversation://{id}",
            name="conversation",
            title="Conversation",
            description=f"A stored conversation and its {NEWEST_TURNS} newest turns. `id` is a ULID or a UUID.",
            mime_type=_JSON,
        ),
        ResourceTemplate(
            uri_template="conversation://{id}/turns/{turn}",
            name="turn",
            title="Turn",
            description="One turn of a stored conversation. Both ids are ULIDs or UUIDs.",
            mime_type=_JSON,
        ),
    ]


def parse_uri(uri: str) -> tuple[UUID, UUID | None]:
    """The ids of the conversation and the turn that a URI names. Raises NotFound for what names neither."""
    found = _URI.fullmatch(uri)
    try:
        if found is not None:
            return parse_id(found["id"]), None if found["turn"] is None else parse_id(found["turn"])
    except ValueError:
        pass
    raise NotFound("not_found", "There is no such resource.")


async def list_page(services: Container, caller: Caller, *, cursor: str | None) -> tuple[list[Resource], str | None]:
    """Conversations by latest activity, and the cursor of the next page; for a token's holder its conversation."""
    if caller.bound is not None:
        conversation = await services.conversations.get(caller, ConversationId(caller.bound.conversation_id))
        return [_listed(conversation)], None
    caller.require(Scope.READ)
    page = await services.conversations.list_conversations(
        caller, where=ConversationFilter(), order="desc", limit=PAGE, cursor=cursor
    )
    return [_listed(conversation) for conversation in page.data], page.next_cursor


async def read(
    services: Container, caller: Caller, *, uri: str, conversation_id: UUID, turn_id: UUID | None
) -> ReadResourceResult:
    """What a resource says, as JSON."""
    name = ConversationId(conversation_id)
    contents: BaseModel
    if turn_id is not None:
        contents = await services.conversations.turn(caller, name, turn_id=TurnId(turn_id))
    else:
        conversation = await services.conversations.get(caller, name)
        page = await services.conversations.history(
            caller, name, order="desc", after=None, before=None, actors=None, limit=NEWEST_TURNS, cursor=None
        )
        contents = ConversationContents(conversation=conversation, turns=page.data[::-1], has_earlier=page.has_more)
    text = contents.model_dump_json()
    return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=_JSON, text=text)])


def _listed(conversation: Conversation) -> Resource:
    return Resource(
        uri=f"conversation://{conversation.id}",
        name=conversation.external_id or conversation.id,
        title=conversation.title,
        description=f"Project {conversation.project}; turns: {conversation.turn_count}.",
        mime_type=_JSON,
    )
