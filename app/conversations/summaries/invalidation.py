"""Invalidate summaries when their turns change: everything that is derived from a changed turn is deleted with it.

Runs in the transaction that changes the turns, with the conversation's head locked. A model's summary is deleted
completely, and the summaries that it had replaced become valid again. Highlights lose the lines of the turn. The
summary mark moves back to the first gap between the remaining summaries, and a job fills the gap.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from uuid import UUID

from app.conversations.schemas.conversations import Compaction
from app.conversations.schemas.summaries import RefusedFor, SummaryKind, ValidSummary
from app.conversations.stores import summary_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.stores.summary_store import SummaryRow
from app.conversations.views import summary_text
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId
from app.core.jobs import NewJob
from app.index.schemas import EntryKind
from app.index.service import SearchIndex
from app.tenancy.schemas import Caller

COMPACT_JOB = "conversation.compact"
"""Job kind: make the summaries that are due in a conversation; the subject is its id."""

RETAIN_JOB = "conversation.retain"
"""Job kind: erase the turns that a conversation's retention does not keep; the subject is its id."""


def compact_job(conversation_id: UUID, *, priority: int = 0) -> NewJob:
    """Return the job that compacts a conversation; at most one is queued at a time."""
    return NewJob(COMPACT_JOB, subject_ids=[conversation_id], dedupe_key=str(conversation_id), priority=priority)


def retain_job(conversation_id: UUID) -> NewJob:
    """Return the job that applies a conversation's retention; at most one is queued at a time."""
    return NewJob(RETAIN_JOB, subject_ids=[conversation_id], dedupe_key=str(conversation_id))


def is_due(head: ConversationRow, *, turns: int, tokens: int) -> bool:
    """Return whether the turns and tokens without a summary exceed the trigger of the compaction policy."""
    policy = Compaction.model_validate(head.compaction)
    return policy.strategy != "never" and (
        turns - head.summarized_turns > policy.trigger_turns or tokens - head.summarized_tokens > policy.trigger_tokens
    )


async def invalidate(
    caller: Caller,
    tx: Transaction,
    index: SearchIndex,
    head: ConversationRow,
    *,
    changed: Sequence[tuple[UUID, int]],
    and_after: bool,
    recount: bool = False,
    is_new: bool = False,
    rev: int,
) -> bool:
    """Delete what is derived from changed turns (id, position) from the summaries. Return whether any was deleted.

    `and_after`: all turns after the first changed one are superseded too. `recount`: the number of tombstones has
    decreased, at any position. `is_new`: the changed turns were stored between other turns, so highlights of these
    lack them too.
    """
    first = min((position for _, position in changed), default=0)
    if not changed:
        return False
    conversation_id = ConversationId(head.id)
    # Look after the mark too: if a summary was deleted, the summaries after that gap are still valid.
    summaries = await summary_store.list_from_position(tx, caller.tenant_id, conversation_id, position=first)
    if not summaries and first > head.summarized_position and not recount:
        return False
    places, ids = {position for _, position in changed}, {turn_id for turn_id, _ in changed}
    deleted = {
        row.id for row in summaries if and_after or _uses_positions(row, places) or (is_new and _is_around(row, places))
    }
    for row in summaries:
        if row.id not in deleted and any(line.turn_id in ids for line in row.lines):
            left = [line for line in row.lines if line.turn_id not in ids]
            await summary_store.set_lines(tx, caller.tenant_id, row.id, lines=left)
    if deleted:
        await summary_store.delete(tx, caller.tenant_id, sorted(deleted))
        restored = await summary_store.restore(tx, caller.tenant_id, replaced_by=sorted(deleted))
        await index.erase_entries(caller, tx, kind=EntryKind.SUMMARY, source_ids=sorted(deleted))
        await index.restore(caller, tx, kind=EntryKind.SUMMARY, source_ids=restored)
    if and_after and first <= head.erased_position:  # turns that are stored there from now on were never erased
        head = replace(head, erased_position=first - 1)
    await update_summary_mark(caller, tx, head, rev=rev)
    return bool(deleted)


async def list_retained_tombstones(
    caller: Caller, tx: Transaction, head: ConversationRow, rows: Sequence[TurnRow]
) -> list[tuple[UUID, int]]:
    """Return the tombstones (id, position) whose content is still in a model's summary made before their erasure."""
    emptied = [(row, row.position) for row in rows if row.position and row.position <= head.erased_position]
    if not emptied:
        return []
    first = min(position for _, position in emptied)
    summaries = await summary_store.list_from_position(tx, caller.tenant_id, ConversationId(head.id), position=first)
    return [
        (row.id, position)
        for row, position in emptied
        if any(summary.rev < row.rev and _uses_positions(summary, {position}) for summary in summaries)
    ]


def _uses_positions(row: SummaryRow, positions: Collection[int]) -> bool:
    """Return whether a summary was written from turns at one of these positions.

    False for highlights, which are only lines.
    """
    return row.kind == SummaryKind.SUMMARY.value and _is_around(row, positions)


def _is_around(row: SummaryRow, positions: Collection[int]) -> bool:
    return any(row.from_position <= position <= row.to_position for position in positions)


async def update_summary_mark(caller: Caller, tx: Transaction, head: ConversationRow, *, rev: int) -> int:
    """Store in the head how far summaries reach without a gap, at least through the erased position. Return it."""
    conversation_id = ConversationId(head.id)
    valid = await summary_store.list_valid(tx, caller.tenant_id, conversation_id)
    position = covered_through(valid, erased_position=head.erased_position)
    turns, tokens, through = await summary_store.measure_through(
        tx, caller.tenant_id, conversation_id, position=position
    )
    await summary_store.update_mark(
        tx,
        caller.tenant_id,
        conversation_id,
        position=position,
        through=through,
        turns=turns,
        tokens=tokens,
        erased_position=head.erased_position,
        rev=rev,
    )
    return position


def covered_through(valid: Sequence[SummaryRow | ValidSummary], *, erased_position: int) -> int:
    """Return the position through which summaries reach without a gap. Erased positions need no summary."""
    position = erased_position
    for row in sorted(valid, key=lambda row: row.from_position):
        if row.from_position <= position + 1:
            position = max(position, row.to_position)
    return position


def valid_summary(row: SummaryRow) -> ValidSummary:
    """Return a valid summary, for contexts and compaction."""
    return ValidSummary(
        id=row.id,
        kind=SummaryKind(row.kind),
        level=row.level,
        from_position=row.from_position,
        to_position=row.to_position,
        actors=row.actors,
        text=summary_text(row),
        abstract=row.abstract,
        lines=row.lines,
        tokens=row.tokens,
        refused_by=row.model if row.kind == SummaryKind.HIGHLIGHTS.value else None,
        refused_for=None if row.refused_for is None else RefusedFor(row.refused_for),
        doubtful=row.doubtful,
        attempts=row.attempts,
        retry_at=row.retry_at,
    )
