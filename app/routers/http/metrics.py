"""Metrics of HTTP requests and of the turn lifecycle."""

from collections.abc import Iterable
from http import HTTPStatus
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from app.agents.lifecycle.counters import BUCKETS_MS, LifecycleCounters

CLIENT_WENT_AWAY: Final = 499
OTHER: Final = "other"
"""Label of an unknown method or status."""
_KNOWN_STATUSES: Final = frozenset({*HTTPStatus, CLIENT_WENT_AWAY})
_DURATION_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_CALLS = {
    "before_turn": "Contexts of turns to come, by how the call ended.",
    "after_turn": "Turns to store, by how the call ended.",
    "run_turn": "Turns prepared or ended, by how the call ended.",
    "maintenance": "Sessions looked after, by how the call ended.",
    "tree": "Listings of a session's memory, by how the call ended.",
}


class HttpMetrics:
    """Counts and durations of requests, in the given registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._requests = Counter(
            "turnkeep_http_requests",
            "Requests answered, by method, route template and status.",
            ["method", "route", "status"],
            registry=registry,
        )
        self._duration = Histogram(
            "turnkeep_http_request_duration_seconds",
            "Time from the first byte of a request to the end of its answer.",
            ["method", "route"],
            registry=registry,
            buckets=_DURATION_BUCKETS_S,
        )

    def observe(
        self, *, method: str, route: str, status: int, duration_s: float, exemplar: dict[str, str] | None = None
    ) -> None:
        """Count one finished request. `exemplar` has the ids of its trace."""
        # every label has a bounded set of values: a model's endpoint may return any status
        known = status if status in _KNOWN_STATUSES else 0
        key = (method, route, known)
        children = self._children.get(key)
        if children is None:
            label = str(known) if known else OTHER
            children = self._children[key] = (
                self._requests.labels(method, route, label),
                self._duration.labels(method, route),
            )
        children[0].inc()
        children[1].observe(duration_s, exemplar)


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
        refused = CounterMetricFamily(
            "turnkeep_summaries_refused",
            "Answers of a chat model that became no summary, by reason.",
            labels=["reason"],
        )
        for reason, count in counters.refused_summaries.items():
            refused.add_metric([reason], count)
        yield refused
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
