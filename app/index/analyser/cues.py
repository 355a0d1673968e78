"""Cues: properties of a text that the ranking uses, and the property that a question asks for. Pure.

Only the first 60 words of a text are read. The word lists are English: texts of other languages have fewer cues.
"""

import re
from enum import IntFlag
from itertools import pairwise
from typing import Final

from app.index.analyser.words import ends_in_question, words

LANGUAGE: Final = "en"
"""The language of the word lists, of the stop words and of the stemmer."""


class Cue(IntFlag):
    """A property of a text. An entry stores them as the bits of one number."""

    FIRST_PERSON = 1
    NUMBER = 2
    TIME_WORD = 4
    CAPITALISED = 8
    """A word inside a sentence starts with a capital letter."""
    ASKS = 16
    """The last complete sentence is a question."""


_FIRST_WORDS: Final = 60
_SELF: Final = frozenset(["i", "im", "ive", "id", "ill", "me", "my", "mine", "myself"])
_TIMES: Final = frozenset(
    """
    yesterday today tomorrow tonight morning afternoon evening night week weeks weekend month months year years day days
    monday tuesday wednesday thursday friday saturday sunday january february march april may june july august
    september october november december ago last next recently soon since spring summer autumn fall winter hour hours
    minute minutes decade birthday anniversary
    """.split()  # noqa: SIM905 - a list of words reads better
)
_NUMBERS: Final = frozenset(
    """
    one two three four five six seven eight nine ten eleven twelve dozen twenty thirty forty fifty hundred thousand
    million first second third once twice couple few several
    """.split()  # noqa: SIM905
)
_PRONOUNS: Final = frozenset(["I", "I'm", "I've", "I'd", "I'll"])
_ASCII_DIGIT: Final = re.compile(r"[0-9]")
_SENTENCE_END: Final = re.compile(r"[.!?][\"')]*$")
_KINDS: Final = (
    (re.compile(r"\bwhen\b|\b(what|which) (date|day|year|month|time)\b|\bhow long\b"), Cue.TIME_WORD),
    (re.compile(r"\bhow (many|much|often|old)\b"), Cue.NUMBER),
    (re.compile(r"\bwhere\b|\b(what|which) (city|country|place)\b|\b(who|whose|whom)\b"), Cue.CAPITALISED),
)


def read_cues(text: str) -> int:
    """Return the cues of a text as bits."""
    first = text.split(maxsplit=_FIRST_WORDS)[:_FIRST_WORDS]
    head = " ".join(first)
    known = set(words(head))
    cues = Cue.FIRST_PERSON * bool(known & _SELF) | Cue.TIME_WORD * bool(known & _TIMES)
    cues |= Cue.NUMBER * (bool(known & _NUMBERS) or _has_digit(head))
    return cues | Cue.CAPITALISED * _has_name(first) | Cue.ASKS * ends_in_question(text)


def _has_digit(text: str) -> bool:
    if text.isascii():
        return _ASCII_DIGIT.search(text) is not None
    return any(character.isdigit() for character in text)


def _has_name(first: list[str]) -> bool:
    """Return whether a word inside a sentence has a capital."""
    for before, word in pairwise(first):
        if word.islower():
            continue
        inner = word.strip("\"'(*")
        if inner[:1].isupper() and inner not in _PRONOUNS and not _SENTENCE_END.search(before):
            return True
    return False


def question_cues(query: str) -> int:
    """Return the cue of the kind of word that a question asks for; 0 for other questions."""
    asked = query.lower()
    return next((bit for pattern, bit in _KINDS if pattern.search(asked)), 0)
