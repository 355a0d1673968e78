"""What only a model states ends nothing that a caller or a rule states, until one of them states it, too."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from app.memory.facts.merge import Outcome, TimelineFact, invalidate, merge, retract
from app.memory.facts.validity import is_confirmed
from app.memory.schemas import StatedBy, Statement, Tier
from tests.memory.book import Book, day

KEY = ("ana", "lives_in")


def statement(number: int, value: str, author: StatedBy, *, negated: bool = False) -> Statement:
    """A statement of the turn and the day of this number."""
    by_model = author is StatedBy.MODEL
    return Statement(
        "ana", "lives_in", value, day(number), (UUID(int=number),), 0.85 if by_model else 0.9, tier=Tier.L3,
        negated=negated, stated_by=author,
    )  # fmt: skip


def told(*statements: Statement) -> tuple[list[Outcome], list[TimelineFact]]:
    book = Book()
    outcomes = [book.write(KEY, merge(one, book.facts[KEY], book.clock)).outcome for one in statements]
    return outcomes, book.facts[KEY]


def by_object(facts: list[TimelineFact]) -> dict[str, TimelineFact]:
    assert len({fact.object for fact in facts}) == len(facts)
    return {fact.object: fact for fact in facts}


@pytest.mark.parametrize("author", [StatedBy.CALLER, StatedBy.RULES])
def test_a_model_alone_ends_no_fact_of_a_caller_or_a_rule(author: StatedBy) -> None:
    _, facts = told(statement(1, "Berlin", author), statement(5, "Rome", StatedBy.MODEL))
    held = by_object(facts)
    assert (held["Berlin"].valid_to, held["Rome"].valid_to) == (None, None)
    assert (held["Berlin"].tier, held["Rome"].tier) == (Tier.L3, Tier.L2)
    assert held["Rome"].confidence < 0.9


@pytest.mark.parametrize("author", [StatedBy.CALLER, StatedBy.RULES])
def test_a_rule_or_a_caller_confirms_it(author: StatedBy) -> None:
    _, facts = told(
        statement(1, "Berlin", StatedBy.RULES), statement(5, "Rome", StatedBy.MODEL), statement(9, "Rome", author)
    )
    held = by_object(facts)
    assert (held["Berlin"].valid_to, held["Rome"].tier) == (day(9), Tier.L3)
    assert held["Berlin"].invalidated_by == held["Rome"].id


@pytest.mark.parametrize("author", [StatedBy.CALLER, StatedBy.RULES])
def test_many_turns_of_a_model_alone_confirm_it_and_end_nothing_else(author: StatedBy) -> None:
    turns = [statement(number, "Rome", StatedBy.MODEL) for number in range(5, 11)]
    _, facts = told(statement(1, "Berlin", author), *turns)
    held = by_object(facts)
    assert (held["Berlin"].valid_to, held["Rome"].valid_to, held["Rome"].tier) == (None, None, Tier.L3)


def test_the_same_turn_read_again_confirms_nothing() -> None:
    rome = statement(5, "Rome", StatedBy.MODEL)
    outcomes, facts = told(statement(1, "Berlin", StatedBy.RULES), rome, rome, replace(rome, valid_from=day(4)))
    held = by_object(facts)
    assert outcomes[2] is Outcome.IGNORED
    assert (held["Berlin"].valid_to, held["Rome"].tier, held["Rome"].evidence_count) == (None, Tier.L2, 1)


def test_a_retracted_fact_of_the_rules_is_not_back_when_a_model_reads_the_turn_again() -> None:
    book = Book()
    rome = statement(5, "Rome", StatedBy.RULES)
    book.write(KEY, merge(rome, book.facts[KEY], book.clock))
    book.write(KEY, retract(book.facts[KEY][0].id, book.facts[KEY], book.clock))
    by_model = replace(rome, stated_by=StatedBy.MODEL, valid_from=day(2))
    assert book.write(KEY, merge(by_model, book.facts[KEY], book.clock)).outcome is Outcome.IGNORED
    assert [fact.retracted for fact in book.facts[KEY]] == [True]


def test_a_rule_confirms_what_a_model_read_in_the_same_turn_and_not_the_other_way() -> None:
    by_model, by_rule = (statement(5, "Rome", one) for one in (StatedBy.MODEL, StatedBy.RULES))
    _, facts = told(statement(1, "Berlin", StatedBy.CALLER), by_model, by_rule)
    held = by_object(facts)
    assert (held["Berlin"].valid_to, held["Rome"].evidence_count) == (day(5), 1)
    outcomes, facts = told(by_rule, by_model)
    assert (outcomes[1], len(facts), facts[0].evidence_count) == (Outcome.IGNORED, 1, 1)


def test_facts_of_a_model_end_each_other_until_one_is_confirmed() -> None:
    _, facts = told(statement(1, "Berlin", StatedBy.MODEL), statement(5, "Rome", StatedBy.MODEL))
    assert by_object(facts)["Berlin"].valid_to == day(5)
    _, facts = told(
        statement(1, "Berlin", StatedBy.MODEL), statement(2, "Berlin", StatedBy.MODEL),
        statement(5, "Rome", StatedBy.MODEL),
    )  # fmt: skip
    assert by_object(facts)["Berlin"].valid_to is None


def test_a_confirmed_fact_ends_that_of_a_model() -> None:
    _, facts = told(statement(1, "Rome", StatedBy.MODEL), statement(5, "Berlin", StatedBy.RULES))
    assert by_object(facts)["Rome"].valid_to == day(5)


def test_a_models_denials_end_no_fact_of_a_caller_or_a_rule() -> None:
    berlin = statement(1, "Berlin", StatedBy.CALLER)
    denials = [statement(number, "Berlin", StatedBy.MODEL, negated=True) for number in (5, 7)]
    outcomes, facts = told(berlin, denials[0], denials[0], denials[1])
    assert (outcomes[1:3], outcomes[3], facts[0].valid_to) == (
        [Outcome.UNCONFIRMED, Outcome.IGNORED], Outcome.UNCONFIRMED, None,
    )  # fmt: skip
    outcomes, facts = told(berlin, denials[0], replace(denials[1], stated_by=StatedBy.RULES))
    assert (outcomes[2], facts[0].valid_to) == (Outcome.ENDED, day(7))


def test_a_models_denial_ends_its_own_confirmed_fact_only_with_another_one() -> None:
    berlin = [statement(number, "Berlin", StatedBy.MODEL) for number in (1, 2)]
    denials = [statement(number, "Berlin", StatedBy.MODEL, negated=True) for number in (5, 7)]
    outcomes, facts = told(*berlin, denials[0])
    assert (outcomes[2], facts[0].valid_to) == (Outcome.UNCONFIRMED, None)
    outcomes, facts = told(*berlin, *denials)
    assert (outcomes[3], facts[0].valid_to) == (Outcome.ENDED, day(7))
    outcomes, facts = told(*berlin, denials[0], statement(6, "Berlin", StatedBy.MODEL), denials[1])
    assert (outcomes[4], facts[0].valid_to) == (Outcome.UNCONFIRMED, None)


def test_a_fact_is_no_longer_confirmed_when_its_second_turn_is_erased() -> None:
    book = Book()
    for one in (
        statement(1, "Berlin", StatedBy.MODEL), statement(2, "Berlin", StatedBy.MODEL),
        statement(5, "Rome", StatedBy.MODEL), statement(9, "Rome", StatedBy.MODEL),
    ):  # fmt: skip
        book.write(KEY, merge(one, book.facts[KEY], book.clock))
    assert by_object(book.facts[KEY])["Berlin"].valid_to == day(9)
    book.write(KEY, invalidate([UUID(int=9)], book.facts[KEY], book.clock))
    held = by_object(book.facts[KEY])
    assert (held["Berlin"].valid_to, held["Rome"].tier) == (None, Tier.L2)


def test_evidence_from_before_authors_were_recorded_counts_as_confirmed() -> None:
    _, facts = told(statement(1, "Berlin", StatedBy.MODEL))
    assert not is_confirmed(facts[0].evidence)
    assert is_confirmed([replace(one, stated_by=None) for one in facts[0].evidence])


def test_the_order_of_arrival_does_not_matter() -> None:
    statements = [
        statement(1, "Berlin", StatedBy.RULES), statement(5, "Rome", StatedBy.MODEL),
        statement(9, "Rome", StatedBy.RULES),
    ]  # fmt: skip
    expected = {(fact.object, fact.valid_from, fact.valid_to) for fact in told(*statements)[1]}
    for first in range(3):
        turned = [*statements[first:], *statements[:first]]
        assert {(fact.object, fact.valid_from, fact.valid_to) for fact in told(*turned)[1]} == expected
    assert expected == {("Berlin", day(1), day(1) + timedelta(days=8)), ("Rome", day(5), None)}
