"""What a new statement does to the facts that are held: as a table, for any order, and taken back."""

from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.memory.facts.merge import Outcome, correct, invalidate, merge, retract
from app.memory.facts.validity import expires_at
from app.memory.schemas import Tier
from tests.memory.book import Book, day, read

# what is said, in the order of its arrival, and every fact that there is then
TABLE: list[tuple[list[str], list[str]]] = [
    # updates where there is room for one
    (["1 I|lives in|Berlin", "5 I|lives in|Rome"], ["ana|lives_in|Berlin 1-5", "ana|lives_in|Rome 5-"]),
    (["1 I|lives in|Berlin", "5 me|moved to|Rome"], ["ana|lives_in|Berlin 1-5", "ana|lives_in|Rome 5-"]),
    (["1 I|age|33", "5 I|is years old|34"], ["ana|age|33 1-5", "ana|age|34 5-"]),
    (["1 I|name|Ana", "5 user|name is|Ana Silva"], ["ana|name|Ana 1-5", "ana|name|Ana Silva 5-"]),
    (["1 I|married to|Bob", "9 I|spouse|Carl"], ["ana|spouse|Bob 1-9", "ana|spouse|Carl 9-"]),
    (["1 I|marital status|single", "9 I|relationship status|married"],
     ["ana|marital_status|single 1-9", "ana|marital_status|married 9-"]),
    (["1 I|favorite colour|red", "2 my|favourite colour|blue"],
     ["ana|favourite_colour|red 1-2", "ana|favourite_colour|blue 2-"]),
    (["1 I|lives in|Berlin", "3 I|lives in|Rome", "7 I|lives in|Berlin"],
     ["ana|lives_in|Berlin 1-3", "ana|lives_in|Rome 3-7", "ana|lives_in|Berlin 7-"]),
    (["1 I|birthday|May 12", "2 I|date of birth|May 13"], ["ana|birthday|May 12 1-2", "ana|birthday|May 13 2-"]),
    # no contradiction: room for many
    (["1 I|likes|tea", "2 I|likes|coffee"], ["ana|likes|tea 1-", "ana|likes|coffee 2-"]),
    (["1 I|speaks|German", "2 I|speaks|French"], ["ana|speaks|German 1-", "ana|speaks|French 2-"]),
    (["1 I|works at|Acme", "2 I|works for|Globex"], ["ana|works_at|Acme 1-", "ana|works_at|Globex 2-"]),
    (["1 I|has pet|Rex", "2 I|pet|Tom"], ["ana|has_pet|Rex 1-", "ana|has_pet|Tom 2-"]),
    (["1 I|allergic to|nuts", "2 I|allergic to|milk"], ["ana|allergic_to|nuts 1-", "ana|allergic_to|milk 2-"]),
    (["1 I|daughter|Eva", "2 I|son|Max"], ["ana|has_child|Eva 1-", "ana|has_child|Max 2-"]),
    (["1 I|email|a@x", "2 I|email|b@x"], ["ana|email|a@x 1-", "ana|email|b@x 2-"]),
    (["1 I|owns|a car", "2 I|owns|a boat"], ["ana|owns|a car 1-", "ana|owns|a boat 2-"]),
    (["1 I|born in|1985", "2 I|born in|Rome"], ["ana|born_in|1985 1-", "ana|born_in|Rome 2-"]),
    (["1 I|diet|vegetarian", "2 I|diet|gluten-free", "3 I|diet|vegan"],
     ["ana|diet|vegetarian 1-3", "ana|diet|gluten-free 2-", "ana|diet|vegan 3-"]),
    (["1 I|diet|Vegetarian diet", "2 I|diet|vegan"], ["ana|diet|Vegetarian diet 1-2", "ana|diet|vegan 2-"]),
    (["1 I|has pet|cat named Biscuit", "2 I|has pet|a cat called Biscuit"], ["ana|has_pet|a cat called Biscuit 1- x2"]),
    (["1 I|has pet|cat named Biscuit", "2 I|has pet|a cat whose name is Biscuit"],
     ["ana|has_pet|a cat whose name is Biscuit 1- x2"]),
    (["1 I|diet|vegan", "2 I|diet|gluten-free"], ["ana|diet|vegan 1-", "ana|diet|gluten-free 2-"]),
    (["1 I|is|tired", "2 I|is|happy"], ["ana|is|tired 1-", "ana|is|happy 2-"]),
    (["1 I|visited|Rome", "2 I|visited|Oslo"], ["ana|visited|Rome 1-", "ana|visited|Oslo 2-"]),
    (["1 I|native language|German", "2 I|mother tongue|Polish"],
     ["ana|native_language|German 1-", "ana|native_language|Polish 2-"]),
    # repetitions
    (["1 I|lives in|Berlin", "5 I|resides in|berlin"], ["ana|lives_in|berlin 1- x2"]),
    (["1 I|likes|the Beatles", "5 I|loves|Beatles"], ["ana|likes|Beatles 1- x2"]),
    (["1 I|likes|tea", "1 I|likes|tea"], ["ana|likes|tea 1-"]),
    (["1 I|likes|tea", "2 I|likes|TEA!", "3 I|enjoys|tea."], ["ana|likes|tea. 1- x3"]),
    (["1 I|has|1,000 books", "2 I|has|1000 books"], ["ana|has|1000 books 1- x2"]),
    (["1 I|lives in|\uff22erlin", "2 I|lives in|Berlin"], ["ana|lives_in|Berlin 1- x2"]),
    (["1 I|uses|Python 3.1", "2 I|uses|Python 3.10"], ["ana|uses|Python 3.1 1-", "ana|uses|Python 3.10 2-"]),
    (["1 I|uses|C", "2 I|uses|C++", "3 I|uses|C#"], ["ana|uses|C 1-", "ana|uses|C++ 2-", "ana|uses|C# 3-"]),
    (["1 I|agent number|007", "2 I|agent number|7"], ["ana|agent_number|007 1-", "ana|agent_number|7 2-"]),
    (["5 I|lives in|Berlin", "2 I|lives in|Berlin"], ["ana|lives_in|Berlin 2- x2"]),
    # other subjects, other predicates
    (["1 I|lives in|Berlin", "5 Bob|lives in|Rome"], ["ana|lives_in|Berlin 1-", "bob|lives_in|Rome 5-"]),
    (["1 Bob|lives in|Berlin", "5 Bobby|lives in|Rome"], ["bob|lives_in|Berlin 1-", "bobby|lives_in|Rome 5-"]),
    (["1 I|age|34", "5 my sister|age|30"], ["ana|age|34 1-", "my sister|age|30 5-"]),
    (["1 I|name|Ana", "5 the cat|name|Tom"], ["ana|name|Ana 1-", "cat|name|Tom 5-"]),
    (["1 I|lives in|Berlin", "5 I|from|Rome"], ["ana|from|Rome 5-", "ana|lives_in|Berlin 1-"]),
    (["1 I|likes|Rome", "5 I|lives in|Rome"], ["ana|likes|Rome 1-", "ana|lives_in|Rome 5-"]),
    (["1 I|partner|Bob", "5 I|spouse|Carl"], ["ana|partner|Bob 1-", "ana|spouse|Carl 5-"]),
    (["1 I|likes|tea", "5 I|dislikes|coffee"], ["ana|dislikes|coffee 5-", "ana|likes|tea 1-"]),
    (["1 I|lives in|Berlin", "5 -Bob|lives in|Berlin"], ["ana|lives_in|Berlin 1-"]),
    (["1 Ana|lives in|Berlin", "5 I|lives in|Rome"], ["ana|lives_in|Berlin 1-5", "ana|lives_in|Rome 5-"]),
    # supposed only
    (["1 I|lives in|Berlin", "5 ?I|lives in|Rome"], ["ana|lives_in|Berlin 1-"]),
    (["5 ?I|lives in|Rome"], []),
    (["1 I|likes|tea", "5 ?I|likes|tea"], ["ana|likes|tea 1-"]),
    (["1 I|spouse|Bob", "2 ?I|spouse|Carl", "3 I|spouse|Bob"], ["ana|spouse|Bob 1- x2"]),
    # denied
    (["1 I|likes|jazz", "5 -I|likes|jazz"], ["ana|likes|jazz 1-5"]),
    (["1 I|likes|jazz", "2 I|likes|rock", "5 -I|likes|jazz"], ["ana|likes|jazz 1-5", "ana|likes|rock 2-"]),
    (["1 I|lives in|Berlin", "5 -I|lives in|Rome"], ["ana|lives_in|Berlin 1-"]),
    (["1 I|lives in|Berlin", "5 -I|lives in|Berlin"], ["ana|lives_in|Berlin 1-5"]),
    (["1 I|lives in|Berlin", "3 I|lives in|Rome", "5 -I|lives in|Berlin"],
     ["ana|lives_in|Berlin 1-3", "ana|lives_in|Rome 3-"]),
    (["5 -I|likes|jazz"], []),
    (["1 I|works at|Acme", "3 -I|works at|Acme", "5 I|works at|Acme"], ["ana|works_at|Acme 1-3",
    "ana|works_at|Acme 5-"]),
    (["1 I|lives in|Berlin", "5#5 -I|lives in|Berlin", "5#5 I|lives in|Rome"],
     ["ana|lives_in|Berlin 1-5", "ana|lives_in|Rome 5-"]),
    (["3 I|likes|jazz", "1 -I|likes|jazz"], ["ana|likes|jazz 3-"]),
    # late imports
    (["5 I|lives in|Rome", "1 I|lives in|Berlin"], ["ana|lives_in|Berlin 1-5", "ana|lives_in|Rome 5-"]),
    (["1 I|lives in|Berlin", "9 I|lives in|Rome", "5 I|lives in|Oslo"],
     ["ana|lives_in|Berlin 1-5", "ana|lives_in|Oslo 5-9", "ana|lives_in|Rome 9-"]),
    (["1 I|lives in|Berlin", "9 I|lives in|Berlin", "5 I|lives in|Oslo"],
     ["ana|lives_in|Berlin 1-5", "ana|lives_in|Oslo 5-9", "ana|lives_in|Berlin 9-"]),
    (["5 I|likes|tea", "1 I|likes|coffee"], ["ana|likes|coffee 1-", "ana|likes|tea 5-"]),
    (["9 I|age|34", "5 I|age|33", "1 I|age|32"], ["ana|age|32 1-5", "ana|age|33 5-9", "ana|age|34 9-"]),
    (["1 I|lives in|Berlin", "9 I|lives in|Rome", "3 I|lives in|Berlin"], ["ana|lives_in|Berlin 1-9 x2",
    "ana|lives_in|Rome 9-"]),
    (["9 -I|likes|tea", "1 I|likes|tea"], ["ana|likes|tea 1-"]),
    # said to replace, and with an end of its own
    (["1 I|works at|Acme", "5 =I|works at|Globex"], ["ana|works_at|Acme 1-5", "ana|works_at|Globex 5-"]),
    (["1 I|likes|tea", "2 I|likes|milk", "5 =I|likes|water"],
     ["ana|likes|tea 1-5", "ana|likes|milk 2-5", "ana|likes|water 5-"]),
    (["5 =I|works at|Globex", "9 I|works at|Acme"], ["ana|works_at|Globex 5-", "ana|works_at|Acme 9-"]),
    (["1 I|works at|Acme", "5 =I|works at|acme"], ["ana|works_at|acme 1- x2"]),
    (["1-4 I|works at|Acme"], ["ana|works_at|Acme 1-4"]),
    (["9 I|lives in|Rome", "1-4 I|lives in|Berlin"], ["ana|lives_in|Berlin 1-4", "ana|lives_in|Rome 9-"]),
    (["1-4 I|lives in|Berlin", "3 I|lives in|Rome"], ["ana|lives_in|Berlin 1-3", "ana|lives_in|Rome 3-"]),
]  # fmt: skip


