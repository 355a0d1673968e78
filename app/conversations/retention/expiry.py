"""When conversations end: found where their time is over, hidden, then deleted a step at a time.

What always holds: a conversation is hidden only if, behind the lock of its head, its last update is as long ago as its
ttl says and no turn of it is being written; from that commit on nobody finds it and nothing is added to it. Steps are
bounded, may be run again, and may be run by several at once: each leaves to the others what they are at.
"""

from collections.abc import Sequence
from uuid import UUID

from app.conversations.events import EventPublisher
from app.conversations.stores import expiry_store
from app.conversations.stores.expiry_store import Candidate
from app.core.database.transactions import Database, Transaction
from app.core.ids import ConversationId
from app.tenancy.schemas import Caller


class ConversationExpiry:
    """The ends of conversations, in the transactions of whoever deletes."""

    def __init__(self, ops: Database, *, publisher: EventPublisher) -> None:
        self._ops = ops
        self._publisher = publisher

    async def candidates(self, *, after: Candidate | None, limit: int) -> list[Candidate]:
        """The next conversations of any tenant that may have expired, or are being deleted. Its own transaction."""
        place = None if after is None else (after.expires_at, after.tenant_id, after.id)
        async with self._ops.across_tenants() as tx:
            return await expiry_store.list_candidates(tx, after=place, limit=limit)

    async def hide_expired(self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID]) -> int:
        """Hide those of these conversations that have expired; of the others, note when they will. Says how many."""
        held = await expiry_store.lock_heads(tx, caller.tenant_id, conversation_ids)
        expired = await expiry_store.list_expired(tx, caller.tenant_id, held)
        if expired:
            await self._hide(caller, tx, expired)
        if len(expired) < len(held):
            await expiry_store.put_off(tx, caller.tenant_id, sorted(set(held) - set(expired)))
        return len(expired)

    async def hide(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> None:
        """Hide a conversation that the caller has locked."""
        await self._hide(caller, tx, [conversation_id])

    async def size(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> int:
        """How many turns a conversation was given."""
        return await expiry_store.find_size(tx, caller.tenant_id, conversation_id)

    async def has_turns(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> bool:
        """Whether a conversation has turns, open ones too, and not only such as were given up."""
        return await expiry_store.has_turns(tx, caller.tenant_id, conversation_id)

    async def _hide(self, caller: Caller, tx: Transaction, conversation_ids: Sequence[UUID]) -> None:
        await expiry_store.hide(tx, caller.tenant_id, conversation_ids)
        for conversation_id in conversation_ids:
            self._publisher.publish_deleted(tx, caller.tenant_id, ConversationId(conversation_id))

    async def lock(
        self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID], waiting: bool = False
    ) -> dict[UUID, bool]:
        """Hold those of these conversations that are being deleted; unless `waiting`, of those nobody else is at.

        Says of each whether facts may rest on it.
        """
        return await expiry_store.lock_deleting(tx, caller.tenant_id, conversation_ids, waiting=waiting)

    async def lock_turns(
        self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID], limit: int
    ) -> list[UUID]:
        """Some turns of held conversations, so that what is derived from them can go before them."""
        return await expiry_store.lock_turns_of(tx, caller.tenant_id, conversation_ids, limit=limit)

    async def delete_turns(self, caller: Caller, tx: Transaction, *, turn_ids: Sequence[UUID]) -> int:
        """Delete held turns; says how many."""
        return await expiry_store.delete_turns(tx, caller.tenant_id, turn_ids)

    async def delete_summaries(
        self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID], limit: int
    ) -> int:
        """Delete some summaries of held conversations; says how many."""
        return await expiry_store.delete_summaries(tx, caller.tenant_id, conversation_ids, limit=limit)

    async def delete_conversations(self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID]) -> int:
        """Delete held conversations of which nothing else is left; says how many."""
        return await expiry_store.delete_conversations(tx, caller.tenant_id, conversation_ids)
