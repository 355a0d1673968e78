import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.context.assembly.assemble import assemble
from app.context.assembly.parts import (
    Assembled,
    BackgroundPart,
    ContextParts,
    LinePart,
    SummaryPart,
    WindowRequest,
)
from app.context.schemas import ContextRequest
from app.core.errors import Invalid
from app.formats.schemas import CanonicalTurn, Format, Kind, Role, ToolCall, ToolResult
from app.formats.units import group_turns
from app.recall.schemas import RecalledTurn

START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)


class FakeCounter:
    name = "fake"
    exact = True

    def count(self, text: str) -> int:
        return len(text.encode()) // 3 + 1


def turn(position: int, role: Role = Role.USER, content: Any = "", **more: Any) -> CanonicalTurn:
    actor = {Role.USER: "anna", Role.ASSISTANT: "bot", Role.TOOL: "tool", Role.SYSTEM: "system"}[role]
    base: dict[str, Any] = {"actor": actor, "occurred_at": START + timedelta(minutes=position)} | more
    shown = f"turn number {position}" if content == "" else content
    return CanonicalTurn(f"t{position}", position, role, Kind.USER_MESSAGE, content=shown, **base)


def talk(first: int, last: int) -> list[CanonicalTurn]:
    """User on odd positions, assistant on even ones."""
    return [turn(n, Role.USER if n % 2 else Role.ASSISTANT) for n in range(first, last + 1)]


def calls(position: int, *ids: str, content: str | None = None) -> CanonicalTurn:
    return turn(position, Role.ASSISTANT, content, tool_calls=[ToolCall(one, "look", "{}") for one in ids])


def result(position: int, call_id: str, content: str = "found") -> CanonicalTurn:
    return turn(position, Role.TOOL, content, tool_call_id=call_id)


def build(recent: Sequence[CanonicalTurn], budget: int = 100_000, **more: Any) -> Assembled:
    named = ("format", "filter_participants", "semantic_recall", "as_actor", "explain", "shorten", "max_turn_tokens")
    request = {key: more.pop(key) for key in named if key in more}
    asked = WindowRequest(more.pop("newest", 50), is_limit=more.pop("is_limit", False))
    parts: dict[str, Any] = {"system": None, "recent": recent, "asked": asked} | more
    return assemble(
        ContextParts(**parts),
        request=ContextRequest.model_validate({"token_budget": budget, "explain": True} | request),
        counter=FakeCounter(),
    )


def texts(made: Assembled) -> list[Any]:
    return [message["content"] for message in made.messages]


def reason(made: Assembled, key: str, section: str = "recent") -> str:
    return next(row.reason for row in made.explain if (row.section, row.id) == (section, key))


def summary(start: int, end: int, text: str = "what was said", **more: Any) -> SummaryPart:
    return SummaryPart(f"s{start}", text, start, end, more.pop("actors", frozenset({"anna", "bot"})), **more)


def test_results_are_hoisted_right_after_their_call() -> None:
    made = build([turn(1), calls(2, "a", "b"), turn(3), result(4, "b", "B"), turn(5), result(6, "a", "A"), turn(7)])
    assert [message["role"] for message in made.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "user",
        "user",
    ]
    assert texts(made)[2:4] == ["A", "B"]
    assert made.included.turn_ids == [f"t{n}" for n in range(1, 8)]


def test_results_in_one_turn_answer_all_parallel_calls() -> None:
    results = turn(2, Role.TOOL, None, tool_results=[ToolResult("b", "B"), ToolResult("a", "A")])
    made = build([calls(1, "a", "b"), results])
    assert texts(made) == [None, "A", "B"]


def test_an_unanswered_call_is_shown_as_its_text_alone_or_not_at_all() -> None:
    made = build([turn(1), calls(2, "a", content="let me look"), calls(3, "b"), turn(4)])
    assert texts(made) == ["turn number 1", "let me look", "turn number 4"]
    assert "tool_calls" not in made.messages[1]
    assert reason(made, "t3") == "call b has no result, and the turn has no text"
    assert made.included.turn_ids == ["t1", "t2", "t4"]


