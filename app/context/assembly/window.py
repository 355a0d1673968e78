"""Which of the newest turns a context shows in their place: where the window of recent turns begins. Pure.

The start of a window is a multiple of its block (16, 8, 4 or 2 positions), so that many appends in a row share their
prefix byte for byte, which keeps a prompt cache warm. A window of N turns that has room begins at the block's boundary
before the Nth newest turn: it grows outwards, by a quarter at most. A window that the budget cuts begins at the first
boundary that fits.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from sys import maxsize
from typing import Final

from app.formats.units import Unit

_BLOCKS: Final = (16, 8, 4, 2)


def max_window(asked: int) -> int:
    """How many turns a window of `asked` turns may grow to: a quarter more, at least one."""
    return asked + max(1, asked // 4)


def block_of(spare: int) -> int:
    """The largest block whose boundaries are never more than `spare` turns away."""
    return next((block for block in _BLOCKS if block - 1 <= spare), 1)


def newest(units: Sequence[Unit], count: int, *, upcoming: int) -> int:
    """Index of the first unit of the shortest suffix with `count` turns, those of the last `upcoming` units aside."""
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
    """Index of the first unit of the longest suffix within `available` tokens; the newest `required` are always in it.

    `cost(unit, left)` is the unit's tokens, or None where it is known without counting that they are more than `left`.
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
    """Move the start of a window that the budget cuts to the next boundary; the newest `required` units stay."""
    if not units:
        return 0
    block = block_of((len(units) - first) // 4)
    start = _at(units, -(-units[first].position // block) * block)
    return min(start, max(0, len(units) - required))


def _at(units: Sequence[Unit], position: int) -> int:
    return bisect_left(units, position, key=lambda unit: unit.position)
