"""How dates are written in a language: before the text of a turn, and as the search words of resolved dates. Pure."""

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Protocol

from app.index.analyser.languages import DEFAULT, read_file

_TWO_MONTHS = timedelta(days=32)


class DaySpan(Protocol):
    """The first and the last day of a resolved date."""

    @property
    def first_day(self) -> date:
        """Return the first day."""
        ...

    @property
    def last_day(self) -> date:
        """Return the last day, the first one for a single day."""
        ...


def date_heading(day: date, code: str = DEFAULT) -> str:
    """Return a day as it is written before a turn of a language, with all names of its month."""
    dates = read_file(code).dates
    if dates is None:
        return f"{day.day} {day:%B} {day.year}"
    return dates.heading.format(day=day.day, month=month_names(day, code), year=day.year)


def month_names(day: date, code: str = DEFAULT) -> str:
    """Return the names of the month of a day, without their inflected forms."""
    dates = read_file(code).dates
    return f"{day:%B}" if dates is None else dates.months[day.month - 1].partition(" |")[0]


def date_words(dates: Sequence[DaySpan], *, said_on: date, code: str = DEFAULT) -> str:
    """Return the search words of these dates: day, month and year, without those of the turn's own date.

    The day is included only for a single day, the month only if the days are in at most two months.
    """
    headings: list[str] = []
    for span in dates:
        first_day, last_day = span.first_day, span.last_day
        if first_day == last_day:
            headings.append(date_heading(first_day, code))
        elif last_day - first_day < _TWO_MONTHS:
            headings.extend(dict.fromkeys(f"{month_names(day, code)} {day.year}" for day in (first_day, last_day)))
        else:
            headings.append(str(first_day.year))
    heading_words = date_heading(said_on, code).split()
    return " ".join(word for word in dict.fromkeys(" ".join(headings).split()) if word not in heading_words)
