"""Undone facts leave the timeline as if they had not been stated, and none is lost but the oldest of very many."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.memory.facts import fact_timeline
from app.memory.facts.fact_timeline import FactTimeline
from app.memory.facts.merge import Clock, Outcome, TimelineFact, apply, correct, merge, retract, undo_decision
from app.memory.facts.spelling import object_key
from app.memory.facts.store import FactKey
from app.memory.schemas import StatedBy, Statement
from app.settings.memory import FactSettings
from tests.memory.book import day, read

KEY = FactKey("ana", "ana", "lives_in")
OBJECTS = ("Rome", "Oslo", "Bern")


def clock() -> Clock:
    ids: Iterator[int] = itertools.count(1)
    return Clock(day(100), lambda: UUID(int=next(ids)))


def opened(clock: Clock) -> FactTimeline:
    return FactTimeline(KEY, [], {}, clock=clock, settings=FactSettings())


def stated(timeline: FactTimeline) -> dict[str, bool]:
    return {row.fact.object: row.fact.undone for row in timeline.rows()}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["assert", "assert", "correct", "retract", "undo", "undo"]),
        st.integers(1, 9), st.sampled_from(OBJECTS), st.booleans(), st.integers(0, 9),
    ),
    max_size=12,
)  # fmt: skip


@given(STEPS)
@example(
    [
        ("assert", 1, "Rome", False, 0),
        ("assert", 3, "Rome", False, 0),
        ("assert", 1, "Oslo", True, 0),
        ("assert", 2, "Rome", False, 0),
        ("correct", 1, "Rome", False, 0),
        ("correct", 1, "Oslo", False, 0),
        ("undo", 1, "Rome", False, 0),
        ("undo", 1, "Rome", False, 0),
        ("assert", 1, "Rome", False, 0),
        ("correct", 1, "Oslo", True, 0),
        ("undo", 1, "Rome", False, 9),
    ]
)  # two facts have the same evidence, and both are restored
def test_no_statement_is_lost_and_the_timeline_is_that_without_undone_facts(steps) -> None:  # noqa: ANN001
    own, other = clock(), clock()
    timeline, plain = opened(own), list[TimelineFact]()
    objects: set[str] = set()
    for kind, at, value, replaces, which in steps:
        statement = replace(read(f"{at} I|lives in|{value}"), replaces=replaces)
        facts = [fact for fact in timeline.facts if not fact.retracted]
        fact_id = facts[which % len(facts)].id if facts else None
        if kind == "assert":
            timeline.merge(statement, {})
            plain = apply(merge(statement, plain, other).changes, plain)
        elif kind == "undo" and timeline.decisions:
            decision = timeline.decisions.pop(which % len(timeline.decisions))
            changes = timeline.undo_decision(decision).changes
            for _ in (change for change in changes if change.before is None and change.after and change.after.undone):
                other.new_id()
            plain = apply(undo_decision(decision, plain, other).changes, plain)
        elif fact_id is not None and kind == "correct":
            timeline.correct(next(fact for fact in facts if fact.id == fact_id), statement)
            plain = apply(correct(fact_id, statement, plain, other).changes, plain)
        elif fact_id is not None and kind == "retract":
            timeline.retract(fact_id)
            plain = apply(retract(fact_id, plain, other).changes, plain)
        assert {fact.id: fact for fact in timeline.facts} == {fact.id: fact for fact in plain}
        objects |= {object_key(item.object) for decision in timeline.decisions for item in decision.added}
        rows = timeline.rows()
        assert {object_key(row.fact.object) for row in rows} == objects
        assert len({row.fact.id for row in rows}) == len(rows)
        for row in rows:
            assert (row.fact.undone, row.fact.retracted) != (True, False)
            assert row.fact.evidence == tuple(row.origins)
            assert row.fact.evidence


@pytest.mark.parametrize("author", list(StatedBy))
@pytest.mark.parametrize("first", list(StatedBy))
@pytest.mark.parametrize("later", [0, 1])
def test_a_caller_may_state_again_what_was_undone_and_an_extraction_of_its_turn_may_not(
    first: StatedBy, author: StatedBy, later: int
) -> None:
    timeline = opened(clock())
    statement = Statement("ana", "lives_in", "Rome", day(1), (UUID(int=7),))
    timeline.undo_decision(timeline.merge(replace(statement, stated_by=first), {}))
    assert stated(timeline) == {"Rome": True}
    timeline.merge(replace(statement, valid_from=day(1 + later), stated_by=author), {})
    assert len(timeline.facts) == (author is StatedBy.CALLER)


@pytest.mark.parametrize("author", [StatedBy.RULES, StatedBy.MODEL])
@pytest.mark.parametrize("negated", [False, True])
def test_what_an_undo_takes_from_a_fact_that_stands_is_not_extracted_again(author: StatedBy, *, negated: bool) -> None:
    timeline = opened(clock())
    rome = Statement("ana", "lives_in", "Rome", day(1), (UUID(int=7),), stated_by=StatedBy.RULES)
    also = replace(rome, valid_from=day(2), sources=(UUID(int=8),), negated=negated)
    first = timeline.merge(rome, {})
    before = timeline.facts
    second = timeline.merge(also, {})
    timeline.undo_decision(second)
    assert timeline.facts == before
    again = replace(also, stated_by=author)
    assert timeline.merge(again, {}).outcome is Outcome.IGNORED
    timeline.undo_decision(first)
    stored = {row.fact.id: list(row.origins.items()) for row in timeline.rows()}
    timeline = FactTimeline(KEY, timeline.written(), stored, clock=clock(), settings=FactSettings())
    assert timeline.merge(again, {}).outcome is Outcome.IGNORED
    assert timeline.facts == []
    assert timeline.remove(lambda item, _: item.source == UUID(int=8)) == 1
    assert [row.fact.source_turn_ids for row in timeline.rows()] == [[UUID(int=7)]]


def test_the_oldest_undone_facts_give_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fact_timeline, "MAX_FACTS_OF_A_KEY", 4)
    timeline = opened(clock())
    for number in range(6):
        statement = Statement("ana", "likes", f"thing {number}", day(0) + timedelta(seconds=number))
        timeline.undo_decision(timeline.merge(statement, {}))
    assert stated(timeline) == {f"thing {number}": True for number in range(2, 6)}
    for number in range(3):
        timeline.merge(Statement("ana", "likes", f"other {number}", day(1)), {})
    assert stated(timeline) == {"thing 5": True} | {f"other {number}": False for number in range(3)}
    assert len(timeline.written()) == 4
