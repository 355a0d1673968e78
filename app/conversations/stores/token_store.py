"""Queries on the validity of conversation tokens. Each takes the open transaction first."""

from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId


async def find_token_epoch(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> str | None:
    """Return the epoch that valid tokens of the conversation contain; None if the conversation does not exist.

    It includes the creation time. Tokens of a deleted conversation are therefore invalid for a new one with the same
    id.
    """
    row = await tx.fetchrow(
        """
        select (extract(epoch from created_at) * 1000000)::bigint as created_us, token_epoch
        from conversations c where c.tenant_id = $1 and c.id = $2 and (
            select h.deleting_at from conversation_heads h where h.tenant_id = c.tenant_id and h.conversation_id = c.id
        ) is null
        """,
        tenant_id,
        conversation_id,
    )
    return None if row is None else f"{row['created_us']}.{row['token_epoch']}"


async def move_token_epoch(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> bool:
    """Revoke all existing tokens of a conversation; return false if it does not exist."""
    touched = await tx.execute(
        "update conversations set token_epoch = token_epoch + 1 where tenant_id = $1 and id = $2",
        tenant_id,
        conversation_id,
    )
    return touched == 1
