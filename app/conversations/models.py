"""Rows of conversations, their heads and their turns.

The head holds every counter of a conversation and no index, so that its many updates stay HOT. A turn's JSON columns
are `json`, not `jsonb`: what a caller gave comes back exactly as it was, key order included.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.core.tables import METADATA

_TIME = DateTime(timezone=True)


def _conversation() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["tenant_id", "conversation_id"],
        ["conversations.tenant_id", "conversations.id"],
        ondelete="CASCADE",
    )


conversations = Table(
    "conversations",
    METADATA,
    Column("tenant_id", Uuid, ForeignKey("tenants.tenant_id", ondelete="CASCADE"), primary_key=True),
    Column("id", Uuid, primary_key=True),
    Column("project", Text, nullable=False),
    Column("external_id", Text),
    Column("owner", Text),
    Column("title", Text),
    Column("participants", JSONB, nullable=False, server_default=text("'[]'")),
    Column("metadata", JSONB, nullable=False, server_default=text("'{}'")),
    Column("retention", Text, nullable=False, server_default=text("'full'")),
    Column("compaction", JSONB, nullable=False),
    Column("facts", JSONB, nullable=False),
    Column("ttl_s", BigInteger),
    Column("expires_at", _TIME),
    Column("token_epoch", Integer, nullable=False, server_default=text("0")),
    Column("forked_from", Uuid),
    Column("chain_start", LargeBinary),
    Column("created_at", _TIME, nullable=False),
    Column("updated_at", _TIME, nullable=False),
    Column("active_at", _TIME, nullable=False),
    UniqueConstraint("tenant_id", "project", "external_id", name="conversations_tenant_id_project_external_id_key"),
    CheckConstraint("retention in ('full', 'audit_only', 'ephemeral')", name="retention"),
    Index("conversations_active_idx", "tenant_id", "active_at", "id"),
    Index("conversations_project_idx", "tenant_id", "project", "active_at", "id"),
    Index(
        "conversations_owner_idx", "tenant_id", "owner", "active_at", "id", postgresql_where=text("owner is not null")
    ),
    Index("conversations_expiry_idx", "expires_at", postgresql_where=text("expires_at is not null")),
)
conversation_heads = Table(
    "conversation_heads",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("conversation_id", Uuid, primary_key=True),
    Column("last_seq", BigInteger, nullable=False, server_default=text("0")),
    Column("rev", BigInteger, nullable=False, server_default=text("0")),
    Column("turn_count", BigInteger, nullable=False, server_default=text("0")),
    Column("token_count", BigInteger, nullable=False, server_default=text("0")),
    Column("chain_hash", LargeBinary, nullable=False),
    Column("session", BigInteger, nullable=False, server_default=text("0")),
    Column("last_occurred_at", _TIME),
    Column("summarized_through", Uuid),
    Column("summarized_position", BigInteger, nullable=False, server_default=text("0")),
    Column("updated_at", _TIME, nullable=False),
    _conversation(),
)
_LIVE = "status = 'committed' and superseded_by is null"
turns = Table(
    "turns",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("id", Uuid, primary_key=True),
    Column("conversation_id", Uuid, nullable=False),
    Column("seq", BigInteger),
    Column("position", BigInteger),
    Column("rev", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("content", JSON),
    Column("tool_calls", JSON),
    Column("tool_call_id", Text),
    Column("tool_results", JSON),
    Column("usage", JSON),
    Column("content_tokens", Integer, nullable=False, server_default=text("0")),
    Column("model", Text),
    Column("adapter", Text),
    Column("status", Text, nullable=False),
    Column("superseded_by", Uuid),
    Column("supersedes", Uuid),
    Column("origin_turn_id", Uuid),
    Column("metadata", JSON),
    Column("occurred_at", _TIME, nullable=False),
    Column("created_at", _TIME, nullable=False),
    Column("committed_at", _TIME),
    Column("salt", LargeBinary),
    Column("content_hash", LargeBinary),
    Column("chain_hash", LargeBinary),
    Column("index_state", Text, nullable=False, server_default=text("'none'")),
    Column("erased_at", _TIME),
    UniqueConstraint("tenant_id", "conversation_id", "seq", name="turns_tenant_id_conversation_id_seq_key"),
    _conversation(),
    CheckConstraint("status in ('pending', 'committed', 'aborted')", name="status"),
    CheckConstraint("index_state in ('indexed', 'pending', 'none')", name="index_state"),
    CheckConstraint("status <> 'committed' or (seq is not null and position is not null)", name="committed"),
    Index("turns_live_idx", "tenant_id", "conversation_id", "position", postgresql_where=text(_LIVE)),
    Index(
        "turns_tool_calls_idx",
        "tenant_id",
        "conversation_id",
        "position",
        postgresql_where=text("tool_calls is not null"),
    ),
    Index(
        "turns_rev_idx",
        "tenant_id",
        "conversation_id",
        "rev",
        "seq",
        postgresql_where=text("status = 'committed'"),
    ),
    Index(
        "turns_superseded_idx",
        "tenant_id",
        "conversation_id",
        "position",
        "seq",
        postgresql_where=text("status = 'committed' and superseded_by is not null"),
    ),
)
turn_streams = Table(
    "turn_streams",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("turn_id", Uuid, primary_key=True),
    Column("conversation_id", Uuid, nullable=False),
    Column("writer", Text, nullable=False),
    Column("key_id", Uuid, nullable=False),
    Column("epoch", Integer, nullable=False, server_default=text("1")),
    Column("holder", Uuid, nullable=False),
    Column("renewed_at", _TIME, nullable=False),
    ForeignKeyConstraint(
        ["tenant_id", "turn_id"],
        ["turns.tenant_id", "turns.id"],
        name="turn_streams_turn_id_fkey",
        ondelete="CASCADE",
    ),
    Index("turn_streams_conversation_idx", "tenant_id", "conversation_id"),
)
turn_chunks = Table(
    "turn_chunks",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("turn_id", Uuid, primary_key=True),
    Column("part", Text, primary_key=True),
    Column("start", Integer, primary_key=True),
    Column("length", Integer, nullable=False),
    Column("text", Text, nullable=False),
    Column("created_at", _TIME, nullable=False, server_default=text("clock_timestamp()")),
    ForeignKeyConstraint(
        ["tenant_id", "turn_id"],
        ["turn_streams.tenant_id", "turn_streams.turn_id"],
        name="turn_chunks_turn_id_fkey",
        ondelete="CASCADE",
    ),
)
