"""OpenAI's Conversations API on the same conversations and turns that the other APIs use."""

from collections.abc import Sequence
from dataclasses import replace

from app.agents.generation.known_items import PlacedItem, unstored_items
from app.agents.generation.messages import read_items
from app.agents.generation.openai_items import item_place, items
from app.agents.generation.schemas import (
    CONVERSATION_PREFIX,
    ChangedConversation,
    DeletedConversation,
    Items,
    NewConversation,
    NewItems,
    OpenAIConversation,
)
from app.conversations.schemas.conversations import Conversation, ConversationCreate, ConversationUpdate, Turn
from app.conversations.schemas.history import HistoryQuery
from app.conversations.service import Conversations, ConversationUpdates, ResponseService
from app.core.errors import AppError, Invalid, NotFound, TooLarge
from app.core.ids import ConversationId, format_id, parse_id
from app.core.paging import Order
from app.formats.schemas import JsonObject
from app.governance.service import Governance
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult

_PAGE = 100


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
        turns = read_items(_placed(body.items or ()), keeps_system=True).to_store(0)
        create = ConversationCreate(metadata={**(body.metadata or {})})
        if not turns:
            created = await self._conversations.create(caller, body=create, idempotency_key=idempotency_key)
            return created.with_value(_view(created.value))
        if idempotency_key is not None:
            before = await self._conversations.find_result(caller, idempotency_key=idempotency_key)
            if before is not None:
                conversation_id = ConversationId(parse_id(before.value.conversation_id))
                return before.with_value(_view(await self._conversations.outline(caller, conversation_id)))
            create = create.model_copy(update={"id": idempotency_key.derive_id(caller)})
        created = await self._conversations.create(caller, body=create)
        conversation_id = ConversationId(parse_id(created.value.id))
        try:
            appended = await self._conversations.append(
                caller, conversation_id, turns=turns, idempotency_key=idempotency_key
            )
        except AppError as error:
            # with an idempotency key, another request may have stored the items meanwhile, unless they are invalid
            if created.is_new and (idempotency_key is None or isinstance(error, Invalid | TooLarge)):
                await self._governance.delete_conversation(caller, conversation_id)
            raise
        return appended.with_value(_view(created.value))

    async def get(self, caller: Caller, conversation_id: ConversationId) -> OpenAIConversation:
        """Return one conversation."""
        return _view(await self._conversations.get(caller, conversation_id))

    async def update(
        self, caller: Caller, conversation_id: ConversationId, *, body: ChangedConversation
    ) -> OpenAIConversation:
        """Replace the metadata."""
        change = ConversationUpdate(metadata={**(body.metadata or {})})
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
        new = await unstored_items(self._conversations, self._responses, caller, _placed(body.items), conversation_id)
        if not new:
            return item_page([], has_more=False)
        turns = read_items(new, keeps_system=True).to_store(0)
        stored = (await self._conversations.append(caller, conversation_id, turns=turns)).value
        return item_page([item for turn in stored.turns for item in items(turn)], has_more=False)

    async def list_items(
        self, caller: Caller, conversation_id: ConversationId, *, after: str | None, order: Order, limit: int
    ) -> Items:
        """Return a page of items of live turns, after the item `after`."""
        page: list[JsonObject] = []
        position: int | None = None
        if after is not None:
            turn_id, number = item_place(after)
            turn = await self._conversations.turn(caller, conversation_id, turn_id=turn_id)
            if turn.position is None:
                raise _no_item()
            position = turn.position
            page = items(turn)[number + 1 :] if order == "asc" else items(turn)[:number][::-1]
        more = True
        while more and len(page) <= limit:
            start = HistoryQuery("asc", after=position) if order == "asc" else HistoryQuery("desc", before=position)
            history = await self._conversations.history(caller, conversation_id, query=replace(start, limit=_PAGE))
            for turn in history.data:
                page += items(turn) if order == "asc" else items(turn)[::-1]
                position = turn.position
            more = history.has_more
        return item_page(page[:limit], has_more=len(page) > limit)

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
    number, turn_items = item_place(item_id).number, items(turn)
    if number >= len(turn_items):
        raise _no_item()
    return turn_items[number]


def _placed(sent: Sequence[JsonObject]) -> list[PlacedItem]:
    return [(f"/items/{at}", item) for at, item in enumerate(sent)]


def item_page(page: Sequence[JsonObject], *, has_more: bool) -> Items:
    """Return a page of items."""
    ids = [str(item["id"]) for item in page]
    return Items(
        object="list",
        data=list(page),
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        has_more=has_more,
    )


def _openai_id(conversation_id: ConversationId) -> str:
    return f"{CONVERSATION_PREFIX}{format_id(conversation_id)}"


def _view(conversation: Conversation) -> OpenAIConversation:
    return OpenAIConversation(
        id=_openai_id(ConversationId(parse_id(conversation.id))),
        object="conversation",
        created_at=int(conversation.created_at.timestamp()),
        metadata=conversation.metadata,
    )
