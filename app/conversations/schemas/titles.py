"""Types of derived titles: their source, and the input with which a model writes one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class TitleSource(StrEnum):
    """The source of a derived title: the words of the first question, or a model that read the first exchange."""

    QUESTION = "question"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class DerivedTitle:
    """A title with its source and the turns that it was derived from."""

    text: str
    source: TitleSource
    turn_ids: Sequence[UUID]


@dataclass(frozen=True, slots=True)
class FirstExchange:
    """The first question of a conversation and the first answer to it, with the content hashes of both turns."""

    question: str
    answer: str
    sources: Mapping[UUID, bytes]
