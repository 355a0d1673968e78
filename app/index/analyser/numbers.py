"""Numbers, dates and times of day that a text states, by value. Pure.

"1,000", "1.000" and "1 000" are one number, "2023-05-08" and "8 May 2023" one date, "1:56 pm" and "13:56" one time. A
spelling that can be read in two ways has two readings. Relative dates are those of `dates`.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Final, NamedTuple

from app.index.analyser.languages import DEFAULT, read_file, word_set
from app.index.analyser.words import normalise

_SHORT_YEAR: Final = 2
_MONTHS: Final = 12
_MAX_DAYS: Final = 31
_HOURS: Final = 24
_NOON: Final = 12
_TEN: Final = 10
_TWENTY: Final = 20
_LIST_MARK: Final = re.compile(r"^[ \t]*(?:[#>*|-]+[ \t]*)?\d{1,3}[.)][ \t]+", re.MULTILINE)
# only where a list begins, because a number in brackets may be a number of the text
_INLINE_START: Final = re.compile(r"(?<![\w(])\(?1\)\s")
_INLINE_MARK: Final = re.compile(r"(?<![\w(])\(?\d{1,2}\)(?=\s)")
_YEAR: Final = r"(?:19|20)\d\d"
_NUMERIC_DATE: Final = re.compile(
    r"(?<!\d)(?P<y>\d{4})(?P<s>[-/.])(?P<m>\d{1,2})(?P=s)(?P<d>\d{1,2})(?!\d)"
    r"|(?<!\d)(?P<a>\d{1,2})(?P<t>[./-])(?P<b>\d{1,2})(?P=t)(?P<c>\d{4}|\d{2})(?!\.?\d)"
    r"|(?:(?P<ey>\d{4})\s*[年년]\s*)(?P<em>\d{1,2})\s*[月월](?:\s*(?P<ed>\d{1,2})\s*[日號号일])?"
    r"|(?<!\d)(?P<fm>\d{1,2})\s*[月월]\s*(?P<fd>\d{1,2})\s*[日號号일]"
    rf"|(?<![\d.,/-])(?P<my>{_YEAR})[-/](?P<mm>0[1-9]|1[0-2])(?![\d/-])"
)
_ALONE: Final = re.compile(rf"(?<![\d.,])(?P<year>{_YEAR})(?![\d,]|\.\d)|(?<!\d)(?P<month>\d{{1,2}})\s*[月월]")
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
# languages with a decimal point, in which a comma before three digits is no decimal sign
_WITH_POINT: Final = frozenset({"en", "hi", "zh", "ja", "ko"})
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
_ENGLISH_NUMBERS: Final = (
    (0, 1, "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"),
    (17, 1, "seventeen eighteen nineteen"),
    (20, 10, "twenty thirty forty fifty sixty seventy eighty ninety hundred"),
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
    month: int | None
    day: int | None

    def fits(self, other: "Day") -> bool:
        """Return whether two mentions may be the same date."""
        return all(mine is None or theirs is None or mine == theirs for mine, theirs in zip(self, other, strict=True))


class StatedDate(NamedTuple):
    """A date at the code points `start` to `end` (exclusive) of a text: the days that it may mean."""

    start: int
    end: int
    readings: frozenset[Day]

    @property
    def is_alone(self) -> bool:
        """Return whether it is a year or a month alone, which may be a number or another word."""
        return all(day.day is None and None in {day.year, day.month} for day in self.readings)


class StatedTime(NamedTuple):
    """A time of day at the code points `start` to `end` (exclusive) of a text, on a clock of twelve hours.

    `is_after_noon` is None if the text does not say it.
    """

    start: int
    end: int
    time: tuple[int, int]
    is_after_noon: bool | None


@dataclass(frozen=True, slots=True)
class Mentions:
    """The numbers of a text. Each mention is the set of its readings: decimal digits without leading zeros."""

    numbers: Sequence[frozenset[str]] = ()
    dates: Sequence[frozenset[Day]] = ()
    times: Sequence[tuple[int, int]] = ()


def read_mentions(text: str, code: str = DEFAULT) -> Mentions:
    """Return the numbers, dates and times that a text has in digits. Marks of numbered lists are none.

    A year or a month alone is not a date here, but a number or a word.
    """
    text = _LIST_MARK.sub("", fold_digits(text))
    if _INLINE_START.search(text):
        text = _INLINE_MARK.sub("", text)
    dates = [date for date in stated_dates(text, code) if not date.is_alone]
    text = without(text, dates)
    times = list(stated_times(text))
    numbers = list(read_numbers(without(text, times), code))
    return Mentions(numbers, [date.readings for date in dates], [time.time for time in times])


def without(text: str, mentions: Iterable[StatedDate | StatedTime]) -> str:
    """Return a text with spaces in the place of what was found in it."""
    for mention in mentions:
        text = text[: mention.start] + " " * (mention.end - mention.start) + text[mention.end :]
    return text


def read_numbers(text: str, code: str = DEFAULT) -> Iterator[frozenset[str]]:
    """Yield the numbers that a text with folded digits has, each with its readings in its language."""
    for match in _NUMBER.finditer(text):
        yield _readings(match, text, code)


def read_words(text: str, text_words: Iterable[str], code: str = DEFAULT) -> Iterator[str]:
    """Yield the numbers that a text has in words. `text_words`: its words in lower case."""
    values = number_words(code)
    tens = 0
    for word in text_words:
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


def has_large_words(text: str, text_words: Sequence[str]) -> bool:
    """Return whether a text has a word for a hundred or more without digits before it, whose value is not read."""
    large = _large_words()
    pairs = zip(["", *text_words], text_words, strict=False)
    has_large = any(word in large and not before.isdecimal() for before, word in pairs)
    return has_large or _LARGE_DENSE.search(text) is not None


def fold_digits(text: str) -> str:
    """Return a text with the digits of all scripts as ASCII."""
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKC", text)
    return "".join(str(unicodedata.decimal(sign)) if sign.isdecimal() else sign for sign in text)


# dates and times


def stated_dates(text: str, code: str = DEFAULT) -> list[StatedDate]:
    """Return the dates in a text with folded digits, those in digits first; those of a year or a month alone last."""
    months, named = _months(code)
    dates: list[StatedDate] = []
    for pattern, days_of in (
        (_NUMERIC_DATE, _numeric_days),
        (named, partial(_named_days, months=months)),
        (_ALONE, _days_alone),
    ):
        matches = [StatedDate(*match.span(), _possible(days_of(match))) for match in pattern.finditer(text)]
        matches = [date for date in matches if date.readings]
        text = without(text, matches)
        dates += matches
    return dates


def _possible(days: Iterable[Day]) -> frozenset[Day]:
    return frozenset(
        day
        for day in days
        if (day.month is None or 1 <= day.month <= _MONTHS) and (day.day is None or 1 <= day.day <= _MAX_DAYS)
    )


def _numeric_days(match: "re.Match[str]") -> Iterator[Day]:
    if match["y"]:
        yield Day(int(match["y"]), int(match["m"]), int(match["d"]))
    elif match["a"]:
        year = int(match["c"]) + (2000 if len(match["c"]) == _SHORT_YEAR else 0)
        yield Day(year, int(match["a"]), int(match["b"]))
        yield Day(year, int(match["b"]), int(match["a"]))
    elif match["ey"]:
        yield Day(int(match["ey"]), int(match["em"]), int(match["ed"]) if match["ed"] else None)
    elif match["fm"]:
        yield Day(None, int(match["fm"]), int(match["fd"]))
    else:
        yield Day(int(match["my"]), int(match["mm"]), None)


def _named_days(match: "re.Match[str]", months: Mapping[str, int]) -> Iterator[Day]:
    # letters such as the Turkish ones match without regard to case, and then are no name of a month
    month = months.get(normalise(match["before"] or match["after"] or match["last"]))
    day = match["day"] or match["other"]
    year = match["year"] or match["year2"] or match["year3"]
    if month is not None:
        yield Day(int(year) if year else None, month, int(day) if day else None)


def _days_alone(match: "re.Match[str]") -> Iterator[Day]:
    year, month = match["year"], match["month"]
    yield Day(int(year) if year else None, int(month) if month else None, None)


@cache
def _months(code: str) -> "tuple[Mapping[str, int], re.Pattern[str]]":
    """Return the months of a language and of English by their names, and an expression for dates with such a name."""
    dates = read_file(code).dates
    lists = [_ENGLISH_MONTHS.split("|"), [] if dates is None else dates.months]
    months = {
        name.lower(): number
        for names in lists
        for number, forms in enumerate(names, start=1)
        for name in forms.replace("|", " ").split()
    }
    months |= {normalise(name): number for name, number in months.items()}
    name = "|".join(sorted(map(re.escape, months), key=len, reverse=True))
    ordinal = r"(?:st|nd|rd|th|er|\.|º|ª)?"
    link = r"(?:\s+(?:de|of|del|do|da|di))?"
    pattern = re.compile(
        rf"(?<!\d)(?P<day>\d{{1,2}}){ordinal}{link}[\s-]+(?P<before>{name})\b\.?(?:,?{link}[\s-]+(?P<year>\d{{4}})(?!\d))?"
        rf"|\b(?P<after>{name})\b\.?\s+(?P<other>\d{{1,2}}){ordinal}(?!\d|[.,:]\d)(?:,?\s+(?P<year2>\d{{4}})(?!\d))?"
        rf"|\b(?P<last>{name})\b(?:\.?,?{link}\s+(?P<year3>\d{{4}})(?!\d))?",
        re.IGNORECASE,
    )
    return months, pattern


def stated_times(text: str) -> Iterator[StatedTime]:
    """Yield the times of day in a text with folded digits."""
    for match in _TIME.finditer(text):
        hour, minute = int(match["h"] or match["oh"]), int(match["m"] or 0)
        if hour <= _HOURS:
            half = (match["half"] or match["ohalf"] or "")[:1].lower()
            is_after_noon = half == "p" if half else (True if hour > _NOON else None)
            yield StatedTime(*match.span(), (hour % _NOON, minute), is_after_noon)


# numbers


def _readings(match: "re.Match[str]", text: str, code: str) -> frozenset[str]:
    """Return the values that a number in digits may have."""
    values: set[str] = set()
    if match["grouped"]:
        digits = "".join(sign for sign in match["grouped"] if sign.isdecimal())
        values.add(_value(digits, match["gd"] or ""))
        parts = match["grouped"].split(match["g"])
        signs = "." if code in _WITH_POINT else ".,"
        if match["g"] in signs and len(parts) == len(("whole", "decimals")) and not match["gd"]:
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
def number_words(code: str = DEFAULT) -> Mapping[str, int]:
    """Return the numbers that have a word of their own, in a language and in English, by the word in lower case."""
    values = {word: first + step * at for first, step, line in _ENGLISH_NUMBERS for at, word in enumerate(line.split())}
    dates = read_file(code).dates
    if dates is not None:
        for word, value in dates.numbers.items():
            values[word.lower()] = values[normalise(word)] = value
    return values


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
