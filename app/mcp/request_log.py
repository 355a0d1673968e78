"""One log line and one count per MCP request: tool, caller, duration, status. Never content.

A handler that starts a request logs it when it ends, even after the client has disconnected. Requests that reach no
handler (refusals, pings, notifications) are logged by the endpoint.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from prometheus_client import CollectorRegistry, Counter, Histogram

from app.core.ids import format_id
from app.core.telemetry import get_logger
from app.tenancy.limits.schemas import RateStatus
from app.tenancy.schemas import Caller

ASKING: Final = "mcp_asking"
"""Key of an `McpRequest` in the state of a request."""
UNKNOWN: Final = "unknown"
"""Label of unknown tools and methods: a caller's text must not become a label."""
_DURATION_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(slots=True)
class RequestRecord:
    """A running request. `status` is `ok` or the code of the error; an unfinished request was cancelled.

    `tool` is the name of a tool or of a method, and never the caller's text.
    """

    request_id: str
    tenant_id: str | None = None
    key_id: str | None = None
    tool: str = UNKNOWN
    conversation_id: UUID | None = None
    status: str = "cancelled"
    is_carried: bool = False
    started: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True, slots=True)
class McpRequest:
    """The caller, the log entry and the rate of a request. A call of a tool may be over its rate."""

    caller: Caller
    record: RequestRecord
    rate: RateStatus | None

    @property
    def request_id(self) -> str:
        """Return the id of the request."""
        return self.record.request_id


class RequestLog:
    """Writer of `mcp.called` and of the metrics, in the registry of the process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            "turnkeep_mcp_calls",
            "Requests over MCP, by tool (or method, for others) and status: ok or the code of the error.",
            ["tool", "status"],
            registry=registry,
        )
        self._duration = Histogram(
            "turnkeep_mcp_call_duration_seconds",
            "Time of a request over MCP, from its head to its result.",
            ["tool"],
            registry=registry,
            buckets=_DURATION_BUCKETS_S,
        )

    @contextmanager
    def of_request(self, record: RequestRecord) -> Generator[None]:
        """Log a request, unless a handler does."""
        try:
            yield
        finally:
            if not record.is_carried:
                self._write(record)

    @contextmanager
    def of_call(self, record: RequestRecord, tool: str) -> Generator[None]:
        """Log the call of a handler when it ends."""
        record.tool, record.is_carried = tool, True
        try:
            yield
        finally:
            self._write(record)

    def _write(self, record: RequestRecord) -> None:
        duration_s = time.perf_counter() - record.started
        self._calls.labels(record.tool, record.status).inc()
        self._duration.labels(record.tool).observe(duration_s)
        named = record.conversation_id
        get_logger().info(
            "mcp.called",
            tool=record.tool,
            status="ok" if record.status == "ok" else "error",
            code=None if record.status == "ok" else record.status,
            duration_ms=round(duration_s * 1000, 1),
            conversation_id=None if named is None else format_id(named),
            tenant_id=record.tenant_id,
            key_id=record.key_id,
            request_id=record.request_id,
        )
