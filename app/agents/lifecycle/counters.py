"""Metrics of the turn lifecycle in this process, exported as `mcp_memory_…`."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from app.conversations.schemas.summaries import RefusedFor
from app.core.errors import AppError

_BUCKETS_MS: Final = (5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 300.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0)
_CALLS: Final = {
    "before_turn": "Contexts of turns to come, by how the call ended.",
    "after_turn": "Turns to store, by how the call ended.",
    "run_turn": "Turns prepared or ended, by how the call ended.",
    "maintenance": "Sessions looked after, by how the call ended.",
    "tree": "Listings of a session's memory, by how the call ended.",
}


class LifecycleCounters(Collector):
    """Calls by name and result, durations, facts, summaries and conflicts.

    `facts`: written facts by tier. `compactions` returns the number of summaries made, by jobs too; `refused_summaries`
    are answers of the model that became no summary, by reason.
    """

    def __init__(
        self, facts: Mapping[str, int], compactions: Callable[[], int], refused_summaries: Mapping[RefusedFor, int]
    ) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.after_turn_ms: list[int] = [0] * (len(_BUCKETS_MS) + 1)
        self.conflicts = 0
        self._after_turn_sum_ms = 0.0
        self._compactions = compactions
        self._facts = facts
        self._refused_summaries = refused_summaries

    @contextmanager
    def counted(self, call: str) -> Generator[None]:
        """Count a call by its result: `ok`, or the code of the error."""
        status, started = "internal_error", time.perf_counter()
        try:
            yield
            status = "ok"
        except AppError as error:
            status = error.code
            raise
        finally:
            self.calls[call, status] += 1
            if call == "after_turn":
                took_ms = (time.perf_counter() - started) * 1000
                self.after_turn_ms[bisect_left(_BUCKETS_MS, took_ms)] += 1
                self._after_turn_sum_ms += took_ms

    def collect(self) -> Iterable[Metric]:
        """Yield every metric of the lifecycle."""
        for call, text in _CALLS.items():
            counts = {status: count for (name, status), count in self.calls.items() if name == call}
            yield _counter(f"mcp_memory_{call}", text, "status", counts.items())
        bounds = [*(f"{bound:g}" for bound in _BUCKETS_MS), "+Inf"]
        yield HistogramMetricFamily(
            "mcp_memory_after_turn_duration_ms",
            "How long storing a turn took, in milliseconds.",
            buckets=list(zip(bounds, accumulate(self.after_turn_ms), strict=True)),
            sum_value=self._after_turn_sum_ms,
        )
        about = "Summaries made, by jobs, maintenance and requests."
        yield CounterMetricFamily("mcp_memory_compaction", about, value=self._compactions())
        about = "Answers of a chat model that became no summary, by reason."
        yield _counter("turnkeep_summaries_refused", about, "reason", self._refused_summaries.items())
        about = "Turns sent again that said something else than what is stored."
        yield CounterMetricFamily("mcp_memory_idempotency_conflicts", about, value=self.conflicts)
        yield _counter("mcp_memory_fact_write", "Facts written, by tier.", "tier", self._facts.items())


def _counter(name: str, text: str, label: str, counts: Iterable[tuple[str, int]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts:
        family.add_metric([value], count)
    return family
