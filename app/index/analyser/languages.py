"""The languages that the analyser knows: their word lists, question words and rules for dates. Pure.

Each language is a file in `language_data`, whose members `Language` describes. Words of the lists are compared in
normalised form, without diacritics. The files are read once, when the first text is analysed.
"""

import re
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from app.index.analyser.words import MARKED, normalise, words

DEFAULT: Final = "en"
"""The language of a text that shows none, if nothing around it does either."""
CODES: Final = ("en", "de", "fr", "es", "pt", "it", "nl", "sv", "pl", "tr", "ru", "ar", "hi", "zh", "ja", "ko")
"""The languages, as ISO 639-1 codes."""

# words in a script have one language, so that a question and a text that mix languages agree
_LETTERS: Final = (
    ("\u0400", "\u052f", "ru"),
    ("\u0600", "\u06ff", "ar"),
    ("\u0750", "\u077f", "ar"),
    ("\u0900", "\u097f", "hi"),
)
_FOLDER: Final = Path(__file__).parent / "language_data"


class Script(StrEnum):
    """The script by which a language is recognised."""

    LATIN = "latin"
    CYRILLIC = "cyrillic"
    ARABIC = "arabic"
    DEVANAGARI = "devanagari"
    HAN = "han"
    KANA = "kana"
    HANGUL = "hangul"


_OK: Final = "ok okay okey okie k"
SPACELESS_SCRIPTS: Final = frozenset({Script.HAN, Script.KANA, Script.HANGUL})


class _Questions(BaseModel):
    """Phrases that ask for a time, a number, or a name."""

    model_config = ConfigDict(extra="forbid")

    time: list[str]
    number: list[str]
    name: list[str]


class DateWords(BaseModel):
    """The words for dates. Alternatives in one text are separated by spaces; after ` |`, inflected forms of a month.

    `heading`: how a date is written before a turn. `way`: whether words such as "last" stand before the period or after
    it. `ago` and `ahead` are templates with `{n}` and `{unit}`. `fixed` are whole phrases with their meaning in
    English. `ambiguous`: those of them that are other words with a capital, or after `unless_after`. `since` and
    `negations`: words before a phrase of `ago` or `ahead` that make it a span of time. `weekday_of_week`: "last Friday"
    is that of last week.
    """

    model_config = ConfigDict(extra="forbid")

    heading: str
    months: list[str]
    weekdays: list[str]
    day: str
    week: str
    weekend: str
    month: str
    year: str
    last: list[str]
    next: list[str]
    this: list[str]
    way: str
    ago: list[str]
    ahead: list[str]
    since: str = ""
    negations: str = ""
    ambiguous: str = ""
    unless_after: str = ""
    weekday_of_week: bool = False
    fixed: dict[str, str]
    numbers: dict[str, int]


