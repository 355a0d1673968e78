"""The checks of the live crash proof find what they are there for: a check never seen to fail proves nothing."""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tests.soak.checks import ulid
from tests.soak.live_checks import Ledger, Logs, check_turns
from tests.soak.live_texts import GARBAGE, MARKS, leaks, plan_of
from tests.soak.live_view import View

_SEED = 1
_IDS = [UUID(int=number) for number in range(1, 40)]
_CALLING = next(one for one in _IDS if plan_of(_SEED, ulid(one)).arguments is not None)
_PLAIN = next(one for one in _IDS if plan_of(_SEED, ulid(one)).arguments is None)


def _row(turn_id: UUID, *, length: int | None = None) -> dict[str, Any]:
    """A committed turn, or with a `length` an aborted one, as it should be."""
    plan = plan_of(_SEED, ulid(turn_id))
    calls = None
    if plan.arguments is not None:
        calls = json.dumps([{"id": f"call-{ulid(turn_id)}", "name": "look_up", "arguments": plan.arguments}])
    return {
        "id": turn_id, "seq": 1 if length is None else None, "status": "committed" if length is None else "aborted",
        "content": json.dumps(plan.content[:length]), "tool_calls": calls,
        "superseded_by": None if length is None else turn_id,
    }  # fmt: skip


def _world() -> tuple[Logs, list[dict[str, Any]]]:
    committed = Ledger(opened=True, durable={"content": 100}, ended="committed", asked_to_end=True)
    aborted = Ledger(opened=True, durable={"content": 100})
    return Logs({ulid(_CALLING): committed, ulid(_PLAIN): aborted}), [_row(_CALLING), _row(_PLAIN, length=120)]


def test_nothing_is_found_in_turns_where_all_is_well() -> None:
    assert list(check_turns(*_world(), _SEED)) == []


def _change(place: int, **values: Any) -> Callable[[Logs, list[dict[str, Any]]], None]:
    return lambda _logs, rows: rows[place].update(values)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda _logs, rows: rows.pop(), "was acknowledged and is not there"),
        (lambda logs, _rows: logs.turns.pop(ulid(_PLAIN)), "is nobody's"),
        (lambda _logs, rows: rows.append(rows[0]), "an id is there twice"),
        (_change(1, **_row(_PLAIN, length=99)), "100 characters of content acknowledged"),
        (_change(1, content=json.dumps("another")), "has other text in content"),
        (_change(1, content=json.dumps(plan_of(_SEED, ulid(_PLAIN)).content[:120] + GARBAGE)), "fenced off"),
        (_change(1, superseded_by=None), "is aborted, and stands"),
        (_change(1, status="pending"), "is pending"),
        (_change(0, status="aborted"), "was acknowledged as committed and is aborted"),
        (_change(0, **_row(_CALLING, length=100) | {"status": "committed"}), "with other content"),
        (_change(0, tool_calls=None), "with other content"),
        (lambda logs, _rows: setattr(logs.turns[ulid(_CALLING)], "asked_to_end", False), "nobody asked for"),
    ],
)
def test_damage_of_turns_is_found(damage: Callable[..., object], sentence: str) -> None:
    logs, rows = _world()
    damage(logs, rows)
    assert any(sentence in found for found in check_turns(logs, rows, _SEED))


def _frames() -> list[dict[str, Any]]:
    """A turn is opened, written in three pieces, and committed."""
    turn_id = ulid(_PLAIN)
    plan = plan_of(_SEED, turn_id)
    turn = {"id": turn_id, "seq": 1, "content": plan.content, "tool_calls": [], "superseded_by": None}
    deltas = [
        {"type": "turn.delta", "turn_id": turn_id, "part": "content", "offset": at, "delta": plan.content[at:to]}
        for at, to in ((0, 50), (50, 90), (90, len(plan.content)))
    ]
    return [
        {"type": "snapshot", "seq": 0, "rev": 0, "turns": [], "pending": [], "more": False},
        {"type": "turn.opened", "turn": turn | {"content": None}, "writer": "w"},
        {"type": "presence", "writers": [{"turn_id": turn_id}]},
        *deltas,
        {"type": "turn.committed", "rev": 1, "turn": turn},
    ]


def _view(frames: list[dict[str, Any]]) -> View:
    view = View("one", _SEED, lambda _since: False)
    for frame in frames:
        view.apply(frame)
    return view


_ROWS = [{"id": ulid(_PLAIN), "status": "committed", "seq": 1, "tool_calls": [], "superseded_by": None,
          "content": plan_of(_SEED, ulid(_PLAIN)).content}]  # fmt: skip


def test_no_fault_is_found_in_a_view_that_received_everything() -> None:
    view = _view(_frames())
    assert view.wrongs == []
    assert view.counts["texts built whole"] == 1
    assert view.differences(_ROWS) == []


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda frames: frames.pop(4), "behind a hole"),
        (lambda frames: frames.pop(5), "were told before its commit"),
        (lambda frames: frames.pop(1), "text of a turn that is not open"),
        (lambda frames: frames.insert(2, frames[1]), "opened twice"),
        (lambda frames: frames[4].update(offset=49), "other text at 49"),
        (lambda frames: frames[4].update(delta="x" * 40), "other text at 50"),
        (lambda frames: frames[2].update(writers=[]), "presence says"),
        (lambda frames: frames[6]["turn"].update(content="x"), "committed with other content"),
        (lambda frames: frames.append({"type": "turn.aborted", "turn_id": "x", "length": 0}), "was not open"),
    ],
)
def test_damage_of_sent_frames_is_found(damage: Callable[..., object], sentence: str) -> None:
    frames = _frames()
    damage(frames)
    assert any(sentence in found for found in _view(frames).wrongs)


@pytest.mark.parametrize(
    ("frames", "rows", "sentence"),
    [
        (_frames()[:-1], _ROWS, "is open still"),
        (_frames()[:1], _ROWS, "is not there"),
        (_frames(), [], "is in no row"),
        (_frames(), [_ROWS[0] | {"superseded_by": "x"}], "is another"),
        (_frames(), [_ROWS[0] | {"status": "aborted"}], "seen as committed"),
    ],
)
def test_a_view_that_is_not_what_is_stored_is_found(frames: Any, rows: Any, sentence: str) -> None:
    assert any(sentence in found for found in _view(frames).differences(rows))


def test_content_in_a_log_is_found_plain_and_escaped() -> None:
    log = "\n".join(["nothing", f"plain {MARKS[0]}", json.dumps({"delta": MARKS[3]})])
    assert len(list(leaks(log))) == 2
