"""Mutated exports: each file records which of its units the mutation touched.

- A unit that was not touched is `good`: an import stores it whole.
- A unit that was touched is `odd`: it is stored, or named in the result by its id or its place.
- A unit behind the place at which the file was cut off is not in the file.
"""

import copy
import gzip
import io
import json
import random
import zipfile
from dataclasses import dataclass, field
from typing import Any

from tests.soak.export_units import ExportUnit, document_of, frame_of, marked_unit

UNITS = 4
"""Numbers of marks: a file has up to this many units."""
_ODD: tuple[Any, ...] = (
    None, -1, "text", "a\x00b", "\ud83d half", [{}], [1], {}, 10**400, 1e400, float("nan"), 1.7e12, True, "critic", "",
)  # fmt: skip
_GARBAGE = ('{"id": oops}', '{"id": {"a": [}', "nope", '{"a" "b"}', "[1, 2", '"half', "{'id': 1}", "undefined")
_ENCODINGS = (
    "utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be",
    "cp1252",
)  # fmt: skip
_WRAPPINGS = ("plain", "plain", "plain", "plain", "text", "gzip", "zip")
MUTATIONS = ("reordered", "odd", "cut", "damaged", "garbage", "lines", "twice")


@dataclass
class FilePart:
    """One item of a list of the file: its text, its place, and the unit that it belongs to; None for garbage."""

    text: str
    mark: str | None
    member: str | None
    is_touched: bool = False
    start: int = 0
    end: int = 0
    pointer: str = ""


@dataclass
class MutatedExport:
    """A mutated file. `pointers` are the places of odd units by mark, and of garbage by its own name."""

    mutation: str
    encoding: str
    wrapping: str
    body: bytes
    good: list[ExportUnit]
    pointers: dict[str, set[str]]
    texts: dict[str, Any] = field(default_factory=dict[str, Any])
    """The changed values of odd units that are still JSON: no text in them is lost without a problem."""


def mutated_export(system: str, seed: int, number: int) -> MutatedExport:
    """Return the file of a number."""
    chance = random.Random(f"{system} {seed} {number}")  # noqa: S311 - repeatable
    mutation = MUTATIONS[number % len(MUTATIONS)]
    if mutation == "lines" and frame_of(system) is not None:
        mutation = "damaged"
    units = [marked_unit(system, chance.randrange(10), mark) for mark in range(chance.randint(2, UNITS))]
    odd_values: dict[str, list[Any]] = {}
    for unit in chance.sample(units, chance.randint(1, 2)) if mutation in {"odd", "lines", "twice"} else ():
        odd_values[unit.mark] = _odd_of(unit.values, chance)
    parts = _parts(units, odd_values, chance)
    if mutation == "twice":
        copied = chance.choice([part for part in parts if not part.is_touched] or parts)
        parts.append(FilePart(copied.text, copied.mark, copied.member, copied.is_touched))
    if mutation == "garbage":
        _add_garbage(parts, chance)
    text = _assembled(system, parts, chance, as_lines=mutation == "lines")
    if mutation == "damaged":
        text = _damaged(text, parts, chance)
    remaining, end = parts, len(text)
    if mutation == "cut":
        end = chance.randint(min(part.start for part in parts) + 1, len(text) - 1)
        remaining = [part for part in parts if part.start < end]
        for part in remaining:
            part.is_touched |= part.end > end
    encoding, wrapping = chance.choice(_ENCODINGS), chance.choice(_WRAPPINGS)
    body = _wrapped(text[:end], encoding, wrapping, chance)
    return _described(mutation, encoding, wrapping, body, units, remaining, odd_values)


def _add_garbage(parts: list[FilePart], chance: random.Random) -> None:
    """Insert one or two texts that are no JSON, in one list and apart: two in a row would be one broken part."""
    places = chance.sample(range(0, len(parts) + 1, 2), chance.randint(1, 2))
    member = parts[min(places[0], len(parts) - 1)].member
    if any(part.member != member for part in parts):
        places = places[:1]
    for place in sorted(places, reverse=True):
        parts.insert(place, FilePart(chance.choice(_GARBAGE), f"garbage-{place}", member, True))


def _described(
    mutation: str, encoding: str, wrapping: str, body: bytes, units: list[ExportUnit], parts: list[FilePart],
    odd_values: dict[str, list[Any]],
) -> MutatedExport:  # fmt: skip
    export = MutatedExport(mutation, encoding, wrapping, body, [], {}, dict(odd_values))
    for part in parts:
        if part.is_touched and part.mark is not None:
            export.pointers.setdefault(part.mark, set()).add(part.pointer)
    for unit in units:
        remaining = [part for part in parts if part.mark == unit.mark]
        if len(remaining) >= len(unit.values) and unit.mark not in export.pointers:
            export.good.append(unit)
        elif remaining:
            export.pointers.setdefault(unit.mark, set()).update(part.pointer for part in remaining)
    return export


