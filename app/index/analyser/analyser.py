"""The analyser for documents and queries. Pure.

Text is normalised (compatibility forms, case, diacritics) and split into words, which are stemmed in their language.
Words in Latin script have the language of the text, others that of their script. Scripts without spaces become
characters and pairs of characters. The result is a tsvector literal. The database's own text-search configuration is
not used, because it returns nothing for such scripts under the C locale.
"""

import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from itertools import chain, islice
from typing import Protocol, cast

from app.formats.schemas import ROLE_NAMES
from app.index.analyser.cues import read_cues
from app.index.analyser.date_words import date_heading
from app.index.analyser.detection import detect
from app.index.analyser.languages import DEFAULT, is_latin, language_of_letter, latin_language, read_file, read_language
from app.index.analyser.terms import TermHashes, hash_text, pack_terms
from app.index.analyser.words import has_other_script, is_spaceless, marked_words, pairs, strip_marks, words
from app.index.schemas import TextAnalysis

_MAX_LEXEME = 64
_MAX_POSITION = 16_383
_MAX_POSITIONS = 255
# the limit of a tsvector is 1 MiB; every lexeme costs its bytes and about 2 + 2 per position
_MAX_TSVECTOR_BYTES = 700_000

_AFTER_LATIN = "\u0250"
_STEMMED_WITH_MARKS = frozenset(["de", "fr", "es", "pt", "it", "nl", "sv", "pl", "tr", "ru"])
# ASCII that is in no word and changes no character before it: a cut there does not change the words
_BETWEEN_WORDS = re.compile(r"[\x00-\x26\x28-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\x7f]")
_SLICE_CHARACTERS = 8192


class Stemmer(Protocol):
    """A stateful stemmer of PyStemmer, which has no types: not thread-safe."""

    def stemWord(self, word: str, /) -> str:  # noqa: N802 - name of the library
        """Return the stem of a word."""
        ...

    def stemWords(self, words: list[str], /) -> list[str]:  # noqa: N802 - name of the library
        """Return the stems of words, in their order."""
        ...


class _Stemmers(Protocol):
    def Stemmer(self, algorithm: str) -> Stemmer: ...  # noqa: N802 - name of the library


def new_stemmer(algorithm: str) -> Stemmer:
    """Return a new stemmer of a Snowball algorithm, such as `english`."""
    return cast("_Stemmers", cast("object", importlib.import_module("Stemmer"))).Stemmer(algorithm)


def _slices(text: str) -> Iterator[str]:
    """Cut a long text between words, so that no call into the C library blocks other threads for long."""
    start = 0
    while len(text) - start > _SLICE_CHARACTERS and (cut := _BETWEEN_WORDS.search(text, start + _SLICE_CHARACTERS)):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


