"""How many of the oldest turns a compaction summarises. Pure.

The oldest half, rounded up, and again of the rest until it is within the limits; never the newest unit, and never
between a tool call and its result.
"""

from collections.abc import Sequence

from app.formats.schemas import CanonicalTurn, Role
from app.formats.units import units_of


def oldest_half(turns: Sequence[CanonicalTurn], *, most_turns: int, most_tokens: int) -> int:
    """How many of these turns (the oldest first, all that no summary stands for) are to be summarised; 0: none."""
    cut, turns_left, tokens_left = 0, len(turns), sum(turn.content_tokens for turn in turns)
    while turns_left > 1 and (turns_left > most_turns or tokens_left > most_tokens):
        half = min(-(-turns_left // 2), turns_left - 1)
        tokens_left -= sum(turn.content_tokens for turn in turns[cut : cut + half])
        cut += half
        turns_left -= half
    return at_boundary(turns, cut)


def within_tokens(turns: Sequence[CanonicalTurn], *, most_tokens: int) -> int:
    """How many of the oldest turns have so many tokens together, at least one unit of them."""
    count = tokens = 0
    for turn in turns:
        tokens += turn.content_tokens
        if count and tokens > most_tokens:
            break
        count += 1
    return at_boundary(turns, count, whole=True)


def at_boundary(turns: Sequence[CanonicalTurn], cut: int, *, whole: bool = False) -> int:
    """The cut moved on, or else back, to where it parts no call from its result.

    Without `whole` something must be left behind it.
    """
    allowed = _boundaries(turns)
    most = len(turns) if whole else len(turns) - 1
    if cut <= 0:
        return 0
    later = [place for place in allowed if cut <= place <= most]
    return min(later) if later else max((place for place in allowed if place < cut and place <= most), default=0)


def _boundaries(turns: Sequence[CanonicalTurn]) -> list[int]:
    """All places, as counts of turns before them, that part nothing."""
    place_of = {turn.id: place for place, turn in enumerate(turns)}
    inside: set[int] = set()
    for unit in units_of(turns).units:
        places = [place_of[turn.id] for turn in unit.turns]
        inside.update(range(min(places) + 1, max(places) + 1))
    # a call at the end that nobody has answered may be answered by the next turn
    for place in range(len(turns) - 1, -1, -1):
        turn = turns[place]
        if turn.role is Role.USER:
            break
        answered = {result.tool_call_id for later in turns[place:] for result in later.tool_results}
        answered |= {later.tool_call_id for later in turns[place:] if later.tool_call_id is not None}
        if any(call.id not in answered for call in turn.tool_calls):
            inside.update(range(place + 1, len(turns) + 1))
    return [place for place in range(1, len(turns) + 1) if place not in inside]
