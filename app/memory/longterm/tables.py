"""Table of long-term memories.

`metadata` is `json`, not `jsonb`, so that callers get it back exactly as they gave it. Searches filter by the copy in
the index.
"""

from sqlalchemy import ARRAY, JSON, Column, DateTime, ForeignKey, Index, Table, Text, Uuid, text

from app.core.database.metadata import METADATA

memories = Table(
    "memories",
    METADATA,
    Column("tenant_id", Uuid, ForeignKey("tenants.tenant_id", ondelete="CASCADE"), primary_key=True),
    Column("id", Uuid, primary_key=True),
    Column("agent_id", Text, nullable=False),
    Column("owner", Text),
    Column("content", Text, nullable=False),
    Column("metadata", JSON, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("expires_at", DateTime(timezone=True)),
    Column("repeated_at", ARRAY(DateTime(timezone=True)), nullable=False, server_default=text("'{}'")),
    Index("memories_text_idx", "tenant_id", "agent_id", text("md5(content)")),
    Index("memories_agent_idx", "tenant_id", "agent_id", "created_at", "id"),
    Index("memories_created_idx", "tenant_id", "created_at", "id"),
    Index("memories_expiry_idx", "expires_at", postgresql_where=text("expires_at is not null")),
)
"""Long-term memories of agents."""
