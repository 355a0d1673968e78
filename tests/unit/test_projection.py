"""One channel by itself: what a subscriber puts together from its frames is what the writer wrote."""

import json
import os
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from app.conversations.events import BusEvent
from app.conversations.live.projection import (
    ConversationProjection,
    DatabaseSnapshot,
    Frame,
    OpenTurnRow,
    ProjectionLimits,
)
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.stores.subscription_store import EndedTurn
from app.core.ids import ConversationId, TenantId, TurnId, format_id

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TENANT, CONVERSATION = TenantId(UUID(int=1)), ConversationId(UUID(int=2))
TURN = TurnId(UUID(int=3))
EXAMPLES = int(os.environ.get("TURNKEEP_PROPERTY_EXAMPLES", "150"))


def row(turn_id: UUID = TURN, **more: Any) -> TurnRow:
    values: dict[str, Any] = dict.fromkeys(TurnRow._fields)
    values |= {
        "id": turn_id, "conversation_id": CONVERSATION, "rev": 0, "kind": "agent_message", "actor": "bot",
        "role": "assistant", "content_tokens": 0, "status": "pending", "occurred_at": NOW, "created_at": NOW,
        "index_state": "none",
    }  # fmt: skip
    return TurnRow(**(values | more))


def committed(turn_id: UUID, seq: int, rev: int, text: str = "x", **more: Any) -> TurnRow:
    given = {"status": "committed", "seq": seq, "position": seq, "rev": rev, "content": json.dumps(text)}
    return row(turn_id, **(given | more))


def delta(offset: int, text: str, *, epoch: int = 1, part: str = "content", turn: TurnId = TURN) -> BusEvent:
    return BusEvent("delta", TENANT, CONVERSATION, 0, turn, epoch, part, offset, text)


def bus_event(kind: Any, *, turn: TurnId | None = TURN, rev: int = 0) -> BusEvent:
    return BusEvent(kind, TENANT, CONVERSATION, rev, turn)


def snapshot(
    projection: ConversationProjection, *opened: tuple[UUID, int, str], seq: int = 0, rev: int = 0, rows: Any = (),
    ended: Any = None,
) -> list[Frame]:  # fmt: skip
    """What a look does: the rows, and open turns with their durable text."""
    projection.start_read()
    frames = projection.apply_rows(rows) if projection.position is not None else []
    known = {(turn_id, part): length for turn_id, part, length in projection.confirmed_lengths()}
    open_rows: list[OpenTurnRow] = []
    free_bytes, cut = projection.free_bytes(), False
    for turn_id, epoch, text in opened:
        rest = text[known.get((turn_id, "content"), 0) :]
        kept = rest.encode()[:free_bytes].decode(errors="ignore")
        free_bytes, cut = free_bytes - len(kept.encode()), cut or kept != rest
        open_rows.append(OpenTurnRow(row(turn_id), "w", epoch, {"content": kept} if kept else {}))
    frames += projection.apply_snapshot(DatabaseSnapshot(seq, rev, open_rows, ended or {}, cut))
    projection.end_read()
    return frames


class Reader:
    """A subscriber that applies frames as the guide says: by position, by offset."""

    def __init__(self, snapshot: Frame | None = None) -> None:
        self.live: dict[int, tuple[str, Any]] = {}
        self.texts: dict[str, str] = {}
        self.seen: list[str] = []
        if snapshot is not None:
            body = json.loads(snapshot.text)
            for turn in body["turns"]:
                self.commit(turn)
            for one in body["pending"]:
                self.texts[one["turn"]["id"]] = next((p["text"] for p in one["parts"]), "")

    def commit(self, turn: dict[str, Any]) -> None:
        self.texts.pop(turn["id"], None)
        self.live[turn["position"]] = (turn["id"], turn["content"])

    def apply(self, frames: list[Frame]) -> None:
        for frame in frames:
            body = json.loads(frame.text)
            self.seen.append(body["type"])
            match body["type"]:
                case "turn.opened":
                    self.texts[body["turn"]["id"]] = ""
                case "turn.delta":
                    held = self.texts[body["turn_id"]]
                    assert body["offset"] <= len(held), "a subscriber is never given text behind a hole"
                    self.texts[body["turn_id"]] = held[: body["offset"]] + body["delta"]
                case "turn.committed":
                    self.commit(body["turn"])
                case "turn.aborted":
                    self.texts.pop(body["turn_id"])
                case "turn.superseded":
                    self.live = {at: one for at, one in self.live.items() if one[0] != body["turn_id"]}
                case "turn.erased":
                    self.live = {at: (one[0], None if one[0] == body["turn_id"] else one[1])
                                 for at, one in self.live.items()}  # fmt: skip


