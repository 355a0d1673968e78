"""Where the window of recent turns begins.

Hides the alignment that keeps a prompt cache warm: the first position of a window that cannot hold everything is a
multiple of 16, so sixteen appends in a row share their prefix byte for byte. A smaller window moves in smaller blocks
(8, 4, 2, 1): the block is the largest that is at most half of what fits, so that alignment never costs more than half.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from sys import maxsize
from typing import Final

from app.formats.units import Unit

_BLOCKS: Final = (16, 8, 4, 2)


def block_of(fitting: int) -> int:
    """In what steps the start of a window moves that could hold so many units."""
    return next((block for block in _BLOCKS if fitting >= 2 * block), 1)


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


def aligned(units: Sequence[Unit], first: int, *, required: int = 1) -> int:
    """Move a window's start forward to a block boundary; the newest `required` units always stay."""
    if not units:
        return 0
    block = block_of(len(units) - first)
    boundary = -(-units[first].position // block) * block
    return min(bisect_left(units, boundary, key=lambda unit: unit.position), max(0, len(units) - required))
