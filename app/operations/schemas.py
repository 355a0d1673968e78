"""Types of long operations."""

from enum import StrEnum
from typing import Final

from pydantic import BaseModel, Field

from app.core.times import TimeOut
from app.core.views import IdOut
from app.formats.schemas import JsonObject

JOB_PREFIX: Final = "operations."
"""Jobs of operations have kinds with this prefix, followed by the kind of operation."""


class OperationStatus(StrEnum):
    """State of an operation. The last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class OperationProgress(BaseModel):
    """Progress in units of the kind of operation, such as rows. `total` is an estimate; null while unknown."""

    done: int
    total: int | None


class OperationProblem(BaseModel):
    """The error that ended an operation (RFC 9457, without a status)."""

    type: str = Field(description="The documentation of the code, relative to this server.")
    title: str
    code: str


class Operation(BaseModel):
    """A long operation. It is kept for a day after its end (setting); its parameters are never shown."""

    id: IdOut
    kind: str
    status: OperationStatus
    progress: OperationProgress
    created_at: TimeOut
    started_at: TimeOut | None
    ended_at: TimeOut | None
    expires_at: TimeOut | None = Field(description="When the ended operation is deleted.")
    result: JsonObject | None
    error: OperationProblem | None
