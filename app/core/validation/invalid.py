"""Pydantic's errors as fields: JSON pointers, and texts that cannot quote the input.

Invariants: pointers contain only declared members, and stop before the first undeclared one. Texts are sentences of
ours that contain nothing of the input. The one exception is the name of an unknown field: it is repeated
if it is short and simple (`unknown_field`).
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

from pydantic import JsonValue, ValidationError
from pydantic_core import ErrorDetails

from app.core.errors import AppError, FieldError, Invalid, InvalidFields, Place, PublicValueError
from app.core.validation.strict import KNOWN_TYPES, SPELLINGS, UNKNOWN_FIELD

MAX_FIELDS: Final = 50
_OTHER_NAMES: Final = frozenset(name for names in SPELLINGS.values() for name in names)
_MAX_READINGS: Final = 32
_ECHOED_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SIMILAR: Final = 0.7
_MIN_PART_CHARACTERS: Final = 4
"""Minimum characters of a partial name to suggest the whole name."""
_UNKNOWN: Final = frozenset({UNKNOWN_FIELD, "extra_forbidden"})
_PLACES: Final[Mapping[str, Place]] = {"body": "body", "query": "query", "path": "path"}
_NO_REASON: Final = "This value is not valid here."
_TEXT: Final = "a text is expected"
_WHOLE: Final = "a whole number is expected"
_NUMBER: Final = "a number is expected"
_LIST: Final = "a list is expected"
_OBJECT: Final = "an object is expected"
_TRUTH: Final = "true or false is expected"
_TIME: Final = "a time is RFC 3339 text with an offset, such as 2026-11-20T08:30:00Z"
_DAY: Final = "a day is text such as 2026-11-20"
_UUID: Final = "a UUID is expected"
_URL: Final = "a URL is expected, such as https://example.com/path"
_OF_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "This is required.": ("missing",),
    "this is not valid JSON": ("json_invalid", "json_type"),
    _TEXT: ("string_type", "string_unicode", "bytes_type"),
    "a text in ASCII is expected": ("string_not_ascii",),
    _WHOLE: ("int_type", "int_parsing", "int_from_float"),
    "a whole number with fewer digits is expected": ("int_parsing_size",),
    _NUMBER: ("float_type", "float_parsing", "decimal_type", "decimal_parsing"),
    "a finite number is expected": ("finite_number",),
    _TRUTH: ("bool_type", "bool_parsing"),
    _LIST: ("list_type", "tuple_type", "set_type", "frozen_set_type", "deque_type", "iterable_type"),
    _OBJECT: (
        "model_type", "model_attributes_type", "dataclass_type", "named_tuple_type", "dict_type", "mapping_type",
        "ordered_dict_type", "frozen_dict_type", "counter_type", "arguments_type",
    ),
    "the names of members are texts": ("invalid_key",),
    "null is expected": ("none_required",),
    _TIME: (
        "datetime_type", "datetime_parsing", "datetime_object_invalid", "datetime_from_date_parsing", "timezone_naive",
        "timezone_aware", "timezone_offset",
    ),
    _DAY: ("date_type", "date_parsing", "date_from_datetime_parsing", "date_from_datetime_inexact"),
    "a time of day is text such as 08:30": ("time_type", "time_parsing"),
    "a duration is text such as PT30M": ("time_delta_type", "time_delta_parsing"),
    _UUID: ("uuid_type", "uuid_parsing", "uuid_version"),
    _URL: ("url_type", "url_parsing", "url_syntax_violation"),
}  # fmt: skip
_REASONS: Final[Mapping[str, str]] = {kind: reason for reason, kinds in _OF_TYPES.items() for kind in kinds}
_TEMPLATES: Final[Mapping[str, str]] = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "bytes_too_short": "at least {min_length} bytes",
    "bytes_too_long": "at most {max_length} bytes",
    "url_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "the pattern of this text is {pattern}",
    "enum": "{expected} is expected",
    "literal_error": "{expected} is expected",
    "url_scheme": "the scheme of a URL is {expected_schemes}",
    "union_tag_invalid": "the member {discriminator} is one of {expected_tags}",
    "union_tag_not_found": "the member {discriminator} is required",
    "decimal_max_digits": "at most {max_digits} digits",
    "decimal_max_places": "at most {decimal_places} decimal places",
    "decimal_whole_digits": "at most {whole_digits} digits before the decimal point",
}
"""Reasons of pydantic's error types, with words of the schema, never of the input."""
_EXPECTED: Final = " is expected"
_ONE: Final = re.compile(r"\b1 (item|character|byte|digit|decimal place)s")


