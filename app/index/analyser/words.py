"""Words of a text: normalisation and splitting. Pure."""

import re
import unicodedata

_MARKS = re.compile(r"[\u0300-\u036f]+")
_APOSTROPHES = re.compile(r"(?<=\w)['\u2019\u02bc](?=\w)")
# blocks whose vowel signs are parts of words, but not word characters for `re`
_MARKED = r"\u0483-\u0489\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u0963\u0966-\u0dff"
SPACELESS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    r"\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORDS = re.compile(rf"[{SPACELESS}]+|(?:(?![{SPACELESS}])(?:[^\W_]|[{_MARKED}]))+")
# the words of text that is ASCII and in lower case, in a third of the time
_ASCII_WORDS = re.compile(r"[a-z0-9]+")
_SENTENCE_ENDS = re.compile(r"[.!?\u2026\u3002\uff01\uff1f\u061f]")
_QUESTION_MARKS = "?\uff1f\u061f"


def normalise(text: str) -> str:
    """Fold compatibility forms and case, and remove diacritics of Latin, Greek and Cyrillic."""
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFC", _MARKS.sub("", unicodedata.normalize("NFD", folded)))


def words(text: str) -> list[str]:
    """Return the normalised words of a text, with stop words and without stemming."""
    text = normalise(text)
    if not text.isascii():
        return _WORDS.findall(_APOSTROPHES.sub("", text))
    return _ASCII_WORDS.findall(_APOSTROPHES.sub("", text) if "'" in text else text)


def ends_in_question(text: str) -> bool:
    """Return whether the last complete sentence is a question."""
    ends = _SENTENCE_ENDS.findall(text)
    return bool(ends) and ends[-1] in _QUESTION_MARKS
