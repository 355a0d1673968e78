"""Finds a conversation, or says that there is none. Absent and foreign are the same: row security hides the latter."""

import json
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from app.conversations.stores import conversation_store, stream_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.core.database.transactions import Transaction
from app.core.errors import Conflict, NotFound
from app.core.ids import ConversationId, TurnId, format_id
from app.tenancy.schemas import Caller

_NO_CONVERSATION = "There is no such conversation."


async def get_conversation(caller: Caller, tx: Transaction, conversation_id: ConversationId) -> ConversationRow:
    """A conversation; NotFound without it."""
    row = await conversation_store.find_conversation(tx, caller.tenant_id, conversation_id)
    if row is None:
        raise NotFound("not_found", _NO_CONVERSATION)
    return row


async def get_first_conversation(caller: Caller, tx: Transaction, ids: Sequence[UUID]) -> ConversationRow:
    """Return the conversation of the first id, which an idempotent request stored. Raises NotFound."""
    return await get_conversation(caller, tx, ConversationId(ids[0]))


async def get_rev(caller: Caller, tx: Transaction, conversation_id: ConversationId) -> int:
    """The rev of a conversation; NotFound without it."""
    rev = await conversation_store.find_rev(tx, caller.tenant_id, conversation_id)
    if rev is None:
        raise NotFound("not_found", _NO_CONVERSATION)
    return rev


async def lock_conversation(caller: Caller, tx: Transaction, conversation_id: ConversationId) -> ConversationRow:
    """A conversation, held until the transaction ends; NotFound without it."""
    row = await conversation_store.lock_conversation(tx, caller.tenant_id, conversation_id)
    if row is None:
        raise NotFound("not_found", _NO_CONVERSATION)
    return row


async def get_turn(caller: Caller, tx: Transaction, conversation_id: ConversationId, turn_id: TurnId) -> TurnRow:
    """A turn of a conversation; NotFound without it."""
    row = await conversation_store.find_turn(tx, caller.tenant_id, conversation_id, turn_id)
    if row is None:
        raise turn_missing()
    return row


async def get_live_turn(
    caller: Caller, tx: Transaction, conversation_id: ConversationId, turn_id: TurnId
) -> tuple[int, int]:
    """The seq and the position of a live turn. NotFound without it, Conflict where another stands in its place."""
    row = await conversation_store.find_turn(tx, caller.tenant_id, conversation_id, turn_id)
    if row is None or row.status != "committed" or row.seq is None or row.position is None:
        raise turn_missing()
    if row.superseded_by is not None:
        raise Conflict(
            "already_superseded",
            "The turn has been superseded; name the one that stands in its place.",
            extra={"superseded_by": format_id(row.superseded_by)},
        )
    return row.seq, row.position


def turn_missing() -> NotFound:
    """The error where a conversation has no such turn."""
    return NotFound("not_found", "There is no such turn in this conversation.")


async def get_partial_turn(
    caller: Caller, tx: Transaction, conversation_id: ConversationId, turn_id: TurnId
) -> TurnRow:
    """A turn of a conversation; one that is being written has what is durable of its content.

    A pending turn that has its content already (a message of an exchange) is given as it is.
    """
    row = await get_turn(caller, tx, conversation_id, turn_id)
    if row.status != "pending" or row.content is not None:
        return row
    texts = (await stream_store.read_texts(tx, caller.tenant_id, [row.id])).get(row.id, {})
    return replace(row, content=json.dumps(texts.get("content", ""), ensure_ascii=False))
