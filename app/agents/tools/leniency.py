"""Read the arguments of a tool as clients and models write them, by the tool's schema. Pure.

Many of them send every member, with null, "null", or a number or an object as text. Invariant: only a value that the
schema does not allow is changed, except `null` as text where a name or an id is expected. So a member that takes any
text, such as `content` or `query`, is never changed, and neither is anything inside of an object whose members are the
caller's own, such as `metadata`.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final, cast

from pydantic import JsonValue

from app.core.errors import AppError
from app.core.validation.json_text import parse_json
from app.core.validation.strict import SPELLINGS

JsonSchema = Mapping[str, object]

_NULLS: Final = frozenset({"null", "None", "undefined"})
_NAMES: Final = frozenset({"id", "owner", "project", "cursor", "through", "operation_token"})
"""Members that name an object, besides those that end in `_id`: the text `null` in them means that there is none."""
_BOOLEANS: Final = {"true": True, "false": False}
_INTEGER: Final = re.compile(r"-?[0-9]{1,16}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,16}(?:\.[0-9]{1,16})?(?:[eE][+-]?[0-9]{1,3})?")
_MAX_DEPTH: Final = 32
"""Levels of a JSON text in place of an object or a list, as of a request's body."""


def read_arguments(arguments: Mapping[str, JsonValue], schema: JsonSchema) -> dict[str, JsonValue]:
    """Return arguments whose members have the types of a schema, where their texts leave no doubt."""
    return _read_members(arguments, list(_branches(schema)))


def _read_members(members: Mapping[str, JsonValue], branches: list[JsonSchema]) -> dict[str, JsonValue]:
    declared: dict[str, JsonSchema] = {}
    for branch in branches:
        for name, schema in cast("Mapping[str, JsonSchema]", branch.get("properties", {})).items():
            declared.setdefault(name, schema)
            declared.update({other: schema for other in SPELLINGS.get(name, ()) if other not in declared})
    result: dict[str, JsonValue] = {}
    for name, value in members.items():
        schema = declared.get(name)
        if schema is None:
            result[name] = value
        elif not _is_omitted(name, value, list(_branches(schema))):
            result[name] = _read(value, list(_branches(schema)))
    return result


def _is_omitted(name: str, value: JsonValue, branches: list[JsonSchema]) -> bool:
    if value is None:
        return not _takes(branches, "null")
    if not isinstance(value, str) or value not in _NULLS or value in _choices(branches):
        return False
    return name in _NAMES or name.endswith("_id") or not _takes_any_text(branches)


def _read(value: JsonValue, branches: list[JsonSchema]) -> JsonValue:
    if isinstance(value, str) and not _takes_any_text(branches):
        value = _of_text(value, branches)
    if (
        isinstance(value, float)
        and value.is_integer()
        and not _takes(branches, "number")
        and _takes(branches, "integer")
    ):
        return int(value)
    if isinstance(value, dict):
        return _read_members(value, branches)
    if isinstance(value, list):
        items = [item for branch in branches for item in _item_branches(branch)]
        return [_read(item, items) for item in value] if items else value
    return value


def _of_text(text: str, branches: list[JsonSchema]) -> JsonValue:
    """Return the value that a text stands for, or the text, which the schema then refuses."""
    if text.casefold() in _BOOLEANS and _takes(branches, "boolean"):
        return _BOOLEANS[text.casefold()]
    if _takes(branches, "integer") and _INTEGER.fullmatch(text):
        return int(text)
    if _takes(branches, "number") and _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    if _takes(branches, "object") or _takes(branches, "array"):
        try:
            value = parse_json(text.encode(errors="surrogatepass"), max_depth=_MAX_DEPTH)
        except AppError:
            return text
        if _takes(branches, "object" if isinstance(value, dict) else "array") and isinstance(value, dict | list):
            return value
    return text


def _branches(schema: JsonSchema) -> Iterator[JsonSchema]:
    """Yield the alternatives of a schema."""
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if not isinstance(alternatives, list):
        yield schema
        return
    for alternative in cast("list[JsonSchema]", alternatives):
        yield from _branches(alternative)


def _item_branches(branch: JsonSchema) -> list[JsonSchema]:
    items = branch.get("items")
    return list(_branches(cast("JsonSchema", items))) if isinstance(items, dict) else []


def _takes(branches: list[JsonSchema], type_name: str) -> bool:
    return any(branch.get("type") == type_name for branch in branches)


def _takes_any_text(branches: list[JsonSchema]) -> bool:
    return any(
        branch.get("type") in {"string", None} and not branch.keys() & {"enum", "const", "format", "properties"}
        for branch in branches
    )


def _choices(branches: list[JsonSchema]) -> list[object]:
    return [
        choice
        for branch in branches
        for choice in (
            *cast("list[object]", branch.get("enum", [])),
            *((branch["const"],) if "const" in branch else ()),
        )
    ]
