"""When a conversation was last written to, exactly, in its head: lists show it first.

Revises: 0015
"""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '1min'")
    # no index: heads change with every append, and stay HOT. Null until the first append of a release that knows it
    op.execute("alter table conversation_heads add column active_at timestamptz")


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("alter table conversation_heads drop column active_at")
