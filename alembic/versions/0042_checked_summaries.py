"""Checks of summaries: why a model's text was refused, doubtful sentences, and when a model is asked again.

Revises: 0041
"""

from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '1min'")
    op.execute(
        "alter table summaries add column refused_for text, add column doubtful json,"
        " add column attempts integer not null default 0, add column retry_at timestamptz"
    )


def downgrade() -> None:
    """Remove them."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '1min'")
    op.execute(
        "alter table summaries drop column refused_for, drop column doubtful, drop column attempts,"
        " drop column retry_at"
    )
