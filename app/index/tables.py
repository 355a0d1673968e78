"""Tables of the search index: entries and their vectors.

An entry belongs to an object of its kind: `write.key_store` says how both are found. It has its own copies of every
filter, so that a search reads one table. Vectors are immutable except for
`tiered`, which is set once: that update inserts them into the vector index of their space. The index is partial on
`tiered`, and is created when a tenant is large enough.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TSVECTOR

from app.core.database.metadata import METADATA, TransactionNumber, Vector

embedding_spaces = Table(
    "embedding_spaces",
    METADATA,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("provider", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("dimensions", Integer, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("state", Text, nullable=False, server_default=text("'idle'")),
    Column("base_url", Text),
    UniqueConstraint("provider", "model", "dimensions"),
    CheckConstraint("state in ('idle', 'preparing', 'kept', 'dropping')", name="state"),
)
"""Provider, model, dimensions and state of each space. A row stays when its vectors are deleted."""
searched_space = Table(
    "searched_space",
    METADATA,
    Column("id", Boolean, primary_key=True, server_default=text("true")),
    Column("space_id", Integer, ForeignKey("embedding_spaces.id")),
    Column("previous_id", Integer, ForeignKey("embedding_spaces.id")),
    Column("changed_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    CheckConstraint("id", name="single"),
)
"""One row: the space that is searched, and the previous one. It does not exist before the first move."""
index_entries = Table(
    "index_entries",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("entry_id", Uuid, primary_key=True),
    Column("kind", Text, nullable=False),
    # the id of the object, if the key of its entry is another one (see `write.key_store`)
    Column("source_id", Uuid),
    Column("conversation_id", Uuid),
    Column("project", Text, nullable=False),
    Column("owner", Text),
    Column("agent_id", Text),
    Column("actor", Text),
    Column("role", Text),
    Column("position", BigInteger),
    Column("session", BigInteger),
    Column("occurred_at", DateTime(timezone=True), nullable=False),
    Column("metadata", JSONB, nullable=False, server_default=text("'{}'")),
    Column("live", Boolean, nullable=False, server_default=text("true")),
    Column("vectors_due", Boolean, nullable=False, server_default=text("false")),
    Column("doc_length", Integer, nullable=False),
    Column("lexemes", TSVECTOR, nullable=False),
    Column("dates", JSONB),
    Column("expires_at", DateTime(timezone=True)),
    # what a process keeps of the words
    Column("terms", LargeBinary, nullable=False),
    Column("cues", SmallInteger, nullable=False),
    Column("language", Text, nullable=False),
    # equal for equal texts; 0 for none
    Column("text_hash", BigInteger, nullable=False, server_default=text("0")),
    # not live because its conversation is in the trash; live again when that is restored
    Column("hidden", Boolean, nullable=False, server_default=text("false")),
    # the last transaction that changed the entry or its vectors; a trigger sets it in updates
    Column("changed", TransactionNumber, nullable=False, server_default=text("pg_current_xact_id()")),
    ForeignKeyConstraint(
        ["tenant_id", "conversation_id"],
        ["conversations.tenant_id", "conversations.id"],
        ondelete="CASCADE",
    ),
    CheckConstraint("kind in ('turn', 'summary', 'fact', 'memory')", name="kind"),
    # includes dead entries: deletes and the foreign key look them up by it
    Index("index_entries_conversation_idx", "tenant_id", "conversation_id", "position"),
    # for the changes of one segment (see `search.segment_store`); the first only for statements that name its condition
    Index("index_entries_changed_idx", "tenant_id", "changed", postgresql_where=text("kind <> ''")),
    Index("index_entries_conversation_changed_idx", "tenant_id", "conversation_id", "changed"),
    Index(
        "index_entries_owner_changed_idx",
        "tenant_id",
        "owner",
        "changed",
        postgresql_where=text("owner is not null"),
    ),
    Index(
        "index_entries_agent_changed_idx",
        "tenant_id",
        "agent_id",
        "changed",
        postgresql_where=text("agent_id is not null"),
    ),
    Index("index_entries_source_idx", "tenant_id", "source_id", postgresql_where=text("source_id is not null")),
    Index("index_entries_due_idx", "tenant_id", "occurred_at", postgresql_where=text("live and vectors_due")),
    Index(
        "index_entries_waiting_idx",
        "tenant_id",
        "conversation_id",
        postgresql_where=text("live and vectors_due"),
    ),
    Index("index_entries_lexemes_idx", "tenant_id", "lexemes", postgresql_using="gin", postgresql_where=text("live")),
)
"""One row per item that can be found, with a copy of every filter, so that a search reads one table."""
index_removals = Table(
    "index_removals",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("changed", TransactionNumber, primary_key=True, server_default=text("pg_current_xact_id()")),
    Column("removed_id", Uuid, primary_key=True),
    Column("removed_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Index("index_removals_removed_at_idx", "removed_at"),
)
"""Ids of entries that were deleted in the last hour: processes delete them from memory."""
vectors = Table(
    "vectors",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("entry_id", Uuid, primary_key=True),
    Column("space_id", Integer, ForeignKey("embedding_spaces.id"), primary_key=True),
    Column("part", SmallInteger, primary_key=True),
    Column("embedding", Vector, nullable=False),
    Column("tiered", Boolean, nullable=False, server_default=text("false")),
    ForeignKeyConstraint(
        ["tenant_id", "entry_id"], ["index_entries.tenant_id", "index_entries.entry_id"], ondelete="CASCADE"
    ),
    Index("vectors_fresh_idx", "tenant_id", "space_id", "entry_id", postgresql_where=text("not tiered")),
)
"""Vectors of entries, several if the text is long. Immutable except `tiered`, which is set once."""
