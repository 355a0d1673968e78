"""Find conversations and turns, or raise NotFound. Row security hides other tenants' rows, as if absent.

Each function also raises NotFound for a conversation outside of the caller's restriction. A read that uses none of them
calls `require_reachable` first. Queries across conversations take `caller.reach()` as a filter.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

from app.conversations.stores import conversation_store, expiry_store, list_store, stream_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.core.database.transactions import Transaction
from app.core.errors import Conflict, FieldError, NotFound
from app.core.ids import ConversationId, TurnId, format_id
from app.tenancy.schemas import Caller

ResultT = TypeVar("ResultT")

_NO_CONVERSATION = "There is no such conversation."
_TRASHED = "The conversation is in the trash. Restore it (`POST …/restore`), or delete it permanently."


async def conversation_missing(caller: Caller, tx: Transaction, conversation_id: ConversationId) -> NotFound:
    """Return the error for a conversation that was not found: it does not exist, or is in the trash."""
    if caller.restriction is not None:
        row = await list_store.find_trashed(tx, caller.tenant_id, conversation_id=conversation_id)
        is_trashed = row is not None and caller.reaches(row.project, row.owner)
    else:
        is_trashed = bool(await expiry_store.list_trashed(tx, caller.tenant_id, [conversation_id]))
    if is_trashed:
        return NotFound("conversation_trashed", _TRASHED)
    return NotFound("not_found", _NO_CONVERSATION)


async def refuse_trashed(
    caller: Caller, tx: Transaction, *, conversation_id: UUID | None, project: str, external_id: str | None
) -> None:
    """Raise Conflict `conversation_trashed` if a conversation with this id or external id is in the trash."""
    trashed = await list_store.find_trashed(
        tx, caller.tenant_id, conversation_id=conversation_id, project=project, external_id=external_id
    )
    if trashed is not None:
        _require_inside(caller, trashed)
        raise Conflict("conversation_trashed", _TRASHED, extra={"conversation_id": format_id(trashed.id)})


async def find_trashed(caller: Caller, tx: Transaction, conversation_id: ConversationId) -> ConversationRow | None:
    """Return a conversation in the trash, or None. Raises NotFound for one outside of the restriction."""
    row = await list_store.find_trashed(tx, caller.tenant_id, conversation_id=conversation_id)
    if row is not None:
        _require_inside(caller, row)
    return row


async def get_conversation(caller: Caller, tx: Transaction, conversation_id: ConversationId) -> ConversationRow:
    """Return a conversation. Raises NotFound."""
    row = await conversation_store.find_conversation(tx, caller.tenant_id, conversation_id)
    return await _reachable(caller, tx, conversation_id, row)


async def _reachable(
    caller: Caller, tx: Transaction, conversation_id: ConversationId, row: ConversationRow | None
) -> ConversationRow:
    if row is None:
        raise await conversation_missing(caller, tx, conversation_id)
    _require_inside(caller, row)
    return row


def _require_inside(caller: Caller, row: ConversationRow) -> None:
    """Raise NotFound for a conversation outside of the caller's restriction."""
    if not caller.reaches(row.project, row.owner):
        raise NotFound("not_found", _NO_CONVERSATION)


async def require_reachable(caller: Caller, tx: Transaction, conversation_id: ConversationId) -> None:
    """Raise NotFound for a conversation outside of the caller's restriction. Reads nothing if there is no restriction.

    A conversation that does not exist passes without a restriction: the statement that follows finds nothing.
    """
    if caller.restriction is not None:
        await get_conversation(caller, tx, conversation_id)


async def find_by_external_id(
    caller: Caller, tx: Transaction, project: str, external_id: str
) -> ConversationRow | None:
    """Return a conversation by its external id, or None. Raises NotFound for one outside of the restriction."""
    row = await conversation_store.find_by_external_id(tx, caller.tenant_id, project, external_id)
    if row is not None:
        _require_inside(caller, row)
    return row


def owned_by_another(pointer: str) -> Conflict:
    """Return the error for a request that names another owner than that of the conversation; `pointer` names it."""
    return Conflict(
        "conversation_owned",
        "The conversation has another owner, and an owner is set once. Use another external_id or id, or leave the"
        " owner out to use this conversation.",
        fields=[FieldError(pointer, "not the owner of this conversation")],
    )


def require_owner(stored_owner: str | None, owner: str | None, *, pointer: str = "/owner") -> None:
    """Raise Conflict `conversation_owned` if `owner`, which a request names, is not that of the conversation.

    A request that names no owner passes, and any passes for a conversation without an owner.
    """
    if None not in {owner, stored_owner} and owner != stored_owner:
        raise owned_by_another(pointer)


async def lock_by_external_id(
    caller: Caller, tx: Transaction, project: str, external_id: str
) -> ConversationRow | None:
    """Return a conversation as `find_by_external_id`, locked until the transaction ends."""
    row = await conversation_store.lock_by_external_id(tx, caller.tenant_id, project, external_id)
    if row is not None:
        _require_inside(caller, row)
    return row


async def get_first_conversation(caller: Caller, tx: Transaction, ids: Sequence[UUID]) -> ConversationRow:
    """Return the conversation of the first id, which an idempotent request stored. Raises NotFound."""
    return await get_conversation(caller, tx, ConversationId(ids[0]))


async def get_rev(caller: Caller, tx: Transaction, conversation_id: ConversationId) -> int:
    """Return the rev of a conversation. Raises NotFound."""
    if caller.restriction is not None:
        return (await get_conversation(caller, tx, conversation_id)).rev
    rev = await conversation_store.find_rev(tx, caller.tenant_id, conversation_id)
    if rev is None:
        raise await conversation_missing(caller, tx, conversation_id)
    return rev


async def lock_conversation(caller: Caller, tx: Transaction, conversation_id: ConversationId) -> ConversationRow:
    """Return a conversation, locked until the transaction ends. Raises NotFound."""
    row = await conversation_store.lock_conversation(tx, caller.tenant_id, conversation_id)
    return await _reachable(caller, tx, conversation_id, row)


async def get_turn(caller: Caller, tx: Transaction, conversation_id: ConversationId, turn_id: TurnId) -> TurnRow:
    """Return a turn of a conversation. Raises NotFound."""
    await require_reachable(caller, tx, conversation_id)
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
    await require_reachable(caller, tx, conversation_id)
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
    return row._replace(content=json.dumps(texts.get("content", ""), ensure_ascii=False))


async def name_conflict(store: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Run a transaction again if another conversation stored a turn with one of its ids first.

    The second run finds that turn, and its error names the field of the request.
    """
    try:
        return await store()
    except Conflict as error:
        if error.code != "turn_id_conflict" or error.fields:
            raise
    return await store()


def last_position(head: ConversationRow) -> int:
    """Return the last position that a turn has, or that an open turn has reserved."""
    return head.last_seq + head.reserved_positions
