"""Conversations, turns and the memory of sessions as resources, shown to models without a tool call."""

import json
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote
from uuid import UUID

from mcp.types import ListResourcesResult, ReadResourceResult, Resource, ResourceTemplate, TextResourceContents
from pydantic import BaseModel

from app.agents.tools.service import answer_bytes, fit, fit_page
from app.container import Container
from app.conversations.schemas.conversations import Conversation, Turn
from app.conversations.schemas.history import HistoryQuery
from app.conversations.schemas.listing import ConversationFilter
from app.core.errors import NotFound
from app.core.ids import ConversationId, TurnId, parse_id
from app.core.paging import Page
from app.tenancy.schemas import Caller, Scope

NEWEST_TURNS: Final = 50
"""Turns in the resource of a conversation at most; `get_history` returns the rest."""
PAGE: Final = 50
_HOW_TO_READ_ON: Final = "Read a turn with get_history: its conversation_id, turn_id, start and length."
_JSON: Final = "application/json"
_TEXT: Final = "text/plain"
_ID: Final = "[0-9A-Za-z-]{26,36}"
_URI: Final = re.compile(f"conversation://(?P<id>{_ID})(?:/turns/(?P<turn>{_ID}))?")
_MEMORY: Final = re.compile(r"memory://(?P<project>[^/?#]+)/(?P<session>[^/?#]+)(?:/(?P<path>[^?#]*))?")


@dataclass(frozen=True, slots=True)
class ConversationUri:
    """A conversation, or one turn of it."""

    conversation_id: UUID
    turn_id: UUID | None


@dataclass(frozen=True, slots=True)
class MemoryUri:
    """A node in the memory of a session."""

    project: str
    session_id: str
    path: str


class ConversationContents(BaseModel):
    """The resource of a conversation: the conversation, and its newest turns, the oldest of them first."""

    conversation: Conversation
    turns: list[Turn]
    has_earlier: bool


def templates(caller: Caller) -> list[ResourceTemplate]:
    """Return the URI templates of the resources that the caller may read."""
    if caller.bound is None and Scope.READ not in caller.scopes:
        return []
    named = [
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
        ResourceTemplate(
            uri_template="memory://{project}/{session}/{+path}",
            name="memory",
            title="Memory of a session",
            description=(
                "One place in what is remembered of a session, such as `context/summary` or `memory_tiers/l3`;"
                " memory_list_dir_with_abstract lists the paths. What is not a letter or digit in the names is"
                " percent-encoded."
            ),
            mime_type=_TEXT,
        ),
    ]
    return named if caller.bound is None else named[:-1]


def parse_uri(uri: str) -> ConversationUri | MemoryUri:
    """Parse a resource URI. Raises NotFound for an unknown form."""
    try:
        if (match := _URI.fullmatch(uri)) is not None:
            return ConversationUri(parse_id(match["id"]), None if match["turn"] is None else parse_id(match["turn"]))
        if (match := _MEMORY.fullmatch(uri)) is not None:
            names = [unquote(match[name] or "", errors="strict") for name in ("project", "session", "path")]
            # no stored name has NUL, and the database does not accept one as a parameter
            if not any("\0" in name for name in names):
                return MemoryUri(*names)
    except ValueError:
        pass
    raise NotFound("not_found", "There is no such resource.")


async def list_page(services: Container, caller: Caller, *, cursor: str | None) -> ListResourcesResult:
    """List conversations by latest activity; for a conversation token its conversation."""
    if caller.bound is not None:
        conversation = await services.conversations.get(caller, ConversationId(caller.bound.conversation_id))
        return ListResourcesResult(resources=[_listed(conversation)], next_cursor=None)
    caller.require(Scope.READ)
    page = await services.conversations.list_conversations(
        caller, where=ConversationFilter(archived=False), order="desc", limit=PAGE, cursor=cursor
    )
    listed = [_listed(conversation) for conversation in page.data]
    return ListResourcesResult(resources=listed, next_cursor=page.next_cursor)


async def read(
    services: Container, caller: Caller, *, uri: str, named: ConversationUri | MemoryUri
) -> ReadResourceResult:
    """Return the contents of a resource: JSON, or the text of a memory node."""
    max_bytes = services.tools.max_answer_bytes
    if isinstance(named, MemoryUri):
        node = await services.lifecycle.read(
            caller, project=named.project, session_id=named.session_id, path=named.path
        )
        shown, _ = fit({"text": node.text}, max_bytes=max_bytes)
        return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=_TEXT, text=str(shown["text"]))])
    contents = await _contents(services, caller, named, max_bytes=max_bytes)
    shown, cut = fit(contents.model_dump(mode="json"), max_bytes=max_bytes)
    if cut is not None:
        shown["cut"] = f"{cut} {_HOW_TO_READ_ON}"
    text = contents.model_dump_json() if cut is None else json.dumps(shown, ensure_ascii=False)
    return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=_JSON, text=text)])


async def _contents(
    services: Container, caller: Caller, named: ConversationUri, *, max_bytes: int
) -> Turn | ConversationContents:
    """Return a turn, or a conversation with as many of its newest turns as fit; at least one."""
    conversation_id = ConversationId(named.conversation_id)
    if named.turn_id is not None:
        return await services.conversations.turn(caller, conversation_id, turn_id=TurnId(named.turn_id))
    conversation = await services.conversations.get(caller, conversation_id)

    def read(limit: int) -> Awaitable[Page[Turn]]:
        return services.conversations.history(caller, conversation_id, query=HistoryQuery(limit=limit))

    page = await fit_page(read, NEWEST_TURNS, max_bytes=max_bytes - answer_bytes(conversation.model_dump(mode="json")))
    return ConversationContents(conversation=conversation, turns=page.data, has_earlier=page.has_more)


def _listed(conversation: Conversation) -> Resource:
    return Resource(
        uri=f"conversation://{conversation.id}",
        name=conversation.external_id or conversation.id,
        title=conversation.title,
        description=f"Project {conversation.project}; turns: {conversation.turn_count}.",
        mime_type=_JSON,
    )
