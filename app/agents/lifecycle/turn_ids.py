"""The ids under which the items of a turn are stored. Pure.

An id is derived from the caller's own names, so that a repeated call finds the stored turn. A turn that arrives in one
call numbers all its items in one series. A prepared turn has two series, one for its input and one for its output, so
that its progress can be read from the stored ids. The series of the first stored item is the series of the turn.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid5

from app.conversations.schemas.conversations import TurnInput
from app.conversations.schemas.sessions import AppendPlan, IdempotentAppend, SessionName
from app.core.errors import NotFound
from app.core.ids import TenantId

_NAMESPACE: Final = UUID("6f1f2d2c-6a0e-5f0b-9a3c-3f6b8a0d7e55")
INPUT: Final = "asked"
OUTPUT: Final = "answered"
"""The two series of a prepared turn."""


@dataclass(frozen=True, slots=True)
class TurnKey:
    """The caller's names of a turn."""

    tenant_id: TenantId
    project: str
    session_id: str
    turn_id: str

    def ids(self, count: int, *series: str, first: int = 0) -> list[UUID]:
        """Return the ids of `count` items, and one more id, which shows that more items are stored.

        Without a `series`, the ids are those of a turn that arrives in one call.
        """
        names = [str(self.tenant_id), self.project, self.session_id, self.turn_id, *series]
        return [
            uuid5(_NAMESPACE, json.dumps([*names, number], ensure_ascii=True, separators=(",", ":")))
            for number in range(first, first + count + 1)
        ]

    def first_item_ids(self) -> list[UUID]:
        """Return the ids that the first item of the turn may have."""
        return [*self.ids(0), *self.ids(0, INPUT)]

    def session_name(self, owner: str | None = None) -> SessionName:
        """Return the name of the turn's session."""
        return SessionName(self.project, self.session_id, owner)


def append_whole(key: TurnKey, turns: Sequence[TurnInput], *, inputs: int) -> IdempotentAppend:
    """Return the append of a turn that arrives in one call: first its `inputs` input items, then its output."""
    outputs = len(turns) - inputs
    items, asked, answered = key.ids(len(turns)), key.ids(inputs, INPUT), key.ids(outputs, OUTPUT)

    def choose(stored: Collection[UUID]) -> AppendPlan:
        if items[0] in stored or asked[0] not in stored:
            return _plan(items, stored)
        if answered[0] in stored:
            has_more = asked[-1] in stored or answered[-1] in stored
            return AppendPlan([None] * len(turns), [*asked[:-1], *answered[:-1]], has_more)
        # the turn was prepared, and its output arrives in this call
        stored_input: list[UUID | None] = [None] * inputs
        return AppendPlan([*stored_input, *answered[:-1]], [*asked[:-1], *([None] * outputs)], asked[-1] in stored)

    return IdempotentAppend(turns, [*items, *asked, *answered], choose)


def append_input(key: TurnKey, turns: Sequence[TurnInput]) -> IdempotentAppend:
    """Return the append of the input of a prepared turn."""
    items, asked = key.ids(len(turns))[:-1], key.ids(len(turns), INPUT)

    def choose(stored: Collection[UUID]) -> AppendPlan:
        if items[0] in stored:  # the output follows the input in the same series
            return AppendPlan([None] * len(turns), items)
        return _plan(asked, stored)

    return IdempotentAppend(turns, [*items, *asked], choose)


def append_output(key: TurnKey, turns: Sequence[TurnInput], *, inputs: int) -> IdempotentAppend:
    """Return the append of the output of a prepared turn with `inputs` input items.

    Raises NotFound, when it is planned, if the turn's input is not stored.
    """
    first_item, first_input = key.first_item_ids()
    items, answered = key.ids(len(turns), first=inputs), key.ids(len(turns), OUTPUT)

    def choose(stored: Collection[UUID]) -> AppendPlan:
        if first_item in stored:
            return AppendPlan([None] * len(turns), items[:-1], items[-1] in stored)
        if first_input not in stored:
            raise NotFound("not_found", "The turn that this operation prepared does not exist any more.")
        return _plan(answered, stored)

    return IdempotentAppend(turns, [first_item, first_input, *items, *answered], choose, create=False)


def _plan(ids: Sequence[UUID], stored: Collection[UUID]) -> AppendPlan:
    """Return the plan for a series of ids and one more: all items are stored, or none is."""
    nothing: list[None] = [None] * (len(ids) - 1)
    if ids[0] in stored:
        return AppendPlan(nothing, ids[:-1], ids[-1] in stored)
    return AppendPlan(ids[:-1], nothing)
