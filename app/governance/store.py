"""Query for the conversations that open erasures delete, as the ops role: another tenant may have started the erasure.

An erasure is open from the commit of its request until the transaction that ends its operation. So a transaction that
has locked a conversation which an erasure has hidden finds the erasure with its next statement.
"""

from collections.abc import Sequence
from uuid import UUID

from app.core.database.transactions import Transaction
from app.core.ids import TenantId

# two statements: Citus joins the rows of one tenant only
_OF_TENANT = """
    select o.id from operations o
    where o.kind = 'erasure' and o.ended_at is null
      and o.parameters ->> 'kind' = 'tenant' and o.parameters ->> 'name' = $1
    limit 1
"""
_OF_CONVERSATIONS = """
    select c.id from conversations c
    where c.tenant_id = $1 and c.id = any($2::uuid[]) and exists (
        select from operations o
        where o.tenant_id = $1 and o.kind = 'erasure' and o.ended_at is null
          and (o.parameters ->> 'project' is null or o.parameters ->> 'project' = c.project)
          and case o.parameters ->> 'kind'
              when 'conversation' then o.parameters ->> 'name' = c.id::text
              when 'owner' then o.parameters ->> 'name' = c.owner
              else false
          end
    )
"""


async def list_being_erased(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> set[UUID]:
    """Return which of these conversations an erasure that has not ended deletes with all their rows (ops role)."""
    if await tx.fetch(_OF_TENANT, str(tenant_id)):
        return set(conversation_ids)
    return {row["id"] for row in await tx.fetch(_OF_CONVERSATIONS, tenant_id, conversation_ids)}
