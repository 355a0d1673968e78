"""Items of a key-value store, each as a conversation of its own. Pure.

A conversation has the namespace and the key in its metadata, so prefixes of namespaces are found by containment. Its
one live turn shows the text that is searched, and has the value beside it.
"""

import hashlib
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, cast

from turnkeep_client.generated import types
from turnkeep_client.integrations.messages import JsonObject, Shown, message_of, turn_of

_MEMBER: Final = "turnkeep.item"
_MAX_TITLE: Final = 200
_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le,
}  # fmt: skip
_OPERATORS: Final = ("$eq", "$ne", *_COMPARISONS)


def external_id_of(namespace: Sequence[str], key: str) -> str:
    """Return the external id of an item; it has one length, whatever the lengths of the names."""
    return "item-" + hashlib.sha256(json.dumps([*namespace, key]).encode()).hexdigest()


def title_of(namespace: Sequence[str], key: str) -> str:
    """Return the title by which people find an item."""
    return " / ".join([*namespace, key])[:_MAX_TITLE]


def metadata_of(namespace: Sequence[str], key: str) -> JsonObject:
    """Return the metadata of the conversation of an item."""
    return {_MEMBER: {"namespace": list(namespace), "key": key, **_levels(namespace)}}


def prefix_filter(prefix: Sequence[str]) -> JsonObject:
    """Return metadata that all items under a prefix contain."""
    return {_MEMBER: cast("JsonObject", _levels(prefix))}


def place_of(metadata: Mapping[str, types.JsonValue]) -> tuple[tuple[str, ...], str] | None:
    """Return namespace and key; None if the metadata is not that of an item."""
    member = metadata.get(_MEMBER)
    if not isinstance(member, dict) or not isinstance(names := member.get("namespace"), list):
        return None
    return tuple(map(str, names)), str(member.get("key"))


def turn_of_value(
    framework: str, namespace: Sequence[str], key: str, value: Mapping[str, object], text: str
) -> types.TurnInput:
    """Return the turn of an item. Searches do not find one without text. Raises TypeError if the value is not JSON."""
    turn = turn_of(framework, {"value": value}, Shown("user", text))
    turn["metadata"] = metadata_of(namespace, key)
    return turn


def value_of(framework: str, turn: types.Turn) -> JsonObject | None:
    """Return the value of an item; None if another program wrote the turn."""
    message = message_of(framework, turn)
    return None if message is None else cast("JsonObject", message["value"])


def text_of_value(value: object) -> str:
    """Return the text of a whole value: its texts and numbers, with their names if there are several."""
    leaves = list(_leaves(value, ""))
    return leaves[0][1] if len(leaves) == 1 else "\n".join(f"{name}: {text}" if name else text for name, text in leaves)


def matches(value: Mapping[str, object], conditions: Mapping[str, object] | None) -> bool:
    """Return whether a value meets all conditions: a value to equal, or `{"$gt": 1}` and the like.

    A value that is not a number meets no order. Raises ValueError for an unknown operator, and for an order that names
    what is not a number.
    """
    return all(_meets(value.get(name), wanted) for name, wanted in (conditions or {}).items())


def _meets(value: object, wanted: object) -> bool:
    operators: Mapping[str, object] = cast("Mapping[str, object]", wanted) if isinstance(wanted, dict) else {}
    if not any(name.startswith("$") for name in operators):
        return value == wanted
    if unknown := operators.keys() - set(_OPERATORS):
        raise ValueError(f"Unknown operator {min(unknown)}. The operators: {', '.join(_OPERATORS)}.")
    return all(_compares(name, value, given) for name, given in operators.items())


def _compares(name: str, value: object, given: object) -> bool:
    if name in {"$eq", "$ne"}:
        return (value == given) == (name == "$eq")
    if not isinstance(given, int | float):
        raise ValueError(f"{name} compares numbers.")  # noqa: TRY004 - a wrong value of a filter
    return isinstance(value, int | float) and _COMPARISONS[name](value, given)


def _levels(namespace: Sequence[str]) -> dict[str, str]:
    return {f"n{level}": name for level, name in enumerate(namespace)}


def _leaves(value: object, name: str) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[object, object]", value).items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for inner in cast("Sequence[object]", value):
            yield from _leaves(inner, name)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield name, str(value)
