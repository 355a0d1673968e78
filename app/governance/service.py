"""The one door through which anything is deleted: every capability gives up what it holds, in one transaction.

What belongs to a conversation or a turn is listed in `registry`.
"""

from collections.abc import Sequence
from uuid import UUID

from app.conversations.schemas import ErasedTurns
from app.conversations.service import Conversations
from app.core.db import Database
from app.core.ids import ConversationId
from app.index.service import SearchIndex
from app.memory.service import Facts
from app.tenancy.schemas import Caller


class Governance:
    """Deletes and erases with everything derived."""

    def __init__(self, database: Database, *, conversations: Conversations, facts: Facts, index: SearchIndex) -> None:
        self._database = database
        self._conversations = conversations
        self._facts = facts
        self._index = index

    async def delete_conversation(self, caller: Caller, conversation_id: ConversationId) -> dict[str, int]:
        """Delete a conversation with all that was derived from it; says how many rows went from each table."""
        async with self._database.transaction(caller.tenant_id) as tx:
            await self._conversations.lock(caller, tx, conversation_id=conversation_id)
            counts = await self._facts.erase(caller, tx, conversation_id=conversation_id)
            counts |= await self._index.erase(caller, tx, conversation_id=conversation_id)
            return counts | await self._conversations.erase(caller, tx, conversation_id=conversation_id)

    async def erase_turns(
        self, caller: Caller, conversation_id: ConversationId, *, turn_ids: Sequence[UUID]
    ) -> ErasedTurns:
        """Erase what turns say, all or none, with everything derived from it; tombstones stay, so the chain holds.

        NotFound names those that are not of this conversation. Repeating it changes nothing.
        """
        async with self._database.transaction(caller.tenant_id) as tx:
            erased = await self._conversations.erase_turns(
                caller, tx, conversation_id=conversation_id, turn_ids=turn_ids
            )
            await self._index.erase(caller, tx, conversation_id=conversation_id, entry_ids=list(turn_ids))
            await self._facts.withdraw(caller, tx, turn_ids=turn_ids)
        return erased
