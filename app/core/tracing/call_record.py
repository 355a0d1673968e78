"""The work of the call that a task serves: its SQL statements, its time in the database, and the time of its stages.

Transports set the record of a call. Tasks that the call starts see the same one, so the times of parts that run
concurrently are added up.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum


class Stage(StrEnum):
    """A part of a call whose time is measured."""

    EMBED = "embed"
    SEARCH = "search"
    RERANK = "rerank"
    ASSEMBLE = "assemble"
    MODEL = "model"


@dataclass(slots=True)
class CallRecord:
    """The work of one call. `database_s` is the time in transactions, with the wait for a connection."""

    statements: int = 0
    database_s: float = 0.0
    stages_s: dict[Stage, float] = field(default_factory=dict[Stage, float])

    def add_stage(self, stage: Stage, duration_s: float) -> None:
        """Add the time of one stage."""
        self.stages_s[stage] = self.stages_s.get(stage, 0.0) + duration_s

    def add_transaction(self, statements: int, duration_s: float) -> None:
        """Add the statements and the time of one transaction."""
        self.statements += statements
        self.database_s += duration_s


_CALL: ContextVar[CallRecord | None] = ContextVar("call_record", default=None)


@contextmanager
def recorded_call() -> Generator[CallRecord]:
    """Record the work of this task, and of the tasks that it starts, until the block ends."""
    record = CallRecord()
    token = _CALL.set(record)
    try:
        yield record
    finally:
        _CALL.reset(token)


def current_call() -> CallRecord | None:
    """Return the record of the call that this task serves; None outside of calls."""
    return _CALL.get()
