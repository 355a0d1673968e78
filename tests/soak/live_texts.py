"""What a streamed turn says, known to everybody from the seed and the turn's id alone: writers, readers and checks."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

GARBAGE = "☠"
"""Of this a writer sends what it must not: it may be seen for a moment, and is never durable."""
MARKS = "鯨鱗鰭𝄞🦊𐍈ǻ"
"""Characters that stand in every text, and nowhere else: a log that has one of them has content."""
CONTENT = "content"
ARGUMENTS = "tool_calls/0/arguments"
_PLAIN = "abcdefghijklmnopqrstuvwxyz  0123456789.,:;-"
_ODD = ("e\u0301", "n\u0303", "\u0928\u093f", "\u05d0\u05b8", "東", "京", "語", "\U0001f468\u200d\U0001f469", "\u2028")


@dataclass(frozen=True)
class Plan:
    """What a turn's writer means to say: parts with their whole texts, and how the turn is to end."""

    parts: dict[str, str]
    ending: dict[str, Any]
    gives_up: bool

    @property
    def content(self) -> str:
        """The whole content."""
        return self.parts[CONTENT]

    @property
    def arguments(self) -> str | None:
        """What the tool is called with, where one is called."""
        return self.parts.get(ARGUMENTS)


def plan_of(seed: int, turn_id: str) -> Plan:
    """What the turn of this id says."""
    chance = random.Random(f"{seed} turn {turn_id}")  # noqa: S311 - repeatable, not secret
    parts = {CONTENT: _text(chance, chance.randint(150, 1500))}
    ending: dict[str, Any] = {"length": len(parts[CONTENT]), "usage": {"completion_tokens": chance.randint(1, 999)}}
    if chance.random() < 0.3:
        parts[ARGUMENTS] = json.dumps({"q": _text(chance, chance.randint(20, 300))}, ensure_ascii=False)
        if chance.random() < 0.5:
            ending["tool_calls"] = [{"id": f"call-{turn_id}", "name": "look_up", "arguments": ""}]
        else:
            parts |= {"tool_calls/0/id": f"call-{turn_id}", "tool_calls/0/name": "look_up"}
    return Plan(parts, ending, gives_up=chance.random() < 0.08)


def _text(chance: random.Random, length: int) -> str:
    pieces: list[str] = []
    written = 0
    while written < length:
        kind = chance.random()
        piece = chance.choice(MARKS) if kind < 0.2 else chance.choice(_ODD) if kind < 0.4 else chance.choice(_PLAIN)
        pieces.append(piece)
        written += len(piece)
    return "".join(pieces)[:length]


def leaks(log: str) -> Iterator[str]:
    """Lines of a log that have content, plain or as JSON writes it."""
    escaped = [json.dumps(mark)[1:-1] for mark in MARKS + GARBAGE]
    for line in log.splitlines():
        if any(mark in line for mark in MARKS + GARBAGE) or any(mark in line for mark in escaped):
            yield line
