"""Spans of Turnkeep's own work, by OpenTelemetry's API, which does nothing while no traces are exported.

A span has ids, counts and our own names as attributes, and never content: `span_filter` exports no others.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Final, TypeAlias

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode

from app.core.errors import AppError

Attributes: TypeAlias = Mapping[str, str | int | float]

_SCOPE: Final = "turnkeep"


def is_tracing() -> bool:
    """Return whether this process records spans."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def start_child_span(name: str, attributes: Attributes) -> Span | None:
    """Start a span within the current one; None if there is none, or if its trace is not recorded."""
    if not trace.get_current_span().is_recording():
        return None
    return trace.get_tracer(_SCOPE).start_span(name, attributes=attributes)


def end_span(span: Span, error: BaseException | None) -> None:
    """End a span. Of an error, it gets the code or the type, never the message."""
    if error is not None:
        span.set_attribute("error.type", error_name(error))
        span.set_status(StatusCode.ERROR)
    span.end()


def error_name(error: BaseException) -> str:
    """Return the code of an error of this project, or the name of its type."""
    return error.code if isinstance(error, AppError) else type(error).__name__


@contextmanager
def root_span(name: str, attributes: Attributes, *, kind: SpanKind = SpanKind.INTERNAL) -> Generator[None]:
    """Make a trace of work that no request waits for, such as a job."""
    if not is_tracing():
        yield
        return
    span = trace.get_tracer(_SCOPE).start_span(name, context=Context(), kind=kind, attributes=attributes)
    token = context.attach(trace.set_span_in_context(span))
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        context.detach(token)
        end_span(span, failure)


def describe_current_span(attributes: Attributes) -> None:
    """Add attributes to the span of the request."""
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attributes(attributes)


def current_trace() -> tuple[str, str] | None:
    """Return the ids of the trace and of the span that are exported now, as W3C writes them; None without."""
    span = trace.get_current_span().get_span_context()
    if not span.is_valid or not span.trace_flags.sampled or not is_tracing():
        return None
    return trace.format_trace_id(span.trace_id), trace.format_span_id(span.span_id)
