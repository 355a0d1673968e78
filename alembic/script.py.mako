"""${message}

Revises: ${down_revision | comma,n}
"""

from alembic import op
% if upgrades and upgrades != "pass":
import sqlalchemy as sa
% endif
% if imports:
${imports}
% endif

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
% if upgrades and upgrades != "pass":
    ${upgrades}
% endif


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
% if downgrades and downgrades != "pass":
    ${downgrades}
% endif
