"""Types of requests and answers of exports."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StringConstraints

from app.conversations.schemas.conversations import Name
from app.core.times import TimeIn
from app.core.validation.strict import Strict


class ExportOptions(Strict):
    """Options of an export."""

    created_at: TimeIn | None = Field(
        default=None,
        description="The time in the header; default: now. With the time of an earlier export, equal data gives equal"
        " bytes.",
    )
    checkpoints: StrictBool = Field(
        default=False,
        description="Whether lines of the type `checkpoint` with a `cursor` stand between the records, about every 500"
        " records. They are no part of the format, and of its hash: remove them from a file that you keep.",
    )
    cursor: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        default=None,
        description="The cursor of the last checkpoint that was received: the export continues after it, without a"
        " header.",
    )


class ExportCreate(ExportOptions):
    """What to export: a project, or without one all data of the tenant."""

    project: Name | None = None


class ExportLine(BaseModel):
    """One line of an export: a header, a record, a trailer or a checkpoint. The export format lists their members."""

    model_config = ConfigDict(extra="allow")

    type: Literal[
        "header", "conversation", "turn", "summary", "fact", "fact_decision", "memory", "trailer", "checkpoint"
    ]
