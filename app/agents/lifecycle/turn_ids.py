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

from app.conversations.schemas.sessions import AppendPlan
from app.core.errors import NotFound
from app.core.ids import TenantId

_NAMESPACE: Final = UUID("6f1f2d2c-6a0e-5f0b-9a3c-3f6b8a0d7e55")
_INPUT: Final = "asked"
_OUTPUT: Final = "answered"


@dataclass(frozen=True, slots=True)
class TurnKey:
    """The caller's names of a turn."""

    tenant_id: TenantId
    project: str
    session_id: str
    turn_id: str

    def item_id(self, number: int) -> UUID:
        """Return the id of an item of a turn that arrives in one call."""
        return self._id(number)

    def input_id(self, number: int) -> UUID:
        """Return the id of an input item of a prepared turn."""
        return self._id(_INPUT, number)

    def output_id(self, number: int) -> UUID:
        """Return the id of an output item of a prepared turn."""
        return self._id(_OUTPUT, number)

    def first_item_ids(self) -> list[UUID]:
        """Return the ids that the first item of the turn may have."""
        return [self.item_id(0), self.input_id(0)]

    def _id(self, *series: str | int) -> UUID:
        names = [str(self.tenant_id), self.project, self.session_id, self.turn_id, *series]
        return uuid5(_NAMESPACE, json.dumps(names, ensure_ascii=True, separators=(",", ":")))


class WholeTurnIds:
    """Ids of a turn that arrives in one call. Each series has one more id, which shows that more items are stored."""

    def __init__(self, key: TurnKey, *, inputs: int, outputs: int) -> None:
        self._items = [key.item_id(number) for number in range(inputs + outputs + 1)]
        self._inputs = [key.input_id(number) for number in range(inputs + 1)]
        self._outputs = [key.output_id(number) for number in range(outputs + 1)]

    def candidates(self) -> list[UUID]:
        """Return all ids that decide what is stored."""
        return [*self._items, *self._inputs, *self._outputs]

    def plan(self, stored: Collection[UUID]) -> AppendPlan:
        """Return what to store, given the ids that are stored."""
        inputs, outputs = self._inputs[:-1], self._outputs[:-1]
        if self._items[0] in stored:
            return _nothing_new(self._items[:-1], self._items[-1] in stored)
        if self._inputs[0] not in stored:
            return AppendPlan(self._items[:-1], [None] * len(self._items[:-1]))
        if self._outputs[0] in stored:
            has_more = self._inputs[-1] in stored or self._outputs[-1] in stored
            return _nothing_new([*inputs, *outputs], has_more)
        # the turn was prepared, and its output arrives in this call
        unused: list[UUID | None] = [None] * len(inputs)
        return AppendPlan([*unused, *outputs], [*inputs, *([None] * len(outputs))], self._inputs[-1] in stored)


class InputIds:
    """Ids of the input of a prepared turn."""

    def __init__(self, key: TurnKey, *, inputs: int) -> None:
        self._items = [key.item_id(number) for number in range(inputs)]
        self._inputs = [key.input_id(number) for number in range(inputs + 1)]

    def candidates(self) -> list[UUID]:
        """Return all ids that decide what is stored."""
        return [*self._items, *self._inputs]

    def plan(self, stored: Collection[UUID]) -> AppendPlan:
        """Return what to store, given the ids that are stored."""
        if self._items[0] in stored:  # the output follows the input in the same series
            return _nothing_new(self._items, has_more=False)
        if self._inputs[0] in stored:
            return _nothing_new(self._inputs[:-1], self._inputs[-1] in stored)
        return AppendPlan(self._inputs[:-1], [None] * (len(self._inputs) - 1))


class OutputIds:
    """Ids of the output of a prepared turn with `inputs` input items."""

    def __init__(self, key: TurnKey, *, inputs: int, outputs: int) -> None:
        self._first_items = key.first_item_ids()
        self._items = [key.item_id(inputs + number) for number in range(outputs + 1)]
        self._outputs = [key.output_id(number) for number in range(outputs + 1)]

    def candidates(self) -> list[UUID]:
        """Return all ids that decide what is stored."""
        return [*self._first_items, *self._items, *self._outputs]

    def plan(self, stored: Collection[UUID]) -> AppendPlan:
        """Return what to store, given the ids that are stored. Raises NotFound if the turn's input is not stored."""
        first_item, first_input = self._first_items
        if first_item in stored:
            return _nothing_new(self._items[:-1], self._items[-1] in stored)
        if first_input not in stored:
            raise NotFound("not_found", "The turn that this operation prepared does not exist any more.")
        if self._outputs[0] in stored:
            return _nothing_new(self._outputs[:-1], self._outputs[-1] in stored)
        return AppendPlan(self._outputs[:-1], [None] * (len(self._outputs) - 1))


def _nothing_new(ids: Sequence[UUID], has_more: bool) -> AppendPlan:  # noqa: FBT001 - two uses in this module
    return AppendPlan([None] * len(ids), ids, has_more)
