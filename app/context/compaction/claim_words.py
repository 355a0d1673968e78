"""Words and names of texts, to compare those of a summary with those of its source. Pure.

Words are folded (case, diacritics) and stemmed in the language of the summary. In scripts without spaces, pairs of
characters count as words. Rare words are those that are not common in their language.

A name is a word with a capital inside a sentence. Where other words have one too (German nouns, headings) or none has
(scripts without capitals), only words in another script than the text's, such as "Melanie" in Chinese, are names.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

from app.index.analyser.analyser import Analyser
from app.index.analyser.languages import DEFAULT, LanguageFile, is_latin, read_file, word_set
from app.index.analyser.words import is_spaceless, marked_words, strip_marks

_WORD: Final = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_STARTS: Final = re.compile(r"(?:^|[.!?…:;|•\n\"“”„«»\u2018()\[\]{}*#>\u2013\u2014/-])[\s\"“„«'(*_\[]*$")
_POSSESSIVE: Final = re.compile(r"['\u2019]s?$")
_HEADING_SHARE: Final = 0.6
_SHORT_LINE: Final = 12
_LOOKBACK: Final = 12
_MIN_NAME: Final = 3
_PREFIX: Final = 4
_MAX_ENDING: Final = 4
# a word with such an ending at the start of a sentence is seldom a name
_ENDINGS: Final = ("ly", "ing", "ed", "ion", "ions", "ment", "ments", "ness", "ity", "ies", "ives", "ers", "als", "ful")
_ROLES: Final = "user assistant system tool developer summary abstract conversation transcript"
_SHORT_DATES: Final = "jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun"
_CAPITALS_IN_TITLES: Final = frozenset(["de"])


class NameCounts(NamedTuple):
    """The names of a text, folded: how often each is inside a sentence, and at its start."""

    inside: Counter[str]
    at_start: Counter[str]

    def count(self, name: str) -> int:
        """Return how often a name is in the text."""
        return self.inside[name] + self.at_start[name]


def fold(word: str) -> str:
    """Return a word without case, diacritics and the possessive ending."""
    return strip_marks(_POSSESSIVE.sub("", word).replace("\u2019", "'").casefold()).replace("'", "")


def plain_words(text: str) -> list[str]:
    """Return the folded words of a text, with runs of characters of scripts without spaces."""
    return [strip_marks(word) for word in marked_words(text)]


def size(words_of_text: Iterable[str]) -> int:
    """Return the length of a text by its words: two characters of a script without spaces count as one word."""
    halves = sum(len(word) if is_spaceless(word) else 2 for word in words_of_text)
    return -(-halves // 2)


def stems(text: str, code: str, analyser: Analyser) -> set[str]:
    """Return the lexemes of a text in a language, without stop words; of scripts without spaces, pairs alone."""
    return {lexeme for lexeme in analyser.lexemes(text, language=code) if _says_something(lexeme)}


def rare_stems(text: str, code: str, analyser: Analyser) -> set[str]:
    """Return the lexemes of a text that are not common in its language. Numbers are none."""
    return {lexeme for lexeme in stems(text, code, analyser) - _common(code) if not lexeme.isdecimal()}


def content_stems(text: str, code: str, analyser: Analyser) -> set[str]:
    """Return the lexemes of a text without the most frequent words of its language. Numbers are none."""
    return {lexeme for lexeme in stems(text, code, analyser) - _frequent(code) if not lexeme.isdecimal()}


def _says_something(lexeme: str) -> bool:
    return len(lexeme) > 1


def _frequent_words(file: LanguageFile) -> str:
    return f"{file.stop_words} {file.frequent} {file.common} {file.times} {file.numbers}"


@cache
def _frequent(code: str) -> frozenset[str]:
    """Return the lexemes of the most frequent words of a language."""
    file = read_file(code)
    text = f"{file.stop_words} {file.frequent} {file.times} {file.numbers}"
    return frozenset(Analyser().lexemes(text, language=code))


@cache
def _common(code: str) -> frozenset[str]:
    """Return the lexemes of the frequent words of a language; pairs of those of scripts without spaces."""
    file = read_file(code)
    analyser = Analyser()
    return frozenset(analyser.lexemes(_frequent_words(file), language=code))


@cache
def _known_words(code: str) -> frozenset[str]:
    """Return the words that are no names, though they may have a capital: frequent ones, months and weekdays."""
    words = set(word_set(f"{_ROLES} {_SHORT_DATES}"))
    for file in (read_file(DEFAULT), read_file(code)):
        words |= word_set(_frequent_words(file))
        if file.dates is not None:
            words |= word_set(" ".join((*file.dates.months, *file.dates.weekdays)))
    return frozenset(words)


def has_capitals(code: str) -> bool:
    """Return whether a capital inside a sentence shows a name in a language."""
    return (is_latin(code) or code == "ru") and code not in _CAPITALS_IN_TITLES


def names(text: str, code: str) -> NameCounts:
    """Return the names of a text in a language."""
    inside, at_start = Counter[str](), Counter[str]()
    frequent = _known_words(code)
    if not has_capitals(code):
        if not is_latin(code):
            inside.update(name for word in _WORD.findall(text) if (name := _latin_name(word, frequent)) is not None)
        return NameCounts(inside, at_start)
    lower = {fold(word) for word in _WORD.findall(text) if word[0].islower()}
    for line in text.splitlines():
        for word, starts in _capitalised(line):
            name = fold(word)
            if len(name) < _MIN_NAME or name in frequent or name in lower:
                continue
            (at_start if starts else inside)[name] += 1
    for name in [name for name in at_start if name not in inside and name.endswith(_ENDINGS)]:
        del at_start[name]
    return NameCounts(inside, at_start)


def _capitalised(line: str) -> Iterator[tuple[str, bool]]:
    """Yield the words of a line with a capital, and whether a sentence starts with them; none of a heading."""
    matches = list(_WORD.finditer(line))
    capitals = [match for match in matches if match[0][0].isupper()]
    long = [match for match in matches if len(match[0]) > _MIN_NAME]
    if len(long) > 1 and len(matches) <= _SHORT_LINE:
        share = sum(match[0][0].isupper() for match in long) / len(long)
        if share > _HEADING_SHARE and not line.rstrip().endswith((".", "!", "?")):
            return
    for match in capitals:
        start = match.start()
        yield match[0], _STARTS.search(line[max(0, start - _LOOKBACK) : start]) is not None


def _latin_name(word: str, frequent: frozenset[str]) -> str | None:
    """Return a word in Latin script of a text in another script, if it has a capital and is not frequent in English."""
    name = fold(word)
    is_name = word[0].isupper() and word.isascii() and len(name) >= _MIN_NAME and name not in frequent
    return name if is_name else None


class NameIndex:
    """The words of a source, to find a name in any of its forms: "Melanie's", "Марии", "Carolyn"."""

    def __init__(self, texts: Iterable[str], words: Iterable[str]) -> None:
        self._words = set(words)
        self._starts: dict[str, set[str]] = {}
        for text in texts:
            for word in _WORD.findall(text):
                name = fold(word)
                self._words.add(name)
                self._words.update(name_part for name_part in re.split("['\u2019]", word.casefold()) if name_part)
                if word[0].isupper() and len(name) >= _PREFIX:
                    self._starts.setdefault(name[:_PREFIX], set()).add(name)

    def has(self, name: str) -> bool:
        """Return whether a folded name is a word of the source, or differs from a name of it only by its ending."""
        if name in self._words or name.rstrip("s") in self._words or f"{name}s" in self._words:
            return True
        return any(_same_root(name, other) for other in self._starts.get(name[:_PREFIX], ()))


def _same_root(name: str, other: str) -> bool:
    """Return whether two names with the same first four letters differ only by their endings."""
    common = 0
    for character, other_character in zip(name, other, strict=False):
        if character != other_character:
            break
        common += 1
    longest = max(len(name), len(other))
    return longest - common <= min(_MAX_ENDING, longest // 2)


def language_of(texts: Sequence[str], analyser: Analyser) -> str:
    """Return the language of most of a source, by characters; English if it shows none."""
    weights = Counter[str]()
    for text in texts:
        if (code := analyser.detect(text)) is not None:
            weights[code] += len(text)
    return max(weights, key=lambda code: weights[code], default=DEFAULT)
