"""Compares two versions of a JSON schema, and says what breaks the clients of the older one.

A client writes requests and reads responses, so the two are compared in opposite directions:

- Every body that the old schema of a request accepts must be accepted by the new one.
- Every body that the new schema of a response allows must be readable by a client of the old one. Such a client ignores
  members that it does not know, and accepts new values of an enumeration and new kinds of a tagged union
  (docs/guides/deprecations.md).

Unions are compared by their alternatives, so a schema that is now one of several is no change of its type.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from pydantic import JsonValue

from app.core.ids import ID_PATTERN

Schema: TypeAlias = Mapping[str, JsonValue]

_LOWER_BOUNDS: Final = ("minLength", "minimum", "exclusiveMinimum", "minItems", "minProperties")
_UPPER_BOUNDS: Final = ("maxLength", "maximum", "exclusiveMaximum", "maxItems", "maxProperties")

_DESCRIPTION_OF_IDS: Final = "A ULID (26 characters) or a UUID."


class Direction(StrEnum):
    """Whether clients write a value or read it."""

    REQUEST = "request"
    RESPONSE = "response"


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """One breaking change: where in the API, and what clients meet there."""

    place: str
    text: str

    def __str__(self) -> str:
        """Return the change in one line, as `exceptions.toml` names it."""
        return f"{self.place}: {self.text}"


@dataclass(frozen=True, slots=True)
class Document:
    """An OpenAPI document, whose references can be resolved."""

    content: Mapping[str, JsonValue]

    def resolved(self, schema: Schema) -> Schema:
        """Return the schema that a reference names, or the schema itself."""
        while isinstance(reference := schema.get("$ref"), str):
            found: JsonValue = dict(self.content)
            for name in reference.removeprefix("#/").split("/"):
                found = mapping(found)[name]
            schema = mapping(found)
        return schema

    def alternatives(self, schema: Schema) -> list[Schema]:
        """Return the schemas of which a value matches one: unions are opened, and each has at most one type."""
        schema = self.resolved(schema)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return [one for part in sequence(schema[word]) for one in self.alternatives(mapping(part))]
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return [{**schema, "type": kind} for kind in kinds]
        return [schema]


def mapping(value: JsonValue) -> dict[str, JsonValue]:
    """Return a JSON object as one. Raises TypeError if it is none."""
    if not isinstance(value, dict):
        raise TypeError(f"an object is expected, not {type(value).__name__}")
    return value


def sequence(value: JsonValue) -> list[JsonValue]:
    """Return a JSON array as one. Raises TypeError if it is none."""
    if not isinstance(value, list):
        raise TypeError(f"an array is expected, not {type(value).__name__}")
    return value


def member(schema: Schema, name: str) -> dict[str, JsonValue]:
    """Return a member that is an object; an empty one if it is missing."""
    return mapping(schema.get(name, {}))


def texts(value: JsonValue) -> set[str]:
    """Return the texts in a JSON array."""
    return {one for one in sequence(value) if isinstance(one, str)}


@dataclass(slots=True)
class Comparison:
    """Compares schemas of one old and one new document."""

    old: Document
    new: Document
    running: set[tuple[int, int, Direction]] = field(default_factory=set)
    """Pairs that are being compared: a schema can contain itself."""

    def compare(self, old: Schema, new: Schema, direction: Direction, place: str) -> list[Change]:
        """Return what breaks between two schemas of one place."""
        old, new = self.old.resolved(old), self.new.resolved(new)
        pair = (id(old), id(new), direction)
        if pair in self.running:
            return []
        self.running.add(pair)
        try:
            return self._compare_alternatives(old, new, direction, place)
        finally:
            self.running.discard(pair)

    def _compare_alternatives(self, old: Schema, new: Schema, direction: Direction, place: str) -> list[Change]:
        """Return the changes of each alternative that the other document does not have."""
        written = direction is Direction.REQUEST
        # whatever the first accepts or sends must be one of the second
        first = self.old.alternatives(old) if written else self.new.alternatives(new)
        second = self.new.alternatives(new) if written else self.old.alternatives(old)
        if not written and (tag := tag_of(old)) is not None:
            first = [one for one in first if self._tags(self.new, one, tag) & self._all_tags(second, tag)]
        changes: list[Change] = []
        for one in first:
            attempts = [self._compare_one(one, other, direction, place) for other in second]
            if [] not in attempts:
                changes += closest(one, second, attempts, type_change(one, direction, place))
            if len(first) == 1 and len(second) == 1:
                return attempts[0]
        return changes

    def _all_tags(self, schemas: Sequence[Schema], tag: str) -> set[str]:
        return {value for schema in schemas for value in self._tags(self.old, schema, tag)}

    @staticmethod
    def _tags(document: Document, schema: Schema, tag: str) -> set[str]:
        """Return the values that name an alternative of a tagged union."""
        values = values_of(document.resolved(member(member(schema, "properties"), tag)))
        return set() if values is None else {str(value) for value in values}

    def _compare_one(self, one: Schema, other: Schema, direction: Direction, place: str) -> list[Change]:
        """Return the changes between two schemas that are no unions; `one` is the old one of a request."""
        old, new = (one, other) if direction is Direction.REQUEST else (other, one)
        changes = [Change(place, text) for text in value_changes(old, new, direction)]
        if changes:
            return changes
        found = list(self._members(old, new, direction, place))
        if "items" in old or "items" in new:
            items = (member(old, "items"), member(new, "items"))
            found += self.compare(*items, direction, f"{place}/*")
        return found

    def _members(self, old: Schema, new: Schema, direction: Direction, place: str) -> Iterator[Change]:
        old_members, new_members = member(old, "properties"), member(new, "properties")
        old_required, new_required = (texts(one.get("required", [])) for one in (old, new))
        for name, schema in old_members.items():
            inner = f"{place}/{name}"
            if name in new_members:
                yield from self.compare(mapping(schema), mapping(new_members[name]), direction, inner)
                if direction is Direction.REQUEST:
                    yield from default_changes(mapping(schema), mapping(new_members[name]), inner)
            elif direction is Direction.RESPONSE or new.get("additionalProperties", True) is False:
                yield Change(inner, "the member is removed")
        lost = new_required - old_required if direction is Direction.REQUEST else old_required - new_required
        for name in sorted(lost & (new_members.keys() if direction is Direction.RESPONSE else lost)):
            required = "is required" if direction is Direction.REQUEST else "can be missing"
            yield Change(f"{place}/{name}", f"the member {required}")
        yield from self._other_members(old, new, direction, place)

    def _other_members(self, old: Schema, new: Schema, direction: Direction, place: str) -> Iterator[Change]:
        """Yield what changes for members that the schemas do not name."""
        before, after = (one.get("additionalProperties", True) for one in (old, new))
        if direction is Direction.REQUEST and before is not False and after is False:
            yield Change(place, "members that are not named are refused")
        elif isinstance(before, dict) and isinstance(after, dict):
            yield from self.compare(before, after, direction, f"{place}/*")


def closest(one: Schema, others: Sequence[Schema], attempts: list[list[Change]], otherwise: Change) -> list[Change]:
    """Return the changes against the alternative of the same type that differs least; `otherwise` if there is none."""
    same = [changes for other, changes in zip(others, attempts, strict=True) if kind_of(other) == kind_of(one)]
    return min(same, key=len) if same else [otherwise]


def type_change(schema: Schema, direction: Direction, place: str) -> Change:
    """Return the change that the type of an alternative of a union is new, or gone."""
    verb = "is not accepted any more" if direction is Direction.REQUEST else "can be returned"
    return Change(place, f"the type {kind_of(schema)} {verb}")


def kind_of(schema: Schema) -> str:
    """Return the type of a schema that is no union: `any` if it has none."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind
    return "object" if "properties" in schema else "any"


