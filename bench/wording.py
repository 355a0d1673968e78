"""Whether the words of a gold answer are in a text, by a rule without a model.

The rule: both sides are lower-cased words without accents and punctuation; number words are digits, ISO dates are also
day, month and year; words without meaning of their own are left out; the rest is stemmed (Snowball, English). An answer
is in a text if all its words are. So it says that a reader could find the answer there, not that a model would; and an
answer in other words than those of the text counts as missing.
"""

import re
import unicodedata
from typing import Final

from app.index.analyser.analyser import new_stemmer

_WORD: Final = re.compile(r"[^\W_]+")
_ISO_DATE: Final = re.compile(r"\b(\d{4})-(\d\d)-(\d\d)\b")
_MONTHS: Final = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_NUMBERS: Final = {
    word: str(number)
    for number, word in enumerate(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    )
}
_WITHOUT_MEANING: Final = (
    "a an the of in on at to for from by with and or but as is are was were be been being it its this that these those "
    "he she they them his her their him i you we my your our me us has have had do does did will would can could s t "
    "there then than so not no yes s ll ve re d m"
)
_EMPTY: Final = frozenset(_WITHOUT_MEANING.split())


class Wording:
    """Compares answers with texts. One stemmer is kept, because making one takes longer than a comparison."""

    def __init__(self) -> None:
        self._stemmer = new_stemmer("english")

    def words(self, text: str) -> frozenset[str]:
        """Return the stems of a text's words that have a meaning of their own."""
        plain = unicodedata.normalize("NFKD", _ISO_DATE.sub(_spelled, text)).casefold()
        plain = "".join(one for one in plain if not unicodedata.combining(one))
        found = (_plain_number(word) for word in _WORD.findall(plain))
        return frozenset(self._stemmer.stemWords([word for word in found if word not in _EMPTY]))

    def share(self, answer: frozenset[str], text: frozenset[str]) -> float:
        """Return the share of an answer's words that are in a text, from 0 to 1."""
        return len(answer & text) / len(answer)


def _plain_number(word: str) -> str:
    """Return a number as digits without zeros in front; another word as it is."""
    digits = _NUMBERS.get(word, word)
    return str(int(digits)) if digits.isascii() and digits.isdigit() else digits


def _spelled(found: re.Match[str]) -> str:
    """Return an ISO date with the date as people write it behind it."""
    year, month, day = (int(part) for part in found.groups())
    name = _MONTHS[month - 1] if 1 <= month <= len(_MONTHS) else ""
    return f"{found[0]} {day} {name} {year}"
