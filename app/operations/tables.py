"""Table of long operations. `parameters` and `state` are null once an operation has ended."""

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    Uuid,
)
from sqlalchemy import text as sql

from app.core.database.metadata import METADATA

_TIME = DateTime(timezone=True)

operations = Table(
    "operations",
    METADATA,
    Column("tenant_id", Uuid, ForeignKey("tenants.tenant_id", ondelete="CASCADE"), primary_key=True),
    Column("id", Uuid, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("key_id", Uuid, nullable=False),
    Column("parameters", JSON),
    Column("state", JSON),
    # number of the run that may write: an earlier run that still works has lost its lease
    Column("run", Integer, nullable=False, server_default=sql("0")),
    Column("done", BigInteger, nullable=False, server_default=sql("0")),
    Column("total", BigInteger),
    Column("result", JSON),
    Column("error", Text),
    Column("created_at", _TIME, nullable=False),
    Column("started_at", _TIME),
    Column("ended_at", _TIME),
    CheckConstraint("status in ('queued', 'running', 'cancelling', 'succeeded', 'failed', 'cancelled')", name="status"),
    CheckConstraint(
        "(ended_at is not null) = (status in ('succeeded', 'failed', 'cancelled'))"
        " and (ended_at is null or (parameters is null and state is null))",
        name="ended",
    ),
    Index("operations_open_idx", "tenant_id", "id", postgresql_where=sql("ended_at is null")),
    Index("operations_ended_idx", "ended_at", postgresql_where=sql("ended_at is not null")),
)
"""Long operations: kind, status, progress, result. A step and its progress commit together."""
