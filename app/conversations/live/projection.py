"""The state of one conversation as its subscribers know it, and the frames that change it. Pure.

Frames come from bus events and from reads of the rows. Invariants: frames contain only data of the rows, or text that a
writer sent under an epoch that was current when it was read. The texts here equal those of a subscriber that applies
every frame. The next read of the rows corrects everything that was lost, duplicated or reordered on the bus.

The frames of one read come in this order: rows by (rev, seq), so that a revision supersedes the old turn before it
commits the new one; then opened turns, text, aborted turns, and presence. A turn that was committed and superseded
between two reads has both frames.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias, cast
from uuid import UUID

from app.conversations.events import BusEvent
from app.conversations.live.open_text import ByteCounter, OpenPart, TextBuffer, common_prefix_length, utf8_length
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
"""Greater than every seq: (rev, LAST_SEQ) is the end of a rev."""


Position: TypeAlias = tuple[int, int]
"""A position in the order of changes: (rev, seq)."""

ReadUrgency: TypeAlias = Literal["nothing", "now", "soon"]
"""When the rows must be read: not at all, at once, or a debounce later, when text may have become durable."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame, encoded once for all subscribers. A subscriber that has read it resumes from its `position`, if any."""

    type: str
    text: str
    size: int
    position: Position | None = None
    is_for_keys_only: bool = False
    """Not sent to callers with a conversation token."""


class DerivedFrame(Protocol):
    """A frame about data that another package derives from turns, such as facts."""

    @property
    def type(self) -> str:
        """The `type` of the frame."""
        ...

    def model_dump_json(self) -> str:
        """Encode the frame as JSON."""
        ...


def encode_frame(frame: ServerFrame, position: Position | None = None) -> Frame:
    """Encode a frame as JSON."""
    text = frame.model_dump_json()
    return Frame(frame.type, text, len(text.encode()), position)


def _encode_derived(frame: DerivedFrame) -> Frame:
    text = frame.model_dump_json()
    return Frame(frame.type, text, len(text.encode()), is_for_keys_only=True)


@dataclass(frozen=True, slots=True)
class OpenTurnRow:
    """The row of an open turn, with the durable text of each part after its confirmed length."""

    row: TurnRow
    writer: str
    epoch: int
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DatabaseSnapshot:
    """The result of one read of a conversation, without the changed turns.

    `ended`: the status of turns that were known as open and are not open any more. `cut`: open turns have more durable
    text than fits into the limit.
    """

    seq: int
    rev: int
    opened: Sequence[OpenTurnRow]
    ended: Mapping[UUID, EndedTurn]
    cut: bool = False
    summaries: Sequence[SummaryRow] = ()
    derived: Sequence[DerivedFrame] = ()


@dataclass(slots=True)
class _PendingTurn:
    """An open turn."""

    turn: Turn
    writer: str
    epoch: int
    counter: ByteCounter
    parts: dict[str, OpenPart] = field(default_factory=dict[str, OpenPart])

    def part(self, name: str) -> OpenPart:
        part = self.parts.get(name)
        if part is None:
            part = self.parts[name] = OpenPart(TextBuffer(self.counter))
        return part


@dataclass(frozen=True, slots=True)
class ProjectionLimits:
    """Limits on events that are buffered until the text before them arrives, and on the text of all open turns."""

    messages: int = 256
    characters: int = 2**19
    open_bytes: int = 4 * 2**20
    """Four turns of the largest text, in memory once for each conversation that is followed."""


