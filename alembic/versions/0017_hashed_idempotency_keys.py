"""The planner gathers no statistics of Idempotency-Keys, which are hashed from this release on.

Rows stay as they are: release 0.1.0 finds a request under the plain key only. The service hashes plain keys as soon as
no replica of that release is connected; the secret may be known to the service alone.

Revises: 0016
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# what was gathered before goes too, where the server lets an owner do so (Postgres 18)
CLEAR = """
do $$ begin
    if to_regproc('pg_catalog.pg_clear_attribute_stats') is not null then
        perform pg_catalog.pg_clear_attribute_stats('public', 'idempotency_records', 'key', false);
    end if;
end $$
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    op.execute("alter table idempotency_records alter column key set statistics 0")
    op.execute(CLEAR)


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("alter table idempotency_records alter column key set statistics -1")
