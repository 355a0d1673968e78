"""Check digits and letters of numbers that belong to a person. Pure.

Every function takes the bare characters, upper case, without separators, and says whether they can be such a number.
What is tried first is the cheapest: most numbers in a text are none of these.
"""

from datetime import date
from hashlib import sha256

_IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BR": 29, "BY": 28,
    "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18,
    "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22,
    "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20,
    "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MR": 27, "MT": 31, "MU": 30, "NL": 18,
    "NO": 15, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "SA": 24, "SC": 31, "SE": 24,
    "SI": 19, "SK": 24, "SM": 27, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24,
    "XK": 20,
}  # fmt: skip
_VERHOEFF_TURN = (
    "0123456789", "1234067895", "2340178956", "3401289567", "4012395678",
    "5987604321", "6598710432", "7659821043", "8765932104", "9876543210",
)  # fmt: skip
_VERHOEFF_SHIFT = (
    "0123456789", "1576283094", "5803796142", "8916043527", "9453126870", "4286573901", "2793806415", "7046913258",
)  # fmt: skip
_ODD_VALUES = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def _weighted(digits: str, weights: tuple[int, ...]) -> int:
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=False))


def _is_day(year: int, month: int, day: int) -> bool:
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True


def luhn(digits: str) -> bool:
    """The check of cards, Canadian and Swedish numbers."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 if value > 9 else value  # noqa: PLR2004 - cross sum of two digits
    return total % 10 == 0 and len(set(digits)) > 1


def card(digits: str) -> bool:
    """A payment card: the issuer's beginning, its length, Luhn."""
    length, two, four = len(digits), int(digits[:2]), int(digits[:4])
    known = (
        (digits[0] == "4" and length in {13, 16, 19})
        or (length == 16 and (51 <= two <= 55 or 2221 <= four <= 2720))  # noqa: PLR2004 - ranges of issuers
        or (length == 15 and two in {34, 37})  # noqa: PLR2004
        or (length == 14 and two in {30, 36, 38, 39})  # noqa: PLR2004
        or (16 <= length <= 19 and (two in {35, 60, 62, 64, 65, 81, 82} or four in {5018, 5020, 5038, 6304, 6759}))  # noqa: PLR2004
    )
    return known and luhn(digits)


def iban(text: str) -> int:
    """How many characters of the beginning of a text are an IBAN; 0 for none."""
    length = _IBAN_LENGTHS.get(text[:2], 0)
    if not length or len(text) < length or not text[2:length].isalnum():
        return 0
    turned = text[4:length] + text[:4]
    return length if int("".join(str(int(character, 36)) for character in turned)) % 97 == 1 else 0


def us_ssn(digits: str) -> bool:
    """A US social security number or taxpayer number (ITIN)."""
    area, group, serial = int(digits[:3]), int(digits[3:5]), int(digits[5:])
    if area >= 900:  # noqa: PLR2004 - ITIN
        return 50 <= group <= 99 and group not in {89, 93}  # noqa: PLR2004
    return area not in {0, 666} and group > 0 and serial > 0


def uk_nhs(digits: str) -> bool:
    """A British NHS number: ten digits, modulo 11."""
    check = 11 - _weighted(digits, tuple(range(10, 1, -1))) % 11
    return check != 10 and check % 11 == int(digits[9]) and len(set(digits)) > 1  # noqa: PLR2004


def de_tax(digits: str) -> bool:
    """A German tax number: ISO 7064 modulo 11, 10, and one digit twice or three times in the first ten."""
    counts = sorted(digits[:10].count(digit) for digit in set(digits[:10]))
    if digits[0] == "0" or counts[-1] not in {2, 3} or counts[:-1].count(1) != len(counts) - 1:
        return False
    product = 10
    for digit in digits[:10]:
        product = ((int(digit) + product) % 10 or 10) * 2 % 11
    return (11 - product) % 10 == int(digits[10])


def de_pension(text: str) -> bool:
    """A German pension insurance number: area, birth date, letter, serial, check digit."""
    digits = text[:8] + f"{ord(text[8]) - 64:02}" + text[9:11]
    weights = (2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1)
    total = sum(sum(divmod(int(digit) * weight, 10)) for digit, weight in zip(digits, weights, strict=True))
    return total % 10 == int(text[11])


def fr_nir(text: str) -> bool:
    """A French social security number with its key; Corsica has letters."""
    body = text[:13].replace("2A", "19", 1).replace("2B", "18", 1)
    return body.isdigit() and text[0] in "123478" and 97 - int(body) % 97 == int(text[13:15])


