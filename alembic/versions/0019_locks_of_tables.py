"""The application role can no longer lock tables that it does not delete from.

Postgres grants `lock table` in every mode with `update` or `delete` of a whole table. An update of columns is enough for
what the application does here; deleting expired records is for ops.

Revises: 0018
"""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

UPDATED = {
    "idempotency_records": "request_hmac, status, result_ids, created_at, expires_at",
    "model_usage": "calls, failed, prompt_tokens, completion_tokens, cost",
}


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    for table, columns in UPDATED.items():
        op.execute(f"revoke update, delete on {table} from turnkeep_app")
        op.execute(f"grant update ({columns}) on {table} to turnkeep_app")


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    for table, columns in UPDATED.items():
        op.execute(f"revoke update ({columns}) on {table} from turnkeep_app")
        op.execute(f"grant update on {table} to turnkeep_app")
    op.execute("grant delete on idempotency_records to turnkeep_app")
