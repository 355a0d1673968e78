"""Checks and replaces the personal data that a model found in texts. Pure.

A piece is used only if it is in a text as whole words and looks like its kind: an e-mail address has an @, a telephone
number has digits. Otherwise it is ignored: a weak model would damage every turn by it. Words end at the bounds of
Unicode, and beside characters of scripts without spaces, which have no bounds among themselves.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Final

from app.index.analyser.languages import CODES, DEFAULT, read_file, word_set
from app.index.analyser.words import MARKED, SPACELESS, is_spaceless, normalise, words
from app.memory.pii.pii_filter import PLACEHOLDER, is_placeholder
from app.memory.schemas import PersonalKind

_SHORTEST: Final = 2
_SHORTEST_SECRET: Final = 4
_LONGEST: Final = 200
_MAX_FINDINGS: Final = 200
_IN_WORD = rf"[\w{MARKED}\u0300-\u036f]"
_SPACELESS_CHARACTER = re.compile(rf"[{SPACELESS}]")
_IN_WORD_CHARACTER = re.compile(_IN_WORD)
_SPOKEN_DIGIT_WORDS = """
zero oh nought one two three four five six seven eight nine ten double triple hundred null eins zwei drei vier fünf
sechs sieben acht neun cero uno dos tres cuatro cinco seis siete ocho nueve zéro un deux trois quatre cinq sept huit
neuf
"""
_SPOKEN_DIGITS = frozenset(_SPOKEN_DIGIT_WORDS.split())
# zero, of which the files of the languages have no word
_SPOKEN_ZEROS = frozenset(["ноль", "нуль", "nul", "noll", "s\u0131f\u0131r", "صفر", "शून्य"])
_FIRST_SPOKEN, _LAST_SPOKEN = 2, 9
"""The digits whose words are read from the files: in many languages the word for one is an article."""
_SPOKEN_CHARACTERS = frozenset("零〇一二三四五六七八九")
_MONTH_CHARACTER = "月"
_LEAST_DIGITS = {
    PersonalKind.PHONE: 6,
    PersonalKind.CARD: 12,
    PersonalKind.IBAN: 2,
    PersonalKind.BANK_ACCOUNT: 5,
    PersonalKind.NATIONAL_ID: 4,
    PersonalKind.TAX_ID: 4,
    PersonalKind.HEALTH_ID: 4,
    PersonalKind.PASSPORT: 4,
    PersonalKind.DRIVING_LICENCE: 4,
    PersonalKind.COORDINATES: 4,
    PersonalKind.PLATE: 1,
    PersonalKind.WALLET: 1,
    PersonalKind.IP_ADDRESS: 1,
    PersonalKind.MAC_ADDRESS: 1,
}
_LEAST_CHARACTERS = {
    PersonalKind.IBAN: 15,
    PersonalKind.WALLET: 20,
    PersonalKind.MAC_ADDRESS: 12,
    PersonalKind.IP_ADDRESS: 4,
    PersonalKind.PLATE: 4,
    PersonalKind.SECRET: _SHORTEST_SECRET,
}
_AT = "at|arroba|arobase|chiocciola|apenstaartje|małpa|собака"
_DOT = "dot|punto|ponto|point|punkt|punt|kropka|точка|nokta"
_EMAIL = re.compile(rf"[^\s@]\s?@\s?[^\s@]|\b(?:{_AT})\b.{{1,80}}(?:\b(?:{_DOT})\b|\w\.\w)")
_SENTENCE_SIGNS = re.compile(r"[!?\u3002\uff01\uff1f]")
_SEPARATORS = re.compile(r"[.:]|\bdot\b")
_MAC_ADDRESS = re.compile(r"[0-9a-f]{2}(?:[:\-. ]?[0-9a-f]{2}){5,7}")
_MIN_SEPARATORS = 2
_DIGITS_OF_A_DATE = 4


class IgnoredFinding(StrEnum):
    """Why personal data that a model names is not replaced."""

    FORM = "form"
    NOT_OF_KIND = "not_of_kind"
    NOT_IN_TEXT = "not_in_text"
    TOO_MANY = "too_many"


def usable_findings(
    findings: Sequence[tuple[str, PersonalKind]], *, texts: Sequence[str]
) -> tuple[list[tuple[str, PersonalKind]], Counter[str]]:
    """Return the pieces that can be replaced in the texts, longest first, and why others are ignored."""
    ignored: Counter[str] = Counter()
    if len(findings) > _MAX_FINDINGS:
        ignored[IgnoredFinding.TOO_MANY.value] = len(findings) - _MAX_FINDINGS
    usable: dict[str, PersonalKind] = {}
    for text, kind in findings[:_MAX_FINDINGS]:
        piece = " ".join(text.split())
        if not _SHORTEST <= len(piece) <= _LONGEST or is_placeholder(piece):
            ignored[IgnoredFinding.FORM.value] += 1
        elif not looks_like(piece, kind):
            ignored[IgnoredFinding.NOT_OF_KIND.value] += 1
        elif not _is_in(piece, texts):
            ignored[IgnoredFinding.NOT_IN_TEXT.value] += 1
        else:
            usable[piece] = kind
    return sorted(usable.items(), key=lambda finding: -len(finding[0])), ignored


def replace_personal(text: str, personal: Sequence[tuple[str, PersonalKind]]) -> tuple[str, list[PersonalKind]]:
    """Replace the personal data that a model found by placeholders. Return the text and the kind of each replacement.

    Only whole words are replaced. Case, spaces and line breaks may differ between the text and the pieces.
    """
    if not personal:
        return text, []
    longest_first = sorted(personal, key=lambda finding: -len(finding[0]))
    groups = [f"(?P<piece{number}>{_whole_words(piece)})" for number, (piece, _) in enumerate(longest_first)]
    replaced: list[PersonalKind] = []

    def replacement(match: re.Match[str]) -> str:
        if match.lastgroup is None:  # a placeholder
            return match[0]
        kind = longest_first[int(match.lastgroup.removeprefix("piece"))][1]
        replaced.append(kind)
        return f"[{kind.value}]"

    expression = re.compile("|".join([PLACEHOLDER.pattern, *groups]), re.IGNORECASE)
    return expression.sub(replacement, text), replaced


def looks_like(piece: str, kind: PersonalKind) -> bool:
    """Return whether a piece of text can be personal data of this kind."""
    plain = unicodedata.normalize("NFKC", piece).lower()
    digits = sum(character.isdigit() or character in _SPOKEN_CHARACTERS for character in plain)
    digits += sum(word in _digit_words() for word in words(plain))
    characters = sum(character.isalnum() for character in plain)
    if digits < _LEAST_DIGITS.get(kind, 0) or characters < _LEAST_CHARACTERS.get(kind, 0):
        return False
    form = _FORMS.get(kind)
    return form is None or form(plain, digits)


def _is_email(plain: str, _: int) -> bool:
    return _EMAIL.search(plain) is not None


def _is_ip_address(plain: str, _: int) -> bool:
    return len(_SEPARATORS.findall(plain)) >= _MIN_SEPARATORS


def _is_address(plain: str, digits: int) -> bool:
    is_run = is_spaceless(plain) and len(plain) >= _SHORTEST_SECRET
    has_letters = any(map(str.isalpha, plain))
    if not has_letters or _SENTENCE_SIGNS.search(plain) is not None:
        return False
    return _is_distinct(plain, digits) and (digits > 0 or len(plain.split()) > 1 or is_run)


def _is_birth_date(plain: str, digits: int) -> bool:
    return digits >= _DIGITS_OF_A_DATE or _MONTH_CHARACTER in plain or not _month_names().isdisjoint(words(plain))


def _is_distinct(plain: str, _: int) -> bool:
    """Return whether a piece is more than common words: these are in many turns that have no personal data."""
    piece_words = words(plain)
    spoken = sum(word in _SPOKEN_DIGITS for word in piece_words)
    return spoken > 1 or any(word not in _common_words() for word in piece_words)


_FORMS: Mapping[PersonalKind, Callable[[str, int], bool]] = {
    PersonalKind.EMAIL: _is_email,
    PersonalKind.IBAN: lambda plain, _: plain[:2].isalpha(),
    PersonalKind.IP_ADDRESS: _is_ip_address,
    PersonalKind.MAC_ADDRESS: lambda plain, _: _MAC_ADDRESS.search(plain) is not None,
    PersonalKind.ADDRESS: _is_address,
    PersonalKind.BIRTH_DATE: _is_birth_date,
    PersonalKind.SECRET: _is_distinct,
}
"""The form of a kind, by the piece in lower case and the number of its digits. Kinds without one have only counts."""


@cache
def _digit_words() -> frozenset[str]:
    """Return the words of digits in all languages."""
    files = [read_file(code).dates for code in CODES]
    numbers = [item for dates in files if dates is not None for item in dates.numbers.items()]
    spoken = {word.lower() for word, value in numbers if _FIRST_SPOKEN <= value <= _LAST_SPOKEN}
    return frozenset(map(normalise, spoken | _SPOKEN_ZEROS | _SPOKEN_DIGITS))


@cache
def _common_words() -> frozenset[str]:
    english = read_file(DEFAULT)
    texts = [english.common]
    for code in CODES:
        file = read_file(code)
        texts += [file.stop_words, file.frequent, file.times]
    return word_set(" ".join(texts))


@cache
def _month_names() -> frozenset[str]:
    names = "january february march april may june july august september october november december"
    files = [read_file(code).dates for code in CODES]
    return word_set(" ".join([names, *(month for dates in files if dates is not None for month in dates.months)]))


def _is_in(piece: str, texts: Sequence[str]) -> bool:
    expression = re.compile(_whole_words(piece), re.IGNORECASE)
    return any(expression.search(text) for text in texts)


def _whole_words(piece: str) -> str:
    inside = r"\s+".join(map(re.escape, piece.split()))
    before = rf"(?:(?<!{_IN_WORD})|(?<=[{SPACELESS}]))" if _has_bound(piece[0]) else ""
    after = rf"(?!(?![{SPACELESS}]){_IN_WORD})" if _has_bound(piece[-1]) else ""
    return f"{before}{inside}{after}"


def _has_bound(character: str) -> bool:
    """Return whether a word that begins or ends with this character has a bound there."""
    return _IN_WORD_CHARACTER.match(character) is not None and _SPACELESS_CHARACTER.match(character) is None
