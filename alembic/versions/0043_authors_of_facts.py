"""Who states a fact: a caller, the rules, or a chat model. It is not known of evidence that is stored already.

Revises: 0042
"""

from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, which takes no scan of the table."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '1min'")
    op.execute("alter table fact_evidence add column stated_by text")


def downgrade() -> None:
    """Drop it: all evidence counts as confirmed again."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '1min'")
    op.execute("alter table fact_evidence drop column stated_by")
