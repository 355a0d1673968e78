"""Detects texts that repeat the instructions of a model. Pure.

Only letters and digits are compared, so that spaces, dashes, case, accents and full-width letters do not hide a match.
The text is also decoded from simple encodings: reversed, rot13, base64, base32, hex, character codes, escapes, leet. A
test shows each to be necessary. Translations and paraphrases are not detected; the instructions forbid them.
"""

import base64
import binascii
import codecs
import html
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from urllib.parse import unquote

RUN_LETTERS: Final = 48
"""Length of a matching run, in letters: eight to ten words in a row are not a coincidence."""
_MIN_SECRET_LETTERS: Final = 16
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]{32,}")
_BASE32 = re.compile(r"[A-Z2-7=\s]{32,}")
_HEX = re.compile(r"(?:[0-9A-Fa-f]{2}[\s,:;]*){24,}")
_NUMBERS = re.compile(r"(?:\d{2,7}[\s,;.:-]+){24,}\d{2,7}")
_ESCAPED = re.compile(r"\\u([0-9A-Fa-f]{4})")
_LEET: Final = str.maketrans("431057", "aeiost")


class OutputFilter:
    """Detects runs of secret texts in an output."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._runs: set[str] = set()
        self._short: set[str] = set()
        for secret in secrets:
            letters = _letters(secret)
            self._runs.update(_runs(letters))
            if _MIN_SECRET_LETTERS <= len(letters) < RUN_LETTERS:
                self._short.add(letters)

    def reveals(self, text: str) -> bool:
        """Return whether the text repeats a run of a secret text, as it is or in a simple encoding."""
        return any(self._repeats(_letters(decoded)) for decoded in _decodings(text))

    def _repeats(self, letters: str) -> bool:
        return any(run in self._runs for run in _runs(letters)) or any(short in letters for short in self._short)


def _runs(letters: str) -> Iterator[str]:
    return (letters[at : at + RUN_LETTERS] for at in range(len(letters) - RUN_LETTERS + 1))


def _letters(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(filter(str.isalnum, plain))


def _decodings(text: str) -> Iterator[str]:
    yield text
    yield text[::-1]
    yield codecs.encode(text, "rot13")
    yield unquote(html.unescape(text))
    yield _ESCAPED.sub(lambda match: _character(match[1], 16), text)
    yield text.translate(_LEET)
    for match in _NUMBERS.findall(text):
        yield "".join(_character(number, 10) for number in re.findall(r"\d+", match))
    for match in _HEX.findall(text):
        yield _decoded(re.sub(r"[\s,:;]", "", match), bytes.fromhex)
    for match in _BASE32.findall(text):
        yield _decoded(re.sub(r"[\s=]", "", match), lambda piece: base64.b32decode(piece + "=" * (-len(piece) % 8)))
    for match in _BASE64.findall(text):
        piece = re.sub(r"[\s=]", "", match)
        for offset in range(4):  # the encoded text can start within the match
            yield _decoded(piece[offset:], lambda part: base64.b64decode(part[: len(part) // 4 * 4]))


def _decoded(piece: str, decode: Callable[[str], bytes]) -> str:
    try:
        return decode(piece).decode("utf-8", "ignore")
    except (ValueError, binascii.Error):
        return ""


def _character(digits: str, base: int) -> str:
    try:
        return chr(int(digits, base))
    except (ValueError, OverflowError):
        return ""
