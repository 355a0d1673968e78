"""Metrics of HTTP requests."""

from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

CLIENT_WENT_AWAY: Final = 499
OTHER: Final = "other"
"""Label of an unknown method or status."""
_KNOWN_STATUSES: Final = frozenset({*HTTPStatus, CLIENT_WENT_AWAY})
_DURATION_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


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
        label_status = status if status in _KNOWN_STATUSES else 0
        key = (method, route, label_status)
        children = self._children.get(key)
        if children is None:
            label = str(label_status) if label_status else OTHER
            children = self._children[key] = (
                self._requests.labels(method, route, label),
                self._duration.labels(method, route),
            )
        children[0].inc()
        children[1].observe(duration_s, exemplar)
