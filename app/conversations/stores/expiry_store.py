"""Queries on expired conversations, on the trash, and on conversations that are being deleted.

A conversation is being deleted from the moment its head has `deleting_at`; all queries of the other stores skip it. The
sweep finds conversations by `conversations.expires_at`. It is at or before the actual expiry time, because an append
moves that time and does not always write the column. For a conversation that is being deleted it is in the past. One in
the trash has `deleting_at`, too, and `trashed_at`: it is not deleted before `expires_at`. Each query names the tenant,
except those of the sweep.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import ClauseElement, Interval, bindparam, delete, exists, func, not_, or_, select, update

from app.conversations.tables import (
    conversation_heads,
    conversations,
    responses,
    summaries,
    turn_chunks,
    turn_streams,
    turns,
)
from app.core.database.queries import (
    NOW,
    Query,
    after_key,
    columns,
    compiled,
    delete_some,
    equals,
    is_any,
    later,
    page,
    seconds,
)
from app.core.database.transactions import Transaction, row_as
from app.core.ids import ConversationId, TenantId


@dataclass(frozen=True, slots=True)
class ExpiryCandidate:
    """A conversation that may have expired, or that is being deleted."""

    expires_at: datetime
    tenant_id: TenantId
    id: UUID


_C, _H, _S = conversations.c, conversation_heads.c, turn_streams.c
_OF_CONVERSATIONS = (*equals(conversations, "tenant_id"), is_any(_C.id, "ids"))
_OF_HEADS = (*equals(conversation_heads, "tenant_id"), is_any(_H.conversation_id, "ids"))
_OF_STREAMS = (*equals(turn_streams, "tenant_id"), is_any(_S.conversation_id, "ids"))
_WITH_HEAD = (_H.tenant_id == _C.tenant_id, _H.conversation_id == _C.id, _H.deleting_at.is_(None))
_EXPIRES_AT = later(func.greatest(_C.updated_at, _H.updated_at), seconds(_C.ttl_s))
_OPEN = exists().where(*equals(turn_streams, "tenant_id"), _S.conversation_id == _C.id)

_HAS_TURNS = Query(
    select(turns.c.id)
    .where(
        *equals(turns, "tenant_id", "conversation_id"),
        turns.c.status != "aborted",
        or_(turns.c.seq.is_(None), turns.c.seq > bindparam("after")),
    )
    .limit(1)
)
_LOCK_HEADS = Query(
    select(_H.conversation_id).where(*_OF_HEADS).order_by(_H.conversation_id).with_for_update(skip_locked=True)
)
_EXPIRED = Query(select(_C.id).where(*_OF_CONVERSATIONS, *_WITH_HEAD, _EXPIRES_AT <= NOW, not_(_OPEN)))
_PUT_OFF = Query(
    update(conversations)
    .values(expires_at=_EXPIRES_AT)
    .where(*_OF_CONVERSATIONS, *_WITH_HEAD, _C.expires_at.is_distinct_from(_EXPIRES_AT))
)
_MARK_DELETING = Query(update(conversation_heads).values(deleting_at=NOW).where(*_OF_HEADS))
_HIDE = Query(
    update(conversations).values(external_id=None, expires_at=func.least(_C.expires_at, NOW)).where(*_OF_CONVERSATIONS)
)
_LOCK_STREAMS = Query(select(_S.turn_id).where(*_OF_STREAMS).order_by(_S.turn_id).with_for_update())
_DELETE_CHUNKS = Query(
    delete(turn_chunks).where(
        *equals(turn_chunks, "tenant_id"), turn_chunks.c.turn_id.in_(select(_S.turn_id).where(*_OF_STREAMS))
    )
)
_DELETE_STREAMS = Query(delete(turn_streams).where(*_OF_STREAMS))
_DELETING = Query(select(_H.conversation_id).where(*_OF_HEADS, _H.deleting_at.is_not(None)))
_LOCK_TURNS = Query(
    select(turns.c.id)
    .where(*equals(turns, "tenant_id"), is_any(turns.c.conversation_id, "ids"))
    .limit(bindparam("limit"))
    .with_for_update()
)
_DELETE_TURNS = Query(delete(turns).where(*equals(turns, "tenant_id"), is_any(turns.c.id, "ids")))
_DELETE_RESPONSES = Query(delete(responses).where(*equals(responses, "tenant_id"), is_any(responses.c.turn_id, "ids")))
_DELETE_SUMMARIES = Query(delete_some(summaries, is_any(summaries.c.conversation_id, "ids"), of_tenant=True))
_DELETE_HEADS = Query(delete(conversation_heads).where(*_OF_HEADS))
_DELETE_CONVERSATIONS = Query(delete(conversations).where(*_OF_CONVERSATIONS))
_LOCK_HIDDEN = Query(
    select(_H.conversation_id)
    .where(*_OF_HEADS, _H.deleting_at.is_not(None))
    .order_by(_H.conversation_id)
    .with_for_update()
)
_TRASHED = Query(select(_C.id).where(*_OF_CONVERSATIONS, _C.trashed_at.is_not(None)).order_by(_C.id))
_PUT_IN_TRASH = Query(
    update(conversations)
    # not `expires_at` as it is: it may be earlier than the end of the time to live
    .values(trashed_at=NOW, expires_at=func.least(_EXPIRES_AT, NOW + bindparam("trash_time", type_=Interval)))
    .where(*_OF_CONVERSATIONS, _H.tenant_id == _C.tenant_id, _H.conversation_id == _C.id)
)
_TAKE_FROM_TRASH = Query(
    update(conversations)
    .values(trashed_at=None, updated_at=NOW, expires_at=later(NOW, seconds(_C.ttl_s)))
    .where(*_OF_CONVERSATIONS)
)
_SHOW_HEAD = Query(update(conversation_heads).values(deleting_at=None).where(*_OF_HEADS))
_RAISE_REV = Query(update(conversation_heads).values(rev=_H.rev + 1).where(*_OF_HEADS))
_END_TRASH = Query(
    update(conversations)
    .values(trashed_at=None, external_id=None, expires_at=func.least(_C.expires_at, NOW))
    .where(*_OF_CONVERSATIONS, _C.trashed_at.is_not(None))
)
_END_DUE_TRASH = Query(
    update(conversations)
    .values(trashed_at=None, external_id=None)
    .where(*_OF_CONVERSATIONS, _C.trashed_at.is_not(None), _C.expires_at <= NOW)
)
_SIZE = Query(select(_H.last_seq).where(*equals(conversation_heads, "tenant_id", "conversation_id")))


_LOCK_VISIBLE = Query(
    select(_H.conversation_id)
    .where(*_OF_HEADS, _H.deleting_at.is_(None))
    .order_by(_H.conversation_id)
    .with_for_update()
)


@compiled
def _candidates(*, after: bool) -> ClauseElement:
    statement = select(*columns(conversations, ExpiryCandidate)).where(_C.expires_at <= NOW)
    return page(statement, (_C.expires_at, _C.tenant_id, _C.id), newest_first=False, after=after)


@compiled
def _lock_deleting(*, waiting: bool) -> ClauseElement:
    heads = select(_H.conversation_id, _H.facts_held).where(*_OF_HEADS, _H.deleting_at.is_not(None))
    return heads.order_by(_H.conversation_id).with_for_update(skip_locked=not waiting)


async def list_candidates(
    tx: Transaction, *, after: tuple[datetime, UUID, UUID] | None, limit: int
) -> list[ExpiryCandidate]:
    """Return the next conversations of all tenants that may have expired, oldest `expires_at` first (ops role)."""
    rows = await _candidates(after=after is not None).fetch(tx, limit=limit, **after_key(after))
    return [row_as(ExpiryCandidate, row) for row in rows]


async def has_turns(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, after: int) -> bool:
    """Return whether a conversation has turns after a seq, open ones included, that are not aborted."""
    row = _HAS_TURNS.fetchrow(tx, tenant_id=tenant_id, conversation_id=conversation_id, after=after)
    return await row is not None


async def lock_heads(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> list[UUID]:
    """Lock the heads of those conversations that no other transaction has locked, and return their ids."""
    rows = await _LOCK_HEADS.fetch(tx, tenant_id=tenant_id, ids=conversation_ids)
    return [row["conversation_id"] for row in rows]


async def lock_visible(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> list[UUID]:
    """Lock the heads of those conversations that are not hidden, waiting for them, and return their ids."""
    rows = await _LOCK_VISIBLE.fetch(tx, tenant_id=tenant_id, ids=conversation_ids)
    return [row["conversation_id"] for row in rows]


async def list_expired(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> list[UUID]:
    """Return which of these conversations, whose heads are locked, have expired and have no open turn."""
    return [row["id"] for row in await _EXPIRED.fetch(tx, tenant_id=tenant_id, ids=conversation_ids)]


async def put_off(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> None:
    """Write the current expiry time of these conversations, whose heads are locked."""
    await _PUT_OFF.execute(tx, tenant_id=tenant_id, ids=conversation_ids)


async def hide(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> dict[str, int]:
    """Hide conversations from all other queries, and delete their streams. Their heads are locked.

    The sweep finds them by `expires_at`. Their external ids are free for new conversations. Return the number of
    deleted rows by table.
    """
    for query in (_MARK_DELETING, _HIDE, _LOCK_STREAMS):
        await query.execute(tx, tenant_id=tenant_id, ids=conversation_ids)
    chunks = await _DELETE_CHUNKS.execute(tx, tenant_id=tenant_id, ids=conversation_ids)
    return {
        "turn_chunks": chunks,
        "turn_streams": await _DELETE_STREAMS.execute(tx, tenant_id=tenant_id, ids=conversation_ids),
    }


async def lock_deleting(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID], *, waiting: bool
) -> dict[UUID, bool]:
    """Lock those of these conversations that are being deleted; return for each whether it has had facts.

    Those in the trash are left out and, unless `waiting`, those that another transaction has locked.
    """
    rows = await _lock_deleting(waiting=waiting).fetch(tx, tenant_id=tenant_id, ids=conversation_ids)
    # a new statement: one that waited for the lock sees the conversation from before the wait
    trashed = await list_trashed(tx, tenant_id, conversation_ids) if rows else set[UUID]()
    return {row["conversation_id"]: row["facts_held"] for row in rows if row["conversation_id"] not in trashed}


async def list_trashed(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> set[UUID]:
    """Return which of these conversations are in the trash."""
    return {row["id"] for row in await _TRASHED.fetch(tx, tenant_id=tenant_id, ids=conversation_ids)}


async def lock_trashed(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> list[UUID]:
    """Lock the heads of those conversations that are hidden, and return those in the trash."""
    locked = await _LOCK_HIDDEN.fetch(tx, tenant_id=tenant_id, ids=conversation_ids)
    return sorted(await list_trashed(tx, tenant_id, [row["conversation_id"] for row in locked])) if locked else []


async def put_in_trash(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, trash_time: timedelta
) -> None:
    """Put a conversation, whose head is locked, into the trash for some time, but not beyond its time to live."""
    await _MARK_DELETING.execute(tx, tenant_id=tenant_id, ids=[conversation_id])
    await _PUT_IN_TRASH.execute(tx, tenant_id=tenant_id, ids=[conversation_id], trash_time=trash_time)


async def take_from_trash(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> None:
    """Take a locked conversation out of the trash. Its rev increases, and its time to live starts again."""
    for query in (_SHOW_HEAD, _RAISE_REV, _TAKE_FROM_TRASH):
        await query.execute(tx, tenant_id=tenant_id, ids=[conversation_id])


async def end_trash(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID], *, only_due: bool) -> int:
    """Make conversations in the trash, whose heads are locked, ones that are being deleted; return their number.

    Their external ids are free for new conversations. `only_due`: only those whose time in the trash is over.
    """
    query = _END_DUE_TRASH if only_due else _END_TRASH
    return await query.execute(tx, tenant_id=tenant_id, ids=conversation_ids)


async def set_hidden(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, hidden: bool) -> None:
    """Hide a conversation, whose head is locked, from all other queries, or show it."""
    await (_MARK_DELETING if hidden else _SHOW_HEAD).execute(tx, tenant_id=tenant_id, ids=[conversation_id])


async def list_deleting(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> set[UUID]:
    """Return which of these conversations are being deleted."""
    rows = await _DELETING.fetch(tx, tenant_id=tenant_id, ids=conversation_ids)
    return {row["conversation_id"] for row in rows}


async def lock_turns_of(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID], *, limit: int
) -> list[UUID]:
    """Lock up to `limit` turns of conversations, so that nothing is derived from them until the transaction ends."""
    rows = await _LOCK_TURNS.fetch(tx, tenant_id=tenant_id, ids=conversation_ids, limit=limit)
    return [row["id"] for row in rows]


async def delete_turns(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> dict[str, int]:
    """Delete turns of conversations that are being deleted, with their responses; return the number by table."""
    return {
        "responses": await _DELETE_RESPONSES.execute(tx, tenant_id=tenant_id, ids=turn_ids),
        "turns": await _DELETE_TURNS.execute(tx, tenant_id=tenant_id, ids=turn_ids),
    }


async def delete_summaries(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID], *, limit: int
) -> int:
    """Delete up to `limit` summaries of conversations; return their number."""
    return await _DELETE_SUMMARIES.execute(tx, tenant_id=tenant_id, ids=conversation_ids, limit=limit)


async def delete_conversations(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> int:
    """Delete conversations that have no other rows left, with their heads; return their number."""
    await _DELETE_HEADS.execute(tx, tenant_id=tenant_id, ids=conversation_ids)
    return await _DELETE_CONVERSATIONS.execute(tx, tenant_id=tenant_id, ids=conversation_ids)


async def find_size(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> int:
    """Return the number of turns that were committed to a conversation."""
    row = await _SIZE.fetchrow(tx, tenant_id=tenant_id, conversation_id=conversation_id)
    return 0 if row is None else int(row["last_seq"])
