"""The view of an owner: all that is stored under it, so that a person can see, correct and erase it."""

from app.conversations.schemas.listing import ConversationFilter
from app.conversations.service import ConversationExpiry, Conversations
from app.core.database.transactions import Database
from app.governance.schemas import OwnedConversations, OwnedFacts, OwnedMemories, OwnerLookup, OwnerView
from app.memory.longterm.service import Memories
from app.memory.schemas import FactSearch
from app.memory.service import FactService
from app.tenancy.schemas import Caller, Scope


class OwnerViews:
    """Reads what is stored under an owner."""

    def __init__(
        self,
        database: Database,
        *,
        conversations: Conversations,
        expiry: ConversationExpiry,
        facts: FactService,
        memories: Memories,
    ) -> None:
        self._database = database
        self._conversations = conversations
        self._expiry = expiry
        self._facts = facts
        self._memories = memories

    async def look_up(self, caller: Caller, *, request: OwnerLookup) -> OwnerView:
        """Return the number and a page of the owner's conversations, facts and memories.

        Requires the scopes `read` and `admin`, because memories of all agents are shown. Raises Invalid
        `cursor_invalid`.
        """
        caller.require(Scope.READ)
        caller.require(Scope.ADMIN)
        return OwnerView(
            conversations=await self._list_conversations(caller, request),
            facts=await self._list_facts(caller, request),
            memories=await self._list_memories(caller, request),
        )

    async def _list_conversations(self, caller: Caller, request: OwnerLookup) -> OwnedConversations:
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            count, _ = await self._expiry.count(
                caller, tx, conversation_id=None, owner=request.owner, project=request.project
            )
        page = await self._conversations.list_conversations(
            caller,
            order="desc",
            where=ConversationFilter(owner=request.owner, project=request.project, trashed=None),
            limit=request.limit,
            cursor=request.conversations_cursor,
        )
        return OwnedConversations(count=count, data=page.data, has_more=page.has_more, next_cursor=page.next_cursor)

    async def _list_facts(self, caller: Caller, request: OwnerLookup) -> OwnedFacts:
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            count = await self._facts.count_of(caller, tx, owner=request.owner, project=request.project)
        page = await self._facts.list_page(
            caller,
            where=FactSearch(owner=request.owner, project=request.project),
            newest_first=True,
            limit=request.limit,
            cursor=request.facts_cursor,
        )
        return OwnedFacts(count=count, data=page.data, has_more=page.has_more, next_cursor=page.next_cursor)

    async def _list_memories(self, caller: Caller, request: OwnerLookup) -> OwnedMemories:
        if request.project is not None:
            return OwnedMemories(count=0, data=[], has_more=False, next_cursor=None)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            count = await self._memories.count_of(caller, tx, owner=request.owner)
        page = await self._memories.list_page(
            caller,
            agent_id=None,
            owner=request.owner,
            newest_first=True,
            limit=request.limit,
            cursor=request.memories_cursor,
        )
        return OwnedMemories(count=count, data=page.data, has_more=page.has_more, next_cursor=page.next_cursor)
