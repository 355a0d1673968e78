"""The numbers, dates and times of the source of a summary, and which of them support those of the summary. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final

from app.index.analyser.numbers import Day, Mentions

MAX_COUNT: Final = 100
"""Whole numbers below it may be counts or sums that the writer made, such as "three of the five"."""

_VAGUE: Final = timedelta(days=7)
_YEAR_DIGITS: Final = 4


@dataclass(slots=True)
class SourceFigures:
    """All numbers of a source. `spans`: the days that relative dates mean; `has_large_words`: "two hundred"."""

    numbers: set[str] = field(default_factory=set[str])
    dates: set[Day] = field(default_factory=set[Day])
    times: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    spans: list[tuple[date, date]] = field(default_factory=list[tuple[date, date]])
    has_large_words: bool = False

    def add(self, mentions: Mentions) -> None:
        """Add the mentions of a text."""
        self.numbers.update(*mentions.numbers)
        self.dates.update(*mentions.dates)
        self.times.update(mentions.times)

    def add_turn(self, occurred_at: datetime, *, is_vague: bool) -> None:
        """Add the time of a turn. `is_vague`: it names a day that is not resolved, such as "on Friday"."""
        said_at = occurred_at.astimezone(UTC)
        self.dates.add(Day(said_at.year, said_at.month, said_at.day))
        self.times.add((said_at.hour % 12, said_at.minute))
        if is_vague:
            self.spans.append((said_at.date() - _VAGUE, said_at.date() + _VAGUE))

    def supports_number(self, readings: Iterable[str]) -> bool:
        """Return whether a number is in the source, or a year of its dates."""
        return any(
            reading in self.numbers or self._is_large_word(reading) or self._is_year(reading) for reading in readings
        )

    def supports_date(self, readings: Iterable[Day]) -> bool:
        """Return whether a date is in the source, or is meant by a relative date."""
        return any(
            any(self._means(day, other) for other in self.dates) or any(_lies_in(day, *span) for span in self.spans)
            for day in readings
        )

    def _is_large_word(self, reading: str) -> bool:
        """Return whether a number may be one in words, such as "two hundred": all its other digits are there."""
        if not self.has_large_words or not reading.endswith("00"):
            return False
        digits = reading.rstrip("0")
        return digits in {"", "1"} or digits in self.numbers or self.numbers.issuperset(digits)

    def _means(self, day: Day, other: Day) -> bool:
        """Return whether a date may be one of the source. A year that is left out there is elsewhere in the source."""
        if not day.fits(other):
            return False
        return day.year is None or other.year is not None or self.supports_number([str(day.year)])

    def _is_year(self, reading: str) -> bool:
        year = int(reading) if reading.isdecimal() and len(reading) == _YEAR_DIGITS else 0
        return any(day.year == year for day in self.dates) or any(
            first_day.year <= year <= last_day.year for first_day, last_day in self.spans
        )


def is_count(reading: str) -> bool:
    """Return whether a number may be a count or a sum of the writer's."""
    return reading.isdecimal() and int(reading[:4]) < MAX_COUNT and len(reading) <= len(str(MAX_COUNT))


def _lies_in(day: Day, first_day: date, last_day: date) -> bool:
    """Return whether a date may be one of the days from `first` to `last`."""
    for year in range(first_day.year, last_day.year + 1):
        if day.year is not None and day.year != year:
            continue
        begin, end = (max(first_day, date(year, 1, 1)), min(last_day, date(year, 12, 31)))
        if day.month is None:
            return True
        if day.day is None:
            if begin.month <= day.month <= end.month:
                return True
        elif (begin.month, begin.day) <= (day.month, day.day) <= (end.month, end.day):
            return True
    return False
