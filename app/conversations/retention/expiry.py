"""Expiry of conversations: find the expired ones, hide them, then delete their rows in steps.

Invariants: a conversation is hidden by expiry only if, under the lock of its head, its ttl has passed since its last
update and it has no open turn. From that commit on it is not found and nothing is added to it. Steps are bounded, can
be repeated, and can run concurrently: each step skips the conversations that another one has locked.
"""

from collections.abc import Iterable, Sequence
from uuid import UUID

from app.conversations.events import EventPublisher
from app.conversations.stores import erasure_store, expiry_store
from app.conversations.stores.expiry_store import ExpiryCandidate
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId
from app.core.outbox import EventType
from app.tenancy.schemas import Caller


class ConversationExpiry:
    """Hides and deletes conversations, in the caller's transactions."""

    def __init__(self, *, publisher: EventPublisher) -> None:
        self._publisher = publisher

    async def candidates(self, tx: Transaction, *, after: ExpiryCandidate | None, limit: int) -> list[ExpiryCandidate]:
        """Return the next conversations of any tenant that may have expired or are being purged (ops role)."""
        place = None if after is None else (after.expires_at, after.tenant_id, after.id)
        return await expiry_store.list_candidates(tx, after=place, limit=limit)

    async def hide_expired(self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID]) -> int:
        """Hide the given conversations that have expired, and return their number, with those whose trash time is over.

        Update the expiry time of the others.
        """
        locked = await expiry_store.lock_heads(tx, caller.tenant_id, conversation_ids)
        trashed = await expiry_store.list_trashed(tx, caller.tenant_id, locked)
        ended = await expiry_store.end_trash(tx, caller.tenant_id, locked, only_due=True) if trashed else 0
        if ended:
            self._record_deleted(caller, tx, trashed - await expiry_store.list_trashed(tx, caller.tenant_id, locked))
        expired = await expiry_store.list_expired(tx, caller.tenant_id, locked)
        if expired:
            await self._hide(caller, tx, expired)
        if len(expired) < len(locked):
            await expiry_store.put_off(tx, caller.tenant_id, sorted(set(locked) - set(expired)))
        return len(expired) + ended

    async def hide_all(self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID]) -> dict[str, int]:
        """Lock the given conversations, and hide those that are not hidden. Return the deleted rows by table.

        Those in the trash cannot be restored any more.
        """
        trashed = await expiry_store.lock_trashed(tx, caller.tenant_id, conversation_ids)
        await expiry_store.end_trash(tx, caller.tenant_id, trashed, only_due=False)
        self._record_deleted(caller, tx, trashed)
        visible = await expiry_store.lock_visible(tx, caller.tenant_id, conversation_ids)
        return await self._hide(caller, tx, visible) if visible else {}

    async def hide(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> None:
        """Hide a conversation that the caller has locked."""
        await self._hide(caller, tx, [conversation_id])

    async def select(
        self,
        caller: Caller,
        tx: Transaction,
        *,
        conversation_id: UUID | None,
        owner: str | None,
        project: str | None,
        limit: int,
    ) -> list[UUID]:
        """Return the first conversations of an erasure, hidden ones included; of the tenant without a filter."""
        return await erasure_store.select_conversations(
            tx, caller.tenant_id, conversation_id=conversation_id, owner=owner, project=project, limit=limit
        )

    async def count(
        self, caller: Caller, tx: Transaction, *, conversation_id: UUID | None, owner: str | None, project: str | None
    ) -> tuple[int, int]:
        """Return the number of conversations of an erasure, and of their turns."""
        return await erasure_store.count_selected(
            tx, caller.tenant_id, conversation_id=conversation_id, owner=owner, project=project
        )

    async def size(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> int:
        """Return the number of turns that were ever stored in a conversation."""
        return await expiry_store.find_size(tx, caller.tenant_id, conversation_id)

    async def has_turns(
        self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId, after: int = 0
    ) -> bool:
        """Return whether a conversation has turns after a seq, including open ones and excluding aborted ones."""
        return await expiry_store.has_turns(tx, caller.tenant_id, conversation_id, after=after)

    async def _hide(self, caller: Caller, tx: Transaction, conversation_ids: Sequence[UUID]) -> dict[str, int]:
        deleted = await expiry_store.hide(tx, caller.tenant_id, conversation_ids)
        for conversation_id in conversation_ids:
            self._publisher.publish_deleted(tx, caller.tenant_id, ConversationId(conversation_id))
        self._record_deleted(caller, tx, conversation_ids)
        return deleted

    def _record_deleted(self, caller: Caller, tx: Transaction, conversation_ids: Iterable[UUID]) -> None:
        for conversation_id in sorted(conversation_ids):
            self._publisher.record_conversation(tx, caller.tenant_id, EventType.CONVERSATION_DELETED, conversation_id)

    async def lock(
        self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID], waiting: bool = False
    ) -> dict[UUID, bool]:
        """Lock the given conversations that are being purged; unless `waiting`, skip those that are locked already.

        Return for each whether facts may be derived from it.
        """
        return await expiry_store.lock_deleting(tx, caller.tenant_id, conversation_ids, waiting=waiting)

    async def lock_turns(
        self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID], limit: int
    ) -> list[UUID]:
        """Return and lock some turns of locked conversations, so that data derived from them can be deleted first."""
        return await expiry_store.lock_turns_of(tx, caller.tenant_id, conversation_ids, limit=limit)

    async def delete_turns(self, caller: Caller, tx: Transaction, *, turn_ids: Sequence[UUID]) -> dict[str, int]:
        """Delete locked turns with their responses, and return the number of deleted rows by table."""
        return await expiry_store.delete_turns(tx, caller.tenant_id, turn_ids)

    async def delete_summaries(
        self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID], limit: int
    ) -> int:
        """Delete some summaries of locked conversations, and return their number."""
        return await expiry_store.delete_summaries(tx, caller.tenant_id, conversation_ids, limit=limit)

    async def delete_conversations(self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID]) -> int:
        """Delete locked conversations that have no other rows left, and return their number."""
        return await expiry_store.delete_conversations(tx, caller.tenant_id, conversation_ids)
