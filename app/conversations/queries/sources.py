"""Turns as sources of derived data such as facts: read in the order of their seq, locked while that data is written.

The head stores up to which seq facts were extracted, and whether facts are derived from its turns. From this, a
revision knows whether facts must be withdrawn, and enqueues the jobs in its own transaction.
"""

from collections.abc import Sequence
from uuid import UUID

from app.conversations.events import EventPublisher
from app.conversations.find import get_conversation, get_live_turn, require_reachable
from app.conversations.policies import facts_again_job, facts_job
from app.conversations.queries import source_store
from app.conversations.schemas.conversations import Facts
from app.conversations.schemas.participants import Participant
from app.conversations.schemas.sources import LockedConversation, LockedTurn, ReadByRules, TextTurn, Unread
from app.conversations.stores import conversation_store, expiry_store, turn_list_store, turn_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.views import canonical_turn
from app.core.database.transactions import Database, Transaction
from app.core.ids import ConversationId, TurnId
from app.core.jobs import JobQueue
from app.formats.schemas import Kind
from app.tenancy.schemas import Caller

_MAX_BYTES = 8 * 2**20


class FactSources:
    """The locks and reads of fact writes, and their marks in the heads, in the caller's transactions."""

    def __init__(self, *, jobs: JobQueue, publisher: EventPublisher) -> None:
        self._jobs = jobs
        self._publisher = publisher

    async def places_of(self, caller: Caller, tx: Transaction, *, turn_ids: Sequence[UUID]) -> dict[UUID, UUID]:
        """Return the conversation of each of these turns that exists."""
        rows = await conversation_store.find_turns(tx, caller.tenant_id, turn_ids, include_content=False)
        return {row.id: row.conversation_id for row in rows.values()}

    async def hidden(self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID]) -> set[UUID]:
        """Return which of these conversations are in the trash or deleted: data derived only from them is hidden."""
        if not conversation_ids:
            return set()
        return await expiry_store.list_deleting(tx, caller.tenant_id, conversation_ids)

    async def lock(
        self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID]
    ) -> dict[UUID, LockedConversation]:
        """Lock those conversations that exist until the transaction ends; always before their turns.

        Conversations outside of the caller's restriction are left out.
        """
        heads: dict[UUID, LockedConversation] = {}
        for conversation_id in sorted(set(conversation_ids)):
            await conversation_store.lock_conversation(tx, caller.tenant_id, ConversationId(conversation_id))
            # a new statement: the one that waited for the lock sees the owner from before the wait
            head = await conversation_store.find_conversation(tx, caller.tenant_id, ConversationId(conversation_id))
            if head is not None and caller.reaches(head.project, head.owner):
                heads[conversation_id] = LockedConversation(
                    head.owner, head.project, _participants(head), head.rev, head.facts_seq, _by_rules(head)
                )
        return heads

    async def has_same_policy(self, caller: Caller, tx: Transaction, unread: Unread) -> bool:
        """Return whether a locked conversation has the same owner and facts policy as when it was read."""
        # a new statement: the one that waited for the lock sees the row from before the wait
        head = await get_conversation(caller, tx, ConversationId(unread.conversation_id))
        policy = Facts.model_validate(head.facts)
        before = (unread.enabled, unread.redact, unread.owner)
        return (policy.enabled, policy.redact, head.owner) == before

    async def lock_turns(self, caller: Caller, tx: Transaction, *, turn_ids: Sequence[UUID]) -> dict[UUID, LockedTurn]:
        """Lock turns of locked conversations; return those that are live and not erased."""
        return await turn_store.lock_sources(tx, caller.tenant_id, turn_ids)

    async def record_reading(
        self,
        caller: Caller,
        tx: Transaction,
        conversation_id: ConversationId,
        *,
        read_through: int | None,
        has_facts: bool,
        rev: int | None,
    ) -> None:
        """Write the progress of fact extraction to a locked head, and publish the change if facts were recorded.

        `has_facts`: facts are derived from its turns. `rev`: the next rev, with which facts were recorded; None if
        there are none.
        """
        await source_store.update_facts_mark(
            tx, caller.tenant_id, conversation_id, read_through=read_through, has_facts=has_facts, rev=rev
        )
        if rev is not None:
            self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=rev)

    async def record_by_rules(
        self,
        caller: Caller,
        tx: Transaction,
        conversation_id: ConversationId,
        by_rules: ReadByRules | None,
        *,
        delay_s: float | None,
    ) -> None:
        """Write to a locked head which turns only rules have read; None for none.

        `delay_s`: enqueue the job that reads them again after this time, unless it waits already.
        """
        await source_store.update_facts_by_rules(tx, caller.tenant_id, conversation_id, by_rules)
        if delay_s is not None:
            await self._jobs.enqueue(tx, caller.tenant_id, [facts_again_job(conversation_id, delay_s=delay_s)])


