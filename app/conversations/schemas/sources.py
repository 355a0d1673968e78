"""What is derived from turns above conversations reads here: turns with the hashes that its writes are checked by."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.conversations.schemas.participants import Participant
from app.formats.schemas import CanonicalTurn


@dataclass(frozen=True, slots=True)
class TextTurn:
    """A live turn that says something, with the hash of what it says."""

    id: UUID
    seq: int
    turn: CanonicalTurn
    said_at: datetime
    content_hash: bytes


@dataclass(frozen=True, slots=True)
class Unread:
    """The next turns of a conversation that were not looked through for facts, in the order of their seq.

    They are those after the seq `after`, up to `reach`; what is superseded, erased or copied by a fork is not among
    them. `reach` equals `after` where nothing is left.
    """

    conversation_id: UUID
    owner: str | None
    project: str
    participants: Sequence[Participant]
    enabled: bool
    redact: bool
    after: int
    reach: int
    turns: Sequence[TextTurn]


@dataclass(frozen=True, slots=True)
class LockedConversation:
    """A conversation that is held: nothing of it changes until the transaction ends."""

    owner: str | None
    project: str
    participants: Sequence[Participant]
    rev: int
    facts_seq: int


@dataclass(frozen=True, slots=True)
class SourceTurn:
    """A live turn that is held, without what it says."""

    conversation_id: UUID
    actor: str
    said_at: datetime
    content_hash: bytes
