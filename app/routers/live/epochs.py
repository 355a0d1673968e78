"""Epochs under which a connection writes turns. They distinguish it from earlier and later writers of the same turn.

Invariants: an epoch is known until the turn is known to have ended, even if another writer writes it now, so that later
frames are refused. The number of known turns is limited, to far more than can be open in a conversation. Leases are
renewed only for turns that the current caller may write.
"""

from collections.abc import Mapping

from app.core.ids import TurnId


class Epochs:
    """The turns that one connection opened or resumed, and which of them the current caller writes."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._known: dict[TurnId, int] = {}
        self._own: set[TurnId] = set()

    def begin(self, turn_id: TurnId, epoch: int) -> None:
        """Store the epoch of a turn that was opened or resumed."""
        self._known.pop(turn_id, None)
        self._known[turn_id] = epoch
        self._own.add(turn_id)
        if len(self._known) > self._most:
            self.end(next(iter(self._known)))

    def of(self, turn_id: TurnId) -> int | None:
        """Return the epoch under which the connection writes a turn; None if it neither opened nor resumed the turn."""
        return self._known.get(turn_id)

    def record_write(self, turn_id: TurnId) -> None:
        """Record that the current caller has written to the turn."""
        if turn_id in self._known:
            self._own.add(turn_id)

    def end(self, turn_id: TurnId) -> None:
        """Remove a turn that has ended."""
        self._known.pop(turn_id, None)
        self._own.discard(turn_id)

    def change_caller(self) -> None:
        """Clear the turns that the caller writes: a new caller must first write to a turn."""
        self._own.clear()

    def own(self) -> Mapping[TurnId, int]:
        """Return the turns that the current caller writes, with their epochs."""
        return {turn_id: self._known[turn_id] for turn_id in self._own}
