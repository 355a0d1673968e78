"""Positions that open turns have reserved: their number in the head of the conversation.

Revises: 0040
"""

from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '1min'")
    op.execute("alter table conversation_heads add column reserved_positions bigint not null default 0")


def downgrade() -> None:
    """Remove it."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '1min'")
    op.execute("alter table conversation_heads drop column reserved_positions")
