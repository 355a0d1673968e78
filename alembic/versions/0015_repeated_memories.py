"""A memory that is stored again is one memory with several dates.

Revises: 0014
"""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the dates, and an index that finds a memory by its text."""
    op.execute("set local lock_timeout = '5s'")
    op.execute("set local statement_timeout = '60s'")
    op.execute("alter table memories add column repeated_at timestamptz[] not null default '{}'")
    op.execute("grant update (repeated_at, expires_at) on memories to turnkeep_app")
    with op.get_context().autocommit_block():
        op.execute(
            "create index concurrently if not exists memories_text_idx on memories (tenant_id, agent_id, md5(content))"
        )
    # the digest of a short text can be guessed: no sample of it is kept
    op.execute("alter index memories_text_idx alter column 3 set statistics 0")


def downgrade() -> None:
    """Drop both. The dates of repetitions are lost."""
    op.execute("set local lock_timeout = '5s'")
    op.execute("set local statement_timeout = '60s'")
    op.execute("drop index if exists memories_text_idx")
    op.execute("alter table memories drop column repeated_at")
