"""The analyser for documents and queries. Pure.

Text is normalised (compatibility forms, case, diacritics), split into words, and stemmed if it is English. Scripts
without spaces become characters and pairs of characters. The result is a tsvector literal. The database's own
text-search configuration is not used, because it returns nothing for such scripts under the C locale.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import Final

from app.index.analyser.cues import read_cues
from app.index.analyser.stemmer import english_stemmer
from app.index.analyser.terms import pack_terms
from app.index.analyser.words import SPACELESS, words
from app.index.schemas import TextAnalysis

ANALYSER_VERSION: Final = 1
"""Stored with each entry: rises when the lexemes or cues of a text change.

With it rises the version in the condition of `index_entries_unanalysed_idx`, so that jobs analyse older entries again.
They read cues from texts, and terms from the stored lexemes: a version with other lexemes has to rewrite these, too.
"""

_MAX_LEXEME = 64
_MAX_POSITION = 16_383
_MAX_POSITIONS = 255
# the limit of a tsvector is 1 MiB; every lexeme costs its bytes and about 2 + 2 per position
_MAX_TSVECTOR_BYTES = 700_000

_SPACELESS_RUN = re.compile(rf"[{SPACELESS}]")
# ASCII that is in no word and changes no character before it: a cut there does not change the words
_BETWEEN_WORDS = re.compile(r"[\x00-\x26\x28-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\x7f]")
_SLICE_CHARACTERS = 8192

STOP_WORDS = frozenset(
    [
        "a",
        "about",
        "above",
        "after",
        "again",
        "against",
        "all",
        "am",
        "an",
        "and",
        "any",
        "are",
        "arent",
        "as",
        "at",
        "be",
        "because",
        "been",
        "before",
        "being",
        "below",
        "between",
        "both",
        "but",
        "by",
        "can",
        "cant",
        "could",
        "couldnt",
        "did",
        "didnt",
        "do",
        "does",
        "doesnt",
        "doing",
        "dont",
        "down",
        "during",
        "each",
        "few",
        "for",
        "from",
        "further",
        "had",
        "hadnt",
        "has",
        "hasnt",
        "have",
        "havent",
        "having",
        "he",
        "her",
        "here",
        "hers",
        "herself",
        "him",
        "himself",
        "his",
        "how",
        "i",
        "id",
        "if",
        "ill",
        "im",
        "in",
        "into",
        "is",
        "isnt",
        "it",
        "its",
        "itself",
        "ive",
        "just",
        "me",
        "more",
        "most",
        "my",
        "myself",
        "no",
        "nor",
        "not",
        "now",
        "of",
        "off",
        "on",
        "once",
        "only",
        "or",
        "other",
        "our",
        "ours",
        "ourselves",
        "out",
        "over",
        "own",
        "same",
        "she",
        "should",
        "so",
        "some",
        "such",
        "than",
        "that",
        "thats",
        "the",
        "their",
        "theirs",
        "them",
        "themselves",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "through",
        "to",
        "too",
        "under",
        "until",
        "up",
        "very",
        "was",
        "wasnt",
        "we",
        "were",
        "werent",
        "what",
        "whats",
        "when",
        "where",
        "which",
        "while",
        "who",
        "whom",
        "whose",
        "why",
        "will",
        "with",
        "wont",
        "would",
        "wouldnt",
        "you",
        "your",
        "yours",
        "yourself",
        "yourselves",
    ]
)


def _slices(text: str) -> Iterator[str]:
    """Cut a long text between words, so that no call into the C library blocks other threads for long."""
    start = 0
    while len(text) - start > _SLICE_CHARACTERS and (cut := _BETWEEN_WORDS.search(text, start + _SLICE_CHARACTERS)):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


class Analyser:
    """A converter of texts to lexemes. Not thread-safe, because the stemmer keeps state."""

    def __init__(self) -> None:
        self._stemmer = english_stemmer()

    def lexemes(self, text: str, *, query: bool) -> Iterable[str]:
        """Return the lexemes of a text in order. In a query, a run of spaceless script gives only its pairs."""
        if len(text) <= _SLICE_CHARACTERS and text.isascii():  # most texts: nothing to cut, no other scripts
            return self._stem([word[:_MAX_LEXEME] for word in words(text) if word not in STOP_WORDS])
        return self._lexemes_of_slices(text, query=query)

    def _lexemes_of_slices(self, text: str, *, query: bool) -> Iterator[str]:
        for some in _slices(text):
            plain: list[str] = []
            for word in words(some):
                if word in STOP_WORDS:
                    continue
                if _SPACELESS_RUN.match(word):
                    yield from self._stem(plain)
                    plain = []
                    if len(word) == 1 or not query:
                        yield from word
                    for index in range(len(word) - 1):
                        yield word[index : index + 2]
                else:
                    plain.append(word[:_MAX_LEXEME])
            yield from self._stem(plain)

    def _stem(self, plain: list[str]) -> Sequence[str]:
        return self._stemmer.stemWords(plain)

    def document(self, text: str, *, actor: str, occurred_at: datetime, max_bytes: int) -> TextAnalysis:
        """Return actor, date and text as one tsvector. Of the text, only the first `max_bytes` in UTF-8 are used."""
        text = indexed_text(text, max_bytes=max_bytes)
        heading = f"{actor} {occurred_at.day} {occurred_at:%B %Y}"
        lexemes = iter(self.lexemes(f"{heading}\n{text}", query=False))
        first = list(islice(lexemes, _MAX_POSITIONS + 1))
        if len(first) > _MAX_POSITIONS:
            length, literal, counts = _long_tsvector(chain(first, lexemes))
        else:
            length, (literal, counts) = len(first), _short_tsvector(first)
        return TextAnalysis(literal, length, read_cues(text), pack_terms(counts))

    def query(self, text: str) -> list[str]:
        """Return the distinct lexemes of a query."""
        return list(dict.fromkeys(self.lexemes(text, query=True)))


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
