"""Whether the dates of a turn support a date of a model. Pure.

The dates of a turn are those that it states, and the periods that a relative phrase such as "last Friday" means.
"""

import re
from datetime import date, datetime, timedelta

from app.index.analyser.dates import ResolvedDate, resolve_dates
from app.index.analyser.languages import DEFAULT, read_file
from app.index.analyser.numbers import Day, StatedDate, fold_digits, number_words, stated_dates
from app.index.analyser.words import normalise

_ENGLISH_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_TODAY = re.compile(
    r"\b(?:today|tonight|this (?:morning|afternoon|evening)|just now|heute|aujourd'hui|hoy|oggi|hoje|vandaag|idag|dzis|"
    r"сегодня|bugun|اليوم|आज)\b|今天|今日|오늘"
)
_AGO = re.compile(r"\b(?P<count>\d{1,3}|[a-z]+) (?P<unit>year|month|week|day)s?\b")
_DAYS = {"year": 365, "month": 30, "week": 7, "day": 1}
_SHORT_PERIOD = timedelta(days=7)


class TurnDates:
    """The dates of a turn, of which relative ones count from the time when it was said."""

    def __init__(self, text: str, *, said_at: datetime, code: str = DEFAULT) -> None:
        plain = normalise(text)
        self._said_on = said_at.date()
        stated = stated_dates(fold_digits(text), code)
        self._stated = [day for stated_date in stated for day in stated_date.readings]
        self._periods = [(resolved.first_day, resolved.last_day) for resolved in _resolved(text, said_at, code)]
        self._periods += _weekdays(plain, self._said_on, code)
        self._periods += _counted(plain, self._said_on)
        if _TODAY.search(plain):
            self._periods.append((self._said_on, self._said_on))

    def supports(self, claimed: StatedDate) -> bool:
        """Return whether the turn states this date, or one that contains it where nothing more exact is claimed."""
        return any(map(self._supports, claimed.readings))

    def _supports(self, claimed: Day) -> bool:
        return any(self._is_same(claimed, stated) for stated in self._stated) or any(
            _is_within(claimed, first_day, last_day) for first_day, last_day in self._periods
        )

    def supports_day(self, day: date) -> bool:
        """Return whether the turn states this day, or the month or the year that begins with it."""
        return day == self._said_on or self._supports(Day(day.year, day.month, day.day))

    def _is_same(self, claimed: Day, stated: Day) -> bool:
        if stated.year is None:
            distance = abs((claimed.year or self._said_on.year) - self._said_on.year)
            is_near = distance <= (0 if claimed.month is None else 1)
        else:
            is_near = claimed.year in {None, stated.year}
        # the first day stands for a month, and the first month for a year
        return (
            is_near
            and claimed.month in {None, stated.month or 1}
            and claimed.day in {None, stated.day or 1}
            and (claimed.month is not None or claimed.day is None)
        )


def _resolved(text: str, said_at: datetime, code: str) -> list[ResolvedDate]:
    dates = resolve_dates(text, occurred_at=said_at, code=code)
    return dates if code == DEFAULT else [*dates, *resolve_dates(text, occurred_at=said_at)]


def _weekdays(text: str, said_on: date, code: str) -> list[tuple[date, date]]:
    """Return the two days nearest to the turn of each weekday that it names."""
    dates = read_file(code).dates
    names = [*enumerate(_ENGLISH_WEEKDAYS), *enumerate([] if dates is None else map(normalise, dates.weekdays))]
    days: list[tuple[date, date]] = []
    for number, spellings in names:
        if any(re.search(rf"\b{re.escape(name)}\b", text) for name in spellings.split()):
            ahead = said_on + timedelta(days=(number - said_on.weekday()) % 7)
            days += [(day, day) for day in (ahead, ahead - timedelta(days=7))]
    return days


def _counted(text: str, said_on: date) -> list[tuple[date, date]]:
    """Return the periods about which "for three years" began."""
    periods: list[tuple[date, date]] = []
    for match in _AGO.finditer(text):
        word = match["count"]
        count = int(word) if word.isdigit() else {"a": 1, "an": 1}.get(word, number_words().get(word))
        if count is None or count * _DAYS[match["unit"]] >= said_on.toordinal():
            continue
        if match["unit"] == "year":
            periods.append((date(max(1, said_on.year - count), 1, 1), date(max(1, said_on.year - count), 12, 31)))
            continue
        day = said_on - timedelta(days=count * _DAYS[match["unit"]])
        periods.append((day, day))
    return periods


def _is_within(claimed: Day, first_day: date, last_day: date) -> bool:
    """Return whether a claimed date is in a period; a day only in a short one, or at its beginning."""
    if claimed.month is None:
        return claimed.year in {first_day.year, last_day.year}
    if claimed.day is None:
        months = {(first_day.year, first_day.month), (last_day.year, last_day.month)}
        return any(claimed.month == month and claimed.year in {None, year} for year, month in months)
    try:
        day = date(claimed.year or first_day.year, claimed.month, claimed.day)
    except ValueError:
        return False
    return day == first_day or (last_day - first_day < _SHORT_PERIOD and first_day <= day <= last_day)