def _parts(units: list[ExportUnit], odd_values: dict[str, list[Any]], chance: random.Random) -> list[FilePart]:
    parts: list[FilePart] = []
    for unit in units:
        indent = chance.choice([None, None, 1])
        is_odd = unit.mark in odd_values
        for value in odd_values.get(unit.mark, unit.values):
            text = json.dumps(_reordered(value, chance), ensure_ascii=chance.random() < 0.5, indent=indent)
            parts.append(FilePart(text, unit.mark, unit.member, is_odd))
    chance.shuffle(parts)
    return parts


def _reordered(value: Any, chance: random.Random) -> Any:
    """Return a value in which half of the objects have their members in another order."""
    if isinstance(value, dict):
        names = list(value)
        if chance.random() < 0.5:
            chance.shuffle(names)
        return {name: _reordered(value[name], chance) for name in names}
    return [_reordered(member, chance) for member in value] if isinstance(value, list) else value


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, member in steps for place in ((*at, key), *_places(member, (*at, key)))]


def _odd_of(values: list[Any], chance: random.Random) -> list[Any]:
    """Return the values with one to three members removed, replaced, or their lists reordered."""
    odd = copy.deepcopy(values)
    for _ in range(chance.randint(1, 3)):
        *above, last = chance.choice(_places(odd))
        inner = odd
        for step in above:
            inner = inner[step]
        if isinstance(inner[last], list) and len(inner[last]) > 1 and chance.random() < 0.3:
            chance.shuffle(inner[last])
        elif isinstance(inner, dict) and chance.random() < 0.4:
            del inner[last]
        else:
            inner[last] = _deep(chance) if chance.random() < 0.1 else copy.deepcopy(chance.choice(_ODD))
    return odd


def _deep(chance: random.Random) -> Any:
    value: Any = "end"
    for _ in range(chance.choice([40, 90, 300])):
        value = [value]
    return value


def _assembled(system: str, parts: list[FilePart], chance: random.Random, *, as_lines: bool) -> str:
    """Return the text of the file, and set the places of its parts."""
    frame = frame_of(system)
    if as_lines:
        for part in parts:
            part.text = json.dumps(json.loads(part.text))
        return _joined("", parts, "\n", "")
    if frame is None:
        return _joined("[", parts, chance.choice([",", ", ", ",\n"]), "]")
    text = json.dumps(frame)[:-1]
    for member in dict.fromkeys(part.member for part in parts):
        head = f'{text}{"" if text.endswith("{") else ", "}"{member}": ['
        text = _joined(head, [part for part in parts if part.member == member], ", ", "]")
    return f"{text}}}"


def _joined(text: str, parts: list[FilePart], separator: str, end: str) -> str:
    for index, part in enumerate(parts):
        text += separator if index else ""
        part.start, part.end = len(text), len(text) + len(part.text)
        part.pointer = f"/{index}" if part.member is None else f"/{part.member}/{index}"
        text += part.text
    return text + end


def _damaged(text: str, parts: list[FilePart], chance: random.Random) -> str:
    """Return the text with a fault of syntax in one part."""
    part = chance.choice(parts)
    part.is_touched = True
    marks = [at for at in range(part.start, part.end) if text[at] in '{}[]",:\\']
    at = chance.choice(marks)
    match chance.choice(["remove", "insert", "slice", "replace"]):
        case "remove":
            return text[:at] + text[at + 1 :]
        case "insert":
            return text[:at] + chance.choice(['"', "{", "}", "[", "]", ",", "\\", "\x00", "<"]) + text[at:]
        case "slice":
            return text[:at] + text[min(part.end, at + chance.randint(2, 60)) :]
        case _:
            return text[:at] + "?" + text[at + 1 :]


def _wrapped(text: str, encoding: str, wrapping: str, chance: random.Random) -> bytes:
    if wrapping == "text":
        text = json.dumps(text)
        if chance.random() < 0.3:
            text = text[:-1]
    if encoding == "cp1252":
        # characters that the encoding does not have are written as escapes
        text = "".join(one if one in "äöüß–" or ord(one) < 128 else json.dumps(one)[1:-1] for one in text)
    data = text.encode(encoding, "surrogatepass" if encoding.startswith("utf") else "replace")
    if wrapping == "gzip":
        return gzip.compress(data, mtime=0)
    if wrapping == "zip":
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writer:
            writer.writestr("export/conversations.json", data)
            writer.writestr("users.json", "[]")
        return archive.getvalue()
    return data


def unmutated(system: str, choices: int) -> tuple[bytes, list[ExportUnit]]:
    """Return a document with every unit that a mutated file can have, and the units."""
    units = [marked_unit(system, choice, number) for choice in range(choices) for number in range(UNITS)]
    return json.dumps(document_of(system, units)).encode(), units
