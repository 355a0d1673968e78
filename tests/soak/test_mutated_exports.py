"""Mutated exports: 200 for each importer. Every good object is stored, every odd one is named, and no file is lost.

The seed is the number of the file, so that a failure names the file that shows it.
"""

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.governance.importers.service import ForeignSystem, convert, read_document

SAMPLES = Path(__file__).parents[1] / "imports" / "samples"
FILES = 200
GOOD = 4
LISTS = {
    "chatgpt": (), "claude": (), "open_webui": (), "librechat": (), "openai": (), "mem0": ("results",),
    "zep": ("threads",), "letta": ("agents",), "langgraph": ("items",), "honcho": ("sessions",),
}  # fmt: skip
"""Where the list of objects of a system is."""
IDS = ("id", "conversation_id", "uuid", "thread_id", "conversationId", "key")


def renamed(value: Any, suffix: str) -> Any:
    """A copy of an object whose ids, and what names them, have a suffix."""
    text = json.dumps(value)
    names = {one for one in strings(value) if f'"{one}"' in text and is_name(value, one)}
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(json.dumps(name), json.dumps(f"{name}~{suffix}"))
    return json.loads(text)


def is_name(value: Any, text: str) -> bool:
    if isinstance(value, dict):
        return any(value.get(name) == text for name in IDS) or any(is_name(one, text) for one in value.values())
    return isinstance(value, list) and any(is_name(one, text) for one in value)


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [one for key, member in value.items() for one in (key, *strings(member))]
    if isinstance(value, list):
        return [one for member in value for one in strings(member)]
    return [value] if isinstance(value, str) else []


def objects_of(system: str) -> tuple[dict[str, Any] | None, list[Any]]:
    """The document without its list, if it has one, and the objects in the list."""
    document = json.loads((SAMPLES / f"{system}.json").read_text())
    for step in LISTS[system]:
        return {**document, step: []}, document[step]
    return None, document if isinstance(document, list) else [document]


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [one for key, member in steps for one in ((*at, key), *places(member, (*at, key)))]


ODD: tuple[Any, ...] = (None, -1, "text", "a\x00b", "\ud83d half", [{}], {}, 10**400, 1e400, 1.7e12, True, "critic")


def odd_of(value: Any, chance: random.Random) -> Any:
    """The object with one to three members removed, or of another kind."""
    odd = copy.deepcopy(value)
    for _ in range(chance.randint(1, 3)):
        *above, last = chance.choice(places(odd) or [(None,)])
        inner = odd
        for step in above:
            inner = inner[step]
        if isinstance(inner, dict) and chance.random() < 0.4:
            del inner[last]
        elif isinstance(inner, dict | list):
            inner[last] = copy.deepcopy(chance.choice(ODD))
    return odd


def written(value: Any, chance: random.Random) -> str:
    return json.dumps(value, ensure_ascii=chance.random() < 0.5, indent=chance.choice([None, None, 1]))


ENCODINGS: tuple[Callable[[str], bytes], ...] = (
    lambda text: text.encode("utf-8", "surrogatepass"),
    lambda text: text.encode("utf-8-sig", "replace"),
    lambda text: text.encode("utf-16", "replace"),
    lambda text: text.encode("utf-16-be", "replace"),
    lambda text: text.encode("utf-32", "replace"),
    lambda text: json.dumps(text).encode(),
)


def file_of(system: str, number: int) -> tuple[bytes, list[Any], int]:
    """One mutated file, its good objects that must be stored, and the number of odd ones."""
    chance = random.Random(f"{system} {number}")  # noqa: S311 - repeatable
    around, listed = objects_of(system)
    good = [renamed(chance.choice(listed), f"g{one}") for one in range(GOOD)]
    odd = [odd_of(renamed(chance.choice(listed), f"o{one}"), chance) for one in range(chance.randint(0, 2))]
    parts = [(one, True) for one in good] + [(one, False) for one in odd]
    chance.shuffle(parts)
    texts = [written(one, chance) for one, _ in parts]
    stored = [one for one, is_good in parts if is_good]
    manner = chance.choice(["whole", "whole", "cut", "broken", "lines"])
    encode = chance.choice(ENCODINGS)
    if manner == "broken":
        texts.insert(chance.randint(1, len(texts)), chance.choice(['{"id": oops}', '{"id": {"a": [}', "{]", "nope"]))
    if manner == "lines" and around is None:
        return encode("\n".join(json.dumps(json.loads(text)) for text in texts)), stored, len(odd)
    text = f"[{', '.join(texts)}]"
    if around is not None:
        [member] = LISTS[system]
        head = json.dumps({key: value for key, value in around.items() if key != member})[:-1]
        text = f'{head}{", " if len(head) > 1 else ""}"{member}": {text}}}'
    if manner == "cut":
        is_good = parts[-1][1]
        end = len(text) - (2 if around is not None else 1)
        text = text[: end - chance.randint(1, len(texts[-1]) - 1)]
        stored = stored[:-1] if is_good else stored
    return encode(text), stored, len(odd)


def names_in(records: list[dict[str, Any]]) -> set[str]:
    return {str(one.get("external_id")) for one in records if one["type"] != "refused"}


def expected(system: str, good: Any) -> set[str]:
    """The ids of the records of one object alone."""
    around, _ = objects_of(system)
    document = [good] if around is None else {**around, LISTS[system][0]: [good]}
    return names_in(list(convert(ForeignSystem(system), copy.deepcopy(document))))


def check(system: str, number: int) -> None:
    body, good, odd_count = file_of(system, number)
    document = read_document(body)
    records = list(convert(ForeignSystem(system), document.value, broken=document.broken))
    stored = names_in(records)
    for one in good:
        missing = expected(system, one) - stored
        assert not missing, (system, number, missing)
    refused = [one for one in records if one["type"] == "refused"]
    assert all(one["pointer"].startswith("/") or one["pointer"] == "" for one in refused)
    assert all(one["detail"] for one in refused)
    assert len([one for one in refused if one["kind"] == "conversation"]) <= odd_count + 2, (system, number, refused)
    again = read_document(body)
    assert list(convert(ForeignSystem(system), again.value, broken=again.broken)) == records


@pytest.mark.parametrize("system", ForeignSystem)
def test_some_mutated_exports_lose_no_good_object(system: str) -> None:
    for number in range(25):
        check(system, number)


@pytest.mark.slow
@pytest.mark.parametrize("system", ForeignSystem)
def test_mutated_exports_lose_no_good_object(system: str) -> None:
    for number in range(FILES):
        check(system, number)