@pytest.mark.parametrize(("said", "expected"), TABLE, ids=[" + ".join(said) for said, _ in TABLE])
def test_the_facts_are_what_was_said_and_nothing_more_is_ended(said: list[str], expected: list[str]) -> None:
    book = Book()
    for note in said:
        book.say(note)
    assert book.shown() == expected


def test_a_decision_says_what_it_came_to() -> None:
    book = Book()
    assert book.say("1 I|likes|tea").outcome is Outcome.RECORDED
    repeated = book.say("2 I|likes|tea")
    assert (repeated.outcome, repeated.fact_id) == (Outcome.REPEATED, UUID(int=1000))
    assert book.say("2 I|likes|tea").reason == "known from the same source"
    assert book.say("3 ?I|likes|tea").reason == "hypothetical"
    assert book.say("3 -I|likes|milk").reason == "nothing to end"
    assert book.say("3 -I|likes|tea").outcome is Outcome.ENDED


def test_an_ended_fact_says_when_that_was_recorded_and_by_which_fact() -> None:
    book = Book()
    book.say("1 I|lives in|Berlin")
    recorded = book.say("5 I|lives in|Rome")
    old, new = sorted(book.facts["ana", "lives_in"], key=lambda fact: fact.valid_from)
    assert recorded.fact_id == new.id
    assert (old.invalidated_by, old.invalidated_at, new.invalidated_at) == (new.id, book.now, None)
    book.say("7 I|lives in|Rome")
    assert old in book.facts["ana", "lives_in"]


