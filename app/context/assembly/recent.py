"""The recent turns of a context in units, and the shorter forms of those that are too long. Pure.

Invariant: only turns of the newest units are cut by the query; all others are cut by their text and the limit alone, so
that the prefix of a context stays the same for every query.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from app.context.assembly.cuts import Count, Span
from app.context.assembly.parts import ContextParts
from app.context.assembly.shortening import ShortenedTurn, fair_limit, flatten, shorten, sizes
from app.context.schemas import ContextRequest
from app.formats.schemas import CanonicalTurn, Role, TokenCounter
from app.formats.tokens import STORED_TOKENIZER
from app.formats.units import Unit, group_turns
from app.formats.viewpoint import apply_viewpoint
from app.recall.schemas import Passage

_SHARE_OF_TURN: Final = 3
"""By default, a turn gets at most this part of the budget."""
_TURNS_OF_UNIT: Final = 2
"""A call with its results gets the place of so many turns."""
_TRIES: Final = 6


class RecentTurns:
    """The units of the recent turns. `cuts` are the turns that are shorter than they were given, by id."""

    def __init__(self, parts: ContextParts, request: ContextRequest, count: Count, limit: int) -> None:
        """`limit`: the tokens of all messages together, as they are counted."""
        self._turns = {turn.id: turn for turn in parts.recent}
        self._given = parts.recent
        self._passages = parts.passages
        self._as_actor = request.as_actor
        self._count = count
        self._limit = limit
        self.max_turn_tokens = request.max_turn_tokens or limit // _SHARE_OF_TURN
        self.cuts: dict[str, ShortenedTurn] = {}
        self._flat: dict[str, ShortenedTurn] = {}
        paired = group_turns(parts.recent)
        self.left_out = paired.left_out
        self.units: Sequence[Unit] = self._seen(paired.units)

    def spans(self, turn_id: str) -> Sequence[Span] | None:
        """Return the runs that are shown of a turn in the window; None if it is whole."""
        cut = self.cuts.get(turn_id)
        return None if cut is None else cut.spans

    def newest_user_turns(self) -> set[str]:
        """Return the ids of the turns of the newest unit with a message of the user."""
        for unit in reversed(self.units):
            if any(block.turn.role is Role.USER and not block.answered for block in unit.blocks):
                return {turn.id for turn in unit.turns}
        return set()

    def is_too_long(self, units: Iterable[Unit], limit: int) -> bool:
        """Return whether a text of some units alone, as it was given, takes more than `limit` tokens."""
        turns = (turn for unit in units for turn in self._cuttable(unit))
        return any(size > limit for turn in turns for size in sizes(turn, limit, self._count))

    def shorten_window(self, required: int, *, exempt: set[str]) -> bool:
        """Cut the turns of the window that are too long, except some; return whether any was cut."""
        first = max(0, len(self.units) - required)
        limits: dict[str, int] = {}
        for unit in self.units:
            turns = [turn for turn in self._cuttable(unit) if turn.id not in exempt and turn.id not in self.cuts]
            limits |= self._limits(turns)
        newest = {turn.id for unit in self.units[first:] for turn in unit.turns}
        return self._cut(limits, newest)

    def shorten_newest(self, required: int, excess: Callable[[], int]) -> None:
        """Cut the newest units until they fit, the newest user turn last. `excess`: the tokens that do not fit."""
        self.restore()
        units = self.units[len(self.units) - required :]
        turns = [turn for unit in units for turn in self._cuttable(unit)]
        newest = {turn.id for turn in turns}
        users = self.newest_user_turns()
        others = [turn for turn in turns if turn.id not in users]
        if others and not self.is_too_long([unit for unit in units if unit.turns[0].id in users], self._limit):
            self._cut(self._limits(others), newest)
            if excess() <= 0:
                return
        lengths = [size for turn in turns for size in sizes(turn, self._limit, self._count)]
        limit = fair_limit(lengths, self._limit)
        for _ in range(_TRIES):
            self._cut(dict.fromkeys(newest, limit), newest)
            tokens = excess()
            if tokens <= 0:
                return
            number = sum(length > limit for length in lengths)
            limit -= -(-tokens // max(1, number)) + 1
            if limit <= 0:
                break
        self.shorten_newest_most(required)

    def shorten_newest_most(self, required: int) -> None:
        """Leave no more of the newest units than marks."""
        units = self.units[len(self.units) - required :]
        newest = {turn.id for unit in units for turn in self._cuttable(unit)}
        self._cut(dict.fromkeys(newest, 0), set())

    def flatten_newest(self, required: int) -> None:
        """Replace the parts of the newest units by one text for each turn, which can be cut as any other text."""
        for unit in self.units[len(self.units) - required :]:
            for turn in self._cuttable(unit):
                flat = flatten(turn, self._count)
                if flat is not None:
                    self._flat[turn.id], self._turns[turn.id] = flat, flat.turn
        self.restore()

    def restore(self) -> None:
        """Return to the turns as they were given, or flattened."""
        self._show({})

    def _cuttable(self, unit: Unit) -> list[CanonicalTurn]:
        """Return the turns of a unit as they were given, without those of the system: instructions are never cut."""
        turns = [self._turns[turn.id] for turn in unit.turns]
        return [turn for turn in turns if turn.role is not Role.SYSTEM]

    def _limits(self, turns: Sequence[CanonicalTurn]) -> dict[str, int]:
        """Return the limits of the texts of those turns of one unit that are too long."""
        max_tokens = self.max_turn_tokens
        lengths = {turn.id: sizes(turn, max_tokens, self._count) for turn in turns}
        limits = {
            turn_id: fair_limit(texts, max_tokens) for turn_id, texts in lengths.items() if sum(texts) > max_tokens
        }
        shown = [min(size, limits.get(turn_id, size)) for turn_id, texts in lengths.items() for size in texts]
        if len(turns) > 1 and sum(shown) > _TURNS_OF_UNIT * max_tokens:
            limit = fair_limit(shown, _TURNS_OF_UNIT * max_tokens)
            return {turn_id: min(limits.get(turn_id, limit), limit) for turn_id in lengths}
        return limits

    def _cut(self, limits: Mapping[str, int], newest: set[str]) -> bool:
        """Cut turns to limits, those of the newest units by the query; return whether any turn changed."""
        cuts = dict(self.cuts)
        for turn_id, limit in limits.items():
            wanted: Sequence[Passage] = self._passages.get(turn_id, ()) if turn_id in newest else ()
            cut = shorten(self._turns[turn_id], limit, self._count, wanted=wanted)
            if cut.left_out:
                cuts[turn_id] = cut
            else:
                cuts.pop(turn_id, None)
        return self._show(cuts)

    def _show(self, cuts: dict[str, ShortenedTurn]) -> bool:
        cuts = {**self._flat, **cuts}
        if cuts == self.cuts:
            return False
        self.cuts = cuts
        shown = [cuts[turn.id].turn if turn.id in cuts else turn for turn in self._given]
        self.units = self._seen(group_turns(shown).units)
        return True

    def _seen(self, units: Sequence[Unit]) -> Sequence[Unit]:
        return units if self._as_actor is None else apply_viewpoint(units, self._as_actor)


def stored_counts(parts: ContextParts, counter: TokenCounter) -> dict[str, int]:
    """Return the texts whose counts are stored: those of turns that consist of one text."""
    if counter.name != STORED_TOKENIZER:
        return {}
    return {
        turn.content: turn.content_tokens
        for turn in parts.recent[: len(parts.recent) - parts.upcoming]
        if isinstance(turn.content, str) and turn.content_tokens and not turn.tool_calls and not turn.tool_results
    }


def upcoming_units(parts: ContextParts, units: Sequence[Unit]) -> int:
    """Count the newest units that consist of upcoming turns: every context shows them."""
    if not parts.upcoming:
        return 0
    first = parts.recent[-parts.upcoming].position
    return sum(unit.position >= first for unit in units)
