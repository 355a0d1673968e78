"""Uploaded lines of imports, until their operation ends.

Revises: 0031
"""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"
CHUNKS = """
create table import_chunks (
    tenant_id uuid not null,
    import_id uuid not null,
    number integer not null,
    first_line bigint not null,
    data bytea not null,
    created_at timestamptz not null default clock_timestamp(),
    constraint import_chunks_pkey primary key (tenant_id, import_id, number),
    constraint import_chunks_tenant_id_fkey foreign key (tenant_id) references tenants (tenant_id) on delete cascade
);
create index import_chunks_created_idx on import_chunks (created_at);
"""


def upgrade() -> None:
    """Create the table."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '1min'")
    for statement in CHUNKS.split(";\n"):
        if statement.strip():
            op.execute(statement)
    # a sample of it would outlive its deletion
    op.execute("alter table import_chunks alter column data set statistics 0")
    op.execute("alter table import_chunks enable row level security, force row level security")
    op.execute(
        "create policy import_chunks_tenant on import_chunks to turnkeep_app"
        f" using (tenant_id = {TENANT}) with check (tenant_id = {TENANT})"
    )
    op.execute("create policy import_chunks_ops on import_chunks to turnkeep_ops using (true) with check (true)")
    op.execute("grant select, insert, delete on import_chunks to turnkeep_app")
    op.execute("grant select, delete on import_chunks to turnkeep_ops")


def downgrade() -> None:
    """Drop it."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("drop table import_chunks")
