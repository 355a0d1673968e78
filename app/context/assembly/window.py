"""Choose where the window of recent turns begins. Pure.

The start of a window is a multiple of its block (16, 8, 4 or 2 positions). Many successive appends then share their
prefix byte for byte, which keeps a prompt cache valid. A window of N turns that fits begins at the block's boundary
before the Nth newest turn: it grows outwards by at most a quarter. A window that the budget cuts begins at the first
boundary that fits.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from sys import maxsize
from typing import Final

from app.formats.units import Unit

_BLOCKS: Final = (16, 8, 4, 2)


def max_window(asked: int) -> int:
    """Return how many turns a window of `asked` turns may grow to: a quarter more, at least one more."""
    return asked + max(1, asked // 4)


def block_of(spare: int) -> int:
    """Return the largest block whose boundaries are never more than `spare` turns away."""
    return next((block for block in _BLOCKS if block - 1 <= spare), 1)


def newest(units: Sequence[Unit], count: int, *, upcoming: int) -> int:
    """Return the start of the shortest suffix of units with `count` turns, not counting the last `upcoming` units."""
    first = len(units) - upcoming
    while first > 0 and count > 0:
        first -= 1
        count -= len(units[first].turns)
    return max(0, first)


def rounded_out(units: Sequence[Unit], first: int, *, asked: int, upcoming: int) -> int:
    """Move the start of a window of `asked` turns outwards to a boundary, as far as `max_window` allows."""
    if first == 0 or first == len(units):
        return first
    most = max_window(asked)
    block = block_of(most - asked)
    start = _at(units, units[first].position // block * block)
    turns = sum(len(unit.turns) for unit in units[start : len(units) - upcoming])
    while start < first and turns > most:
        turns -= len(units[start].turns)
        start += 1
    return start


def first_fitting(
    units: Sequence[Unit], available: int, cost: Callable[[Unit, int], int | None], *, required: int = 1
) -> int:
    """Return the start of the longest suffix of units within `available` tokens, and at least the newest `required`.

    `cost(unit, left)` returns the unit's tokens, or None if they are known to exceed `left` without counting.
    """
    if not units:
        return 0
    first = max(0, len(units) - required)
    left = available - sum(cost(unit, maxsize) or 0 for unit in units[first:])
    while first > 0:
        tokens = cost(units[first - 1], left)
        if tokens is None or tokens > left:
            break
        left -= tokens
        first -= 1
    return first


def rounded_in(units: Sequence[Unit], first: int, *, required: int = 1) -> int:
    """Move the start of a window that the budget cuts to the next boundary; keep the newest `required` units."""
    if not units:
        return 0
    block = block_of((len(units) - first) // 4)
    start = _at(units, -(-units[first].position // block) * block)
    return min(start, max(0, len(units) - required))


def _at(units: Sequence[Unit], position: int) -> int:
    return bisect_left(units, position, key=lambda unit: unit.position)
