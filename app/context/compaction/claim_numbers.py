"""Numbers, dates and times of day of texts, to compare those of a summary with those of its source. Pure.

A mention is compared by its value and not by its spelling: "1,000", "1.000" and "1 000" are one number, "2023-05-08"
and "8 May 2023" one date, "1:56 pm" and "13:56" one time. A spelling with two readings is supported by either.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Final, NamedTuple

from app.index.analyser.languages import DEFAULT, LanguageFile, read_file, word_set

MAX_COUNT: Final = 100
"""Whole numbers below it may be counts or sums that the writer made, such as "three of the five"."""

_VAGUE: Final = timedelta(days=7)
_YEAR_DIGITS: Final = 4
_SHORT_YEAR: Final = 2
_MONTHS: Final = 12
_MAX_DAYS: Final = 31
_HOURS: Final = 24
_TEN: Final = 10
_TWENTY: Final = 20
_LIST_MARK: Final = re.compile(r"^[ \t]*(?:[#>*|-]+[ \t]*)?\d{1,3}[.)][ \t]+", re.MULTILINE)
# only where a list begins, because a number in brackets may be a number of the text
_INLINE_START: Final = re.compile(r"(?<![\w(])\(?1\)\s")
_INLINE_MARK: Final = re.compile(r"(?<![\w(])\(?\d{1,2}\)(?=\s)")
_NUMERIC_DATE: Final = re.compile(
    r"(?<!\d)(?P<y>\d{4})(?P<s>[-/.])(?P<m>\d{1,2})(?P=s)(?P<d>\d{1,2})(?!\d)"
    r"|(?<!\d)(?P<a>\d{1,2})(?P<t>[./-])(?P<b>\d{1,2})(?P=t)(?P<c>\d{4}|\d{2})(?!\.?\d)"
    r"|(?:(?P<ey>\d{4})\s*[年년]\s*)(?P<em>\d{1,2})\s*[月월](?:\s*(?P<ed>\d{1,2})\s*[日號号일])?"
    r"|(?<!\d)(?P<fm>\d{1,2})\s*[月월]\s*(?P<fd>\d{1,2})\s*[日號号일]"
)
_TIME: Final = re.compile(
    r"(?<![\d:])(?P<h>\d{1,2})[:時时](?P<m>[0-5]\d)(?![\d:])\s*(?P<half>[ap]\.?m\b)?"
    r"|(?<![\d:.,])(?P<oh>\d{1,2})\s*(?P<ohalf>[ap]\.?m\b)",
    re.IGNORECASE,
)
_SPACES: Final = " \u00a0\u2009\u202f'\u2019"
_NUMBER: Final = re.compile(
    rf"(?<!\d)(?P<grouped>\d{{1,3}}(?P<g>[.,\u066c{_SPACES}])\d{{3}}(?:(?P=g)\d{{3}})*)(?!\d)(?:[.,\u066b](?P<gd>\d+))?"
    r"|(?P<whole>\d+)(?:[.,\u066b](?P<decimals>\d+))?"
)
_ZEROS: Final = {
    3: "k thousand tausend mil mille тыс тысяч тысячи",
    6: "m million millions millionen mio millones milhões milioni milhão millón млн миллион миллиона миллионов",
    9: "bn billion billions milliarden milliarde mrd milliards млрд",
}
_MULTIPLIERS: Final = {word: zeros for zeros, line in _ZEROS.items() for word in line.split()}
_DENSE_MULTIPLIERS: Final = {"千": 3, "万": 4, "萬": 4, "만": 4, "亿": 8, "億": 8, "억": 8}
_MULTIPLIER: Final = re.compile(r"\s?([^\W\d_]+)")
_ENGLISH_MONTHS: Final = (
    "January Jan|February Feb|March Mar|April Apr|May|June Jun|July Jul|August Aug|September Sept Sep|October Oct"
    "|November Nov|December Dec"
)
_DENSE_DIGITS: Final = {
    **{sign: value for value, sign in enumerate("零一二三四五六七八九")},
    "\u3007": 0,
    "两": 2,
    "兩": 2,
}
_DENSE_UNITS: Final = {"十": 10, "百": 100, "千": 1000}
_DENSE_NUMBER: Final = re.compile("[零\u3007一二两兩三四五六七八九十百千]+")
# the first value, the step from one word to the next, and the words
_NUMBER_WORDS: Final = (
    (
        1,
        1,
        "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen",
    ),
    (18, 1, "eighteen nineteen"),
    (20, 10, "twenty thirty forty fifty sixty seventy eighty ninety"),
    (1, 1, "first second third fourth fifth sixth seventh eighth ninth tenth"),
    (1, 1, "once twice"),
    (12, 38, "dozen half"),
)
_LARGE: Final = (
    "hundred hundreds thousand thousands million dozen grand hundert tausend cent cents mille mil ciento cien cento sto"
    " honderd duizend hundra tusen yüz bin сто тысяча тысячи тысяч مئة مائة ألف सौ हज़ार"
)
_LARGE_DENSE: Final = re.compile(r"(?<!\d)[百千万萬億亿백천만억]")


class Day(NamedTuple):
    """A date as it is written: a member that the text leaves out is None."""

    year: int | None
    month: int
    day: int | None

    def fits(self, other: "Day") -> bool:
        """Return whether two mentions may be the same date."""
        return all(mine is None or its is None or mine == its for mine, its in zip(self, other, strict=True))


@dataclass(frozen=True, slots=True)
class Mentions:
    """The numbers of a text. Each mention is the set of its readings: decimal digits without leading zeros."""

    numbers: Sequence[frozenset[str]] = ()
    dates: Sequence[frozenset[Day]] = ()
    times: Sequence[tuple[int, int]] = ()


@dataclass(slots=True)
class Known:
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
            reading in self.numbers or (self.has_large_words and reading.endswith("00")) or self._is_year(reading)
            for reading in readings
        )

    def supports_date(self, readings: Iterable[Day]) -> bool:
        """Return whether a date is in the source, or is meant by a relative date."""
        return any(
            any(self._means(day, other) for other in self.dates) or any(_lies_in(day, *span) for span in self.spans)
            for day in readings
        )

    def _means(self, day: Day, other: Day) -> bool:
        """Return whether a date may be one of the source. A year that is left out there is elsewhere in the source."""
        if not day.fits(other):
            return False
        return day.year is None or other.year is not None or self.supports_number([str(day.year)])

    def _is_year(self, reading: str) -> bool:
        year = int(reading) if reading.isdecimal() and len(reading) == _YEAR_DIGITS else 0
        return any(day.year == year for day in self.dates) or any(
            first.year <= year <= last.year for first, last in self.spans
        )


def read_mentions(text: str, code: str = DEFAULT) -> Mentions:
    """Return the numbers, dates and times that a text has in digits. Marks of numbered lists are none."""
    text = _LIST_MARK.sub("", fold_digits(text))
    if _INLINE_START.search(text):
        text = _INLINE_MARK.sub("", text)
    dates, text = _take_dates(text, code)
    times, text = _take_times(text)
    numbers = [readings for match in _NUMBER.finditer(text) if (readings := _readings(match, text))]
    return Mentions(numbers, dates, times)


def read_words(text: str, found: Iterable[str], code: str = DEFAULT) -> Iterator[str]:
    """Yield the numbers that a text has in words. `found`: its words in lower case."""
    values = _number_words(code)
    tens = 0
    for word in found:
        value = values.get(word)
        if value is None:
            tens = 0
            continue
        yield str(value)
        if tens and value < _TEN:
            yield str(tens + value)
        tens = value if value >= _TWENTY else 0
    for match in _DENSE_NUMBER.finditer(text):
        yield str(_dense_value(match[0]))


def has_large_words(text: str, found: Sequence[str]) -> bool:
    """Return whether a text has a word for a hundred or more without digits before it, whose value is not read."""
    large = _large_words()
    return any(word in large and not before.isdecimal() for before, word in zip(["", *found], found, strict=False)) or (
        _LARGE_DENSE.search(text) is not None
    )


def fold_digits(text: str) -> str:
    """Return a text with the digits of all scripts as ASCII."""
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKC", text)
    return "".join(str(unicodedata.decimal(sign)) if sign.isdecimal() else sign for sign in text)


def is_count(reading: str) -> bool:
    """Return whether a number may be a count or a sum of the writer's."""
    return reading.isdecimal() and int(reading[:4]) < MAX_COUNT and len(reading) <= len(str(MAX_COUNT))


