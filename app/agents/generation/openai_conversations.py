"""OpenAI's Conversations API on the same conversations and turns that the other APIs use."""

from collections.abc import Sequence
from dataclasses import replace

from pydantic import BaseModel, Field, JsonValue

from app.agents.generation.answer import turn_of
from app.agents.generation.known_items import unstored_items
from app.agents.generation.messages import read_items
from app.agents.generation.openai_items import CONVERSATION_PREFIX, item_place, items
from app.conversations.schemas.conversations import (
    Conversation,
    ConversationCreate,
    ConversationUpdate,
    MetadataIn,
    ParsedObject,
    Turn,
    TurnInput,
)
from app.conversations.schemas.history import HistoryQuery
from app.conversations.service import Conversations, ConversationUpdates, ResponseService
from app.core.errors import AppError, Invalid, NotFound, TooLarge
from app.core.ids import ConversationId, format_id, parse_id
from app.core.paging import Order
from app.formats import service as formats
from app.formats.schemas import Format, JsonObject
from app.governance.service import Governance
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult

MAX_ITEMS = 500
_PAGE = 100


class NewConversation(BaseModel):
    """A conversation to create, with its first items."""

    items: list[ParsedObject] | None = Field(default=None, max_length=MAX_ITEMS)
    metadata: MetadataIn | None = None


class ChangedConversation(BaseModel):
    """The new metadata of a conversation; it replaces the old."""

    metadata: MetadataIn | None


class NewItems(BaseModel):
    """Items to append, all or none."""

    items: list[ParsedObject] = Field(min_length=1, max_length=MAX_ITEMS)


class OpenAIConversation(BaseModel):
    """A conversation in OpenAI's format; `created_at` in seconds since 1970."""

    id: str
    object: str
    created_at: int
    metadata: dict[str, JsonValue]


class DeletedConversation(BaseModel):
    """A deleted conversation."""

    id: str
    object: str
    deleted: bool


