"""Choose how many of the oldest turns a compaction summarises. Pure.

It takes the oldest half, rounded up, and repeats this with the rest until the rest is within the limits. It never takes
the newest unit, and never cuts between a tool call and its result.
"""

from collections.abc import Sequence
from itertools import accumulate

from app.formats.schemas import CanonicalTurn, Role
from app.formats.units import group_turns

# A call without an answer in this many later turns counts as abandoned.
_ABANDONED_AFTER_TURNS = 50


def oldest_half(turns: Sequence[CanonicalTurn], *, max_turns: int, max_tokens: int) -> int:
    """Return how many of these turns without a summary (oldest first) are to be summarised; 0 for none."""
    cut, turns_left, tokens_left = 0, len(turns), sum(turn.content_tokens for turn in turns)
    while turns_left > 1 and (turns_left > max_turns or tokens_left > max_tokens):
        half = min(-(-turns_left // 2), turns_left - 1)
        tokens_left -= sum(turn.content_tokens for turn in turns[cut : cut + half])
        cut += half
        turns_left -= half
    return at_boundary(turns, cut)


def within_tokens(turns: Sequence[CanonicalTurn], *, max_tokens: int, per_turn: int) -> int:
    """Return how many of the oldest turns have at most `max_tokens` together, at least one unit of them.

    `per_turn`: tokens of each turn besides its content.
    """
    count = tokens = 0
    for turn in turns:
        tokens += turn.content_tokens + per_turn
        if count and tokens > max_tokens:
            break
        count += 1
    return at_boundary(turns, count, whole=True)


def at_boundary(turns: Sequence[CanonicalTurn], cut: int, *, whole: bool = False) -> int:
    """Return the cut moved forward, else back, to a place that separates no call from its result.

    Without `whole` at least one turn is left after the cut. With it, the caller knows that none of the calls of these
    turns waits for an answer.
    """
    allowed = _boundaries(turns, open_end=not whole)
    most = len(turns) if whole else len(turns) - 1
    if cut <= 0:
        return 0
    later = [place for place in allowed if cut <= place <= most]
    return min(later) if later else max((place for place in allowed if place < cut and place <= most), default=0)


def _boundaries(turns: Sequence[CanonicalTurn], *, open_end: bool) -> list[int]:
    """Return all places, as counts of turns before them, that separate no call from its result."""
    if all(map(_is_text_alone, turns)):
        return list(range(1, len(turns) + 1))
    place_of = {turn.id: place for place, turn in enumerate(turns)}
    steps = [0] * (len(turns) + 2)  # where ranges of places that separate something begin and end
    for unit in group_turns(turns).units:
        places = [place_of[turn.id] for turn in unit.turns]
        steps[min(places) + 1] += 1
        steps[max(places) + 1] -= 1
    if open_end and (waiting := _first_waiting(turns)) is not None:
        steps[waiting + 1] += 1
    depths = list(accumulate(steps))
    return [place for place in range(1, len(turns) + 1) if not depths[place]]


def _is_text_alone(turn: CanonicalTurn) -> bool:
    """Return whether a turn is a unit by itself: it has no calls, results or items."""
    has_others = turn.tool_calls or turn.tool_results or turn.tool_call_id is not None
    return isinstance(turn.content, str) and not has_others


def _first_waiting(turns: Sequence[CanonicalTurn]) -> int | None:
    """Return the place of the first call at the end that has no answer, and that the next turn may answer."""
    first: int | None = None
    answered: set[str | None] = set()
    for place in range(len(turns) - 1, max(-1, len(turns) - 1 - _ABANDONED_AFTER_TURNS), -1):
        turn = turns[place]
        if turn.role is Role.USER:
            break
        answered.update(result.tool_call_id for result in turn.tool_results)
        answered.add(turn.tool_call_id)
        if any(call.id not in answered for call in turn.tool_calls):
            first = place
    return first