def test_of_parallel_calls_only_the_answered_one_stays() -> None:
    made: Any = build([calls(1, "a", "b"), result(2, "b")])
    assert [call["id"] for call in made.messages[0]["tool_calls"]] == ["b"]


def test_a_result_without_its_call_is_dropped_with_a_reason() -> None:
    made = build([result(1, "gone"), turn(2)])
    assert texts(made) == ["turn number 2"]
    assert reason(made, "t1") == "the call gone of this result is not among the recent turns"


def test_the_first_of_several_results_for_a_call_stands() -> None:
    made = build([calls(1, "a"), result(2, "a", "first"), result(3, "a", "second")])
    assert texts(made) == [None, "first"]
    assert reason(made, "t3") == "call a has an earlier result, the first is kept"


def test_a_call_id_that_is_used_again_later_is_a_different_call() -> None:
    made: Any = build([calls(1, "a"), result(2, "a", "1"), calls(3, "a"), result(4, "a", "2")])
    ids = [message["tool_calls"][0]["id"] for message in made.messages if message["role"] == "assistant"]
    assert ids == ["a", "a_3"]
    assert [message["tool_call_id"] for message in made.messages if message["role"] == "tool"] == ids


def test_calls_answered_by_one_turn_stay_together_with_it() -> None:
    both = turn(3, Role.TOOL, None, tool_results=[ToolResult("a", "A"), ToolResult("b", "B")])
    paired = group_turns([calls(1, "a"), calls(2, "b"), both, turn(4)])
    assert [[one.id for one in unit.turns] for unit in paired.units] == [["t1", "t2", "t3"], ["t4"]]


def test_a_unit_leaves_the_window_whole() -> None:
    recent = [turn(1), calls(2, "a"), result(3, "a", "x" * 900), turn(4)]
    made = build(recent, 120, shorten=False)
    assert made.included.turn_ids == ["t1", "t4"]
    assert {row.id for row in made.explain if row.decision == "dropped"} == {"t2", "t3"}


def test_the_newest_turn_is_shown_even_when_it_answers_an_old_call() -> None:
    recent = [calls(1, "a"), *[turn(n, content="x" * 300) for n in range(2, 9)], result(9, "a", "late")]
    made = build(recent, 60)
    assert made.included.turn_ids == ["t1", "t9"]


def test_compaction_turns_are_never_shown() -> None:
    compaction = CanonicalTurn("t2", 2, Role.SYSTEM, Kind.COMPACTION, "turnkeep", "secret")
    made = build([turn(1), compaction])
    assert "secret" not in json.dumps(made.messages)
    assert made.included.turn_ids == ["t1"]


@pytest.mark.parametrize("target", list(Format))
def test_the_smallest_budget_named_is_the_smallest_that_works(target: Format) -> None:
    recent = [*talk(1, 5), calls(6, "a", "b"), result(7, "a"), result(8, "b", "yes " * 50)]
    with pytest.raises(Invalid) as caught:
        build(recent, 1, format=target, system="be kind")
    assert caught.value.code == "budget_too_small"
    assert caught.value.fields[0].pointer == "/token_budget"
    minimum = caught.value.extra["minimum_budget"]
    assert isinstance(minimum, int)
    assert build(recent, minimum, format=target, system="be kind").usage.used <= minimum
    with pytest.raises(Invalid):
        build(recent, minimum - 1, format=target, system="be kind")


