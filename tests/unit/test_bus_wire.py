"""Envelopes and numbers by themselves."""

import json

import pytest

from app.core.bus.wire import EVICT_AFTER_S, MAX_ORIGINS, Envelope, SequenceTracker, encode, pack, read_envelope


def envelope(first: int, count: int = 1, *, origin: str = "a", has_loss: bool = False) -> Envelope:
    return Envelope(origin, first, [{"n": first + i} for i in range(count)], has_loss)


def test_envelopes_stay_below_the_limit_and_are_numbered_through() -> None:
    messages = [encode({"t": "é" * (i % 40)}) for i in range(200)]
    packed = pack("a" * 26, 7, messages, limit=1000, has_loss=True)
    read = [read_envelope(data.decode()) for data in packed]
    assert max(map(len, packed)) <= 1000
    assert len(packed) < 30
    following = 7
    for index, item in enumerate(read):
        assert item is not None
        assert item.first == following
        assert item.has_loss is (index == 0)
        following += len(item.messages)
    assert [m for item in read if item for m in item.messages] == [json.loads(m) for m in messages]


def test_without_messages_there_is_one_empty_envelope() -> None:
    (only,) = pack("a", 5, [], limit=1000, has_loss=False)
    assert read_envelope(only.decode()) == Envelope("a", 5, [], has_loss=False)


@pytest.mark.parametrize(
    "payload",
    ["", "x", "[]", "1", '{"o":1,"n":0,"m":[]}', '{"o":"a","n":true,"m":[]}', '{"o":"a","n":-1,"m":[]}',
     '{"o":"a","n":0}', '{"o":"a","n":0,"m":[1]}', '{"o":"' + "a" * 65 + '","n":0,"m":[]}', "[" * 100_000,
     '{"o":"a","n":' + "9" * 5000 + ',"m":[]}'],
)  # fmt: skip
def test_what_is_no_envelope_is_none(payload: str) -> None:
    assert read_envelope(payload) is None


def test_a_gap_is_a_loss_and_the_first_envelope_sets_where_numbers_stand() -> None:
    sequences = SequenceTracker()
    assert sequences.record(envelope(10), now_s=0) == (False, [{"n": 10}])
    assert sequences.record(envelope(11), now_s=0) == (False, [{"n": 11}])
    assert sequences.record(envelope(13), now_s=0) == (True, [{"n": 13}])
    assert sequences.record(envelope(14, 0), now_s=0) == (False, [])
    assert sequences.record(envelope(15, 0), now_s=0) == (True, [])


def test_a_message_is_not_received_twice() -> None:
    sequences = SequenceTracker()
    sequences.record(envelope(0, 3), now_s=0)
    assert sequences.record(envelope(1, 4), now_s=0) == (False, [{"n": 3}, {"n": 4}])
    assert sequences.record(envelope(0, 2), now_s=0) == (False, [])
    assert sequences.record(envelope(5), now_s=0) == (False, [{"n": 5}])


def test_an_origin_that_says_it_lost_something_is_believed_at_first_sight() -> None:
    assert SequenceTracker().record(envelope(4, has_loss=True), now_s=0) == (True, [{"n": 4}])


def test_origins_are_forgotten_after_a_while_and_when_there_are_too_many() -> None:
    sequences = SequenceTracker()
    sequences.record(envelope(0), now_s=0)
    sequences.record(envelope(0, origin="b"), now_s=EVICT_AFTER_S + 1)
    assert sequences.record(envelope(9), now_s=EVICT_AFTER_S + 1)[0] is False
    sequences = SequenceTracker()
    sequences.record(envelope(0), now_s=0)
    for number in range(MAX_ORIGINS):
        sequences.record(envelope(0, origin=str(number)), now_s=0)
    assert sequences.record(envelope(9), now_s=0)[0] is False
    assert sequences.record(envelope(9, origin=str(MAX_ORIGINS - 1)), now_s=0)[0] is True
