"""Fields of an entity: the one list that inserts, views, exports, imports, hashes and erasures of its rows read. Pure.

`conversations.schemas.fields` and `memory.fields` have the lists.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Final, cast
from uuid import UUID

from pydantic import BaseModel, JsonValue

from app.core.ids import format_id
from app.core.times import format_time, truncate_ms

_MAX_SAFE_INTEGER: Final = 2**53 - 1
# made once: `json.dumps` and `json.loads` make another one for each call with options
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class Form(Enum):
    """How a column and a member of a record differ."""

    PLAIN = auto()
    JSON = auto()
    """JSON text in the column, its value in the record."""
    FILLED_JSON = auto()
    """The same, with null in the column for an empty value."""
    JSONB = auto()
    """JSON text in what is read from the column, its value in what is written to it and in the record."""
    ID = auto()
    IDS = auto()
    HASH = auto()
    """Bytes in the column, hexadecimal in the record."""
    TIME = auto()
    TIMES = auto()


@dataclass(frozen=True, slots=True)
class EntityField:
    """A column of an entity.

    `name`: its name in the API and in records, if it is not that of the column; with a dot it is a member of an object.
    `is_recorded`: records of exports have it. `is_content`: erasure empties it, and callers without the scope `read` do
    not see it. `is_input`: callers set it. `is_hashed`: the content hash covers it. `omits_empty`: a record leaves an
    empty value out.
    """

    column: str
    form: Form = Form.PLAIN
    name: str | None = None
    is_recorded: bool = True
    is_content: bool = False
    is_input: bool = False
    is_hashed: bool = False
    omits_empty: bool = False


def json_text(value: object) -> str:
    """Return a value as a column of the type `json` has it."""
    return _ENCODER.encode(value)


def _number(digits: str) -> int | float:
    # jsonb writes 1e22 as 23 digits; not every JSON reader can represent such an integer
    value = int(digits)
    return value if abs(value) <= _MAX_SAFE_INTEGER else float(value)


_DECODER: Final = json.JSONDecoder(parse_int=_number)


def jsonb_value(text: str) -> JsonValue:
    """Return the value of a column of the type `jsonb`."""
    return cast("JsonValue", _DECODER.decode(text))


def _formatted_ids(ids: Iterable[UUID]) -> list[JsonValue]:
    return [format_id(item) for item in ids]


def _formatted_times(times: Iterable[datetime]) -> list[JsonValue]:
    return [format_time(time) for time in times]


def _truncated_times(times: Iterable[datetime]) -> list[datetime]:
    return [truncate_ms(time) for time in times]


def _filled_json_text(value: object) -> str | None:
    return json_text(value) if value else None


_TO_RECORD: Final = cast(
    "Mapping[Form, Callable[[object], JsonValue]]",
    {
        Form.JSON: json.loads,
        Form.FILLED_JSON: json.loads,
        Form.JSONB: jsonb_value,
        Form.ID: format_id,
        Form.IDS: _formatted_ids,
        Form.HASH: bytes.hex,
        Form.TIME: format_time,
        Form.TIMES: _formatted_times,
    },
)


def _members(value: object) -> object:
    """Return a validated value without models: the members that were given."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    return [_members(item) for item in cast("list[object]", value)] if isinstance(value, list) else value


_TO_COLUMN: Final = cast(
    "Mapping[Form, Callable[[object], object]]",
    {
        Form.JSONB: _members,
        Form.JSON: json_text,
        Form.FILLED_JSON: _filled_json_text,
        Form.HASH: bytes.fromhex,
        Form.TIME: truncate_ms,
        Form.TIMES: _truncated_times,
    },
)


def record_of(fields: Iterable[EntityField], row: Mapping[str, object]) -> dict[str, JsonValue]:
    """Return the members of a record, with null for what the row does not have."""
    record: dict[str, JsonValue] = {}
    for field in fields:
        if field.is_recorded:
            value, convert = row[field.column], _TO_RECORD.get(field.form)
            member = cast("JsonValue", value) if value is None or convert is None else convert(value)
            if field.omits_empty and not member:
                member = None
            group, _, name = (field.name or field.column).rpartition(".")
            members = cast("dict[str, JsonValue]", record.setdefault(group, {})) if group else record
            members[name] = member
    return record


def columns_of(fields: Iterable[EntityField], record: BaseModel) -> dict[str, object]:
    """Return the columns of a validated record: the inverse of `record_of`. Null for what it does not have."""
    columns: dict[str, object] = {}
    for field in fields:
        if field.is_recorded:
            value: object = record
            for name in (field.name or field.column).split("."):
                value = None if value is None else getattr(value, name)
            columns[field.column] = to_column(field, value)
    return columns


def to_column(field: EntityField, value: object) -> object:
    """Return the value of a column for that of a record or of a request."""
    if value is None:
        return None
    convert = _TO_COLUMN.get(field.form)
    if convert is not None:
        return convert(value)
    return value.value if isinstance(value, Enum) else value
