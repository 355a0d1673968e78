"""Conversations that are being deleted: hidden at once, and gone a step at a time.

Revises: 0010
"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    # beside the counters: whoever waits for the head's lock sees it in the row that it then has
    op.execute("alter table conversation_heads add column deleting_at timestamptz")


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    # what is hidden would be there again, half of it gone. The owner's statements see no rows while row security binds it
    for table in ("conversations", "conversation_heads"):
        op.execute(f"alter table {table} no force row level security")
    op.execute(
        "delete from conversations c using conversation_heads h"
        " where h.deleting_at is not null and c.tenant_id = h.tenant_id and c.id = h.conversation_id"
    )
    for table in ("conversations", "conversation_heads"):
        op.execute(f"alter table {table} force row level security")
    op.execute("alter table conversation_heads drop column deleting_at")
