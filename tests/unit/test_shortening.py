"""Turns that are too long for their place: shown by their beginning, their end and their passages."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.context.assembly.cuts import cut, excerpt, is_longer, mark, merge
from app.context.assembly.parts import Assembled
from app.context.assembly.shortening import shorten
from app.core.errors import Invalid
from app.formats.schemas import CanonicalTurn, Format, Kind, Role, ToolCall, ToolResult
from app.formats.service import text_of
from app.recall.schemas import Passage, RecalledTurn
from tests.unit.test_assembly import build, calls, reason, result, talk, turn

FACT = "The deposit of the Lisbon flat is 1450 euros."


def document(sentences: int = 400, *, fact_at: int = 30) -> str:
    said = [f"Sentence {n} is about lamps, rivers and stone." for n in range(sentences)]
    said[fact_at] = FACT
    return " ".join(said)


def passage_of(text: str, sought: str = FACT, score: float = 1.0) -> Passage:
    start = text.index(sought)
    return Passage(start, start + len(sought), score)


def count(text: str) -> int:
    return len(text.encode()) // 3 + 1


def shown(made: Assembled) -> str:
    return json.dumps(made.messages, ensure_ascii=False)


def test_a_cut_has_the_beginning_the_end_and_the_tokens_that_are_left_out() -> None:
    text = document()
    made = cut(text, 300, count, total=count(text))
    assert count(made.text) <= 300
    head, middle, tail = made.text.split("\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert middle == mark(made.left_out)
    assert [text[start:end].strip("\n") for start, end in made.spans] == [head, tail]
    assert abs(made.left_out + count(head + tail) - count(text)) < 30
    assert mark(3412) == "[… 3 412 tokens left out …]"


def test_a_cut_has_the_passages_that_are_wanted_in_their_order() -> None:
    text = document()
    made = cut(text, 300, count, total=count(text), wanted=[passage_of(text)])
    assert FACT in made.text
    assert made.text.count("tokens left out") == 2
    assert count(made.text) <= 320


def test_what_is_cut_away_is_not_tokenised() -> None:
    read = 0

    def watched(text: str) -> int:
        nonlocal read
        read += len(text)
        return count(text)

    text = "word " * 2_000_000
    assert is_longer(text, 1000, watched)
    cut(text, 1000, watched, total=3_000_000)
    assert read < 100_000


@pytest.mark.parametrize(
    "text", ["a" * 10_000, "你好世界" * 3000, "e\u0301" * 5000, "👩‍👩‍👧" * 2000, "\n" * 9000, " " * 9000]
)
def test_any_text_can_be_cut(text: str) -> None:
    made = cut(text, 200, count, total=count(text))
    assert made.spans == merge(made.spans)
    assert all(0 <= start < end <= len(text) for start, end in made.spans)
    assert count(made.text) <= 220


def test_an_excerpt_has_a_mark_where_it_is_cut_and_nowhere_else() -> None:
    text = "One. Two. Three. Four."
    assert excerpt(text, [(0, len(text))]) == text
    assert excerpt(text, [(5, 9), (17, 22)]) == "[…] Two. […] Four."
    assert excerpt(text, [(0, 4)]) == "One. […]"


def test_a_turn_keeps_its_shape_and_only_texts_are_cut() -> None:
    long = document()
    parts: list[Any] = [
        {"type": "thinking", "thinking": long, "signature": "x"},
        {"type": "text", "text": long},
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        {"type": "text", "text": "short"},
        {"type": "turnkeep.given", "item": {"text": long}},
    ]
    made = shorten(turn(1, content=parts), 100, count)
    content: Any = made.turn.content
    assert [part["type"] for part in content] == [part["type"] for part in parts]
    assert [content[at] for at in (0, 2, 3, 4)] == [parts[at] for at in (0, 2, 3, 4)]
    assert count(content[1]["text"]) <= 110
    text = text_of(turn(1, content=parts))
    assert text == f"{long}\n[image]\nshort"
    assert text[made.spans[-1][0] : made.spans[-1][1]] == "short"
    assert made.left_out > 1000


@pytest.mark.parametrize(
    "arguments",
    [
        json.dumps({"path": "a.txt", "text": document(), "more": [1, {"x": document()}]}),
        {"path": "a.txt", "text": document()},
        json.dumps(list(range(5000))),
        json.dumps({f"key {n}": n for n in range(3000)}),
        json.dumps(document()),
        '{"text": "' + "\\ud83d\\ude00\\ud800" * 2000 + '", "number": 12345678901234567890123}',
    ],
)
def test_arguments_of_calls_stay_json(arguments: Any) -> None:
    call = ToolCall("c", "write", arguments, stored={"id": "c", "name": "write", "arguments": arguments})
    made = shorten(turn(1, Role.ASSISTANT, None, tool_calls=[call]), 100, count)
    short = made.turn.tool_calls[0]
    assert type(short.arguments) is type(arguments)
    text = short.arguments if isinstance(short.arguments, str) else json.dumps(short.arguments)
    json.loads(text)
    text.encode()
    assert count(text) < 400
    assert short.stored is not None
    assert short.stored["arguments"] == short.arguments


def test_arguments_that_are_no_json_are_cut_as_text() -> None:
    for arguments in ("no json " * 3000, '{"a": NaN, "b": "' + "x" * 9000 + '"}', "1e999" + " " * 9000):
        made = shorten(turn(1, Role.ASSISTANT, None, tool_calls=[ToolCall("c", "run", arguments)]), 100, count)
        assert isinstance(made.turn.tool_calls[0].arguments, str)
        assert count(made.turn.tool_calls[0].arguments) <= 110


def test_spans_of_results_are_places_in_the_plain_text_of_their_turn() -> None:
    long = document()
    given = turn(
        2,
        Role.TOOL,
        None,
        tool_results=[ToolResult("a", "one", is_error=True), ToolResult("b", long, stored={"content": long})],
    )
    text = text_of(given)
    made = shorten(given, 200, count, wanted=[passage_of(text)])
    assert made.turn.tool_results[0] == given.tool_results[0]
    second = made.turn.tool_results[1]
    assert FACT in str(second.content)
    assert second.stored == {"content": second.content}
    assert any(FACT in text[start:end] for start, end in made.spans)


# --- in contexts


def long_talk(long: CanonicalTurn) -> list[CanonicalTurn]:
    return [long, turn(2, Role.ASSISTANT, "Read."), turn(3, content="How much is the deposit?")]


@pytest.mark.parametrize("target", list(Format))
@pytest.mark.parametrize("budget", [400, 1000, 3000])
def test_a_document_in_the_window_is_shown_cut_and_its_passage_is_recalled(target: Format, budget: int) -> None:
    text = document(fact_at=200)
    long = turn(1, content=text)
    made = build(
        long_talk(long), budget, format=target, semantic_recall={},
        recalled=[RecalledTurn(long, 0.9, passages=[passage_of(text)])],
    )  # fmt: skip
    assert made.included.turn_ids == ["t1", "t2", "t3"]
    assert "turns_shortened" in made.degraded
    assert "tokens left out …]" in shown(made)
    assert f"[…] {FACT} […]" in shown(made)
    runs = [(run.turn_id, text[run.start : run.end]) for run in made.included.passages]
    assert {turn_id for turn_id, _ in runs} == {"t1"}
    assert ("t1", FACT) in runs
    assert runs[0][1].startswith("Sentence 0")
    assert made.usage.used <= budget
    recent = made.usage.sections.recent
    assert recent.dropped > 1000
    assert reason(made, "t1", "recalled") == "passages of it match the query"
    assert reason(made, "t1") == "it is within the recent window, shortened"


def test_the_prefix_is_the_same_whatever_is_asked() -> None:
    text = document()
    long = turn(1, content=text)
    windows: set[str] = set()
    for sought in (FACT, "Sentence 33 is", "Sentence 390 is"):
        passages = [passage_of(text, sought)]
        made = build(
            long_talk(long), 1500, semantic_recall={},
            recalled=[RecalledTurn(long, 0.9, passages=passages)], passages={"t1": passages},
        )  # fmt: skip
        assert sought in shown(made)
        windows.add(json.dumps(made.messages[:2]))
    assert len(windows) == 1


def test_a_document_that_fits_is_shown_whole() -> None:
    text = document()
    made = build(long_talk(turn(1, content=text)), 9000)
    assert text in shown(made)
    assert made.included.passages == []
    assert "turns_shortened" not in made.degraded
    limited = build(long_talk(turn(1, content=text)), 9000, max_turn_tokens=500)
    assert text not in shown(limited)
    assert "turns_shortened" in limited.degraded
    assert limited.usage.used < 700


def test_without_shortening_a_context_is_as_before() -> None:
    text = document()
    made = build(
        long_talk(turn(1, content=text)), 2000, shorten=False, semantic_recall={"k": 5},
        recalled=[RecalledTurn(turn(1, content=text), 0.9, passages=[passage_of(text)])],
    )  # fmt: skip
    assert made.included.turn_ids == ["t2", "t3"]
    assert made.included.passages == []
    assert made.degraded == []
    with pytest.raises(Invalid) as refused:
        build([turn(1, content=text)], 1000, shorten=False)
    assert refused.value.code == "budget_too_small"


@pytest.mark.parametrize("target", list(Format))
def test_a_newest_turn_that_is_larger_than_the_budget_is_cut(target: Format) -> None:
    text = document()
    made = build(
        [*talk(1, 4), turn(5, content=text)], 800, format=target, passages={"t5": [passage_of(text)]},
        semantic_recall={},
    )  # fmt: skip
    assert "t5" in made.included.turn_ids
    assert FACT in shown(made)
    assert 500 < made.usage.used <= 800
    assert made.degraded == ["turns_shortened"]
    with pytest.raises(Invalid) as refused:
        build([turn(5, content=text)], 10, format=target)
    minimum: Any = refused.value.extra["minimum_budget"]
    assert minimum < 60
    assert build([turn(5, content=text)], minimum, format=target).usage.used <= minimum


LONG = document()
LARGE_PARTS: list[list[Any]] = [
    [{"type": "custom", "data": LONG.split()}],
    [{"type": "text", "text": "hi", "data": LONG.split()}],
    [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": LONG}}],
    [{"type": "search_result", "title": "t", "source": "s", "content": [{"type": "text", "text": LONG}]}],
    [{"type": "refusal", "refusal": LONG}],
    [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav", "transcript": LONG}}],
    [{"type": "file", "file": {"filename": LONG, "file_id": "f"}}],
    [{"type": "custom", "n": n} for n in range(3000)],
    [{"type": "text", "text": f"line {n}"} for n in range(3000)],
    [{"type": "image_url", "image_url": {"url": f"https://x.org/{n}.png"}} for n in range(300)],
]


@pytest.mark.parametrize("target", list(Format))
@pytest.mark.parametrize("parts", LARGE_PARTS)
def test_a_newest_turn_fits_with_any_parts(target: Format, parts: list[Any]) -> None:
    recent = [*talk(1, 4), turn(5, content=parts)]
    for more in (recent, [*talk(1, 3), calls(4, "a"), turn(5, Role.TOOL, parts, tool_call_id="a")]):
        made = build(more, 300, format=target)
        assert "t5" in made.included.turn_ids
        assert made.shown[-1] == 5
        assert made.usage.used <= 300
        length = len(text_of(more[-1]))
        assert all(0 <= run.start < run.end <= length for run in made.included.passages)


def test_a_call_keeps_the_thoughts_before_it_when_its_parts_are_left_out() -> None:
    thought: Any = {"type": "thinking", "thinking": "Look it up.", "signature": "c2ln"}
    call = turn(2, Role.ASSISTANT, [thought, {"type": "custom", "data": LONG.split()}])
    call.tool_calls = [ToolCall("a", "look", "{}")]
    made = build([turn(1), call, result(3, "a")], 300, format=Format.CANONICAL)
    assert made.messages[1]["content"] == [thought, {"type": "text", "text": "[custom]"}]
    assert made.degraded == ["turns_shortened"]


def test_the_newest_user_turn_is_cut_last_of_all() -> None:
    question = document(60, fact_at=3)
    recent = [*talk(1, 20), turn(21, content=question), calls(22, "a"), result(23, "a", document(500))]
    made = build(recent, 3000)
    assert question in shown(made)
    assert "t23" in {run.turn_id for run in made.included.passages}
    assert {"t21", "t22", "t23"} <= set(made.included.turn_ids)


def test_a_call_and_its_result_stay_together_and_both_are_cut() -> None:
    long = document()
    written = json.dumps({"path": "a.txt", "text": long})
    call = turn(2, Role.ASSISTANT, None, tool_calls=[ToolCall("a", "write", written)])
    made = build([turn(1), call, result(3, "a", long), turn(4)], 1500, format=Format.OPENAI)
    assert made.included.turn_ids == ["t1", "t2", "t3", "t4"]
    messages: list[Any] = list(made.messages)
    assert json.loads(messages[1]["tool_calls"][0]["function"]["arguments"])["path"] == "a.txt"
    assert messages[2]["role"] == "tool"
    assert "tokens left out …]" in messages[2]["content"]


def test_many_results_of_one_call_share_their_place() -> None:
    ids = [f"c{n}" for n in range(8)]
    recent = [turn(1), calls(2, *ids), *[result(3 + n, key, document(60)) for n, key in enumerate(ids)]]
    made = build(recent, 2000)
    assert {run.turn_id for run in made.included.passages} == {f"t{3 + n}" for n in range(8)}
    assert made.usage.used <= 2000


def test_a_recalled_turn_is_shown_whole_if_it_takes_no_more_than_a_quarter_of_the_budget() -> None:
    text = document(40, fact_at=20)
    passages = [passage_of(text), passage_of(text, "Sentence 9 is about lamps, rivers and stone.", 0.5)]
    found = RecalledTurn(turn(50, content=text), 0.9, "Flat", passages=passages)
    whole = build(talk(60, 70), 5000, recalled=[found], semantic_recall={"scope": "owner"})
    assert text in shown(whole)
    assert whole.included.passages == []
    part = build(talk(60, 70), 1200, recalled=[found], semantic_recall={"scope": "owner"})
    line = (
        "[2026-03-01 09:50 UTC, anna, in another conversation: Flat] […] Sentence 9 is about lamps, rivers and stone."
    )
    assert f"{line} […] {FACT} […]" in shown(part)
    assert [run.turn_id for run in part.included.passages] == ["t50", "t50"]
    assert part.degraded == []
    rows: Sequence[Any] = part.explain or ()
    row = next(row for row in rows if row.id == "t50")
    assert [(run.start, run.end) for run in row.passages] == sorted((one.start, one.end) for one in passages)


def test_equal_texts_are_recalled_once() -> None:
    recalled = [RecalledTurn(turn(n, content=f"I don't know{'.' * (n % 3)}"), 0.5) for n in range(1, 9)]
    recalled.append(RecalledTurn(turn(20, content="It is sunflower-42."), 0.4))
    made = build(talk(60, 62), recalled=recalled, semantic_recall={"k": 2})
    assert made.included.turn_ids == ["t60", "t61", "t62", "t8", "t20"]
    assert reason(made, "t1", "recalled") == "an equal text is shown"
    shown_already = [RecalledTurn(replace(talk(60, 60)[0], id="other", content="Turn number 60!"), 0.9, "Flat")]
    assert build(talk(60, 62), recalled=shown_already).included.turn_ids == ["t60", "t61", "t62"]


def test_the_passage_of_two_equal_turns_that_the_window_cuts_is_shown_once() -> None:
    text = document(400, fact_at=200)
    recent = [turn(1, content=text), turn(2, content=text), turn(3, content="How much is the deposit?")]
    recalled = [RecalledTurn(one, 0.9, passages=[passage_of(text)]) for one in recent[:2]]
    made = build(recent, 1500, recalled=recalled, semantic_recall={"scope": "owner"})
    assert shown(made).count(FACT) == 1
    assert reason(made, "t1", "recalled") == "an equal text is shown"


def test_a_system_turn_or_a_compaction_is_never_recalled_in_part() -> None:
    text = document()
    gone = CanonicalTurn("t9", 9, Role.SYSTEM, Kind.COMPACTION, "system", content=text)
    made = build(talk(60, 62), 500, recalled=[RecalledTurn(gone, 0.9, passages=[passage_of(text)])])
    assert made.included.turn_ids == ["t60", "t61", "t62"]


def test_the_smallest_budget_named_is_that_of_whole_texts_which_are_shorter_than_their_marks() -> None:
    recent = [calls(1, "a"), result(2, "a", "twenty-five letters, about")]
    with pytest.raises(Invalid) as caught:
        build(recent, 1)
    minimum = caught.value.extra["minimum_budget"]
    assert isinstance(minimum, int)
    assert build(recent, minimum).degraded == []
    with pytest.raises(Invalid):
        build(recent, minimum - 1)


def test_the_reason_of_a_shortened_result_ends_with_the_turn_of_its_call() -> None:
    made = build([calls(1, "a"), result(2, "a", document()), turn(3, content="go on")], 1000)
    rows = [row.reason for row in made.explain or [] if row.id == "t2" and row.decision == "included"]
    assert rows == ["it is within the recent window, shortened, together with turn t1"]


def test_a_text_is_not_cut_where_the_mark_takes_more_tokens_than_it() -> None:
    def few(text: str) -> int:
        return 2 if set(text) <= {"a"} else count(text)

    made = shorten(turn(1, content="a" * 40), 0, few)
    assert (made.turn.content, made.left_out) == ("a" * 40, 0)