def started(limits: ProjectionLimits | None = None) -> tuple[ConversationProjection, Reader]:
    projection, reader = ConversationProjection(limits), Reader()
    snapshot(projection)
    reader.apply(snapshot(projection, (TURN, 1, "")))
    return projection, reader


def test_text_that_follows_is_sent_at_once_and_a_repeat_is_not() -> None:
    projection, reader = started()
    for message in (delta(0, "ab"), delta(2, "cd"), delta(0, "ab"), delta(1, "bc"), delta(2, "cdef")):
        frames, need = projection.on_message(message)
        reader.apply(frames)
        assert need == "nothing"
    assert reader.texts[format_id(TURN)] == "abcdef"
    assert reader.seen.count("turn.delta") == 3


def test_text_behind_a_hole_waits_until_the_hole_is_filled_from_the_rows() -> None:
    projection, reader = started()
    frames, need = projection.on_message(delta(3, "def"))
    assert (frames, need) == ([], "soon")
    assert projection.has_incomplete_parts()
    reader.apply(snapshot(projection, (TURN, 1, "abc")))
    assert reader.texts[format_id(TURN)] == "abcdef"
    assert projection.next_read() == "nothing"


def test_a_hole_is_known_even_when_what_waits_is_too_much_to_keep() -> None:
    projection, reader = started(ProjectionLimits(messages=1))
    for offset in (3, 6, 9):
        projection.on_message(delta(offset, "abc"))
    reader.apply(snapshot(projection, (TURN, 1, "abc")))
    assert reader.texts[format_id(TURN)] == "abcabc"
    assert projection.next_read() == "soon"
    reader.apply(snapshot(projection, (TURN, 1, "abc" * 4)))
    assert reader.texts[format_id(TURN)] == "abc" * 4
    assert projection.next_read() == "nothing"


def test_a_higher_epoch_begins_with_the_durable_text_and_a_lower_one_is_ignored() -> None:
    projection, reader = started()
    reader.apply(projection.on_message(delta(0, "durable, and lost"))[0])
    frames, need = projection.on_message(delta(12, "told again", epoch=2))
    assert (frames, need) == ([], "now")
    reader.apply(snapshot(projection, (TURN, 2, "durable, and")))
    assert reader.texts[format_id(TURN)] == "durable, andtold again"
    assert projection.on_message(delta(17, "late", epoch=1)) == ([], "nothing")


def test_text_that_differs_cuts_what_is_held_and_the_rows_decide() -> None:
    projection, reader = started()
    reader.apply(projection.on_message(delta(0, "one two"))[0])
    frames, need = projection.on_message(delta(4, "TWO"))
    reader.apply(frames)
    assert (reader.texts[format_id(TURN)], need) == ("one TWO", "soon")
    reader.apply(snapshot(projection, (TURN, 1, "one")))
    assert projection.next_read() == "soon", "the rows do not reach that far yet"
    reader.apply(snapshot(projection, (TURN, 1, "one two three")))
    assert reader.texts[format_id(TURN)] == "one two three"
    assert projection.next_read() == "nothing"


def test_text_of_a_turn_that_is_not_known_waits_for_its_rows_and_is_dropped_when_it_has_ended() -> None:
    projection, reader = started()
    other = TurnId(UUID(int=9))
    assert projection.on_message(delta(0, "ab", turn=other)) == ([], "now")
    reader.apply(snapshot(projection, (TURN, 1, ""), (other, 1, "")))
    assert reader.texts[format_id(other)] == "ab"
    gone = TurnId(UUID(int=10))
    projection.on_message(delta(0, "ab", turn=gone))
    reader.apply(snapshot(projection, (TURN, 1, ""), (other, 1, "ab")))
    assert projection.next_read() == "nothing"


def test_changes_that_are_announced_during_a_read_are_read_again() -> None:
    projection, _ = started()
    projection.start_read()
    projection.on_message(delta(0, "ab", turn=TurnId(UUID(int=9))))
    projection.apply_snapshot(DatabaseSnapshot(0, 0, [OpenTurnRow(row(), "w", 1, {})], {}))
    projection.end_read()
    assert projection.next_read() == "now"
    snapshot(projection, (TURN, 1, ""))
    assert projection.next_read() == "nothing", "and dropped the second time"


def test_an_end_is_a_commit_or_an_abort_and_presence_follows() -> None:
    projection, reader = started()
    other = UUID(int=9)
    reader.apply(snapshot(projection, (TURN, 1, ""), (other, 1, "half")))
    rows = [committed(TURN, 1, 1, "whole")]
    ended = {TURN: EndedTurn("committed"), other: EndedTurn("aborted", 4)}
    frames = snapshot(projection, seq=1, rev=1, rows=rows, ended=ended)
    assert [frame.type for frame in frames] == ["turn.committed", "turn.aborted", "presence"]
    assert json.loads(frames[1].text)["length"] == 4
    reader.apply(frames)
    assert reader.live == {1: (format_id(TURN), "whole")}
    assert reader.texts == {}


