"""Writes the API reference from `openapi/openapi.json`: a page for each tag, and one with all objects."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pydantic import JsonValue

Node: TypeAlias = Mapping[str, JsonValue]

OBJECTS: Final = "api/objects.md"
INDEX: Final = "api/index.md"
_METHODS: Final = ("get", "post", "put", "patch", "delete")
_BOUNDS: Final = (
    ("minimum", "≥ {}"), ("exclusiveMinimum", "> {}"), ("maximum", "≤ {}"), ("exclusiveMaximum", "< {}"),
    ("minLength", "at least {} characters"), ("maxLength", "at most {} characters"),
    ("minItems", "at least {} items"), ("maxItems", "at most {} items"),
)  # fmt: skip
_EXAMPLE_LINES: Final = 60
_ONE_CHARACTER: Final = "at least 1 characters"


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the reference: its path in the site, its title, its text."""

    path: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation with its method and path."""

    method: str
    path: str
    node: Node

    @property
    def anchor(self) -> str:
        """The anchor of its heading."""
        return str(self.node["operationId"])


def write_reference(document: Node) -> list[Page]:
    """Return all pages: the overview, one for each tag in the document's order, the webhook events, the objects."""
    tags = [_node(tag) for tag in _list(document["tags"])]
    operations = list(_operations(_node(document["paths"])))
    schemas = _node(_node(document["components"])["schemas"])
    pages = [
        Page(f"api/{tag['name']}.md", _sentence(str(tag["name"])), _tag_page(tag, _of_tag(operations, tag), schemas))
        for tag in tags
    ]
    events = list(_operations(_node(document["webhooks"])))
    pages.append(Page("api/events.md", "Webhook events", _events_page(events)))
    pages.append(Page(OBJECTS, "Objects", _objects_page(schemas)))
    return [Page(INDEX, "API reference", _index_page(document, tags, operations)), *pages]


def _operations(paths: Node) -> Iterator[Operation]:
    for path, item in paths.items():
        for method, node in _node(item).items():
            if method in _METHODS:
                yield Operation(method.upper(), path, _node(node))


def _of_tag(operations: Sequence[Operation], tag: Node) -> list[Operation]:
    return [one for one in operations if _list(one.node["tags"])[0] == tag["name"]]


def _index_page(document: Node, tags: Sequence[Node], operations: Sequence[Operation]) -> str:
    info = _node(document["info"])
    links = (
        f"Version {info['version']}. The same for programs: [openapi.json](../files/openapi/openapi.json). A running "
        "server has it at `/openapi.json`, with a form to try each call at `/docs`. WebSockets and event "
        "streams: [live protocol](../live.md) and [asyncapi.json](../files/openapi/asyncapi.json). Errors: "
        "[all codes](../errors.md)."
    )
    lines = ["# API reference", "", str(info["description"]).strip(), "", links, ""]
    for tag in tags:
        name = str(tag["name"])
        lines += [f"## [{_sentence(name)}]({name}.md)", "", str(tag["description"]), "", "| call | does |", "|---|---|"]
        lines += [
            f"| [`{one.method} {one.path}`]({name}.md#{one.anchor}) | {_first_sentence(one.node)} |"
            for one in _of_tag(operations, tag)
        ]
        lines.append("")
    return "\n".join(lines)


def _tag_page(tag: Node, operations: Sequence[Operation], schemas: Node) -> str:
    parts = [f"# {_sentence(str(tag['name']))}", str(tag["description"])]
    parts += [_operation_text(one, schemas) for one in operations]
    return "\n\n".join(parts) + "\n"


def _operation_text(operation: Operation, schemas: Node) -> str:
    node = operation.node
    parts = [
        f"## {_sentence(str(node['summary']))} {{#{operation.anchor}}}",
        f"`{operation.method} {operation.path}`",
        _prose(node.get("description")),
    ]
    parameters = [_node(one) for one in _list(node.get("parameters", []))]
    if parameters:
        rows = [
            (f"`{one['name']}`", str(one["in"]), type_text(_node(one["schema"])), _parameter_meaning(one))
            for one in parameters
        ]
        parts.append(_table(("parameter", "in", "type", "meaning"), rows))
    body = _node(node.get("requestBody", {}))
    for media_type, content in _node(body.get("content", {})).items():
        schema = _node(_node(content)["schema"])
        parts.append(f"**Body**, `{media_type}`: {type_text(schema)}")
        parts.append(_members(_named(schema, schemas)))
        parts += _example(_node(content))
    parts += _responses(_node(node["responses"]))
    return "\n\n".join(part for part in parts if part)


def _parameter_meaning(parameter: Node) -> str:
    schema = _node(parameter["schema"])
    required = "Required. " if parameter.get("required") is True and parameter["in"] != "path" else ""
    return f"{required}{_cell(str(parameter.get('description', '')))}{_default(schema)}"


