"""Metrics that are read from the counts of services when they are collected."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

LabelT = TypeVar("LabelT", bound=str)


class _FunctionCollector(Collector):
    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()


def export(registry: CollectorRegistry, read: Callable[[], Iterable[Metric]]) -> None:
    """Export the metrics that a function returns."""
    registry.register(_FunctionCollector(read))


def counter(name: str, text: str, label: str, counts: Mapping[LabelT, int]) -> CounterMetricFamily:
    """Return a counter with a sample for each value of a label."""
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
