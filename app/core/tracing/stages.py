"""Measurement of one stage of a call."""

from time import perf_counter
from types import TracebackType
from typing import Self

from opentelemetry import context, trace
from opentelemetry.trace import Span

from app.core.tracing.call_record import CallRecord, Stage, current_call
from app.core.tracing.spans import end_span, start_child_span


class MeasuredStage:
    """Context manager that adds the time of its block to the record of the call, and makes a span of it.

    `attributes` are ids, counts and our own names. With `is_parent=False`, spans of the block are no children: for
    blocks that another task may end.
    """

    __slots__ = ("_attributes", "_call", "_is_parent", "_span", "_stage", "_started", "_token")

    def __init__(self, stage: Stage, *, is_parent: bool = True, **attributes: str | int) -> None:
        self._stage = stage
        self._is_parent = is_parent
        self._attributes = attributes
        self._call: CallRecord | None
        self._span: Span | None
        self._started: float

    def __enter__(self) -> Self:
        self._call = current_call()
        self._span = start_child_span(
            self._stage.value, {f"turnkeep.{name}": value for name, value in self._attributes.items()}
        )
        if self._span is not None and self._is_parent:
            self._token = context.attach(trace.set_span_in_context(self._span))
        self._started = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, trace
        if self._call is not None:
            self._call.add_stage(self._stage, perf_counter() - self._started)
        if self._span is not None:
            if self._is_parent:
                context.detach(self._token)
            end_span(self._span, error)
