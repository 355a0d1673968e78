"""The newest turns of a conversation, as contexts see them."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.conversations import store
from app.conversations.finding import get_conversation
from app.conversations.schemas import Participant
from app.conversations.store import TurnRow
from app.conversations.views import canonical_turn
from app.core.db import Transaction
from app.core.ids import ConversationId
from app.formats.schemas import CanonicalTurn
from app.tenancy.schemas import Caller


@dataclass(frozen=True, slots=True)
class Recent:
    """The newest live turns of a conversation, oldest first, and the seq it stood at."""

    turns: Sequence[CanonicalTurn]
    seq: int
    participants: Sequence[Participant]
    more_before: bool


async def recent_turns(
    caller: Caller,
    tx: Transaction,
    conversation_id: ConversationId,
    *,
    limit: int,
    actors: Sequence[str] | None,
    most_bytes: int,
) -> Recent:
    """The newest live turns, of `most_bytes` at most. `actors` narrows; results of tools stay with their calls."""
    head = await get_conversation(caller, tx, conversation_id)
    found = await store.list_turns(
        tx,
        caller.tenant_id,
        conversation_id,
        newest_first=True,
        after=None,
        # what was appended between the two statements belongs to the next context
        before=head.last_seq + 1,
        actors=actors,
        limit=limit + 1,
        most_bytes=most_bytes,
        with_erased=False,
    )
    recent = found.rows[:limit]
    if actors is not None and recent:
        recent = await _with_answers(caller, tx, conversation_id, recent, head.last_seq, most_bytes)
    participants = [Participant.model_validate(item) for item in head.participants]
    turns = [canonical_turn(row) for row in reversed(recent)]
    return Recent(turns, head.last_seq, participants, more_before=found.cut or len(found.rows) > limit)


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
