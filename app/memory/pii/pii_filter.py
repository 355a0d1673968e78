"""Personal data on its way to a model and back: what is taken out of turns, what of an answer is not kept. Pure.

What always holds: nothing that was taken out of a turn is kept in a fact, however an answer spells it; and no fact says
what would be taken out of a turn, or holds what is personal whatever its object is, such as a phone number.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from app.memory.pii.redaction import Redaction, redact
from app.memory.schemas import PersonalKind

_PLACEHOLDER = re.compile(rf"\[(?:{'|'.join(kind.value for kind in PersonalKind)})\]")
_SHORTEST = 4
_SHORTEST_DIGITS = 6
# predicates, in snake case, whose object is personal data whatever it looks like
_PREDICATES = re.compile(
    r"(?:^|_)(?:e_?mails?|phones?|telephone|mobile|cell|fax|whatsapp|iban|bic|swift|accounts?_(?:no|num|number|id)|"
    r"bank_account|routing|sort_code|cards?_(?:no|num|number|digits)|(?:credit|debit)_card|cvv|cvc|ssn|social_security|"
    r"(?:national|citizen|personal|tax|health|insurance|patient|voter|passport|identity|id)_(?:id|no|num|number|card|code)|"
    r"passport|aadhaar|nino|nhs|curp|dni|nif|cpf|pesel|bsn|tin|vat|"
    r"licen[cs]e_(?:no|num|number|plate)|driving_licen[cs]e|driver_?s?_licen[cs]e|number_plate|"
    r"(?:home|street|postal|mailing|work|billing|shipping)_address|address|post_?code|zip(?:_code)?|"
    r"birth_?date|birth_?day|date_of_birth|dob|born_on|"
    r"ip(?:_address)?|mac_address|imei|passwords?|passphrase|passcode|pin(?:_code|_number)?|secrets?|"
    r"(?:api|access|private|secret|recovery|seed)_(?:key|token|phrase|word|words|code)|token|credentials?|otp|"
    r"wallet(?:_address)?|coordinates|latitude|longitude|gps)(?:_|$)"
)


class Withheld:
    """What was taken out of the turns of one look: nothing that is kept of them may say it again."""

    def __init__(self) -> None:
        self._keys: set[str] = set()

    def note(self, pieces: Iterable[str]) -> None:
        """Remember what was taken out."""
        self._keys.update(key for piece in pieces if len(key := _key(piece)) >= _SHORTEST)

    def note_redaction(self, text: str, redaction: Redaction) -> None:
        """Remember what patterns have taken out of a text."""
        self.note(text[span.start : span.end] for span in redaction.spans)

    def is_said(self, texts: Sequence[str]) -> bool:
        """Whether texts, one by one or as a whole, say what was taken out, or a large part of a number of it."""
        keys = [*map(_key, texts), _key(" ".join(texts))]
        return any(self._is_within(key) for key in keys)

    def _is_within(self, key: str) -> bool:
        digits = "".join(filter(str.isdigit, key))
        part = digits if len(digits) >= _SHORTEST_DIGITS else None
        return any(held in key or (part is not None and part in held) for held in self._keys)


def _key(text: str) -> str:
    """The letters and digits of a text, in one case and form."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def without(text: str, personal: Sequence[tuple[str, PersonalKind]]) -> tuple[str, list[PersonalKind]]:
    """A text with placeholders for what a model has found personal in it, and the kinds of what was taken out.

    What it has found may be spelled in another case, and with other spaces and breaks between its words.
    """
    taken: list[PersonalKind] = []
    for piece, kind in personal:
        expression = r"\s+".join(map(re.escape, piece.split()))
        text, count = re.subn(expression, f"[{kind.value}]", text, flags=re.IGNORECASE)
        taken += [kind] * count
    return text, taken


def is_placeholder(text: str) -> bool:
    """Whether a text is what stands in the place of personal data."""
    return _PLACEHOLDER.fullmatch(text) is not None


def is_personal(text: str) -> bool:
    """Whether a text holds personal data, or what stands in its place."""
    return _PLACEHOLDER.search(text) is not None or bool(redact(text).spans)


def is_personal_fact(subject: str, predicate: str, value: str) -> bool:
    """Whether a fact is personal data: by its parts, by what they say together, or by its canonical predicate."""
    words = predicate.replace("_", " ")
    together = (f"{subject} {words} {value}", f"my {words} is {value}", f"{words}: {value}")
    return _PREDICATES.search(predicate) is not None or any(map(is_personal, (subject, words, value, *together)))
