"""Export of traces and metrics over OTLP, if the standard variables of OpenTelemetry ask for it.

Without them, nothing of the SDK is imported. An unavailable collector delays no request and no stop: spans wait in a
bounded queue and are then dropped.
"""

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, cast

from app.core.telemetry import get_logger
from app.core.tracing.spans import is_tracing

_SIGNALS: Final = ("traces", "metrics")
_HTTP_PROTOBUF: Final = "http/protobuf"


def requested_signals(environment: Mapping[str, str]) -> list[str]:
    """Return the signals, `traces` and `metrics`, that the variables of OpenTelemetry ask to export."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    return [signal for signal in _SIGNALS if _is_requested(environment, signal.upper())]


def _is_requested(environment: Mapping[str, str], signal: str) -> bool:
    endpoint = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT") or environment.get(
        "OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    if not endpoint or environment.get(f"OTEL_{signal}_EXPORTER", "otlp").strip().lower() != "otlp":
        return False
    protocol = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or environment.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", _HTTP_PROTOBUF
    )
    if protocol != _HTTP_PROTOBUF:
        get_logger().warning("telemetry.protocol_unsupported", kind=signal.lower())
    return protocol == _HTTP_PROTOBUF


@asynccontextmanager
async def exported_telemetry(*, version: str, names: frozenset[str] = frozenset()) -> AsyncGenerator[None]:
    """Export traces and metrics during the block, if the environment asks for it.

    `names`: methods and tools that spans may name. Callers choose such names, so all others are left out.
    """
    signals = requested_signals(os.environ)
    if not signals:
        yield
        return
    try:
        from app.core.tracing.otlp import OtlpExport  # noqa: PLC0415 - the SDK is for those who export
    except ImportError:
        get_logger().warning("telemetry.packages_missing", library="turnkeep[otel]")
        yield
        return
    export = OtlpExport(signals, version=version, names=names)
    try:
        yield
    finally:
        await export.close()


def trace_http_client(client: object) -> None:
    """Make spans of the requests of an httpx2 client, and give the trace to its servers, if traces are exported."""
    if is_tracing():
        from opentelemetry.instrumentation.httpx import HTTPX2ClientInstrumentor  # noqa: PLC0415 - see above

        cast("Callable[[object], None]", HTTPX2ClientInstrumentor.instrument_client)(client)