# dates and times


def _take_dates(text: str, code: str) -> tuple[list[frozenset[Day]], str]:
    """Return the dates of a text, and the text without them."""
    dates: list[frozenset[Day]] = []

    def take(match: "re.Match[str]", days: Iterable[Day]) -> str:
        possible = frozenset(
            day for day in days if 1 <= day.month <= _MONTHS and (day.day is None or 1 <= day.day <= _MAX_DAYS)
        )
        if not possible:
            return match[0]
        dates.append(possible)
        return " "

    text = _NUMERIC_DATE.sub(lambda match: take(match, _numeric_days(match)), text)
    months, pattern = _months(code)
    text = pattern.sub(lambda match: take(match, _named_days(match, months)), text)
    return dates, text


def _numeric_days(match: "re.Match[str]") -> Iterator[Day]:
    if match["y"]:
        yield Day(int(match["y"]), int(match["m"]), int(match["d"]))
    elif match["a"]:
        year = int(match["c"]) + (2000 if len(match["c"]) == _SHORT_YEAR else 0)
        yield Day(year, int(match["a"]), int(match["b"]))
        yield Day(year, int(match["b"]), int(match["a"]))
    elif match["ey"]:
        yield Day(int(match["ey"]), int(match["em"]), int(match["ed"]) if match["ed"] else None)
    else:
        yield Day(None, int(match["fm"]), int(match["fd"]))


def _named_days(match: "re.Match[str]", months: dict[str, int]) -> Iterator[Day]:
    month = months[(match["before"] or match["after"] or match["alone"]).lower()]
    day = match["day"] or match["other"]
    year = match["year"] or match["year2"] or match["year3"]
    yield Day(int(year) if year else None, month, int(day) if day else None)


