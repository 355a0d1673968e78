"""Strict JSON parsing: UTF-8, unambiguous, shallow, storable and hashable, or an error.

The place of a text or number that cannot be stored is in the error. No function recurses.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Final, NoReturn, TypeAlias, cast

import numpy as np
from pydantic import JsonValue

from app.core.errors import FieldError, Invalid, Malformed
from app.core.validation.invalid import json_pointer
from app.core.validation.strict import Unchecked

MAX_SAFE_INTEGER: Final = 2**53 - 1
_SAFE_INTEGERS: Final = range(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER + 1)
_INTEGERS_OF_64_BITS: Final = range(-(2**63), 2**64)
_MAX_DIGITS: Final = 1000
"""Digits of a number in a member that its reader checks; `int` of thousands is slow, or an error."""

_Place: TypeAlias = "tuple[tuple[str | int, ...], JsonValue]"
"""The path of a value, and the value."""
_MAX_STEPS: Final = 200_000
"""Values that are looked at to find the place of an error; beyond them, the error is of the whole body."""
_FOLD_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in b'"[]{}')
_SURROGATE_PAIR: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_NOT_STORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_REFUSALS: Final = {
    "duplicate_key": "An object has a duplicate member. Remove one of them.",
    "number_not_interoperable": "Integers must be within ±(2^53 - 1), other numbers within a double; send it as text.",
    "text_not_storable": "A text or a member name contains NUL or half of a surrogate pair: it cannot be stored.",
}


class _RefusedError(Exception):
    """Raised by the parser at the first refused value; `code` names the case."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def parse_json(
    body: bytes,
    *,
    max_depth: int,
    passes: Callable[[str], bool] | None = None,
    produced: Callable[[str], bool] | None = None,
) -> JsonValue:
    """Parse a JSON text.

    `passes` returns whether a member of the top-level object is only passed on to a model: in such a member integers
    may have 64 bits and texts may contain NUL. `produced` returns whether a model or a tool may have produced it, so
    that its reader checks it: numbers may have 1000 digits, and become integers beyond a double, and texts may contain
    NUL and lone surrogates. A text with such values is returned as `Unchecked`.

    Raises Malformed `malformed_json` and Invalid `json_too_deep`, `duplicate_key`, `text_not_storable` (NUL, a lone
    surrogate) and `number_not_interoperable` (an integer beyond ±(2^53 - 1), a float beyond a double).
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise _malformed(f"The body is not UTF-8 at byte {error.start}.") from None
    # after removing escaped backslashes and quotes, every other quote opens or closes a string
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in body else body
    if _nests_deeper(unescaped, max_depth):
        detail = f"The body nests deeper than {max_depth} levels."
        raise Invalid("json_too_deep", detail, fields=[FieldError("", detail)])
    try:
        parsed = _load(text, _DECODER)
        if not _has_bad_escape(unescaped):
            return cast("JsonValue", parsed)
        code = "text_not_storable"
    except _RefusedError as refused:
        code = refused.code
    return _unchecked(text, code, passes or _none, produced or _none)


def _none(_member: str) -> bool:
    return False


def _unchecked(text: str, code: str, passes: Callable[[str], bool], produced: Callable[[str], bool]) -> Unchecked:
    """Parse a refused text again. Raise its error, unless all refused values are in members that may have them."""
    path: Iterable[str | int] = ()
    try:
        parsed = cast("JsonValue", _load(text, _PRODUCED_DECODER))
    except _RefusedError as refused:
        code = refused.code
    else:
        fault = _first_fault(parsed, code, passes, produced)
        if fault is None:
            return Unchecked(cast("dict[str, JsonValue]", parsed))
        path, code = fault
    detail = _REFUSALS[code]
    raise Invalid(code, detail, fields=[FieldError(json_pointer(path), detail)])


def _first_fault(
    root: JsonValue, code: str, passes: Callable[[str], bool], produced: Callable[[str], bool]
) -> tuple[Sequence[str | int], str] | None:
    """Return the path and the error code of the first value that is refused, or None if there is none.

    After `_MAX_STEPS` values it is the whole text, with the given code.
    """
    stack: list[Iterator[_Place]] = [iter([((), root)])]
    is_passed = False  # all of a member of the top-level object comes before the next one
    for _ in range(_MAX_STEPS):
        while (place := next(stack[-1], None)) is None:
            stack.pop()
            if not stack:
                return None
        path, value = place
        if len(path) == 1:
            is_passed = isinstance(path[0], str) and passes(path[0])
        fault = _fault(value, is_passed=is_passed)
        if fault is not None:
            return path, fault
        if isinstance(value, dict | list):
            stack.append(_children(path, value, produced))
    return (), code


def _children(
    path: tuple[str | int, ...], value: dict[str, JsonValue] | list[JsonValue], produced: Callable[[str], bool]
) -> Iterator[_Place]:
    """Yield the places below a value one at a time: all at once would take many times the memory of the text."""
    if isinstance(value, list):
        yield from (((*path, index), item) for index, item in enumerate(value))
    else:
        yield from (((*path, name), item) for name, item in value.items() if path or not produced(name))


def _fault(value: JsonValue, *, is_passed: bool) -> str | None:
    """Return the error code of a single value, or None."""
    if isinstance(value, int):
        return None if value in (_INTEGERS_OF_64_BITS if is_passed else _SAFE_INTEGERS) else "number_not_interoperable"
    texts = value if isinstance(value, dict) else [value] if isinstance(value, str) else []
    return "text_not_storable" if any(map((_HALF_PAIR if is_passed else _NOT_STORABLE).search, texts)) else None


def _load(text: str, decoder: json.JSONDecoder) -> object:
    try:
        return cast("object", decoder.decode(text))
    except json.JSONDecodeError as error:
        message = f"The body is not JSON at line {error.lineno}, column {error.colno} (character {error.pos})."
        raise _malformed(message) from None


def _refuse_constant(_name: str) -> NoReturn:
    raise _malformed("The body contains NaN or Infinity, which JSON does not have.")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _RefusedError("duplicate_key")
    return members


def _exact_int(digits: str) -> int:
    # check the length first: int() of thousands of digits is slow, or an error
    if len(digits) > 17 or abs(value := int(digits)) > MAX_SAFE_INTEGER:  # noqa: PLR2004 - sign and 16 digits
        raise _RefusedError("number_not_interoperable")
    return value


def _exact_float(digits: str) -> float:
    value = float(digits)
    if value - value != 0:
        raise _RefusedError("number_not_interoperable")
    return value


def _produced_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise _RefusedError("number_not_interoperable")
    return int(digits)


def _produced_float(digits: str) -> float | int:
    value = float(digits)
    if value - value == 0:
        return value
    number = Decimal(digits)  # it has no fraction worth a digit, and as an integer it is the same number
    if number.adjusted() >= _MAX_DIGITS:
        raise _RefusedError("number_not_interoperable")
    return int(number)


def _nests_deeper(unescaped: bytes, max_depth: int) -> bool:
    """Return whether a JSON text nests too deeply; for invalid JSON, whether it could before a parser stops."""
    skeleton = unescaped.translate(_FOLD_BRACKETS, _NOT_STRUCTURE).replace(b'""', b"")
    outside_strings = b"".join(skeleton.split(b'"')[::2])
    if outside_strings.count(b"[") <= max_depth:
        return False
    steps = ord("\\") - np.frombuffer(outside_strings, dtype=np.uint8).astype(np.int8)  # [ is +1 and ] is -1
    return int(np.cumsum(steps, dtype=np.int32).max()) > max_depth


def _has_bad_escape(unescaped: bytes) -> bool:
    if rb"\u" not in unescaped:
        return False
    return rb"\u0000" in unescaped or _SURROGATE.search(_SURROGATE_PAIR.sub(b"-", unescaped)) is not None


def _malformed(detail: str) -> Malformed:
    return Malformed("malformed_json", detail)


# created once: creating a decoder costs as much as parsing a short body
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_exact_int, parse_float=_exact_float, parse_constant=_refuse_constant
)
_PRODUCED_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_produced_int, parse_float=_produced_float, parse_constant=_refuse_constant
)