class FactSourceService:
    """Reads the turns that facts are extracted from."""

    def __init__(self, database: Database, *, jobs: JobQueue) -> None:
        self._database = database
        self._jobs = jobs

    async def unread(
        self, caller: Caller, conversation_id: ConversationId, *, through: int | None, limit: int, again: bool = False
    ) -> Unread:
        """Return the next turns to extract facts from, up to a seq. Raises NotFound.

        `again`: those that only rules have read.
        """
        async with self._database.transaction(caller.tenant_id, read_only=True, repeatable_read=True) as tx:
            head = await get_conversation(caller, tx, conversation_id)
            by_rules = _by_rules(head)
            after = by_rules.first - 1 if again and by_rules is not None else head.facts_seq
            if again:
                through = by_rules.last if by_rules is not None else 0
            reach = head.last_seq if through is None else min(through, head.last_seq)
            rows: list[TurnRow] = []
            if reach > after:
                turns = await turn_list_store.list_by_seq(
                    tx,
                    caller.tenant_id,
                    conversation_id,
                    after=after,
                    through=reach,
                    limit=limit,
                    max_bytes=_MAX_BYTES,
                )
                rows = turns.rows
        return _unread(head, rows, after=after, reach=reach, again=again)

    async def seq_of(self, caller: Caller, conversation_id: ConversationId, *, turn_id: TurnId) -> int:
        """Return the seq of a live turn. Raises NotFound, and Conflict if the turn is superseded."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            await get_conversation(caller, tx, conversation_id)
            return (await get_live_turn(caller, tx, conversation_id, turn_id)).seq

    async def enqueue(self, caller: Caller, conversation_id: ConversationId) -> None:
        """Enqueue the job that continues the fact extraction of a conversation."""
        async with self._database.transaction(caller.tenant_id) as tx:
            await require_reachable(caller, tx, conversation_id)
            await self._jobs.enqueue(tx, caller.tenant_id, [facts_job(conversation_id)])


def _by_rules(head: ConversationRow) -> ReadByRules | None:
    if head.facts_rules_from is None or head.facts_rules_through is None:
        return None
    return ReadByRules(head.facts_rules_from, head.facts_rules_through, head.facts_rules_tries)


def _unread(head: ConversationRow, rows: Sequence[TurnRow], *, after: int, reach: int, again: bool) -> Unread:
    policy = Facts.model_validate(head.facts)
    seqs = [row.seq for row in rows if row.seq is not None]
    return Unread(
        conversation_id=head.id,
        owner=head.owner,
        project=head.project,
        participants=_participants(head),
        enabled=policy.enabled,
        redact=policy.redact,
        after=after,
        reach=max(seqs, default=max(reach, after)),
        turns=[
            TextTurn(row.id, row.seq or 0, canonical_turn(row), row.occurred_at, row.content_hash or b"")
            for row in rows
            if _has_statements(row)
        ],
        by_rules=_by_rules(head),
        again=again,
    )


def _has_statements(row: TurnRow) -> bool:
    live = row.status == "committed" and row.superseded_by is None and row.erased_at is None
    return live and row.origin_turn_id is None and row.kind != Kind.COMPACTION.value


def _participants(head: ConversationRow) -> list[Participant]:
    return [Participant.model_validate(item) for item in head.participants]