def test_evidence_makes_a_fact_surer_and_keeps_it_longer() -> None:
    book = Book()
    tiers, sure = [], []
    for number in range(1, 6):
        book.say(f"{number} I|likes|tea")
        (fact,) = book.facts["ana", "likes"]
        tiers.append(fact.tier)
        sure.append(fact.confidence)
    assert tiers == [Tier.L1, Tier.L2, Tier.L2, Tier.L3, Tier.L3]
    assert sure == sorted(sure)
    assert 0 <= sure[0] <= sure[-1] <= 1


def test_tiers_age_from_when_they_were_recorded() -> None:
    kept = {"l1_kept": timedelta(days=1), "l2_kept": timedelta(days=7)}
    assert expires_at(Tier.L1, day(1), **kept) == day(2)
    assert expires_at(Tier.L2, day(1), **kept) == day(8)
    assert expires_at(Tier.L3, day(1), **kept) is None


def test_a_fact_goes_with_its_last_evidence_and_what_it_ended_is_open_again() -> None:
    book, key = Book(), ("ana", "lives_in")
    book.say("1 I|lives in|Berlin")
    book.say("5 I|lives in|Rome")
    book.say("7 I|lives in|Rome")
    book.write(key, invalidate([UUID(int=5)], book.facts[key], book.clock))
    assert book.shown() == ["ana|lives_in|Berlin 1-7", "ana|lives_in|Rome 7-"]
    book.write(key, invalidate([UUID(int=7)], book.facts[key], book.clock))
    assert book.shown() == ["ana|lives_in|Berlin 1-"]
    assert invalidate([UUID(int=7)], book.facts[key], book.clock).outcome is Outcome.IGNORED
    book.write(key, invalidate([UUID(int=1)], book.facts[key], book.clock))
    assert book.facts[key] == []