def _responses(responses: Node) -> Iterator[str]:
    for status, value in responses.items():
        response = _node(value)
        content = _node(response.get("content", {}))
        if not status.startswith("2"):
            continue
        if not content:
            yield f"**Response** `{status}`: no body"
        for media_type, one in content.items():
            yield f"**Response** `{status}`, `{media_type}`: {type_text(_node(_node(one).get('schema', {})))}"
            if media_type == "application/json":
                yield from _example(_node(one))
    errors = [status for status in responses if not status.startswith("2")]
    if errors:
        yield f"**Errors**: {', '.join(f'`{status}`' for status in errors)} ([Problem](objects.md#problem))"


def _example(content: Node) -> Iterator[str]:
    if "example" in content:
        text = json.dumps(content["example"], indent=2, ensure_ascii=False).split("\n")
        shown = text if len(text) <= _EXAMPLE_LINES else [*text[:_EXAMPLE_LINES], "…"]
        yield "\n".join(["```json", *shown, "```"])


def _events_page(events: Sequence[Operation]) -> str:
    about = (
        "Turnkeep sends these bodies to the URL of a [webhook](../guides/webhooks.md), with the headers `webhook-id`, "
        "`webhook-timestamp` and `webhook-signature`."
    )
    parts = ["# Webhook events", about]
    for one in events:
        body = _node(_node(_node(one.node["requestBody"])["content"])["application/json"])
        parts.append(f"## {one.path}")
        parts.append(_prose(one.node.get("description")))
        parts.append(f"**Body**: {type_text(_node(body['schema']))}")
    return "\n\n".join(parts) + "\n"


def _objects_page(schemas: Node) -> str:
    parts = [
        "# Objects",
        "The objects that requests and responses consist of. A client must accept members that it does not know.",
    ]
    parts += [_object_text(name, _node(schemas[name])) for name in sorted(schemas, key=str.lower)]
    return "\n\n".join(parts) + "\n"


def _object_text(name: str, schema: Node) -> str:
    parts = [f"## {name} {{#{name.lower()}}}", _prose(schema.get("description"))]
    members = _members(schema)
    if members:
        parts.append(members)
    elif name == "JsonValue":
        parts.append("Any JSON value.")
    else:
        parts.append(type_text(schema))
    return "\n\n".join(part for part in parts if part)


def _members(schema: Node) -> str:
    """Return the table of an object's members; nothing if it has none."""
    required = _list(schema.get("required", []))
    rows = [
        (f"`{key}`", type_text(_node(value)), ("Required. " if key in required else "") + _meaning(_node(value)))
        for key, value in _node(schema.get("properties", {})).items()
    ]
    return _table(("member", "type", "meaning"), rows) if rows else ""


def _named(schema: Node, schemas: Node) -> Node:
    """Return the schema that a reference names, or the schema itself."""
    reference = schema.get("$ref")
    return _node(schemas[reference.rsplit("/", 1)[1]]) if isinstance(reference, str) else schema


def _meaning(schema: Node) -> str:
    return _cell(str(schema.get("description", ""))) + _default(schema)


def _default(schema: Node) -> str:
    default = schema.get("default")
    return f" Default: `{json.dumps(default, ensure_ascii=False)}`." if default is not None else ""


def type_text(schema: Node) -> str:
    """Return what a value can be, in words: its type, its object with a link, its values, its bounds."""
    if isinstance(reference := schema.get("$ref"), str):
        name = reference.rsplit("/", 1)[1]
        return f"[{name}](objects.md#{name.lower()})"
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(type_text(_node(one)) for one in _list(schema[word])))
    values = [schema["const"]] if "const" in schema else _list(schema.get("enum", []))
    if values:
        return " or ".join(f"`{json.dumps(value, ensure_ascii=False)}`" for value in values)
    kind = schema.get("type", "any JSON")
    if kind == "array":
        return f"list of {type_text(_node(schema.get('items', {})))}{_bounds(schema)}"
    if kind == "object" and isinstance(inner := schema.get("additionalProperties"), dict):
        return f"object of {type_text(inner)}"
    named = f"{kind} ({schema['format']})" if "format" in schema else str(kind)
    return f"{named}{_bounds(schema)}"


def _bounds(schema: Node) -> str:
    found = [form.format(_number(schema[name])) for name, form in _BOUNDS if name in schema]
    found = ["not empty" if text == _ONE_CHARACTER else text for text in found]
    return f", {', '.join(found)}" if found else ""


def _number(value: JsonValue) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _cell(text: str) -> str:
    """Return a text on one line, as a cell of a table needs it."""
    return " ".join(text.split()).replace("|", "\\|")


def _prose(text: JsonValue) -> str:
    """Return a description as paragraphs. A line break inside of one has no meaning."""
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", str(text or "").strip()))


def _first_sentence(node: Node) -> str:
    description = _cell(str(node.get("description", node["summary"])))
    return re.split(r"(?<=[.;:]) ", description)[0].rstrip(";:")


def _sentence(name: str) -> str:
    """Return a title with one capital at its start, and names as they are written."""
    return name.capitalize().replace("openai", "OpenAI").replace("Openai", "OpenAI")


def _node(value: JsonValue) -> dict[str, JsonValue]:
    if not isinstance(value, dict):
        raise TypeError(f"an object is expected, not {type(value).__name__}")
    return value


def _list(value: JsonValue) -> list[JsonValue]:
    if not isinstance(value, list):
        raise TypeError(f"an array is expected, not {type(value).__name__}")
    return value
