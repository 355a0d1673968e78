"""The SDK of OpenTelemetry, its OTLP exporters, and the instrumentation of asyncpg. Imported only where they are used.

Endpoints, headers, sampling, intervals and queues are those of the SDK's standard variables.
"""

import asyncio
import os
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Final, Protocol, cast

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.textmap import CarrierT, Getter, Setter, default_getter, default_setter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.core.ids import format_id, new_uuid
from app.core.tracing.span_filter import METRIC_ATTRIBUTES, FilteringSpanExporter, WithoutLoneStatements

_CLOSE_S: Final = 2.0
_TRACE_PARENT: Final = "traceparent"


class _Instrumentor(Protocol):
    def instrument(self, *, tracer_provider: TracerProvider) -> None: ...


class _Instrumentation(Protocol):
    """The used part of the instrumentation of asyncpg, which has no types."""

    def AsyncPGInstrumentor(self) -> _Instrumentor: ...  # noqa: N802 - name of the library


class TraceParentPropagator(TraceContextTextMapPropagator):
    """W3C trace context without `tracestate`, and no baggage: both have text of callers, which would go upstream."""

    def extract(
        self, carrier: CarrierT, context: Context | None = None, getter: Getter[CarrierT] = default_getter
    ) -> Context:
        """Return the context with the caller's trace."""
        extracted = super().extract(carrier, context, getter)
        span = trace.get_current_span(extracted).get_span_context()
        if not span.is_valid or not span.trace_state:
            return extracted
        bare = trace.SpanContext(span.trace_id, span.span_id, is_remote=True, trace_flags=span.trace_flags)
        return trace.set_span_in_context(trace.NonRecordingSpan(bare), extracted)

    def inject(
        self, carrier: CarrierT, context: Context | None = None, setter: Setter[CarrierT] = default_setter
    ) -> None:
        """Write the trace into the headers of a request."""
        super().inject(carrier, context, setter)

    @property
    def fields(self) -> set[str]:
        """Return the names of the headers that are written."""
        return {_TRACE_PARENT}


class OtlpExport:
    """The export of one process, which starts at once. The providers are those of the whole process."""

    def __init__(self, signals: Sequence[str], *, version: str, names: frozenset[str]) -> None:
        # stable names of attributes, as FastAPI's own; an explicit choice stands
        os.environ.setdefault("OTEL_SEMCONV_STABILITY_OPT_IN", "http,database")
        if "OTEL_PROPAGATORS" not in os.environ:
            propagate.set_global_textmap(TraceParentPropagator())
        named = {"service.name": "turnkeep", "service.version": version, "service.instance.id": format_id(new_uuid())}
        chosen = {
            key: value
            for key, value in Resource.create().attributes.items()
            if not str(value).startswith("unknown_service")
        }
        resource = Resource(named | chosen)
        self._tracers = _tracer_provider(resource, names) if "traces" in signals else None
        self._meters = _meter_provider(resource) if "metrics" in signals else None

    async def close(self) -> None:
        """Export what waits, for two seconds at most."""
        ending = threading.Thread(target=self._shut_down, daemon=True, name="telemetry-end")
        ending.start()
        await asyncio.to_thread(ending.join, _CLOSE_S)

    def _shut_down(self) -> None:
        for provider in (self._tracers, self._meters):
            if provider is not None:
                provider.shutdown()


def _tracer_provider(resource: Resource, names: frozenset[str]) -> TracerProvider:
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.sampler = WithoutLoneStatements(provider.sampler)
    exporter = FilteringSpanExporter(OTLPSpanExporter(), names=names)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    instrumentor = cast("_Instrumentation", import_module("opentelemetry.instrumentation.asyncpg"))
    instrumentor.AsyncPGInstrumentor().instrument(tracer_provider=provider)
    return provider


def _meter_provider(resource: Resource) -> MeterProvider:
    provider = MeterProvider(
        metric_readers=[PeriodicExportingMetricReader(OTLPMetricExporter())],
        views=[View(instrument_name="*", attribute_keys=set(METRIC_ATTRIBUTES))],
        resource=resource,
        shutdown_on_exit=False,
    )
    metrics.set_meter_provider(provider)
    return provider
