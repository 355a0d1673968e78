"""Shared parts of all table definitions: the metadata that migrations are compared with, and our Postgres types.

Tables are described here and in each capability's `tables.py`. A test compares them with the migrations. Stores build
their statements from them (`queries`); the names in literal SQL are checked against them by a test.
"""

from sqlalchemy import (
    ARRAY,
    CheckConstraint,
    Column,
    DateTime,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.types import UserDefinedType

METADATA = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    }
)


class Vector(UserDefinedType[object]):
    """pgvector's `vector` without fixed dimensions: one table holds the vectors of every embedding space."""

    cache_ok = True

    def get_col_spec(self, **_options: object) -> str:
        """Return the type's name in DDL."""
        return "vector"


class TransactionNumber(UserDefinedType[object]):
    """The number of a transaction, which is never used again: Postgres's `xid8`."""

    cache_ok = True

    def get_col_spec(self, **_options: object) -> str:
        """Return the type's name in DDL."""
        return "xid8"


jobs = Table(
    "jobs",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("id", Uuid, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("subject_ids", ARRAY(Uuid), nullable=False, server_default=text("'{}'")),
    Column("dedupe_key", Text),
    Column("priority", SmallInteger, nullable=False, server_default=text("0")),
    Column("state", Text, nullable=False, server_default=text("'queued'")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("max_attempts", Integer, nullable=False),
    Column("run_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("locked_by", Uuid),
    Column("locked_until", DateTime(timezone=True)),
    Column("last_error", Text),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    CheckConstraint("state in ('queued', 'parked', 'cancelled')", name="state"),
    CheckConstraint(
        "(locked_by is null) = (locked_until is null) and (locked_by is null or state = 'queued')", name="locked"
    ),
    Index(
        "jobs_waiting_key",
        "tenant_id",
        "kind",
        "dedupe_key",
        unique=True,
        postgresql_where=text("dedupe_key is not null and state = 'queued' and locked_by is null"),
    ),
    Index("jobs_due_idx", text("priority DESC"), "run_at", "id", postgresql_where=text("state = 'queued'")),
)
"""Deferred work: kind, ids, lease, attempts; never content. Without a foreign key: some jobs have no tenant."""
