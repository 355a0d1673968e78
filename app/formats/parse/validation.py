"""Checks that every parser applies to its input. Errors name the place by a JSON pointer and never repeat content.

Invariant: a value that `check_json` accepts is storable JSON, nested no deeper than `MAX_DEPTH`.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar, cast

from pydantic import JsonValue

from app.core.errors import FieldError, Invalid, InvalidFields
from app.formats.parts import compact_json
from app.formats.schemas import GIVEN, JsonObject, ParsedTurn, Role, TurnLike

MAX_DEPTH: Final = 64
MAX_NAME: Final = 256
"""Maximum characters of a name or an id."""

_MAX_SAFE_INTEGER: Final = 2**53 - 1
_NOT_STORABLE: Final = re.compile("[\x00\ud800-\udfff]")
MEMBER_NAMES: Final = frozenset(
    {
        *("arguments", "call_id", "content", "custom", "function", "function_call", "id", "input", "name", "output"),
        *("role", "system", "text", "tool_call_id", "tool_calls", "tool_results", "tool_use_id", "type"),
    }
)
"""Member names that a pointer may contain. All other names are the caller's own."""

Value = TypeVar("Value")
_Place: TypeAlias = tuple[object, str, bool]
"""A value, its pointer, and whether all names of members in the pointer are known."""


def field_error(at: str, detail: str, code: str = "invalid_request") -> Invalid:
    """Return the error of one wrong field."""
    return InvalidFields([FieldError(at, detail)], code=code)


def check_json(json_value: object, at: str, *, check_scalars: bool = True) -> None:
    """Raise Invalid if a value is not JSON, cannot be stored, or nests too deeply. Does not recurse.

    Without `check_scalars` texts and integers may have any value.
    """
    stack: list[Iterator[_Place]] = [iter([(json_value, at, True)])]  # one for each level
    while stack:
        place = next(stack[-1], None)
        if place is None:
            stack.pop()
            continue
        value, pointer, is_known = place
        if isinstance(value, dict | list):
            if len(stack) > MAX_DEPTH:
                raise field_error(pointer, f"nested deeper than {MAX_DEPTH} levels", "json_too_deep")
            members = cast("dict[object, object] | list[object]", value)
            stack.append(_members(members, pointer, is_known=is_known, check_names=check_scalars))
        elif check_scalars or not isinstance(value, str | int):
            _check_scalar(value, pointer)


def _members(
    value: dict[object, object] | list[object], pointer: str, *, is_known: bool, check_names: bool
) -> Iterator[_Place]:
    """Yield the places below a value one at a time: all at once would take many times the memory of the value."""
    for key, member in value.items() if isinstance(value, dict) else enumerate(value):
        if check_names and isinstance(value, dict):
            _check_key(key, pointer)
        # the pointer ends before the first member whose name is the caller's own
        is_known_member = is_known and (isinstance(key, int) or key in MEMBER_NAMES)
        yield member, f"{pointer}/{key}" if is_known_member else pointer, is_known_member


def _check_key(key: object, pointer: str) -> None:
    if not isinstance(key, str):
        raise field_error(pointer, "the names of members must be strings")
    _check_scalar(key, pointer)


def _check_scalar(value: object, pointer: str) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        if _NOT_STORABLE.search(value):
            raise field_error(pointer, "it contains NUL or half of a surrogate pair", "text_not_storable")
    elif isinstance(value, int):
        if abs(value) > _MAX_SAFE_INTEGER:
            raise field_error(pointer, "integers must be within ±(2^53 - 1)", "number_not_interoperable")
    elif not isinstance(value, float):
        raise field_error(pointer, "not a JSON value")
    elif not math.isfinite(value):
        raise field_error(pointer, "not a JSON number", "number_not_interoperable")


def read_name(owner: JsonObject, member: str, at: str) -> str:
    """Return a member that is a name or an id: 1 to 256 characters. Raises Invalid."""
    value = owner.get(member)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME:
        raise field_error(f"{at}/{member}", f"a text of 1 to {MAX_NAME} characters")
    return value


def is_name(value: JsonValue) -> bool:
    """Return whether a value is a valid name or id."""
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME


def read_text(owner: JsonObject, member: str, at: str) -> str:
    """Return a member that is a text, empty or not. Raises Invalid."""
    value = owner.get(member)
    if not isinstance(value, str):
        raise field_error(f"{at}/{member}", "a text")
    return value


def read_object(owner: JsonObject, member: str, at: str) -> JsonObject:
    """Return a member that is an object. Raises Invalid."""
    value = owner.get(member)
    if not isinstance(value, dict):
        raise field_error(f"{at}/{member}", "an object")
    return value


def check_arguments(owner: JsonObject, at: str) -> str | JsonObject:
    """Check the arguments of a call: JSON text or an object. Raises Invalid."""
    value = owner.get("arguments")
    if not isinstance(value, str | dict):
        raise field_error(f"{at}/arguments", "JSON text or an object")
    return value


def check_call(call: JsonObject, at: str) -> JsonObject:
    """Check a call: `{id, name, arguments}` or `{id, function: {name, arguments}}`. Raises Invalid."""
    read_name(call, "id", at)
    body, inner = call, at
    if "function" in call:
        body, inner = read_object(call, "function", at), f"{at}/function"
    read_name(body, "name", inner)
    check_arguments(body, inner)
    return call


def read_role(owner: JsonObject, roles: Mapping[str, Role], at: str) -> Role:
    """Return the role of a message, if the format knows it. Raises Invalid."""
    value = owner.get("role")
    if not isinstance(value, str) or value not in roles:
        raise field_error(f"{at}/role", f"one of {', '.join(roles)}")
    return roles[value]


def read_content(owner: JsonObject, member: str, at: str, *, allow_reserved: bool = False) -> str | list[JsonObject]:
    """Return content: text, or typed parts as given; parts with extra fields are allowed only if `allow_reserved`.

    Raises Invalid.
    """
    value = owner.get(member)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise field_error(f"{at}/{member}", "text or a list of typed parts")
    return [_part(part, f"{at}/{member}/{index}", allow_reserved=allow_reserved) for index, part in enumerate(value)]


def _part(part: JsonValue, at: str, *, allow_reserved: bool) -> JsonObject:
    if not isinstance(part, dict):
        raise field_error(at, "a part is an object with a type")
    kind = read_name(part, "type", at)
    if kind in {"text", "input_text", "output_text"}:
        read_text(part, "text", at)
    if kind == GIVEN and not allow_reserved:
        raise field_error(f"{at}/type", "this part type is reserved")
    return part


def require_distinct(entries: Mapping[str, JsonObject], member: str) -> list[JsonObject]:
    """Return the calls or results of one turn, from their pointers. Raises Invalid if two have one id."""
    seen: set[str] = set()
    for pointer, entry in entries.items():
        key = compact_json(entry.get(member))
        if key in seen:
            raise field_error(pointer, "this id is used twice in one message")
        seen.add(key)
    return [*entries.values()]


def is_parsed_as(parse: Callable[[], Sequence[ParsedTurn]], turns: Sequence[TurnLike]) -> bool:
    """Return whether a message is valid and its turns are these."""
    try:
        parsed = parse()
    except Invalid:
        return False
    return len(parsed) == len(turns) and all(mine.is_equal_to(turn) for mine, turn in zip(parsed, turns, strict=True))
