"""What those who run an installation ask for: figures, checks of the place it runs in, faults in its data."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Literal
from uuid import UUID

from pydantic import BaseModel

from app.core.ids import format_id


class TableSize(BaseModel):
    """One table: rows and bytes with its indexes.

    Of a tenant the rows are counted, and the bytes are its share of the table by rows. Of the installation the rows are
    the planner's estimate, and the bytes are measured.
    """

    table: str
    rows: int
    bytes: int


class ProjectStats(BaseModel):
    """One project. `turns` are live ones, `tokens` theirs."""

    project: str
    conversations: int
    turns: int
    tokens: int


class TenantStats(BaseModel):
    """One tenant. `turns` are live ones, `tokens` theirs."""

    tenant_id: str
    name: str
    conversations: int
    turns: int
    tokens: int


class Stats(BaseModel):
    """How much there is. `bytes` is the sum over `tables`.

    `vectors_pending` are entries that have no vector in the embedding space searched now: they are found by words, and
    jobs of the kinds `index.vectors` and `index.backfill_…` make theirs.

    `projects` are those with most turns, of a tenant only; `tenants` likewise, of the installation only.
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
    """How a check ended. Only `fail` keeps the service from keeping its promises."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was looked at, how it is, what it showed, and how to mend it (empty when all is well)."""

    name: str
    level: Level
    found: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something in the data that should not be: a stable code, where it is, and a sentence without content."""

    code: str
    detail: str
    tenant_id: UUID
    conversation_id: UUID | None = None
    object_id: UUID | None = None

    def as_json(self) -> dict[str, str | None]:
        """The fault with its ids as the API spells them."""
        return {name: format_id(value) if isinstance(value, UUID) else value for name, value in asdict(self).items()}