def json_pointer(path: Iterable[str | int]) -> str:
    """Return a path as a JSON pointer (RFC 6901)."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def field_errors(errors: Sequence[ErrorDetails], body: object) -> list[FieldError]:
    """Convert the errors of pydantic to fields: JSON pointers, and texts that cannot quote the input.

    Pydantic puts the names of union branches into `loc`; following it in the body distinguishes them from members.
    """
    # an unknown member without a name has the pointer of its object: each is an error of its own
    by_field: dict[tuple[Place, str, str], list[tuple[FieldError, bool]]] = {}
    for error in errors[: 4 * MAX_FIELDS]:
        place: Place = _PLACES.get(str(error["loc"][0]) if error["loc"] else "body", "header")
        loc = error["loc"][1:]
        path, is_branch = _body_path(loc, body, error) if place == "body" else _parameter_path(loc)
        if error["type"] in _UNKNOWN and path[-1:] == list(loc[-1:]):
            names = cast("Sequence[str]", error.get("ctx", {}).get("known", ()))
            parent = _at(body, path[:-1]) if place == "body" else None
            among = cast("dict[str, object]", parent) if isinstance(parent, dict) else ()
            field = unknown_field(path, names, among=among, place=place)
            key = (place, field.pointer, field.detail)
        else:
            reason = "A body is required." if error["type"] == "missing" and not loc else reason_of(error)
            field = FieldError(json_pointer(path), reason, place)
            key = (place, field.pointer, "")
        by_field.setdefault(key, []).append((field, is_branch))
    return _without_lost_branches([_merged(of_field) for of_field in by_field.values()])


def _merged(errors: Sequence[tuple[FieldError, bool]]) -> tuple[FieldError, bool]:
    """Return one error for the errors of a field: those of the branches of a union are joined."""
    reasons = list(dict.fromkeys(field.detail for field, _ in errors))
    types = [reason.removesuffix(_EXPECTED) for reason in reasons if reason.endswith(_EXPECTED)]
    # a value of the right type breaks another rule of its branch: the types of the other branches do not matter
    rules = [reason for reason in reasons if not reason.endswith(_EXPECTED)]
    detail = rules[0] if rules else " or ".join(types) + _EXPECTED
    return replace(errors[0][0], detail=detail), all(is_branch for _, is_branch in errors)


def public_detail(error: AppError, fields: Sequence[FieldError]) -> str:
    """Return the sentence of an error for a caller: an invalid request has the place of its first wrong field in it.

    `fields` are those of the error, with pointers that may be shown (`cut_fields`).
    """
    if not fields or not isinstance(error, Invalid):
        return error.detail
    first, others = fields[0], len(fields) - 1
    inside = "" if first.place == "body" else f" in the {first.place}"
    at = f"{first.pointer}{inside}: " if first.pointer else ""
    more = f" ({others} more in `errors`)" if others else ""
    if isinstance(error, InvalidFields):
        return f"{at}{first.detail}{more}"
    return error.detail if first.detail in error.detail else f"{error.detail} {at}{first.detail}{more}"


def fields_of(error: ValidationError, value: object, *, root: str = "") -> list[FieldError]:
    """Return pydantic's errors for a value at the pointer `root` of a body."""
    errors: list[ErrorDetails] = error.errors(include_url=False)
    placed = [cast("ErrorDetails", {**details, "loc": ("body", *details["loc"])}) for details in errors]
    return [replace(field, pointer=root + field.pointer) for field in field_errors(placed, value)]


def unknown_field(
    path: Sequence[str | int], names: Sequence[str], *, among: Iterable[str] = (), place: Place = "body"
) -> FieldError:
    """Return the error for the unknown field or query parameter at `path`, with the most similar name of `names`.

    A name is repeated if it has at most 64 letters, digits, `_`, `-` and `.`; other names may be content. The error
    then gives only the number of the member in the object, or of the parameter in the query (`among`).
    """
    what, whole = ("query parameter", "query") if place == "query" else ("field", "object")
    name = str(path[-1])
    if not _ECHOED_NAME.fullmatch(name):
        parameters = list(among)
        number = f": number {parameters.index(name) + 1} of this {whole}" if name in parameters else ""
        return FieldError(json_pointer(path[:-1]), f"Unknown {what}{number}.", place)
    other = next((candidate for candidate in names if name in SPELLINGS.get(candidate, ())), None)
    if other is not None:
        detail = f"`{name}` is another name of `{other}`. Give one of them."
    else:
        similar = _closest_name(name, names)
        detail = f"Unknown {what} `{name}`." + (f" Did you mean `{similar}`?" if similar else "")
    return FieldError(json_pointer(path), detail, place, is_unknown=True)


