"""Messages about deletions between processes, so that vectors of deleted text do not remain in memory.

Searches do not depend on them: each asks the database what was deleted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from app.core.bus.messages import Message
from app.core.database.transactions import Database
from app.core.ids import ConversationId, TenantId
from app.index.search import segment_store
from app.index.search.resident import ResidentIndex

REMOVALS: Final = "removals"
"""The kind of these messages."""

# a message has at most 6000 bytes
_IDS_PER_MESSAGE: Final = 100
_KEPT_S: Final = 3600.0
_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Removal:
    """Deleted entries of a tenant: those named, or all of a conversation."""

    tenant_id: TenantId
    entry_ids: Sequence[UUID] | None
    conversation_id: ConversationId | None = None


def removal_messages(removed: Removal) -> Iterator[Message]:
    """Return the messages about deleted entries."""
    tenant = str(removed.tenant_id)
    if removed.entry_ids is None:
        yield {"k": REMOVALS, "t": tenant, "c": str(removed.conversation_id)}
        return
    for start in range(0, len(removed.entry_ids), _IDS_PER_MESSAGE):
        ids = removed.entry_ids[start : start + _IDS_PER_MESSAGE]
        yield {"k": REMOVALS, "t": tenant, "e": [str(entry_id) for entry_id in ids]}


def apply_removal(resident: ResidentIndex, message: Message) -> None:
    """Remove the entries of a message from memory; for a message of another form, evict the tenant's segments."""
    tenant_id = TenantId(UUID(str(message.get("t"))))
    ids, conversation = message.get("e"), message.get("c")
    if isinstance(ids, list):
        resident.remove_entries(tenant_id, [UUID(str(entry_id)) for entry_id in ids])
    elif isinstance(conversation, str):
        resident.remove_conversation(tenant_id, UUID(conversation))
    else:
        resident.evict_tenant(tenant_id)


async def delete_old_removals(ops: Database) -> int:
    """Delete the records of removed entries that no process needs any more; return the number."""
    deleted = 0
    while True:
        async with ops.across_tenants() as tx:
            count = await segment_store.delete_old_removals(tx, older_than_s=_KEPT_S, limit=_AT_ONCE)
        deleted += count
        if count < _AT_ONCE:
            return deleted
