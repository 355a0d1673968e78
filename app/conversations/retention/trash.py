"""The trash: conversations that are hidden for some days, and can be restored with everything in them.

Invariants: a conversation in the trash has `deleting_at` in its head, as one that is being deleted, so all queries skip
it; `trashed_at` says that nothing of it was deleted. Both are written under the lock of the head. A deletion begins by
clearing `trashed_at`, and a restore needs it, so of the two one happens. Its index entries are not live; those of a
large conversation change in steps, and until then its hits are left out when their content is read.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeAlias

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.conversations.events import EventPublisher
from app.conversations.find import find_trashed, get_conversation, lock_conversation
from app.conversations.policies import facts_again_job, facts_job
from app.conversations.schemas.conversations import Conversation, Facts, Retention
from app.conversations.stores import expiry_store, list_store
from app.conversations.stores.conversation_store import ConversationRow
from app.conversations.summaries.invalidation import compact_job, is_due, retain_job
from app.conversations.views import conversation_view_for
from app.core.database.transactions import Database, Transaction
from app.core.errors import NotFound
from app.core.ids import ConversationId
from app.core.jobs import JobQueue, NewJob
from app.core.outbox import EventType
from app.index.service import SearchIndex
from app.tenancy.schemas import Caller, RequestResult, Scope

TRASH_JOB: Final = "conversation.trash"
"""Job kind: take the index entries of a trashed conversation out of the search, or put those of a restored one back."""
AbortOpenTurns: TypeAlias = Callable[[Caller, Transaction, ConversationId], Awaitable[None]]
_AT_ONCE: Final = 500
"""Index entries that change in one transaction."""


class ConversationTrash:
    """Puts conversations into the trash and takes them back, in the caller's transactions."""

    def __init__(
        self,
        *,
        index: SearchIndex,
        publisher: EventPublisher,
        jobs: JobQueue,
        days: int,
        abort_open: AbortOpenTurns,
    ) -> None:
        self._index = index
        self._abort_open = abort_open
        self._publisher = publisher
        self._jobs = jobs
        self._trash_time = timedelta(days=days)

    async def put(
        self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId
    ) -> RequestResult[Conversation]:
        """Hide a conversation from everything but the list of the trash, and abort its open turns. Raises NotFound.

        A conversation that is in the trash already stays as it is.
        """
        try:
            await lock_conversation(caller, tx, conversation_id)
        except NotFound:
            row = await find_trashed(caller, tx, conversation_id)
            if row is None:
                raise
            return RequestResult(conversation_view_for(caller, row), is_new=False)
        await self._abort_open(caller, tx, conversation_id)
        await expiry_store.put_in_trash(tx, caller.tenant_id, conversation_id, trash_time=self._trash_time)
        await self._change_entries(caller, tx, conversation_id, hide=True)
        self._publisher.publish_deleted(tx, caller.tenant_id, conversation_id)
        self._publisher.record_conversation(tx, caller.tenant_id, EventType.CONVERSATION_TRASHED, conversation_id)
        row = await list_store.find_trashed(tx, caller.tenant_id, conversation_id=conversation_id)
        if row is None:
            raise RuntimeError("a conversation is not in the trash in the transaction that put it there")
        return RequestResult(conversation_view_for(caller, row), is_new=True)

    async def restore(
        self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId
    ) -> RequestResult[Conversation]:
        """Take a conversation out of the trash. One that is not in the trash stays as it is. Raises NotFound."""
        if caller.restriction is not None:
            await find_trashed(caller, tx, conversation_id)
        if not await expiry_store.lock_trashed(tx, caller.tenant_id, [conversation_id]):
            row = await get_conversation(caller, tx, conversation_id)
            return RequestResult(conversation_view_for(caller, row), is_new=False)
        await expiry_store.take_from_trash(tx, caller.tenant_id, conversation_id)
        await self._change_entries(caller, tx, conversation_id, hide=False)
        row = await get_conversation(caller, tx, conversation_id)
        await self._jobs.enqueue(tx, caller.tenant_id, _jobs_of(row))
        self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=row.rev)
        self._publisher.record_conversation(tx, caller.tenant_id, EventType.CONVERSATION_RESTORED, conversation_id)
        return RequestResult(conversation_view_for(caller, row), is_new=True)

    async def end(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> bool:
        """Make a conversation in the trash one that is being deleted. Return False if it is not in the trash."""
        if caller.restriction is not None:
            await find_trashed(caller, tx, conversation_id)
        if not await expiry_store.lock_trashed(tx, caller.tenant_id, [conversation_id]):
            return False
        await expiry_store.end_trash(tx, caller.tenant_id, [conversation_id], only_due=False)
        self._publisher.record_conversation(tx, caller.tenant_id, EventType.CONVERSATION_DELETED, conversation_id)
        return True

    async def show_in_transaction(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> bool:
        """Show a conversation in the trash to the rest of this transaction. Return False if it is not in the trash."""
        if not await expiry_store.lock_trashed(tx, caller.tenant_id, [conversation_id]):
            return False
        await expiry_store.set_hidden(tx, caller.tenant_id, conversation_id, hidden=False)
        return True

    async def hide_in_transaction(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> None:
        """Hide a conversation again that `show_in_transaction` has shown to this transaction."""
        await expiry_store.set_hidden(tx, caller.tenant_id, conversation_id, hidden=True)

    async def change_entries(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> bool:
        """Bring some index entries of a conversation in line with the trash; return whether there are more.

        Raises NotFound.
        """
        hide = bool(await expiry_store.lock_trashed(tx, caller.tenant_id, [conversation_id]))
        if not hide:
            await lock_conversation(caller, tx, conversation_id)
        return await self._index.change_visibility(
            caller, tx, conversation_id=conversation_id, hide=hide, limit=_AT_ONCE
        )

    async def _change_entries(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, *, hide: bool
    ) -> None:
        if await self._index.change_visibility(caller, tx, conversation_id=conversation_id, hide=hide, limit=_AT_ONCE):
            job = NewJob(TRASH_JOB, subject_ids=[conversation_id], dedupe_key=str(conversation_id))
            await self._jobs.enqueue(tx, caller.tenant_id, [job])


class TrashService:
    """Puts conversations into the trash and restores them, with audit entries."""

    def __init__(self, database: Database, *, trash: ConversationTrash) -> None:
        self._database = database
        self._trash = trash

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
        """Bring the index entries of a large conversation in line with the trash, in steps. Run by a job."""
        more = True
        while more:
            async with self._database.transaction(caller.tenant_id) as tx:
                more = await self._trash.change_entries(caller, tx, conversation_id=conversation_id)


def _jobs_of(row: ConversationRow) -> list[NewJob]:
    """Return the jobs that a conversation needs. Those that ran while it was in the trash found nothing."""
    jobs: list[NewJob] = []
    if Facts.model_validate(row.facts).enabled and row.facts_seq < row.last_seq:
        jobs.append(facts_job(row.id))
    if row.facts_rules_from is not None:
        jobs.append(facts_again_job(row.id, delay_s=0))
    if is_due(row, turns=row.turn_count, tokens=row.token_count):
        jobs.append(compact_job(row.id))
    if row.retention != Retention.FULL.value:
        jobs.append(retain_job(row.id))
    return jobs