def _closest_name(name: str, names: Sequence[str]) -> str | None:
    """Return the known name most similar to `name`, compared with its other spellings; None if none is similar.

    Case and separators are ignored.
    """
    folded = {_fold(other): candidate for candidate in names for other in SPELLINGS.get(candidate, ())} | {
        _fold(candidate): candidate for candidate in names
    }
    wanted = _fold(name)
    close = difflib.get_close_matches(wanted, folded, n=1, cutoff=_SIMILAR)
    if not close and len(wanted) >= _MIN_PART_CHARACTERS:
        close = [
            other for other in folded if wanted in other or (len(other) >= _MIN_PART_CHARACTERS and other in wanted)
        ]
    return folded[close[0]] if close else None


def _fold(name: str) -> str:
    return re.sub("[_.-]", "", name.lower())


def cut_fields(fields: Sequence[FieldError], members: frozenset[str]) -> list[FieldError]:
    """Cut pointers into the body before the first member that is not known."""
    cut: list[FieldError] = []
    for found in fields:
        field = found
        steps = field.pointer.split("/")[1:] if field.place == "body" else []
        count = len(steps) - 1 if field.is_unknown else len(steps)
        shown = 0
        while shown < count and (_is_index(steps[shown]) or steps[shown] in members or steps[shown] in _OTHER_NAMES):
            shown += 1
        if shown < count:
            field = replace(field, pointer="".join(f"/{step}" for step in steps[:shown]), is_unknown=False)
        cut.append(field)
    return list(dict.fromkeys(cut))


def _is_index(step: str) -> bool:
    return step.isascii() and step.isdigit() and len(step) < 8  # noqa: PLR2004 - longer than any list in 8 MiB


def property_names(document: JsonValue) -> Iterator[str]:
    """Yield the name of every member that a document of JSON schemas declares."""
    match document:
        case dict():
            for name, value in document.items():
                if name == "properties" and isinstance(value, dict):
                    yield from value
                yield from property_names(value)
        case list():
            for value in document:
                yield from property_names(value)
        case _:
            pass


def _child(value: object, step: str | int) -> tuple[object, ...]:
    """Return the member or item at `step` in a tuple, or an empty tuple."""
    if isinstance(value, dict):
        members = cast("dict[object, object]", value)
        return (members[step],) if step in members else ()
    if isinstance(value, list) and isinstance(step, int):
        items = cast("list[object]", value)
        return (items[step],) if 0 <= step < len(items) else ()
    return ()


def _at(body: object, path: Sequence[str | int]) -> object:
    for step in path:
        child = _child(body, step)
        if not child:
            return None
        body = child[0]
    return body


def _parameter_path(loc: Sequence[str | int]) -> tuple[list[str | int], bool]:
    """Return the path of a parameter's value, without the names of union branches, and whether there were any."""
    path = [step for number, step in enumerate(loc) if number == 0 or isinstance(step, int)]
    return path, len(path) < len(loc)


def _body_path(loc: Sequence[str | int], body: object, error: ErrorDetails) -> tuple[list[str | int], bool]:
    """Return the path of a pydantic `loc` in the body, and whether it ends in a branch of a union.

    Every text in it may be a member or a branch. Of the possible paths, take the one that ends at the value of the
    error, then the longest.
    """
    missing = error["type"] == "missing" and bool(loc)
    readings: list[tuple[tuple[str | int, ...], object, bool]] = [((), body, False)]
    for step in loc[:-1] if missing else loc:
        further = [((*path, step), child[0], False) for path, value, _ in readings if (child := _child(value, step))]
        if isinstance(step, str):
            further += [(path, value, True) for path, value, _ in readings]
        readings = further[:_MAX_READINGS] or readings
    if missing:
        readings = [((*path, loc[-1]), value, False) for path, value, _ in readings if not _child(value, loc[-1])]
    if not readings:
        return [], False
    path, _, is_branch = max(readings, key=lambda reading: (reading[1] is error["input"], len(reading[0])))
    return list(path), is_branch


def _without_lost_branches(fields: list[tuple[FieldError, bool]]) -> list[FieldError]:
    """Drop errors of union branches about the whole value if another branch matched further into it."""
    pointers = {field.pointer for field, _ in fields if field.place == "body"}
    return [
        field
        for field, is_branch in fields
        if not (is_branch and any(other.startswith(f"{field.pointer}/") for other in pointers))
    ]


def reason_of(error: ErrorDetails) -> str:
    """Return the reason without quoting the input."""
    kind, context = error["type"], error.get("ctx", {})
    reason = _REASONS.get(kind)
    if kind in _TEMPLATES:
        reason = _ONE.sub(r"1 \1", _TEMPLATES[kind].format_map(context))
    elif isinstance(raised := context.get("error"), PublicValueError):
        reason = str(raised)
    # a constant sentence, or one with numbers only, of our own (PydanticCustomError) quotes no text
    elif (
        reason is None and kind not in KNOWN_TYPES and all(isinstance(value, int | float) for value in context.values())
    ):
        reason = error["msg"]
    return reason or _NO_REASON
