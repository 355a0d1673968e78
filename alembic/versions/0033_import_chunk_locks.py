"""Let the application lock the uploaded lines that an import is storing.

Revises: 0032
"""

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Grant the update that `for share` needs, of one column; no statement writes it."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("grant update (created_at) on import_chunks to turnkeep_app")


def downgrade() -> None:
    """Revoke it."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("revoke update (created_at) on import_chunks from turnkeep_app")
