"""Renders the body of an event from the rows as they are now. An event whose object is gone has ids only."""

import asyncio
from contextlib import suppress
from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel

from app.conversations.schemas.conversations import Conversation, Turn
from app.conversations.schemas.summaries import Summary
from app.conversations.service import Conversations, Summaries
from app.core.errors import NotFound
from app.core.ids import ConversationId, TurnId, format_id
from app.core.outbox import EventType
from app.memory.schemas import Fact
from app.memory.service import FactService
from app.tenancy.schemas import Caller, job_caller
from app.webhooks.delivery_store import DeliveryRow
from app.webhooks.payloads import (
    ConversationEvent,
    ConversationEventData,
    FactEvent,
    FactEventData,
    Omission,
    SummaryEvent,
    SummaryEventData,
    TestEvent,
    TestEventData,
    TurnEvent,
    TurnEventData,
)
from app.webhooks.schemas import TEST_EVENT

_Shown = TypeVar("_Shown")


class EventRenderer:
    """Reads what events are about, as the tenant's jobs read it."""

    def __init__(
        self, *, conversations: Conversations, summaries: Summaries, facts: FactService, max_bytes: int
    ) -> None:
        self._conversations = conversations
        self._summaries = summaries
        self._facts = facts
        self._max_bytes = max_bytes

    async def render(self, row: DeliveryRow, *, include_content: bool) -> bytes:
        """Return the body of an event, JSON in UTF-8. Raises AppError if the rows cannot be read."""
        if not include_content:
            return _written(_event(row, None, Omission.CONTENT_OFF))
        shown = await self._read(row)
        if shown is None:
            return _written(_event(row, None, Omission.DELETED))
        body = await asyncio.to_thread(_written, _event(row, shown, None))
        return body if len(body) <= self._max_bytes else _written(_event(row, None, Omission.TOO_LARGE))

    async def _read(self, row: DeliveryRow) -> Conversation | Turn | Summary | Fact | None:
        caller = job_caller(row.tenant_id)
        with suppress(NotFound):
            match row.event_type.partition(".")[0]:
                case "conversation":
                    return await self._conversation(caller, row)
                case "turn":
                    return await self._conversations.turn(caller, _conversation_id(row), turn_id=TurnId(row.object_id))
                case "summary":
                    return await self._summaries.get(caller, _conversation_id(row), summary_id=row.object_id)
                case "fact":
                    return await self._facts.get(caller, row.object_id)
                case _:
                    return None
        return None

    async def _conversation(self, caller: Caller, row: DeliveryRow) -> Conversation | None:
        if row.event_type == EventType.CONVERSATION_DELETED.value:
            return None  # another conversation may have taken its id
        return await self._conversations.get(caller, _conversation_id(row))


def _conversation_id(row: DeliveryRow) -> ConversationId:
    return ConversationId(row.conversation_id or row.object_id)


def _event(row: DeliveryRow, shown: object, omitted: Omission | None) -> BaseModel:
    """Return the event, with `shown` or without."""
    kind, timestamp, object_id = row.event_type, row.recorded_at, format_id(row.object_id)
    values = {"type": kind, "timestamp": timestamp}
    of_id = format_id(_conversation_id(row))
    match kind.partition(".")[0]:
        case "conversation":
            of_conversation = ConversationEventData(
                conversation_id=of_id, conversation=_as(Conversation, shown), omitted=omitted
            )
            return ConversationEvent.model_validate({**values, "data": of_conversation})
        case "turn":
            of_turn = TurnEventData(conversation_id=of_id, turn_id=object_id, turn=_as(Turn, shown), omitted=omitted)
            return TurnEvent.model_validate({**values, "data": of_turn})
        case "summary":
            of_summary = SummaryEventData(
                conversation_id=of_id, summary_id=object_id, summary=_as(Summary, shown), omitted=omitted
            )
            return SummaryEvent.model_validate({**values, "data": of_summary})
        case "fact":
            of_fact = FactEventData(
                conversation_id=_optional(row.conversation_id), fact_id=object_id, fact=_as(Fact, shown),
                omitted=omitted,
            )  # fmt: skip
            return FactEvent.model_validate({**values, "data": of_fact})
        case _:
            return TestEvent(type=TEST_EVENT, timestamp=timestamp, data=TestEventData(webhook_id=object_id))


def _as(shape: type[_Shown], shown: object) -> _Shown | None:
    return shown if isinstance(shown, shape) else None


def _optional(value: UUID | None) -> str | None:
    return None if value is None else format_id(value)


def _written(event: BaseModel) -> bytes:
    return event.model_dump_json().encode()
