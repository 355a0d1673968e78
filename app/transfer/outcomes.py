"""What an import did with an object, and the errors that leave one out."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from app.core.errors import FieldError


class NotExactError(Exception):
    """The records cannot keep their ids and hashes: an id is taken, or the chain does not verify."""


class ConversationOutcome(StrEnum):
    """What an import did with a conversation.

    `restored`: stored with its ids and hashes. `existing`: it was there already. `remapped`: stored under new ids.
    `extended`: new turns were added to a conversation that was there, or nothing if it had them all.
    """

    RESTORED = "restored"
    EXISTING = "existing"
    REMAPPED = "remapped"
    EXTENDED = "extended"


@dataclass(frozen=True, slots=True)
class RestoredConversation:
    """The outcome of one conversation, its id, and how many turns and summaries were stored.

    `refused`: turns of another system that break a rule. They were left out; the others are stored.
    """

    outcome: ConversationOutcome
    conversation_id: UUID
    turns: int
    summaries: int
    refused: Sequence["RecordRefusedError"] = ()


class RecordRefusedError(Exception):
    """A record of an import breaks a rule. `fields` are its wrong members: nothing of their text. `name`: its id."""

    def __init__(self, line: int, fields: Sequence[FieldError], *, name: str | None = None) -> None:
        super().__init__()
        self.line = line
        self.fields = tuple(fields)
        self.name = name


@dataclass(frozen=True, slots=True)
class RestoredMemory:
    """How many facts, decisions and memories were stored, and how many were not.

    `left_out` counts all that were not stored, `existing` those of them that were there already, and `refused` has
    those that break a rule, or whose id another object of the kind has.
    """

    facts: int = 0
    decisions: int = 0
    memories: int = 0
    left_out: int = 0
    existing: int = 0
    refused: Sequence[RecordRefusedError] = ()
