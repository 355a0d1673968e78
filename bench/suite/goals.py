"""The operations that have a goal, on two cores that the service, Postgres and the load generator share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from suite.figure import Field, Figure, ratio


@dataclass(frozen=True, slots=True)
class Goal:
    """A value of a figure and the goal for it. `to`: the figure that it is divided by."""

    label: str
    figure: str
    field: Field
    goal: float
    unit: str
    to: str | None = None
    higher_is_better: bool = False

    def measured(self, figures: Mapping[str, Figure]) -> float | None:
        """Return the value of a run, or None if the run has no such figure."""
        if self.to is not None:
            return ratio(figures, self.figure, self.field, to=self.to)
        return figures[self.figure].value(self.field) if self.figure in figures else None

    def is_met(self, value: float) -> bool:
        """Return whether a value reaches the goal."""
        return value >= self.goal if self.higher_is_better else value <= self.goal


_EMBEDDER: Final = "the embedder alone, 50 texts"

GOALS: Final = (
    Goal("recall, k 10, 500 turns, p50", "recall, 500 turns", "p50_ms", 4, "ms"),
    Goal("recall, k 10, 6 000 turns, p50", "recall, 6000 turns", "p50_ms", 5, "ms"),
    Goal("recall, k 10, 20 000 turns, p50", "recall, 20000 turns", "p50_ms", 8, "ms"),
    Goal("recall, 6 000 turns, CPU of server and Postgres", "recall, 6000 turns", "cpu_ms", 5, "ms"),
    Goal("recall across a tenant of 60 000, p50", "recall, tenant of 60000", "p50_ms", 15, "ms"),
    Goal("first recall of 6 000 turns that no process holds, p50", "first recall, 6000 turns", "p50_ms", 60, "ms"),
    Goal("context of 4 000 tokens, 6 000 turns, p50", "context, 6000 turns", "p50_ms", 4, "ms"),
    Goal("the same with recall, p50", "context, 6000 turns, with recall", "p50_ms", 8, "ms"),
    Goal("append 1, p50", "append 1", "p50_ms", 6, "ms"),
    Goal("append 1, CPU of the server", "append 1", "server_cpu_ms", 4.5, "ms"),
    Goal("append 1, 8 clients", "append 1, 8 clients", "per_second", 250, "a second", higher_is_better=True),
    Goal(
        "append 50, share of the throughput of the embedder alone", "append 50", "per_second", 0.85, "",
        to=_EMBEDDER, higher_is_better=True,
    ),
    Goal("append 50, CPU of the server divided by that of the embedder alone", "append 50", "server_cpu_ms", 1.2, "",
         to=_EMBEDDER),
    Goal(
        "bulk append of 500, deferred", "bulk append of 500, deferred", "per_second", 2500, "turns a second",
        higher_is_better=True,
    ),
    Goal("GET conversation, CPU of the server", "GET conversation", "server_cpu_ms", 0.5, "ms"),
    Goal("history of 50, CPU of the server", "history of 50", "server_cpu_ms", 1.8, "ms"),
    Goal("before_turn at 5 000 turns, p50", "before_turn, 5000 turns", "p50_ms", 12, "ms"),
    Goal("idle memory of the service, with the model", "idle memory", "mib", 220, "MiB"),
    Goal("memory of 100 000 entries that were searched", "memory of 100 000 entries searched", "mib", 200, "MiB"),
)  # fmt: skip
