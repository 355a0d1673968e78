"""The state of a followed conversation, and the entries that each frame adds, as text for a terminal. Pure.

Invariants: each state of a turn has one entry, also after lost connections. The text of an open turn follows the
offsets of the frames, so text that was lost in a crash is removed here too. The output has no control characters of the
conversation, so its text cannot control the terminal.
"""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from app.conversations.schemas.conversations import Turn
from app.conversations.schemas.frames import (
    ServerFrame,
    SnapshotFrame,
    TurnAbortedFrame,
    TurnCommittedFrame,
    TurnDeltaFrame,
    TurnErasedFrame,
    TurnOpenedFrame,
    TurnSupersededFrame,
)
from app.core.times import format_time
from app.formats.schemas import GIVEN, JsonObject

_MAX_REMEMBERED: Final = 10_000
_ADAPTER: Final[TypeAdapter[ServerFrame]] = TypeAdapter(Annotated[ServerFrame, Field(discriminator="type")])
# control characters except tab and line feed, and the marks that change the direction of text
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_MEMBER: Final = re.compile(r"tool_calls/(\d+)/(\w+)")

Change: TypeAlias = Literal["said", "replaced", "erased", "given up"]
_CHANGES: Final[Mapping[Change, str]] = {"replaced": "(replaced by another turn)", "erased": "(erased)"}


@dataclass(frozen=True, slots=True)
class TailEntry:
    """A final entry: a committed turn, or the change of a turn. `role` and `details` are empty if they are unknown."""

    change: Change
    turn_id: str
    heading: str
    text: str
    role: str = ""
    details: str = ""


@dataclass(slots=True)
class OpenText:
    """An open turn, and its text so far by parts."""

    actor: str
    role: str
    parts: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def text(self) -> str:
        """The text so far, with the tool calls."""
        calls: dict[int, dict[str, str]] = {}
        for part, text in self.parts.items():
            if member := _MEMBER.fullmatch(part):
                calls.setdefault(int(member[1]), {})[member[2]] = text
        lines = [_call(call.get("name", ""), call.get("arguments", "")) for _, call in sorted(calls.items())]
        return _joined([self.parts.get("content", ""), *lines])


class GapError(Exception):
    """Raised when text is missing: subscribe again."""


def read(text: str) -> ServerFrame | None:
    """Parse a frame; None for an unknown type, which a newer server may send."""
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError:
        return None


class View:
    """The known state of one conversation."""

    def __init__(self, after_rev: int | None) -> None:
        self.after_rev = after_rev
        """The rev of the last event; a new subscription starts after it."""
        self.open: dict[str, OpenText] = {}
        self._seen: set[tuple[str, int, Change]] = set()
        self._order: deque[tuple[str, int, Change]] = deque()

    def apply(self, frame: ServerFrame) -> list[TailEntry]:
        """Apply a frame, and return its entries. Raises GapError."""
        match frame:
            case SnapshotFrame():
                entries = [entry for turn in frame.turns for entry in self._turn(turn)]
                if not frame.more:
                    self.after_rev = frame.rev
                    self.open = {
                        pending.turn.id: OpenText(
                            pending.turn.actor, pending.turn.role, {part.part: part.text for part in pending.parts}
                        )
                        for pending in frame.pending
                    }
                return entries
            case TurnOpenedFrame():
                self.open.setdefault(frame.turn.id, OpenText(frame.turn.actor, frame.turn.role))
            case TurnDeltaFrame():
                self._delta(frame)
            case TurnCommittedFrame():
                self._advance_to(frame.rev)
                self.open.pop(frame.turn.id, None)
                return self._turn(frame.turn)
            case TurnAbortedFrame():
                if (turn := self.open.pop(frame.turn_id, None)) is not None:
                    heading = without_controls(turn.actor) or frame.turn_id
                    text = f"{turn.text} (given up)".lstrip()
                    return [TailEntry("given up", frame.turn_id, heading, text, turn.role)]
            case TurnSupersededFrame():
                self._advance_to(frame.rev)
                return self._change("replaced", frame.turn_id, frame.rev)
            case TurnErasedFrame():
                self._advance_to(frame.rev)
                return self._change("erased", frame.turn_id, frame.rev)
            case _:
                pass  # it says nothing of a turn
        return []

    def _advance_to(self, rev: int) -> None:
        # the turns of one append have the same rev: until a later rev arrives, some of them may be missing
        self.after_rev = max(self.after_rev or 0, rev - 1)

    def _turn(self, turn: Turn) -> list[TailEntry]:
        if turn.superseded_by is not None:
            return self._change("replaced", turn.id, turn.rev) if turn.status == "committed" else []
        change: Change = "said" if turn.erased_at is None else "erased"
        heading, details = without_controls(turn.actor) or turn.id, f"{format_time(turn.occurred_at)}  #{turn.seq}"
        text = turn_text(turn) if change == "said" else _CHANGES[change]
        return self._once(turn.rev, TailEntry(change, turn.id, heading, text, turn.role, details))

    def _change(self, change: Change, turn_id: str, rev: int) -> list[TailEntry]:
        return self._once(rev, TailEntry(change, turn_id, turn_id, _CHANGES[change]))

    def _once(self, rev: int, entry: TailEntry) -> list[TailEntry]:
        key = (entry.turn_id, rev, entry.change)
        if key in self._seen:
            return []
        self._seen.add(key)
        self._order.append(key)
        if len(self._order) > _MAX_REMEMBERED:
            self._seen.discard(self._order.popleft())
        return [entry]

    def _delta(self, frame: TurnDeltaFrame) -> None:
        turn = self.open.get(frame.turn_id)
        current = "" if turn is None else turn.parts.get(frame.part, "")
        if turn is None or frame.offset > len(current):
            raise GapError
        turn.parts[frame.part] = current[: frame.offset] + frame.delta


def turn_text(turn: Turn) -> str:
    """Format a turn: its text, its tool calls and their results."""
    lines = [_content(turn.content)]
    for call in turn.tool_calls:
        function = call.get("function")
        called: JsonObject = function if isinstance(function, dict) else call
        lines.append(_call(_text(called.get("name")), _text(called.get("arguments"))))
    results = (result.get("content", result.get("output")) for result in turn.tool_results)
    return _joined([*lines, *(f"← {_text(result)}" for result in results)])


def without_controls(text: str) -> str:
    """Replace the control characters of a text."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def _joined(lines: list[str]) -> str:
    return without_controls("\n".join(line for line in lines if line))


def _call(name: str, arguments: str) -> str:
    return f"→ {name or 'a tool'} {arguments}".rstrip()


def _content(content: str | list[JsonObject] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_part(part) for part in content if part.get("type") != GIVEN)


def _part(part: JsonObject) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else f"[{_text(part.get('type')) or 'part'}]"


def _text(value: JsonValue) -> str:
    return "" if value is None else str(value)