def test_a_denial_that_is_withdrawn_ends_nothing_any_more() -> None:
    book, key = Book(), ("ana", "likes")
    book.say("1 I|likes|jazz")
    book.say("5 -I|likes|jazz")
    book.write(key, invalidate([UUID(int=5)], book.facts[key], book.clock))
    assert book.shown() == ["ana|likes|jazz 1-"]


def test_a_retracted_fact_stays_as_a_row_reopens_what_it_ended_and_is_not_said_back_by_its_own_turn() -> None:
    book, key = Book(), ("ana", "lives_in")
    book.say("1 I|lives in|Berlin")
    rome = book.say("5 I|lives in|Rome").fact_id
    assert rome is not None
    before = book.shown()
    retracted = book.write(key, retract(rome, book.facts[key], book.clock))
    assert book.shown() == ["ana|lives_in|Berlin 1-"]
    assert len(book.facts[key]) == 2
    assert book.say("5 I|lives in|Rome").outcome is Outcome.IGNORED
    assert retract(rome, book.facts[key], book.clock).outcome is Outcome.IGNORED
    book.undo(key, retracted)
    assert book.shown() == before
    book.write(key, retract(rome, book.facts[key], book.clock))
    book.write(key, invalidate([UUID(int=5)], book.facts[key], book.clock))
    assert len(book.facts[key]) == 1, "nothing of an erased turn stays, retracted or not"


