"""Words of a text: normalisation and splitting. Pure."""

import re
import unicodedata
from typing import Literal

# diacritics, after decomposition: of Latin, Greek and Cyrillic; of Arabic, with Tatweel; the dot of Devanagari
_MARKS = re.compile(r"[\u0300-\u036f\u064b-\u0655\u0670\u0640\u093c]+")
_APOSTROPHES = re.compile(r"(?<=\w)['\u2019\u02bc](?=\w)")
# blocks whose vowel signs are parts of words, but not word characters for `re`
MARKED = r"\u0483-\u0489\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u0963\u0966-\u0dff"
SPACELESS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    r"\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORDS = re.compile(rf"[{SPACELESS}]+|(?:(?![{SPACELESS}])(?:[^\W_]|[{MARKED}]))+")
_MARKED_WORDS = re.compile(rf"[{SPACELESS}]+|(?:(?![{SPACELESS}])(?:[^\W_]|[{MARKED}\u0300-\u036f]))+")
_INVISIBLE = re.compile(r"[\u00ad\u200c\u200d\u2060\ufeff]")
_WITHOUT_WIDTH = re.compile(r"[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_OTHER_NUMBERS = re.compile(r"[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2089\u2150-\u215f\u2460-\u249b]")
_SPACELESS_START = re.compile(rf"[{SPACELESS}]")
# all scripts but Latin
_OTHER_SCRIPT = re.compile(
    r"[\u0370-\u1dff\u1f00-\u1fff\u2c00-\ud7ff\uf900-\ufdff\ufe70-\ufefe\uff66-\uff9d\U00020000-\U0003ffff]"
)
# the words of text that is ASCII and in lower case, in a third of the time
_ASCII_WORDS = re.compile(r"[a-z0-9]+")
_DIGIT = re.compile(r"\d")
# the signs of sentences around a word, of several scripts
_OPENING = "\"'`([{\u00ab\u201c\u201e\u2018\u201a\u2039\u00a1\u00bf\u300c\u300e\u3010\u3008\u300a"
_CLOSING = (
    "\"'`)]}\u00bb\u201d\u201c\u203a\u300d\u300f\u3011\u3009\u300b"
    ".,;:!?\u2026\u3002\u3001\u061f\u060c\u061b\u0964\u0589"
)
_DASHES = frozenset("-\u2013\u2014\u2022")
_SENTENCE_ENDS = re.compile(r"[.!?\u0964\u2026\u3002\uff01\uff1f\u061f]")
_QUESTION_MARKS = "?\uff1f\u061f"


def normalise(text: str) -> str:
    """Fold compatibility forms and case, and remove diacritics."""
    if text.isascii():
        return text.lower()
    return strip_marks(unicodedata.normalize("NFKC", text).casefold())


def strip_marks(text: str) -> str:
    """Remove diacritics of Latin, Greek and Cyrillic, and those of Arabic and Hindi that are often left out."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", _MARKS.sub("", unicodedata.normalize("NFD", text)))


def fold(text: str) -> str:
    """Return the words of a text without case, and without the signs around them that sentences have.

    Texts that are equal by this say the same. All other signs remain: 1.5 is not 15, and `a_b.txt` is not `ab.txt`.
    """
    folded = (text.lower() if text.isascii() else _fold_signs(text)).replace("'", "")
    tokens = [word if word.isalnum() else word.lstrip(_OPENING).rstrip(_CLOSING) for word in folded.split()]
    if not _DASHES.isdisjoint(tokens) and _DIGIT.search(folded) is None:
        tokens = [word for word in tokens if word not in _DASHES]
    return " ".join(filter(None, tokens))


def _fold_signs(text: str) -> str:
    # compatibility makes "10²" to "102"
    form: Literal["NFC", "NFKC"] = "NFC" if _OTHER_NUMBERS.search(text) else "NFKC"
    folded = _WITHOUT_WIDTH.sub("", unicodedata.normalize(form, text).casefold()).replace("\u2019", "'")
    return "".join([sign for sign in folded if sign.isspace() or unicodedata.category(sign) != "Cc"])


def has_other_script(text: str) -> bool:
    """Return whether a text has characters of another script than Latin."""
    return not text.isascii() and _OTHER_SCRIPT.search(text) is not None


def words(text: str) -> list[str]:
    """Return the normalised words of a text, with stop words and without stemming."""
    text = normalise(text)
    if not text.isascii():
        return _WORDS.findall(_APOSTROPHES.sub("", text))
    return _ASCII_WORDS.findall(_APOSTROPHES.sub("", text) if "'" in text else text)


def marked_words(text: str) -> list[str]:
    """Return the words of a text like `words`, with their diacritics, which stemmers need."""
    if text.isascii():
        return words(text)
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).casefold())
    folded = folded.replace("\u0153", "oe")
    return _MARKED_WORDS.findall(_APOSTROPHES.sub("", folded))


def is_spaceless(word: str) -> bool:
    """Return whether a word is a run of characters of a script without spaces."""
    return _SPACELESS_START.match(word) is not None


def pairs(run: str) -> list[str]:
    """Return the pairs of neighbouring characters of a run."""
    return [run[at : at + 2] for at in range(len(run) - 1)]


def ends_in_question(text: str) -> bool:
    """Return whether the last complete sentence is a question."""
    ends = _SENTENCE_ENDS.findall(text)
    return bool(ends) and ends[-1] in _QUESTION_MARKS
