"""Tables of the audit. They have no foreign keys: entries stay when a tenant or a conversation is deleted."""

from sqlalchemy import BigInteger, Column, Date, DateTime, Index, Integer, LargeBinary, Table, Text, Uuid, func, text
from sqlalchemy.dialects.postgresql import JSONB

from app.core.database.metadata import METADATA


def _described() -> list[Column[object]]:
    """Return the columns that say what was done."""
    return [
        Column("key_id", Uuid),
        Column("actor", Text, nullable=False),
        Column("action", Text, nullable=False),
        Column("object_kind", Text),
        Column("object_id", Text),
        Column("conversation_id", Uuid),
        Column("first_seq", BigInteger),
        Column("last_seq", BigInteger),
        Column("head_hash", LargeBinary),
        Column("counts", JSONB, nullable=False, server_default=text("'{}'")),
        Column("request_id", Uuid),
    ]


audit_unsealed = Table(
    "audit_unsealed",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("id", Uuid, primary_key=True),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    *_described(),
)
"""Entries that are in no hash chain yet. Requests only insert, so that they do not wait for each other."""
audit_entries = Table(
    "audit_entries",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("id", Uuid, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False),
    *_described(),
    Column("hash", LargeBinary, nullable=False),
    Index("audit_entries_recorded_at_idx", "tenant_id", "recorded_at", "id"),
    Index(
        "audit_entries_conversation_idx",
        "tenant_id",
        "conversation_id",
        "recorded_at",
        postgresql_where=text("conversation_id is not null"),
    ),
    Index(
        "audit_entries_object_idx",
        "tenant_id",
        "object_id",
        "recorded_at",
        postgresql_where=text("object_id is not null"),
    ),
    Index("audit_entries_request_idx", "tenant_id", "request_id", postgresql_where=text("request_id is not null")),
)
"""Sealed entries: day, number, hash. Only the ops role inserts and deletes."""
audit_days = Table(
    "audit_days",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("ordinal", Integer, nullable=False),
    Column("entries", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("previous_day", Date),
    Column("previous_entries", BigInteger, nullable=False),
    Column("previous_hash", LargeBinary, nullable=False),
    Column("sealed_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("entries_deleted_at", DateTime(timezone=True)),
    Index("audit_days_ordinal_key", "tenant_id", "ordinal", unique=True),
)
"""The end of the chain of each tenant and day, kept when the entries are deleted, so that later days still verify."""