class LanguageFile(BaseModel):
    """A file of `language_data`: texts of words, separated by spaces. `denials` say that something is not so."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    script: Script
    stemmer: str | None = None
    letters: str = ""
    stop_words: str
    keep: str = ""
    endings: str = ""
    frequent: str = ""
    common: str = ""
    denials: str = ""
    first_person: str
    second_person: str
    saying: str
    times: str
    numbers: str
    number_pattern: str | None = None
    capitalised: bool = False
    asks: str = ""
    refusals: list[str]
    requests: list[str]
    instructions: list[str]
    acknowledgements: str = ""
    questions: _Questions
    dates: DateWords | None = None


@dataclass(frozen=True, slots=True)
class WordList:
    """Words of a language: a set for languages with spaces, else an expression that finds them in a text."""

    words: frozenset[str]
    pattern: "re.Pattern[str] | None" = None

    def is_in(self, text_words: Collection[str], text: str) -> bool:
        """Return whether one of the words is among the words of a text, or anywhere in the text itself."""
        if self.pattern is not None:
            return self.pattern.search(text) is not None
        return not self.words.isdisjoint(text_words)


@dataclass(frozen=True, slots=True)
class Language:
    """The rules of a language, ready to use.

    `stop_words` say nothing by themselves; `keep` are words that contain one and count whole, in languages without
    spaces. `asked` are expressions for what a question asks for: a time, a number, a name. `names_have_capitals`: a
    capital inside a sentence shows a name. `asks`: endings of a question without a question mark. `refusals`: phrases
    of an answer that says that there is none. `requests`: phrases of a question about the answer or the conversation
    itself. `instructions`: the first words of a standing instruction.
    """

    code: str
    script: Script
    stop_words: frozenset[str]
    keep: frozenset[str]
    first_person: WordList
    second_person: WordList
    saying: "re.Pattern[str]"
    times: WordList
    numbers: WordList
    asked: "tuple[re.Pattern[str] | None, re.Pattern[str] | None, re.Pattern[str] | None]"
    names_have_capitals: bool
    asks: "re.Pattern[str] | None"
    refusals: "re.Pattern[str]"
    requests: "re.Pattern[str]"
    instructions: "re.Pattern[str]"

    @property
    def is_spaceless(self) -> bool:
        """Return whether its words are pairs of characters."""
        return self.script in SPACELESS_SCRIPTS


@cache
def read_file(code: str) -> LanguageFile:
    """Return the file of a language of `CODES`."""
    return LanguageFile.model_validate(tomllib.loads((_FOLDER / f"{code}.toml").read_text(encoding="utf-8")))


@cache
def read_language(code: str) -> Language:
    """Return a language of `CODES`. Its expressions take some milliseconds to make."""
    file = read_file(code)
    has_spaces = file.script not in SPACELESS_SCRIPTS

    def listed(text: str, pattern: str | None = None) -> WordList:
        if has_spaces:
            return WordList(word_set(text))
        parts = [pattern] if pattern else []
        return WordList(frozenset(), re.compile("|".join([*_alternatives(map(normalise, text.split())), *parts])))

    def asked(phrases: Iterable[str]) -> "re.Pattern[str] | None":
        return phrase_pattern(phrases, has_spaces=has_spaces)

    return Language(
        code=code,
        script=file.script,
        stop_words=word_set(file.stop_words) if has_spaces else frozenset(map(normalise, file.stop_words.split())),
        keep=frozenset(map(normalise, file.keep.split())),
        first_person=listed(file.first_person),
        second_person=listed(file.second_person),
        saying=asked(file.saying.split()) or re.compile("(?!)"),
        times=listed(file.times),
        numbers=listed(file.numbers, file.number_pattern),
        asked=(asked(file.questions.time), asked(file.questions.number), asked(file.questions.name)),
        names_have_capitals=file.capitalised,
        asks=re.compile(rf"(?:{'|'.join(_alternatives(file.asks.split()))})$") if file.asks else None,
        refusals=asked(file.refusals) or re.compile("(?!)"),
        requests=asked(file.requests) or re.compile("(?!)"),
        instructions=asked(file.instructions) or re.compile("(?!)"),
    )


@cache
def acknowledgements() -> tuple[frozenset[str], ...]:
    """Return the words of each language that say nothing by themselves: `ok`, `yes`, `thanks`."""
    return tuple(word_set(f"{_OK} {read_file(code).acknowledgements}") for code in CODES)


def is_latin(code: str) -> bool:
    """Return whether the words of a language are in Latin script."""
    return read_file(code).script is Script.LATIN


def latin_language(code: str) -> str:
    """Return the language of words in Latin script in a text of a language."""
    return code if is_latin(code) else DEFAULT


def language_of_letter(letter: str) -> str | None:
    """Return the language of words that begin with a letter which is not Latin; None without one."""
    return next((code for first_letter, last_letter, code in _LETTERS if first_letter <= letter <= last_letter), None)


def phrase_pattern(phrases: Iterable[str], *, has_spaces: bool, flags: int = 0) -> "re.Pattern[str] | None":
    """Return an expression for any of some phrases, as whole words in languages with spaces; None for no phrase.

    In a phrase, `*` stands for the rest of a word. Diacritics may be missing in the text, unless the phrase begins with
    `=`. Texts are in lower case.
    """
    parts = _alternatives(phrases)
    if not parts:
        return None
    return re.compile(whole_words("|".join(parts)) if has_spaces else "|".join(parts), flags)


def whole_words(pattern: str) -> str:
    """Return an expression that matches only between words. Vowel signs of Hindi and Arabic are parts of words."""
    return rf"(?<![\w{MARKED}])(?:{pattern})(?![\w{MARKED}])"


def _alternatives(phrases: Iterable[str]) -> list[str]:
    """Return expressions of phrases, the longest first."""
    return [loose(phrase) for phrase in sorted(set(phrases), key=lambda phrase: (-len(phrase), phrase))]


def loose(phrase: str) -> str:
    """Return an expression for a phrase, in which diacritics may be missing."""
    if phrase.startswith("="):
        return re.escape(phrase[1:])
    return "".join(map(_loose_character, phrase))


def _loose_character(character: str) -> str:
    if character == "*":
        return rf"[\w{MARKED}]*"
    if character == " ":
        return " "
    if character == "'":
        return "['\u2019]"
    bare = normalise(character)
    return re.escape(character) if bare == character.lower() or len(bare) != 1 else f"[{character}{bare}]"


def word_set(text: str) -> frozenset[str]:
    """Return the words of a list as the analyser splits them."""
    return frozenset(words(text))
