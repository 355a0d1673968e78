"""Statistics, samples, slow calls, checks of the environment, and faults in the data."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Literal
from uuid import UUID

from pydantic import BaseModel

from app.conversations.schemas.summaries import RefusedFor, SummaryKind
from app.core.bus.replicas import ReplicaKind
from app.core.ids import format_id
from app.core.times import TimeOut
from app.core.views import IdOut


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

    tenant_id: IdOut
    name: str
    conversations: int
    turns: int
    tokens: int


class SummaryStats(BaseModel):
    """Valid summaries of one kind: `kind` and `refused_for` as in a summary. `doubtful`: those with such sentences."""

    kind: SummaryKind
    refused_for: RefusedFor | None
    count: int
    doubtful: int


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
    summaries: list[SummaryStats]
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
        """Return the check as JSON."""
        return asdict(self)


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


class RouteClassSample(BaseModel):
    """HTTP requests of one class in a sample.

    `route_class` is the class of the rate limits (`read`, `write`, `chunk`, `search`, `model`), `mcp`, or `other` for
    probes, pages and unknown paths. `refused` were answered with 4xx or left by the client (499), `errors` with 5xx.
    `p50_ms` and `p95_ms` are durations, at most 20 % too high; null if no request has one: event streams do not count.
    """

    route_class: str
    requests: int
    refused: int
    errors: int
    p50_ms: float | None
    p95_ms: float | None


class JobsSample(BaseModel):
    """Jobs of the installation by state, as this process counted them last (every third of a lease)."""

    queued: int
    running: int
    parked: int


class ConnectionPoolSample(BaseModel):
    """Connections of one pool: how many there may be, are open and are used, and how many callers wait for one."""

    pool: str
    size: int
    open: int
    used: int
    waiting: int


class MetricSample(BaseModel):
    """Figures of one process at a time, with its requests in the `interval_s` seconds before.

    `jobs` is null in a process that runs no jobs. `memory_bytes` is the resident memory; null where the system does not
    report it. `search_index_bytes` is about the part that the search index takes. `live_connections` are WebSockets and
    event streams, `open_turns` turns that this process writes, `subscribers` followers of conversations.
    """

    at: TimeOut
    interval_s: float
    requests: int
    refused: int
    errors: int
    route_classes: list[RouteClassSample]
    jobs: JobsSample | None
    connection_pools: list[ConnectionPoolSample]
    memory_bytes: int | None
    search_index_bytes: int
    live_connections: int
    open_turns: int
    subscribers: int


class MetricSamples(BaseModel):
    """Samples of the process that answers, oldest first. `process_id` changes at every start."""

    process_id: str
    started_at: TimeOut
    interval_s: int
    samples: list[MetricSample]


class ReplicaView(BaseModel):
    """A running process of the installation, as it announces itself.

    `kind`: `server`, or `worker` for `turnkeep worker`. `is_this`: the process that answers. `schema_revision` is the
    newest one that its release knows. `process_number` is its number on its host. `seen_at`: its last announcement, at
    most 30 seconds ago.
    """

    id: IdOut
    kind: ReplicaKind
    is_this: bool
    runs_jobs: bool
    version: str
    schema_revision: str
    host: str
    process_number: int
    started_at: TimeOut
    seen_at: TimeOut


class StageTimes(BaseModel):
    """Time of the stages of a call, in milliseconds. Stages that run concurrently are added up."""

    embed_ms: float
    search_ms: float
    assemble_ms: float
    model_ms: float


class SlowCall(BaseModel):
    """A slow HTTP request: its route template, its duration and where the time went, never its content.

    `tenant_id` is null for a request without a valid key. `request_id` is as in the audit: the id of the request, or a
    hash of one that is no ULID or UUID. `trace_id` is null unless the request was traced. `statements` are SQL
    statements, and `database_ms` is the time in transactions, with the wait for a connection.
    """

    ended_at: TimeOut
    tenant_id: IdOut | None
    request_id: IdOut | None
    trace_id: str | None
    method: str
    route: str
    status: int
    duration_ms: float
    statements: int
    database_ms: float
    stages: StageTimes
