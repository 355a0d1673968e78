"""The vocabulary of derived titles: where one is from, and what a model needs to write one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class TitleSource(StrEnum):
    """What a derived title was derived from: the words of the first question, or by a model from the first exchange."""

    QUESTION = "question"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class DerivedTitle:
    """A title with its source and the turns that it was derived from."""

    text: str
    source: TitleSource
    turn_ids: Sequence[UUID]


@dataclass(frozen=True, slots=True)
class Exchange:
    """The first question of a conversation and the first answer to it, with the content hashes of both turns."""

    question: str
    answer: str
    sources: Mapping[UUID, bytes]
