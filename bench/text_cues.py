"""Cues in texts and questions for `ranking`, with the bits of the index: what a text has, and what a question asks for.

Looks at the first 60 words. The lists are English.
"""

import re
from typing import Final

from app.index.analyser.analyser import ends_in_question, words

FIRST_PERSON: Final = 1
NUMBER: Final = 2
TIME_WORD: Final = 4
CAPITALISED: Final = 8
ASKS: Final = 16

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
_SENTENCE_END: Final = re.compile(r"[.!?][\"')]*$")
_KINDS: Final = (
    (re.compile(r"\bwhen\b|\b(what|which) (date|day|year|month|time)\b|\bhow long\b"), TIME_WORD),
    (re.compile(r"\bhow (many|much|often|old)\b"), NUMBER),
    (re.compile(r"\bwhere\b|\b(what|which) (city|country|place)\b|\b(who|whose|whom)\b"), CAPITALISED),
)


def read_cues(text: str) -> int:
    """Return the bits of a text."""
    first = text.split()[:_FIRST_WORDS]
    head = " ".join(first)
    known = set(words(head))
    cues = FIRST_PERSON * bool(known & _SELF) | TIME_WORD * bool(known & _TIMES)
    cues |= NUMBER * (bool(known & _NUMBERS) or any(character.isdigit() for character in head))
    return cues | CAPITALISED * _has_name(first) | ASKS * ends_in_question(text)


def _has_name(first: list[str]) -> bool:
    """Return whether a word inside a sentence has a capital."""
    starts = True
    for word in first:
        inner = word.strip("\"'(*")
        if not starts and inner[:1].isupper() and inner not in _PRONOUNS:
            return True
        starts = bool(_SENTENCE_END.search(word))
    return False


def question_cues(query: str) -> int:
    """Return the bit of the kind of word that a question asks for; 0 for others."""
    asked = query.lower()
    return next((bit for pattern, bit in _KINDS if pattern.search(asked)), 0)
