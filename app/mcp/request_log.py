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

UNKNOWN: Final = "unknown"
"""Label of unknown tools and methods: a caller's text must not become a label."""
_DURATION_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(slots=True)
class Account:
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


class Accounts:
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
    def of_request(self, account: Account) -> Generator[None]:
        """Log a request, unless a handler does."""
        try:
            yield
        finally:
            if not account.is_carried:
                self._write(account)

    @contextmanager
    def of_call(self, account: Account, tool: str) -> Generator[None]:
        """Log the call of a handler when it ends."""
        account.tool, account.is_carried = tool, True
        try:
            yield
        finally:
            self._write(account)

    def _write(self, account: Account) -> None:
        duration_s = time.perf_counter() - account.started
        self._calls.labels(account.tool, account.status).inc()
        self._duration.labels(account.tool).observe(duration_s)
        named = account.conversation_id
        get_logger().info(
            "mcp.called",
            tool=account.tool,
            status="ok" if account.status == "ok" else "error",
            code=None if account.status == "ok" else account.status,
            duration_ms=round(duration_s * 1000, 1),
            conversation_id=None if named is None else format_id(named),
            tenant_id=account.tenant_id,
            key_id=account.key_id,
            request_id=account.request_id,
        )
