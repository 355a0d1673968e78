"""Retention: erase turns that a summary covers, in conversations that do not keep them.

Invariants: a step is one bounded transaction under the lock of the conversation's head. It erases only positions that
summaries cover without a gap from the first position on, and moves the erased position in the same transaction. Lines
of highlights quote turns, so they are deleted with their turns; a model's summary is never changed. Every step can be
repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from app.conversations.derived_titles import DerivedTitles
from app.conversations.events import EventPublisher
from app.conversations.find import get_conversation, lock_conversation
from app.conversations.responses import store as response_store
from app.conversations.schemas.conversations import Retention
from app.conversations.schemas.summaries import SummaryKind
from app.conversations.schemas.titles import TitleSource
from app.conversations.stores import retention_store, summary_store
from app.conversations.stores.conversation_store import ConversationRow
from app.conversations.stores.retention_store import DueTurn
from app.conversations.stores.summary_store import SummaryRow
from app.conversations.summaries.invalidation import covered_through
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId
from app.core.outbox import EventType
from app.tenancy.schemas import Caller


@dataclass(frozen=True, slots=True)
class Retained:
    """The result of a step: the erased turns, the position through which all are erased, whether more is left to do."""

    turn_ids: Sequence[UUID]
    swept: int
    more: bool


_NOTHING = Retained((), 0, more=False)


class RetentionEraser:
    """Erases turns in steps, in the caller's transactions."""

    def __init__(self, *, publisher: EventPublisher, titles: DerivedTitles, without_summary: bool) -> None:
        """`without_summary`: highlights count as a summary, and are deleted with their turns."""
        self._publisher = publisher
        self._titles = titles
        self._without_summary = without_summary

    async def begin(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> int | None:
        """Return the position after which steps begin; None if the conversation keeps its turns. Locks nothing."""
        head = await get_conversation(caller, tx, conversation_id)
        match Retention(head.retention):
            case Retention.FULL:
                return None
            case Retention.EPHEMERAL if await retention_store.any_salted(
                tx, caller.tenant_id, conversation_id, through=head.erased_position
            ):
                return 0  # it was audit_only before
            case _:
                return head.erased_position

    async def preview(
        self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId, limit: int
    ) -> tuple[Retention, Sequence[DueTurn]]:
        """Return the retention of a conversation, and up to `limit` turns that it would erase now. Changes nothing."""
        head = await get_conversation(caller, tx, conversation_id)
        retention = Retention(head.retention)
        after = await self.begin(caller, tx, conversation_id=conversation_id)
        if after is None:
            return retention, []
        through = max(await self._target(caller, tx, head), head.erased_position)
        return retention, await self._due(caller, tx, head, retention, after=after, through=through, limit=limit)

    async def step(
        self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId, swept: int, limit: int
    ) -> Retained:
        """Erase up to `limit` turns.

        All turns through position `swept` are already erased as the retention requires.
        """
        head = await lock_conversation(caller, tx, conversation_id)
        # Read under the lock: the retention may have changed while this transaction waited.
        retention = Retention(await retention_store.find_retention(tx, caller.tenant_id, conversation_id))
        if retention is Retention.FULL:
            return _NOTHING
        if swept < head.erased_position:
            left = await self._due(caller, tx, head, retention, after=swept, through=head.erased_position, limit=limit)
            if left:
                await self._empty(caller, tx, head, retention, left, (), through=head.erased_position)
                swept = left[-1].position - 1 if len(left) == limit else head.erased_position
                return Retained([turn.id for turn in left], swept, more=True)
        target = await self._target(caller, tx, head)
        due = await self._due(caller, tx, head, retention, after=head.erased_position, through=target, limit=limit)
        through = max(_reach(due, target, limit), head.erased_position)
        drafts = await retention_store.list_drafts(
            tx, caller.tenant_id, conversation_id, through=through, limit=limit - len(due)
        )
        if due or drafts or through > head.erased_position:
            await self._empty(caller, tx, head, retention, due, drafts, through=through)
        return Retained([*(turn.id for turn in due), *drafts], through, more=len(due) + len(drafts) >= limit)

    async def _target(self, caller: Caller, tx: Transaction, head: ConversationRow) -> int:
        """Return the position through which turns may be erased: as far as summaries that count reach without a gap."""
        valid = await summary_store.list_valid(tx, caller.tenant_id, ConversationId(head.id))
        covering = [row for row in valid if self._counts(row)]
        target = covered_through(covering, erased_position=head.erased_position)
        # Highlights contain nothing if callers have erased all of their turns.
        for row in valid:
            if row.from_position <= target + 1 <= row.to_position and not await summary_store.list_unerased(
                tx, caller.tenant_id, ConversationId(head.id), after=target, through=row.to_position
            ):
                covering.append(row)
                target = covered_through(covering, erased_position=head.erased_position)
        return target

    def _counts(self, row: SummaryRow) -> bool:
        return self._without_summary or row.kind == SummaryKind.SUMMARY.value

    async def _due(
        self,
        caller: Caller,
        tx: Transaction,
        head: ConversationRow,
        retention: Retention,
        *,
        after: int,
        through: int,
        limit: int,
    ) -> list[DueTurn]:
        return await retention_store.list_due(
            tx,
            caller.tenant_id,
            ConversationId(head.id),
            after=after,
            through=through,
            with_salted=retention is Retention.EPHEMERAL,
            limit=limit,
        )

    async def _empty(
        self,
        caller: Caller,
        tx: Transaction,
        head: ConversationRow,
        retention: Retention,
        due: Sequence[DueTurn],
        drafts: Sequence[UUID],
        *,
        through: int,
    ) -> None:
        conversation_id, rev = ConversationId(head.id), head.rev + 1
        erased_ids = [*(turn.id for turn in due), *drafts]
        keep_salt = retention is Retention.AUDIT_ONLY
        await retention_store.empty(tx, caller.tenant_id, erased_ids, keep_salt=keep_salt, rev=rev)
        await response_store.delete(tx, caller.tenant_id, erased_ids)
        await self._drop_lines(caller, tx, conversation_id, erased_ids, through=through)
        await retention_store.update_after_retention(
            tx,
            caller.tenant_id,
            conversation_id,
            position=through,
            # Superseded turns are not counted in the head.
            tokens=sum(turn.tokens for turn in due if turn.live),
            rev=rev,
        )
        # A title that a model wrote is kept, as a model's summaries are.
        left = replace(head, erased_position=through)
        await self._titles.invalidate(caller, tx, left, removed_ids=erased_ids, sources=[TitleSource.QUESTION])
        self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=rev)
        self._publisher.outbox.record(
            tx, caller.tenant_id, EventType.TURN_ERASED, erased_ids, conversation_id=conversation_id
        )

    async def _drop_lines(
        self,
        caller: Caller,
        tx: Transaction,
        conversation_id: ConversationId,
        erased_ids: Sequence[UUID],
        *,
        through: int,
    ) -> None:
        """Delete the lines of erased turns from highlights, also from replaced ones that can become valid."""
        highlights = await summary_store.list_highlights(tx, caller.tenant_id, conversation_id, through=through)
        # Valid highlights whose turns are all erased are kept without lines; else their range would be a gap.
        over = [
            row.id
            for row in highlights
            if row.to_position <= through and (self._without_summary or row.replaced_by is not None or row.lines)
        ]
        if over:
            await summary_store.delete(tx, caller.tenant_id, over)
        emptied = set(erased_ids)
        for row in highlights:
            if row.to_position > through:
                lines = [line for line in row.lines if line.turn_id not in emptied]
                await summary_store.set_lines(tx, caller.tenant_id, row.id, lines=lines, from_position=through + 1)


def _reach(due: Sequence[DueTurn], target: int, limit: int) -> int:
    """Return the position through which everything is erased after erasing `due`."""
    if len(due) < limit:
        return target
    return due[-1].position if due[-1].live else due[-1].position - 1
