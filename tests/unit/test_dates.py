"""Relative dates: which phrases are one, and which days they mean."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import dateparser
import pytest

from app.index.analyser.date_words import date_words
from app.index.analyser.dates import may_have_dates, resolve_dates

WEDNESDAY = datetime(2023, 5, 10, 15, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "phrase", "first", "last"),
    [
        ("We met yesterday.", "yesterday", "2023-05-09", "2023-05-09"),
        ("the day before yesterday", "the day before yesterday", "2023-05-08", "2023-05-08"),
        ("Tomorrow, then", "Tomorrow", "2023-05-11", "2023-05-11"),
        ("I slept badly last night", "last night", "2023-05-09", "2023-05-09"),
        ("LAST FRIDAY it rained", "LAST FRIDAY", "2023-05-05", "2023-05-05"),
        ("see you next Friday", "next Friday", "2023-05-12", "2023-05-12"),
        ("last Wednesday", "last Wednesday", "2023-05-03", "2023-05-03"),
        ("this coming Monday", "this coming Monday", "2023-05-15", "2023-05-15"),
        ("last week", "last week", "2023-05-01", "2023-05-07"),
        ("last weekend", "last weekend", "2023-05-06", "2023-05-07"),
        ("next month", "next month", "2023-06-01", "2023-06-30"),
        ("last year", "last year", "2022-01-01", "2022-12-31"),
        ("last May", "last May", "2022-05-01", "2022-05-31"),
        ("three weeks ago", "three weeks ago", "2023-04-17", "2023-04-23"),
        ("10 years ago", "10 years ago", "2013-01-01", "2013-12-31"),
        ("my exam is in two days", "in two days", "2023-05-12", "2023-05-12"),
    ],
)
def test_a_relative_date_is_the_days_it_means(text: str, phrase: str, first: str, last: str) -> None:
    assert may_have_dates(text)
    (found,) = resolve_dates(text, occurred_at=WEDNESDAY)
    assert text[found.start : found.end] == phrase
    assert (str(found.first_day), str(found.last_day)) == (first, last)


@pytest.mark.parametrize(
    "text",
    [
        "", "This may be it.", "in march order",
        "the last week of school", "the last month was hard", "today", "this week",
        "on Friday", "I had not slept in three days", "Fridays", "2023-05-10", "lastfriday", "in 5 minutes",
    ],
)  # fmt: skip
def test_what_is_no_relative_date_by_itself_is_left_alone(text: str) -> None:
    assert resolve_dates(text, occurred_at=WEDNESDAY) == []


def test_the_day_is_that_in_utc() -> None:
    late = datetime(2023, 5, 10, 23, 30, tzinfo=timezone(timedelta(hours=-5)))
    (found,) = resolve_dates("yesterday", occurred_at=late)
    assert str(found.first_day) == "2023-05-10"


def test_the_ends_of_the_calendar_are_no_error() -> None:
    text = "yesterday, last weekend, last year, 999 years ago; tomorrow, next weekend, next year, next December"
    for occurred_at in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        for found in resolve_dates(text, occurred_at=occurred_at):
            assert found.first_day <= found.last_day


def test_much_text_and_many_dates_are_bounded() -> None:
    assert len(resolve_dates("yesterday " * 10_000, occurred_at=WEDNESDAY)) == 32
    assert not may_have_dates("x" * 70_000 + " yesterday")


def test_phrases_that_mean_no_day_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    parse = dateparser.parse

    def counting(phrase: str, **options: Any) -> datetime | None:
        read.append(phrase)
        return parse(phrase, **options)

    monkeypatch.setattr(dateparser, "parse", counting)
    # no day lies before the first
    assert resolve_dates("yesterday " * 6_000, occurred_at=datetime.min.replace(tzinfo=UTC)) == []
    assert len(read) <= 128


def test_the_words_are_those_that_the_turns_own_date_lacks() -> None:
    dates = resolve_dates("yesterday, last Friday, next year, three weeks ago", occurred_at=WEDNESDAY)
    assert date_words(dates, said_on=WEDNESDAY.date()) == "9 5 2024 April"
