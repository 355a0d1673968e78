"""Compares the operations of two OpenAPI documents: paths, parameters, bodies, responses and webhooks."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from pydantic import JsonValue

from scripts.compatibility.schemas import Change, Comparison, Direction, Document, mapping, member, sequence

_METHODS: Final = ("get", "put", "post", "delete", "patch", "head", "options")
_PARAMETER: Final = re.compile(r"\{[^}]*\}")
_SUCCESS: Final = "2"
_JSON: Final = "application/json"

Operation: TypeAlias = Mapping[str, JsonValue]


def breaking_changes(old: Mapping[str, JsonValue], new: Mapping[str, JsonValue]) -> list[Change]:
    """Return every breaking change between two OpenAPI documents, sorted, each once."""
    comparison = Comparison(Document(old), Document(new))
    changes: set[Change] = set()
    for place, before, after in _pairs(old, new, "paths"):
        changes.update([Change(place, "the operation is removed")] if after is None else
                       _operation_changes(comparison, place, before, after))  # fmt: skip
    for place, before, after in _pairs(old, new, "webhooks"):
        changes.update([Change(place, "the webhook is removed")] if after is None else
                       _body_changes(comparison, place, before, after, Direction.RESPONSE))  # fmt: skip
    return sorted(changes)


def _pairs(
    old: Mapping[str, JsonValue], new: Mapping[str, JsonValue], section: str
) -> Iterator[tuple[str, Operation, Operation | None]]:
    """Yield the operations of the old document with those of the new one, by method and path."""
    found = {_key(place): operation for place, operation in _operations(new, section)}
    for place, operation in _operations(old, section):
        yield place, operation, found.get(_key(place))


def _operations(document: Mapping[str, JsonValue], section: str) -> Iterator[tuple[str, Operation]]:
    for path, item in member(document, section).items():
        for method, operation in mapping(item).items():
            if method in _METHODS:
                yield f"{method.upper()} {path}", mapping(operation)


def _key(place: str) -> str:
    """Return a place without the names of its path parameters, which no client sends."""
    return _PARAMETER.sub("{}", place)


def _operation_changes(comparison: Comparison, place: str, old: Operation, new: Operation) -> Iterator[Change]:
    if old.get("operationId") != new.get("operationId"):
        yield Change(place, f"the operation id is {new.get('operationId')!r}, and was {old.get('operationId')!r}")
    yield from _security_changes(place, old, new)
    yield from _parameter_changes(comparison, place, old, new)
    yield from _body_changes(comparison, place, old, new, Direction.REQUEST)
    yield from _response_changes(comparison, place, old, new)


def _security_changes(place: str, old: Operation, new: Operation) -> Iterator[Change]:
    """Yield the ways to authenticate that do not work any more."""
    ways = [sequence(one.get("security", [])) for one in (old, new)]
    if not ways[0] and ways[1]:
        yield Change(place, "authentication is required")
    for way in ways[0]:
        if ways[1] and way not in ways[1]:
            yield Change(place, f"{', '.join(mapping(way))} is not accepted any more")


def _parameter_changes(comparison: Comparison, place: str, old: Operation, new: Operation) -> Iterator[Change]:
    before, after = _parameters(comparison.old, old), _parameters(comparison.new, new)
    for (kind, name), parameter in before.items():
        inner = f"{place} {kind} {name}"
        other = after.get((kind, name))
        if other is None:
            yield Change(inner, "the parameter is removed")
            continue
        schemas = member(parameter, "schema"), member(other, "schema")
        yield from comparison.compare(*schemas, Direction.REQUEST, inner)
        if "default" in schemas[0] and schemas[0]["default"] != schemas[1].get("default"):
            former, default = schemas[0]["default"], schemas[1].get("default")
            yield Change(inner, f"the default is {default!r}, and was {former!r}")
    for (kind, name), parameter in after.items():
        needed = parameter.get("required") is True
        if needed and before.get((kind, name), {}).get("required") is not True:
            yield Change(f"{place} {kind} {name}", "the parameter is required")


def _parameters(document: Document, operation: Operation) -> dict[tuple[str, str], Operation]:
    """Return the parameters of an operation by place and name; those of the path by their order."""
    found: dict[tuple[str, str], Operation] = {}
    for value in sequence(operation.get("parameters", [])):
        parameter = document.resolved(mapping(value))
        kind = str(parameter["in"])
        name = str(len(found)) if kind == "path" else str(parameter["name"])
        found[kind, name] = parameter
    return found


def _body_changes(
    comparison: Comparison, place: str, old: Operation, new: Operation, direction: Direction
) -> Iterator[Change]:
    """Yield the changes of the body that a client sends, or that a webhook receives."""
    before, after = member(old, "requestBody"), member(new, "requestBody")
    inner = f"{place} body"
    if direction is Direction.REQUEST and after.get("required") is True and before.get("required") is not True:
        yield Change(inner, "the body is required")
    yield from _content_changes(comparison, inner, before, after, direction)


def _response_changes(comparison: Comparison, place: str, old: Operation, new: Operation) -> Iterator[Change]:
    """Yield the changes of successful responses. Errors are problems of one form, and their codes are an open set."""
    before, after = member(old, "responses"), member(new, "responses")
    for status, response in before.items():
        if not status.startswith(_SUCCESS):
            continue
        inner = f"{place} {status}"
        if status not in after:
            yield Change(inner, "the status is not returned any more")
            continue
        yield from _content_changes(comparison, inner, mapping(response), mapping(after[status]), Direction.RESPONSE)


def _content_changes(
    comparison: Comparison, place: str, old: Operation, new: Operation, direction: Direction
) -> Iterator[Change]:
    before, after = member(old, "content"), member(new, "content")
    for media_type, content in before.items():
        if media_type not in after:
            yield Change(place, f"the media type {media_type} is removed")
            continue
        schemas = member(mapping(content), "schema"), member(mapping(after[media_type]), "schema")
        inner = place if media_type == _JSON else f"{place} {media_type}"
        yield from comparison.compare(*schemas, direction, inner)
