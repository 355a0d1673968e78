"""The units of exports for mutations: one conversation, fact or memory of a sample, with a mark in its ids and texts.

A mark tells where a stored record comes from. A unit of LangGraph is a thread with all of its checkpoints.
"""

import copy
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parents[1] / "imports" / "samples"
MEMBERS: dict[str, tuple[str, ...]] = {
    "zep": ("threads", "edges"), "letta": ("agents",), "langgraph": ("checkpoints",), "langgraph_store": ("items",),
    "honcho": ("sessions", "conclusions"), "mem0": ("results",),
}  # fmt: skip
"""The lists of units in a document. Other systems have one list, the document."""
_IDS = ("id", "conversation_id", "uuid", "thread_id", "conversationId", "key", "messageId")


@dataclass(frozen=True)
class ExportUnit:
    """`values` are items of the list `member`; without a member, of the document itself."""

    mark: str
    member: str | None
    values: list[Any]


def frame_of(system: str) -> dict[str, Any] | None:
    """Return what a document has beside its units; None if it is a list."""
    document = _sample(system)
    if system not in MEMBERS:
        return None
    return {name: value for name, value in document.items() if name not in MEMBERS[system]}


def sample_units(system: str) -> list[tuple[str | None, list[Any]]]:
    """Return the units of a sample: their lists, and their values."""
    document = _sample(system)
    if system not in MEMBERS:
        return [(None, [value]) for value in (document if isinstance(document, list) else [document])]
    if system == "langgraph":
        return [("checkpoints", document["checkpoints"])]
    return [(member, [value]) for member in MEMBERS[system] for value in document[member]]


def marked_unit(system: str, choice: int, number: int) -> ExportUnit:
    """Return a unit of the sample with the mark of a number."""
    units = sample_units(system)
    choice %= len(units)
    member, values = units[choice]
    mark = f"-u{number}s{choice}-"
    values = copy.deepcopy(values)
    if member == "edges":
        for value in values:
            value["source_node_name"] = f"Mia {mark}"
    names = {name for value in values for name in _names(value)}
    return ExportUnit(mark, member, [_marked(value, mark, names) for value in values])


def document_of(system: str, units: list[ExportUnit]) -> Any:
    """Return the document of units that nothing has changed."""
    frame = frame_of(system)
    if frame is None:
        return [value for unit in units for value in unit.values]
    lists = {member: [v for unit in units if unit.member == member for v in unit.values] for member in MEMBERS[system]}
    return frame | lists


def texts_of(value: Any, mark: str) -> set[str]:
    """Return the texts in a value that bear a mark and a space, so not its ids."""
    if isinstance(value, dict):
        return {text for member in value.values() for text in texts_of(member, mark)}
    if isinstance(value, list):
        return {text for member in value for text in texts_of(member, mark)}
    return {value} if isinstance(value, str) and value.endswith(f" {mark}") else set()


def _sample(system: str) -> Any:
    name = "langgraph" if system == "langgraph_store" else system
    document = json.loads((SAMPLES / f"{name}.json").read_text())
    if system == "langgraph_store":
        return {"items": document["items"]}
    if system == "langgraph":
        document.pop("items")
    return document


def _names(value: Any) -> set[str]:
    if isinstance(value, dict):
        names = {value[name] for name in _IDS if isinstance(value.get(name), str)}
        return names | {name for member in value.values() for name in _names(member)}
    return {name for member in value for name in _names(member)} if isinstance(value, list) else set()


def _marked(value: Any, mark: str, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {f"{key}{mark}" if key in names else key: _marked(member, mark, names) for key, member in value.items()}
    if isinstance(value, list):
        return [_marked(member, mark, names) for member in value]
    if not isinstance(value, str):
        return value
    if value in names:
        return f"{value}{mark}"
    is_text = " " in value and not re.match(r"[\[{]|\d{4}-", value)
    return f"{value} {mark}" if is_text else value
