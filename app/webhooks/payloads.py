"""The bodies of events, as receivers get them. They are the `webhooks` of the OpenAPI document."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal

from pydantic import BaseModel, Field

from app.conversations.schemas.conversations import Conversation, Turn
from app.conversations.schemas.summaries import Summary
from app.core.outbox import EventType
from app.core.times import TimeOut
from app.memory.schemas import Fact
from app.webhooks.schemas import TEST_EVENT


class Omission(StrEnum):
    """Why an event has ids only: its object is deleted or hidden, ids were asked for, or it would be too large."""

    DELETED = "deleted"
    CONTENT_OFF = "content_off"
    TOO_LARGE = "too_large"


_OMITTED = Field(description="Why the object is null, if it is.")


class ConversationEventData(BaseModel):
    """A conversation, as it is when the event is sent."""

    conversation_id: str
    conversation: Conversation | None
    omitted: Omission | None = _OMITTED


class TurnEventData(BaseModel):
    """A turn, as it is when the event is sent: erased content is not sent any more."""

    conversation_id: str
    turn_id: str
    turn: Turn | None
    omitted: Omission | None = _OMITTED


class SummaryEventData(BaseModel):
    """A summary, as it is when the event is sent."""

    conversation_id: str
    summary_id: str
    summary: Summary | None
    omitted: Omission | None = _OMITTED


class FactEventData(BaseModel):
    """A fact, as it is when the event is sent. `conversation_id`: null for a fact of several conversations or none."""

    conversation_id: str | None
    fact_id: str
    fact: Fact | None
    omitted: Omission | None = _OMITTED


class TestEventData(BaseModel):
    """The webhook that a test was asked for."""

    webhook_id: str


class ConversationEvent(BaseModel):
    """A conversation was created, changed, put into the trash, restored or deleted. A fork sends none of its turns."""

    type: Literal[
        "conversation.created",
        "conversation.updated",
        "conversation.trashed",
        "conversation.restored",
        "conversation.deleted",
    ]
    timestamp: TimeOut = Field(description="When the change was recorded.")
    data: ConversationEventData


class TurnEvent(BaseModel):
    """A turn was committed, superseded by a revision, or erased."""

    type: Literal["turn.committed", "turn.superseded", "turn.erased"]
    timestamp: TimeOut = Field(description="When the change was recorded.")
    data: TurnEventData


class SummaryEvent(BaseModel):
    """A summary was created."""

    type: Literal["summary.created"]
    timestamp: TimeOut = Field(description="When the change was recorded.")
    data: SummaryEventData


class FactEvent(BaseModel):
    """A fact was recorded, changed (evidence, end, tier), retracted, or deleted with its evidence or by expiry."""

    type: Literal["fact.recorded", "fact.updated", "fact.retracted", "fact.deleted"]
    timestamp: TimeOut = Field(description="When the change was recorded.")
    data: FactEventData


class TestEvent(BaseModel):
    """A test that an administrator asked for."""

    type: Literal["webhook.test"]
    timestamp: TimeOut = Field(description="When the test was asked for.")
    data: TestEventData


_OF_KIND: Final[Mapping[str, type[BaseModel]]] = {
    "conversation": ConversationEvent,
    "turn": TurnEvent,
    "summary": SummaryEvent,
    "fact": FactEvent,
}
SHAPES: Final[Mapping[str, type[BaseModel]]] = MappingProxyType(
    {event_type.value: _OF_KIND[event_type.value.partition(".")[0]] for event_type in EventType}
    | {TEST_EVENT: TestEvent}
)
"""The body of each type of event."""
