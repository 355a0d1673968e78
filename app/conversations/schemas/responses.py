"""Responses: what is stored of an answer besides its turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from app.conversations.schemas.conversations import Turn
from app.core.ids import ConversationId, TurnId
from app.formats.schemas import JsonObject


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """What is stored of the request of a response: all but its input, which is stored as turns.

    `previous_turn_id`: the answer that the response continues from. `owns_conversation`: the conversation was created
    for responses, so that no caller has named it. `follows`: the position of the last live turn that the conversation
    must have; None for any. `stored_input_ids`: turns of the input that were stored before the others.
    """

    members: JsonObject
    previous_turn_id: TurnId | None
    owns_conversation: bool
    follows: int | None = None
    stored_input_ids: Sequence[TurnId] = ()


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response. Its id is that of the answer's turn. `input_turn_ids`: the turns that were stored with the answer."""

    conversation_id: ConversationId
    answer: Turn
    request: ResponseRequest
    input_turn_ids: Sequence[TurnId]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ResponsePlace:
    """Where a response is: its conversation and its turns. `owns_conversation` as in `ResponseRequest`."""

    conversation_id: ConversationId
    turn_ids: Sequence[TurnId]
    owns_conversation: bool


@dataclass(frozen=True, slots=True)
class ContinuedResponse:
    """A response to continue from: the position of its answer. `owns_conversation` as in `ResponseRequest`."""

    turn_id: TurnId
    conversation_id: ConversationId
    position: int
    owns_conversation: bool
