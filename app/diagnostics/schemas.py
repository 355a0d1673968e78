"""Statistics, checks of the environment, and faults in the data."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Literal
from uuid import UUID

from pydantic import BaseModel

from app.core.ids import format_id


class TableSize(BaseModel):
    """One table: rows and bytes with its indexes.

    For a tenant the rows are counted, and the bytes are its share of the table by rows. For the installation the rows
    are the planner's estimate, and the bytes are measured.
    """

    table: str
    rows: int
    bytes: int


class ProjectStats(BaseModel):
    """One project. `turns` and `tokens` count live turns."""

    project: str
    conversations: int
    turns: int
    tokens: int


class TenantStats(BaseModel):
    """One tenant. `turns` and `tokens` count live turns."""

    tenant_id: str
    name: str
    conversations: int
    turns: int
    tokens: int


class Stats(BaseModel):
    """Size of the data. `bytes` is the sum over `tables`.

    `vectors_pending` are entries that have no vector in the searched embedding space: they are found by words, and jobs
    of the kinds `index.vectors` and `index.backfill_…` create their vectors.

    `projects` are those with most turns, for a tenant only; `tenants` likewise, for the installation only.
    """

    of: Literal["tenant", "installation"]
    conversations: int
    turns: int
    tokens: int
    entries: int
    vectors: int
    vectors_pending: int
    bytes: int
    tables: list[TableSize]
    projects: list[ProjectStats]
    tenants: list[TenantStats]


class Level(StrEnum):
    """Result of a check. Only `fail` means that the service cannot work correctly."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its subject, its level, the finding, and the remedy (empty if all is well)."""

    name: str
    level: Level
    found: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the check as JSON. `mend`, the former name of `remedy`, stays for one release."""
        return {**asdict(self), "mend": self.remedy}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in the data: a stable code, its location, and a sentence without content."""

    code: str
    detail: str
    tenant_id: UUID
    conversation_id: UUID | None = None
    object_id: UUID | None = None

    def as_json(self) -> dict[str, str | None]:
        """Return the fault with its ids in the API's form."""
        return {name: format_id(value) if isinstance(value, UUID) else value for name, value in asdict(self).items()}
