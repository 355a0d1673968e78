"""Counters of the turn lifecycle in this process, exported as metrics."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Final

from app.conversations.schemas.summaries import RefusedFor
from app.core.errors import AppError

BUCKETS_MS: Final = (5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 300.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0)
_OK: Final = "ok"
_INTERNAL: Final = "internal_error"


class LifecycleCounters:
    """Calls by name and result, durations, facts, summaries and conflicts.

    `facts`: written facts by tier. `compactions` returns the number of summaries made, by jobs too; `refused_summaries`
    are answers of the model that became no summary, by reason.
    """

    def __init__(
        self, facts: Mapping[str, int], compactions: Callable[[], int], refused_summaries: Mapping[RefusedFor, int]
    ) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.after_turn_ms: list[int] = [0] * (len(BUCKETS_MS) + 1)
        self.after_turn_sum_ms = 0.0
        self.compactions = compactions
        self.conflicts = 0
        self.facts = facts
        self.refused_summaries = refused_summaries

    @contextmanager
    def counted(self, call: str) -> Generator[None]:
        """Count a call by its result: `ok`, or the code of the error."""
        status, started = _INTERNAL, time.perf_counter()
        try:
            yield
            status = _OK
        except AppError as error:
            status = error.code
            raise
        finally:
            self.calls[call, status] += 1
            if call == "after_turn":
                took_ms = (time.perf_counter() - started) * 1000
                self.after_turn_ms[bisect_left(BUCKETS_MS, took_ms)] += 1
                self.after_turn_sum_ms += took_ms