def es_dni(text: str) -> bool:
    """A Spanish DNI or NIE: the letter follows from the number."""
    number = str("XYZ".find(text[0])) + text[1:8] if text[0] in "XYZ" else text[:8]
    return "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23] == text[8]


def it_fiscal(text: str) -> bool:
    """An Italian codice fiscale: the last letter follows from the rest."""
    total = 0
    for place, character in enumerate(text[:15]):
        value = int(character) if character.isdigit() else ord(character) - 65
        total += value if place % 2 else _ODD_VALUES[value]
    return chr(65 + total % 26) == text[15]


def nl_bsn(digits: str) -> bool:
    """A Dutch citizen number: the test of eleven."""
    return int(digits) > 0 and _weighted(digits, (9, 8, 7, 6, 5, 4, 3, 2, -1)) % 11 == 0


def pl_pesel(digits: str) -> bool:
    """A Polish PESEL: birth date with the century in the month, check digit."""
    century = (1900, 2000, 2100, 2200, 1800)[int(digits[2:4]) // 20]
    if not _is_day(century + int(digits[:2]), int(digits[2:4]) % 20, int(digits[4:6])):
        return False
    return (10 - _weighted(digits, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3)) % 10) % 10 == int(digits[10])


def _br_check(digits: str, weights: tuple[int, ...]) -> bool:
    rest = _weighted(digits, weights) % 11
    return (0 if rest < 2 else 11 - rest) == int(digits[len(weights)])  # noqa: PLR2004


def br_cpf(digits: str) -> bool:
    """A Brazilian CPF: two check digits."""
    several = len(set(digits)) > 1
    return several and _br_check(digits, tuple(range(10, 1, -1))) and _br_check(digits, tuple(range(11, 1, -1)))


def br_cnpj(digits: str) -> bool:
    """A Brazilian CNPJ: two check digits."""
    first = (5, 4, 3, 2, 9, 8, 7, 6, 5, 4, 3, 2)
    return len(set(digits)) > 1 and _br_check(digits, first) and _br_check(digits, (6, *first))


def in_aadhaar(digits: str) -> bool:
    """An Indian Aadhaar number: Verhoeff."""
    if digits[0] in "01":
        return False
    turn = 0
    for place, digit in enumerate(reversed(digits)):
        turn = int(_VERHOEFF_TURN[turn][int(_VERHOEFF_SHIFT[place % 8][int(digit)])])
    return turn == 0


def au_tfn(digits: str) -> bool:
    """An Australian tax file number."""
    return _weighted(digits, (1, 4, 3, 7, 5, 8, 6, 9, 10)) % 11 == 0 and int(digits) > 0


def au_medicare(digits: str) -> bool:
    """An Australian Medicare number."""
    return digits[0] in "23456" and _weighted(digits, (1, 3, 7, 9, 1, 3, 7, 9)) % 10 == int(digits[8])


def cn_resident(text: str) -> bool:
    """A Chinese resident identity number: birth date, check character."""
    if not _is_day(int(text[6:10]), int(text[10:12]), int(text[12:14])) or text[6:8] not in {"18", "19", "20"}:
        return False
    weights = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
    return "10X98765432"[_weighted(text, weights) % 11] == text[17]


def jp_number(digits: str) -> bool:
    """A Japanese My Number."""
    rest = _weighted(digits, (6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2)) % 11
    return (0 if rest <= 1 else 11 - rest) == int(digits[11]) and len(set(digits)) > 1


def ch_ahv(digits: str) -> bool:
    """A Swiss AHV number: 756 and the check digit of article numbers."""
    return digits.startswith("756") and _weighted(digits, (1, 3) * 6 + (1,)) % 10 == 0


def se_person(digits: str) -> bool:
    """A Swedish personal number of ten digits: a day (+ 60 for coordination numbers), Luhn."""
    day = int(digits[4:6]) % 60
    return _is_day(2000, int(digits[2:4]), day) and luhn(digits)


def base58(text: str) -> bool:
    """An address of Bitcoin and its kin: a version, 20 bytes and four bytes of checksum in base 58."""
    value = 0
    for character in text:
        place = _BASE58.find(character)
        if place < 0:
            return False
        value = value * 58 + place
    if value.bit_length() > 200:  # noqa: PLR2004 - 25 bytes
        return False
    data = value.to_bytes(25, "big")
    return sha256(sha256(data[:21]).digest()).digest()[:4] == data[21:]