def test_a_revision_supersedes_before_it_commits_and_each_row_carries_its_place() -> None:
    projection, reader = ConversationProjection(), Reader()
    snapshot(projection)
    first, second, third = (UUID(int=n) for n in (21, 22, 23))
    reader.apply(snapshot(projection, rows=[committed(first, 1, 1), committed(second, 2, 1)], seq=2, rev=1))
    revised = [
        committed(first, 1, 2, superseded_by=third),
        committed(second, 2, 2, superseded_by=third),
        committed(third, 3, 2, "new", position=1),
    ]
    frames = snapshot(projection, rows=revised, seq=3, rev=2)
    assert [(frame.type, frame.position) for frame in frames] == [
        ("turn.superseded", (2, 1)), ("turn.superseded", (2, 2)), ("turn.committed", (2, 3)),
    ]  # fmt: skip
    reader.apply(frames)
    assert reader.live == {1: (format_id(third), "new")}
    frames = snapshot(projection, rows=[revised[2]._replace(rev=3, content=None, erased_at=NOW)], seq=3, rev=3)
    reader.apply(frames)
    assert [frame.type for frame in frames] == ["turn.erased"]
    assert reader.live == {1: (format_id(third), None)}


def test_the_rest_of_a_rev_that_was_sent_in_part_is_read() -> None:
    projection = ConversationProjection()
    snapshot(projection)
    projection.start_read()
    projection.apply_rows([committed(UUID(int=21), 1, 1)])
    projection.end_read()
    assert projection.on_message(bus_event("changed", turn=None, rev=1)) == ([], "now")
    snapshot(projection, seq=2, rev=1, rows=[committed(UUID(int=22), 2, 1)])
    assert projection.on_message(bus_event("changed", turn=None, rev=1)) == ([], "nothing")


def test_a_turn_that_was_committed_and_superseded_between_two_reads_is_sent_as_both() -> None:
    projection, reader = ConversationProjection(), Reader()
    snapshot(projection)
    first, second = UUID(int=21), UUID(int=22)
    rows = [committed(first, 1, 2, superseded_by=second), committed(second, 2, 2, position=1)]
    frames = snapshot(projection, rows=rows, seq=2, rev=2)
    assert [(frame.type, frame.position) for frame in frames] == [
        ("turn.committed", None), ("turn.superseded", (2, 1)), ("turn.committed", (2, 2)),
    ]  # fmt: skip
    reader.apply(frames)
    assert reader.live == {1: (format_id(second), "x")}


class World:
    """A writer that is held by one process after another, its rows, and messages that may be lost or late."""

    def __init__(self, data: st.DataObject, open_bytes: int = 10_000) -> None:
        self.draw = data.draw
        self.text = ""
        self.durable = 0
        self.epoch = 1
        self.late: list[BusEvent] = []
        self.projection, self.reader = started(ProjectionLimits(messages=4, characters=200, open_bytes=open_bytes))
        self.readers = [self.reader]

    def deliver(self, message: BusEvent) -> None:
        frames, _ = self.projection.on_message(message)
        for reader in self.readers:
            reader.apply(frames)

    def publish(self, message: BusEvent) -> None:
        match self.draw(st.sampled_from(["now", "now", "now", "twice", "late", "lost"])):
            case "now":
                self.deliver(message)
            case "twice":
                self.deliver(message)
                self.deliver(message)
            case "late":
                self.late.append(message)
            case _:
                pass

    def write(self) -> None:
        piece = self.draw(st.text("abc😀", min_size=1, max_size=4))
        self.publish(delta(len(self.text), piece, epoch=self.epoch))
        self.text += piece

    def flush(self) -> None:
        self.durable = self.draw(st.integers(self.durable, len(self.text)))

    def deliver_late(self) -> None:
        if self.late:
            self.deliver(self.late.pop(self.draw(st.integers(0, len(self.late) - 1))))

    def take_over(self) -> None:
        """Another process holds the turn: what was not flushed is gone, the epoch stays."""
        self.text = self.text[: self.durable]

    def resume(self) -> None:
        self.text = self.text[: self.durable]
        self.epoch += 1
        self.publish(bus_event("resumed"))

    def snapshot(self) -> None:
        frames = snapshot(self.projection, (TURN, self.epoch, self.text[: self.durable]))
        for reader in self.readers:
            reader.apply(frames)

    def join(self) -> None:
        self.snapshot()
        self.readers.append(Reader(self.projection.last_snapshot_page([])))


