"""A rotated key's former secret, for as long as it is still good.

Revises: 0004
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    op.execute("alter table api_keys add column previous_hmac bytea, add column previous_expires_at timestamptz")


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("alter table api_keys drop column previous_hmac, drop column previous_expires_at")