class ConversationProjection:
    """One conversation, as its subscribers in this process know it.

    The text of all open turns is limited. Above the limit, subscribers get no more text of open turns until one of
    them has ended; committed turns are always sent whole.
    """

    def __init__(self, limits: ProjectionLimits | None = None) -> None:
        self.position: Position | None = None
        """Rows up to this position were sent; None before the first read."""
        self.seq = 0
        self._limits = limits or ProjectionLimits()
        self._pending: dict[UUID, _PendingTurn] = {}
        self._buffered: dict[UUID, list[BusEvent]] = {}
        self._buffered_characters = 0
        self._is_reading = False
        self._received_during_read: set[UUID] = set()
        self._has_uncertain_text = False
        self._counter = ByteCounter()
        self._is_full = False
        self._has_freed_space = False

    # state

    @property
    def rev(self) -> int:
        """The rev of the last row that was sent; more rows of it may follow."""
        return 0 if self.position is None else self.position[0]

    def pending_ids(self) -> list[UUID]:
        """Return the ids of the turns that are known as open."""
        return list(self._pending)

    def fingerprint(self) -> str:
        """Return a digest of the open turns and their epochs."""
        return fingerprint((turn_id, pending.epoch) for turn_id, pending in self._pending.items())

    def confirmed_lengths(self) -> list[tuple[UUID, str, int]]:
        """Return the confirmed length of each part of the open turns, as (turn, part, length)."""
        return [
            (turn_id, name, part.confirmed_length)
            for turn_id, pending in self._pending.items()
            for name, part in pending.parts.items()
        ]

    def free_bytes(self) -> int:
        """Return the number of bytes of durable text that the next read may return."""
        parts = [part for pending in self._pending.values() for part in pending.parts.values()]
        return max(0, self._limits.open_bytes - self._counter.bytes + sum(part.unconfirmed_size() for part in parts))

    def has_incomplete_parts(self) -> bool:
        """Return whether text is missing or unconfirmed, so that the rows must be read again."""
        return any(part.is_incomplete() for pending in self._pending.values() for part in pending.parts.values())

    def pending(self) -> list[PendingTurn]:
        """Return the open turns with their text so far, as frames contain them."""
        return [
            PendingTurn(
                turn=pending.turn,
                writer=pending.writer,
                parts=[PartText(part=name, text=part.text.value()) for name, part in pending.parts.items()],
            )
            for pending in self._pending.values()
        ]

    # events

    def on_message(self, event: BusEvent) -> tuple[list[Frame], ReadUrgency]:
        """Apply an event. Return its frames, and when the rows must be read for it."""
        match event.kind:
            case "delta":
                return self._on_delta(event)
            case "changed":
                is_applied = (
                    self.position is not None and not self._is_reading and (event.rev, LAST_SEQ) <= self.position
                )
                return [], "nothing" if is_applied else "now"
            case "wanted":
                return [], "nothing"
            case _:
                return [], "now"

    def _on_delta(self, event: BusEvent) -> tuple[list[Frame], ReadUrgency]:
        turn_id = cast("UUID", event.turn_id)
        pending = self._pending.get(turn_id)
        if pending is None or event.epoch > pending.epoch:
            # Only the rows have the text with which an epoch starts.
            self._buffer_event(turn_id, event)
            return [], "now"
        if event.epoch < pending.epoch:
            return [], "nothing"
        if self._is_full:
            return [], "nothing"  # a later read finds it in the rows
        part = pending.part(event.part)
        if event.offset > part.text.length:
            part.expected_length = max(part.expected_length, event.offset + len(event.text))
            self._buffer_event(turn_id, event)
            return [], "soon"
        frames = self._apply(turn_id, event.part, part, event.offset, event.text)
        if turn_id in self._buffered:
            frames += self._apply_buffered(turn_id, pending)
        return frames, "soon" if part.is_incomplete() else "nothing"

    def _buffer_event(self, turn_id: UUID, event: BusEvent) -> None:
        count = sum(len(buffered) for buffered in self._buffered.values())
        if count >= self._limits.messages or self._buffered_characters + len(event.text) > self._limits.characters:
            return  # a later read finds it in the rows
        self._buffered.setdefault(turn_id, []).append(event)
        self._buffered_characters += len(event.text)
        if self._is_reading:
            self._received_during_read.add(turn_id)

    def _pop_buffered(self, turn_id: UUID) -> list[BusEvent]:
        buffered = self._buffered.pop(turn_id, [])
        self._buffered_characters -= sum(len(event.text) for event in buffered)
        return buffered

    def _apply_buffered(self, turn_id: UUID, pending: _PendingTurn) -> list[Frame]:
        frames: list[Frame] = []
        # after a read, only events received during it may belong to a later epoch than the read found
        may_buffer = not self._is_reading or turn_id in self._received_during_read
        for event in sorted(self._pop_buffered(turn_id), key=lambda event: (event.epoch, event.offset)):
            part = pending.part(event.part)
            if event.epoch > pending.epoch:
                if may_buffer:
                    self._buffer_event(turn_id, event)
            elif event.epoch == pending.epoch and event.offset <= part.text.length:
                frames += self._apply(turn_id, event.part, part, event.offset, event.text)
            elif event.epoch == pending.epoch:
                part.expected_length = max(part.expected_length, event.offset + len(event.text))
                self._buffer_event(turn_id, event)
        return frames

    def _apply(self, turn_id: UUID, name: str, part: OpenPart, offset: int, text: str) -> list[Frame]:
        """Write text at an offset within or at the end of a part; text that is already stored there adds no frame."""
        current = part.text.length
        if offset < current:
            existing = part.text.value()[offset : offset + len(text)]
            if text.startswith(existing):
                offset, text = offset + len(existing), text[len(existing) :]
                if not text:
                    return []
            else:
                prefix = common_prefix_length(existing, text)
                offset, text = offset + prefix, text[prefix:]
                if offset < part.confirmed_length:
                    return []  # from a fenced writer
                if not self._has_space_for(text):
                    return []
                part.text.truncate(offset)
                part.expected_length = 0
                # One of the two texts is from a fenced writer: the next read of the rows decides which.
                part.uncertain_until = max(part.uncertain_until, offset + len(text))
        elif not text:
            return []
        if not self._has_space_for(text):
            return []
        part.text.append(text)
        return [_delta(turn_id, name, offset, text)]

    def _has_space_for(self, text: str) -> bool:
        self._is_full = self._is_full or self._counter.bytes + utf8_length(text) > self._limits.open_bytes
        return not self._is_full

    # reads of the rows

    def start_read(self) -> None:
        """Start a read of the rows: events from now on may be newer than its result."""
        self._is_reading = True
        self._received_during_read = set()
        self._has_freed_space = False

    def end_read(self) -> None:
        """End a read of the rows, successful or not."""
        self._is_reading = False

    def apply_rows(self, rows: Iterable[TurnRow]) -> list[Frame]:
        """Return the frames of changed rows, which are ordered by (rev, seq)."""
        frames: list[Frame] = []
        for row in rows:
            frames += self._row_frames(row)
            self.position = (row.rev, row.seq or 0)
        return frames

    def _row_frames(self, row: TurnRow) -> list[Frame]:
        turn_id = format_id(row.id)
        row_frames: list[ServerFrame] = []
        is_new = (row.seq or 0) > self.seq
        if is_new or (row.superseded_by is None and row.erased_at is None):
            row_frames.append(TurnCommittedFrame(type="turn.committed", rev=row.rev, turn=turn_view(row)))
        if row.superseded_by is not None:
            by = format_id(row.superseded_by)
            row_frames.append(
                TurnSupersededFrame(type="turn.superseded", rev=row.rev, turn_id=turn_id, superseded_by=by)
            )
        if row.erased_at is not None and not is_new:
            row_frames.append(TurnErasedFrame(type="turn.erased", rev=row.rev, turn_id=turn_id))
        position = (row.rev, row.seq or 0)
        # only the last frame of a row has its position: after a disconnect between two frames, both are sent again
        return [encode_frame(frame, position if frame is row_frames[-1] else None) for frame in row_frames]

    def apply_snapshot(self, snapshot: DatabaseSnapshot) -> list[Frame]:
        """Apply the result of a read, and return its frames. All changes up to its rev are then sent."""
        before = set(self._pending)
        frames = [
            encode_frame(SummaryCreatedFrame(type="summary.created", rev=row.rev, summary=summary_view(row)))
            for row in snapshot.summaries
        ]
        frames += [_encode_derived(frame) for frame in snapshot.derived]
        self._is_full = snapshot.cut
        for opened in snapshot.opened:
            frames += self._apply_open_row(opened)
        frames += self._remove_ended(snapshot)
        for turn_id in self._buffered.keys() - self._pending.keys() - self._received_during_read:
            self._pop_buffered(turn_id)  # the turn had ended before its events arrived
        if before != self._pending.keys():
            frames.append(encode_frame(self._presence()))
        self.position, self.seq = (snapshot.rev, LAST_SEQ), snapshot.seq
        return frames

    def next_read(self) -> ReadUrgency:
        """Return when the rows must be read again after a read."""
        if any(
            turn_id not in self._pending or any(event.epoch > self._pending[turn_id].epoch for event in buffered)
            for turn_id, buffered in self._buffered.items()
        ):
            return "now"
        if self._is_full:
            return "now" if self._has_freed_space else "nothing"
        return "soon" if self.has_incomplete_parts() else "nothing"

    def mark_uncertain(self) -> None:
        """Record that events may have been lost whose text is not yet in the rows."""
        self._has_uncertain_text = bool(self._pending)

    def reconcile(self) -> bool:
        """Return whether one more read is due after `next_read`, for text that was uncertain."""
        unsettled, self._has_uncertain_text = self._has_uncertain_text, False
        return unsettled

    def _apply_open_row(self, opened: OpenTurnRow) -> list[Frame]:
        turn_id = opened.row.id
        frames: list[Frame] = []
        pending = self._pending.get(turn_id)
        if pending is None:
            pending = _PendingTurn(turn_view(opened.row), opened.writer, opened.epoch, self._counter)
            self._pending[turn_id] = pending
            frames.append(encode_frame(TurnOpenedFrame(type="turn.opened", turn=pending.turn, writer=pending.writer)))
            self._has_uncertain_text = True
        is_new_epoch = opened.epoch != pending.epoch
        pending.epoch = opened.epoch
        for name in list(pending.parts.keys() | opened.texts.keys()):
            part = pending.part(name)
            frames += self._confirm(turn_id, name, part, opened.texts.get(name, ""))
            if is_new_epoch:
                if part.text.length > part.confirmed_length:
                    part.text.truncate(part.confirmed_length)
                    frames.append(_delta(turn_id, name, part.confirmed_length, ""))
                part.expected_length = part.uncertain_until = 0
            elif part.confirmed_length >= part.uncertain_until:
                part.uncertain_until = 0
        frames += self._apply_buffered(turn_id, pending)
        for name, part in pending.parts.items():
            if part.record_read():
                later_events = [event for event in self._pop_buffered(turn_id) if event.part != name]
                for event in later_events:
                    self._buffer_event(turn_id, event)
        return frames

    def _confirm(self, turn_id: UUID, name: str, part: OpenPart, durable: str) -> list[Frame]:
        """Append durable text to the confirmed text of a part; keep unconfirmed text after it only if they agree."""
        start, part.confirmed_length = part.confirmed_length, part.confirmed_length + len(durable)
        current = part.text.value()[start : part.confirmed_length]
        if current == durable:
            return []
        prefix = common_prefix_length(current, durable)
        if prefix < len(current):
            part.expected_length = max(part.expected_length, part.text.length)
            part.text.truncate(start + prefix)
        part.text.append(durable[prefix:])
        return [_delta(turn_id, name, start + prefix, durable[prefix:])]

    def _remove_ended(self, snapshot: DatabaseSnapshot) -> list[Frame]:
        frames: list[Frame] = []
        open_ids = {opened.row.id for opened in snapshot.opened}
        for turn_id in [item for item in self._pending if item not in open_ids]:
            row = snapshot.ended.get(turn_id)
            if row is not None and row.status == "pending":
                continue
            pending = self._pending.pop(turn_id)
            for part in pending.parts.values():
                self._counter.bytes -= part.text.byte_size
            self._has_freed_space = True
            self._pop_buffered(turn_id)
            if row is None or row.status == "aborted":
                length = pending.part(CONTENT).text.length if row is None else row.length
                frames.append(
                    encode_frame(TurnAbortedFrame(type="turn.aborted", turn_id=format_id(turn_id), length=length))
                )
        return frames

    def _presence(self) -> PresenceFrame:
        writers = [
            WriterPresence(turn_id=pending.turn.id, writer=pending.writer, actor=pending.turn.actor)
            for pending in self._pending.values()
        ]
        return PresenceFrame(type="presence", writers=writers)

    # snapshots

    def last_snapshot_page(self, turns: Sequence[Turn]) -> Frame:
        """Return the last frame of a snapshot; live frames follow it."""
        frame = SnapshotFrame(
            type="snapshot", seq=self.seq, rev=self.rev, turns=list(turns), pending=self.pending(), more=False
        )
        return encode_frame(frame, (self.rev, LAST_SEQ))

    def snapshot_page(self, turns: Sequence[Turn], *, position: Position | None) -> Frame:
        """Return a frame of a snapshot that is not its last."""
        frame = SnapshotFrame(type="snapshot", seq=self.seq, rev=self.rev, turns=list(turns), pending=[], more=True)
        return encode_frame(frame, position)


def split_turns(turns: Sequence[Turn], *, max_bytes: int) -> list[list[Turn]]:
    """Split turns into parts of at most `max_bytes`; without turns, return one empty part."""
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
    """Return a digest of open turns and their epochs."""
    text = ",".join(sorted(f"{turn_id}:{epoch}" for turn_id, epoch in opened))
    return hashlib.sha256(text.encode()).hexdigest()


def _delta(turn_id: UUID, part: str, offset: int, text: str) -> Frame:
    frame = TurnDeltaFrame(type="turn.delta", turn_id=format_id(turn_id), part=part, offset=offset, delta=text)
    return encode_frame(frame)
