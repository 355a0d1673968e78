"""Projects and owners that a key is restricted to.

Revises: 0029
"""

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    op.execute("alter table api_keys add column projects text[], add column owners text[]")
    # names of callers: no statistics, so that no copy of them stays in the catalogue
    op.execute("alter table api_keys alter column projects set statistics 0, alter column owners set statistics 0")


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("alter table api_keys drop column projects, drop column owners")
