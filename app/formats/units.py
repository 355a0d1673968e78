"""Groups of turns that a context keeps or drops together: a tool call with all its results.

Hides the pairing: results may be in one turn or several, with other turns between, be missing, or be duplicated.
Invariants: in a unit's blocks each call has exactly one result and each result its call; call ids are unique; each turn
is in one unit at most, and a turn in no unit is in `left_out` with the reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from app.formats.extra_fields import has_only_items
from app.formats.parts import has_content
from app.formats.schemas import AnsweredCall, CanonicalTurn, Kind, Role, ToolCall, ToolResult, TurnBlock
from app.formats.turns import call_key, tool_results_in


class Unit(NamedTuple):
    """Turns by position, and their blocks in display order.

    `position` is that of the newest turn: a unit enters the window where it became complete. So the newest turn is in
    every window, even if it answers an old call.
    """

    turns: tuple[CanonicalTurn, ...]
    blocks: tuple[TurnBlock, ...]

    @property
    def position(self) -> int:
        """Return the unit's position in the window."""
        return self.turns[-1].position


@dataclass(frozen=True, slots=True)
class OmittedTurn:
    """A turn, or a part of it, that cannot be shown. `is_whole`: no part of the turn is shown."""

    turn: CanonicalTurn
    reason: str
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Units:
    """Units by position, and the turns that are in no unit."""

    units: tuple[Unit, ...]
    left_out: tuple[OmittedTurn, ...]


@dataclass(slots=True)
class _PendingCall:
    """One call and, once found, its result."""

    turn: int
    call: ToolCall
    result: ToolResult | None = None
    position: int = 0


def group_turns(turns: Sequence[CanonicalTurn]) -> Units:
    """Pair calls with results. A result belongs to the latest earlier call of its id; the first result wins."""
    if all(map(_is_plain_text, turns)) and len({turn.id for turn in turns}) == len(turns):
        ordered = sorted(turns, key=lambda turn: turn.position)
        return Units(tuple(Unit((turn,), (TurnBlock(turn, []),)) for turn in ordered), ())
    pairing = _CallPairing(turns)
    pairing.pair()
    return pairing.units()


def _is_plain_text(turn: CanonicalTurn) -> bool:
    """Return whether a turn is a unit of its own: a text without calls and results."""
    has_text = isinstance(turn.content, str) and has_content(turn)
    is_alone = turn.kind is not Kind.COMPACTION and turn.role is not Role.TOOL
    return has_text and is_alone and not turn.tool_calls and not turn.tool_results


