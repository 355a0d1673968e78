"""Events of changes, for receivers outside of the service.

A package records an event in the transaction of its change, so both are stored or neither. An event has ids only: what
it is about is read when it is delivered, so a receiver never gets content that has been erased since. `app.webhooks`
implements the outbox; the packages below it get one.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from app.core.database.transactions import Transaction
from app.core.ids import TenantId


class EventType(StrEnum):
    """Types of events. The names are stable: a type is added, and never renamed."""

    CONVERSATION_CREATED = "conversation.created"
    CONVERSATION_UPDATED = "conversation.updated"
    CONVERSATION_TRASHED = "conversation.trashed"
    CONVERSATION_RESTORED = "conversation.restored"
    CONVERSATION_DELETED = "conversation.deleted"
    TURN_COMMITTED = "turn.committed"
    TURN_SUPERSEDED = "turn.superseded"
    TURN_ERASED = "turn.erased"
    SUMMARY_CREATED = "summary.created"
    FACT_RECORDED = "fact.recorded"
    FACT_UPDATED = "fact.updated"
    FACT_RETRACTED = "fact.retracted"
    FACT_DELETED = "fact.deleted"


class EventOutbox(Protocol):
    """Where events are recorded."""

    def record(
        self,
        tx: Transaction,
        tenant_id: TenantId,
        event_type: EventType,
        object_ids: Iterable[UUID],
        *,
        conversation_id: UUID | None = None,
        project: str | None = None,
    ) -> None:
        """Record one event for each object, in their order, to be stored with the commit of `tx`.

        `conversation_id`: the conversation of the objects; None for a fact of several or of none. `project`: that of
        the objects; None for the project of the conversation, which the transaction must not delete then.
        """
        ...