def test_a_correction_replaces_a_fact_and_can_be_undone() -> None:
    book, key = Book(), ("ana", "lives_in")
    book.say("1 I|lives in|Berlin")
    wrong = book.say("5 I|lives in|Rom").fact_id
    assert wrong is not None
    before = list(book.facts[key])
    corrected = book.write(key, correct(wrong, read("5 I|lives in|Rome"), book.facts[key], book.clock))
    assert book.shown() == ["ana|lives_in|Berlin 1-5", "ana|lives_in|Rome 5-"]
    book.undo(key, corrected)
    assert {fact.id: fact for fact in book.facts[key]} == {fact.id: fact for fact in before}


NOTES = st.builds(
    lambda at, until, mark, value: f"{at}{f'-{at + until}' if until and not mark else ''} {mark}I|lives in|{value}",
    st.integers(1, 20), st.sampled_from([0, 0, 0, 3]), st.sampled_from(["", "", "",
    "="]), st.sampled_from(["Rome", "Oslo", "Bern"]),
)  # fmt: skip
LISTS = st.lists(NOTES, max_size=8, unique_by=lambda note: note.split(" ")[0].split("-")[0])


@given(LISTS, st.randoms(use_true_random=False))
def test_any_order_of_arrival_gives_the_same_timeline(notes: list[str], random) -> None:  # noqa: ANN001
    first, second = Book(), Book()
    for note in notes:
        first.say(note)
    for note in random.sample(notes, len(notes)):
        second.say(note)
    assert first.shown() == second.shown()


@given(LISTS)
def test_at_any_time_a_single_valued_predicate_has_one_object_and_the_newest_word_stands(notes: list[str]) -> None:
    book = Book()
    for note in notes:
        book.say(note)
    facts = book.facts["ana", "lives_in"]
    for moment in range(25):
        at = day(moment)
        assert sum(fact.valid_from <= at and (fact.valid_to is None or at < fact.valid_to) for fact in facts) <= 1
    for fact in facts:
        assert fact.evidence
        assert (fact.invalidated_at is None) == (fact.valid_to is None)
        assert fact.invalidated_by is None or fact.invalidated_by in {other.id for other in facts}


DENIED = st.builds(
    lambda at, mark, value: f"{at} {mark}I|likes|{value}",
    st.integers(1, 9), st.sampled_from(["", "", "-", "="]), st.sampled_from(["tea", "milk", "jazz"]),
)  # fmt: skip


@given(st.lists(st.one_of(NOTES, DENIED), max_size=8), st.integers(0, 7))
def test_what_is_taken_back_is_as_if_it_had_not_been_said(notes: list[str], which: int) -> None:
    """At once: the very rows of before. Then, after whatever was said since: nothing that it brought is left."""
    book = Book()
    for note in notes[:which]:
        book.say(note)
    if which >= len(notes):
        return
    key = read(notes[which]).subject, read(notes[which]).predicate
    before = {fact.id: fact for fact in book.facts[key]}
    decision = book.say(notes[which])
    book.undo(key, decision)
    assert {fact.id: fact for fact in book.facts[key]} == before


@given(LISTS, st.integers(0, 7))
def test_a_turn_that_is_withdrawn_leaves_the_timeline_of_the_others(notes: list[str], which: int) -> None:
    if which >= len(notes):
        return
    book, without = Book(), Book()
    for number, note in enumerate(notes):
        book.say(note)
        if number != which:
            without.say(note)
    key = "ana", "lives_in"
    gone = read(notes[which]).sources
    taken = book.write(key, invalidate(gone, book.facts[key], book.clock))
    assert book.shown() == without.shown()
    after = book.shown()
    book.undo(key, taken)
    assert sum("lives_in" in line for line in book.shown()) >= len(after) - 1
    both = Book()
    for note in notes:
        both.say(note)
    assert book.shown() == both.shown()


def test_a_statement_without_an_object_is_none() -> None:
    assert merge(read("1 I|likes| "), [], Book().clock).reason == "incomplete"


@given(LISTS, st.integers(0, 7))
def test_a_statement_taken_back_after_others_leaves_what_they_alone_would_have(notes: list[str], which: int) -> None:
    if which >= len(notes):
        return
    book, without = Book(), Book()
    decisions = [book.say(note) for note in notes]
    for note in notes[:which] + notes[which + 1 :]:
        without.say(note)
    book.undo(("ana", "lives_in"), decisions[which])
    assert book.shown() == without.shown()
