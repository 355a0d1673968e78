"""Checks that a turn supports a statement of a model: its subject and its object occur in the turn. Pure.

Words are compared without case, diacritics and inflection, in the language of the turn and in English. Numbers must be
equal, with their signs and currencies, and dates are compared by value. Words that say nothing by themselves do not
count, but a word that denies does: the turn must deny something, too. In scripts without spaces, runs of characters are
compared. The predicate need not occur.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from functools import cache
from itertools import pairwise
from typing import Final

from app.index.analyser.analyser import Analyser
from app.index.analyser.languages import DEFAULT, latin_language, read_file
from app.index.analyser.numbers import (
    StatedTime,
    fold_digits,
    number_words,
    read_numbers,
    read_words,
    stated_dates,
    stated_times,
    without,
)
from app.index.analyser.words import is_spaceless, marked_words, normalise, pairs, strip_marks, words
from app.memory.extraction.turn_dates import TurnDates
from app.memory.facts.spelling import name_key, resolve_subject

_LEAST_PAIRS: Final = 2 / 3
_AFFIRMATIONS = frozenset({"yes", "no", "true", "false"})
_SHORT_FORM = re.compile(r"(?<=\w)['\u2019](?:s|re|ve|ll|m|d)\b", re.IGNORECASE)
# "l'opéra" has the word "opéra", and "Ankara'da" the word "Ankara"
_ELISION = re.compile(r"\b(?:[cdjlmnst]|qu|un|(?:d|n)?all|dell|nell|sull)['\u2019](?=\w)", re.IGNORECASE)
_SUFFIX = re.compile(r"(?<=\w)['\u2019](?=\w)(?!t\b)")
_SPACELESS_NUMBERS = frozenset("零〇一二三四五六七八九十百千万亿")
_LETTERS = re.compile(r"[^\W\d_][^\d_]*")
_ORDINAL_ENDINGS = frozenset({"st", "nd", "rd", "th"})
_NUMBER: Final = re.compile(r"\d+")
_NEGATIVE: Final = re.compile(r"(?<![\w.,/)-])[-\u2212](\d+)")
_CURRENCIES: Final = {
    "$": "dollar usd",
    "\u20ac": "euro eur",
    "\u00a3": "pound gbp",
    "\u00a5": "yen yuan jpy cny rmb",
    "\u20b9": "rupee inr",
}


@cache
def _denials(code: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the words that deny in a language and in English, and the runs that do in scripts without spaces."""
    denials = [word for of in {code, DEFAULT} for word in read_file(of).denials.split()]
    return (
        frozenset(strip_marks(word) for word in denials if not is_spaceless(word)),
        tuple(word for word in denials if is_spaceless(word)),
    )


def _letters(text: str) -> list[str]:
    """Return the words of a text without its numbers."""
    text_words = marked_words(_SUFFIX.sub(" ", _ELISION.sub(" ", _SHORT_FORM.sub("", text))))
    return [part for word in text_words for part in _LETTERS.findall(word)]


