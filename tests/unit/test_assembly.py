import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.context.assembly import assemble
from app.context.parts import Assembled, ContextParts, Policy, RecalledPart, SummaryPart, TextPart
from app.context.schemas import ContextRequest
from app.core.errors import Invalid
from app.formats.schemas import CanonicalTurn, Format, Kind, Role, ToolCall, ToolResult
from app.formats.units import units_of

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
    request = {key: more.pop(key) for key in ("format", "filter_participants", "semantic_recall") if key in more}
    parts: dict[str, Any] = {"system": None, "recent": recent, "more_before": False} | more
    return assemble(
        ContextParts(**parts),
        request=ContextRequest.model_validate({"token_budget": budget} | request),
        counter=FakeCounter(),
        policy=Policy(),
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
    assert reason(made, "t3") == "call a was answered before, the first result is kept"


def test_a_call_id_used_again_later_is_told_apart() -> None:
    made: Any = build([calls(1, "a"), result(2, "a", "1"), calls(3, "a"), result(4, "a", "2")])
    ids = [message["tool_calls"][0]["id"] for message in made.messages if message["role"] == "assistant"]
    assert ids == ["a", "a_3"]
    assert [message["tool_call_id"] for message in made.messages if message["role"] == "tool"] == ids


def test_calls_answered_by_one_turn_stay_together_with_it() -> None:
    both = turn(3, Role.TOOL, None, tool_results=[ToolResult("a", "A"), ToolResult("b", "B")])
    paired = units_of([calls(1, "a"), calls(2, "b"), both, turn(4)])
    assert [[one.id for one in unit.turns] for unit in paired.units] == [["t1", "t2", "t3"], ["t4"]]


def test_a_unit_leaves_the_window_whole() -> None:
    recent = [turn(1), calls(2, "a"), result(3, "a", "x" * 900), turn(4)]
    made = build(recent, 120)
    assert made.included.turn_ids == ["t4"]
    assert {row.id for row in made.explain if row.decision == "dropped"} == {"t1", "t2", "t3"}


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


def test_the_window_keeps_its_prefix_while_sixteen_turns_are_appended() -> None:
    starts: list[str] = []
    for newest in range(60, 140):
        made = build(talk(newest - 49, newest), more_before=True)
        starts.append(made.included.turn_ids[0])
        assert 35 <= len(made.included.turn_ids) <= 50
        assert int(starts[-1][1:]) % 16 == 0
    assert len(set(starts)) == 6


def test_the_window_keeps_its_prefix_when_the_budget_cuts_it_too() -> None:
    previous: list[Any] = []
    breaks = 0
    for newest in range(60, 140):
        made = build(talk(newest - 49, newest), 260, more_before=True)
        assert len(made.included.turn_ids) >= 10
        breaks += made.messages[: len(previous)] != previous
        previous = list(made.messages)
    assert breaks <= 80 // 8 + 1


@pytest.mark.parametrize(("fitting", "block"), [(50, 16), (32, 16), (31, 8), (15, 4), (7, 2), (3, 1), (1, 1)])
def test_alignment_costs_at_most_half_of_what_fits(fitting: int, block: int) -> None:
    for newest in range(100, 100 + 2 * block):
        made = build(talk(newest - fitting + 1, newest), more_before=True)
        assert int(made.included.turn_ids[0][1:]) % block == 0
        assert len(made.included.turn_ids) > fitting - block


def test_a_conversation_that_fits_whole_is_shown_whole() -> None:
    made = build(talk(1, 37))
    assert len(made.included.turn_ids) == 37


def test_summarised_turns_are_shown_by_their_summary_alone() -> None:
    made = build(talk(11, 60), more_before=True, summaries=[summary(1, 30)], system="sys")
    assert made.included.turn_ids[0] == "t31"
    assert made.included.summary_ids == ["s1"]
    assert made.messages[0]["content"] == "sys"
    assert made.messages[1]["content"] == '<summary turns="1-30">\nwhat was said\n</summary>'
    assert reason(made, "t30") == "summary s1 stands for it"


def test_a_summary_that_does_not_fit_gives_its_turns_back() -> None:
    made = build(talk(1, 60), 400, summaries=[summary(1, 50, "long " * 300)])
    assert made.included.summary_ids == []
    assert "t48" in made.included.turn_ids
    assert reason(made, "s1", "summary") == "it does not fit the budget"


def test_a_summary_over_the_newest_turn_is_not_used() -> None:
    made = build(talk(1, 10), summaries=[summary(1, 10)])
    assert made.included.summary_ids == []
    assert len(made.included.turn_ids) == 10


def test_a_filter_admits_a_summary_only_of_its_own_actors() -> None:
    recent = talk(20, 24)
    made = build(recent, summaries=[summary(1, 10)], filter_participants=["anna"])
    assert made.included.summary_ids == []
    assert build(recent, summaries=[summary(1, 10)], filter_participants=["anna", "bot"]).included.summary_ids == ["s1"]


def test_where_sources_are_gone_and_no_summary_stands_the_context_says_gap() -> None:
    made = build(talk(20, 24), gap=True)
    assert made.degraded == ["gap"]
    assert str(made.messages[0]["content"]).startswith("<gap>")
    unused = summary(1, 10, sources_gone=True, actors=frozenset({"mallory"}))
    filtered = build(talk(20, 24), summaries=[unused], filter_participants=["anna"])
    assert filtered.degraded == ["gap"]
    assert build(talk(20, 24), summaries=[summary(1, 10, sources_gone=True)]).degraded == []


def test_the_volatile_block_stands_directly_before_the_last_user_message() -> None:
    recent = [turn(1), calls(2, "a"), result(3, "a"), turn(4), calls(5, "b"), result(6, "b")]
    made = build(
        recent,
        facts=[TextPart("f1", "anna likes tea")],
        memories=[TextPart("m1", "keep answers short")],
        recalled=[RecalledPart(turn(90, content="later"), 0.9), RecalledPart(turn(80, content="earlier"), 0.5)],
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
    made = build(talk(1, 6), recalled=[RecalledPart(turn(3), 0.9), RecalledPart(turn(3), 0.8)])
    assert made.included.turn_ids == [f"t{n}" for n in range(1, 7)]
    assert reason(made, "t3", "recalled") == "it is among the recent turns"


def test_of_what_was_recalled_the_best_k_outside_the_window_are_shown() -> None:
    found = [RecalledPart(turn(n), n / 10) for n in range(1, 9)]
    made = build(talk(7, 10), recalled=found, semantic_recall={"k": 2})
    assert made.included.turn_ids == ["t7", "t8", "t9", "t10", "t5", "t6"]
    assert reason(made, "t4", "recalled") == "the 2 best are enough"


def test_the_recount_gives_up_what_matters_least_when_the_whole_takes_more_than_its_pieces() -> None:
    class Steep(FakeCounter):
        def count(self, text: str) -> int:
            return len(text) + (500 if len(text) > 300 else 0)

    recalled = [RecalledPart(turn(50 + n, content="x" * 40), n / 10) for n in range(6)]
    made = assemble(
        ContextParts(None, talk(1, 3), more_before=False, facts=[TextPart("f", "tea")], recalled=recalled),
        request=ContextRequest(token_budget=700),
        counter=Steep(),
        policy=Policy(),
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
        more_before=True,
        summaries=[summary(1, 39, "old " * 400)],
        facts=[TextPart(f"f{n}", "fact " * 10) for n in range(100)],
        memories=[TextPart(f"m{n}", "memory " * 10) for n in range(100)],
        recalled=[RecalledPart(turn(n, content="recalled " * 10), 0.5) for n in range(100, 200)],
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
    assert build(recent, 3000, facts=[TextPart("f", "x")]).usage.sections.facts.used > 0


def test_the_window_does_not_depend_on_how_much_was_recalled() -> None:
    recent = [turn(n, Role.USER, "word " * 30) for n in range(1, 60)]
    sizes = {
        tuple(key for key in build(recent, 3000, recalled=found).included.turn_ids if int(key[1:]) < 100)
        for count in (1, 3, 30)
        for found in [[RecalledPart(turn(100 + n, content="found it " * 9), 0.5) for n in range(count)]]
    }
    assert len(sizes) == 1


def test_explanations_are_readable_and_account_for_every_turn() -> None:
    made = build([result(1, "x"), *talk(2, 40)], 150, recalled=[RecalledPart(turn(90, content=" "), 0.5)])
    recent = {row.id for row in made.explain if row.section == "recent"}
    assert recent == {f"t{n}" for n in range(1, 41)}
    assert reason(made, "t90", "recalled") == "it has no text to show"
    assert reason(made, "t40") == "the newest turn is always shown"
    answer = made.answer(as_of_seq=40, explain=False)
    assert answer.explain is None
    assert answer.as_of_seq == 40
    assert made.answer(as_of_seq=40, explain=True).explain == made.explain


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
    made = assemble(
        ContextParts(None, recent, more_before=False),
        request=ContextRequest(token_budget=1000),
        counter=Wary(),
        policy=Policy(),
    )
    assert made.included.turn_ids == ["t3"]
    assert made.usage.sections.recent.dropped >= 125_000


def test_a_request_refuses_what_it_does_not_know() -> None:
    for wrong in ({}, {"token_budget": 0}, {"token_budget": 1, "x": 1}, {"token_budget": 1, "format": "xml"}):
        with pytest.raises(ValueError, match="validation error"):
            ContextRequest.model_validate(wrong)
