"""The turns that only rules have read, because the chat model had failed: in the head of the conversation.

Revises: 0043
"""

from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, which takes no scan of the table."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '1min'")
    op.execute(
        "alter table conversation_heads add column facts_rules_from bigint, add column facts_rules_through bigint,"
        " add column facts_rules_tries smallint not null default 0"
    )


def downgrade() -> None:
    """Remove them."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '1min'")
    op.execute(
        "alter table conversation_heads drop column facts_rules_from, drop column facts_rules_through,"
        " drop column facts_rules_tries"
    )