class TurnSupport:
    """The words, numbers and dates of one turn. `names`: the keys of all names of the turn's speaker."""

    def __init__(self, text: str, *, said_at: datetime, analyser: Analyser) -> None:
        self._text, self._said_at, self._analyser = text, said_at, analyser
        self._code = analyser.detect(text) or DEFAULT
        self._latin = latin_language(self._code)
        text_words = _letters(text)
        self._forms = {form for word in text_words for form in self._forms_of(word)}
        # "part-time" is "parttime"
        self._forms |= {strip_marks(first + second) for first, second in pairwise(text_words)}
        self._spaceless = "".join(normalise(text).split())
        self._pairs = frozenset(pairs(self._spaceless))
        self._folded = folded = fold_digits(text)
        self._numbers = frozenset[str]().union(*read_numbers(folded, self._code)) | {
            *read_words(folded, words(text), self._code)
        }
        self._times = list(stated_times(folded))
        self._denies = self._has_denial(text)
        self._negatives = {*_NEGATIVE.findall(folded)}
        self._positives = {*_NUMBER.findall(_NEGATIVE.sub(" ", folded))}
        self._dates_of_turn: TurnDates | None = None

    @property
    def _dates(self) -> TurnDates:
        # only few statements have a date, and resolving them takes milliseconds
        if self._dates_of_turn is None:
            self._dates_of_turn = TurnDates(self._text, said_at=self._said_at, code=self._code)
        return self._dates_of_turn

    def supports_day(self, day: date) -> bool:
        """Return whether the turn states this day."""
        return self._dates.supports_day(day)

    def supports(self, text: str) -> bool:
        """Return whether the turn states these words, numbers and dates."""
        rest = fold_digits(text)
        if (self._has_denial(text) and not self._denies) or not self._has_signs(rest):
            return False
        dates = [stated for stated in stated_dates(rest, self._code) if self._dates.supports(stated)]
        rest = without(rest, dates)
        times = [stated for stated in stated_times(rest) if self._has_time(stated)]
        rest = without(rest, times)
        if any(self._numbers.isdisjoint(readings) for readings in read_numbers(rest, self._code)):
            return False
        return self._supports_words(_letters(rest), written=text, is_rest=bool(dates or times))

    def _supports_words(self, claimed_words: list[str], *, written: str, is_rest: bool) -> bool:
        content = [word for word in claimed_words if not self._is_function_word(word)]
        if not content:
            return all(self._has(word) for word in claimed_words) and (
                bool(claimed_words) or is_rest or _has_number(written)
            )
        return all(map(self._has, content))

    def _has_denial(self, text: str) -> bool:
        """Return whether a text has a word that denies, in the language of the turn or in English."""
        denials, runs = _denials(self._code)
        spaceless = "".join(normalise(text).split())
        return not denials.isdisjoint(map(strip_marks, words(text))) or any(run in spaceless for run in runs)

    def _has_signs(self, text: str) -> bool:
        """Return whether the turn has the numbers of a text with their signs, and its currencies."""
        negative, positive = {*_NEGATIVE.findall(text)}, {*_NUMBER.findall(_NEGATIVE.sub(" ", text))}
        if negative - self._negatives or (positive & self._negatives) - self._positives:
            return False
        said = self._folded.casefold()
        return all(
            sign in said or any(word in said for word in names.split())
            for sign, names in _CURRENCIES.items()
            if sign in text
        )

    def _has_time(self, stated: StatedTime) -> bool:
        """Return whether the turn has a time of day; one that leaves out the half of the day means either."""
        halves = {time.is_after_noon for time in self._times if time.time == stated.time}
        return bool(halves) and (stated.is_after_noon is None or not halves.isdisjoint({None, stated.is_after_noon}))

    def supports_subject(
        self, subject: str, *, speaker: str | None, owner: str | None, actors: Mapping[str, str]
    ) -> bool:
        """Return whether the subject is the speaker, or occurs in the turn under one of its names."""
        key = name_key(subject)
        resolved = resolve_subject(subject, speaker=speaker, owner=owner, actors=actors)
        own = resolve_subject("I", speaker=speaker, owner=owner)
        if resolved == own:
            return True
        actor = actors.get(key)
        spellings = [name for name, of in actors.items() if actor is not None and of == actor]
        if any(self.supports(name) for name in (subject, *spellings)):
            return True
        # "Ana's sister", which the turn of Ana calls "my sister"
        own_names = {own, "i", "my", "user", *(name for name, of in actors.items() if name_key(of) == own)}
        own_words = {word for name in own_names for word in words(name)}
        rest = [word for word in _letters(subject) if word not in own_words]
        return (
            bool(rest)
            and len(rest) < len(_letters(subject))
            and self._supports_words(rest, written=" ".join(rest), is_rest=False)
        )

    def supports_object(self, text: str, *, predicate: str) -> bool:
        """Return whether the object occurs in the turn; of "yes" and "no", the predicate must."""
        if normalise(text).strip(" .") in _AFFIRMATIONS:
            return self.supports(predicate.replace("_", " "))
        return self.supports(text)

    def _is_function_word(self, word: str) -> bool:
        return word in _ORDINAL_ENDINGS or any(
            not is_spaceless(word) and self._analyser.stem(word, latin) is None for latin in {self._latin, DEFAULT}
        )

    def _forms_of(self, word: str) -> Iterator[str]:
        yield strip_marks(word)
        if not is_spaceless(word):
            for latin in {self._latin, DEFAULT}:
                if stem := self._analyser.stem(word, latin):
                    yield stem

    def _has(self, word: str) -> bool:
        if is_spaceless(word):
            run = strip_marks(word)
            if run in self._spaceless:
                return True
            run_pairs = pairs(run)
            if any(character not in self._spaceless for character in _SPACELESS_NUMBERS.intersection(run)):
                return False
            return (
                len(run_pairs) > 1 and sum(pair in self._pairs for pair in run_pairs) >= len(run_pairs) * _LEAST_PAIRS
            )
        number = number_words(self._code).get(strip_marks(word))
        return any(form in self._forms for form in self._forms_of(word)) or (
            number is not None and str(number) in self._numbers
        )


def _has_number(text: str) -> bool:
    return any(character.isdigit() for character in text)
