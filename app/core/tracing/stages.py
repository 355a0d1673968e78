"""Measurement of one stage of a call."""

from time import perf_counter
from types import TracebackType
from typing import Self

from app.core.tracing.call_record import CallRecord, Stage, current_call


class MeasuredStage:
    """Context manager that adds the time of its block to the record of the call, if the task serves one."""

    __slots__ = ("_call", "_stage", "_started")

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._call: CallRecord | None
        self._started: float

    def __enter__(self) -> Self:
        self._call = current_call()
        self._started = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        if self._call is not None:
            self._call.add_stage(self._stage, perf_counter() - self._started)
