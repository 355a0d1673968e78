"""Metrics of the turn lifecycle."""

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from app.agents.lifecycle.counters import BUCKETS_MS, LifecycleCounters

_CALLS = {
    "before_turn": "Contexts of turns to come, by how the call ended.",
    "after_turn": "Turns to store, by how the call ended.",
    "run_turn": "Turns prepared or ended, by how the call ended.",
    "maintenance": "Sessions looked after, by how the call ended.",
    "tree": "Listings of a session's memory, by how the call ended.",
}


class _Lifecycle(Collector):
    """Collector that reads the counters when metrics are collected."""

    def __init__(self, counters: LifecycleCounters) -> None:
        self._counters = counters

    def collect(self) -> Iterable[Metric]:
        """Yield every metric of the lifecycle."""
        counters = self._counters
        for call, text in _CALLS.items():
            counter = CounterMetricFamily(f"mcp_memory_{call}", text, labels=["status"])
            for (name, status), count in counters.calls.items():
                if name == call:
                    counter.add_metric([status], count)
            yield counter
        bounds = [*(f"{bound:g}" for bound in BUCKETS_MS), "+Inf"]
        yield HistogramMetricFamily(
            "mcp_memory_after_turn_duration_ms",
            "How long storing a turn took, in milliseconds.",
            buckets=list(zip(bounds, accumulate(counters.after_turn_ms), strict=True)),
            sum_value=counters.after_turn_sum_ms,
        )
        yield CounterMetricFamily(
            "mcp_memory_compaction", "Summaries made, by jobs, maintenance and requests.", value=counters.compactions()
        )
        yield CounterMetricFamily(
            "mcp_memory_idempotency_conflicts",
            "Turns sent again that said something else than what is stored.",
            value=counters.conflicts,
        )
        written = CounterMetricFamily("mcp_memory_fact_write", "Facts written, by tier.", labels=["tier"])
        for tier, count in counters.facts.items():
            written.add_metric([tier], count)
        yield written


def add_lifecycle_metrics(registry: CollectorRegistry, counters: LifecycleCounters) -> None:
    """Export the counters of this process as `mcp_memory_…`."""
    registry.register(_Lifecycle(counters))
