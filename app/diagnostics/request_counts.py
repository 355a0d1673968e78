"""Counts of requests and their durations, by class, over one interval. Pure."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

_FIRST_MS: Final = 0.5
_GROWTH: Final = 1.2
BOUNDS_MS: Final = tuple(_FIRST_MS * _GROWTH**step for step in range(67))
"""Upper bounds of the groups that durations are counted in: from 0.5 ms to 84 s, each 20 % above the one before."""

_FIRST_REFUSAL: Final = 400
_FIRST_ERROR: Final = 500


@dataclass(slots=True)
class RequestCounts:
    """Requests of one class: how many, how many were refused (4xx) or failed (5xx), and durations in groups."""

    requests: int = 0
    refused: int = 0
    errors: int = 0
    durations: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))

    def add(self, status: int, duration_ms: float | None) -> None:
        """Count one request; None: its duration says nothing, because the client decides when a stream ends."""
        self.requests += 1
        if status >= _FIRST_ERROR:
            self.errors += 1
        elif status >= _FIRST_REFUSAL:
            self.refused += 1
        if duration_ms is not None:
            self.durations[bisect_left(BOUNDS_MS, duration_ms)] += 1

    def percentile_ms(self, share: float) -> float | None:
        """Return the duration that this share of all requests did not exceed, at most 20 % too high; None of none.

        It is the upper bound of the group in which this share of all durations is reached.
        """
        total = sum(self.durations)
        if not total:
            return None
        reached = 0
        for index, count in enumerate(self.durations):
            reached += count
            if reached >= share * total:
                return round(BOUNDS_MS[min(index, len(BOUNDS_MS) - 1)], 2)
        return round(BOUNDS_MS[-1], 2)
