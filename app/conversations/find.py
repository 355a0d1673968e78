"""Find conversations and turns, or raise NotFound. Row security hides other tenants' rows, as if absent."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from app.conversations.stores import conversation_store, expiry_store, list_store, stream_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.core.database.transactions import Transaction
from app.core.errors import Conflict, NotFound
from app.core.ids import ConversationId, TurnId, format_id
from app.tenancy.schemas import Caller

_NO_CONVERSATION = "There is no such conversation."
_TRASHED = "The conversation is in the trash. Restore it (`POST …/restore`), or delete it permanently."


async def conversation_missing(caller: Caller, tx: Transaction, conversation_id: ConversationId) -> NotFound:
    """Return the error for a conversation that was not found: it does not exist, or is in the trash."""
    if await expiry_store.list_trashed(tx, caller.tenant_id, [conversation_id]):
        return NotFound("conversation_trashed", _TRASHED)
    return NotFound("not_found", _NO_CONVERSATION)


async def refuse_trashed(
    caller: Caller, tx: Transaction, *, conversation_id: UUID | None, project: str, external_id: str | None
) -> None:
    """Raise Conflict `conversation_trashed` if a conversation with this id or external id is in the trash."""
    found = await list_store.find_trashed(
        tx, caller.tenant_id, conversation_id=conversation_id, project=project, external_id=external_id
    )
    if found is not None:
        raise Conflict("conversation_trashed", _TRASHED, extra={"conversation_id": format_id(found.id)})


async def get_conversation(caller: Caller, tx: Transaction, conversation_id: ConversationId) -> ConversationRow:
    """Return a conversation. Raises NotFound."""
    row = await conversation_store.find_conversation(tx, caller.tenant_id, conversation_id)
    if row is None:
        raise await conversation_missing(caller, tx, conversation_id)
    return row


async def get_first_conversation(caller: Caller, tx: Transaction, ids: Sequence[UUID]) -> ConversationRow:
    """Return the conversation of the first id, which an idempotent request stored. Raises NotFound."""
    return await get_conversation(caller, tx, ConversationId(ids[0]))


async def get_rev(caller: Caller, tx: Transaction, conversation_id: ConversationId) -> int:
    """Return the rev of a conversation. Raises NotFound."""
    rev = await conversation_store.find_rev(tx, caller.tenant_id, conversation_id)
    if rev is None:
        raise await conversation_missing(caller, tx, conversation_id)
    return rev


async def lock_conversation(caller: Caller, tx: Transaction, conversation_id: ConversationId) -> ConversationRow:
    """Return a conversation, locked until the transaction ends. Raises NotFound."""
    row = await conversation_store.lock_conversation(tx, caller.tenant_id, conversation_id)
    if row is None:
        raise await conversation_missing(caller, tx, conversation_id)
    return row


async def get_turn(caller: Caller, tx: Transaction, conversation_id: ConversationId, turn_id: TurnId) -> TurnRow:
    """Return a turn of a conversation. Raises NotFound."""
    row = await conversation_store.find_turn(tx, caller.tenant_id, conversation_id, turn_id)
    if row is None:
        raise turn_missing()
    return row


class LiveTurn(NamedTuple):
    """The seq and the position of a live turn."""

    seq: int
    position: int


async def get_live_turn(caller: Caller, tx: Transaction, conversation_id: ConversationId, turn_id: TurnId) -> LiveTurn:
    """Return a live turn. Raises NotFound for an unknown turn, Conflict for a superseded one."""
    row = await conversation_store.find_turn(tx, caller.tenant_id, conversation_id, turn_id)
    if row is None or row.status != "committed" or row.seq is None or row.position is None:
        raise turn_missing()
    if row.superseded_by is not None:
        raise Conflict(
            "already_superseded",
            "The turn has been superseded; use the id of the turn that replaced it.",
            extra={"superseded_by": format_id(row.superseded_by)},
        )
    return LiveTurn(row.seq, row.position)


def turn_missing() -> NotFound:
    """Return the error for a turn that the conversation does not have."""
    return NotFound("not_found", "There is no such turn in this conversation.")


async def get_partial_turn(
    caller: Caller, tx: Transaction, conversation_id: ConversationId, turn_id: TurnId
) -> TurnRow:
    """Return a turn of a conversation; an open turn with the durable part of its content.

    A pending turn that already has its content (a message of an exchange) is returned unchanged.
    """
    row = await get_turn(caller, tx, conversation_id, turn_id)
    if row.status != "pending" or row.content is not None:
        return row
    texts = (await stream_store.read_texts(tx, caller.tenant_id, [row.id])).get(row.id, {})
    return replace(row, content=json.dumps(texts.get("content", ""), ensure_ascii=False))
