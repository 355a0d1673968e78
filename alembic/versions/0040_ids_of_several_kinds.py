"""The id of an entry's object, if the key of the entry is another one: ids of several kinds may be equal.

Revises: 0039
"""

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, empty, and its index without blocking writes."""
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = '4s'")
        op.execute("set statement_timeout = '60min'")
        op.execute("alter table index_entries add column if not exists source_id uuid")
        # an interrupted one is there, but invalid
        op.execute("drop index concurrently if exists index_entries_source_idx")
        op.execute(
            "create index concurrently if not exists index_entries_source_idx on index_entries (tenant_id, source_id)"
            " where source_id is not null"
        )
        op.execute("reset lock_timeout")
        op.execute("reset statement_timeout")


def downgrade() -> None:
    """Drop both. Entries with another key go with them: older releases would not find their objects."""
    op.execute("set local lock_timeout = '4s'")
    # the owner's statements see no rows while row security binds it; vectors go with their entries
    op.execute("alter table index_entries no force row level security")
    op.execute("delete from index_entries where source_id is not null")
    op.execute("alter table index_entries force row level security")
    op.execute("alter table index_entries drop column source_id")
