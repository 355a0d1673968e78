"""What the followers of one conversation have been told, and what a message or a look at its rows adds to that. Pure.

What always holds: frames say only what the rows say, or text that its writer sent under an epoch that had not ended
when it was read; the texts here are what a subscriber has that applies every frame; and whatever was lost, doubled or
came out of order on the bus, the next look at the rows puts right.

Frames of one look come in this order: rows by (rev, seq), so that of a revision the old turn is superseded before the
new one is committed; then turns that were opened, text, turns that were aborted, and who writes. A turn that was
committed and superseded between two looks is told as both.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias, cast
from uuid import UUID

from app.conversations.events import BusEvent
from app.conversations.live.open_text import Meter, Part, Text, same_length, size_of
from app.conversations.schemas.conversations import Turn
from app.conversations.schemas.frames import (
    PartText,
    PendingTurn,
    PresenceFrame,
    ServerFrame,
    SnapshotFrame,
    SummaryCreatedFrame,
    TurnAbortedFrame,
    TurnCommittedFrame,
    TurnDeltaFrame,
    TurnErasedFrame,
    TurnOpenedFrame,
    TurnSupersededFrame,
    WriterPresence,
)
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.stores.subscription_store import EndedTurn
from app.conversations.stores.summary_store import SummaryRow
from app.conversations.views import summary_view, turn_view
from app.core.ids import format_id

CONTENT: Final = "content"
LAST_SEQ: Final = 2**63 - 1
"""Stands behind every seq: (rev, LAST_SEQ) is the end of a rev."""


Position: TypeAlias = tuple[int, int]
"""A place among what changed: (rev, seq)."""

Need: TypeAlias = Literal["nothing", "now", "soon"]
"""Whether the rows have to be looked at: at once, or a debounce later, when text may have become durable."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame, written once for all subscribers. After it a reader goes on from `position`, where it has one."""

    type: str
    text: str
    size: int
    position: Position | None = None
    for_keys: bool = False
    """Not for holders of conversation tokens."""


class DerivedFrame(Protocol):
    """A frame about what is derived from turns above conversations; whoever derives it writes it."""

    @property
    def type(self) -> str:
        """Its type, in what clients are sent."""
        ...

    def model_dump_json(self) -> str:
        """The frame as JSON."""
        ...


def write_frame(frame: ServerFrame, position: Position | None = None) -> Frame:
    """Write a frame as JSON."""
    text = frame.model_dump_json()
    return Frame(frame.type, text, len(text.encode()), position)


def _write_derived(frame: DerivedFrame) -> Frame:
    text = frame.model_dump_json()
    return Frame(frame.type, text, len(text.encode()), for_keys=True)


@dataclass(frozen=True, slots=True)
class OpenRow:
    """An open turn as its rows have it, with the durable text of each part from where it was known to be durable."""

    row: TurnRow
    writer: str
    epoch: int
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DatabaseSnapshot:
    """The rest of what one look at a conversation's rows found, besides the rows that changed.

    `ended` is what became of turns that were known to be open and are not any more. `cut`: open turns have more durable
    text than there was room for.
    """

    seq: int
    rev: int
    opened: Sequence[OpenRow]
    ended: Mapping[UUID, EndedTurn]
    cut: bool = False
    summaries: Sequence[SummaryRow] = ()
    derived: Sequence[DerivedFrame] = ()


@dataclass(slots=True)
class _Pending:
    """An open turn."""

    turn: Turn
    writer: str
    epoch: int
    meter: Meter
    parts: dict[str, Part] = field(default_factory=dict[str, Part])

    def part(self, name: str) -> Part:
        part = self.parts.get(name)
        if part is None:
            part = self.parts[name] = Part(Text(self.meter))
        return part


@dataclass(frozen=True, slots=True)
class Waiting:
    """Limits on text: of what waits for what comes before it, and of what is held of all open turns."""

    messages: int = 256
    characters: int = 2**19
    open_bytes: int = 4 * 2**20


