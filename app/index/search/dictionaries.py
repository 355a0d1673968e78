"""Dictionaries of the texts in a segment's columns. Pure.

A column has codes instead of texts. Codes are stable; new texts get new codes. Names of people and of their projects do
not remain in memory when no entry has them any more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import repeat
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Rows: TypeAlias = NDArray[np.int32]

NONE: Final = -1
"""The code of a missing text, and the position and session of an entry that has none."""

NAME_COLUMNS: Final = ("project", "owner", "agent", "actor")
"""Columns whose values are names that callers chose; the others have ids, roles and sessions."""


class Codes:
    """A dictionary of texts of one column. Codes are stable; only `Segment` adds to it."""

    def __init__(self, values: Sequence[object | None] = ()) -> None:
        self._values = list(values)  # by their codes; None for one that was removed
        self._codes = {value: code for code, value in enumerate(values) if value is not None}

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._codes)

    def add_all(self, values: Sequence[object | None]) -> Rows:
        """Return the code of each value, -1 for None; new values get new codes."""
        codes, stored = self._codes, self._values
        for value in dict.fromkeys(values):
            if value is not None and value not in codes:
                codes[value] = len(stored)
                stored.append(value)
        return np.fromiter(map(codes.get, values, repeat(NONE)), np.int32, len(values))

    def get(self, value: object) -> int | None:
        """Return the code of a value that an entry has or had."""
        return self._codes.get(value)

    def value(self, code: int) -> object | None:
        """Return the value of a code; None if it was removed."""
        return None if code == NONE else self._values[code]

    def with_values_of(self, codes: Rows) -> "Codes":
        """Return a dictionary of the same codes without the values that are not among `codes`."""
        is_used = np.zeros(len(self._values) + 1, dtype=np.bool_)  # -1 is the last
        is_used[codes] = True
        if all(is_used[code] for code in self._codes.values()):
            return self
        return Codes([value if is_used[code] else None for code, value in enumerate(self._values)])


@dataclass(frozen=True, slots=True)
class Dictionaries:
    """The dictionaries of a segment's coded columns."""

    conversation: Codes
    project: Codes
    owner: Codes
    agent: Codes
    actor: Codes
    role: Codes
    group: Codes

    @classmethod
    def empty(cls) -> "Dictionaries":
        """Return new dictionaries."""
        return cls(*(Codes() for _ in fields(cls)))

    def __len__(self) -> int:
        """Return the number of values in all of them."""
        dictionaries = (self.conversation, self.project, self.owner, self.agent, self.actor, self.role, self.group)
        return sum(map(len, dictionaries))

    def with_names_of(self, columns: Mapping[str, Rows]) -> "Dictionaries":
        """Return dictionaries whose values in the given columns are those of the given codes."""
        return replace(self, **{name: getattr(self, name).with_values_of(codes) for name, codes in columns.items()})
