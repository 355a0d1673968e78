"""Answers put together out of pieces: what is said, what is told of it, and how much work it takes."""

import sys
from collections.abc import AsyncIterator
from typing import Any

from app.agents.generation.answer import PartialAnswer, answer_turn
from app.agents.generation.partial import partial_turn
from app.providers.upstream import event_data

PIECES = 2000


class Counted(str):
    """A text that counts what is copied to put it behind another."""

    __slots__ = ()
    copied = 0

    def __radd__(self, before: str) -> str:
        Counted.copied += len(before) + len(self)
        return Counted(str.__add__(before, self))


class CountedBytes(bytes):
    """The same of bytes."""

    copied = 0

    def __radd__(self, before: bytes) -> bytes:
        CountedBytes.copied += len(before) + len(self)
        return CountedBytes(bytes.__add__(before, self))


def piece(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta}]}


def call(**body: Any) -> dict[str, Any]:
    return piece(tool_calls=[{"index": 0, "function": body}])


def told(answer: PartialAnswer, *pieces: dict[str, Any]) -> list[tuple[str, str]]:
    return [(delta.part, delta.text) for one in pieces for delta in answer.add(one)]


def test_an_answer_of_many_pieces_takes_work_in_proportion_to_its_length() -> None:
    answer, said = PartialAnswer(), 0
    Counted.copied = 0
    answer.add(call(name="weather"))
    for _ in range(PIECES):
        for one in (piece(content=Counted("word ")), piece(refusal=Counted("no ")), call(arguments=Counted("[1],"))):
            said += sum(len(delta.text) for delta in answer.add(one))
    whole: Any = answer.whole()
    assert (whole["content"], whole["refusal"]) == ("word " * PIECES, "no " * PIECES)
    assert whole["tool_calls"] == [{"function": {"name": "weather", "arguments": "[1]," * PIECES}}]
    assert said == len("word no [1],") * PIECES
    assert Counted.copied <= len("word no [1],") * PIECES


async def test_a_large_event_in_many_pieces_takes_work_in_proportion_to_its_length() -> None:
    text = "x" * 10 * PIECES

    async def pieces() -> AsyncIterator[bytes]:
        sent = f"data: {text}\r\n\r\ndata: [DONE]\n\n".encode()
        for at in range(0, len(sent), 10):
            yield CountedBytes(sent[at : at + 10])

    CountedBytes.copied = 0
    assert [data async for data in event_data(pieces())] == [text, "[DONE]"]
    assert CountedBytes.copied <= len(text)


async def test_events_are_read_wherever_they_are_cut() -> None:
    sent = b": comment\n\nevent: x\ndata: one\ndata:two\n\ndata: three\r\n\r\n\n\ndata: four\n"
    for length in range(1, len(sent) + 1):

        async def pieces(length: int = length) -> AsyncIterator[bytes]:
            for at in range(0, len(sent), length):
                yield sent[at : at + length]

        assert [data async for data in event_data(pieces())] == ["one\ntwo", "three", "four"]


def test_sent_text_can_be_stored_and_split_surrogate_pairs_are_joined() -> None:
    answer = PartialAnswer()
    assert told(
        answer, piece(content="a\0\ud83d"), piece(content="\ude00b"), piece(content="\ud83d"), piece(content="c\ude00")
    ) == [("content", "a"), ("content", "\U0001f600b"), ("content", "c")]
    assert told(answer, piece(content=None), piece(content=""), piece(content="\ud83d")) == []
    assert answer.whole()["content"] == "a\0\ud83d\ude00b\ud83dc\ude00\ud83d"


def test_a_member_that_is_text_and_then_something_else_is_what_it_was_last() -> None:
    answer = PartialAnswer()
    told(answer, piece(content="a"), piece(content=[{"type": "text", "text": "b"}]), piece(odd=1), piece(odd=2))
    assert answer.whole() == {"role": "assistant", "content": [{"type": "text", "text": "b"}], "odd": 2}
    told(answer, piece(content="c"))
    assert answer.whole()["content"] == "c"


def test_what_an_endpoint_notes_at_length_does_not_keep_an_answer_from_being_stored() -> None:
    choice = {"message": {"content": "so"}, "finish_reason": "x" * 40_000}
    turn = answer_turn(PartialAnswer.of({"id": "y" * 40_000, "choices": [choice]}), {})
    assert turn.metadata == {"response_id": "y" * 256, "finish_reason": "x" * 256}


def test_a_kept_part_of_an_answer_has_no_call_of_a_tool_that_is_not_allowed() -> None:
    """A name without arguments may be the start of an allowed one, so it is looked at again at the end."""
    answer = PartialAnswer(allowed_tools=frozenset({"weather_station"}))
    function = {"name": "weather", "arguments": ""}
    answer.add(piece(tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": function}]))
    answer.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    assert partial_turn(answer, {}) is None
    answer.allowed_tools = None
    assert partial_turn(answer, {}) is not None


def test_an_answer_in_small_pieces_takes_no_memory_for_each_piece() -> None:
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": "x"}}
    answer, before = PartialAnswer(), sys.getallocatedblocks()
    for number in range(50_000):
        delta = {"content": f"{number:06d}", "reasoning_content": f"{number:06d}", "tool_calls": [call]}
        answer.add({"choices": [{"index": 0, "delta": delta}]})
    assert sys.getallocatedblocks() - before < 5_000
    whole = answer.whole()
    assert (len(str(whole["content"])), len(str(whole["reasoning_content"]))) == (300_000, 300_000)
    function = {"name": "look", "arguments": "x" * 50_000}
    assert whole["tool_calls"] == [{"id": "a", "type": "function", "function": function}]


def test_an_answer_that_is_passed_on_holds_no_text() -> None:
    answer = PartialAnswer()
    delta = {"content": "abc", "unknown": "member", "tool_calls": [{"index": 0, "function": {"arguments": "x"}}]}
    answer.add({"id": "1", "choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]})
    answer.drop_texts()
    assert answer.whole() == {"role": "assistant", "content": None}
    assert (answer.id, answer.finish_reason) == ("1", "stop")
