"""Patterns of personal data other than runs of digits: addresses of all kinds, keys, numbers with letters. Pure.

Every quantifier is bounded, and the expression of a token matches only at the start of a token. So the time of a scan
is proportional to the length of the text, for any text.
"""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass

from stdnum.es import dni, nie
from stdnum.fr import nir
from stdnum.it import codicefiscale

from app.memory.pii import check_digits
from app.memory.schemas import PersonalKind

_TLD_WORDS = (
    "com org net edu gov mil int info biz io ai app dev co uk de fr es pt nl be ch at pl cz se dk fi ie eu ru ua tr "
    "gr br mx ar cl ca au nz jp cn kr hk sg za ng ke ae sa il xyz online site cloud tech mail email name pro"
)
_TLDS = frozenset(_TLD_WORDS.split())
_NO_LOCAL_PART_WORDS = (
    "me us him her them it look looking is are was be available buy order shop work works working hosted found live "
    "find now here meet arrive and or stay see seen out up back sell sold account site page deals video prices "
    "employee engineer job someone everyone people"
)
_NO_LOCAL_PART = frozenset(_NO_LOCAL_PART_WORDS.split())
_PLAIN_ANSWER_WORDS = (
    "the a an my your our his her their its this that these it not no now never always in on at as of for from to "
    "with by so too very really quite still just only also been being be was were is are has had hard easy safe "
    "secure weak strong long short good bad wrong incorrect invalid correct valid expired expiring missing required "
    "optional empty blank null none nil true false str string int bytes text same different new old unknown known "
    "hidden private secret stored saved kept set reset needed important better gone out lost what where why how when "
    "if something everything nothing anything case-sensitive encrypted hashed salted changed stolen leaked forgotten "
    "ready undefined unset due about here there more less hash field input token password protected rotated revoked"
)
_PLAIN_ANSWERS = frozenset(_PLAIN_ANSWER_WORDS.split())
_DIGIT_NEEDED = re.compile(r"pin|otp|cv[vc]|code|token|secret$|credential", re.IGNORECASE)
_MASKED = re.compile(r"[*x\u2022.#_-]{3,}|[<${].*", re.IGNORECASE)
_MONTH = r"[^\W\d_]{3,12}"
_DAY = r"\d{1,2}(?:st|nd|rd|th|\.)?"
_YEAR = r"(?:18|19|20)\d\d"
_CAPITAL = r"[^\W\d_a-z][\w'\u2019.-]{0,30}"
_SMALL = r"(?:de|du|des|la|le|les|del|della|dei|di|do|da|dos|das|den|der|of|the|los|las|van|y|e)"
_SUFFIX = (
    r"(?:Street|St|Avenue|Ave|Road|Rd|Lane|Ln|Drive|Dr|Boulevard|Blvd|Court|Ct|Place|Pl|Square|Sq|Terrace|Way|Close|"
    r"Crescent|Cres|Highway|Hwy|Parkway|Pkwy|Trail|Circle|Cir|Row|Mews|Gardens|Grove|Walk|Alley|Quay|Parade|Esplanade)"
)
_SMALL_SUFFIX = r"(?:street|avenue|road|lane|drive|boulevard|court|square|terrace|crescent|close|way|st|ave|rd|blvd)"
_TAIL = (
    r"(?:,? (?:Apt|Apartment|Suite|Unit|Flat|Floor|#)\.? ?\w{1,6})?"
    r"(?:(?:,? [A-Z][\w'-]{1,20}){0,3},? [A-Z]{2} \d{5}(?:-\d{4})?|(?:,? [A-Z][\w'-]{1,20}){0,2},? "
    r"[A-Z]{1,2}\d[A-Z\d]? \d[A-Z]{2})?"
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of one kind. The group `v` is the span to redact, if it exists; `span_of` can reject or shorten it."""

    kind: PersonalKind
    expression: re.Pattern[str]
    span_of: Callable[[re.Match[str]], tuple[int, int] | None] | None = None

    def span(self, match: re.Match[str]) -> tuple[int, int] | None:
        """Return the span to redact, or None if the match is not personal data."""
        if self.span_of is not None:
            return self.span_of(match)
        return match.span("v") if "v" in self.expression.groupindex else match.span()


def _whole_if(check: Callable[[str], bool]) -> Callable[[re.Match[str]], tuple[int, int] | None]:
    """Return a function that gives the span of a match if its letters and digits pass a check, else None."""

    def span_of(match: re.Match[str]) -> tuple[int, int] | None:
        bare = "".join(character for character in match[0].upper() if character.isalnum())
        return match.span() if bare.isascii() and check(bare) else None

    return span_of


def _iban(match: re.Match[str]) -> tuple[int, int] | None:
    places = [place for place, character in enumerate(match[0]) if character.isalnum()]
    length = check_digits.iban_length("".join(match[0][place] for place in places).upper())
    if not length:
        return None
    end = match.start() + places[length - 1] + 1
    return None if match.string[end : end + 1].isalnum() else (match.start(), end)


def _spaced_email(match: re.Match[str]) -> tuple[int, int] | None:
    labels = re.split(r"\W+|\bdot\b", match["host"].casefold())
    local = match["local"].casefold()
    good = " " not in match[0] or (labels[-1] in _TLDS and local not in _NO_LOCAL_PART)
    return match.span() if good else None


def _with_digit(match: re.Match[str]) -> tuple[int, int] | None:
    start, end = match.span("v")
    return (start, end) if any(character.isdigit() for character in match["v"]) else None


def _secret(match: re.Match[str]) -> tuple[int, int] | None:
    quoted = match["quoted"]
    if quoted is not None:
        return match.span("quoted")
    value = match["bare"].rstrip(".,;:!?)]}\"'")
    plain = value.casefold()
    if len(value) < 3 or plain in _PLAIN_ANSWERS or _MASKED.fullmatch(value):  # noqa: PLR2004
        return None
    assigned = any(sign in match["how"] for sign in ":=>")
    if not any(character.isdigit() for character in value):
        long_enough = assigned and len(value) >= 16  # noqa: PLR2004 - a key, not a word
        if _DIGIT_NEEDED.search(match["what"]) and not long_enough:
            return None
        if not assigned and (plain.endswith(("ed", "ing")) or "'" in value):
            return None
    start = match.start("bare")
    return start, start + len(value)


def _ip(match: re.Match[str]) -> tuple[int, int] | None:
    text = match[0]
    before = match.string[max(0, match.start() - 24) : match.start()]
    if re.search(r"(?:version|release|build|section|chapter|v|ver|rev|firmware|==|>=|~=)\.? ?$", before, re.IGNORECASE):
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    groups = [group for group in text.split(":") if group]
    if address.version == 6 and (len(groups) < 2 or not any(map(str.isdigit, text)) or len(text) < 6):  # noqa: PLR2004
        return None
    return None if address.is_loopback or address.is_unspecified else match.span()


def _place(match: re.Match[str]) -> tuple[int, int] | None:
    in_range = abs(float(match["lat"])) <= 90 and abs(float(match["lon"])) <= 180  # noqa: PLR2004 - degrees
    return match.span() if in_range else None


def _nino(bare: str) -> bool:
    return (
        bare[:2] not in {"BG", "GB", "NK", "KN", "TN", "NT", "ZZ"}
        and bare[0] not in "DFIQUV"
        and bare[1] not in "DFIOQUV"
    )


def _dni_or_nie(bare: str) -> bool:
    return dni.is_valid(bare) or nie.is_valid(bare)


def _wallet(bare_match: re.Match[str]) -> tuple[int, int] | None:
    return bare_match.span() if check_digits.base58(bare_match[0]) else None


PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        PersonalKind.SECRET,
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[^-\x00]|-(?!----)){0,16384}"
            r"(?:-----END [A-Z0-9 ]{0,60}-----)?"
        ),
    ),
    Pattern(
        PersonalKind.SECRET,
        re.compile(
            r"(?<![A-Za-z0-9_-])(?P<v>(?:sk|rk|pk|gsk|r8|nvapi|xai|pplx|tvly|lin_api|dckr_pat|whsec|figd|sk_live)"
            r"[-_][A-Za-z0-9_-]{16,500}|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}(?![A-Za-z0-9])|"
            r"gh[pousr]_[A-Za-z0-9]{16,255}|"
            r"github_pat_\w{20,255}|glpat-[\w-]{16,64}|xox[abeoprs]-[A-Za-z0-9-]{10,250}|AIza[\w-]{30,45}|"
            r"ya29\.[\w-]{20,500}|SG\.[\w-]{16,64}\.[\w-]{16,128}|(?:hf|npm)_[A-Za-z0-9]{20,80}|pypi-[\w-]{40,500}|"
            r"tk_[0-9A-Za-z]{26}_[0-9A-Za-z]{26}_[\w-]{20,80}|eyJ[\w-]{8,4000}\.[\w-]{4,8000}(?:\.[\w-]{0,4000})?|"
            r"\d{8,10}:[\w-]{35}|dop_v1_[a-f0-9]{64}|shp(?:at|ca|pa|ss)_[a-f0-9]{32}|hvs\.[\w-]{20,200}|"
            r"AGE-SECRET-KEY-1[0-9A-Z]{58})"
        ),
        _with_digit,
    ),
    Pattern(
        PersonalKind.SECRET,
        re.compile(r"(?<!\w)(?:bearer|basic) (?P<v>[A-Za-z0-9._~+/=-]{16,4000})", re.IGNORECASE),
        _with_digit,
    ),
    Pattern(PersonalKind.SECRET, re.compile(r"://(?P<v>[^\s/:@\x00]{1,128}:[^\s/@\x00]{1,256})@")),
    Pattern(
        PersonalKind.SECRET,
        re.compile(
            r"[?&](?:key|token|api_?key|access_token|sig|signature|secret|password|auth)=(?P<v>[^\s&#\x00]{6,500})",
            re.IGNORECASE,
        ),
    ),
    Pattern(
        PersonalKind.SECRET,
        re.compile(
            r"(?<![A-Za-z])(?P<what>pass(?:word|wd|phrase|code)s?|pwd|pass|passwort|kennwort|mot de passe|"
            r"contrase\u00f1a|"
            r"senha|wachtwoord|has\u0142o|\u043f\u0430\u0440\u043e\u043b\u044c|\u5bc6\u7801|"
            r"\u30d1\u30b9\u30ef\u30fc\u30c9|"
            r"(?:card |my |the )?pin(?: ?code| number)?|otp|cv[vc]2?|(?:verification|security|2fa|access|door|"
            r"gate) code|"
            r"(?:seed|recovery) phrase|(?:api|secret|access|private|auth|client|encryption|signing|refresh|session)"
            r"[ _-]{0,2}(?:access[ _-]{0,2})?(?:key|token|secret)|secret|token|credentials?)"
            r"(?P<how>[\"']?\s{0,3}(?:[:=]>?|->|:=|\b(?:is|was|lautet|ist|est|es)\b|\u662f|\u306f)\s{0,3})"
            r"(?:[\"'`\u201c\u201e](?P<quoted>[^\"'`\u201d\n\x00]{3,200})[\"'`\u201d]|(?P<bare>[^\s\"'`\x00]{3,200}))",
            re.IGNORECASE,
        ),
        _secret,
    ),
    Pattern(
        PersonalKind.SECRET,
        re.compile(
            r"(?<![A-Za-z])(?:pin(?: code| number)?|cv[vc]2?|otp|2fa|(?:verification|security|access|door|gate) code)"
            r"[ #]{1,3}(?P<v>\d{3,8})(?!\w)",
            re.IGNORECASE,
        ),
    ),
    Pattern(
        PersonalKind.SECRET,
        re.compile(
            r"(?<![A-Za-z])(?:password|passwd|pwd|pw) (?P<v>(?=[^\s\d]{0,64}\d)(?=[^\sA-Za-z]{0,64}[A-Za-z])"
            r"[\w!@#$%^&*+-]{6,64})(?!\w)",
            re.IGNORECASE,
        ),
    ),
    Pattern(
        PersonalKind.SECRET,
        re.compile(r"(?<!\w)(?:seed|recovery) (?:phrase|words?)(?: is|:)\s{0,3}(?P<v>[a-z]{3,8}(?: "
            r"[a-z]{3,8}){5,23})", re.IGNORECASE),
    ),
    Pattern(
        PersonalKind.EMAIL,
        re.compile(
            r"(?<![\w.+-])(?P<local>[\w.+-]{1,64}) ?[\[({<] ?(?:at|@|arroba) ?[\])}>] ?"
            r"(?P<host>[\w-]{1,63}(?:(?: ?[\[({<] ?(?:dot|punkt|point|punto|\.) ?[\])}>] ?| dot | ?\. "
            r"?)[\w-]{1,63}){1,4})",
            re.IGNORECASE,
        ),
    ),
    Pattern(
        PersonalKind.EMAIL,
        re.compile(
            r"(?<![\w.+-])(?:[\w+-]{1,64} dot )?(?P<local>[\w.+-]{1,64}) at "
            r"(?P<host>[\w-]{1,63}(?:(?: dot |\.)[\w-]{1,63}){1,4})",
            re.IGNORECASE,
        ),
        _spaced_email,
    ),
    Pattern(
        PersonalKind.EMAIL,
        re.compile(r"(?<![\w.+-])(?P<local>[\w.+-]{1,64}) {0,2}@ {0,2}(?P<host>[\w-]{1,63}(?: {0,2}\. "
            r"{0,2}[\w-]{2,24}){1,4})"),
        _spaced_email,
    ),
    Pattern(
        PersonalKind.IBAN,
        re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}[ -]?\d[ -]?\d(?:[ -]{0,2}[A-Za-z0-9]){11,40}"),
        _iban,
    ),
    Pattern(
        PersonalKind.NATIONAL_ID,
        re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}[ -]?\d\d[ -]?\d\d[ -]?\d\d[ -]?[A-D](?![A-Za-z0-9])", re.IGNORECASE),
        _whole_if(_nino),
    ),
    Pattern(
        PersonalKind.NATIONAL_ID,
        re.compile(r"(?<![A-Za-z0-9])(?:\d\d\.?\d{3}\.?\d{3}|[XYZ][- .]?\d{7})[-.]?[A-Z](?![A-Za-z0-9])",
        re.IGNORECASE),
        _whole_if(_dni_or_nie),
    ),
    Pattern(
        PersonalKind.TAX_ID,
        re.compile(
            r"(?<![A-Za-z0-9])[A-Z]{3} ?[A-Z]{3} ?[0-9LMNP-V]{2}[A-EHLMPRST][0-9LMNP-V]{2} ?[A-Z][0-9LMNP-V]{3}[A-Z]"
            r"(?![A-Za-z0-9])",
            re.IGNORECASE,
        ),
        _whole_if(codicefiscale.is_valid),
    ),
    Pattern(
        PersonalKind.NATIONAL_ID,
        re.compile(r"(?<![A-Za-z0-9])\d\d ?\d{6} ?[A-Z] ?\d\d ?\d(?![A-Za-z0-9])"),
        _whole_if(check_digits.de_pension),
    ),
    Pattern(
        PersonalKind.NATIONAL_ID,
        re.compile(r"(?<![A-Za-z0-9])[12] ?\d\d ?\d\d ?2[AB] ?\d{3} ?\d{3} ?\d\d(?![A-Za-z0-9])", re.IGNORECASE),
        _whole_if(nir.is_valid),
    ),
    Pattern(
        PersonalKind.NATIONAL_ID,
        re.compile(r"(?<![A-Za-z0-9])\d{6} ?\d{8} ?\d{3}X(?![A-Za-z0-9])", re.IGNORECASE),
        _whole_if(check_digits.cn_resident),
    ),
    Pattern(
        PersonalKind.NATIONAL_ID,
        re.compile(r"(?<![A-Za-z0-9])[A-Z]{4}\d{6}[HM][A-Z]{5}[A-Z0-9]\d(?![A-Za-z0-9])"),
    ),
    Pattern(PersonalKind.TAX_ID, re.compile(r"(?<![A-Za-z0-9])[A-Z]{3}[PCHFATBLJG][A-Z]\d{4}[A-Z](?![A-Za-z0-9])")),
    Pattern(PersonalKind.IP_ADDRESS, re.compile(r"(?<![\w.:-])\d{1,3}(?:\.\d{1,3}){3}(?!\.?\d|[\w-])"), _ip),
    Pattern(
        PersonalKind.IP_ADDRESS,
        re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{1,4})?(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])"),
        _ip,
    ),
    Pattern(
        PersonalKind.MAC_ADDRESS,
        re.compile(
            r"(?<![\w:-])(?:[0-9A-F]{2}([:-])[0-9A-F]{2}(?:\1[0-9A-F]{2}){4}|"
            r"[0-9A-F]{4}\.[0-9A-F]{4}\.[0-9A-F]{4})(?![\w:-])",
            re.IGNORECASE,
        ),
    ),
    Pattern(PersonalKind.WALLET, re.compile(r"(?<!\w)(?:0x[0-9a-fA-F]{40}|(?:bc1|ltc1|"
        r"addr1)[02-9ac-hj-np-z]{11,100})(?!\w)")),
    Pattern(PersonalKind.WALLET, re.compile(r"(?<!\w)[13LMDT][1-9A-HJ-NP-Za-km-z]{25,34}(?!\w)"), _wallet),
    Pattern(PersonalKind.WALLET, re.compile(r"(?<!\w)4[0-9AB][1-9A-HJ-NP-Za-km-z]{93}(?!\w)")),
    Pattern(
        PersonalKind.WALLET,
        re.compile(
            r"(?<!\w)(?:wallet|solana|sol|xrp|ripple|crypto)(?: address)?(?: is|:)? {0,2}"
            r"(?P<v>[1-9A-HJ-NP-Za-km-z]{25,44})(?!\w)",
            re.IGNORECASE,
        ),
        _with_digit,
    ),
    Pattern(
        PersonalKind.COORDINATES,
        re.compile(
            r"(?<![\w.])(?P<lat>[+-]?\d{1,2}\.\d{4,15})\u00b0?(?: ?[NS])?(?: {0,2}[,;/] {0,2}| "
            r")(?P<lon>[+-]?\d{1,3}\.\d{4,15})"
            r"\u00b0?(?: ?[EWO])?(?![\w.]\d)"
        ),
        _place,
    ),
    Pattern(
        PersonalKind.COORDINATES,
        re.compile(
            r"(?<!\w)\d{1,2}\u00b0 ?\d{1,2}['\u2019\u2032] ?(?:\d{1,2}(?:\.\d{1,6})?[\"\u201d\u2033'\u2032]{1,2} "
            r"?)?[NS][,;]? {0,2}"
            r"\d{1,3}\u00b0 ?\d{1,2}['\u2019\u2032] ?(?:\d{1,2}(?:\.\d{1,6})?[\"\u201d\u2033'\u2032]{1,2} "
            r"?)?[EWO](?!\w)"
        ),
    ),
    Pattern(
        PersonalKind.COORDINATES,
        re.compile(
            r"(?<!\w)lat(?:itude)?(?: is|:|=)? {0,2}[+-]?\d{1,2}\.\d{3,15}[,;]? {0,2}(?:and )?"
            r"(?:lon|lng|long|longitude)(?: is|:|=)? {0,2}[+-]?\d{1,3}\.\d{3,15}",
            re.IGNORECASE,
        ),
    ),
    Pattern(
        PersonalKind.BIRTH_DATE,
        re.compile(
            r"(?:(?<!\w)(?:born|date of birth|birth ?date|birthday|d\.?o\.?b\.?|geboren|geburtsdatum|geburtstag|"
            r"n\u00e9e?|"
            r"date de naissance|fecha de nacimiento|nacid[oa]|nascid[oa]|data di nascita|data de nascimento|nat[oa]|"
            r"geboortedatum|urodzon[ya]|f\u00f6dd)(?!\w)|\u51fa\u751f\u65e5\u671f|"
            r"\u751f\u5e74\u6708\u65e5)[^\n\d\x00]{0,25}?"
            rf"(?P<v>\d{{1,2}}[./ -]\d{{1,2}}[./ -](?:{_YEAR}|\d\d)(?!\d)|"
            rf"{_YEAR}[./\u5e74-]\d{{1,2}}[./\u6708-]\d{{1,2}}\u65e5?(?!\d)|"
            rf"{_DAY}(?: of| de| di)? {_MONTH}\.?,?(?: de)? {_YEAR}(?!\d)|{_MONTH}\.? {_DAY},? {_YEAR}(?!\d))",
            re.IGNORECASE,
        ),
    ),
    Pattern(
        PersonalKind.PLATE,
        re.compile(
            r"(?<!\w)(?i:licen[cs]e plate|licence plate|number plate|registration plate|plate number|license tag|"
            r"vehicle reg"
            r"(?:istration)?|kennzeichen|plaque|matr[i\u00ed]cula|targa|kenteken|placa|plates?)"
            r"(?i:[ :#=]|is|was|number|no\.|on|my|car|the|ist|est|es){0,8}?"
            r"(?P<v>(?=[A-Za-z0-9 -]{0,6}\d)[A-Z0-9\u00c4\u00d6\u00dc]{1,4}(?:[ -]?[A-Z0-9]{1,4}){1,3}|"
            r"(?=[a-z]{0,7}\d)[a-z0-9]{5,8})(?!\w)"
        ),
    ),
    Pattern(
        PersonalKind.ADDRESS,
        re.compile(
            rf"(?<![\w.,$\u20ac\u00a3-])\d{{1,5}}[A-Za-z]?(?:[-/]\d{{1,5}})?,? (?:[NSEW]\.? |North |South |East |"
            rf"West )?"
            rf"(?:(?:{_CAPITAL}|\d{{1,3}}(?:st|nd|rd|th)) ){{1,4}}{_SUFFIX}(?:\.|(?!\w))(?: "
            rf"[NSEW]{{1,2}}(?!\w))?{_TAIL}"
        ),
    ),
    Pattern(
        PersonalKind.ADDRESS,
        re.compile(
            r"(?<!\w)(?i:live at|lives at|living at|address is|address:|located at|deliver to|ship to|home is at|"
            r"moved to|send it to|"
            r"mail it to|stay at|house is at|house at|i'm at)"
            rf" {{0,2}}(?P<v>\d{{1,5}}[a-z]?,? (?:[\w'-]{{1,25}} ){{1,4}}{_SMALL_SUFFIX}(?!\w))",
            re.IGNORECASE,
        ),
    ),
    Pattern(
        PersonalKind.ADDRESS,
        re.compile(
            r"(?<!\w)(?:[A-Z\u00c4\u00d6\u00dc][\w\u00df-]{1,40}(?:stra\u00dfe|strasse|str\.|weg|platz|allee|"
            r"gasse|ring|damm|ufer|"
            r"chaussee|straat|laan|plein|gracht|kade|singel|dijk|gatan|v\u00e4gen|gata|katu|vej|gade)|"
            r"[A-Z\u00c4\u00d6\u00dc][\w\u00df-]{1,40} (?:Stra\u00dfe|Strasse|Str\.|Allee|Chaussee))"
            r" \d{1,4} ?(?:[a-h](?!\w))?(?:, \d{4,5}(?: [A-Z]{2})?(?!\d))?"
        ),
    ),
    Pattern(
        PersonalKind.ADDRESS,
        re.compile(
            r"(?<![\w.,])\d{1,4}(?: ?(?:bis|ter))?,? (?i:rue|avenue|av\.|boulevard|bd|place|chemin|all\u00e9e|"
            r"impasse|quai|cours|route|"
            rf"passage|square) (?:(?:{_SMALL} |d'|l'){{0,3}}{_CAPITAL}(?: (?=[^\W\d_a-z]|{_SMALL} )|"
            rf"(?!\w))){{1,4}}(?:,? ?\d{{5}}(?!\d))?"
        ),
    ),
    Pattern(
        PersonalKind.ADDRESS,
        re.compile(
            r"(?<!\w)(?:[Cc]alle|[Aa]venida|Av\.|Avda\.|[Pp]aseo|[Pp]laza|[Rr]ua|[Rr]ue|[Cc]arrer|[Vv]ia|[Vv]iale|[Pp]iazza|"
            r"[Cc]orso|C/|ul\.|al\.|[Cc]arrera|"
            r"[Tt]ravessa|[Uu]lica|\u0443\u043b\.|\u0443\u043b\u0438\u0446\u0430) ?"
            rf"(?:(?:{_SMALL} ){{0,2}}{_CAPITAL}(?:,? |, ?)){{1,4}}(?:n[.\u00bao\u00b0]{{1,2}} ?|\u0434\. "
            rf"?)?\d{{1,5}}(?:[a-zA-Z](?!\w))?(?![\w:]|[.,]\d)"
        ),
    ),
    Pattern(
        PersonalKind.ADDRESS,
        re.compile(
            r"[\u4e00-\u9fff]{1,20}(?:\u8def|\u8857|\u9053|\u5df7|"
            r"\u5f04)\d{1,5}(?:-\d{1,4})?\u53f7(?:\d{1,3}(?:\u680b|\u53f7\u697c|\u5355\u5143|\u5ba4)){0,3}|"
            r"[\u4e00-\u9fff\u30a0-\u30ff\u3040-\u309f]{1,20}\d{1,2}\u4e01\u76ee\d{1,3}(?:(?:\u756a\u5730?|"
            r"-)\d{0,3}\u53f7?)?"
        ),
    ),
    Pattern(
        PersonalKind.ADDRESS,
        re.compile(r"(?<!\w)(?i:post ?code|postal code)(?i: is|:)? {0,2}(?P<v>[A-Z]{1,2}\d[A-Z\d]? "
            r"?\d[A-Z]{2})(?!\w)", re.IGNORECASE),
    ),
)  # fmt: skip
