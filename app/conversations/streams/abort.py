"""Abort open turns with their text so far, in the transaction of the caller."""

from collections.abc import Mapping, Sequence

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.conversations.events import EventPublisher
from app.conversations.find import get_turn
from app.conversations.schemas.conversations import Retention
from app.conversations.stores import retention_store, stream_store
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.streams.chunk_merge import aborted_columns
from app.conversations.summaries.invalidation import retain_job
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId, TurnId
from app.core.jobs import JobQueue
from app.settings.conversations import StreamSettings
from app.tenancy.schemas import Caller, job_caller

LEASE_EXPIRED = "lease_expired"
TRASHED = "conversation_trashed"
_ABORTED_AT_ONCE = 100


class TurnAborter:
    """Aborts open turns, in the caller's transactions."""

    def __init__(self, *, publisher: EventPublisher, jobs: JobQueue, settings: StreamSettings) -> None:
        self._publisher = publisher
        self._jobs = jobs
        self._settings = settings

    async def abort(
        self,
        caller: Caller,
        tx: Transaction,
        conversation_id: ConversationId,
        turn_id: TurnId,
        *,
        parts: Mapping[str, str],
        reason: str | None,
    ) -> TurnRow:
        """Abort an open turn, whose stream is locked, with this text; return it."""
        row = await get_turn(caller, tx, conversation_id, turn_id)
        content, calls, metadata = aborted_columns(row, parts, reason)
        await stream_store.abort_turn(
            tx, caller.tenant_id, turn_id, content=content, tool_calls=calls, metadata=metadata
        )
        await stream_store.delete_open(tx, caller.tenant_id, [turn_id])
        record(
            tx,
            caller,
            Action.TURN_ABORT,
            ObjectKind.TURN,
            turn_id,
            conversation_id=conversation_id,
            counts={"turns": 1},
        )
        # the retention of the conversation may have changed since the turn was opened
        retention = await retention_store.find_retention(tx, caller.tenant_id, conversation_id)
        if retention not in {None, Retention.FULL.value}:
            await self._jobs.enqueue(tx, caller.tenant_id, [retain_job(conversation_id)])
        self._publisher.publish_turn(tx, "ended", caller.tenant_id, conversation_id, turn_id=turn_id)
        return await get_turn(caller, tx, conversation_id, turn_id)

    async def expire(self, tx: Transaction, tenant_id: TenantId, turn_id: TurnId) -> bool:
        """Abort an open turn if its lease has expired. Return False if it has not expired, or the turn has ended."""
        stream = await stream_store.lock_stream(tx, tenant_id, turn_id)
        if stream is None or stream.age_s <= self._settings.stream_lease_s:
            return False
        texts = (await stream_store.read_texts(tx, tenant_id, [turn_id])).get(turn_id, {})
        await self.abort(
            job_caller(tenant_id),
            tx,
            ConversationId(stream.conversation_id),
            turn_id,
            parts=texts,
            reason=LEASE_EXPIRED,
        )
        return True

    async def abort_open(self, caller: Caller, tx: Transaction, conversation_id: ConversationId) -> None:
        """Abort the open turns of a conversation, whose head is locked, with their durable text."""
        while opened := await stream_store.list_open(tx, caller.tenant_id, conversation_id, limit=_ABORTED_AT_ONCE):
            turn_ids = [TurnId(row.id) for row, _ in opened]
            await self.abort_these(caller, tx, conversation_id, turn_ids, reason=TRASHED)

    async def abort_these(
        self,
        caller: Caller,
        tx: Transaction,
        conversation_id: ConversationId,
        turn_ids: Sequence[TurnId],
        *,
        reason: str,
    ) -> None:
        """Abort those turns of a conversation, whose head is locked, that are open, with their durable text."""
        opened: list[TurnId] = []
        for turn_id in sorted(turn_ids):
            stream = await stream_store.lock_stream(tx, caller.tenant_id, turn_id)
            if stream is not None and stream.conversation_id == conversation_id:
                opened.append(turn_id)
        texts = await stream_store.read_texts(tx, caller.tenant_id, opened)
        for turn_id in opened:
            await self.abort(caller, tx, conversation_id, turn_id, parts=texts.get(turn_id, {}), reason=reason)