def held_bytes(projection: ConversationProjection) -> int:
    return sum(len(part.text.encode()) for pending in projection.pending() for part in pending.parts)


def test_of_open_turns_so_much_text_is_held_and_shown_and_the_rest_when_one_ends() -> None:
    projection, reader = ConversationProjection(ProjectionLimits(open_bytes=10)), Reader()
    other = TurnId(UUID(int=4))
    snapshot(projection)
    reader.apply(snapshot(projection, (TURN, 1, "123456"), (other, 1, "")))
    frames, need = projection.on_message(delta(0, "äö", turn=other))
    reader.apply(frames)
    assert (need, held_bytes(projection)) == ("nothing", 10)
    for message in (delta(6, "7"), delta(2, "ü", turn=other), delta(9, "gap")):
        assert projection.on_message(message) == ([], "nothing")
    assert projection.next_read() == "nothing"
    reader.apply(snapshot(projection, (TURN, 1, "1234567890123"), (other, 1, "äöü")))
    assert reader.texts == {format_id(TURN): "1234567890", format_id(other): "äö"}, "what is not confirmed counts less"
    late = Reader(projection.last_snapshot_page([]))
    assert late.texts == reader.texts
    assert projection.next_read() == "nothing"
    rows = [committed(TURN, 1, 1, "1234567890123")]
    frames = snapshot(projection, (other, 1, "äöü"), seq=1, rev=1, rows=rows, ended={TURN: EndedTurn("committed")})
    frames += snapshot(projection, (other, 1, "äöü"), seq=1, rev=1) if projection.next_read() == "now" else []
    for one in (reader, late):
        one.apply(frames)
        assert one.live == {1: (format_id(TURN), "1234567890123")}
        assert one.texts == {format_id(other): "äöü"}
    frames, _ = projection.on_message(delta(3, "!", turn=other))
    reader.apply(frames)
    assert reader.texts == {format_id(other): "äöü!"}


@settings(max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_for_any_loss_on_the_bus_memory_is_limited_and_every_reader_ends_with_all(data: st.DataObject) -> None:
    world = World(data, open_bytes=data.draw(st.integers(1, 30)))
    steps = [world.write, world.write, world.write, world.flush, world.deliver_late, world.snapshot, world.take_over,
             world.resume, world.join]  # fmt: skip
    for _ in range(data.draw(st.integers(1, 25))):
        data.draw(st.sampled_from(steps))()
        held = {reader.texts[format_id(TURN)] for reader in world.readers}
        assert len(held) == 1, "every reader holds the same"
        assert len(held.pop().encode()) == held_bytes(world.projection) <= 60
        assert world.projection._counter.bytes == held_bytes(world.projection)  # noqa: SLF001
    rounds = 0
    while rounds == 0 or world.projection.next_read() != "nothing":
        world.snapshot()
        rounds += 1
        assert rounds < 20, "looks come to an end"
    rows = [committed(TURN, 1, 1, world.text)]
    frames = snapshot(world.projection, seq=1, rev=1, rows=rows, ended={TURN: EndedTurn("committed")})
    for reader in world.readers:
        reader.apply(frames)
        assert reader.live == {1: (format_id(TURN), world.text)}
        assert reader.texts == {}
    assert world.projection._counter.bytes == 0  # noqa: SLF001


@settings(max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_for_any_loss_on_the_bus_every_reader_ends_with_the_written_text(data: st.DataObject) -> None:
    world = World(data)
    steps = [world.write, world.write, world.write, world.flush, world.deliver_late, world.snapshot, world.take_over,
             world.resume, world.join]  # fmt: skip
    for _ in range(data.draw(st.integers(1, 25))):
        data.draw(st.sampled_from(steps))()
        held = {reader.texts[format_id(TURN)] for reader in world.readers}
        assert len(held) == 1, "every reader holds the same"
    while world.late:
        world.deliver_late()
    world.durable = len(world.text)
    rounds = 0
    while rounds == 0 or world.projection.next_read() != "nothing":
        world.snapshot()
        rounds += 1
        assert rounds < 20, "looks come to an end once all is durable"
    for reader in world.readers:
        # more than is durable may be held of a process that is gone, until its writer goes on
        assert reader.texts[format_id(TURN)].startswith(world.text)
    rows = [committed(TURN, 1, 1, world.text)]
    frames = snapshot(world.projection, seq=1, rev=1, rows=rows, ended={TURN: EndedTurn("committed")})
    for reader in world.readers:
        reader.apply(frames)
        assert reader.live == {1: (format_id(TURN), world.text)}
        assert reader.texts == {}
