"""Dates that a turn states, and whether they support a date of a model. Pure.

A date is a year, a month and a day, of which some may be missing, or a period that a relative phrase such as "last
Friday" resolves to. Digits and words are compared by value: "8 May 2023" supports "2023-05-08".
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cache
from typing import Final

from app.index.analyser.dates import ResolvedDate, resolve_dates
from app.index.analyser.languages import DEFAULT, read_file
from app.index.analyser.words import normalise

_NUMBERS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty
"""
_TENS = {"thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90, "hundred": 100}
NUMBER_WORDS: Final = {word: number for number, word in enumerate(_NUMBERS.split())} | _TENS
_ENGLISH_MONTHS = (
    "january jan", "february feb", "march mar", "april apr", "may", "june jun", "july jul", "august aug",
    "september sep sept", "october oct", "november nov", "december dec",
)  # fmt: skip
_ENGLISH_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_TODAY = re.compile(
    r"\b(?:today|tonight|this (?:morning|afternoon|evening)|just now|heute|aujourd'hui|hoy|oggi|hoje|vandaag|idag|dzis|"
    r"сегодня|bugun|اليوم|आज)\b|今天|今日|오늘"
)
_NUMERIC = re.compile(
    r"(?<!\d)(?P<y1>(?:19|20)\d\d)[-/.](?P<m1>\d{1,2})(?:[-/.](?P<d1>\d{1,2}))?(?!\d)"
    r"|(?<!\d)(?:(?P<y2>\d{4})年)?(?P<m2>\d{1,2})月(?:(?P<d2>\d{1,2})日)?"
    r"|(?<!\d)(?P<y3>\d{4})年"
    r"|(?<!\d)(?P<a>\d{1,2})[/.](?P<b>\d{1,2})[/.](?P<y4>(?:19|20)\d\d)(?!\d)"
)
_YEAR = re.compile(r"(?<![\d.,])(?:19|20)\d\d(?![\d,]|\.\d)")
_AGO = re.compile(r"\b(?P<count>\d{1,3}|[a-z]+) (?P<unit>year|month|week|day)s?\b")
_DAYS = {"year": 365, "month": 30, "week": 7, "day": 1}
_SHORT_PERIOD = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class StatedDate:
    """A date in a text at the code points `start` to `end` of its normalised form. What is not stated is None."""

    start: int
    end: int
    year: int | None
    month: int | None = None
    day: int | None = None


@cache
def _months(code: str) -> tuple[re.Pattern[str], dict[str, int]]:
    """Return the expression for dates with the name of a month, and the months by their names."""
    names: dict[str, int] = {}
    for language in dict.fromkeys((DEFAULT, code)):
        dates = read_file(language).dates
        spellings = _ENGLISH_MONTHS if dates is None else dates.months
        for number, text in enumerate(spellings, start=1):
            names.update((name, number) for name in normalise(text.replace("|", " ")).split())
    name = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    year = r"(?:,? (?:of |de )?(?P<y{0}>(?:19|20)\d\d)(?!\d))?"
    day = r"(?P<d{0}>[0-3]?\d)(?:st|nd|rd|th|\.)?(?!\d)"
    return re.compile(
        rf"(?<!\w){day.format(1)} (?:of |de )?(?P<m1>{name})\b\.?{year.format(1)}"
        rf"|(?<!\w)(?P<m2>{name})\b\.? {day.format(2)}{year.format(2)}"
        rf"|(?<!\w)(?P<m3>{name})\b\.?{year.format(3)}"
    ), names


def stated_dates(text: str, code: str = DEFAULT) -> Iterator[StatedDate]:
    """Yield the dates in a normalised text of a language: by digits, by the names of months, and bare years."""
    pattern, names = _months(code)
    spans: list[tuple[int, int]] = []
    for match in _NUMERIC.finditer(text):
        spans.append(match.span())
        yield from _numeric(match)
    for match in pattern.finditer(text):
        spans.append(match.span())
        number = 1 if match["m1"] else 2 if match["m2"] else 3
        day = None if number == 3 else int(match[f"d{number}"])  # noqa: PLR2004 - the third form has no day
        year = match[f"y{number}"]
        yield StatedDate(*match.span(), int(year) if year else None, names[match[f"m{number}"]], day)
    for match in _YEAR.finditer(text):
        if not any(start <= match.start() < end for start, end in spans):
            yield StatedDate(*match.span(), int(match[0]))


def _numeric(match: re.Match[str]) -> Iterator[StatedDate]:
    span = match.span()
    if match["a"]:  # the day may be first or second
        first, second = int(match["a"]), int(match["b"])
        for month, day in {(first, second), (second, first)}:
            yield StatedDate(*span, int(match["y4"]), month, day)
        return
    year, month, day = (match[f"{name}1"] or match[f"{name}2"] for name in "ymd")
    year = year or match["y3"]
    yield StatedDate(*span, *(None if part is None else int(part) for part in (year, month, day)))


class TurnDates:
    """The dates of a turn, of which relative ones count from the time when it was said."""

    def __init__(self, text: str, *, said_at: datetime, code: str = DEFAULT) -> None:
        plain = normalise(text)
        self._said_on = said_at.date()
        self._stated = list(stated_dates(plain, code))
        self._periods = [(one.first_day, one.last_day) for one in _resolved(text, said_at, code)]
        self._periods += _weekdays(plain, self._said_on, code)
        self._periods += _counted(plain, self._said_on)
        if _TODAY.search(plain):
            self._periods.append((self._said_on, self._said_on))

    def supports(self, claimed: StatedDate) -> bool:
        """Return whether the turn states this date, or one that contains it where nothing more exact is claimed."""
        return any(self._is_same(claimed, one) for one in self._stated) or any(
            _is_within(claimed, first, last) for first, last in self._periods
        )

    def supports_day(self, day: date) -> bool:
        """Return whether the turn states this day, or the month or the year that begins with it."""
        return day == self._said_on or self.supports(StatedDate(0, 0, day.year, day.month, day.day))

    def _is_same(self, claimed: StatedDate, stated: StatedDate) -> bool:
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
    found = resolve_dates(text, occurred_at=said_at, code=code)
    return found if code == DEFAULT else [*found, *resolve_dates(text, occurred_at=said_at)]


def _weekdays(text: str, said_on: date, code: str) -> list[tuple[date, date]]:
    """Return the two days nearest to the turn of each weekday that it names."""
    dates = read_file(code).dates
    names = [*enumerate(_ENGLISH_WEEKDAYS), *enumerate([] if dates is None else map(normalise, dates.weekdays))]
    found: list[tuple[date, date]] = []
    for number, spellings in names:
        if any(re.search(rf"\b{re.escape(name)}\b", text) for name in spellings.split()):
            ahead = said_on + timedelta(days=(number - said_on.weekday()) % 7)
            found += [(day, day) for day in (ahead, ahead - timedelta(days=7))]
    return found


def _counted(text: str, said_on: date) -> list[tuple[date, date]]:
    """Return the periods about which "for three years" began."""
    found: list[tuple[date, date]] = []
    for match in _AGO.finditer(text):
        word = match["count"]
        count = int(word) if word.isdigit() else {"a": 1, "an": 1}.get(word, NUMBER_WORDS.get(word))
        if count is None or count * _DAYS[match["unit"]] >= said_on.toordinal():
            continue
        if match["unit"] == "year":
            found.append((date(max(1, said_on.year - count), 1, 1), date(max(1, said_on.year - count), 12, 31)))
            continue
        day = said_on - timedelta(days=count * _DAYS[match["unit"]])
        found.append((day, day))
    return found


def _is_within(claimed: StatedDate, first: date, last: date) -> bool:
    """Return whether a claimed date is in a period; a day only in a short one, or at its beginning."""
    if claimed.month is None:
        return claimed.year in {first.year, last.year}
    if claimed.day is None:
        months = {(first.year, first.month), (last.year, last.month)}
        return any(claimed.month == month and claimed.year in {None, year} for year, month in months)
    try:
        day = date(claimed.year or first.year, claimed.month, claimed.day)
    except ValueError:
        return False
    return day == first or (last - first < _SHORT_PERIOD and first <= day <= last)
