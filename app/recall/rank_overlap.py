"""Similarity of two rankings. Pure."""

from collections.abc import Hashable, Sequence
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)


def overlap(first: Sequence[Item], second: Sequence[Item]) -> float:
    """Return the share of items that both rankings contain, in any order: 0 to 1, and 1 for two empty rankings."""
    length = max(len(first), len(second))
    return len(set(first) & set(second)) / length if length else 1.0


def rank_agreement(first: Sequence[Item], second: Sequence[Item]) -> float:
    """Return how well two rankings agree: 1 for the same order, 0 if they share no item.

    Method: average overlap (Fagin, Kumar and Sivakumar, "Comparing top k lists", 2003). This is the mean, over every
    depth, of the share of items in common down to that depth. The first ranks weigh most.
    """
    length = max(len(first), len(second))
    if not length:
        return 1.0
    return sum(len(set(first[:depth]) & set(second[:depth])) / depth for depth in range(1, length + 1)) / length
