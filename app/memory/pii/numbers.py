"""Finds numbers of persons in a normalised text: by shape, check digits, and the word before. Pure.

A run of digits is divided into windows of its groups. A window is classified by its number of digits, their grouping,
and the nearest cue word before it: a number after "phone" is personal, one after "order" is not. Dates, decimals and
amounts are skipped.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import phonenumbers
from stdnum import luhn
from stdnum.br import cnpj, cpf
from stdnum.ch import ssn as ahv
from stdnum.de import idnr
from stdnum.gb import nhs
from stdnum.in_ import aadhaar
from stdnum.jp import in_ as my_number
from stdnum.nl import bsn
from stdnum.pl import pesel

from app.memory.pii import check_digits
from app.memory.schemas import PersonalKind

Found: TypeAlias = tuple[int, int, PersonalKind]
Cue: TypeAlias = PersonalKind | Literal["other"] | None

_MAX_GROUPS = 8
# the digits of numbers of persons
_COUNTS = range(6, 21)
_MAX_CUE_DISTANCE = 56
_RUN = re.compile(r"(?<!\d)(?:\+ ?)?\(?\d(?:[ .\-/()_]{0,3}\d){4,44}")
_GROUP = re.compile(r"\d+")
_MIXED = re.compile(
    r"(?<![A-Za-z0-9-])(?=[A-Za-z0-9-]{0,20}\d)(?=[0-9-]{0,20}[A-Za-z])[A-Za-z0-9][A-Za-z0-9-]{4,22}(?![\w])"
)
_WORD = re.compile(r"[^\W\d_]+(?:'[a-z]{1,2})?")
_DATE = re.compile(r"(?<!\d)(?:\d{1,2}([./-])\d{1,2}\1(?:19|20)\d\d|(?:19|20)\d\d([./-])\d{1,2}\2\d{1,2})(?!\d)")
_DECIMAL = re.compile(r"\d{1,20}\.\d{1,40}")
_AMOUNT_BEFORE = re.compile(r"(?:[$\u20ac\u00a3\u00a5\u20b9#]|\b(?:usd|eur|gbp|inr|jpy|chf))\s?$", re.IGNORECASE)
_AMOUNT_AFTER = re.compile(
    r"\s?(?:[%$\u20ac\u00a3\u00a5\u20b9]|(?:usd|eur|gbp|inr|jpy|dollars?|euros?|pounds?|people|bytes|rows|records|"
    r"times|"
    r"units|tokens|points|steps|miles|years|views|users|inhabitants|seconds|ms|km|kb|mb|gb|lines)\b)",
    re.IGNORECASE,
)
_PHONE, _BANK, _NATIONAL, _TAX = (
    PersonalKind.PHONE, PersonalKind.BANK_ACCOUNT, PersonalKind.NATIONAL_ID, PersonalKind.TAX_ID,
)  # fmt: skip
_HEALTH, _CARD = PersonalKind.HEALTH_ID, PersonalKind.CARD

_CUE_WORDS: Mapping[PersonalKind | Literal["other"], str] = {
    _PHONE: "phone telephone tel cell cellphone mobile mob fax whatsapp sms call dial ring text reach telegram signal "
    "telefon telefonnummer telefonnr handy handynummer mobil mobilnummer mobilnr rufnummer téléphone portable telefono "
    "cellulare teléfono móvil movil celular telefone telemóvel telefoon telefoonnummer mobiel komórka puhelin telefonu "
    "телефон тел мобильный моб номер هاتف جوال फोन मोबाइल τηλέφωνο טלפון my_number his_number her_number their_number "
    "our_number contact_number numero_di_telefono hotline landline pager viber wechat ph phones",
    _BANK: "account acct konto kontonummer kontonr routing aba sort_code bsb clabe cuenta compte rekeningnummer "
    "rekening conto conta iban bankkonto giro счет счёт",
    _NATIONAL: "ssn social_security nino national_insurance ni_number national_id dni nie nir insee bsn "
    "burgerservicenummer sofinummer sécurité_sociale securité_sociale pesel aadhaar aadhar uidai sin social_insurance "
    "ahv avs personnummer samordningsnummer personalausweis ausweis ausweisnummer personalausweisnummer perso "
    "sozialversicherungsnummer rentenversicherungsnummer svnr identity_card id_card id_number identity_number curp rut "
    "cuil cedula cédula egn cnp fødselsnummer fodselsnummer cpr hetu nric mykad jmbg oib tckn kimlik resident_id "
    "residence_permit снилс инн",
    _TAX: "itin tin tfn tax_file tax_id tax_number steuer steuernummer steuer_id steuerid idnr "
    "steueridentifikationsnummer steuernr pan cpf cnpj nif codice_fiscale utr pps ppsn tax_identification ein cuit",
    _HEALTH: "nhs medicare medicaid mrn health_card health_insurance patient_number krankenversicherung "
    "versichertennummer versicherungsnummer krankenkasse insurance_number",
    PersonalKind.PASSPORT: "passport reisepass reisepassnummer passnummer passeport pasaporte passaporto passaporte "
    "paspoort paszport паспорт pasaport passnr passports",
    PersonalKind.DRIVING_LICENCE: "drivers_license driver's_license driver_license drivers_licence driver's_licence "
    "driver_licence driving_licence driving_license führerschein führerscheinnummer conduire conducir rijbewijs "
    "patente "
    "permis dl license_number licence_number license_no licence_no",
    _CARD: "card visa mastercard amex credit_card debit_card kreditkarte kartennummer carte tarjeta carta cartão",
    "other": "order orders invoice tracking ticket case ref reference flight isbn issn doi sku part serial version ver "
    "build issue pr pull commit page pages iso rfc model product transaction batch lot item article ean upc asin "
    "parcel "
    "shipment package port error row rows line lines timestamp epoch unix id user_id population costs cost price total "
    "bestellung bestellnummer rechnung rechnungsnummer commande facture pedido factura fattura ordine zamówienie "
    "bytes confirmation booking reservation job request chapter section figure table room gate seat train bus hash sha "
    "seed offset size length count value sum pi score year date quote patent standard barcode gtin sim episode",
}
_CUES: Mapping[str, Cue] = {word: kind for kind, words in _CUE_WORDS.items() for word in words.split()}
# cues in scripts without spaces between words
_CUE_PARTS: tuple[tuple[str, Cue], ...] = (
    ("电话", _PHONE), ("手机", _PHONE), ("電話", _PHONE), ("携帯", _PHONE),
    ("전화번호", _PHONE), ("휴대폰", _PHONE), ("身份证", _NATIONAL), ("マイナンバー", _NATIONAL),
    ("护照", PersonalKind.PASSPORT), ("账号", _BANK),
    ("パスポート", PersonalKind.PASSPORT), ("口座番号", _BANK), ("订单", "other"), ("注文", "other"),
)  # fmt: skip
_NEUTRAL_WORDS = (
    "number numbers no nr num nummer numero número numéro is was are the my his her their our your at on to me us it "
    "s code de du di der die das lautet ist est es è é card and or номер мой я"
)
_NEUTRAL = frozenset(_NEUTRAL_WORDS.split())
# limits of other words between a cue and its number
_MAX_WORDS_TO_CUE = 5
_MAX_WORDS_TO_ACCOUNT_CUE = 2
# phone numbers by the grouping of their digits: the first digits, and the countries
_PHONE_SHAPES: Mapping[Sequence[int], tuple[re.Pattern[str], Sequence[str]]] = {
    (3, 3, 4): (re.compile(r"3|[2456789]\d\d[2-9]"), ("US", "IT")),
    (1, 3, 3, 4): (re.compile(r"1"), ("US",)),
    (1, 3, 3, 2, 2): (re.compile(r"[78]"), ("RU",)),
    (11,): (re.compile(r"1[3-9]"), ("CN",)),
    (3, 4, 4): (re.compile(r"1[3-9]"), ("CN",)),
    (5, 5): (re.compile(r"[6-9]"), ("IN",)),
    (3, 2, 2, 2): (re.compile(r"[6-9]"), ("ES",)),
    (2, 5, 4): (re.compile(r"\d\d9"), ("BR",)),
}
_DIGITS_WITH_CUE: Mapping[PersonalKind, tuple[int, int]] = {
    _PHONE: (7, 15), _CARD: (12, 19), _BANK: (6, 20), _NATIONAL: (8, 18), _TAX: (8, 15), _HEALTH: (8, 15),
    PersonalKind.PASSPORT: (6, 12), PersonalKind.DRIVING_LICENCE: (6, 16),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Check:
    """A check of one kind of number. A weak check also requires the usual grouping and separator."""

    kind: PersonalKind
    is_valid: Callable[[str], bool]
    shapes: Collection[Sequence[int]] | None = None
    separator: str = ""


# by the count of digits
_CHECKS: Mapping[int, Sequence[_Check]] = {
    9: (
        _Check(_NATIONAL, check_digits.us_ssn, ((3, 2, 4),)),
        _Check(_NATIONAL, luhn.is_valid, ((3, 3, 3),), "-"),
        _Check(_NATIONAL, bsn.is_valid, ((4, 2, 3),), "."),
    ),
    10: (
        _Check(_NATIONAL, check_digits.se_person, ((6, 4),), "-"),
        _Check(_HEALTH, nhs.is_valid, ((3, 3, 4),), " "),
        _Check(_HEALTH, check_digits.au_medicare, ((4, 5, 1),)),
    ),
    11: (
        _Check(_NATIONAL, pesel.is_valid),
        _Check(_TAX, idnr.is_valid),
        _Check(_TAX, cpf.is_valid),
        _Check(_HEALTH, check_digits.au_medicare, ((4, 5, 1, 1),)),
    ),
    12: (
        _Check(_NATIONAL, aadhaar.is_valid, ((4, 4, 4),)),
        _Check(_NATIONAL, my_number.is_valid, ((4, 4, 4),)),
        _Check(_NATIONAL, check_digits.se_person, ((12,), (8, 4))),
    ),
    13: (_Check(_NATIONAL, ahv.is_valid),),
    14: (_Check(_TAX, cnpj.is_valid, separator="/"),),
    15: (_Check(_NATIONAL, check_digits.fr_nir),),
    18: (_Check(_NATIONAL, check_digits.cn_resident),),
}


@dataclass(frozen=True, slots=True)
class _Window:
    text: str
    digits: str
    shape: Sequence[int]
    cue: Cue


def find_numbers(characters: str) -> Iterator[Found]:
    """Yield the numbers of persons in a normalised text."""
    for run in _RUN.finditer(characters):
        yield from _in_run(characters, run.start(), run.end())
    for match in _MIXED.finditer(characters):
        digits = sum(character.isdigit() for character in match[0])
        if digits >= 4 and _DATE.search(match[0]) is None:  # noqa: PLR2004 - fewer are names and models
            cue = nearest_cue(characters, match.start())
            if cue is not None and cue != "other" and cue not in {_PHONE, _CARD}:
                yield match.start(), match.end(), cue


def nearest_cue(characters: str, at: int) -> Cue:
    """Return the kind of the nearest cue word before an offset, or None."""
    # only cues of the same paragraph count
    begin = max(0, at - _MAX_CUE_DISTANCE, characters.rfind("\n\n", max(0, at - _MAX_CUE_DISTANCE), at))
    words = [word.casefold() for word in _WORD.findall(characters, begin, at)]
    others = 0
    for place in range(len(words) - 1, -1, -1):
        word = words[place]
        pair = f"{words[place - 1]}_{word}" if place else ""
        cue = _CUES.get(pair) or _CUES.get(word) or (None if word.isascii() else _by_part(word))
        if cue is not None:
            return None if others > _MAX_WORDS_TO_ACCOUNT_CUE and cue in {_BANK, _CARD} else cue
        others += word not in _NEUTRAL
        if others > _MAX_WORDS_TO_CUE:
            return None
    return None


def _by_part(word: str) -> Cue:
    return next((cue for part, cue in _CUE_PARTS if part in word[-8:]), None)


def _in_run(characters: str, start: int, end: int) -> Iterator[Found]:
    groups = [match.span() for match in _GROUP.finditer(characters, start, end)]
    if groups[0][0] > 0 and (_is_letter(characters[groups[0][0] - 1]) or characters[groups[0][0] - 1] in ",_"):
        del groups[0]
    if (
        groups
        and end < len(characters)
        and (_is_letter(characters[end]) or characters[end].isdigit() or _continues(characters, end))
    ):
        del groups[-1]
    if not groups or _AMOUNT_BEFORE.search(characters, max(0, start - 6), start):
        return
    cue = nearest_cue(characters, start)
    if len(groups) >= 7 and groups[-1][1] - groups[0][0] < 4 * len(groups) and _all_short(groups):  # noqa: PLR2004
        kind = _classify(_window(characters, groups, start, cue))
        if kind is not None and (cue is not None or kind is _CARD or characters[start] == "+"):
            yield _start_of(characters, groups[0][0], start), groups[-1][1], kind
        return
    at = 0
    while at < len(groups):
        stop, kind = _longest_match(characters, groups, at, start, cue)
        if kind is not None and not _AMOUNT_AFTER.match(characters, groups[stop - 1][1]):
            yield _start_of(characters, groups[at][0], start), groups[stop - 1][1], kind
        at = max(stop, at + 1)


def _longest_match(
    characters: str, groups: Sequence[tuple[int, int]], at: int, start: int, cue: Cue
) -> tuple[int, PersonalKind | None]:
    """Return the end and the kind of the longest personal window from a group on, or (0, None)."""
    if not (at == 0 or " " in characters[groups[at - 1][1] : groups[at][0]]):
        return 0, None
    for stop in range(min(len(groups), at + _MAX_GROUPS), at, -1):
        # a space must follow, so that the window is no part of a date or a version
        if stop < len(groups) and " " not in characters[groups[stop - 1][1] : groups[stop][0]]:
            continue
        if sum(end - begin for begin, end in groups[at:stop]) in _COUNTS:
            kind = _classify(_window(characters, groups[at:stop], start, cue))
            if kind is not None:
                return stop, kind
    return 0, None


def _is_letter(character: str) -> bool:
    """Return whether a character is a letter of a script with case. An adjacent number is part of that word."""
    return character.lower() != character.upper()


def _all_short(groups: Sequence[tuple[int, int]]) -> bool:
    """Return whether the digits are written one by one: fewer than three digits for two groups."""
    return sum(end - start for start, end in groups) * 2 < 3 * len(groups)


def _continues(characters: str, end: int) -> bool:
    return characters[end] == "," and characters[end + 1 : end + 2].isdigit()


def _start_of(characters: str, at: int, start: int) -> int:
    """Return the start of a number, including a sign or a bracket before its first digit."""
    while at > start and characters[at - 1] in "+( " and characters[start:at].strip("+( ") == "":
        at -= 1
    return at


def _window(characters: str, groups: Sequence[tuple[int, int]], start: int, cue: Cue) -> _Window:
    first = _start_of(characters, groups[0][0], start)
    text = characters[first : groups[-1][1]]
    digits = "".join(characters[begin:end] for begin, end in groups)
    return _Window(text, digits, tuple(end - begin for begin, end in groups), cue)


def _classify(window: _Window) -> PersonalKind | None:
    count = len(window.digits)
    if count not in _COUNTS or len(set(window.digits)) == 1:
        return None
    if window.text.startswith("+") and _is_international(window.digits):
        return _PHONE
    if _DATE.search(window.text) or (_DECIMAL.fullmatch(window.text) and window.cue not in {_PHONE, _TAX}):
        return None
    if window.cue == "other":
        return _by_checks(window) if len(window.shape) > 1 and window.shape != (count,) and count > 10 else None  # noqa: PLR2004
    if window.cue is not None:
        low, high = _DIGITS_WITH_CUE[window.cue]
        if low <= count <= high:
            return window.cue
    return _by_checks(window) or (_PHONE if _is_national_phone(window) else None)


def _by_checks(window: _Window) -> PersonalKind | None:
    """Return the kind by length and check digits, or None."""
    for check in _CHECKS.get(len(window.digits), ()):
        written = check.shapes is None or window.shape in check.shapes
        if written and check.separator in window.text and check.is_valid(window.digits):
            return check.kind
    return _CARD if check_digits.card(window.digits) else None


def _is_national_phone(window: _Window) -> bool:
    """Return whether a window has the form of a national phone number."""
    digits, shape = window.digits, window.shape
    count, first = len(digits), shape[0]
    if digits.startswith("00") and len(shape) > 1 and _is_international(digits[2:]):
        return True
    if window.text.startswith("(") and ")" in window.text and 8 <= count <= 11 and first <= 5:  # noqa: PLR2004
        return True
    if digits[0] == "0" and first >= 2 and len(shape) > 1:  # noqa: PLR2004 - a zero of its own is a decimal's
        return (count == 10 if set(shape) == {2} else 9 <= count <= 11) and shape[-1] >= 2  # noqa: PLR2004
    beginning, regions = _PHONE_SHAPES.get(window.shape, (None, ()))
    if beginning is None or not beginning.match(digits):
        return False
    return any(phonenumbers.is_valid_number(phonenumbers.parse(digits, region)) for region in regions)


def _is_international(digits: str) -> bool:
    """Return whether the digits are a country code and a number of a length that occurs there."""
    try:
        return phonenumbers.is_possible_number(phonenumbers.parse("+" + digits))
    except phonenumbers.NumberParseException:
        return False
