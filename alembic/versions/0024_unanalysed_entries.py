"""An index of the entries that the analyser's version 1 has not analysed. It is empty once the jobs have done so.

For a later version of the analyser, a migration replaces it by one with that version in its condition.

Revises: 0023
"""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index without blocking writes."""
    with op.get_context().autocommit_block():
        # an interrupted one is there, but invalid
        op.execute("drop index concurrently if exists index_entries_unanalysed_idx")
        op.execute(
            "create index concurrently if not exists index_entries_unanalysed_idx on index_entries (tenant_id, entry_id)"
            " where live and coalesce(analyser, 0) < 1"
        )


def downgrade() -> None:
    """Drop it. What the jobs have written stays."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("drop index index_entries_unanalysed_idx")