@pytest.mark.parametrize("newest", [*range(1, 26), 30, 50, 60, 100, 200])
def test_a_window_shows_the_turns_asked_for_and_at_most_a_quarter_more(newest: int) -> None:
    for last in range(300, 320):
        made = build(talk(1, last), newest=newest, is_limit=True)
        assert newest <= len(made.included.turn_ids) <= newest + max(1, newest // 4)
        assert made.included.turn_ids[-1] == f"t{last}"


@pytest.mark.parametrize(("newest", "block"), [(60, 16), (50, 8), (28, 8), (20, 4), (12, 4), (10, 2), (1, 2)])
def test_the_start_of_a_window_that_has_room_moves_in_blocks(newest: int, block: int) -> None:
    starts = [build(talk(1, last), newest=newest, is_limit=True).included.turn_ids[0] for last in range(300, 364)]
    assert len(set(starts)) <= 64 // block + 1
    assert all(int(start[1:]) % block == 0 for start in starts)


def window_of(made: Assembled) -> list[Any]:
    """The messages before the volatile block."""
    texts = [str(message["content"]) for message in made.messages]
    return made.messages[: next((at for at, text in enumerate(texts) if text.startswith("<background>")), -1)]


def test_a_window_that_the_budget_cuts_keeps_its_prefix_and_the_budget_is_used() -> None:
    previous: list[Any] = []
    breaks = 0
    for newest in range(200, 280):
        recent = [replace(one, content=f"{one.content} and so on" * 3) for one in talk(1, newest)]
        made = build(recent, 2000, is_limit=True, newest=100)
        assert made.usage.used > 2000 - 100, "less than the frame of the block and a line of it is left"
        window = window_of(made)
        breaks += window[: len(previous)] != previous
        previous = window[:-1]  # its last question goes behind the block next time
    assert breaks <= 80 // 4 + 1


def test_a_cut_window_never_shows_fewer_turns_than_were_asked_for_by_number() -> None:
    for newest in range(8, 41):
        recent = talk(1, 200)
        exact = build(recent[-newest:], newest=newest, is_limit=True).usage.used
        made = build(recent, exact, newest=newest, is_limit=True)
        assert len(made.included.turn_ids) >= newest


def test_turns_that_no_summary_covers_are_shown_while_there_is_room() -> None:
    covered = summary(1, 30, "what was said " * 9)
    for is_limit in (True, False):
        made = build(talk(1, 60), newest=4, is_limit=is_limit, summaries=[covered])
        assert made.included.turn_ids == [f"t{n}" for n in range(31, 61)]
        assert made.included.summary_ids == ["s1"]
    assert len(build(talk(1, 60), newest=4, is_limit=True).included.turn_ids) == 5
    assert len(build(talk(1, 60), newest=4).included.turn_ids) == 60


def test_a_turn_that_fits_is_never_displaced_by_a_summary_of_it() -> None:
    made = build(talk(1, 60), newest=48, is_limit=True, summaries=[summary(1, 30, "what was said " * 2)])
    assert made.included.turn_ids == [f"t{n}" for n in range(8, 61)]
    assert made.included.summary_ids == ["s1"]
    assert made.covered == [(1, 30)]


def test_a_summary_is_left_out_where_all_its_turns_are_shown() -> None:
    made = build(talk(1, 60), newest=60, is_limit=True, summaries=[summary(1, 30)])
    assert len(made.included.turn_ids) == 60
    assert made.included.summary_ids == []
    assert reason(made, "s1", "summary") == "there is room for the turns themselves"


def test_a_summary_that_takes_as_many_tokens_as_its_turns_is_left_out() -> None:
    long = summary(1, 30, "very long " * 200)
    made = build(talk(1, 60), newest=10, summaries=[long])
    assert len(made.included.turn_ids) == 60
    assert reason(made, "s1", "summary") == "the turns that it covers take no more tokens"
    made = build(talk(1, 60), newest=10, is_limit=True, summaries=[long])
    assert len(made.included.turn_ids) == 11
    assert made.included.summary_ids == []
    unread = replace(long, unread_tokens=5000)
    assert build(talk(21, 60), newest=10, summaries=[unread]).included.summary_ids == ["s1"]
    gone = replace(long, sources_gone=True)
    assert build(talk(21, 60), newest=10, summaries=[gone]).included.summary_ids == ["s1"]


def highlights(start: int, end: int, *of: int) -> SummaryPart:
    lines = [LinePart(f"t{n}", f"line of {n}") for n in of]
    text = "\n".join(line.text for line in lines)
    return SummaryPart(f"s{start}", text, start, end, frozenset({"anna"}), lines=lines, is_highlights=True)


def test_highlights_have_no_lines_of_turns_that_are_shown() -> None:
    made = build(talk(1, 60), newest=40, is_limit=True, summaries=[highlights(1, 30, 3, 11, 22, 29)])
    assert made.included.turn_ids[0] == "t16"
    assert made.messages[0]["content"] == '<highlights turns="1-30">\nline of 3\nline of 11\n</highlights>'
    made = build(talk(1, 60), newest=40, is_limit=True, summaries=[highlights(1, 30, 22, 29)])
    assert made.included.summary_ids == []
    assert reason(made, "s1", "summary") == "all turns that it has lines of are shown"
    assert build(talk(1, 60), newest=40, summaries=[highlights(1, 30)]).included.summary_ids == []


def test_what_a_context_leaves_out_is_named_by_ranges_of_positions() -> None:
    made = build(talk(1, 60), newest=4, is_limit=True)
    assert made.uncovered_ranges(60) == [(1, 55)]
    found = [RecalledTurn(turn(7), 0.5), RecalledTurn(turn(9), 0.4, conversation="another")]
    made = build(talk(31, 60), summaries=[replace(summary(3, 5), unread_tokens=999)], recalled=found)
    assert made.shown == [7, *range(31, 61)]
    assert made.uncovered_ranges(60) == [(1, 2), (6, 6), (8, 30)]
    assert made.uncovered_ranges(66) == [(1, 2), (6, 6), (8, 30), (61, 66)]


def test_a_conversation_that_fits_whole_is_shown_whole() -> None:
    made = build(talk(1, 37))
    assert len(made.included.turn_ids) == 37


def test_summarised_turns_that_are_not_asked_for_are_shown_by_their_summary_alone() -> None:
    made = build(talk(11, 60), newest=20, summaries=[replace(summary(1, 30), unread_tokens=99)], system="sys")
    assert made.included.turn_ids[0] == "t31"
    assert made.included.summary_ids == ["s1"]
    assert made.messages[0]["content"] == "sys"
    assert made.messages[1]["content"] == '<summary turns="1-30">\nwhat was said\n</summary>'
    assert reason(made, "t30") == "summary s1 covers it"


def test_a_summary_that_does_not_fit_gives_its_turns_back() -> None:
    made = build(talk(1, 60), 400, summaries=[summary(1, 50, "long " * 300)])
    assert made.included.summary_ids == []
    assert "t48" in made.included.turn_ids
    assert reason(made, "s1", "summary") == "it does not fit the budget"


def test_a_summary_may_cover_the_newest_turn_which_is_shown_itself() -> None:
    made = build(talk(1, 10), 150, newest=2, is_limit=True, summaries=[summary(1, 10)])
    assert made.included.summary_ids == ["s1"]
    assert made.included.turn_ids[-1] == "t10"


def test_a_filter_admits_a_summary_only_of_its_own_actors() -> None:
    recent, one = talk(20, 24), replace(summary(1, 10), unread_tokens=99)
    made = build(recent, summaries=[one], filter_participants=["anna"])
    assert made.included.summary_ids == []
    assert build(recent, summaries=[one], filter_participants=["anna", "bot"]).included.summary_ids == ["s1"]


def test_where_sources_were_erased_and_no_summary_covers_them_the_context_says_so() -> None:
    made = build(talk(20, 24), is_erased=True)
    assert made.degraded == ["erased_sources"]
    assert str(made.messages[0]["content"]).startswith("<erased>")
    unused = summary(1, 10, sources_gone=True, actors=frozenset({"mallory"}))
    filtered = build(talk(20, 24), summaries=[unused], filter_participants=["anna"])
    assert filtered.degraded == ["erased_sources"]
    assert build(talk(20, 24), summaries=[summary(1, 10, sources_gone=True)]).degraded == []


def test_the_volatile_block_stands_directly_before_the_last_user_message() -> None:
    recent = [turn(1), calls(2, "a"), result(3, "a"), turn(4), calls(5, "b"), result(6, "b")]
    made = build(
        recent,
        facts=[BackgroundPart("f1", "anna likes tea")],
        memories=[BackgroundPart("m1", "keep answers short")],
        recalled=[RecalledTurn(turn(90, content="later"), 0.9), RecalledTurn(turn(80, content="earlier"), 0.5)],
    )
    assert [message["role"] for message in made.messages] == [
        "user", "assistant", "tool", "user", "user", "assistant", "tool"
    ]  # fmt: skip
    block = str(made.messages[3]["content"])
    assert made.messages[4]["content"] == "turn number 4"
    assert block.index("anna likes tea") < block.index("keep answers short") < block.index("earlier")
    assert block.index("[2026-03-01 10:20 UTC, anna] earlier") < block.index("[2026-03-01 10:30 UTC, anna] later")
    assert made.included.fact_ids == ["f1"]
    assert made.included.memory_ids == ["m1"]
    assert made.included.turn_ids[-2:] == ["t80", "t90"]


def test_recalled_turns_never_repeat_recent_ones() -> None:
    made = build(talk(1, 6), recalled=[RecalledTurn(turn(3), 0.9), RecalledTurn(turn(3), 0.8)])
    assert made.included.turn_ids == [f"t{n}" for n in range(1, 7)]
    assert reason(made, "t3", "recalled") == "it is among the recent turns"


def test_of_what_was_recalled_the_best_k_outside_the_window_are_shown() -> None:
    found = [RecalledTurn(turn(n), n / 10) for n in range(1, 9)]
    made = build(talk(7, 10), recalled=found, semantic_recall={"k": 2})
    assert made.included.turn_ids == ["t7", "t8", "t9", "t10", "t5", "t6"]
    assert reason(made, "t4", "recalled") == "the 2 best are enough"


def test_the_tokens_of_recalled_turns_that_were_not_requested_are_those_stored() -> None:
    found = [RecalledTurn(turn(n, content_tokens=500), n / 10) for n in range(1, 9)]
    made = build(talk(7, 10), recalled=found, semantic_recall={"k": 2}, format="canonical")
    tokens = {row.id: row.tokens for row in made.explain or () if row.section == "recalled"}
    assert 500 < tokens["t4"] < 510
    assert tokens["t5"] == tokens["t6"] < 30
    assert made.usage.sections.recalled.dropped == 0


def test_the_recount_gives_up_what_matters_least_when_the_whole_takes_more_than_its_pieces() -> None:
    class Steep(FakeCounter):
        def count(self, text: str) -> int:
            return len(text) + (500 if len(text) > 300 else 0)

    recalled = [RecalledTurn(turn(50 + n, content=f"{n}" * 40), n / 10) for n in range(6)]
    made = assemble(
        ContextParts(
            None,
            talk(1, 3),
            asked=WindowRequest(50, is_limit=False),
            facts=[BackgroundPart("f", "tea")],
            recalled=recalled,
        ),
        request=ContextRequest(token_budget=700),
        counter=Steep(),
    )
    assert made.usage.used <= 700
    assert made.included.turn_ids == ["t1", "t2", "t3", "t54", "t55"]
    assert made.included.fact_ids == ["f"]


def test_no_section_starves_another() -> None:
    recent = [turn(n, Role.USER, "word " * 30) for n in range(40, 90)]
    budget = 4000
    made = build(
        recent,
        budget,
        summaries=[summary(1, 39, "old " * 400, unread_tokens=9000)],
        facts=[BackgroundPart(f"f{n}", "fact " * 10) for n in range(100)],
        memories=[BackgroundPart(f"m{n}", "memory " * 10) for n in range(100)],
        recalled=[RecalledTurn(turn(n, content=f"{n} recalled" + " recalled" * 9), 0.5) for n in range(100, 200)],
    )
    sections = made.usage.sections
    assert sections.recent.used >= 0.40 * budget - 60
    assert made.included.summary_ids == ["s1"]
    for one in (sections.facts, sections.memories, sections.recalled):
        assert one.used >= 0.05 * budget - 50
        assert one.dropped > 0
    assert made.usage.used <= budget


def test_a_floor_is_kept_only_for_a_section_that_has_material() -> None:
    recent = [turn(n, Role.USER, "word " * 30) for n in range(1, 60)]
    alone = build(recent, 3000)
    assert alone.usage.used > 0.8 * 3000
    assert build(recent, 3000, facts=[BackgroundPart("f", "x")]).usage.sections.facts.used > 0


def test_the_window_does_not_depend_on_how_much_was_recalled() -> None:
    recent = [turn(n, Role.USER, "word " * 30) for n in range(1, 60)]
    windows = {
        json.dumps(window_of(build(recent, 3000, recalled=found)))
        for count in (1, 3, 30)
        for found in [[RecalledTurn(turn(100 + n, content="found it " * 9), 0.5) for n in range(count)]]
    }
    assert len(windows) == 1


def test_what_the_sections_leave_unused_goes_to_turns_that_have_no_place_in_the_window() -> None:
    recent = [turn(n, Role.USER, "word " * 30) for n in range(1, 60)]
    made = build(recent, 3000, recalled=[RecalledTurn(turn(100, content="found it"), 0.5)])
    block = str(made.messages[-2]["content"])
    ids = made.included.turn_ids
    assert ids[:-1] == [f"t{n}" for n in range(60 - len(ids) + 1, 60)]
    assert ids[-1] == "t100"
    assert len(made.messages) < len(ids)
    assert block.count("] word word") == len(ids) - len(made.messages)
    assert made.usage.used > 3000 - 80
    assert made.usage.sections.recent.used > 2800
    assert made.usage.sections.recalled.used < 80
    assert reason(made, ids[0]) == "it is written before the last question, as the window has no place for it"


def test_explanations_are_readable_and_account_for_every_turn() -> None:
    made = build([result(1, "x"), *talk(2, 40)], 150, recalled=[RecalledTurn(turn(90, content=" "), 0.5)])
    recent = {row.id for row in made.explain if row.section == "recent"}
    assert recent == {f"t{n}" for n in range(1, 41)}
    assert reason(made, "t90", "recalled") == "it has no text to show"
    assert reason(made, "t40") == "the newest turn is always shown"
    answer = made.answer(as_of_seq=40, gap=None)
    assert answer.as_of_seq == 40
    assert answer.explain == made.explain


def test_a_context_without_explanations_is_the_same() -> None:
    recent, recalled = [result(1, "x"), *talk(2, 40)], [RecalledTurn(turn(90, content="far"), 0.5)]
    explained, plain = (build(recent, 150, recalled=recalled, explain=explain) for explain in (True, False))
    assert plain.explain is None
    assert replace(explained, explain=None) == plain
    assert plain.usage.sections.recent.dropped > 0


def test_an_empty_conversation_gives_the_system_text_alone() -> None:
    made = build([], system="sys")
    assert made.messages == [{"role": "system", "content": "sys"}]
    assert made.usage.sections.recent.used == 0
    assert build([], system="  ").messages == []


def test_an_estimate_says_so() -> None:
    assert build(talk(1, 2)).usage.exact
    assert not build(talk(1, 2), format="anthropic").usage.exact
    assert not build([turn(1, content=[{"type": "image_url", "image_url": {"url": "https://x/y.png"}}])]).usage.exact


def test_huge_old_turns_are_not_even_tokenised() -> None:
    class Wary(FakeCounter):
        name = "o200k_base"

        def count(self, text: str) -> int:
            assert len(text) < 100_000, "a turn that cannot fit was tokenised"
            return super().count(text)

    recent = [turn(1), turn(2, content="x" * 1_000_000, content_tokens=125_000), turn(3)]
    parts = ContextParts(None, recent, asked=WindowRequest(50, is_limit=False))
    for shorten, shown in ((False, ["t1", "t3"]), (True, ["t1", "t2", "t3"])):
        made = assemble(parts, request=ContextRequest(token_budget=1000, shorten=shorten), counter=Wary())
        assert made.included.turn_ids == shown
        assert made.usage.sections.recent.dropped >= 124_000


def test_a_request_refuses_what_it_does_not_know() -> None:
    for wrong in ({}, {"token_budget": 0}, {"token_budget": 1, "x": 1}, {"token_budget": 1, "format": "xml"}):
        with pytest.raises(ValueError, match="validation error"):
            ContextRequest.model_validate(wrong)


AGENTS = [
    turn(1, content="find a flight", actor="ann"),
    turn(2, Role.ASSISTANT, "let me look", actor="planner", tool_calls=[ToolCall("a", "search", '{"to": "Oslo"}')]),
    turn(3, Role.TOOL, "two flights", tool_call_id="a"),
    turn(4, Role.ASSISTANT, "I book one", actor="booker", tool_calls=[ToolCall("b", "book", "{}")]),
    turn(5, Role.TOOL, "booked", tool_call_id="b"),
    turn(6, Role.ASSISTANT, "done", actor="booker"),
    turn(7, Role.USER, "as if I were a user", actor="planner"),
    turn(8, Role.USER, "thanks", actor="ann"),
]


def test_for_an_actor_its_own_turns_are_the_assistants_and_all_others_the_users_with_their_names() -> None:
    made: Any = build(AGENTS, as_actor="planner")
    assert [message["role"] for message in made.messages] == [
        "user", "assistant", "tool", "user", "user", "assistant", "user"
    ]  # fmt: skip
    assert [message.get("name") for message in made.messages] == ["ann", None, None, "booker", "booker", None, "ann"]
    assert made.messages[3]["content"] == "I book one\n[calls book {}]\n[result of book] booked"
    assert made.messages[5]["content"] == "as if I were a user"
    assert made.included.turn_ids == [f"t{n}" for n in range(1, 9)]


@pytest.mark.parametrize("target", list(Format))
def test_every_format_shows_a_conversation_from_an_actors_point_of_view(target: Format) -> None:
    made: Any = build(AGENTS, as_actor="booker", format=target)
    shown = json.dumps(made.messages)
    for text in ("find a flight", "[calls search", "two flights", "booked", "done", "thanks"):
        assert text in shown
    assert "[calls book" not in shown
    if target in {Format.ANTHROPIC, Format.WORKERS_AI, Format.OPENAI_RESPONSES}:
        assert "ann: find a flight" in shown
        assert "planner: let me look" in shown
    mine = [message for message in made.messages if message.get("role") == "assistant"]
    assert all("booker" not in json.dumps(message.get("content")) for message in mine)
    assert len(mine) == 2


def test_recalled_turns_of_other_conversations_are_labelled_and_in_the_order_of_time() -> None:
    found = [
        RecalledTurn(turn(9, content="from last week", occurred_at=START - timedelta(days=7)), 0.9, "Trip\nto Oslo"),
        RecalledTurn(turn(2, content="from here"), 0.5),
    ]
    made = build(talk(3, 5), recalled=found)
    block = str(made.messages[-2]["content"])
    assert "[2026-02-22 09:00 UTC, anna, in another conversation: Trip to Oslo] from last week" in block
    assert block.index("from last week") < block.index("from here")
    assert "[2026-03-01 09:02 UTC, anna] from here" in block


def test_a_summary_that_is_dropped_for_its_length_leaves_the_floors_unused() -> None:
    recent = talk(1, 60)
    all_turns = build(recent).usage.used
    long = summary(1, 30, "very long " * 200, abstract="short")
    made = build(recent, all_turns + 200, newest=40, summaries=[long])
    assert len(made.included.turn_ids) == 60
    assert made.included.summary_ids == []


def test_recall_takes_room_from_old_turns_and_never_from_those_asked_for_by_number() -> None:
    recent = [turn(n, Role.USER, "word " * 30) for n in range(1, 200)]
    found = [RecalledTurn(turn(n, content="recalled " * 8), 0.5) for n in range(300, 310)]
    by_number = build(recent[-40:]).usage.used
    for budget in (by_number + 150, by_number + 600, by_number * 2):
        made = build(recent, budget, newest=40, recalled=found, semantic_recall={"k": 10})
        window = [key for key in made.included.turn_ids if int(key[1:]) < 300]
        assert len(window) >= 40
        assert made.usage.sections.recent.used >= by_number - 10
    assert made.usage.sections.recalled.dropped == 0
    assert made.usage.sections.recent.dropped > 0


def test_a_summary_is_left_out_where_all_its_turns_are_shown_or_recalled() -> None:
    long = turn(1, content="a long story of a voyage " * 40)
    recent = [long, *talk(2, 12)]
    part = summary(1, 1, "a voyage")
    assert build(recent, 600, newest=4, summaries=[part]).included.summary_ids == ["s1"]
    made = build(recent, 600, newest=4, summaries=[part], recalled=[RecalledTurn(long, 0.9)])
    assert "t1" in made.included.turn_ids
    assert made.included.summary_ids == []
    assert reason(made, "s1", "summary") == "there is room for the turns themselves"
