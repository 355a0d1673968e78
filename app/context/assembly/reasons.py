"""Why items are left out of a context."""

from collections.abc import Sequence
from typing import Final

from app.formats.units import Unit

NO_ROOM: Final = "it does not fit the budget"


class Reasons:
    """Reasons for leaving items out, and whether they were requested; the last reason of an item counts."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], tuple[str, bool]] = {}
        self._of_units: list[tuple[Sequence[Unit], tuple[str, bool]]] = []

    def explain(self, section: str, key: str, reason: str, *, is_asked: bool = False) -> None:
        """Record a reason. `is_asked`: the item was requested and did not fit."""
        self._said[section, key] = (reason, is_asked)

    def explain_units(self, units: Sequence[Unit], reason: str, *, is_asked: bool = False) -> None:
        """Record a reason for each turn of some units."""
        self._of_units.append((units, (reason, is_asked)))

    def of(self, section: str, key: str) -> tuple[str, bool]:
        """Return the reason of an item; items that the recount removed have none, and did not fit."""
        # written here, since most plans are replaced by another one
        for units, said in self._of_units:
            self._said.update({("recent", turn.id): said for unit in units for turn in unit.turns})
        self._of_units.clear()
        return self._said.get((section, key), (NO_ROOM, True))