@cache
def _months(code: str) -> "tuple[dict[str, int], re.Pattern[str]]":
    """Return the months of a language and of English by their names, and an expression for dates with such a name."""
    dates = read_file(code).dates
    lists = [_ENGLISH_MONTHS.split("|"), [] if dates is None else dates.months]
    months = {
        name.lower(): number
        for names in lists
        for number, forms in enumerate(names, start=1)
        for name in forms.replace("|", " ").split()
    }
    name = "|".join(sorted(map(re.escape, months), key=len, reverse=True))
    ordinal = r"(?:st|nd|rd|th|er|\.|º|ª)?"
    link = r"(?:\s+(?:de|of|del|do|da|di))?"
    pattern = re.compile(
        rf"(?<!\d)(?P<day>\d{{1,2}}){ordinal}{link}[\s-]+(?P<before>{name})\b\.?(?:,?{link}[\s-]+(?P<year>\d{{4}})(?!\d))?"
        rf"|\b(?P<after>{name})\b\.?\s+(?P<other>\d{{1,2}}){ordinal}(?!\d|[.,:]\d)(?:,?\s+(?P<year2>\d{{4}})(?!\d))?"
        rf"|\b(?P<alone>{name})\b\.?,?{link}\s+(?P<year3>\d{{4}})(?!\d)",
        re.IGNORECASE,
    )
    return months, pattern


def _take_times(text: str) -> tuple[list[tuple[int, int]], str]:
    """Return the times of day of a text as hours of a half day and minutes, and the text without them."""
    times: list[tuple[int, int]] = []

    def take(match: "re.Match[str]") -> str:
        hour, minute = int(match["h"] or match["oh"]), int(match["m"] or 0)
        if hour > _HOURS:
            return match[0]
        times.append((hour % 12, minute))
        return " "

    return times, _TIME.sub(take, text)


def _lies_in(day: Day, first: date, last: date) -> bool:
    """Return whether a date may be one of the days from `first` to `last`."""
    for year in range(first.year, last.year + 1):
        if day.year is not None and day.year != year:
            continue
        begin, end = (max(first, date(year, 1, 1)), min(last, date(year, 12, 31)))
        if day.day is None:
            if begin.month <= day.month <= end.month:
                return True
        elif (begin.month, begin.day) <= (day.month, day.day) <= (end.month, end.day):
            return True
    return False


# numbers


def _readings(match: "re.Match[str]", text: str) -> frozenset[str]:
    """Return the values that a number in digits may have."""
    values: set[str] = set()
    if match["grouped"]:
        digits = "".join(sign for sign in match["grouped"] if sign.isdecimal())
        values.add(_value(digits, match["gd"] or ""))
        parts = match["grouped"].split(match["g"])
        if match["g"] in ".," and len(parts) == len(("whole", "decimals")) and not match["gd"]:
            values.add(_value(parts[0], parts[1]))
        if match["g"] in _SPACES:
            values.update(_value(part, "") for part in parts)
    else:
        values.add(_value(match["whole"], match["decimals"] or ""))
    zeros = _zeros_after(text, match.end())
    return frozenset({*values, *(_times(value, zeros) for value in values if zeros)})


def _value(whole: str, decimals: str) -> str:
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    return f"{whole}.{decimals}" if decimals else whole


def _times(value: str, zeros: int) -> str:
    """Return a value with the decimal point moved to the right."""
    whole, _, decimals = value.partition(".")
    return _value(whole + decimals[:zeros].ljust(zeros, "0"), decimals[zeros:])


def _zeros_after(text: str, end: int) -> int:
    """Return the zeros that a word after a number stands for, such as 6 for "million"."""
    if end < len(text) and text[end] in _DENSE_MULTIPLIERS:
        return _DENSE_MULTIPLIERS[text[end]]
    match = _MULTIPLIER.match(text, end)
    return 0 if match is None else _MULTIPLIERS.get(match[1].lower(), 0)


@cache
def _large_words() -> frozenset[str]:
    return word_set(_LARGE)


@cache
def _number_words(code: str) -> dict[str, int]:
    """Return the numbers that have a word of their own, in a language and in English."""
    values = {word: first + step * at for first, step, words in _NUMBER_WORDS for at, word in enumerate(words.split())}
    for file in (read_file(DEFAULT), read_file(code)):
        values |= _of_file(file)
    return values


def _of_file(file: LanguageFile) -> dict[str, int]:
    return {} if file.dates is None else {word.lower(): value for word, value in file.dates.numbers.items()}


def _dense_value(signs: str) -> int:
    """Return the value of a number in Chinese numerals up to the thousands; of plain digits, their sequence."""
    if not any(sign in _DENSE_UNITS for sign in signs):
        return int("".join(str(_DENSE_DIGITS[sign]) for sign in signs))
    total = digit = 0
    for sign in signs:
        if sign in _DENSE_UNITS:
            total += (digit or 1) * _DENSE_UNITS[sign]
            digit = 0
        else:
            digit = _DENSE_DIGITS[sign]
    return total + digit
