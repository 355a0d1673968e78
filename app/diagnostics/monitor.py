"""What one process has done lately: samples of its figures, and its slow calls. In memory, bounded, without content.

Every process has its own: an answer is about the process that gives it.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from app.audit.service import request_uuid
from app.core.database.transactions import PoolUse
from app.core.ids import TenantId, format_id, new_uuid
from app.core.paging import Cursors, Page, PageRequest, page_of_views
from app.core.times import truncate_ms
from app.core.tracing.call_record import CallRecord, Stage
from app.core.views import view_of
from app.diagnostics.request_counts import RequestCounts
from app.diagnostics.schemas import (
    ConnectionPoolSample,
    JobsSample,
    MetricSample,
    MetricSamples,
    RouteClassSample,
    SlowCall,
    StageTimes,
)
from app.diagnostics.slow_calls import SlowCalls
from app.settings.server import TelemetrySettings
from app.tenancy.schemas import Caller, Scope

INTERVAL_S: Final = 10
MAX_MINUTES: Final = 60
_SLOW_CALLS: Final = 100
"""Slow calls kept of each tenant, about 1 KiB each."""
_MEDIAN, _P95 = 0.5, 0.95
_STATM: Final = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Sources of the figures that are read for each sample. `jobs`: None in a process without a worker."""

    jobs: Callable[[], Mapping[str, int]] | None
    pools: Callable[[], Mapping[str, PoolUse]]
    search_index_bytes: Callable[[], int]
    live_connections: Callable[[], int]
    open_turns: Callable[[], int]
    subscribers: Callable[[], int]


class FinishedCall(NamedTuple):
    """A finished HTTP request.

    `duration_s` is None for a stream, whose end the client decides, and for a call that was refused before it began.
    """

    tenant_id: TenantId | None
    request_id: str
    trace_id: str | None
    method: str
    route: str
    route_class: str
    status: int
    duration_s: float | None
    record: CallRecord


class Monitor:
    """Public API of the figures of this process."""

    def __init__(self, settings: TelemetrySettings) -> None:
        self._settings = settings
        self.process_id = new_uuid()
        """Id of this start of the process. A cursor of slow calls is valid for one start."""
        self._started_at = truncate_ms(datetime.now(UTC))
        self._counts: dict[str, RequestCounts] = {}
        self._counted_since = time.monotonic()
        self._samples: deque[MetricSample] = deque(maxlen=MAX_MINUTES * 60 // INTERVAL_S)
        self.kept_slow_calls = SlowCalls(max_per_tenant=_SLOW_CALLS)
        self.figures: ProcessFigures | None = None
        """Sources of figures, set when the services are open."""

    def observe(self, call: FinishedCall) -> None:
        """Count a finished call, and keep it if it was slow."""
        counts = self._counts.get(call.route_class)
        if counts is None:
            counts = self._counts[call.route_class] = RequestCounts()
        duration_ms = None if call.duration_s is None else call.duration_s * 1000
        counts.add(call.status, duration_ms)
        if duration_ms is not None and duration_ms >= self._settings.slow_call_ms:
            self.kept_slow_calls.add(call.tenant_id, _slow_call(call, duration_ms))

    @property
    def slow_call_count(self) -> int:
        """Return the number of slow calls since the start."""
        return self.kept_slow_calls.count

    async def sample_forever(self) -> None:
        """Take a sample every ten seconds, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            self.sample()

    def sample(self) -> None:
        """Take a sample of the time since the last one. Nothing happens before the sources of figures are set."""
        figures = self.figures
        if figures is None:
            return
        counts, self._counts = self._counts, {}
        since, self._counted_since = self._counted_since, time.monotonic()
        self._samples.append(
            MetricSample(
                at=truncate_ms(datetime.now(UTC)),
                interval_s=round(self._counted_since - since, 3),
                requests=sum(counted.requests for counted in counts.values()),
                refused=sum(counted.refused for counted in counts.values()),
                errors=sum(counted.errors for counted in counts.values()),
                route_classes=[_class_sample(name, counts[name]) for name in sorted(counts)],
                jobs=None if figures.jobs is None else _jobs_sample(figures.jobs()),
                connection_pools=[
                    ConnectionPoolSample(pool=name, **use._asdict()) for name, use in figures.pools().items()
                ],
                memory_bytes=resident_bytes(),
                search_index_bytes=figures.search_index_bytes(),
                live_connections=figures.live_connections(),
                open_turns=figures.open_turns(),
                subscribers=figures.subscribers(),
            )
        )

    def samples(self, caller: Caller, *, minutes: int) -> MetricSamples:
        """Return the samples of the last minutes, oldest first. For operators."""
        caller.require(Scope.OPERATOR)
        return MetricSamples(
            process_id=format_id(self.process_id),
            started_at=self._started_at,
            interval_s=INTERVAL_S,
            samples=list(self._samples)[-minutes * 60 // INTERVAL_S :],
        )

    def slow_calls(self, caller: Caller, *, cursors: Cursors, all_tenants: bool, asked: PageRequest) -> Page[SlowCall]:
        """List the slow calls of the caller's tenant, or of all tenants (operators only), by their end."""
        caller.require(Scope.OPERATOR if all_tenants else Scope.ADMIN)
        slow_calls = self.kept_slow_calls.of_all() if all_tenants else self.kept_slow_calls.of_tenant(caller.tenant_id)
        # numbers are those of one process, so a cursor is valid for the process that wrote it
        scope = f"slow-calls|{self.process_id}|{'all' if all_tenants else caller.tenant_id}|{asked.order}"
        window = cursors.window(scope, asked, int)
        page = cursors.page(
            window.rows_of(slow_calls, key=lambda kept_call: kept_call.number),
            asked,
            scope=scope,
            key=lambda kept_call: [kept_call.number],
        )
        return page_of_views(page, Page[SlowCall], lambda kept_call: kept_call.call)


def _class_sample(name: str, counts: RequestCounts) -> RouteClassSample:
    return RouteClassSample(
        route_class=name,
        requests=counts.requests,
        refused=counts.refused,
        errors=counts.errors,
        p50_ms=counts.percentile_ms(_MEDIAN),
        p95_ms=counts.percentile_ms(_P95),
    )


def _jobs_sample(counts: Mapping[str, int]) -> JobsSample:
    queued, running, parked = (counts.get(state, 0) for state in ("queued", "running", "parked"))
    return JobsSample(queued=queued, running=running, parked=parked)


def _slow_call(call: FinishedCall, duration_ms: float) -> SlowCall:
    record = call.record
    embed_ms, search_ms, assemble_ms, model_ms = (
        round(record.stages_s.get(stage, 0.0) * 1000, 1)
        for stage in (Stage.EMBED, Stage.SEARCH, Stage.ASSEMBLE, Stage.MODEL)
    )
    return view_of(
        SlowCall,
        call,
        ended_at=truncate_ms(datetime.now(UTC)),
        request_id=request_uuid(call.request_id),
        duration_ms=round(duration_ms, 1),
        statements=record.statements,
        database_ms=round(record.database_s * 1000, 1),
        stages=StageTimes(embed_ms=embed_ms, search_ms=search_ms, assemble_ms=assemble_ms, model_ms=model_ms),
    )


def resident_bytes() -> int | None:
    """Return the memory of the process that is in RAM; None where the system does not say it in /proc."""
    try:
        pages = _STATM.read_text().split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
