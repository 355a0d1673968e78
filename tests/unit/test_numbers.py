"""Numbers, dates and times that a text states, by value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.index.analyser.languages import CODES
from app.index.analyser.numbers import Day, fold_digits, read_mentions, read_numbers, read_words, stated_dates

MAY_8 = frozenset([Day(2023, 5, 8)])
SIGNS = "0123456789٣५ .,:/-年月日 aprılmaymAPRİLseptſK千万三half past tausend pm\u00a0\u2009"


@pytest.mark.parametrize(
    ("text", "code", "readings"),
    [
        ("on 2023-05-08 there", "en", MAY_8),
        ("8 May 2023", "en", MAY_8),
        ("May 8th, 2023", "en", MAY_8),
        ("2023年5月8日", "zh", MAY_8),
        ("am 8. Mai 2023", "de", MAY_8),
        ("le 8 mai 2023", "fr", MAY_8),
        ("03/04/2023", "en", frozenset([Day(2023, 3, 4), Day(2023, 4, 3)])),
        ("2023-05", "en", frozenset([Day(2023, 5, None)])),
        ("in May", "en", frozenset([Day(None, 5, None)])),
        ("since 2019", "en", frozenset([Day(2019, None, None)])),
    ],
)
def test_a_date_is_read_by_value(text: str, code: str, readings: frozenset[Day]) -> None:
    assert [one.readings for one in stated_dates(fold_digits(text), code)] == [readings]


@pytest.mark.parametrize("text", ["99/99/99", "version 1.2.3", "10 000", "a 1:2 chance"])
def test_what_cannot_be_a_date_is_none(text: str) -> None:
    assert not stated_dates(text)


def test_a_year_or_a_month_alone_is_a_number_or_a_word_of_a_summary() -> None:
    found = read_mentions("May I say that 2023 was good?")
    assert not found.dates
    assert found.numbers == [frozenset(["2023"])]


@pytest.mark.parametrize(
    ("text", "code", "readings"),
    [
        ("1,000", "en", {"1000"}),
        ("1,000", "de", {"1000", "1"}),
        ("1.250,50", "de", {"1250.5"}),
        ("18 thousand", "en", {"18", "18000"}),
        ("3万", "ja", {"3", "30000"}),
        ("007", "en", {"7"}),
    ],
)
def test_a_number_has_the_readings_of_its_language(text: str, code: str, readings: set[str]) -> None:
    assert list(read_numbers(text, code)) == [readings]


def test_number_words_have_their_value() -> None:
    assert {"25", "3"} <= set(read_words("", ["twenty", "five", "or", "third"]))
    assert "120" in set(read_words("一百二十元", []))


@given(st.text(alphabet=SIGNS, max_size=40), st.sampled_from(CODES))
def test_no_text_fails(text: str, code: str) -> None:
    read_mentions(text, code)
    list(read_words(text, text.split(), code))


@pytest.mark.parametrize("text", ["aprıl 2023", "APRİL 2023", "3 aprıl"])
def test_letters_that_only_look_like_those_of_a_month_do_not_fail(text: str) -> None:
    assert all(day.month in {4, None} for one in stated_dates(text) for day in one.readings)
