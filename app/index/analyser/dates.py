"""Resolution of relative dates: "last Friday" becomes a date, relative to the day of the turn. Pure.

Only phrases that always mean another day than that of the turn are resolved: "today" is the turn's own date, and "on
Friday" depends on the tense. All dates are in UTC; weeks start on Monday. `dateparser` parses numbers, units and
weekdays; this module adds the days that a week, weekend, month or year covers. Phrases of other languages are resolved
as the English ones that they mean (`phrases`).
"""

import calendar
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import islice

import dateparser

from app.index.analyser.languages import DEFAULT
from app.index.analyser.phrases import ForeignPhrase, find_phrases

_MAX_CHARACTERS = 64_000
_MAX_DATES = 32
# parsing a phrase takes a millisecond, and many phrases are not dates
_MAX_PHRASES = 4 * _MAX_DATES
# every phrase has one of each; this test is twenty times as fast as the expression
_POINTERS = ("last ", "next ", "this ", " ago", "from now", "yesterday", "tomorrow")
_POINTED_AT = ("day", "night", "week", "month", "year", "tomorrow", *(name.lower() for name in calendar.month_name[1:]))
_WEEKDAYS = "monday|tuesday|wednesday|thursday|friday|saturday|sunday"
_MONTHS = tuple(name.lower() for name in calendar.month_name[1:])
_NUMBERS = "a|an|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|[0-9]{1,3}"
_UNITS = "day|week|month|year"
# "in " alone is in most texts
_AHEAD = re.compile(rf"in \S+ (?:{_UNITS})", re.IGNORECASE)
_PHRASE = re.compile(
    rf"""\b(?:
        (?P<day>(?:the[ ])?day[ ](?:before[ ]yesterday|after[ ]tomorrow)|yesterday|tomorrow|last[ ]night)
      | (?<!\bthe[ ])(?P<way>last|next|this[ ]past|this[ ]coming|this)[ ]
        (?P<what>{_WEEKDAYS}|weekend|week|month|year|{"|".join(_MONTHS)})(?![ ]of\b)
      | (?P<counted>(?:{_NUMBERS})[ ](?P<unit>{_UNITS})s?[ ](?:ago|from[ ]now))
      | (?P<ahead>in[ ](?:{_NUMBERS})[ ](?P<ahead_unit>{_UNITS})s?)
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
# "not in two weeks" is a span of time, not a day
_SPAN = re.compile(r"(?:n't|n\u2019t|\bnot|\bnever|\bfirst|\bonly|\bonce)\b[^.!?]{0,40}$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ResolvedDate:
    """A phrase in a text, as code points `start` to `end` (exclusive), and its first and last day (inclusive)."""

    start: int
    end: int
    first_day: date
    last_day: date


def may_have_dates(text: str, code: str = DEFAULT) -> bool:
    """Return whether a text in a language may have relative dates. A fast check for the append."""
    if code != DEFAULT:
        return next(find_phrases(text[:_MAX_CHARACTERS], code), None) is not None
    small = text[:_MAX_CHARACTERS].lower()
    if not any(word in small for word in _POINTERS) and _AHEAD.search(text[:_MAX_CHARACTERS]) is None:
        return False
    if not any(word in small for word in _POINTED_AT):
        return False
    return next(_phrases(text), None) is not None


def resolve_dates(text: str, *, occurred_at: datetime, code: str = DEFAULT) -> list[ResolvedDate]:
    """Resolve the relative dates in a text of `occurred_at`: at most 32, of the first 128 phrases."""
    said_on = occurred_at.astimezone(UTC).date()
    resolved: list[ResolvedDate] = []
    phrases = _phrases(text) if code == DEFAULT else find_phrases(text[:_MAX_CHARACTERS], code)
    for phrase in islice(phrases, _MAX_PHRASES):
        try:
            days = _days(phrase, said_on) if isinstance(phrase, re.Match) else _foreign_days(phrase, said_on)
        except (OverflowError, ValueError):  # outside the years 1 to 9999
            continue
        if days is not None:
            start, end = (phrase.start(), phrase.end()) if isinstance(phrase, re.Match) else (phrase.start, phrase.end)
            resolved.append(ResolvedDate(start, end, first_day=days[0], last_day=days[1]))
        if len(resolved) == _MAX_DATES:
            break
    return resolved


def _foreign_days(phrase: ForeignPhrase, said_on: date) -> tuple[date, date] | None:
    """Return the days of a phrase in another language."""
    if phrase.weekday is not None:
        monday = said_on - timedelta(days=said_on.weekday())
        return _period_days("day", monday + timedelta(days=phrase.weekday, weeks=phrase.weeks))
    match = _PHRASE.fullmatch(phrase.english)
    return None if match is None else _days(match, said_on)


def _phrases(text: str) -> "Iterator[re.Match[str]]":
    for match in _PHRASE.finditer(text, 0, _MAX_CHARACTERS):
        way, what = match["way"], match["what"]
        # in lower case, "may" and "march" are other words; "this week" adds nothing to the turn's own date
        is_other_word = what and what.lower() in _MONTHS and what[0].islower()
        if not is_other_word and not (way and way.lower() == "this" and what.lower() in {"week", "month", "year"}):
            yield match


def _days(match: "re.Match[str]", said_on: date) -> tuple[date, date] | None:
    if match["day"]:
        return _period_days("day", _parse(match["day"].lower(), said_on))
    if match["counted"]:
        return _period_days(match["unit"].lower(), _parse(match["counted"].lower(), said_on))
    if match["ahead"]:
        if _SPAN.search(match.string, max(0, match.start() - 60), match.start()):
            return None
        return _period_days(match["ahead_unit"].lower(), _parse(match["ahead"].lower(), said_on))
    way = {"this past": "last", "this coming": "next"}.get(match["way"].lower(), match["way"].lower())
    return _resolve_named_period(way, match["what"], said_on)


def _resolve_named_period(way: str, what: str, said_on: date) -> tuple[date, date] | None:
    """Resolve `last`, `this` or `next` with a weekday, weekend, week, month, year or the name of a month."""
    if what.lower() in _MONTHS:
        return _month(way, _MONTHS.index(what.lower()) + 1, said_on)
    what = what.lower()
    if what == "weekend":
        saturday = said_on + timedelta(days=5 - said_on.weekday(), weeks={"last": -1, "this": 0, "next": 1}[way])
        return saturday, saturday + timedelta(days=1)
    if what in {"week", "month", "year"}:
        return _period_days(what, _parse(f"{way} {what}", said_on))
    if way == "this":
        return None if what == f"{said_on:%A}".lower() else _period_days("day", _parse(what, said_on))
    return _period_days("day", _parse(f"{way} {what}", said_on, past=way == "last"))


def _month(way: str, month: int, said_on: date) -> tuple[date, date] | None:
    year = said_on.year
    if way == "last":
        year -= month >= said_on.month
    elif way == "next":
        year += month <= said_on.month
    return _period_days("month", date(year, month, 1))


def _parse(phrase: str, said_on: date, *, past: bool = False) -> date | None:
    time = dateparser.parse(
        phrase,
        languages=["en"],
        settings={
            "RELATIVE_BASE": datetime(said_on.year, said_on.month, said_on.day, 12),  # noqa: DTZ001 - needs a naive one
            "PREFER_DATES_FROM": "past" if past else "future",
            "RETURN_AS_TIMEZONE_AWARE": False,
        },
    )
    return None if time is None else time.date()


def _period_days(unit: str, day: date | None) -> tuple[date, date] | None:
    if day is None:
        return None
    match unit:
        case "week":
            monday = day - timedelta(days=day.weekday())
            return monday, monday + timedelta(days=6)
        case "month":
            return day.replace(day=1), day.replace(day=calendar.monthrange(day.year, day.month)[1])
        case "year":
            return date(day.year, 1, 1), date(day.year, 12, 31)
        case _:
            return day, day