class _CallPairing:
    """The state of one pairing."""

    def __init__(self, turns: Sequence[CanonicalTurn]) -> None:
        self._turns = sorted(turns, key=lambda turn: turn.position)
        self._calls: list[list[_PendingCall]] = [[] for _ in self._turns]
        self._parents = list(range(len(self._turns)))  # union-find over turn indexes
        self._used: set[int] = set()
        self._left_out: list[OmittedTurn] = []
        self._open_calls: dict[str, _PendingCall] = {}
        self._call_ids: set[str] = set()

    def pair(self) -> None:
        seen: set[str] = set()
        for index, turn in enumerate(self._turns):
            if turn.kind is Kind.COMPACTION:
                self._omit(turn, "compaction turns are never shown")
            elif turn.id in seen:
                self._omit(turn, "the turn was given twice")
            else:
                self._add_calls(index, turn)
                self._match_results(index, turn)
                self._used.add(index)
            seen.add(turn.id)

    def units(self) -> Units:
        blocks = {index: block for index in sorted(self._used) if (block := self._block(index)) is not None}
        self._attach_item_turns(blocks)
        members: dict[int, list[int]] = {}
        for index in sorted(self._used):
            members.setdefault(self._root(index), []).append(index)
        units = [
            Unit(tuple([self._turns[index] for index in group]), tuple(own))
            for group in members.values()
            if (own := [blocks[index] for index in group if index in blocks])
        ]
        # an unused turn without a reason so far is empty
        shown = {turn.id for unit in units for turn in unit.turns}
        named = {left.turn.id for left in self._left_out}
        for index in sorted(self._used):
            turn = self._turns[index]
            if turn.id not in shown and turn.id not in named:
                self._omit(turn, "it has no content to show")
        units.sort(key=lambda unit: unit.position)
        left_out = [replace(left, is_whole=left.turn.id not in shown) for left in self._left_out]
        return Units(tuple(units), tuple(sorted(left_out, key=lambda left: left.turn.position)))

    def _attach_item_turns(self, blocks: dict[int, TurnBlock]) -> None:
        """Put turns that have only items (reasoning, a search) into the unit of the assistant turn after them.

        If there is none, put them into the unit of the turn directly before them.
        """
        item_turns: list[int] = []
        answer: int | None = None
        for index in sorted(self._used):
            turn = self._turns[index]
            if has_only_items(turn):
                # only the assistant's items are replayed: otherwise a user could send the model searches that never ran
                if turn.role is Role.ASSISTANT:
                    item_turns.append(index)
                else:
                    self._omit(turn, "it has only items, and is not the assistant's")
                continue
            if index in blocks and turn.role is Role.ASSISTANT:
                if item_turns:
                    blocks[index] = blocks[index]._replace(before=self._join(item_turns, index))
                answer = index
            else:
                self._end_item_turns(blocks, item_turns, answer)
                answer = None
            item_turns = []
        self._end_item_turns(blocks, item_turns, answer)

    def _end_item_turns(self, blocks: dict[int, TurnBlock], item_turns: Sequence[int], answer: int | None) -> None:
        if not item_turns:
            return
        if answer is not None:
            blocks[answer] = blocks[answer]._replace(after=self._join(item_turns, answer))
            return
        for index in item_turns:
            self._omit(self._turns[index], "the turn that follows from it is not shown")

    def _join(self, item_turns: Sequence[int], index: int) -> tuple[CanonicalTurn, ...]:
        for item in item_turns:
            self._parents[self._root(item)] = self._root(index)
        return tuple(self._turns[item] for item in item_turns)

    def _omit(self, turn: CanonicalTurn, reason: str) -> None:
        self._left_out.append(OmittedTurn(turn, reason, is_whole=True))

    def _add_calls(self, index: int, turn: CanonicalTurn) -> None:
        seen: set[str] = set()
        for call in turn.tool_calls:
            if call.id in seen:
                self._omit(turn, f"call {call.id} is in this turn twice, the first is kept")
                continue
            seen.add(call.id)
            pending = _PendingCall(index, call)
            self._calls[index].append(pending)
            self._open_calls[call_key(call.id)] = pending

    def _unique_id(self, pending: _PendingCall) -> str:
        """Return the id under which an answered call is shown; calls without a result take none."""
        unique = pending.call.id
        if unique in self._call_ids:
            # some models number their calls from the start in each answer, and providers refuse a repeated id
            unique = f"{unique}_{self._turns[pending.turn].position}"
            while unique in self._call_ids:
                unique += "_"
        self._call_ids.add(unique)
        return unique

    def _match_results(self, index: int, turn: CanonicalTurn) -> None:
        results = tool_results_in(turn) if turn.role is Role.TOOL else list(turn.tool_results)
        reasons: list[str] = []
        for result in results:
            pending = self._open_calls.get(call_key(result.tool_call_id))
            if pending is None:
                reasons.append(f"the call {result.tool_call_id} of this result is not among the recent turns")
            elif pending.result is not None:
                reasons.append(f"call {result.tool_call_id} has an earlier result, the first is kept")
            else:
                pending.call = replace(pending.call, id=self._unique_id(pending))
                pending.result = replace(result, tool_call_id=pending.call.id)
                pending.position = turn.position
                self._parents[self._root(index)] = self._root(pending.turn)
        if turn.role is Role.TOOL and not results and not turn.tool_calls:
            reasons.append("a tool turn without a call")
        for reason in reasons:
            self._omit(turn, reason)

    def _block(self, index: int) -> TurnBlock | None:
        turn, calls = self._turns[index], self._calls[index]
        answered = [
            AnsweredCall(pending.call, pending.result, pending.position)
            for pending in calls
            if pending.result is not None
        ]
        own = turn.role is not Role.TOOL and has_content(turn)
        shown = own or bool(answered)
        for pending in calls:
            if pending.result is None:
                rest = "" if shown else ", and the turn has no text"
                self._omit(turn, f"call {pending.call.id} has no result{rest}")
        if not shown:
            return None
        # the content of a tool turn is a result, which is shown with its call
        return TurnBlock(replace(turn, content=None) if turn.role is Role.TOOL else turn, answered)

    def _root(self, index: int) -> int:
        while self._parents[index] != index:
            self._parents[index] = self._parents[self._parents[index]]
            index = self._parents[index]
        return index
