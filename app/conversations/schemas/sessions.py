"""The vocabulary of sessions: conversations by their callers' own names, and turns that are stored exactly once."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from app.conversations.schemas.conversations import TurnInput
from app.core.ids import ConversationId


@dataclass(frozen=True, slots=True)
class SessionName:
    """What a caller calls a conversation. `owner`: whose it is to be, and has to be where it has an owner."""

    project: str
    external_id: str
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation that was found. `position`: where the first of the turns stands that were asked for.

    `unsummarised_turns`: live turns that no summary covers.
    """

    conversation_id: ConversationId
    owner: str | None
    position: int | None
    unsummarised_turns: int


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """What to do with the turns of one request, each in its place.

    `store_as`: the id to store it under, None where it is not to be stored. `same_as`: the id of the turn that it
    should say the same as, where it is stored already. `is_longer`: more was stored than was sent.
    """

    store_as: Sequence[UUID | None]
    same_as: Sequence[UUID | None]
    is_longer: bool = False


@dataclass(frozen=True, slots=True)
class IdempotentAppend:
    """Turns to be stored once: each with its place in the request, the ids to look for, and what follows from them.

    `create`: the session is made where it is not there.
    """

    turns: Sequence[tuple[str, TurnInput]]
    set_targets: Sequence[UUID]
    choose: Callable[[Collection[UUID]], AppendPlan]
    create: bool = True


@dataclass(frozen=True, slots=True)
class Stored:
    """What came of an offer: how many turns were stored now, and whether what was stored before says something else."""

    conversation_id: ConversationId
    count: int
    differs: bool


@dataclass(frozen=True, slots=True)
class SessionDay:
    """The live turns of one day, in UTC: how many, of whom, the first words of a user, and when the last was said."""

    day: date
    turns: int
    actors: Sequence[str]
    first_words: str | None
    last_at: datetime