def tag_of(schema: Schema) -> str | None:
    """Return the member that tells the alternatives of a union apart, if the document names one."""
    discriminator = schema.get("discriminator")
    name = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
    return name if isinstance(name, str) else None


def values_of(schema: Schema) -> list[JsonValue] | None:
    """Return the values that an enumeration allows; None if the schema lists none."""
    if "const" in schema:
        return [schema["const"]]
    return sequence(schema["enum"]) if "enum" in schema else None


def value_changes(old: Schema, new: Schema, direction: Direction) -> Iterator[str]:
    """Yield what changes for a single value: its type, its enumeration, its bounds."""
    wide, narrow = (new, old) if direction is Direction.REQUEST else (old, new)
    kinds = (kind_of(wide), kind_of(narrow))
    if kinds[0] not in {kinds[1], "any"} and kinds != ("number", "integer"):
        yield f"the type is {kind_of(new)}, and was {kind_of(old)}"
        return
    if direction is Direction.RESPONSE:
        if "enum" in old and values_of(new) is None:
            yield "the values are not listed any more"
        if "const" in old and old["const"] not in (values_of(new) or [old["const"]]):
            yield f"the value {old['const']!r} is not returned any more"
        return
    yield from _narrowed_values(old, new)


def _narrowed_values(old: Schema, new: Schema) -> Iterator[str]:
    """Yield which values of a request are not accepted any more."""
    before, after = values_of(old), values_of(new)
    if after is not None:
        if before is None:
            yield "only listed values are accepted"
        else:
            yield from (f"the value {value!r} is not accepted any more" for value in before if value not in after)
    for names, is_tighter in ((_LOWER_BOUNDS, float.__gt__), (_UPPER_BOUNDS, float.__lt__)):
        for name in names:
            limit, former = new.get(name), old.get(name)
            # listed values have their own lengths
            if before is None and isinstance(limit, int | float):
                if not isinstance(former, int | float):
                    yield f"{name} is {limit}"
                elif is_tighter(float(limit), float(former)):
                    yield f"{name} is {limit}, and was {former}"
    for name in ("pattern", "format"):
        if before is None and name in new and new[name] not in (old.get(name), _described_pattern(old)):
            yield f"the {name} is {new[name]!r}"


def _described_pattern(old: Schema) -> str | None:
    """Return the pattern that an old schema has in words only: releases described the form of an id, and checked it."""
    is_id = old.get("description") == _DESCRIPTION_OF_IDS
    return ID_PATTERN if is_id else None


def default_changes(old: Schema, new: Schema, place: str) -> Iterator[Change]:
    """Yield the change of a default: a request that leaves the member out then means something else."""
    if "default" in old and old["default"] != new.get("default"):
        yield Change(place, f"the default is {new.get('default')!r}, and was {old['default']!r}")
