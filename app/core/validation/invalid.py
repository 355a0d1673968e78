"""Pydantic's errors as fields: JSON pointers, and texts that cannot quote the input.

Invariants: pointers contain only declared members, and stop before the first undeclared one. Texts are sentences of
ours or of pydantic that contain nothing of the input. The one exception is the name of an unknown field: it is repeated
if it is short and simple (`unknown_field`).
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final, cast

from pydantic import JsonValue, ValidationError
from pydantic_core import ErrorDetails

from app.core.errors import FieldError, Place
from app.core.validation.json_text import json_pointer
from app.core.validation.strict import SPELLINGS, UNKNOWN_FIELD

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
_REASONS: Final[Mapping[str, str]] = {
    "missing": "This is required.",
    "json_invalid": "This is not valid JSON.",
    "model_type": "Input should be an object.",
    "model_attributes_type": "Input should be an object.",
    "dict_type": "Input should be an object.",
    "uuid_parsing": "Input should be a valid UUID.",
    "url_parsing": "Input should be a valid URL.",
    "date_parsing": "Input should be a valid date.",
    "date_from_datetime_parsing": "Input should be a valid date.",
    "time_parsing": "Input should be a valid time.",
    "datetime_parsing": "Input should be a valid time in RFC 3339.",
    "datetime_from_date_parsing": "Input should be a valid time in RFC 3339.",
    "time_delta_parsing": "Input should be a valid duration.",
}
# pydantic's error types whose text contains words of the schema, never of the input
_VERBATIM: Final = frozenset(
    {
        "greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of",
        "too_short", "too_long", "string_too_short", "string_too_long", "bytes_too_short", "bytes_too_long",
        "string_pattern_mismatch", "enum", "literal_error", "union_tag_not_found",
        "url_scheme", "url_too_long", "uuid_version",
        "decimal_max_digits", "decimal_max_places", "decimal_whole_digits",
    }
)  # fmt: skip


def field_errors(errors: Sequence[ErrorDetails], body: object) -> list[FieldError]:
    """Convert the errors of pydantic to fields: JSON pointers, and texts that cannot quote the input.

    Pydantic puts the names of union branches into `loc`; following it in the body distinguishes them from members.
    """
    found: dict[tuple[Place, str, str], tuple[FieldError, bool]] = {}
    for error in errors[: 4 * MAX_FIELDS]:
        place: Place = _PLACES.get(str(error["loc"][0]) if error["loc"] else "body", "header")
        loc = error["loc"][1:]
        path, is_branch = _body_path(loc, body, error) if place == "body" else (list(loc), False)
        if error["type"] in _UNKNOWN and path[-1:] == list(loc[-1:]):
            known = cast("Sequence[str]", error.get("ctx", {}).get("known", ()))
            parent = _at(body, path[:-1]) if place == "body" else None
            among = cast("dict[str, object]", parent) if isinstance(parent, dict) else ()
            field = unknown_field(path, known, among=among, place=place)
        else:
            reason = "A body is required." if error["type"] == "missing" and not loc else _reason(error)
            field = FieldError(json_pointer(path), reason, place)
        found.setdefault((place, field.pointer, field.detail), (field, is_branch))
    return _without_lost_branches(list(found.values()))


def fields_of(error: ValidationError, value: object, *, root: str = "") -> list[FieldError]:
    """Return pydantic's errors for a value at the pointer `root` of a body."""
    found: list[ErrorDetails] = error.errors(include_url=False)
    placed = [cast("ErrorDetails", {**one, "loc": ("body", *one["loc"])}) for one in found]
    return [replace(field, pointer=root + field.pointer) for field in field_errors(placed, value)]


