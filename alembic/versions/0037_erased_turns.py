"""An index of erased turns, so that a context counts the turns it leaves out from indexes alone.

Revises: 0036
"""

from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index without blocking writes."""
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = '4s'")
        op.execute("set statement_timeout = '60min'")
        # an interrupted one is there, but invalid
        op.execute("drop index concurrently if exists turns_erased_idx")
        op.execute(
            "create index concurrently if not exists turns_erased_idx on turns (tenant_id, conversation_id, position)"
            " where status = 'committed' and superseded_by is null and erased_at is not null"
        )
        op.execute("reset lock_timeout")
        op.execute("reset statement_timeout")


def downgrade() -> None:
    """Drop it: statements that use it become slower."""
    with op.get_context().autocommit_block():
        op.execute("drop index concurrently if exists turns_erased_idx")
