"""Renders the body of an event from the rows as they are now. An event whose object is gone has ids only."""

import asyncio
from contextlib import suppress

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
from app.webhooks.payloads import SHAPES, Omission

_MAX_BODY_BYTES = 2**20  # receivers mostly refuse more; the largest text of a turn has as much


class EventRenderer:
    """Reads what events are about, as the tenant's jobs read it."""

    def __init__(self, *, conversations: Conversations, summaries: Summaries, facts: FactService) -> None:
        self._conversations = conversations
        self._summaries = summaries
        self._facts = facts

    async def render(self, row: DeliveryRow, *, include_content: bool) -> bytes:
        """Return the body of an event, JSON in UTF-8. Raises AppError if the rows cannot be read."""
        if not include_content:
            return _written(_event(row, None, Omission.CONTENT_OFF))
        shown = await self._read(row)
        if shown is None:
            return _written(_event(row, None, Omission.DELETED))
        body = await asyncio.to_thread(_written, _event(row, shown, None))
        return body if len(body) <= _MAX_BODY_BYTES else _written(_event(row, None, Omission.TOO_LARGE))

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


def _event(row: DeliveryRow, shown: BaseModel | None, omitted: Omission | None) -> BaseModel:
    """Return the event, with `shown` or without."""
    kind = row.event_type.partition(".")[0]
    of_no_conversation = kind == "fact" and row.conversation_id is None
    data = {
        f"{kind}_id": format_id(row.object_id),
        "conversation_id": None if of_no_conversation else format_id(_conversation_id(row)),
        kind: shown,
        "omitted": omitted,
    }
    return SHAPES[row.event_type].model_validate({"type": row.event_type, "timestamp": row.recorded_at, "data": data})


def _written(event: BaseModel) -> bytes:
    return event.model_dump_json().encode()