class ConversationProjection:
    """One conversation, as its followers in this process know it.

    Of open turns it holds so much text and no more. While that is full, their text grows no further for followers,
    until one of them has ended; a turn that is committed is told as a whole.
    """

    def __init__(self, limits: Waiting | None = None) -> None:
        self.told: Position | None = None
        """Rows up to here have been told; None before the first look."""
        self.seq = 0
        self._limits = limits or Waiting()
        self._pending: dict[UUID, _Pending] = {}
        self._waiting: dict[UUID, list[BusEvent]] = {}
        self._waiting_characters = 0
        self._looking = False
        self._during: set[UUID] = set()
        self._unsettled = False
        self._meter = Meter()
        self._is_full = False
        self._has_room_again = False

    # what is asked about it

    @property
    def rev(self) -> int:
        """The rev that was told last, of which there may be more."""
        return 0 if self.told is None else self.told[0]

    def pending_ids(self) -> list[UUID]:
        """The turns that are known to be open."""
        return list(self._pending)

    def fingerprint(self) -> str:
        """Stands for which turns are open, and under which epochs."""
        return fingerprint((turn_id, pending.epoch) for turn_id, pending in self._pending.items())

    def confirmed(self) -> list[tuple[UUID, str, int]]:
        """How much of each part (turn, part, length) of open turns was seen in the rows."""
        return [
            (turn_id, name, part.confirmed)
            for turn_id, pending in self._pending.items()
            for name, part in pending.parts.items()
        ]

    def room(self) -> int:
        """How many bytes of durable text may be read at the next look."""
        parts = [part for pending in self._pending.values() for part in pending.parts.values()]
        return max(0, self._limits.open_bytes - self._meter.bytes + sum(part.unconfirmed_size() for part in parts))

    def has_holes(self) -> bool:
        """Whether text is missing, or not confirmed: the rows have to be looked at again."""
        return any(part.is_open() for pending in self._pending.values() for part in pending.parts.values())

    def pending(self) -> list[PendingTurn]:
        """The open turns with their text so far."""
        return [
            PendingTurn(
                turn=pending.turn,
                writer=pending.writer,
                parts=[PartText(part=name, text=part.text.value()) for name, part in pending.parts.items()],
            )
            for pending in self._pending.values()
        ]

    # messages

    def hear(self, told: BusEvent) -> tuple[list[Frame], Need]:
        """What a message adds, and whether the rows have to be looked at for it."""
        match told.what:
            case "delta":
                return self._hear_delta(told)
            case "changed":
                known = self.told is not None and not self._looking and (told.rev, LAST_SEQ) <= self.told
                return [], "nothing" if known else "now"
            case "wanted":
                return [], "nothing"
            case _:
                return [], "now"

    def _hear_delta(self, told: BusEvent) -> tuple[list[Frame], Need]:
        turn_id = cast("UUID", told.turn_id)
        pending = self._pending.get(turn_id)
        if pending is None or told.epoch > pending.epoch:
            # what of a turn's text an epoch begins with, only the rows can tell
            self._wait(turn_id, told)
            return [], "now"
        if told.epoch < pending.epoch:
            return [], "nothing"
        if self._is_full:
            return [], "nothing"  # it will be found in the rows, once there is room
        part = pending.part(told.part)
        if told.offset > part.text.length:
            part.expected = max(part.expected, told.offset + len(told.text))
            self._wait(turn_id, told)
            return [], "soon"
        frames = self._apply(turn_id, told.part, part, told.offset, told.text)
        if turn_id in self._waiting:
            frames += self._apply_waiting(turn_id, pending)
        return frames, "soon" if part.is_open() else "nothing"

    def _wait(self, turn_id: UUID, told: BusEvent) -> None:
        count = sum(len(waiting) for waiting in self._waiting.values())
        if count >= self._limits.messages or self._waiting_characters + len(told.text) > self._limits.characters:
            return  # it will be found in the rows
        self._waiting.setdefault(turn_id, []).append(told)
        self._waiting_characters += len(told.text)
        if self._looking:
            self._during.add(turn_id)

    def _forget_waiting(self, turn_id: UUID) -> list[BusEvent]:
        waiting = self._waiting.pop(turn_id, [])
        self._waiting_characters -= sum(len(told.text) for told in waiting)
        return waiting

    def _apply_waiting(self, turn_id: UUID, pending: _Pending) -> list[Frame]:
        frames: list[Frame] = []
        # after a look, a later epoch than it found is one that began since; what was heard before it is of none
        may_begin = not self._looking or turn_id in self._during
        for told in sorted(self._forget_waiting(turn_id), key=lambda told: (told.epoch, told.offset)):
            part = pending.part(told.part)
            if told.epoch > pending.epoch:
                if may_begin:
                    self._wait(turn_id, told)
            elif told.epoch == pending.epoch and told.offset <= part.text.length:
                frames += self._apply(turn_id, told.part, part, told.offset, told.text)
            elif told.epoch == pending.epoch:
                part.expected = max(part.expected, told.offset + len(told.text))
                self._wait(turn_id, told)
        return frames

    def _apply(self, turn_id: UUID, name: str, part: Part, offset: int, text: str) -> list[Frame]:
        """Put text at an offset that is not beyond what is held. What is there already says nothing new."""
        held = part.text.length
        if offset < held:
            there = part.text.value()[offset : offset + len(text)]
            if text.startswith(there):
                offset, text = offset + len(there), text[len(there) :]
                if not text:
                    return []
            else:
                same = same_length(there, text)
                offset, text = offset + same, text[same:]
                if offset < part.confirmed:
                    return []  # of a writer that had been fenced off
                if not self._fits(text):
                    return []
                part.text.cut(offset)
                part.expected = 0
                # either is of such a writer: the rows will show which
                part.unsure = max(part.unsure, offset + len(text))
        elif not text:
            return []
        if not self._fits(text):
            return []
        part.text.append(text)
        return [_delta(turn_id, name, offset, text)]

    def _fits(self, text: str) -> bool:
        self._is_full = self._is_full or self._meter.bytes + size_of(text) > self._limits.open_bytes
        return not self._is_full

    # looks at the rows

    def begin_look(self) -> None:
        """The rows are being looked at: what is heard from now on may be newer than what is found."""
        self._looking = True
        self._during = set()
        self._has_room_again = False

    def end_look(self) -> None:
        """The look is over, well or not."""
        self._looking = False

    def tell_rows(self, rows: Iterable[TurnRow]) -> list[Frame]:
        """What rows that changed say, which come by (rev, seq)."""
        frames: list[Frame] = []
        for row in rows:
            frames += self._row_frames(row)
            self.told = (row.rev, row.seq or 0)
        return frames

    def _row_frames(self, row: TurnRow) -> list[Frame]:
        turn_id = format_id(row.id)
        said: list[ServerFrame] = []
        is_new = (row.seq or 0) > self.seq
        if is_new or (row.superseded_by is None and row.erased_at is None):
            said.append(TurnCommittedFrame(type="turn.committed", rev=row.rev, turn=turn_view(row)))
        if row.superseded_by is not None:
            by = format_id(row.superseded_by)
            said.append(TurnSupersededFrame(type="turn.superseded", rev=row.rev, turn_id=turn_id, superseded_by=by))
        if row.erased_at is not None and not is_new:
            said.append(TurnErasedFrame(type="turn.erased", rev=row.rev, turn_id=turn_id))
        position = (row.rev, row.seq or 0)
        # who has only the first of two goes on before both
        return [write_frame(one, position if one is said[-1] else None) for one in said]

    def apply_snapshot(self, snapshot: DatabaseSnapshot) -> list[Frame]:
        """What else a look found. After it everything up to its rev is told."""
        before = self._pending.keys() | set[UUID]()
        frames = [
            write_frame(SummaryCreatedFrame(type="summary.created", rev=row.rev, summary=summary_view(row)))
            for row in snapshot.summaries
        ]
        frames += [_write_derived(frame) for frame in snapshot.derived]
        self._is_full = snapshot.cut
        for opened in snapshot.opened:
            frames += self._meet(opened)
        frames += self._end_missing(snapshot)
        for turn_id in [one for one in self._waiting if one not in self._pending and one not in self._during]:
            self._forget_waiting(turn_id)  # it had ended before it was heard of
        if before != self._pending.keys():
            frames.append(write_frame(self._presence()))
        self.told, self.seq = (snapshot.rev, LAST_SEQ), snapshot.seq
        return frames

    def needs_look(self) -> Need:
        """Whether the rows have to be looked at again after a look."""
        if any(
            turn_id not in self._pending or any(told.epoch > self._pending[turn_id].epoch for told in waiting)
            for turn_id, waiting in self._waiting.items()
        ):
            return "now"
        if self._is_full:
            return "now" if self._has_room_again else "nothing"
        return "soon" if self.has_holes() else "nothing"

    def mark_uncertain(self) -> None:
        """Text may have been told that was not heard, and is no row yet."""
        self._unsettled = bool(self._pending)

    def reconcile(self) -> bool:
        """Whether, besides what `needs_look` says, one more look is due when such text has become a row."""
        unsettled, self._unsettled = self._unsettled, False
        return unsettled

    def _meet(self, opened: OpenRow) -> list[Frame]:
        turn_id = opened.row.id
        frames: list[Frame] = []
        pending = self._pending.get(turn_id)
        if pending is None:
            pending = _Pending(turn_view(opened.row), opened.writer, opened.epoch, self._meter)
            self._pending[turn_id] = pending
            frames.append(write_frame(TurnOpenedFrame(type="turn.opened", turn=pending.turn, writer=pending.writer)))
            self._unsettled = True
        begins_anew = opened.epoch != pending.epoch
        pending.epoch = opened.epoch
        for name in list(pending.parts.keys() | opened.texts.keys()):
            part = pending.part(name)
            frames += self._confirm(turn_id, name, part, opened.texts.get(name, ""))
            if begins_anew:
                if part.text.length > part.confirmed:
                    part.text.cut(part.confirmed)
                    frames.append(_delta(turn_id, name, part.confirmed, ""))
                part.expected = part.unsure = 0
            elif part.confirmed >= part.unsure:
                part.unsure = 0
        frames += self._apply_waiting(turn_id, pending)
        for name, part in pending.parts.items():
            if part.looked():
                kept = [told for told in self._forget_waiting(turn_id) if told.part != name]
                for told in kept:
                    self._wait(turn_id, told)
        return frames

    def _confirm(self, turn_id: UUID, name: str, part: Part, durable: str) -> list[Frame]:
        """Take more durable text of a part. What is held beyond it is kept, unless it followed something else."""
        start, part.confirmed = part.confirmed, part.confirmed + len(durable)
        held = part.text.value()[start : part.confirmed]
        if held == durable:
            return []
        same = same_length(held, durable)
        if same < len(held):
            part.expected = max(part.expected, part.text.length)
            part.text.cut(start + same)
        part.text.append(durable[same:])
        return [_delta(turn_id, name, start + same, durable[same:])]

    def _end_missing(self, snapshot: DatabaseSnapshot) -> list[Frame]:
        frames: list[Frame] = []
        still = {opened.row.id for opened in snapshot.opened}
        for turn_id in [one for one in self._pending if one not in still]:
            row = snapshot.ended.get(turn_id)
            if row is not None and row.status == "pending":
                continue
            pending = self._pending.pop(turn_id)
            for part in pending.parts.values():
                self._meter.bytes -= part.text.size
            self._has_room_again = True
            self._forget_waiting(turn_id)
            if row is None or row.status == "aborted":
                length = pending.part(CONTENT).text.length if row is None else row.length
                frames.append(
                    write_frame(TurnAbortedFrame(type="turn.aborted", turn_id=format_id(turn_id), length=length))
                )
        return frames

    def _presence(self) -> PresenceFrame:
        writers = [
            WriterPresence(turn_id=pending.turn.id, writer=pending.writer, actor=pending.turn.actor)
            for pending in self._pending.values()
        ]
        return PresenceFrame(type="presence", writers=writers)

    # snapshots

    def last_snapshot(self, turns: Sequence[Turn]) -> Frame:
        """The last frame of a snapshot: what comes after it is told from now on."""
        frame = SnapshotFrame(
            type="snapshot", seq=self.seq, rev=self.rev, turns=list(turns), pending=self.pending(), more=False
        )
        return write_frame(frame, (self.rev, LAST_SEQ))

    def part_of_snapshot(self, turns: Sequence[Turn], *, position: Position | None) -> Frame:
        """A frame of a snapshot that more follow."""
        frame = SnapshotFrame(type="snapshot", seq=self.seq, rev=self.rev, turns=list(turns), pending=[], more=True)
        return write_frame(frame, position)


def snapshot_parts(turns: Sequence[Turn], *, max_bytes: int) -> list[list[Turn]]:
    """Cut turns where a frame of them would grow too large; the last part may be empty, where there are none."""
    parts: list[list[Turn]] = [[]]
    size = 0
    for turn in turns:
        length = len(turn.model_dump_json())
        if parts[-1] and size + length > max_bytes:
            parts.append([])
            size = 0
        parts[-1].append(turn)
        size += length
    return parts


def fingerprint(opened: Iterable[tuple[UUID, int]]) -> str:
    """Stands for open turns with their epochs."""
    text = ",".join(sorted(f"{turn_id}:{epoch}" for turn_id, epoch in opened))
    return hashlib.sha256(text.encode()).hexdigest()


def _delta(turn_id: UUID, part: str, offset: int, text: str) -> Frame:
    frame = TurnDeltaFrame(type="turn.delta", turn_id=format_id(turn_id), part=part, offset=offset, delta=text)
    return write_frame(frame)
