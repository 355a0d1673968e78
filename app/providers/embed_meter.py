"""Metrics of the calls of embedders: how many, how they end, how long they take, and for how many texts.

Labels are the embedding space (provider, model, dimensions), the purpose and the code of the result: never a text.
"""

from collections.abc import Generator
from contextlib import contextmanager
from time import perf_counter
from typing import Final

from prometheus_client import Counter, Histogram
from prometheus_client.registry import Collector

from app.core.errors import AppError
from app.core.tracing.call_record import Stage
from app.core.tracing.stages import MeasuredStage
from app.providers.schemas import EmbeddingSpaceName, Purpose

_SPACE: Final = ("provider", "model", "dimensions", "purpose")
_DURATION_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class EmbedMeter:
    """Counters of all embedders of a process. They are registered by the process that exports them."""

    def __init__(self) -> None:
        self._calls = Counter(
            "turnkeep_embed_calls",
            "Calls of embedders, by embedding space, purpose and status: ok, cancelled or the code of the error.",
            [*_SPACE, "status"],
            registry=None,
        )
        self._texts = Counter(
            "turnkeep_embed_texts",
            "Texts that embedders were given, by embedding space and purpose.",
            _SPACE,
            registry=None,
        )
        self._duration = Histogram(
            "turnkeep_embed_duration_seconds",
            "Time of calls of embedders, with the wait for a thread or a connection.",
            _SPACE,
            registry=None,
            buckets=_DURATION_BUCKETS_S,
        )

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """Return the metrics, for a registry."""
        return self._calls, self._texts, self._duration

    @contextmanager
    def measured(self, space: EmbeddingSpaceName, purpose: Purpose, texts: int) -> Generator[None]:
        """Measure a call of an embedder until the block ends."""
        labels = (space.provider, space.model, str(space.dimensions), purpose)
        status, started = "cancelled", perf_counter()
        try:
            with MeasuredStage(Stage.EMBED, provider=space.provider, model=space.model, purpose=purpose, texts=texts):
                yield
            status = "ok"
        except AppError as error:
            status = error.code
            raise
        except Exception:
            status = "internal_error"
            raise
        finally:
            self._calls.labels(*labels, status).inc()
            self._texts.labels(*labels).inc(texts)
            self._duration.labels(*labels).observe(perf_counter() - started)
