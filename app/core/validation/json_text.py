"""Strict JSON parsing: UTF-8, unambiguous, shallow, storable and hashable, or an error with its place.

A valid text costs a few passes over its bytes in C and one call per object (duplicate members). Only an invalid text is
walked in Python, with bounded work, to find the place. No function recurses.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Final, NoReturn, cast

import numpy as np
from pydantic import JsonValue

from app.core.errors import FieldError, Invalid, Malformed
from app.core.validation.strict import Unchecked

MAX_SAFE_INTEGER: Final = 2**53 - 1
_MAX_DIGITS: Final = 1000
"""Digits of an integer in a member that passes; `int` of thousands is slow, or an error."""
_INTEGERS_OF_64_BITS: Final = range(-(2**63), 2**64)

_Place = tuple[tuple[str | int, ...], object]
_FOLD_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in b'"[]{}')
_FOLD_DIGITS: Final = bytes.maketrans(b"123456789E", b"000000000e")
_SUSPICIOUS_NUMBERS: Final = (b"0" * 16, b"0e000", b"0e+000")
"""In folded bytes: a number without one of these is neither beyond 2^53 - 1 nor, as a float, infinite."""
_SURROGATE_PAIR: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_NOT_STORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},:]', re.DOTALL)
_MAX_STEPS: Final = 200_000
"""Steps of the walk that finds the place of an error; beyond them, the error names the whole body."""
_REFUSALS: Final = {
    "duplicate_key": "An object has a duplicate member. Remove one of them.",
    "number_not_interoperable": "Integers must be within ±(2^53 - 1), other numbers within a double; send it as text.",
    "text_not_storable": "A text or a member name contains NUL or half of a surrogate pair: it cannot be stored.",
}


def json_pointer(path: Iterable[str | int]) -> str:
    """Return a path as a JSON pointer (RFC 6901)."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


class _Members(list[tuple[str, object]]):
    """The members of an object in the order of the text, with duplicates."""


