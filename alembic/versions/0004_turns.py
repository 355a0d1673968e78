"""Revised turns and forks: where a fork's chain starts, and an index on what was superseded.

Revises: 0003
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    op.execute("alter table conversations add column chain_start bytea")
    with op.get_context().autocommit_block():
        op.execute(
            "create index concurrently if not exists turns_superseded_idx"
            " on turns (tenant_id, conversation_id, position, seq)"
            " where status = 'committed' and superseded_by is not null"
        )


def downgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("drop index concurrently if exists turns_superseded_idx")
    op.execute("set local lock_timeout = '4s'")
    op.execute("alter table conversations drop column chain_start")
