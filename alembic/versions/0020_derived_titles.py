"""Titles that are derived from a conversation, beside those that its callers give.

Revises: 0019
"""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the title, where it is from, the turns that it was derived from, and the model that was asked."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '1min'")
    op.execute(
        "alter table conversations add column derived_title text, add column derived_title_source text,"
        " add column derived_title_turn_ids uuid[], add column derived_title_model text"
    )
    # a sample of a title would outlive its erasure
    op.execute(
        "alter table conversations alter column derived_title set statistics 0,"
        " alter column derived_title_model set statistics 0"
    )


def downgrade() -> None:
    """Drop them. The titles are lost."""
    op.execute("set local lock_timeout = '4s'")
    op.execute(
        "alter table conversations drop column derived_title, drop column derived_title_source,"
        " drop column derived_title_turn_ids, drop column derived_title_model"
    )
