"""What every parser asks of what it was given. Errors name the place by a JSON pointer and never repeat its content.

Always holds: what was looked at by `checked` is JSON that can be stored, nested no deeper than `MAX_DEPTH`.
"""

import math
import re
from collections.abc import Mapping
from typing import Final, TypeVar, cast

from pydantic import JsonValue

from app.core.errors import FieldError, Invalid
from app.formats.parts import compact
from app.formats.schemas import GIVEN, JsonObject, Role

MAX_DEPTH: Final = 64
MAX_NAME: Final = 256
"""Characters of a name or an id, as of a turn."""

_MAX_SAFE_INTEGER: Final = 2**53 - 1
_NOT_STORABLE: Final = re.compile("[\x00\ud800-\udfff]")
MEMBER_NAMES: Final = frozenset({
    "arguments", "call_id", "content", "function", "id", "input", "name", "output", "role", "system", "text",
    "tool_call_id", "tool_calls", "tool_results", "tool_use_id", "type",
})  # fmt: skip
"""Members of providers' messages, so that a pointer may go through them."""

Value = TypeVar("Value")


def refusal(at: str, detail: str, code: str = "invalid_request") -> Invalid:
    """The error for one wrong field."""
    return Invalid(code, "A message breaks a rule of its format.", fields=[FieldError(at, detail)])


def checked_objects(given: object, at: str) -> list[JsonObject]:
    """A list of JSON objects. Raises Invalid naming the first wrong value."""
    if not isinstance(given, list):
        raise refusal(at, "a list of objects")
    values = cast("list[object]", given)
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise refusal(f"{at}/{index}", "an object")
        check_json(cast("object", value), f"{at}/{index}")
    return cast("list[JsonObject]", values)


def check_json(given: object, at: str) -> None:
    """Raise Invalid where a value is no JSON, cannot be stored, or nests too deeply. Walks without recursion."""
    waiting: list[tuple[object, str, int, bool]] = [(given, at, 1, True)]
    while waiting:
        value, place, depth, named = waiting.pop()
        if isinstance(value, dict | list):
            if depth > MAX_DEPTH:
                raise refusal(place, f"nested deeper than {MAX_DEPTH} levels", "json_too_deep")
            inner = cast("dict[object, object] | list[object]", value)
            steps = inner.items() if isinstance(inner, dict) else enumerate(inner)
            for key, one in steps:
                if isinstance(inner, dict):
                    _check_key(key, place)
                # behind the first member whose name is the caller's own, the pointer goes no further
                further = named and (isinstance(key, int) or key in MEMBER_NAMES)
                waiting.append((one, f"{place}/{key}" if further else place, depth + 1, further))
        else:
            _check_scalar(value, place)


def _check_key(key: object, place: str) -> None:
    if not isinstance(key, str):
        raise refusal(place, "the names of members are texts")
    _check_scalar(key, place)


def _check_scalar(value: object, place: str) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        if _NOT_STORABLE.search(value):
            raise refusal(place, "it holds NUL or half of a surrogate pair", "text_not_storable")
    elif isinstance(value, int):
        if abs(value) > _MAX_SAFE_INTEGER:
            raise refusal(place, "integers lie within ±(2^53 - 1)", "number_not_interoperable")
    elif not isinstance(value, float):
        raise refusal(place, "not a value of JSON")
    elif not math.isfinite(value):
        raise refusal(place, "not a number of JSON", "number_not_interoperable")


def name_of(owner: JsonObject, member: str, at: str) -> str:
    """A member that is a name or an id: 1 to 256 characters. Raises Invalid."""
    value = owner.get(member)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME:
        raise refusal(f"{at}/{member}", f"a text of 1 to {MAX_NAME} characters")
    return value


def is_name(value: JsonValue) -> bool:
    """Whether a value could be a name or an id."""
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME


def text_in(owner: JsonObject, member: str, at: str) -> str:
    """A member that is a text, empty or not. Raises Invalid."""
    value = owner.get(member)
    if not isinstance(value, str):
        raise refusal(f"{at}/{member}", "a text")
    return value


def object_in(owner: JsonObject, member: str, at: str) -> JsonObject:
    """A member that is an object. Raises Invalid."""
    value = owner.get(member)
    if not isinstance(value, dict):
        raise refusal(f"{at}/{member}", "an object")
    return value


def arguments_in(owner: JsonObject, at: str) -> str | JsonObject:
    """The arguments of a call: JSON text or an object. Raises Invalid."""
    value = owner.get("arguments")
    if not isinstance(value, str | dict):
        raise refusal(f"{at}/arguments", "JSON text or an object")
    return value


def role_in(owner: JsonObject, roles: Mapping[str, Role], at: str) -> Role:
    """The role of a message, one of those that the format knows. Raises Invalid."""
    value = owner.get("role")
    if not isinstance(value, str) or value not in roles:
        raise refusal(f"{at}/role", f"one of {', '.join(roles)}")
    return roles[value]


def content_in(owner: JsonObject, member: str, at: str, *, ours: bool = False) -> str | list[JsonObject]:
    """A content: text, or typed parts as they were given; parts that keep something only where they are `ours`.

    Raises Invalid.
    """
    value = owner.get(member)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refusal(f"{at}/{member}", "text or a list of typed parts")
    return [_part(part, f"{at}/{member}/{index}", ours=ours) for index, part in enumerate(value)]


def _part(part: JsonValue, at: str, *, ours: bool) -> JsonObject:
    if not isinstance(part, dict):
        raise refusal(at, "a part is an object with a type")
    kind = name_of(part, "type", at)
    if kind in {"text", "input_text", "output_text"}:
        text_in(part, "text", at)
    if kind == GIVEN and not ours:
        raise refusal(f"{at}/type", "this type is kept for our own parts")
    return part


def distinct(given: list[JsonObject], member: str, at: str) -> list[JsonObject]:
    """The calls or results of one turn. Raises Invalid where two have one id."""
    seen: set[str] = set()
    for index, one in enumerate(given):
        key = compact(one.get(member))
        if key in seen:
            raise refusal(f"{at}/{index}", "this id stands twice in one message")
        seen.add(key)
    return given