class Items(BaseModel):
    """A page of items in order; `last_id` is the `after` of the next page."""

    object: str
    data: list[dict[str, JsonValue]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class OpenAIConversations:
    """Conversations in OpenAI's format."""

    def __init__(
        self,
        *,
        conversations: Conversations,
        updates: ConversationUpdates,
        responses: ResponseService,
        governance: Governance,
    ) -> None:
        self._conversations = conversations
        self._updates = updates
        self._responses = responses
        self._governance = governance

    async def create(
        self, caller: Caller, *, body: NewConversation, idempotency_key: IdempotencyKey | None
    ) -> RequestResult[OpenAIConversation]:
        """Create a conversation. If its items cannot be stored, it is not created."""
        turns = _turns(body.items or [])
        create = ConversationCreate(metadata=body.metadata or {})
        if not turns:
            made = await self._conversations.create(caller, body=create, idempotency_key=idempotency_key)
            return made.with_value(_view(made.value))
        if idempotency_key is not None:
            before = await self._conversations.find_result(caller, idempotency_key=idempotency_key)
            if before is not None:
                conversation_id = ConversationId(parse_id(before.value.conversation_id))
                return before.with_value(_view(await self._conversations.outline(caller, conversation_id)))
            create = create.model_copy(update={"id": idempotency_key.derive_id(caller)})
        made = await self._conversations.create(caller, body=create)
        conversation_id = ConversationId(parse_id(made.value.id))
        try:
            appended = await self._conversations.append(
                caller, conversation_id, turns=turns, idempotency_key=idempotency_key
            )
        except AppError as error:
            # with an idempotency key, another request may have stored the items meanwhile, unless they are invalid
            if made.is_new and (idempotency_key is None or isinstance(error, Invalid | TooLarge)):
                await self._governance.delete_conversation(caller, conversation_id)
            raise
        return appended.with_value(_view(made.value))

    async def get(self, caller: Caller, conversation_id: ConversationId) -> OpenAIConversation:
        """Return one conversation."""
        return _view(await self._conversations.get(caller, conversation_id))

    async def update(
        self, caller: Caller, conversation_id: ConversationId, *, body: ChangedConversation
    ) -> OpenAIConversation:
        """Replace the metadata."""
        change = ConversationUpdate(metadata=body.metadata or {})
        changed = await self._updates.update(caller, conversation_id, body=change, replaces_metadata=True)
        return _view(changed)

    async def delete(self, caller: Caller, conversation_id: ConversationId) -> DeletedConversation:
        """Delete a conversation with everything derived from it."""
        await self._governance.delete_conversation(caller, conversation_id)
        return DeletedConversation(id=_openai_id(conversation_id), object="conversation.deleted", deleted=True)

    async def append(self, caller: Caller, conversation_id: ConversationId, *, body: NewItems) -> Items:
        """Append items, all or none, and return them. Raises as an append of turns does.

        Items with the ids of stored ones are left out (`known_items`).
        """
        given = [(f"/items/{at}", item) for at, item in enumerate(body.items)]
        new = await unstored_items(self._conversations, self._responses, caller, given, conversation_id)
        if not new:
            return item_page([], has_more=False)
        turns = [turn for _, turn in read_items(new, keeps_system=True).to_store(0)]
        stored = (await self._conversations.append(caller, conversation_id, turns=turns)).value
        return item_page([item for turn in stored.turns for item in items(turn)], has_more=False)

    async def list_items(
        self, caller: Caller, conversation_id: ConversationId, *, after: str | None, order: Order, limit: int
    ) -> Items:
        """Return a page of items of live turns, after the item `after`."""
        found: list[JsonObject] = []
        position: int | None = None
        if after is not None:
            turn_id, number = item_place(after)
            turn = await self._conversations.turn(caller, conversation_id, turn_id=turn_id)
            if turn.position is None:
                raise _no_item()
            position = turn.position
            found = items(turn)[number + 1 :] if order == "asc" else items(turn)[:number][::-1]
        more = True
        while more and len(found) <= limit:
            start = HistoryQuery("asc", after=position) if order == "asc" else HistoryQuery("desc", before=position)
            page = await self._conversations.history(caller, conversation_id, query=replace(start, limit=_PAGE))
            for turn in page.data:
                found += items(turn) if order == "asc" else items(turn)[::-1]
                position = turn.position
            more = page.has_more
        return item_page(found[:limit], has_more=len(found) > limit)

    async def item(self, caller: Caller, conversation_id: ConversationId, *, item_id: str) -> JsonObject:
        """Return one item of a live turn."""
        return _item(await self._turn(caller, conversation_id, item_id), item_id)

    async def delete_item(self, caller: Caller, conversation_id: ConversationId, *, item_id: str) -> OpenAIConversation:
        """Erase an item: the content of its turn is removed, in all revisions of that turn."""
        turn = await self._turn(caller, conversation_id, item_id)
        _item(turn, item_id)
        erasure = await self._governance.erase_turns(caller, conversation_id, turn_ids=[parse_id(turn.id)])
        if turn.id not in erasure.erased:  # another request has erased it since it was read
            raise _no_item()
        return await self.get(caller, conversation_id)

    async def _turn(self, caller: Caller, conversation_id: ConversationId, item_id: str) -> Turn:
        turn = await self._conversations.turn(caller, conversation_id, turn_id=item_place(item_id).turn_id)
        if turn.status != "committed" or turn.superseded_by is not None:
            raise _no_item()
        return turn


def _no_item() -> NotFound:
    return NotFound("not_found", "There is no such item in this conversation.")


def _item(turn: Turn, item_id: str) -> JsonObject:
    number, found = item_place(item_id).number, items(turn)
    if number >= len(found):
        raise _no_item()
    return found[number]


def _turns(given: Sequence[JsonObject]) -> list[TurnInput]:
    parsed = formats.parse(Format.OPENAI_RESPONSES, list(given), root="/items")
    return [turn_of(one) for one in parsed]


def item_page(found: Sequence[JsonObject], *, has_more: bool) -> Items:
    """Return a page of items."""
    ids = [str(item["id"]) for item in found]
    return Items(
        object="list",
        data=list(found),
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        has_more=has_more,
    )


def _openai_id(conversation_id: ConversationId) -> str:
    return f"{CONVERSATION_PREFIX}{format_id(conversation_id)}"


def _view(found: Conversation) -> OpenAIConversation:
    return OpenAIConversation(
        id=_openai_id(ConversationId(parse_id(found.id))),
        object="conversation",
        created_at=int(found.created_at.timestamp()),
        metadata=found.metadata,
    )
