"""Queries on the validity of conversation tokens. Each takes the open transaction first."""

from sqlalchemy import BigInteger, cast, extract, select, update

from app.conversations.tables import conversation_heads, conversations
from app.core.database.queries import Query, equals
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId

_C, _H = conversations.c, conversation_heads.c
_DELETING = (
    select(_H.deleting_at).where(*equals(conversation_heads, "tenant_id"), _H.conversation_id == _C.id)
).scalar_subquery()
_FIND = Query(
    select(cast(extract("epoch", _C.created_at) * 1_000_000, BigInteger).label("created_us"), _C.token_epoch).where(
        *equals(conversations, "tenant_id", "id"), _DELETING.is_(None)
    )
)
_MOVE = Query(
    update(conversations).values(token_epoch=_C.token_epoch + 1).where(*equals(conversations, "tenant_id", "id"))
)


async def find_token_epoch(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> str | None:
    """Return the epoch that valid tokens of the conversation contain; None if the conversation does not exist.

    It includes the creation time. Tokens of a deleted conversation are therefore invalid for a new one with the same
    id.
    """
    row = await _FIND.fetchrow(tx, tenant_id=tenant_id, id=conversation_id)
    return None if row is None else f"{row['created_us']}.{row['token_epoch']}"


async def move_token_epoch(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> bool:
    """Revoke all existing tokens of a conversation; return false if it does not exist."""
    return await _MOVE.execute(tx, tenant_id=tenant_id, id=conversation_id) == 1
