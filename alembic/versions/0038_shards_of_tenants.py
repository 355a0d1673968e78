"""A function that names the table with the index entries of a tenant, where the tables are distributed.

A search compares numbers of transactions with a snapshot; both are of one server. Where tenants are on several servers
(`turnkeep migrate --citus`), the function tells a search that its tenant has moved to another one. Elsewhere it
returns 0, and the planner replaces the call by this constant.

Revises: 0037
"""

from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the function. Nothing calls it yet."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("create function shard_of_tenant(of_tenant uuid) returns oid language sql stable as 'select 0::oid'")


def downgrade() -> None:
    """Drop it."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("drop function shard_of_tenant(uuid)")
