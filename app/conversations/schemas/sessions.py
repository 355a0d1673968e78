"""Types of sessions: conversations by external id, and turns that are stored exactly once."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from app.conversations.schemas.conversations import TurnInput
from app.core.ids import ConversationId


@dataclass(frozen=True, slots=True)
class SessionName:
    """The name of a session. `owner`: the owner of a new session, and the required one if the session has an owner."""

    project: str
    external_id: str
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """An existing session. `position`: the position of the first stored turn among those that were requested.

    `unsummarised_turns`: the number of live turns that no summary covers.
    """

    conversation_id: ConversationId
    owner: str | None
    position: int | None
    unsummarised_turns: int


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """The actions for the turns of one request, in their order.

    `store_as`: the id to store the turn under, None to leave it out. `same_as`: the id of the stored turn that should
    have the same content, if there is one. `is_longer`: more turns are stored than were sent.
    """

    store_as: Sequence[UUID | None]
    same_as: Sequence[UUID | None]
    is_longer: bool = False


@dataclass(frozen=True, slots=True)
class IdempotentAppend:
    """Turns to store once, the ids to look up, and the plan for those found.

    `create`: the session is created if it does not exist.
    """

    turns: Sequence[TurnInput]
    set_targets: Sequence[UUID]
    choose: Callable[[Collection[UUID]], AppendPlan]
    create: bool = True


@dataclass(frozen=True, slots=True)
class Stored:
    """The result of an idempotent append: the number of turns stored now, and whether the stored turns differ."""

    conversation_id: ConversationId
    count: int
    differs: bool


@dataclass(frozen=True, slots=True)
class SessionDay:
    """The live turns of one day (UTC): their number and actors, the first words of a user, and the time of the last."""

    day: date
    turns: int
    actors: Sequence[str]
    first_words: str | None
    last_at: datetime
