"""Types of the turns that other capabilities derive data from, with the content hashes that check their writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.conversations.schemas.participants import Participant
from app.formats.schemas import CanonicalTurn


@dataclass(frozen=True, slots=True)
class TextTurn:
    """A live turn with content, and its content hash."""

    id: UUID
    seq: int
    turn: CanonicalTurn
    said_at: datetime
    content_hash: bytes


@dataclass(frozen=True, slots=True)
class ReadByRules:
    """The turns from one seq through another that only rules have read, because the chat model had failed.

    Turns in between may have been read by the model. `tries`: how often reading them again has failed.
    """

    first: int
    last: int
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Unread:
    """The next turns of a conversation without fact extraction, in the order of their seq.

    They come after the seq `after`, up to `reach`. Superseded and erased turns and copies made by a fork are left out.
    `reach` equals `after` if nothing is left. `by_rules` are earlier turns to read again. `again`: these
    turns are of them.
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
    by_rules: ReadByRules | None = None
    again: bool = False


@dataclass(frozen=True, slots=True)
class LockedConversation:
    """A conversation whose head is locked, so that it does not change until the transaction ends."""

    owner: str | None
    project: str
    participants: Sequence[Participant]
    rev: int
    facts_seq: int
    by_rules: ReadByRules | None = None


@dataclass(frozen=True, slots=True)
class LockedTurn:
    """A locked live turn, without its content."""

    conversation_id: UUID
    actor: str
    said_at: datetime
    content_hash: bytes
