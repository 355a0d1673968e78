"""Under which epochs a connection writes turns, by which it is told from whoever wrote them before it, and after.

What always holds: a turn's epoch is known until the turn is known to have ended, also where somebody else writes it
now, so that what is still sent is refused; of so many turns no more are known, far more than can be open in a
conversation; leases are renewed of those turns alone that the present caller may write.
"""

from collections.abc import Mapping

from app.core.ids import TurnId


class Epochs:
    """The turns that one connection opened or resumed, and which of them are its present caller's."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._known: dict[TurnId, int] = {}
        self._own: set[TurnId] = set()

    def begin(self, turn_id: TurnId, epoch: int) -> None:
        """The turn was opened or resumed."""
        self._known.pop(turn_id, None)
        self._known[turn_id] = epoch
        self._own.add(turn_id)
        if len(self._known) > self._most:
            self.end(next(iter(self._known)))

    def of(self, turn_id: TurnId) -> int | None:
        """What the connection writes a turn under; None where it neither opened nor resumed it."""
        return self._known.get(turn_id)

    def wrote(self, turn_id: TurnId) -> None:
        """The present caller has written to the turn."""
        if turn_id in self._known:
            self._own.add(turn_id)

    def end(self, turn_id: TurnId) -> None:
        """The turn has ended."""
        self._known.pop(turn_id, None)
        self._own.discard(turn_id)

    def change_caller(self) -> None:
        """Somebody else is the caller: what that one may write is to be seen."""
        self._own.clear()

    def own(self) -> Mapping[TurnId, int]:
        """The turns that the present caller writes."""
        return {turn_id: self._known[turn_id] for turn_id in self._own}
