"""Tables of facts, of their evidence, and of the decisions that can be undone.

`facts` is derived from `fact_evidence` and written again with it; its columns serve searches. `listed`: the fact has
an entry in the search index. `undone`: an undo retracted it. `due_at`: the time at which the fact ends or expires, and
the sweep processes it.
"""

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    Uuid,
    text,
)

from app.core.database.metadata import METADATA

_TIME = DateTime(timezone=True)


def _conversation(table: str) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["tenant_id", "conversation_id"],
        ["conversations.tenant_id", "conversations.id"],
        name=f"{table}_conversation_id_fkey",
        ondelete="CASCADE",
    )


facts = Table(
    "facts",
    METADATA,
    Column("tenant_id", Uuid, ForeignKey("tenants.tenant_id", ondelete="CASCADE"), primary_key=True),
    Column("id", Uuid, primary_key=True),
    Column("owner", Text),
    Column("subject", Text, nullable=False),
    Column("subject_key", Text, nullable=False),
    Column("predicate", Text, nullable=False),
    Column("object", Text, nullable=False),
    Column("conversation_id", Uuid),
    Column("project", Text, nullable=False),
    Column("confidence", Double, nullable=False),
    Column("tier", Text, nullable=False),
    Column("evidence_count", Integer, nullable=False),
    Column("valid_from", _TIME, nullable=False),
    Column("valid_to", _TIME),
    Column("recorded_at", _TIME, nullable=False),
    Column("invalidated_at", _TIME),
    Column("invalidated_by", Uuid),
    Column("retracted", Boolean, nullable=False),
    Column("undone", Boolean, nullable=False),
    Column("expires_at", _TIME),
    Column("listed", Boolean, nullable=False),
    Column("due_at", _TIME),
    _conversation("facts"),
    CheckConstraint("tier in ('l1', 'l2', 'l3')", name="tier"),
    Index("facts_key_idx", "tenant_id", "subject_key", "predicate", "owner"),
    Index("facts_owner_idx", "tenant_id", "owner", "id"),
    Index(
        "facts_conversation_idx",
        "tenant_id",
        "conversation_id",
        postgresql_where=text("conversation_id is not null"),
    ),
    Index("facts_due_idx", "due_at", postgresql_where=text("due_at is not null")),
)
"""Facts. They follow from their evidence and are written with it."""
fact_evidence = Table(
    "fact_evidence",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("fact_id", Uuid, primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("turn_id", Uuid),
    Column("conversation_id", Uuid),
    Column("rev", BigInteger),
    Column("project", Text, nullable=False),
    Column("actor", Text),
    Column("content_hash", LargeBinary),
    Column("object_key", Text, nullable=False),
    Column("object", Text, nullable=False),
    Column("at", _TIME, nullable=False),
    Column("ends_at", _TIME),
    Column("position", Integer, nullable=False),
    Column("confidence", Double, nullable=False),
    Column("tier", Text, nullable=False),
    Column("denies", Boolean, nullable=False),
    Column("replaces", Boolean, nullable=False),
    Column("stated_by", Text),
    ForeignKeyConstraint(
        ["tenant_id", "fact_id"], ["facts.tenant_id", "facts.id"], name="fact_evidence_fact_id_fkey", ondelete="CASCADE"
    ),
    _conversation("fact_evidence"),
    Index("fact_evidence_turn_idx", "tenant_id", "turn_id", postgresql_where=text("turn_id is not null")),
    Index(
        "fact_evidence_conversation_idx",
        "tenant_id",
        "conversation_id",
        "rev",
        postgresql_where=text("conversation_id is not null"),
    ),
)
"""Sources of facts. Withdrawing a source leaves what the other sources give."""
fact_decisions = Table(
    "fact_decisions",
    METADATA,
    Column("tenant_id", Uuid, ForeignKey("tenants.tenant_id", ondelete="CASCADE"), primary_key=True),
    Column("id", Uuid, primary_key=True),
    Column("owner", Text),
    Column("subject_key", Text, nullable=False),
    Column("predicate", Text, nullable=False),
    Column("fact_ids", ARRAY(Uuid), nullable=False),
    Column("decision", JSON, nullable=False),
    Index("fact_decisions_key_idx", "tenant_id", "subject_key", "predicate", "id"),
)
"""The last ten decisions of each key, with the rows before them, so that an undo is exact."""
fact_decision_sources = Table(
    "fact_decision_sources",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("decision_id", Uuid, primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("turn_id", Uuid),
    Column("conversation_id", Uuid),
    ForeignKeyConstraint(
        ["tenant_id", "decision_id"],
        ["fact_decisions.tenant_id", "fact_decisions.id"],
        name="fact_decision_sources_decision_id_fkey",
        ondelete="CASCADE",
    ),
    Index("fact_decision_sources_turn_idx", "tenant_id", "turn_id"),
    Index("fact_decision_sources_conversation_idx", "tenant_id", "conversation_id"),
)
"""Turns that decisions depend on: an erasure finds by them what to delete."""