class Analyser:
    """A converter of texts to lexemes. Not thread-safe, because stemmers keep state.

    `language`: the language of texts in its script, in place of that which they show.
    """

    def __init__(self, language: str | None = None) -> None:
        self._setting = language
        self._english = new_stemmer("english")
        self._english_stop_words = read_language(DEFAULT).stop_words
        self._stemmers: dict[str, Stemmer] = {}
        self._hashes = TermHashes()
        self._headings: dict[tuple[date, str], str] = {}

    def lexemes(self, text: str, *, language: str = DEFAULT) -> Iterable[str]:
        """Return the lexemes of a document in a language, in order."""
        if language == DEFAULT and len(text) <= _SLICE_CHARACTERS and text.isascii():
            return self._stem_english(words(text))
        return self._lexemes_of_slices(text, language)

    def _stem_english(self, text_words: Iterable[str]) -> Sequence[str]:
        stop_words = self._english_stop_words
        return self._english.stemWords([word[:_MAX_LEXEME] for word in text_words if word not in stop_words])

    def _lexemes_of_slices(self, text: str, language: str) -> Iterator[str]:
        latin = latin_language(language)
        is_english = latin == DEFAULT and not has_other_script(text)
        for part in _slices(text):
            if is_english:
                yield from self._stem_english(words(part))
                continue
            for word in marked_words(part):
                if is_spaceless(word):
                    yield from word
                    yield from pairs(word)
                elif (lexeme := self.stem(word, latin)) is not None:
                    yield lexeme

    def stem(self, word: str, latin: str) -> str | None:
        """Return the lexeme of a word with its diacritics; None for a stop word. `latin`: the language of Latin script.

        A word in another script is in the language of that script.
        """
        bare = strip_marks(word)[:_MAX_LEXEME]
        if not bare:  # diacritics alone
            return None
        if latin == DEFAULT and bare.isascii():
            return None if bare in self._english_stop_words else self._english.stemWord(bare)
        language = latin if bare[0] < _AFTER_LATIN else language_of_letter(bare[0])
        if language is None:
            return bare
        if bare in read_language(language).stop_words:
            return None
        # most algorithms need diacritics; the English one gets none, as in earlier releases
        stemmed = word[:_MAX_LEXEME] if language in _STEMMED_WITH_MARKS else bare
        return strip_marks(self._stemmer(language).stemWord(stemmed)) or bare

    def _stemmer(self, language: str) -> Stemmer:
        if language not in self._stemmers:
            self._stemmers[language] = new_stemmer(read_file(language).stemmer or "english")
        return self._stemmers[language]

    def detect(self, text: str, text_words: Sequence[str] | None = None) -> str | None:
        """Return the language of a text, None if it shows none. `text_words`: its words, if they are known."""
        if self._setting is None:
            return detect(text, text_words)
        if text.isascii():
            return self._setting if is_latin(self._setting) else detect(text, text_words)
        shown = detect(text)
        is_same_script = shown is None or read_file(shown).script == read_file(self._setting).script
        return self._setting if is_same_script else shown

    def document(
        self, text: str, *, actor: str, occurred_at: datetime, max_bytes: int, language: str | None = None
    ) -> TextAnalysis:
        """Return actor, date and text as one tsvector. Of the text, only the first `max_bytes` in UTF-8 are used.

        `language` is that of the text; None: that which it shows, else English.
        """
        text_hash = hash_text(text)
        text = indexed_text(text, max_bytes=max_bytes)
        is_plain = len(text) <= _SLICE_CHARACTERS and text.isascii()
        text_words = words(text) if is_plain else None
        shown = language or self.detect(text, text_words)
        used = shown or DEFAULT
        heading = actor_heading(actor, self._date_heading(occurred_at.date(), used))
        if text_words is not None and used == DEFAULT and not has_other_script(heading):  # most texts
            lexemes = iter(self._stem_english([*words(heading), *text_words]))
        else:
            lexemes = iter(self.lexemes(f"{heading}\n{text}", language=used))
        first = list(islice(lexemes, _MAX_POSITIONS + 1))
        if len(first) > _MAX_POSITIONS:
            length, literal, counts = _long_tsvector(chain(first, lexemes))
        else:
            length, (literal, counts) = len(first), _short_tsvector(first)
        cues, terms = read_cues(text, used, text_words), pack_terms(counts, self._hashes)
        return TextAnalysis(literal, length, cues, terms, used, text_hash, is_detected=shown is not None)

    def _date_heading(self, day: date, language: str) -> str:
        heading = self._headings.get((day, language))
        if heading is None:
            heading = self._headings[day, language] = date_heading(day, language)
        return heading

    def query(self, text: str) -> list[str]:
        """Return the distinct lexemes of an English query."""
        return list(dict.fromkeys(self.lexemes(text)))


def actor_heading(actor: str, day: str) -> str:
    """Return the words by which a turn is found besides its text.

    An actor without a name of its own has that of its role, which is no word of the turn: a query with the word `user`
    does not mean all turns of the user.
    """
    return day if actor.lower() in ROLE_NAMES else f"{actor} {day}"


def _short_tsvector(lexemes: Sequence[str]) -> tuple[str, dict[str, int]]:
    """Return a tsvector of so few lexemes that it reaches no limit, and how often it has each."""
    places: dict[str, str] = {}
    counts: dict[str, int] = {}
    for place, lexeme in enumerate(lexemes, start=1):
        if lexeme in counts:
            counts[lexeme] += 1
            places[lexeme] += f",{place}"
        else:
            counts[lexeme] = 1
            places[lexeme] = f"{quote_lexeme(lexeme)}:{place}"
    return " ".join(places.values()), counts


def _long_tsvector(lexemes: Iterable[str]) -> tuple[int, str, dict[str, int]]:
    """Return the number of lexemes, and their tsvector within the limits of Postgres with how often it has each."""
    positions: dict[str, list[int]] = {}
    size = length = 0
    for length, lexeme in enumerate(lexemes, start=1):
        if size > _MAX_TSVECTOR_BYTES:
            continue  # counted, but not stored
        places = positions.get(lexeme)
        if places is None:
            size += len(lexeme.encode()) + 8
            if size <= _MAX_TSVECTOR_BYTES:
                positions[lexeme] = [min(length, _MAX_POSITION)]
        elif len(places) < _MAX_POSITIONS and length < _MAX_POSITION:
            size += 2
            places.append(length)
    literal = " ".join(f"{quote_lexeme(lexeme)}:{','.join(map(str, places))}" for lexeme, places in positions.items())
    return length, literal, {lexeme: len(places) for lexeme, places in positions.items()}


def indexed_text(text: str, *, max_bytes: int) -> str:
    """Return the start of a text that is indexed: its first `max_bytes` in UTF-8."""
    if len(text) * 4 <= max_bytes:
        return text
    return text[:max_bytes].encode()[:max_bytes].decode(errors="ignore")


def quote_lexeme(lexeme: str) -> str:
    """Quote a lexeme for a tsvector or tsquery literal."""
    if lexeme.isalnum():
        return f"'{lexeme}'"
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"


def match_any(lexemes: Sequence[str]) -> str:
    """Return the tsquery that matches any of these lexemes, since a match of all would find next to nothing."""
    return " | ".join(map(quote_lexeme, lexemes))
