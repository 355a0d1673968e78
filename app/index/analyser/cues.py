"""Cues: properties of a text that the ranking uses, and the property that a question asks for. Pure.

Only the first 60 words of a text are read, or as many characters in scripts without spaces. The word lists are those of
the language of the text; `languages` reads them.
"""

import re
from collections.abc import Collection, Sequence
from enum import IntFlag
from itertools import pairwise
from typing import Final

from app.index.analyser.languages import DEFAULT, Language, acknowledgements, read_language
from app.index.analyser.words import ends_in_question, normalise, words


class Cue(IntFlag):
    """A property of a text. An entry stores them as the bits of one number."""

    FIRST_PERSON = 1
    NUMBER = 2
    TIME_WORD = 4
    CAPITALISED = 8
    """A word inside a sentence starts with a capital letter. Not in German, where all nouns do."""
    ASKS = 16
    """The last complete sentence is a question."""
    REFUSES = 32
    """A short text that says that there is no answer, such as "I don't know"."""
    INSTRUCTS = 64
    """A short text that is a standing instruction, such as "Always answer in French"."""


_FIRST_WORDS: Final = 60
_FIRST_CHARACTERS: Final = 200
_SHORT_CHARACTERS: Final = 240
"""A longer text says more than that there is no answer, or how to answer."""
_PRONOUNS: Final = frozenset(["I", "I'm", "I've", "I'd", "I'll"])
_FIRST_WORD: Final = re.compile(r"\w")
_ASCII_DIGIT: Final = re.compile(r"[0-9]")
_SENTENCE_END: Final = re.compile(r"[.!?][\"')]*$")
_LAST_MARKS: Final = ".\u3002\uff0e!\uff01?\uff1f \n"
_MAX_ACKNOWLEDGEMENT: Final = 6
_MAX_ACKNOWLEDGEMENT_CHARACTERS: Final = 80
_ASKED: Final = (Cue.TIME_WORD, Cue.NUMBER, Cue.CAPITALISED)


def read_cues(text: str, code: str = DEFAULT, text_words: Sequence[str] | None = None) -> int:
    """Return the cues of a text in a language as bits. `text_words`: its words, if they are known."""
    language = read_language(code)
    parts = text.split(maxsplit=_FIRST_WORDS)
    first = parts[:_FIRST_WORDS]
    head = " ".join(first)
    is_all = text_words is not None and len(parts) == len(first)
    if language.is_spaceless:
        head = head[:_FIRST_CHARACTERS]
    head_words = set(text_words if is_all and text_words is not None else words(head))
    folded = normalise(head) if language.is_spaceless else head
    cues = Cue.FIRST_PERSON * language.first_person.is_in(head_words, folded)
    cues |= Cue.TIME_WORD * language.times.is_in(head_words, folded)
    cues |= Cue.NUMBER * (language.numbers.is_in(head_words, folded) or _has_digit(head))
    if len(text) <= _SHORT_CHARACTERS:
        lower = text.lower()
        cues |= Cue.REFUSES * (language.refusals.search(lower) is not None)
        cues |= Cue.INSTRUCTS * _instructs(lower, language)
    return cues | Cue.CAPITALISED * _has_name(first, language) | Cue.ASKS * _asks(text, language)


def _asks(text: str, language: Language) -> bool:
    if ends_in_question(text):
        return True
    return language.asks is not None and language.asks.search(text.rstrip(_LAST_MARKS)) is not None


def _instructs(lower: str, language: Language) -> bool:
    """Return whether a text begins with the words of an instruction, after a request such as "please"."""
    start = _FIRST_WORD.search(lower)
    if start is None:
        return False
    request = language.requests.match(lower, start.start())
    after = start.start() if request is None else request.end()
    word = _FIRST_WORD.search(lower, after)
    return word is not None and language.instructions.match(lower, word.start()) is not None


def _has_digit(text: str) -> bool:
    if text.isascii():
        return _ASCII_DIGIT.search(text) is not None
    return any(character.isdigit() for character in text)


def _has_name(first: list[str], language: Language) -> bool:
    """Return whether a word inside a sentence has a capital."""
    if not language.names_have_capitals:
        return False
    for before, word in pairwise(first):
        if word.islower():
            continue
        inner = word.strip("\"'(*")
        if inner[:1].isupper() and inner not in _PRONOUNS and not _SENTENCE_END.search(before):
            return True
    return False


def question_cues(query: str, code: str = DEFAULT) -> int:
    """Return the cue of the kind of word that a question asks for; 0 for other questions."""
    asked = query.lower().replace("\u2019", "'")
    for pattern, bit in zip(read_language(code).asked, _ASKED, strict=True):
        if pattern is not None and pattern.search(asked):
            return bit
    return 0


def is_about_oneself(query: str, query_words: Collection[str], code: str = DEFAULT) -> bool:
    """Return whether a question is about the person who asks. `query_words`: its words."""
    language = read_language(code)
    return language.first_person.is_in(query_words, normalise(query))


def asks_what_was_said(query: str, code: str = DEFAULT) -> bool:
    """Return whether a question is about what the one who answers has said."""
    language = read_language(code)
    rest = without_requests(query, code)  # "can you list" asks nothing about the past
    is_to_the_other = language.second_person.is_in(set(words(rest)), normalise(rest))
    return is_to_the_other and language.saying.search(query.lower()) is not None


def says_something(text: str) -> bool:
    """Return whether a text says more than `ok`, `yes` or `thanks`, in any language, or signs such as a thumb up."""
    if len(text) > _MAX_ACKNOWLEDGEMENT_CHARACTERS:
        return bool(text.strip())
    text_words = set(words(text))
    is_short = len(text_words) <= _MAX_ACKNOWLEDGEMENT
    return bool(text_words) and not (is_short and any(text_words <= said for said in acknowledgements()))


def without_requests(query: str, code: str = DEFAULT) -> str:
    """Return a query without what it says of the answer, such as "can you" and "in our conversations".

    The query itself if nothing else is left.
    """
    rest = read_language(code).requests.sub(" ", query.lower())
    return rest if rest.strip(_LAST_MARKS) else query
