"""Passages: runs of a long turn's plain text between sentence or line bounds. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passage:
    """A run of a turn's plain text: `start` to `end` in code points, `end` excluded. `score`: how well it matches."""

    start: int
    end: int
    score: float
