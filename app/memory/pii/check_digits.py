"""Check numbers of persons that `stdnum` does not check, or checks as a whole text only. Pure.

Every function takes upper-case letters and digits without separators.
"""

import re
from hashlib import sha256

from stdnum import iban, luhn, numdb
from stdnum.bitcoin import b58decode
from stdnum.cn import ric
from stdnum.fr import nir
from stdnum.us import ssn

_STRUCTURE_LENGTHS = re.compile(r"\d+")
# beginnings and lengths: Visa, Mastercard, American Express, Diners, others (JCB, Discover, UnionPay, RuPay), Maestro
_CARD = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}|"
    r"3[0689]\d{12}|(?:35|6[0245]|8[12])\d{14,17}|(?:5018|5020|5038|6304|6759)\d{12,15}"
)
# `stdnum` does not know the groups 50 to 65
_ITIN = re.compile(r"9\d\d(?:[5-7]\d|8[0-8]|9[0-24-9])\d{4}")
_CHINESE_DATE = re.compile(r"\d{6}(?:18|19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])")
# the day of a coordination number is increased by 60
_SWEDISH_DATE = re.compile(r"\d\d(?:0[1-9]|1[0-2])(?:[06][1-9]|[1278]\d|[39][01])")


def card(digits: str) -> bool:
    """Check a payment card: issuer, length, Luhn."""
    return _CARD.fullmatch(digits) is not None and luhn.is_valid(digits)


def iban_length(text: str) -> int:
    """Return the length of the IBAN that a text begins with; 0 for none."""
    structure = numdb.get("iban").info(text)[0][1].get("bban", "")
    length = 4 + sum(map(int, _STRUCTURE_LENGTHS.findall(structure)))
    return length if structure and iban.is_valid(text[:length], check_country=False) else 0


def us_ssn(digits: str) -> bool:
    """Check a US social security number or taxpayer number (ITIN)."""
    return ssn.is_valid(digits) or _ITIN.fullmatch(digits) is not None


def fr_nir(digits: str) -> bool:
    """Check a French social security number with its key."""
    return digits[0] in "123478" and nir.is_valid(digits)


def cn_resident(text: str) -> bool:
    """Check a Chinese resident identity number, without its place: to read the list of places takes 50 ms."""
    return _CHINESE_DATE.match(text) is not None and ric.calc_check_digit(text) == text[17]


def de_pension(text: str) -> bool:
    """Check a German pension insurance number: area, birth date, letter, serial, check digit."""
    digits = text[:8] + f"{ord(text[8]) - 64:02}" + text[9:11]
    weights = (2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1)
    total = sum(sum(divmod(int(digit) * weight, 10)) for digit, weight in zip(digits, weights, strict=True))
    return total % 10 == int(text[11])


def au_medicare(digits: str) -> bool:
    """Check an Australian Medicare number; a digit for the issue and one for the person may follow."""
    total = sum(int(digit) * weight for digit, weight in zip(digits, (1, 3, 7, 9, 1, 3, 7, 9), strict=False))
    return digits[0] in "23456" and total % 10 == int(digits[8])


def se_person(digits: str) -> bool:
    """Check a Swedish personal or coordination number, with or without the century."""
    short = digits[-10:]
    dated = (len(digits) == 10 or digits[:2] in {"19", "20"}) and _SWEDISH_DATE.match(short)  # noqa: PLR2004
    return bool(dated) and luhn.is_valid(short)


def base58(text: str) -> bool:
    """Check an address of Bitcoin or a similar currency: a version, 20 bytes, four bytes of checksum."""
    data = b58decode(text)
    return len(data) == 25 and sha256(sha256(data[:21]).digest()).digest()[:4] == data[21:]  # noqa: PLR2004
