"""Writes `types.py` of the Python client: a TypedDict for each object of the document, an alias for each other schema.

A response is the parsed JSON itself, so a member that a newer server adds does not break an older client.
"""

import keyword
import re
from collections.abc import Iterator
from typing import Final

from scripts.clients.document import JsonObject, as_list, as_object, events_of, schemas_of

HEADER: Final = '"""Generated from openapi/openapi.json by `make clients`. Do not edit."""\n'
_SIMPLE: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_NAME: Final = re.compile(r"\b[A-Z]\w+")
_EARLY: Final = re.compile(r'[a-z]+|list\[[a-z]+\]|Literal\[("[^"]*"(, )?)+\]')
_SHADOWING: Final = frozenset({"str", "int", "float", "bool", "list", "dict", "object"})
_JSON_VALUE: Final = 'JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"'
STREAMS: Final = {"LiveEvent": "follow_conversation", "ListEvent": "follow_conversations"}


def write_types(document: JsonObject) -> str:
    """Return the source of the module."""
    lines = [HEADER, "from typing import Literal, NotRequired, TypeAlias, TypedDict", ""]
    aliases: dict[str, str] = {}
    for name, schema in sorted(schemas_of(document).items()):
        if name == "JsonValue":
            lines += ["", _JSON_VALUE]
        elif schema.get("type") == "object" and "properties" in schema:
            lines += ["", *_declaration(python_name(name), schema)]
        else:
            aliases[python_name(name)] = type_of(schema)
    aliases |= {alias: type_of(events_of(document, operation_id)) for alias, operation_id in STREAMS.items()}
    lines += [""] + [f"{name}: TypeAlias = {annotation}" for name, annotation in _in_order(aliases)]
    return "\n".join(lines) + "\n"


def type_of(schema: JsonObject, prefix: str = "") -> str:
    """Return the annotation of a schema; `prefix` goes before the names of the module."""
    if "$ref" in schema:
        return prefix + python_name(str(schema["$ref"]).rpartition("/")[2])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " | ".join(dict.fromkeys(type_of(as_object(one), prefix) for one in as_list(schema[several])))
    if "const" in schema or "enum" in schema:
        values = as_list(schema.get("enum", [schema.get("const")]))
        return f"Literal[{', '.join(_literal(value) for value in values)}]"
    return _plain_type(schema, prefix)


def _plain_type(schema: JsonObject, prefix: str) -> str:
    match schema.get("type"):
        case "array":
            return f"list[{type_of(as_object(schema.get('items', {})), prefix)}]"
        case "object":
            values = schema.get("additionalProperties")
            return f"dict[str, {type_of(values, prefix) if isinstance(values, dict) else prefix + 'JsonValue'}]"
        case str(name):
            return _SIMPLE[name]
        case _:
            return prefix + "JsonValue"


def python_name(name: str) -> str:
    """Return the name of a schema in Python: `Page_Fact_` is `FactPage`."""
    return f"{name[5:-1]}Page" if name.startswith("Page_") else name


def _in_order(aliases: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the aliases, each behind those that it names: they are evaluated, so that `X | None` works at run time."""
    left = dict(aliases)
    while left:
        ready = [name for name, annotation in left.items() if not left.keys() & set(_NAME.findall(annotation))]
        if not ready:
            raise ValueError(f"these schemas name each other: {sorted(left)}")
        yield from ((name, left.pop(name)) for name in ready)


def _declaration(name: str, schema: JsonObject) -> list[str]:
    """The TypedDict of an object."""
    required = {str(one) for one in as_list(schema.get("required", []))}
    members = {
        key: _quoted(type_of(as_object(value)))
        if key in required
        else f"NotRequired[{_quoted(type_of(as_object(value)))}]"
        for key, value in as_object(schema["properties"]).items()
    }
    if any(keyword.iskeyword(key) or not key.isidentifier() or key in _SHADOWING for key in members):
        pairs = [f'    "{key}": {value},' for key, value in members.items()]
        return [f'{name} = TypedDict("{name}", {{', *pairs, "})"]
    return ["", f"class {name}(TypedDict):", *_class_body(schema, members)]


def _class_body(schema: JsonObject, members: dict[str, str]) -> Iterator[str]:
    if description := str(schema.get("description", "")).partition("\n")[0]:
        yield f'    """{docstring(description)}"""'
        yield ""
    for key, value in members.items():
        yield f"    {key}: {value}"
    if not members:
        yield "    pass"


def docstring(text: str) -> str:
    """Return a text so that it can stand in a docstring."""
    return text.replace("\\", "\\\\").replace('"""', "'''").rstrip('"')


def _quoted(annotation: str) -> str:
    """An annotation, in quotes where it names something that may be declared further down."""
    return annotation if _EARLY.fullmatch(annotation) else f"'{annotation}'"


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
