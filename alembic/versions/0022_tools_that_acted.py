"""The tools that acted in a conversation, beside its speakers.

They have a column of their own: release 0.1.0 reads `participants`, and refuses members that it does not know.

Revises: 0021
"""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, empty: a tool is listed from the next time that it acts."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '1min'")
    op.execute("alter table conversations add column tools jsonb not null default '[]'")
    # a sample of a name would outlive its deletion
    op.execute("alter table conversations alter column tools set statistics 0")


def downgrade() -> None:
    """Drop it. Which tools acted can still be read from the turns."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("alter table conversations drop column tools")
