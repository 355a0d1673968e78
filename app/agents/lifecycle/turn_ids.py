"""Under which ids the items of a turn are stored: made from the caller's own names, so that a repeat finds them. Pure.

A turn that comes whole has its items numbered through. One that is prepared first has two rows of ids, for what was
asked and for what was answered, so that it can be told how far it came. Whichever row the first item of a turn was
stored in decides for ever which one the turn is in.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid5

from app.conversations.schemas.sessions import AppendPlan
from app.core.errors import NotFound
from app.core.ids import TenantId

_SPACE: Final = UUID("6f1f2d2c-6a0e-5f0b-9a3c-3f6b8a0d7e55")
_ASKED: Final = "asked"
_ANSWERED: Final = "answered"


@dataclass(frozen=True, slots=True)
class TurnKey:
    """A turn as its caller names it."""

    tenant_id: TenantId
    project: str
    session_id: str
    turn_id: str

    def whole(self, number: int) -> UUID:
        """The id of an item of a turn that came whole."""
        return self._id(number)

    def asked(self, number: int) -> UUID:
        """The id of an input item of a turn that was prepared."""
        return self._id(_ASKED, number)

    def answered(self, number: int) -> UUID:
        """The id of an output item of a turn that was prepared."""
        return self._id(_ANSWERED, number)

    def first(self) -> list[UUID]:
        """The ids that the first item of the turn may have."""
        return [self.whole(0), self.asked(0)]

    def _id(self, *which: str | int) -> UUID:
        names = [str(self.tenant_id), self.project, self.session_id, self.turn_id, *which]
        return uuid5(_SPACE, json.dumps(names, ensure_ascii=True, separators=(",", ":")))


class Whole:
    """A turn that comes whole: so many items asked, and so many answered."""

    def __init__(self, key: TurnKey, *, asked: int, answered: int) -> None:
        self._whole = [key.whole(number) for number in range(asked + answered + 1)]
        self._asked = [key.asked(number) for number in range(asked + 1)]
        self._answered = [key.answered(number) for number in range(answered + 1)]

    def look_for(self) -> list[UUID]:
        """All ids that matter, and one more of each row, which tells that more was stored."""
        return [*self._whole, *self._asked, *self._answered]

    def choose(self, known: Collection[UUID]) -> AppendPlan:
        """What to store, once it is known which of these ids are."""
        asked, answered = self._asked[:-1], self._answered[:-1]
        if self._whole[0] in known:
            return _kept(self._whole[:-1], self._whole[-1] in known)
        if self._asked[0] not in known:
            return AppendPlan(self._whole[:-1], [None] * len(self._whole[:-1]))
        if self._answered[0] in known:
            longer = self._asked[-1] in known or self._answered[-1] in known
            return _kept([*asked, *answered], longer)
        # it was prepared, and its answer comes this way
        nothing: list[UUID | None] = [None] * len(asked)
        return AppendPlan([*nothing, *answered], [*asked, *([None] * len(answered))], self._asked[-1] in known)


class Asked:
    """The first half of a turn: what is asked."""

    def __init__(self, key: TurnKey, *, asked: int) -> None:
        self._whole = [key.whole(number) for number in range(asked)]
        self._asked = [key.asked(number) for number in range(asked + 1)]

    def look_for(self) -> list[UUID]:
        """All ids that matter."""
        return [*self._whole, *self._asked]

    def choose(self, known: Collection[UUID]) -> AppendPlan:
        """What to store, once it is known which of these ids are."""
        if self._whole[0] in known:  # the answer follows the input in the same row
            return _kept(self._whole, longer=False)
        if self._asked[0] in known:
            return _kept(self._asked[:-1], self._asked[-1] in known)
        return AppendPlan(self._asked[:-1], [None] * (len(self._asked) - 1))


class Answered:
    """The second half of a turn, of which so many items were asked."""

    def __init__(self, key: TurnKey, *, asked: int, answered: int) -> None:
        self._firsts = key.first()
        self._whole = [key.whole(asked + number) for number in range(answered + 1)]
        self._answered = [key.answered(number) for number in range(answered + 1)]

    def look_for(self) -> list[UUID]:
        """All ids that matter."""
        return [*self._firsts, *self._whole, *self._answered]

    def choose(self, known: Collection[UUID]) -> AppendPlan:
        """What to store, once it is known which of these ids are. NotFound where the turn is gone."""
        whole, asked = self._firsts
        if whole in known:
            return _kept(self._whole[:-1], self._whole[-1] in known)
        if asked not in known:
            raise NotFound("not_found", "The turn that this operation prepared is not there any more.")
        if self._answered[0] in known:
            return _kept(self._answered[:-1], self._answered[-1] in known)
        return AppendPlan(self._answered[:-1], [None] * (len(self._answered) - 1))


def _kept(ids: Sequence[UUID], longer: bool) -> AppendPlan:  # noqa: FBT001 - two places of this module
    """Nothing to store: what is there under these ids stands."""
    return AppendPlan([None] * len(ids), ids, longer)
