"""Turns as sources of what is derived from them above: read in the order of their seq, held while it is written.

How far a conversation was looked through, and whether anything rests on its turns, stands in its head. So a revision
knows whether somebody has to be told, and enqueues that in its own transaction.
"""

from collections.abc import Sequence
from uuid import UUID

from app.conversations.events import EventPublisher
from app.conversations.find import get_conversation, get_live_turn
from app.conversations.policies import facts_job
from app.conversations.schemas.conversations import Facts
from app.conversations.schemas.participants import Participant
from app.conversations.schemas.sources import LockedConversation, SourceTurn, TextTurn, Unread
from app.conversations.stores import conversation_store, expiry_store, turn_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.views import canonical_turn
from app.core.database.transactions import Database, Transaction
from app.core.ids import ConversationId, TurnId
from app.core.jobs import JobQueue
from app.formats.schemas import Kind
from app.tenancy.schemas import Caller

_MAX_BYTES = 8 * 2**20


class Sources:
    """What extraction reads of conversations, and what it writes in their heads."""

    def __init__(self, database: Database, *, jobs: JobQueue, publisher: EventPublisher) -> None:
        self._database = database
        self._jobs = jobs
        self._publisher = publisher

    async def unread(
        self, caller: Caller, conversation_id: ConversationId, *, through: int | None, limit: int
    ) -> Unread:
        """The next turns to look through, up to a seq. NotFound without the conversation."""
        async with self._database.transaction(caller.tenant_id, read_only=True, repeatable_read=True) as tx:
            head = await get_conversation(caller, tx, conversation_id)
            last = head.last_seq if through is None else min(through, head.last_seq)
            rows: list[TurnRow] = []
            if last > head.facts_seq:
                rows = await turn_store.list_in_order(
                    tx,
                    caller.tenant_id,
                    conversation_id,
                    after=head.facts_seq,
                    through=last,
                    limit=limit,
                    max_bytes=_MAX_BYTES,
                )
        return _unread(head, rows, reach=last)

    async def seq_of(self, caller: Caller, conversation_id: ConversationId, *, turn_id: TurnId) -> int:
        """The seq of a live turn. NotFound without it, Conflict where another stands in its place."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            await get_conversation(caller, tx, conversation_id)
            seq, _ = await get_live_turn(caller, tx, conversation_id, turn_id)
        return seq

    async def places_of(self, caller: Caller, tx: Transaction, *, turn_ids: Sequence[UUID]) -> dict[UUID, UUID]:
        """The conversation of each of these turns, of those that there are."""
        rows = await conversation_store.find_turns(tx, caller.tenant_id, turn_ids, include_content=False)
        return {row.id: row.conversation_id for row in rows.values()}

    async def hidden(self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID]) -> set[UUID]:
        """Those of these conversations that are being deleted: what rests on them alone is gone for everybody."""
        if not conversation_ids:
            return set()
        return await expiry_store.list_deleting(tx, caller.tenant_id, conversation_ids)

    async def lock(
        self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID]
    ) -> dict[UUID, LockedConversation]:
        """Hold conversations until the transaction ends, of those that there are; before their turns, as everywhere."""
        heads: dict[UUID, LockedConversation] = {}
        for conversation_id in sorted(set(conversation_ids)):
            await conversation_store.lock_conversation(tx, caller.tenant_id, ConversationId(conversation_id))
            # a statement of its own: one that waited for the lock sees the owner of before it waited
            head = await conversation_store.find_conversation(tx, caller.tenant_id, ConversationId(conversation_id))
            if head is not None:
                heads[conversation_id] = LockedConversation(
                    head.owner, head.project, _participants(head), head.rev, head.facts_seq
                )
        return heads

    async def has_same_policy(self, caller: Caller, tx: Transaction, unread: Unread) -> bool:
        """Whether a locked conversation has the owner and the policy of facts that it had when it was read."""
        # a statement of its own: one that waited for the lock sees the row of before it waited
        head = await get_conversation(caller, tx, ConversationId(unread.conversation_id))
        policy = Facts.model_validate(head.facts)
        before = (unread.enabled, unread.redact, unread.owner)
        return (policy.enabled, policy.redact, head.owner) == before

    async def lock_turns(self, caller: Caller, tx: Transaction, *, turn_ids: Sequence[UUID]) -> dict[UUID, SourceTurn]:
        """Hold turns of locked conversations; gives those that are live and not erased."""
        return await turn_store.lock_sources(tx, caller.tenant_id, turn_ids)

    async def record_reading(
        self,
        caller: Caller,
        tx: Transaction,
        conversation_id: ConversationId,
        *,
        read_through: int | None,
        held: bool,
        rev: int | None,
    ) -> None:
        """Note in a locked head how far it was looked through, that something rests on its turns, and what is told.

        `rev`, the next one, is what facts were recorded with: followers are told of them. None: of none.
        """
        await turn_store.update_facts_mark(
            tx, caller.tenant_id, conversation_id, read_through=read_through, held=held, rev=rev
        )
        if rev is not None:
            self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=rev)

    async def enqueue(self, caller: Caller, conversation_id: ConversationId) -> None:
        """Let a job go on with looking through a conversation."""
        async with self._database.transaction(caller.tenant_id) as tx:
            await self._jobs.enqueue(tx, caller.tenant_id, [facts_job(conversation_id)])


def _unread(head: ConversationRow, rows: Sequence[TurnRow], *, reach: int) -> Unread:
    policy = Facts.model_validate(head.facts)
    seqs = [row.seq for row in rows if row.seq is not None]
    return Unread(
        conversation_id=head.id,
        owner=head.owner,
        project=head.project,
        participants=_participants(head),
        enabled=policy.enabled,
        redact=policy.redact,
        after=head.facts_seq,
        reach=max(seqs, default=max(reach, head.facts_seq)),
        turns=[
            TextTurn(row.id, row.seq or 0, canonical_turn(row), row.occurred_at, row.content_hash or b"")
            for row in rows
            if _speaks(row)
        ],
    )


def _speaks(row: TurnRow) -> bool:
    live = row.status == "committed" and row.superseded_by is None and row.erased_at is None
    return live and row.origin_turn_id is None and row.kind != Kind.COMPACTION.value


def _participants(head: ConversationRow) -> list[Participant]:
    return [Participant.model_validate(item) for item in head.participants]
