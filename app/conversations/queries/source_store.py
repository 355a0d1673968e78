"""Queries on the progress of fact extraction, in the head of a conversation. Each names the tenant."""

from app.conversations.schemas.sources import ReadByRules
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId


async def update_facts_mark(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    read_through: int | None,
    has_facts: bool,
    rev: int | None,
) -> None:
    """Write the progress of fact extraction to a locked head.

    `read_through`: the seq up to which facts were extracted. `has_facts`: facts are derived from its turns. `rev`: its
    next rev.
    """
    await tx.execute(
        """
        update conversation_heads set facts_seq = greatest(facts_seq, $3::bigint), facts_held = facts_held or $4,
            rev = coalesce($5::bigint, rev), facts_rev = coalesce($5::bigint, facts_rev)
        where tenant_id = $1 and conversation_id = $2
        """,
        tenant_id,
        conversation_id,
        read_through,
        has_facts,
        rev,
    )


async def update_facts_by_rules(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, by_rules: ReadByRules | None
) -> None:
    """Write to a locked head which turns only rules have read; None for none."""
    first, through, tries = (None, None, 0) if by_rules is None else (by_rules.first, by_rules.last, by_rules.tries)
    await tx.execute(
        """
        update conversation_heads set facts_rules_from = $3::bigint, facts_rules_through = $4::bigint,
            facts_rules_tries = $5::smallint
        where tenant_id = $1 and conversation_id = $2
        """,
        tenant_id,
        conversation_id,
        first,
        through,
        tries,
    )
