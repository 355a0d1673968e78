"""The state of a followed conversation, and the entries that each frame adds. Pure.

Invariants: each state of a turn has one entry, also after lost connections. The text of an open turn follows the
offsets of the frames, so text that was lost in a crash is removed here too.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, TypeAlias, assert_never

from pydantic import Field, TypeAdapter, ValidationError

from app.conversations.schemas.conversations import Turn
from app.conversations.schemas.frames import (
    AckFrame,
    ErrorFrame,
    PendingTurn,
    PongFrame,
    PresenceFrame,
    RereadFrame,
    ServerFrame,
    SnapshotFrame,
    SummaryCreatedFrame,
    TurnAbortedFrame,
    TurnCommittedFrame,
    TurnDeltaFrame,
    TurnErasedFrame,
    TurnOpenedFrame,
    TurnSupersededFrame,
)

_MAX_REMEMBERED: Final = 10_000
_ADAPTER: Final[TypeAdapter[ServerFrame]] = TypeAdapter(Annotated[ServerFrame, Field(discriminator="type")])

Change: TypeAlias = Literal["said", "replaced", "erased", "given up"]


@dataclass(frozen=True, slots=True)
class TailEntry:
    """A final entry: a committed turn, or the change of a turn."""

    change: Change
    turn_id: str
    turn: Turn | None = None
    open_turn: "OpenText | None" = None


@dataclass(slots=True)
class OpenText:
    """An open turn, and its text so far by parts."""

    actor: str
    role: str
    parts: dict[str, str] = field(default_factory=dict[str, str])


class GapError(Exception):
    """Raised when text is missing: subscribe again."""


def read(text: str) -> ServerFrame | None:
    """Parse a frame; None for an unknown type, which a newer server may send."""
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError:
        return None


class View:
    """The known state of one conversation."""

    def __init__(self, after_rev: int | None) -> None:
        self.after_rev = after_rev
        """The rev of the last event; a new subscription starts after it."""
        self.open: dict[str, OpenText] = {}
        self._seen: set[tuple[str, int, Change]] = set()
        self._order: deque[tuple[str, int, Change]] = deque()

    def apply(self, frame: ServerFrame) -> list[TailEntry]:
        """Apply a frame, and return its entries. Raises GapError."""
        entries: list[TailEntry] = []
        match frame:
            case SnapshotFrame():
                entries = self._snapshot(frame)
            case TurnOpenedFrame():
                self.open.setdefault(frame.turn.id, OpenText(frame.turn.actor, frame.turn.role))
            case TurnDeltaFrame():
                self._delta(frame)
            case TurnCommittedFrame():
                self._advance_to(frame.rev)
                self.open.pop(frame.turn.id, None)
                entries = self._turn(frame.turn)
            case TurnAbortedFrame():
                given_up = self.open.pop(frame.turn_id, None)
                entries = [] if given_up is None else [TailEntry("given up", frame.turn_id, open_turn=given_up)]
            case TurnSupersededFrame():
                self._advance_to(frame.rev)
                entries = self._entry_once("replaced", frame.turn_id, frame.rev)
            case TurnErasedFrame():
                self._advance_to(frame.rev)
                entries = self._entry_once("erased", frame.turn_id, frame.rev)
            case SummaryCreatedFrame() | PresenceFrame() | RereadFrame() | ErrorFrame() | AckFrame() | PongFrame():
                pass
            case _:
                assert_never(frame)
        return entries

    def _snapshot(self, frame: SnapshotFrame) -> list[TailEntry]:
        entries = [one for turn in frame.turns for one in self._turn(turn)]
        if not frame.more:
            self.after_rev = frame.rev
            self.open = {one.turn.id: _open_text(one) for one in frame.pending}
        return entries

    def _advance_to(self, rev: int) -> None:
        # the turns of one append have the same rev: until a later rev arrives, some of them may be missing
        self.after_rev = max(self.after_rev or 0, rev - 1)

    def _turn(self, turn: Turn) -> list[TailEntry]:
        if turn.superseded_by is not None:
            return self._entry_once("replaced", turn.id, turn.rev) if turn.status == "committed" else []
        change: Change = "said" if turn.erased_at is None else "erased"
        return self._entry_once(change, turn.id, turn.rev, turn)

    def _entry_once(self, change: Change, turn_id: str, rev: int, turn: Turn | None = None) -> list[TailEntry]:
        key = (turn_id, rev, change)
        if key in self._seen:
            return []
        self._seen.add(key)
        self._order.append(key)
        if len(self._order) > _MAX_REMEMBERED:
            self._seen.discard(self._order.popleft())
        return [TailEntry(change, turn_id, turn)]

    def _delta(self, frame: TurnDeltaFrame) -> None:
        turn = self.open.get(frame.turn_id)
        current = "" if turn is None else turn.parts.get(frame.part, "")
        if turn is None or frame.offset > len(current):
            raise GapError
        turn.parts[frame.part] = current[: frame.offset] + frame.delta


def _open_text(pending: PendingTurn) -> OpenText:
    parts = {part.part: part.text for part in pending.parts}
    return OpenText(pending.turn.actor, pending.turn.role, parts)
