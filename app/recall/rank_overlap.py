"""How alike two orders of hits are. Pure."""

from collections.abc import Hashable, Sequence
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)


def overlap(one: Sequence[Item], other: Sequence[Item]) -> float:
    """The part of the hits that both have: 1 where they have the same, in whatever order. Of nothing and nothing 1."""
    most = max(len(one), len(other))
    return len(set(one) & set(other)) / most if most else 1.0


def rank_agreement(one: Sequence[Item], other: Sequence[Item]) -> float:
    """How far the two agree from the top on: 1 for the same order, 0 where they share nothing.

    Method: average overlap (Fagin, Kumar and Sivakumar, "Comparing top k lists", 2003): the mean, over every depth, of
    the part that the two have in common down to it, so that the first places weigh most.
    """
    most = max(len(one), len(other))
    if not most:
        return 1.0
    return sum(len(set(one[:depth]) & set(other[:depth])) / depth for depth in range(1, most + 1)) / most
