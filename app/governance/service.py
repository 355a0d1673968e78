"""Delete and erase data: every capability deletes its own rows, in one common transaction.

`registry` lists the data of a conversation or a turn.
"""

from collections import Counter
from collections.abc import Sequence
from uuid import UUID

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record, single
from app.conversations.schemas.conversations import ErasedTurns
from app.conversations.service import (
    ConversationEraser,
    ConversationExpiry,
    ConversationTrash,
    ResponseEraser,
    RetentionEraser,
    TurnErasure,
)
from app.core.database.transactions import Database, Transaction
from app.core.errors import NotFound
from app.core.ids import ConversationId, TurnId
from app.core.telemetry import get_logger
from app.governance.erasures.endings import ErasureReceipts
from app.governance.erasures.receipts import ReceiptSigner
from app.governance.erasures.runner import ErasureRunner
from app.governance.erasures.service import Erasures
from app.governance.erasures.store import ERASURE
from app.governance.owners import OwnerViews
from app.governance.purge import Purger, PurgeSteps
from app.index.schemas import EntryKind
from app.index.service import SearchIndex
from app.memory.longterm.service import Memories
from app.memory.service import FactService
from app.tenancy.schemas import Caller, Scope

__all__ = [
    "ERASURE",
    "ErasureReceipts",
    "ErasureRunner",
    "Erasures",
    "Governance",
    "OwnerViews",
    "PurgeSteps",
    "Purger",
    "ReceiptSigner",
]

_SWEPT_AT_ONCE = 1_000
_MAX_SWEEPS = 100

_STEP = 200
"""Turns that retention erases in one transaction. An append may have to wait for that transaction."""

_AT_ONCE = 1000
"""Maximum number of turns of a conversation that is deleted in one transaction."""


