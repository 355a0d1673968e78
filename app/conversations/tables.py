"""Tables of conversations, their heads and their turns.

The head has every counter of a conversation and no index, so that its many updates stay HOT. A turn's JSON columns are
`json`, not `jsonb`, so that values are returned exactly as the caller gave them, key order included.
"""

from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from app.core.database.metadata import METADATA

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
    Column("derived_title", Text),
    Column("derived_title_source", Text),
    Column("derived_title_turn_ids", ARRAY(Uuid)),
    Column("derived_title_model", Text),
    Column("tools", JSONB, nullable=False, server_default=text("'[]'")),
    Column("archived", Boolean, nullable=False, server_default=text("false")),
    Column("pinned", Boolean, nullable=False, server_default=text("false")),
    Column("trashed_at", _TIME),
    UniqueConstraint("tenant_id", "project", "external_id", name="conversations_tenant_id_project_external_id_key"),
    CheckConstraint("retention in ('full', 'audit_only', 'ephemeral')", name="retention"),
    Index("conversations_active_idx", "tenant_id", "active_at", "id"),
    Index("conversations_project_idx", "tenant_id", "project", "active_at", "id"),
    Index(
        "conversations_owner_idx", "tenant_id", "owner", "active_at", "id", postgresql_where=text("owner is not null")
    ),
    Index("conversations_pinned_idx", "tenant_id", "active_at", "id", postgresql_where=text("pinned")),
    Index("conversations_trash_idx", "tenant_id", "active_at", "id", postgresql_where=text("trashed_at is not null")),
    Index("conversations_expiry_idx", "expires_at", postgresql_where=text("expires_at is not null")),
)
"""Identity, policies, and what lists sort and filter by. Changes rarely: `active_at` at most once a minute."""
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
    Column("language", Text),
    Column("summarized_through", Uuid),
    Column("summarized_position", BigInteger, nullable=False, server_default=text("0")),
    Column("summarized_turns", BigInteger, nullable=False, server_default=text("0")),
    Column("summarized_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("erased_position", BigInteger, nullable=False, server_default=text("0")),
    # open turns that stand where they were opened; also of those that were aborted
    Column("reserved_positions", BigInteger, nullable=False, server_default=text("0")),
    Column("facts_seq", BigInteger, nullable=False, server_default=text("0")),
    Column("facts_held", Boolean, nullable=False, server_default=text("false")),
    Column("facts_rev", BigInteger, nullable=False, server_default=text("0")),
    # the turns that only rules have read, because the chat model had failed
    Column("facts_rules_from", BigInteger),
    Column("facts_rules_through", BigInteger),
    Column("facts_rules_tries", SmallInteger, nullable=False, server_default=text("0")),
    Column("updated_at", _TIME, nullable=False),
    Column("deleting_at", _TIME),
    Column("active_at", _TIME),
    _conversation(),
)
"""Counters, chain hash, session. Changes at every append: narrow and without an index. Its row lock orders appends."""
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
    Index(
        "turns_live_idx",
        "tenant_id",
        "conversation_id",
        "position",
        postgresql_where=text("status = 'committed' and superseded_by is null"),
    ),
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
    Index(
        "turns_erased_idx",
        "tenant_id",
        "conversation_id",
        "position",
        postgresql_where=text("status = 'committed' and superseded_by is null and erased_at is not null"),
    ),
)
"""Turns. Their JSON is `json`, not `jsonb`: it is returned as it was sent, and the hash stays valid."""
LIVE: Final = (turns.c.status == "committed", turns.c.superseded_by.is_(None))
"""Conditions on a live turn."""
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
"""Who writes an open turn: writer, epoch, holder, lease. Apart from `turns`, because leases are renewed often."""
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
"""Durable text of open turns, one row per flush. Only inserted and deleted, so that a growing text is not rewritten."""
summaries = Table(
    "summaries",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("id", Uuid, primary_key=True),
    Column("conversation_id", Uuid, nullable=False),
    Column("kind", Text, nullable=False),
    Column("level", Integer, nullable=False),
    Column("from_position", BigInteger, nullable=False),
    Column("to_position", BigInteger, nullable=False),
    Column("actors", JSONB, nullable=False),
    Column("text", Text),
    Column("abstract", Text),
    Column("lines", JSON),
    Column("tokens", Integer, nullable=False),
    Column("model", Text),
    Column("prompt_version", Text, nullable=False),
    Column("replaced_by", Uuid),
    Column("rev", BigInteger, nullable=False),
    Column("created_at", _TIME, nullable=False),
    Column("refused_for", Text),
    Column("doubtful", JSON),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("retry_at", _TIME),
    ForeignKeyConstraint(
        ["tenant_id", "conversation_id"],
        ["conversations.tenant_id", "conversations.id"],
        name="summaries_conversation_id_fkey",
        ondelete="CASCADE",
    ),
    CheckConstraint("kind in ('summary', 'highlights')", name="kind"),
    CheckConstraint("from_position <= to_position", name="range"),
    Index("summaries_conversation_idx", "tenant_id", "conversation_id", "to_position", "id"),
    Index(
        "summaries_highlights_idx",
        "tenant_id",
        "conversation_id",
        postgresql_where=text("kind = 'highlights' and replaced_by is null"),
    ),
)
"""Text for a range of positions. Replaced ones are kept, so that a compaction can be undone."""
responses = Table(
    "responses",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("turn_id", Uuid, primary_key=True),
    Column("conversation_id", Uuid, nullable=False),
    Column("previous_turn_id", Uuid),
    Column("input_turn_ids", ARRAY(Uuid), nullable=False),
    Column("owns_conversation", Boolean, nullable=False),
    Column("request", JSON, nullable=False),
    Column("created_at", _TIME, nullable=False),
    # no reference to the turn: its pending row is deleted when the committed one is inserted
    ForeignKeyConstraint(
        ["tenant_id", "conversation_id"],
        ["conversations.tenant_id", "conversations.id"],
        name="responses_conversation_id_fkey",
        ondelete="CASCADE",
    ),
    Index("responses_conversation_idx", "tenant_id", "conversation_id"),
)
"""Answers of the Responses API: the turn of the answer, those of the input, and what the request said besides."""
