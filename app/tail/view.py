"""What a follower of a conversation knows, and what each frame adds to it. Pure.

What always holds: a turn is told once in each of its states, however often a connection was lost; the text of an open
turn is what its writer's offsets say, so text that a crash took back is gone here too.
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

_REMEMBERED: Final = 10_000
_ADAPTER: Final[TypeAdapter[ServerFrame]] = TypeAdapter(Annotated[ServerFrame, Field(discriminator="type")])

Change: TypeAlias = Literal["said", "replaced", "erased", "given up"]


@dataclass(frozen=True, slots=True)
class Told:
    """Something to print for good: a turn that is part of the conversation, or what became of one."""

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


class HoleError(Exception):
    """Raised when text was missed: subscribe again."""


def read(text: str) -> ServerFrame | None:
    """The frame; None for a type that this release does not know, which a newer server may send."""
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError:
        return None


class View:
    """What is known of one conversation."""

    def __init__(self, after_rev: int | None) -> None:
        self.after_rev = after_rev
        """Everything up to this rev has been told; subscribe after it."""
        self.open: dict[str, OpenText] = {}
        self._told: set[tuple[str, int, Change]] = set()
        self._order: deque[tuple[str, int, Change]] = deque()

    def apply(self, frame: ServerFrame) -> list[Told]:
        """Take a frame in; gives what is to be printed. Raises HoleError."""
        told: list[Told] = []
        match frame:
            case SnapshotFrame():
                told = self._snapshot(frame)
            case TurnOpenedFrame():
                self.open.setdefault(frame.turn.id, OpenText(frame.turn.actor, frame.turn.role))
            case TurnDeltaFrame():
                self._delta(frame)
            case TurnCommittedFrame():
                self._before(frame.rev)
                self.open.pop(frame.turn.id, None)
                told = self._turn(frame.turn)
            case TurnAbortedFrame():
                given_up = self.open.pop(frame.turn_id, None)
                told = [] if given_up is None else [Told("given up", frame.turn_id, open_turn=given_up)]
            case TurnSupersededFrame():
                self._before(frame.rev)
                told = self._once("replaced", frame.turn_id, frame.rev)
            case TurnErasedFrame():
                self._before(frame.rev)
                told = self._once("erased", frame.turn_id, frame.rev)
            case SummaryCreatedFrame() | PresenceFrame() | RereadFrame() | ErrorFrame() | AckFrame() | PongFrame():
                pass
            case _:
                assert_never(frame)
        return told

    def _snapshot(self, frame: SnapshotFrame) -> list[Told]:
        told = [one for turn in frame.turns for one in self._turn(turn)]
        if not frame.more:
            self.after_rev = frame.rev
            self.open = {one.turn.id: _open_text(one) for one in frame.pending}
        return told

    def _before(self, rev: int) -> None:
        # one append gives several turns one rev: until a later one comes, some of them may be missing
        self.after_rev = max(self.after_rev or 0, rev - 1)

    def _turn(self, turn: Turn) -> list[Told]:
        if turn.superseded_by is not None:
            return self._once("replaced", turn.id, turn.rev) if turn.status == "committed" else []
        change: Change = "said" if turn.erased_at is None else "erased"
        return self._once(change, turn.id, turn.rev, turn)

    def _once(self, change: Change, turn_id: str, rev: int, turn: Turn | None = None) -> list[Told]:
        key = (turn_id, rev, change)
        if key in self._told:
            return []
        self._told.add(key)
        self._order.append(key)
        if len(self._order) > _REMEMBERED:
            self._told.discard(self._order.popleft())
        return [Told(change, turn_id, turn)]

    def _delta(self, frame: TurnDeltaFrame) -> None:
        turn = self.open.get(frame.turn_id)
        held = "" if turn is None else turn.parts.get(frame.part, "")
        if turn is None or frame.offset > len(held):
            raise HoleError
        turn.parts[frame.part] = held[: frame.offset] + frame.delta


def _open_text(pending: PendingTurn) -> OpenText:
    parts = {part.part: part.text for part in pending.parts}
    return OpenText(pending.turn.actor, pending.turn.role, parts)