class Governance:
    """Deletes and erases data with everything derived from it."""

    def __init__(
        self,
        database: Database,
        ops: Database,
        *,
        eraser: ConversationEraser,
        expiry: ConversationExpiry,
        trash: ConversationTrash,
        retention: RetentionEraser,
        responses: ResponseEraser,
        facts: FactService,
        memories: Memories,
        index: SearchIndex,
        purger: Purger,
    ) -> None:
        self._database = database
        self._ops = ops
        self._eraser = eraser
        self._expiry = expiry
        self._trash = trash
        self._retention = retention
        self._responses = responses
        self._facts = facts
        self._memories = memories
        self._index = index
        self._purger = purger
        self._log = get_logger()

    async def delete_conversation(self, caller: Caller, conversation_id: ConversationId) -> dict[str, int]:
        """Delete a conversation with everything derived from it, and return the number of deleted rows by table.

        A small conversation is deleted in one transaction. A large one is hidden in one transaction, then deleted in
        steps, as is one in the trash.
        """
        async with self._database.transaction(caller.tenant_id) as tx:
            project = await self._lock_or_end_trash(caller, tx, conversation_id)
            if project is not None:
                size = await self._expiry.size(caller, tx, conversation_id=conversation_id)
                if size <= _AT_ONCE:
                    return await self._delete(caller, tx, conversation_id, project)
                await self._expiry.hide(caller, tx, conversation_id=conversation_id)
            record(
                tx,
                caller,
                Action.CONVERSATION_DELETE,
                ObjectKind.CONVERSATION,
                conversation_id,
                counts={"conversations": 1},
            )
        # The conversation is hidden by now. If this call is interrupted, the next sweep deletes the rest.
        return await self._purger.purge(caller, [conversation_id], waiting=True)

    async def _lock_or_end_trash(self, caller: Caller, tx: Transaction, conversation_id: ConversationId) -> str | None:
        """Lock a conversation to delete it, and return its project; None if it was in the trash: it is hidden already.

        Raises NotFound.
        """
        try:
            return await self._eraser.lock(caller, tx, conversation_id=conversation_id)
        except NotFound:
            if await self._trash.end(caller, tx, conversation_id=conversation_id):
                return None
            # it was restored meanwhile, or does not exist
            return await self._eraser.lock(caller, tx, conversation_id=conversation_id)

    async def delete_unused(self, caller: Caller, conversation_id: ConversationId, *, through: int = 0) -> None:
        """Delete a conversation if it has no turns after the seq `through`, neither stored nor open."""
        async with self._database.transaction(caller.tenant_id) as tx:
            await self._eraser.lock(caller, tx, conversation_id=conversation_id)
            if not await self._expiry.has_turns(caller, tx, conversation_id=conversation_id, after=through):
                await self._delete_or_hide(caller, tx, conversation_id)

    async def _delete(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, project: str
    ) -> dict[str, int]:
        counts = Counter(await self._facts.erase(caller, tx, conversation_id=conversation_id))
        counts.update(await self._index.erase(caller, tx, conversation_id=conversation_id))
        counts.update(await self._eraser.erase(caller, tx, conversation_id=conversation_id, project=project))
        record(tx, caller, Action.CONVERSATION_DELETE, ObjectKind.CONVERSATION, conversation_id, counts=counts)
        return counts

    async def erase_turns(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        turn_ids: Sequence[UUID],
        only_this: bool = False,
    ) -> ErasedTurns:
        """Erase the content of turns, all or none, with everything derived from it.

        Tombstones keep the hash chain intact.

        The other revisions of each turn and aborted drafts of them are erased too, unless `only_this`. Raises NotFound,
        naming the turns that are not in this conversation. A repeated call changes nothing.
        """
        async with self._database.transaction(caller.tenant_id) as tx:
            erasure = await self._erase_turns(caller, tx, conversation_id, turn_ids, only_this=only_this)
            record(
                tx,
                caller,
                Action.TURN_ERASE,
                ObjectKind.TURN,
                single(turn_ids),
                conversation_id=conversation_id,
                counts={"turns": len(erasure.turn_ids)},
            )
        return erasure.result

    async def _erase_turns(
        self,
        caller: Caller,
        tx: Transaction,
        conversation_id: ConversationId,
        turn_ids: Sequence[UUID],
        *,
        only_this: bool = False,
    ) -> TurnErasure:
        erasure = await self._eraser.erase_turns(
            caller, tx, conversation_id=conversation_id, turn_ids=turn_ids, only_this=only_this
        )
        await self._index.erase_entries(caller, tx, kind=EntryKind.TURN, source_ids=list(erasure.turn_ids))
        await self._facts.invalidate(caller, tx, turn_ids=erasure.turn_ids)
        return erasure

    async def delete_response(self, caller: Caller, turn_id: TurnId) -> None:
        """Delete a response of this answer. Raises NotFound.

        In a conversation that was created for responses, the turns of its input and its answer are erased too, and the
        conversation is deleted with its last response. In any other conversation the turns stay.
        """
        async with self._database.transaction(caller.tenant_id) as tx:
            place = await self._responses.locate(caller, tx, turn_id)
            if place.owns_conversation:
                await self._erase_turns(caller, tx, place.conversation_id, place.turn_ids)
            await self._responses.delete(caller, tx, turn_id)
            if place.owns_conversation and not await self._responses.is_conversation_used(
                caller, tx, place.conversation_id
            ):
                await self._delete_or_hide(caller, tx, place.conversation_id)
            record(
                tx,
                caller,
                Action.RESPONSE_DELETE,
                ObjectKind.TURN,
                turn_id,
                conversation_id=place.conversation_id,
                counts={"turns": len(place.turn_ids) if place.owns_conversation else 0},
            )

    async def _delete_or_hide(self, caller: Caller, tx: Transaction, conversation_id: ConversationId) -> None:
        """Delete a conversation; a large one is hidden, and the next sweep deletes it."""
        project = await self._eraser.lock(caller, tx, conversation_id=conversation_id)
        if await self._expiry.size(caller, tx, conversation_id=conversation_id) <= _AT_ONCE:
            await self._delete(caller, tx, conversation_id, project)
        else:
            await self._expiry.hide(caller, tx, conversation_id=conversation_id)

    async def retain(self, caller: Caller, conversation_id: ConversationId) -> int:
        """Erase the turns that the conversation's retention does not keep, in steps, and return their number.

        A repeated call continues an interrupted one, and changes nothing if all is done. Raises NotFound.
        """
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            swept = await self._retention.begin(caller, tx, conversation_id=conversation_id)
        count = 0
        while swept is not None:
            async with self._database.transaction(caller.tenant_id) as tx:
                done = await self._retention.step(caller, tx, conversation_id=conversation_id, swept=swept, limit=_STEP)
                if done.turn_ids:
                    await self._index.erase_entries(caller, tx, kind=EntryKind.TURN, source_ids=list(done.turn_ids))
                    await self._facts.invalidate(caller, tx, turn_ids=done.turn_ids)
                    erased = len(done.turn_ids)
                    record(tx, caller, Action.TURN_ERASE, conversation_id=conversation_id, counts={"turns": erased})
            count += len(done.turn_ids)
            swept = done.swept if done.more else None
        if count:
            self._log.info("retention.applied", conversation_id=conversation_id, count=count)
        return count

    async def delete_memory(self, caller: Caller, memory_id: UUID) -> dict[str, int]:
        """Delete a long-term memory with its index entry and vectors; do nothing if the tenant has no such memory.

        Requires the scope `admin`: an agent that finds a memory wrong stores another one.
        """
        caller.require(Scope.ADMIN)
        async with self._database.transaction(caller.tenant_id) as tx:
            counts = await self._memories.erase(caller, tx, memory_id=memory_id)
            record(tx, caller, Action.MEMORY_DELETE, ObjectKind.MEMORY, memory_id, counts=counts)
            return counts

    async def sweep_memories(self) -> int:
        """Delete expired memories in bounded transactions, and return their number. Run by a job."""
        swept = 0
        for _ in range(_MAX_SWEEPS):
            async with self._ops.across_tenants() as tx:
                deleted = await self._memories.erase_expired(tx, limit=_SWEPT_AT_ONCE)
            swept += deleted
            if deleted < _SWEPT_AT_ONCE:
                break
        return swept
