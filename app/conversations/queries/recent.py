"""The newest turns of a conversation, without summaries."""

from app.conversations.find import get_conversation, last_position
from app.conversations.stores import turn_list_store
from app.conversations.views import canonical_turn
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId
from app.formats.schemas import CanonicalTurn
from app.tenancy.schemas import Caller


async def recent_turns(
    caller: Caller, tx: Transaction, conversation_id: ConversationId, *, limit: int, max_bytes: int
) -> list[CanonicalTurn]:
    """Return the newest live turns with content, oldest first, up to `max_bytes`. Raises NotFound."""
    head = await get_conversation(caller, tx, conversation_id)
    turns = await turn_list_store.list_turns(
        tx,
        caller.tenant_id,
        conversation_id,
        newest_first=True,
        # turns appended between the two statements belong to the next answer
        before=last_position(head) + 1,
        limit=limit,
        max_bytes=max_bytes,
        with_erased=False,
    )
    return [canonical_turn(row) for row in reversed(turns.rows)]
