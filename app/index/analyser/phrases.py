"""Relative dates in texts of other languages than English, as the English phrases that `dates` resolves. Pure.

The words are those of `language_data`. "letzten Freitag" becomes "last friday", "hace tres días" becomes "3 days ago".
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, TypeAlias

from app.index.analyser.languages import (
    SPACELESS_SCRIPTS,
    DateWords,
    Script,
    loose,
    read_file,
    whole_words,
)
from app.index.analyser.words import normalise

Unit: TypeAlias = Literal["day", "week", "weekend", "month", "year"]

_UNITS: Final[tuple[Unit, ...]] = ("day", "week", "weekend", "month", "year")
_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_DIGITS: Final = "[0-9\uff10-\uff19]{1,3}"
_JOINED: Final = frozenset({Script.HAN, Script.KANA})
_BEFORE: Final = 40
"""Characters before a phrase in which a negation counts."""


@dataclass(frozen=True, slots=True)
class ForeignPhrase:
    """A phrase in a text, as code points `start` to `end` (exclusive), and its meaning in English.

    `weekday` (Monday is 0) and `weeks` are set for a weekday of another week, which has no such phrase in English.
    """

    start: int
    end: int
    english: str
    weekday: int | None = None
    weeks: int = 0


@dataclass(frozen=True, slots=True)
class _Rules:
    """The expressions of a language, and what their words mean in English.

    `fixed` finds whole phrases, `counted` a number and a unit, each with the text before it that makes it a span of
    time, `named` a pointer such as "last" with a period. `ambiguous` phrases are other words after `unless_after`, and
    with a capital.
    """

    fixed: "re.Pattern[str]"
    counted: "Sequence[tuple[re.Pattern[str], str, re.Pattern[str] | None]]"
    named: "Sequence[re.Pattern[str]]"
    ambiguous: frozenset[str]
    unless_after: "re.Pattern[str] | None"
    weekday_of_week: bool
    numbers: Mapping[str, int]
    meanings: Mapping[str, str]


def find_phrases(text: str, code: str) -> Iterator[ForeignPhrase]:
    """Yield the phrases of a text in a language that may be dates, in their order; none that overlap."""
    rules = _rules(code)
    if rules is None:
        return
    end = 0
    for phrase in sorted(_all_phrases(text, rules), key=lambda phrase: (phrase.start, -phrase.end)):
        if phrase.start >= end:
            end = phrase.end
            yield phrase


def _all_phrases(text: str, rules: _Rules) -> Iterator[ForeignPhrase]:
    for match in rules.fixed.finditer(text):
        key = _key(match[0])
        is_other_word = key in rules.ambiguous and (
            match[0].istitle() or _follows(rules.unless_after, text, match.start())
        )
        if not is_other_word:
            yield ForeignPhrase(match.start(), match.end(), rules.meanings[key])
    for pattern, template, span in rules.counted:
        for match in pattern.finditer(text):
            if not _follows(span, text, match.start()):
                english = template.format(n=_number(match["n"], rules), unit=rules.meanings[_key(match["unit"])])
                yield ForeignPhrase(match.start(), match.end(), english)
    for pattern in rules.named:
        for match in pattern.finditer(text):
            way, what = rules.meanings[_key(match["way"])], rules.meanings[_key(match["what"])]
            if what == "day" or (way == "this" and what in _UNITS):
                continue  # adds nothing to the date of the turn
            if rules.weekday_of_week and what in _WEEKDAYS:
                weekday, weeks = _WEEKDAYS.index(what), {"last": -1, "next": 1}.get(way, 0)
                yield ForeignPhrase(match.start(), match.end(), "", weekday, weeks)
            else:
                yield ForeignPhrase(match.start(), match.end(), f"{way} {what}")


def _follows(pattern: "re.Pattern[str] | None", text: str, start: int) -> bool:
    """Return whether the text before a phrase ends in the pattern."""
    return pattern is not None and pattern.search(text[max(0, start - _BEFORE) : start]) is not None


def _number(text: str, rules: _Rules) -> int:
    return int(normalise(text)) if text[0].isdigit() else rules.numbers[_key(text)]


def _key(text: str) -> str:
    return normalise(" ".join(text.split())).replace("\u2019", "'")


@cache
def _rules(code: str) -> _Rules | None:
    file = read_file(code)
    dates = file.dates
    if dates is None:
        return None
    has_spaces = file.script not in SPACELESS_SCRIPTS

    def expression(pattern: str) -> "re.Pattern[str]":
        return re.compile(whole_words(pattern) if has_spaces else pattern, re.IGNORECASE)

    def before(listed: str, between: str) -> "re.Pattern[str] | None":
        return re.compile(rf"{whole_words(_any(listed.split()))}{between}$", re.IGNORECASE) if listed else None

    units = _any([form for unit in _UNITS for form in getattr(dates, unit).split()])
    number = f"{_any(list(dates.numbers))}|{_DIGITS}"
    since, negation = before(dates.since, r"\s"), before(dates.negations, "[^.!?]*")
    return _Rules(
        fixed=expression(_any(list(dates.fixed))),
        counted=[
            *((expression(_templated(template, number, units)), "{n} {unit} ago", since) for template in dates.ago),
            *((expression(_templated(template, number, units)), "in {n} {unit}", negation) for template in dates.ahead),
        ],
        named=[expression(pattern) for pattern in _named(dates, gap="" if file.script in _JOINED else r"\s")],
        ambiguous=frozenset(map(_key, dates.ambiguous.split())),
        unless_after=before(dates.unless_after, r"\s"),
        weekday_of_week=dates.weekday_of_week,
        numbers={_key(word): number for word, number in dates.numbers.items()},
        meanings=_meanings(dates),
    )


def _templated(template: str, number: str, units: str) -> str:
    """Return the expression of a template."""
    parts = re.split(r"(\{n\}|\{unit\})", template)
    named = {"{n}": f"(?P<n>{number})", "{unit}": f"(?P<unit>{units})"}
    return "".join(named.get(part) or loose(part).replace(" ", r"\s") for part in parts)


def _named(dates: DateWords, gap: str) -> list[str]:
    """Return the expressions of a pointer with a period: "last week", in the order of the language."""
    forms = [*(form for unit in _UNITS for form in getattr(dates, unit).split())]
    for listed in (*dates.weekdays, *dates.months):
        forms += listed.replace(" |", "").split()
    way, what = f"(?P<way>{_any([*dates.last, *dates.next, *dates.this])})", f"(?P<what>{_any(forms)})"
    orders = {"before": [way + gap + what], "after": [what + gap + way]}
    return orders.get(dates.way) or [*orders["before"], *orders["after"]]


def _any(forms: Sequence[str]) -> str:
    """Return an expression for any of some phrases, the longest first."""
    ordered = sorted(set(forms), key=lambda form: (-len(form), form))
    return "|".join(loose(form).replace(" ", r"\s") for form in ordered) or "(?!)"


def _meanings(dates: DateWords) -> dict[str, str]:
    """Return what the words mean in English, by their normalised form."""
    meanings: dict[str, str] = {}
    for unit in _UNITS:
        meanings |= {_key(form): unit for form in getattr(dates, unit).split()}
    for names, listed in ((_WEEKDAYS, dates.weekdays), (_MONTHS, dates.months)):
        for name, forms in zip(names, listed, strict=True):
            meanings |= {_key(form): name for form in forms.replace(" |", "").split()}
    for meaning, forms in (("last", dates.last), ("next", dates.next), ("this", dates.this)):
        meanings |= {_key(form): meaning for form in forms}
    return meanings | {_key(phrase): meaning for phrase, meaning in dates.fixed.items()}
