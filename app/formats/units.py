"""Turns gathered into units that stay in a context or leave it together: a tool call with all its results.

Hides pairing: results may stand in one turn or several, with other turns in between, be missing, or come twice. Always
holds: in a unit's blocks every call has exactly one result and every result its call; call ids differ from each other;
each turn belongs to one unit at most, and one that belongs to none is named in `left_out` with the reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.formats.extra_fields import is_silent
from app.formats.parts import has_content
from app.formats.schemas import Answered, CanonicalTurn, Kind, Role, ToolCall, ToolResult, TurnBlock
from app.formats.turns import results_of


@dataclass(frozen=True, slots=True)
class Unit:
    """Turns by position, and their blocks in the order they are shown.

    `position` is that of the newest turn: a unit claims its place in the window where it became complete, so the newest
    turn is in every window, even when it answers an old call.
    """

    turns: tuple[CanonicalTurn, ...]
    blocks: tuple[TurnBlock, ...]

    @property
    def position(self) -> int:
        """Where the unit stands when the window is cut."""
        return self.turns[-1].position


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something of a turn that cannot be shown. `whole`: nothing of the turn is."""

    turn: CanonicalTurn
    reason: str
    whole: bool


@dataclass(frozen=True, slots=True)
class Units:
    """Units by position, and what no unit holds."""

    units: tuple[Unit, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(slots=True)
class _Site:
    """One call and, once it is found, its result."""

    turn: int
    call: ToolCall
    result: ToolResult | None = None


def units_of(turns: Sequence[CanonicalTurn]) -> Units:
    """Pair calls with results. A result belongs to the latest call of its id before it; the first one stands."""
    pairing = _Pairing(turns)
    pairing.pair()
    return pairing.units()


class _Pairing:
    """The state of one pairing: who belongs with whom, and what was left out."""

    def __init__(self, turns: Sequence[CanonicalTurn]) -> None:
        self._turns = sorted(turns, key=lambda turn: turn.position)
        self._sites: list[list[_Site]] = [[] for _ in self._turns]
        self._together = list(range(len(self._turns)))  # union-find over turn indexes
        self._used: set[int] = set()
        self._left_out: list[LeftOut] = []
        self._open: dict[str, _Site] = {}
        self._call_ids: set[str] = set()

    def pair(self) -> None:
        seen: set[str] = set()
        for index, turn in enumerate(self._turns):
            if turn.kind is Kind.COMPACTION:
                self._leave(turn, "compaction turns are never shown")
            elif turn.id in seen:
                self._leave(turn, "the same turn was given twice")
            else:
                self._read_calls(index, turn)
                self._read_results(index, turn)
                self._used.add(index)
            seen.add(turn.id)

    def units(self) -> Units:
        blocks = {index: block for index in sorted(self._used) if (block := self._block(index)) is not None}
        self._bring_forth(blocks)
        members: dict[int, list[int]] = {}
        for index in sorted(self._used):
            members.setdefault(self._root(index), []).append(index)
        units = [
            Unit(tuple(self._turns[index] for index in group), tuple(blocks[i] for i in group if i in blocks))
            for group in members.values()
            if any(index in blocks for index in group)
        ]
        # a turn outside every unit that gave no reason yet is empty
        shown = {turn.id for unit in units for turn in unit.turns}
        named = {left.turn.id for left in self._left_out}
        for index in sorted(self._used):
            turn = self._turns[index]
            if turn.id not in shown and turn.id not in named:
                self._leave(turn, "it has no content to show")
        units.sort(key=lambda unit: unit.position)
        left_out = [replace(left, whole=left.turn.id not in shown) for left in self._left_out]
        return Units(tuple(units), tuple(sorted(left_out, key=lambda left: left.turn.position)))

    def _bring_forth(self, blocks: dict[int, TurnBlock]) -> None:
        """Put turns that say nothing themselves (reasoning, a search) into the unit of the turn that came of them.

        Where nothing came of them, they go into that of the turn they follow directly.
        """
        silent: list[int] = []
        last: int | None = None
        for index in sorted(self._used):
            turn = self._turns[index]
            if is_silent(turn):
                # only a model's own items go back to it: else a user could hand it searches that never were
                if turn.role is Role.ASSISTANT:
                    silent.append(index)
                else:
                    self._leave(turn, "it says nothing, and is not the model's")
                continue
            if index in blocks and turn.role is Role.ASSISTANT:
                blocks[index] = replace(blocks[index], before=self._join(silent, index))
                last = index
            else:
                self._end_silent(blocks, silent, last)
                last = None
            silent = []
        self._end_silent(blocks, silent, last)

    def _end_silent(self, blocks: dict[int, TurnBlock], silent: Sequence[int], last: int | None) -> None:
        if last is not None:
            blocks[last] = replace(blocks[last], after=self._join(silent, last))
            return
        for index in silent:
            self._leave(self._turns[index], "what came of it is not shown")

    def _join(self, silent: Sequence[int], index: int) -> tuple[CanonicalTurn, ...]:
        for one in silent:
            self._together[self._root(one)] = self._root(index)
        return tuple(self._turns[one] for one in silent)

    def _leave(self, turn: CanonicalTurn, reason: str) -> None:
        self._left_out.append(LeftOut(turn, reason, whole=True))

    def _read_calls(self, index: int, turn: CanonicalTurn) -> None:
        own: set[str] = set()
        for call in turn.tool_calls:
            if call.id in own:
                self._leave(turn, f"call {call.id} stands in this turn twice, the first is kept")
                continue
            own.add(call.id)
            unique = call.id
            if unique in self._call_ids:
                # some models number their calls anew in each answer, and providers refuse an id used twice
                unique = f"{call.id}_{turn.position}"
                while unique in self._call_ids:
                    unique += "_"
            self._call_ids.add(unique)
            site = _Site(index, replace(call, id=unique))
            self._sites[index].append(site)
            self._open[call.id] = site

    def _read_results(self, index: int, turn: CanonicalTurn) -> None:
        results = results_of(turn) if turn.role is Role.TOOL else list(turn.tool_results)
        reasons: list[str] = []
        for result in results:
            site = self._open.get(result.tool_call_id)
            if site is None:
                reasons.append(f"the call {result.tool_call_id} of this result is not among the recent turns")
            elif site.result is not None:
                reasons.append(f"call {result.tool_call_id} was answered before, the first result is kept")
            else:
                site.result = replace(result, tool_call_id=site.call.id)
                self._together[self._root(index)] = self._root(site.turn)
        if turn.role is Role.TOOL and not results and not turn.tool_calls:
            reasons.append("a tool turn that names no call")
        for reason in reasons:
            self._leave(turn, reason)

    def _block(self, index: int) -> TurnBlock | None:
        turn, sites = self._turns[index], self._sites[index]
        answered = [Answered(site.call, site.result) for site in sites if site.result is not None]
        own = turn.role is not Role.TOOL and has_content(turn)
        shown = own or bool(answered)
        for site in sites:
            if site.result is None:
                rest = "" if shown else ", and the turn has no text"
                self._leave(turn, f"call {site.call.id} has no result{rest}")
        if not shown:
            return None
        # the content of a tool turn is a result, which is shown with its call
        return TurnBlock(turn if own else replace(turn, content=None), answered)

    def _root(self, index: int) -> int:
        while self._together[index] != index:
            self._together[index] = self._together[self._together[index]]
            index = self._together[index]
        return index
