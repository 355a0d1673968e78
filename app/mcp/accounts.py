"""Of every call one log line and one count: which tool, whose, how long, how it ended. Never what was said."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from prometheus_client import CollectorRegistry, Counter, Histogram

from app.core.ids import format_id
from app.core.telemetry import get_logger

_DURATION_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(slots=True)
class Account:
    """A call under way. `status` is `ok` or the code of the error; a call that is never ended was cancelled."""

    conversation_id: UUID | None = None
    status: str = "cancelled"


class Accounts:
    """Writes `mcp.called` and the metrics, on the registry of the process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            "turnkeep_mcp_calls",
            "Calls over MCP, by tool (or method, for resources) and status: ok or the code of the error.",
            ["tool", "status"],
            registry=registry,
        )
        self._duration = Histogram(
            "turnkeep_mcp_call_duration_seconds",
            "Time of a call over MCP, from its valid envelope to its result.",
            ["tool"],
            registry=registry,
            buckets=_DURATION_BUCKETS_S,
        )

    @contextmanager
    def of(self, tool: str, *, tenant_id: str, key_id: str, request_id: str) -> Generator[Account]:
        """Account for one call, however it ends. `tool` is a name of ours, never the caller's text."""
        account, started = Account(), time.perf_counter()
        try:
            yield account
        finally:
            duration_s = time.perf_counter() - started
            self._calls.labels(tool, account.status).inc()
            self._duration.labels(tool).observe(duration_s)
            named = account.conversation_id
            get_logger().info(
                "mcp.called",
                tool=tool,
                status="ok" if account.status == "ok" else "error",
                code=None if account.status == "ok" else account.status,
                duration_ms=round(duration_s * 1000, 1),
                conversation_id=None if named is None else format_id(named),
                tenant_id=tenant_id,
                key_id=key_id,
                request_id=request_id,
            )