def unknown_field(
    path: Sequence[str | int], known: Iterable[str], *, among: Iterable[str] = (), place: Place = "body"
) -> FieldError:
    """Return the error for the unknown field or query parameter at `path`, with the most similar `known` name.

    A name is repeated if it has at most 64 letters, digits, `_`, `-` and `.`; other names may be content. The error
    then gives only the number of the member in the object, or of the parameter in the query (`among`).
    """
    what, whole = ("query parameter", "query") if place == "query" else ("field", "object")
    name = str(path[-1])
    if not _ECHOED_NAME.fullmatch(name):
        given = list(among)
        number = f": number {given.index(name) + 1} of this {whole}" if name in given else ""
        return FieldError(json_pointer(path[:-1]), f"Unknown {what}{number}.", place)
    names = list(known)
    other = next((one for one in names if name in SPELLINGS.get(one, ())), None)
    if other is not None:
        detail = f"`{name}` is another name of `{other}`. Give one of them."
    else:
        similar = _closest_name(name, names)
        detail = f"Unknown {what} `{name}`." + (f" Did you mean `{similar}`?" if similar else "")
    return FieldError(json_pointer(path), detail, place, is_unknown=True)


def _closest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `name`, compared with its other spellings; None if none is similar.

    Case and separators are ignored.
    """
    names = list(known)
    folded = {_fold(other): one for one in names for other in SPELLINGS.get(one, ())} | {
        _fold(one): one for one in names
    }
    wanted = _fold(name)
    close = difflib.get_close_matches(wanted, folded, n=1, cutoff=_SIMILAR)
    if not close and len(wanted) >= _MIN_PART_CHARACTERS:
        close = [one for one in folded if wanted in one or (len(one) >= _MIN_PART_CHARACTERS and one in wanted)]
    return folded[close[0]] if close else None


def _fold(name: str) -> str:
    return re.sub("[_.-]", "", name.lower())


def cut_fields(fields: Sequence[FieldError], known: frozenset[str]) -> list[FieldError]:
    """Cut pointers into the body before the first member that is not known."""
    cut: list[FieldError] = []
    for found in fields:
        field = found
        steps = field.pointer.split("/")[1:] if field.place == "body" else []
        last = len(steps) - 1 if field.is_unknown else len(steps)
        kept = 0
        while kept < last and (_is_index(steps[kept]) or steps[kept] in known or steps[kept] in _OTHER_NAMES):
            kept += 1
        if kept < last:
            field = replace(field, pointer="".join(f"/{step}" for step in steps[:kept]), is_unknown=False)
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


def _without_lost_branches(found: list[tuple[FieldError, bool]]) -> list[FieldError]:
    """Drop errors of union branches about the whole value if another branch matched further into it."""
    pointers = {field.pointer for field, _ in found if field.place == "body"}
    return [
        field
        for field, is_branch in found
        if not (is_branch and any(other.startswith(f"{field.pointer}/") for other in pointers))
    ]


def _reason(error: ErrorDetails) -> str:
    """Return the reason without quoting the input."""
    kind, context = error["type"], error.get("ctx", {})
    reason = _REASONS.get(kind)
    if kind in {"value_error", "assertion_error"}:
        raised = context.get("error")
        reason = _literal_text(raised) if isinstance(raised, Exception) else None
    elif kind == "union_tag_invalid":
        reason = f"The member {context.get('discriminator')} should be one of {context.get('expected_tags')}."
    elif reason is None and (
        # a constant sentence, or one with numbers only, of pydantic or of our own (PydanticCustomError), quotes no text
        kind in _VERBATIM or all(isinstance(value, int | float) for value in context.values())
    ):
        reason = error["msg"]
    return reason or _NO_REASON


def _literal_text(error: Exception) -> str | None:
    """Return the text of an exception if it is a literal in the code that raised it; otherwise it may quote the input.

    So the text of a validator's `raise ValueError("a turn needs content")` is shown to the caller, and the message of
    `int("…")` is not.
    """
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    text = str(error)
    return text if trace is not None and text in trace.tb_frame.f_code.co_consts else None
