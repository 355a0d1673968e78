"""Filters personal data from the turns that a model reads, and from the facts that it returns. Pure.

Invariants: no fact repeats text that was redacted from a turn, in any spelling. No fact contains personal data, or has
a predicate whose object is always personal, such as a phone number.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

from app.memory.pii.redaction import Redaction, redact
from app.memory.schemas import PersonalKind

PLACEHOLDER: Final = re.compile(rf"\[(?:{'|'.join(kind.value for kind in PersonalKind)})\]")
"""Expression of the placeholders of personal data."""
_SHORTEST = 4
_SHORTEST_DIGITS = 6
# predicates, in snake case, whose object is always personal data
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


class RedactedTexts:
    """The texts that were redacted from the turns of one batch. No fact from these turns may repeat them."""

    def __init__(self) -> None:
        self._keys: set[str] = set()

    def add(self, pieces: Iterable[str]) -> None:
        """Add redacted texts."""
        self._keys.update(key for piece in pieces if len(key := _key(piece)) >= _SHORTEST)

    def add_redaction(self, text: str, redaction: Redaction) -> None:
        """Add the texts that a redaction has removed."""
        self.add(text[span.start : span.end] for span in redaction.spans)

    def occurs_in(self, texts: Sequence[str]) -> bool:
        """Return whether the texts, alone or joined, contain a redacted text or a large part of a redacted number."""
        keys = [*map(_key, texts), _key(" ".join(texts))]
        return any(self._is_within(key) for key in keys)

    def _is_within(self, key: str) -> bool:
        digits = "".join(filter(str.isdigit, key))
        part = digits if len(digits) >= _SHORTEST_DIGITS else None
        return any(redacted in key or (part is not None and part in redacted) for redacted in self._keys)


def _key(text: str) -> str:
    """Return the letters and digits of a text, in one case and form."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def is_placeholder(text: str) -> bool:
    """Return whether a text is a placeholder of personal data."""
    return PLACEHOLDER.fullmatch(text) is not None


def is_personal(text: str) -> bool:
    """Return whether a text contains personal data, or a placeholder."""
    return PLACEHOLDER.search(text) is not None or bool(redact(text).spans)


def is_personal_fact(subject: str, predicate: str, value: str) -> bool:
    """Return whether a fact is personal data: by its parts, by the whole, or by its canonical predicate."""
    words = predicate.replace("_", " ")
    together = (f"{subject} {words} {value}", f"my {words} is {value}", f"{words}: {value}")
    return _PREDICATES.search(predicate) is not None or any(map(is_personal, (subject, words, value, *together)))
