"""An index of lanes by receiver, so that a claim reads few lanes of a large backlog.

Revises: 0033
"""

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def _replace(new: str, columns: str, old: str) -> None:
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = '4s'")
        op.execute("set statement_timeout = '60min'")
        # an interrupted one is there, but invalid
        op.execute(f"drop index concurrently if exists {new}")
        op.execute(f"create index concurrently if not exists {new} on webhook_lanes {columns}")
        op.execute(f"drop index concurrently if exists {old}")
        op.execute("reset lock_timeout")
        op.execute("reset statement_timeout")


def upgrade() -> None:
    """Replace the index of all lanes by their time."""
    _replace("webhook_lanes_receiver_idx", "(tenant_id, webhook_id, due_at)", "webhook_lanes_due_at_idx")


def downgrade() -> None:
    """Replace it again."""
    _replace("webhook_lanes_due_at_idx", "(due_at)", "webhook_lanes_receiver_idx")
