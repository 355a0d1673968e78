"""Checks that a turn supports a statement of a model: its subject and its object occur in the turn. Pure.

Words are compared without case, diacritics and inflection, in the language of the turn and in English. Numbers must be
equal, and dates are compared by value. Words that say nothing by themselves do not count. In scripts without spaces,
runs of characters are compared. The predicate need not occur.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import cache
from itertools import pairwise
from typing import Final

from app.index.analyser.analyser import Analyser
from app.index.analyser.languages import DEFAULT, latin_language, read_file
from app.index.analyser.words import is_spaceless, marked_words, normalise, pairs, strip_marks, words
from app.memory.extraction.turn_dates import NUMBER_WORDS, TurnDates, stated_dates
from app.memory.facts.spelling import name_key, resolve_subject

# of three or more words, this share must occur, and only common words may be missing
_LEAST_SHARE: Final = 2 / 3
_LEAST_PAIRS: Final = 2 / 3
_AFFIRMATIONS = frozenset({"yes", "no", "true", "false"})
_SHORT_FORM = re.compile(r"(?<=\w)['\u2019](?:s|re|ve|ll|m|d)\b", re.IGNORECASE)
# "l'opéra" has the word "opéra", and "Ankara'da" the word "Ankara"
_ELISION = re.compile(r"\b(?:[cdjlmnst]|qu|un|(?:d|n)?all|dell|nell|sull)['\u2019](?=\w)", re.IGNORECASE)
_SUFFIX = re.compile(r"(?<=\w)['\u2019](?=\w)(?!t\b)")
_HOUR = re.compile(r"(?<![\d.:])0(?=\d:\d\d)")
_SPACELESS_NUMBERS = frozenset("零〇一二三四五六七八九十百千万亿")
_TENS, _UNITS = range(20, 100, 10), range(1, 10)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_NO_FRACTION = re.compile(r"\.0+\Z")
_LETTERS = re.compile(r"[^\W\d_][^\d_]*")
_ORDINAL_ENDINGS = frozenset({"st", "nd", "rd", "th"})


@cache
def _common_words() -> frozenset[str]:
    return frozenset(read_file(DEFAULT).common.split())


@cache
def _number_words(code: str) -> Mapping[str, int]:
    """Return the numbers of number words: those of English, and of the language."""
    dates = read_file(code).dates
    return NUMBER_WORDS | ({} if dates is None else {normalise(word): n for word, n in dates.numbers.items()})


def _numbers(text: str) -> Iterator[str]:
    """Yield the numbers in a text, in one form: "1,000.0" is "1000"."""
    for match in _NUMBER.finditer(_HOUR.sub("", text)):
        digits = "".join(str(unicodedata.digit(one, 0)) if one.isdigit() else one for one in match[0])
        plain = digits.replace(",", "") if _GROUPED.fullmatch(digits) else digits.replace(",", ".")
        yield _NO_FRACTION.sub("", plain)


def _spoken_numbers(found: Sequence[str], number_words: Mapping[str, int]) -> Iterator[str]:
    """Yield the numbers that words name, also in two words: "twenty-five"."""
    before = 0
    for word in found:
        number = number_words.get(word, 0)
        if word in number_words:
            yield str(number)
        if before in _TENS and number in _UNITS:
            yield str(before + number)
        before = number


def _letters(text: str) -> list[str]:
    """Return the words of a text without its numbers."""
    found = marked_words(_SUFFIX.sub(" ", _ELISION.sub(" ", _SHORT_FORM.sub("", text))))
    return [part for word in found for part in _LETTERS.findall(word)]


class TurnSupport:
    """The words, numbers and dates of one turn. `names`: the keys of all names of the turn's speaker."""

    def __init__(self, text: str, *, said_at: datetime, analyser: Analyser) -> None:
        self._text, self._said_at, self._analyser = text, said_at, analyser
        self._code = analyser.detect(text) or DEFAULT
        self._latin = latin_language(self._code)
        found = _letters(text)
        self._forms = {form for word in found for form in self._forms_of(word)}
        # "part-time" is "parttime"
        self._forms |= {strip_marks(first + second) for first, second in pairwise(found)}
        self._spaceless = "".join(normalise(text).split())
        self._pairs = frozenset(pairs(self._spaceless))
        number_words = _number_words(self._code)
        self._numbers = {*_numbers(text), *_spoken_numbers(words(text), number_words)}
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
        plain = normalise(text)
        dates = [one for one in stated_dates(plain, self._code) if self._dates.supports(one)]
        for one in dates:
            plain = plain[: one.start] + " " * (one.end - one.start) + plain[one.end :]
        # the length of a normalised text may differ: words keep their diacritics only without dates
        rest = plain if dates else text
        if any(number not in self._numbers for number in _numbers(rest)):
            return False
        return self._supports_words(_letters(rest), written=text, is_rest=bool(dates))

    def _supports_words(self, found: list[str], *, written: str, is_rest: bool) -> bool:
        content = [word for word in found if not self._is_function_word(word)]
        if not content:
            return all(self._has(word) for word in found) and (bool(found) or is_rest or _has_number(written))
        missing = [word for word in content if not self._has(word)]
        if len(content) - len(missing) < len(content) * _LEAST_SHARE:
            return False
        capitals = {word for word in _SHORT_FORM.sub("", written).split() if word[:1].isupper()}
        names = {one for word in capitals for one in words(word)}
        return all(word in _common_words() and word not in names for word in missing)

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
            found = pairs(run)
            if any(character not in self._spaceless for character in _SPACELESS_NUMBERS.intersection(run)):
                return False
            return len(found) > 1 and sum(pair in self._pairs for pair in found) >= len(found) * _LEAST_PAIRS
        number = _number_words(self._code).get(strip_marks(word))
        return any(form in self._forms for form in self._forms_of(word)) or (
            number is not None and str(number) in self._numbers
        )


def _has_number(text: str) -> bool:
    return any(character.isdigit() for character in text)
