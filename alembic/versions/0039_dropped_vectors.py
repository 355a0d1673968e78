"""Vectors that are dropped in conversations without use: marks of conversations, heads and index entries.

Revises: 0038
"""

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

INDEXES = {
    "conversations_vectors_idx": "conversations (active_at, tenant_id, id) where not vectors_dropped",
    "index_entries_dropped_idx": "index_entries (tenant_id, conversation_id, entry_id) where vectors_dropped",
}


def upgrade() -> None:
    """Add the columns, and create the indexes without blocking writes."""
    # each alone: a request locks these tables in another order
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = '4s'")
        op.execute("set statement_timeout = '60min'")
        op.execute(
            "alter table conversation_heads add column if not exists vectors text not null default 'kept',"
            " add column if not exists vectors_at timestamptz"
        )
        op.execute("alter table conversations add column if not exists vectors_dropped boolean not null default false")
        op.execute("alter table index_entries add column if not exists vectors_dropped boolean not null default false")
        # an interrupted migration has added it
        op.execute(
            "-- squawk-ignore ban-drop-constraint\n"
            "alter table conversation_heads drop constraint if exists conversation_heads_vectors_check"
        )
        op.execute(
            "alter table conversation_heads add constraint conversation_heads_vectors_check"
            " check (vectors in ('kept', 'dropped', 'rebuilding')) not valid"
        )
        op.execute("alter table conversation_heads validate constraint conversation_heads_vectors_check")
        for name, definition in INDEXES.items():
            # an interrupted one is there, but invalid
            op.execute(f"drop index concurrently if exists {name}")
            op.execute(f"create index concurrently if not exists {name} on {definition}")
        op.execute("reset lock_timeout")
        op.execute("reset statement_timeout")


def downgrade() -> None:
    """Drop them. Older releases find dropped vectors missing, and make them again."""
    with op.get_context().autocommit_block():
        for name in INDEXES:
            op.execute(f"drop index concurrently if exists {name}")
        op.execute("set lock_timeout = '4s'")
        op.execute("alter table index_entries drop column if exists vectors_dropped")
        op.execute("alter table conversations drop column if exists vectors_dropped")
        op.execute("alter table conversation_heads drop column if exists vectors, drop column if exists vectors_at")
        op.execute("reset lock_timeout")
