"""What pydantic found wrong, as fields: JSON pointers, and texts that cannot quote the input.

What always holds: pointers name only members that are declared, and stop before the first that is not; texts are
sentences of ours or of pydantic that have nothing of the input in them.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, cast

from pydantic import JsonValue
from pydantic_core import ErrorDetails

from app.core.errors import FieldError, Place
from app.core.json_text import json_pointer

MAX_FIELDS: Final = 50
_MAX_READINGS: Final = 32
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
# pydantic's types whose text has words in it that come from the schema, never from the input
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
    """Turn the errors of pydantic into fields: JSON pointers, and texts that cannot quote the input.

    Pydantic puts the names of union branches into `loc`; they are told from members by walking the body along.
    """
    found: dict[tuple[Place, str, str], tuple[FieldError, bool]] = {}
    for error in errors[: 4 * MAX_FIELDS]:
        place: Place = _PLACES.get(str(error["loc"][0]) if error["loc"] else "body", "header")
        loc = error["loc"][1:]
        if place == "body":
            path, is_branch = _body_path(loc, body, error)
            reason = _reason(error, _at(body, path[:-1]), path[-1] if path else None)
            if error["type"] == "missing" and not loc:
                reason = "A body is required."
            if error["type"] == "extra_forbidden":
                path = path[:-1]
        else:
            path, is_branch = ([] if error["type"] == "extra_forbidden" else list(loc)), False
            reason = _reason(error, None, None)
        pointer = json_pointer(path)
        found.setdefault((place, pointer, reason), (FieldError(pointer, reason, place), is_branch))
    return _without_lost_branches(list(found.values()))


def cut_fields(fields: Sequence[FieldError], known: frozenset[str]) -> list[FieldError]:
    """Stop pointers into the body before the first member that is not among the known ones."""
    cut: list[FieldError] = []
    for field in fields:
        steps = field.pointer.split("/")[1:] if field.place == "body" else []
        kept = 0
        while kept < len(steps) and (_is_index(steps[kept]) or steps[kept] in known):
            kept += 1
        pointer = "".join(f"/{step}" for step in steps[:kept]) if field.place == "body" else field.pointer
        cut.append(FieldError(pointer, field.detail, field.place))
    return list(dict.fromkeys(cut))


def _is_index(step: str) -> bool:
    return step.isascii() and step.isdigit() and len(step) < 8  # noqa: PLR2004 - longer than any list in 8 MiB


def property_names(document: JsonValue) -> Iterator[str]:
    """Give the name of every member that a document of JSON schemas declares."""
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
    """Return the member or item at `step` in a tuple, or nothing."""
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
    """Read a `loc` of pydantic against the body: its path, and whether it ends in a branch of a union.

    Every text in it may be a member or a branch; of the possible readings the one is taken that ends at the very
    value the error is about, then the longest.
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
    """Drop what other branches of a union say about the whole value where one branch got further into it."""
    pointers = {field.pointer for field, _ in found if field.place == "body"}
    return [
        field
        for field, is_branch in found
        if not (is_branch and any(other.startswith(f"{field.pointer}/") for other in pointers))
    ]


def _reason(error: ErrorDetails, parent: object, step: str | int | None) -> str:
    """Say what is wrong without quoting the input. `parent` and `step` say where in the body an unknown member is."""
    kind, context = error["type"], error.get("ctx", {})
    reason = _REASONS.get(kind)
    if kind in {"value_error", "assertion_error"}:
        raised = context.get("error")
        reason = _literal_text(raised) if isinstance(raised, Exception) else None
    elif kind == "union_tag_invalid":
        reason = f"The member {context.get('discriminator')} should be one of {context.get('expected_tags')}."
    elif kind == "extra_forbidden":
        names = list(cast("dict[str | int | None, object]", parent)) if isinstance(parent, dict) else []
        number = names.index(step) + 1 if step in names else 0
        reason = f"Member {number} of this object is not known here." if number else "A parameter is not known here."
    elif reason is None and (
        # a constant sentence, or one with numbers only, of pydantic or of our own (PydanticCustomError), quotes no text
        kind in _VERBATIM or all(isinstance(value, int | float) for value in context.values())
    ):
        reason = error["msg"]
    return reason or _NO_REASON


def _literal_text(error: Exception) -> str | None:
    """Return the text of an exception if it stands literally in the code that raised it; else it may quote the input.

    So a validator's `raise ValueError("a turn needs content")` is told to the caller, and int("…")'s complaint is not.
    """
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    text = str(error)
    return text if trace is not None and text in trace.tb_frame.f_code.co_consts else None
