"""Receipts of erasures.

Revises: 0026
"""

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"
RECEIPTS = """
create table erasures (
    tenant_id uuid not null,
    id uuid not null,
    subject_kind text not null,
    subject_hash bytea not null,
    status text not null,
    counts jsonb not null default '{}',
    created_at timestamptz not null,
    ended_at timestamptz,
    signature bytea,
    constraint erasures_pkey primary key (tenant_id, id),
    constraint erasures_tenant_id_fkey foreign key (tenant_id) references tenants (tenant_id) on delete cascade,
    constraint erasures_subject_kind_check check (subject_kind in ('conversation', 'owner', 'actor', 'tenant')),
    constraint erasures_status_check check (status in ('open', 'complete', 'failed', 'cancelled')),
    constraint erasures_signed_check check ((status = 'open') = (signature is null) and (status = 'open') = (ended_at is null))
);
"""


def upgrade() -> None:
    """Create the table."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '1min'")
    op.execute(RECEIPTS.strip().rstrip(";"))
    op.execute("alter table erasures enable row level security, force row level security")
    op.execute(
        "create policy erasures_tenant on erasures to turnkeep_app"
        f" using (tenant_id = {TENANT}) with check (tenant_id = {TENANT})"
    )
    op.execute("create policy erasures_ops on erasures to turnkeep_ops using (true) with check (true)")
    op.execute("grant select, insert on erasures to turnkeep_app")
    op.execute("grant update (status, counts, ended_at, signature) on erasures to turnkeep_app")
    op.execute("grant select, insert, update, delete on erasures to turnkeep_ops")
    # the erasure of a tenant deletes its keys
    op.execute("grant delete on api_keys to turnkeep_ops")


def downgrade() -> None:
    """Drop it. The receipts are lost."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("drop table erasures")
