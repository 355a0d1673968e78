"""What `turnkeep tail` knows, frame by frame."""

import json
from typing import Any

import pytest

from app.conversations.schemas.conversations import Turn
from app.tail.connection import TailTarget
from app.tail.view import GapError, TailEntry, View, read

TIME = "2026-05-03T10:00:00.000Z"


def turn(turn_id: str, content: str | None = None, **members: Any) -> dict[str, Any]:
    return dict.fromkeys(Turn.model_fields) | {
        "id": turn_id, "conversation_id": "c", "seq": 1, "position": 1, "rev": 1, "kind": "agent_message",
        "actor": "bot", "role": "assistant", "content": content, "tool_calls": [], "tool_results": [],
        "content_tokens": 0, "status": "committed", "metadata": {}, "occurred_at": TIME, "created_at": TIME,
        "committed_at": TIME, "index_state": "none",
    } | members  # fmt: skip


def take(view: View, type_: str, **members: Any) -> list[TailEntry]:
    frame = read(json.dumps({"type": type_, **members}))
    assert frame is not None
    return view.apply(frame)


def opened() -> View:
    view = View(None)
    take(view, "snapshot", seq=0, rev=0, turns=[], pending=[], more=False)
    take(view, "turn.opened", turn=turn("t", status="pending"), writer="w")
    return view


def test_a_delta_at_a_lower_offset_cuts_what_a_crash_took_back() -> None:
    view = opened()
    take(view, "turn.delta", turn_id="t", part="content", offset=0, delta="héllo 🌊 wor")
    take(view, "turn.delta", turn_id="t", part="content", offset=7, delta="! and on")
    assert view.open["t"].text == "héllo 🌊! and on"
    take(view, "turn.delta", turn_id="t", part="content", offset=3, delta="")
    assert view.open["t"].text == "hél"


@pytest.mark.parametrize("turn_id", ["t", "unknown"])
def test_a_delta_behind_a_hole_is_not_guessed(turn_id: str) -> None:
    with pytest.raises(GapError):
        take(opened(), "turn.delta", turn_id=turn_id, part="content", offset=1, delta="x")


def test_turns_that_share_a_rev_are_all_sent_when_the_connection_was_lost_between_them() -> None:
    view = opened()
    first = turn("a", "one", rev=3)
    assert [entry.turn_id for entry in take(view, "turn.committed", rev=3, turn=first)] == ["a"]
    assert view.after_rev == 2
    again = take(view, "snapshot", seq=2, rev=3, turns=[first, turn("b", "two", rev=3)], pending=[], more=False)
    assert [entry.turn_id for entry in again] == ["b"]
    assert view.after_rev == 3


def test_a_snapshot_in_several_frames_is_done_with_its_last() -> None:
    view = View(4)
    take(view, "snapshot", seq=9, rev=9, turns=[turn("a", "one", rev=5)], pending=[], more=True)
    assert view.after_rev == 4
    pending = [{"turn": turn("p", status="pending"), "writer": "w", "parts": [{"part": "content", "text": "so far"}]}]
    take(view, "snapshot", seq=9, rev=9, turns=[], pending=pending, more=False)
    assert view.after_rev == 9
    assert view.open["p"].text == "so far"


def test_each_change_of_a_turn_is_shown_once() -> None:
    view = opened()
    take(view, "turn.committed", rev=1, turn=turn("a", "one"))
    changes = [take(view, "turn.superseded", rev=2, turn_id="a", superseded_by="b") for _ in range(2)]
    changes.append(take(view, "turn.erased", rev=3, turn_id="a"))
    assert [[entry.change for entry in one] for one in changes] == [["replaced"], [], ["erased"]]
    assert [entry.change for entry in take(view, "turn.aborted", turn_id="t", length=0)] == ["given up"]
    assert view.open == {}


def test_frames_of_a_newer_server_are_passed_over() -> None:
    assert read('{"type": "summary.created", "summary": {}}') is None
    assert read('{"type": "pong", "id": null, "more": 1}') is not None


def test_calls_results_and_parts_are_worded() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}]
    view = opened()
    entries = take(view, "turn.committed", rev=1, turn=turn("a", tool_calls=calls) | {"content": parts})
    assert entries[0].text == "see\n[image_url]\n→ look {}"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8765", "ws://127.0.0.1:8765/v1/conversations/C/live"),
        ("https://example.com/turnkeep", "wss://example.com/turnkeep/v1/conversations/C/live"),
        ("http://[::1]:1", "ws://[::1]:1/v1/conversations/C/live"),
    ],
)
def test_the_address_follows_the_url(url: str, address: str) -> None:
    assert TailTarget(url, "key", "C").address == address