class _BadNumber:
    """A number that is not interoperable. `value`: as an integer; None if it has too many digits."""

    def __init__(self, value: int | None) -> None:
        self.value = value


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
    """Parse a JSON text. Errors name their place.

    `passes` returns whether a member of the top-level object is only passed on to a model: in such a member integers
    may have 64 bits and texts may contain NUL. `produced` returns whether a model or a tool may have produced it, so
    that its reader checks it: integers may have 1000 digits, numbers beyond a double become integers, and texts may
    contain lone surrogates, too. A text with such values is returned as `Unchecked`.

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
        raise _too_deep(text, max_depth)
    digits = body.translate(_FOLD_DIGITS)
    exact = any(suspect in digits for suspect in _SUSPICIOUS_NUMBERS)
    try:
        parsed = _load(text, _EXACT_DECODER if exact else _DECODER)
    except _RefusedError as refused:
        code = refused.code
    else:
        if not _has_bad_escape(unescaped):
            return cast("JsonValue", parsed)
        code = "text_not_storable"
    refusal = _refusal(text, code, passes or _none, produced or _none)
    if refusal is not None:
        raise refusal
    return Unchecked(cast("dict[str, JsonValue]", _load(text, _PASSING_DECODER)))


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


def _too_deep(text: str, max_depth: int) -> Invalid:
    detail = f"The body nests deeper than {max_depth} levels."
    return Invalid("json_too_deep", detail, fields=[FieldError(_pointer_to_depth(text, max_depth), detail)])


def _pointer_to_depth(text: str, max_depth: int) -> str:
    """Return the pointer to the first container inside of `max_depth` containers."""
    path: list[str | int] = []
    last_string = ""
    for step, found in enumerate(_TOKEN.finditer(text)):
        mark = found[0]
        if mark in "[{" and len(path) == max_depth:
            return json_pointer(path)
        if step > _MAX_STEPS or (mark in "]}" and not path):
            break
        if mark in "[{":
            path.append(0 if mark == "[" else "")
        elif mark in "]}":
            path.pop()
        elif mark[0] == '"':
            last_string = mark[1:-1]
        elif path:
            step_inside = path[-1]
            if mark == "," and isinstance(step_inside, int):
                path[-1] = step_inside + 1
            elif mark == ":" and isinstance(step_inside, str):
                path[-1] = last_string
    return ""


def _none(_member: str) -> bool:
    return False


def _refusal(text: str, code: str, passes: Callable[[str], bool], produced: Callable[[str], bool]) -> Invalid | None:
    """Return the error for a refused text: parse it again with a tolerant decoder, and find the place.

    Return None if all refused values are in members that may have them.
    """
    path: tuple[str | int, ...] = ()
    places = list(_walk(_load(text, _TOLERANT_DECODER)))
    for place, value in places:
        member = place[0] if place else None
        found = _fault(value)
        if found and not (
            isinstance(member, str)
            and ((produced(member) and _may_be_produced(value)) or (passes(member) and _may_pass(value)))
        ):
            path, code = place, found
            break
    else:
        if len(places) < _MAX_STEPS and (passes is not _none or produced is not _none):
            return None
    detail = _REFUSALS[code]
    return Invalid(code, detail, fields=[FieldError(json_pointer(path), detail)])


def _may_be_produced(value: object) -> bool:
    """Return whether a reader can store a value that cannot be stored as it is."""
    if isinstance(value, _BadNumber):
        return value.value is not None
    if isinstance(value, _Members):
        return len({name for name, _ in value}) == len(value)
    return isinstance(value, str)


def _may_pass(value: object) -> bool:
    """Return whether a value that cannot be stored can be passed on: an integer of 64 bits, or text with NUL."""
    if isinstance(value, _BadNumber):
        return value.value is not None and value.value in _INTEGERS_OF_64_BITS
    texts = [name for name, _ in value] if isinstance(value, _Members) else [value]
    return _may_be_produced(value) and not any(isinstance(text, str) and _HALF_PAIR.search(text) for text in texts)


def _fault(value: object) -> str | None:
    """Return the error code of a single value, or None."""
    if isinstance(value, _BadNumber):
        return "number_not_interoperable"
    if isinstance(value, str):
        return "text_not_storable" if _NOT_STORABLE.search(value) else None
    if isinstance(value, _Members):
        names = [name for name, _ in value]
        if any(_NOT_STORABLE.search(name) for name in names):
            return "text_not_storable"
        return "duplicate_key" if len(set(names)) != len(names) else None
    return None


def _passing_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise _RefusedError("number_not_interoperable")
    return int(digits)


def _passing_float(digits: str) -> float | int:
    value = float(digits)
    if value - value == 0:
        return value
    number = Decimal(digits)  # it has no fraction worth a digit, and as an integer it is the same number
    if number.adjusted() >= _MAX_DIGITS:
        raise _RefusedError("number_not_interoperable")
    return int(number)


def _int_or_bad(digits: str) -> object:
    try:
        value = _passing_int(digits)
    except _RefusedError:
        return _BadNumber(None)
    return value if abs(value) <= MAX_SAFE_INTEGER else _BadNumber(value)


def _float_or_bad(digits: str) -> object:
    try:
        value = _passing_float(digits)
    except _RefusedError:
        return _BadNumber(None)
    return _BadNumber(value) if isinstance(value, int) else value


def _walk(root: object) -> Iterator[_Place]:
    """Yield the values of a parsed text in its order, with an explicit stack, for at most `_MAX_STEPS` values."""
    stack: list[Iterator[_Place]] = [iter([((), root)])]
    steps = 0
    while stack and steps < _MAX_STEPS:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
            continue
        steps += 1
        yield found
        if isinstance(found[1], list):
            stack.append(_children(found[0], cast("list[object]", found[1])))


def _children(path: tuple[str | int, ...], container: list[object]) -> Iterator[_Place]:
    if isinstance(container, _Members):
        members = cast("list[tuple[str, object]]", container)
        return (((*path, name), member) for name, member in members)
    return (((*path, index), item) for index, item in enumerate(container))


# created once: creating a decoder costs as much as parsing a short body
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
_EXACT_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_exact_int, parse_float=_exact_float, parse_constant=_refuse_constant
)
_PASSING_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_passing_int, parse_float=_passing_float, parse_constant=_refuse_constant
)
_TOLERANT_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_Members, parse_int=_int_or_bad, parse_float=_float_or_bad, parse_constant=_refuse_constant
)
