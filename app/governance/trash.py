"""Put conversations into the trash, and restore them: with audit entries, in transactions of their own."""

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.conversations.schemas.conversations import Conversation
from app.conversations.service import Conversations
from app.core.database.transactions import Database
from app.core.ids import ConversationId
from app.tenancy.schemas import Caller, Scope


class TrashBin:
    """The trash of conversations, for callers."""

    def __init__(self, database: Database, *, conversations: Conversations) -> None:
        self._database = database
        self._trash = conversations.trash

    async def put(self, caller: Caller, conversation_id: ConversationId) -> Conversation:
        """Put a conversation into the trash. One that is there already stays as it is. Raises NotFound."""
        caller.require(Scope.WRITE)
        async with self._database.transaction(caller.tenant_id) as tx:
            put = await self._trash.put(caller, tx, conversation_id=conversation_id)
            if put.is_new:
                record(tx, caller, Action.CONVERSATION_TRASH, ObjectKind.CONVERSATION, conversation_id)
        return put.value

    async def restore(self, caller: Caller, conversation_id: ConversationId) -> Conversation:
        """Take a conversation out of the trash. One that is not there stays as it is.

        Raises NotFound if it does not exist, or if it is being deleted.
        """
        caller.require(Scope.WRITE)
        async with self._database.transaction(caller.tenant_id) as tx:
            restored = await self._trash.restore(caller, tx, conversation_id=conversation_id)
            if restored.is_new:
                record(tx, caller, Action.CONVERSATION_RESTORE, ObjectKind.CONVERSATION, conversation_id)
        return restored.value

    async def change_entries(self, caller: Caller, conversation_id: ConversationId) -> None:
        """Bring the index entries of a large conversation in line with the trash. Run by a job."""
        await self._trash.change_entries(caller, conversation_id)
