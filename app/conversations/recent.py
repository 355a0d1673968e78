"""The newest turns of a conversation, as contexts see them."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.conversations import store, summary_store
from app.conversations.covering import covered_through, standing_summary
from app.conversations.finding import get_conversation
from app.conversations.schemas import Participant
from app.conversations.store import TurnRow
from app.conversations.summary_schemas import StandingSummary
from app.conversations.views import canonical_turn
from app.core.db import Transaction
from app.core.ids import ConversationId
from app.formats.schemas import CanonicalTurn
from app.tenancy.schemas import Caller


@dataclass(frozen=True, slots=True)
class Recent:
    """The newest live turns of a conversation, oldest first, and the seq it stood at.

    `summaries` stand side by side from the first turn on, for those of the beginning. `gap`: of these, some were erased
    by the conversation's retention and no summary stands for them; it has erased all through `erased_position`.
    """

    turns: Sequence[CanonicalTurn]
    seq: int
    participants: Sequence[Participant]
    more_before: bool
    summaries: Sequence[StandingSummary] = ()
    gap: bool = False
    erased_position: int = 0
    owner: str | None = None


async def recent_turns(
    caller: Caller,
    tx: Transaction,
    conversation_id: ConversationId,
    *,
    limit: int,
    actors: Sequence[str] | None,
    most_bytes: int,
    most_uncovered: int = 0,
    before: int | None = None,
) -> Recent:
    """The newest live turns, of `most_bytes` at most. `actors` narrows; results of tools stay with their calls.

    With `before`, those that stand before this position, as if nothing stood behind. With `most_uncovered`, what
    summaries stand for comes along, and all turns that none stands for, up to so many.
    """
    head = await get_conversation(caller, tx, conversation_id)
    last = head.last_seq if before is None else min(head.last_seq, before - 1)
    summaries: list[StandingSummary] = []
    gap = False
    if most_uncovered and head.summarized_position:
        limit = max(limit, min(most_uncovered, head.turn_count - head.summarized_turns))
        rows = await summary_store.list_standing(tx, caller.tenant_id, conversation_id)
        summaries = [standing_summary(row) for row in rows if row.to_position <= head.summarized_position]
        gap = covered_through(rows, erased_position=0) < head.erased_position
    found = await store.list_turns(
        tx,
        caller.tenant_id,
        conversation_id,
        newest_first=True,
        after=None,
        # what was appended between the two statements belongs to the next context
        before=last + 1,
        actors=actors,
        limit=limit + 1,
        most_bytes=most_bytes,
        with_erased=False,
    )
    recent = found.rows[:limit]
    if actors is not None and recent:
        recent = await _with_answers(caller, tx, conversation_id, recent, last, most_bytes)
    participants = [Participant.model_validate(item) for item in head.participants]
    turns = [canonical_turn(row) for row in reversed(recent)]
    more_before = found.cut or len(found.rows) > limit
    return Recent(turns, last, participants, more_before, summaries, gap, head.erased_position, head.owner)


async def _with_answers(
    caller: Caller,
    tx: Transaction,
    conversation_id: ConversationId,
    rows: Sequence[TurnRow],
    last_seq: int,
    most_bytes: int,
) -> list[TurnRow]:
    """The turns, newest first, with those that answer their calls, whoever ran the tool."""
    calls = [call.id for row in rows for call in canonical_turn(row).tool_calls]
    if not calls:
        return list(rows)
    answers = await store.list_answers(
        tx,
        caller.tenant_id,
        conversation_id,
        call_ids=calls,
        after=min(row.position or 0 for row in rows),
        before=last_seq + 1,
        limit=len(calls),
        most_bytes=most_bytes,
    )
    found = {row.id: row for row in (*rows, *answers.rows)}
    return sorted(found.values(), key=lambda row: -(row.position or 0))
