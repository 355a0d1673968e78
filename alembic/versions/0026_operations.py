"""Long operations: what a request starts and a worker does.

Revises: 0025
"""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"
OPERATIONS = """
create table operations (
    tenant_id uuid not null,
    id uuid not null,
    kind text not null,
    status text not null,
    key_id uuid not null,
    parameters json,
    state json,
    run integer not null default 0,
    done bigint not null default 0,
    total bigint,
    result json,
    error text,
    created_at timestamptz not null,
    started_at timestamptz,
    ended_at timestamptz,
    constraint operations_pkey primary key (tenant_id, id),
    constraint operations_tenant_id_fkey foreign key (tenant_id) references tenants (tenant_id) on delete cascade,
    constraint operations_status_check check (
        status in ('queued', 'running', 'cancelling', 'succeeded', 'failed', 'cancelled')
    ),
    constraint operations_ended_check check (
        (ended_at is not null) = (status in ('succeeded', 'failed', 'cancelled'))
        and (ended_at is null or (parameters is null and state is null))
    )
);
create index operations_open_idx on operations (tenant_id, id) where ended_at is null;
create index operations_ended_idx on operations (ended_at) where ended_at is not null;
"""


def upgrade() -> None:
    """Create the table."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '1min'")
    for statement in OPERATIONS.split(";\n"):
        if statement.strip():
            op.execute(statement)
    # parameters may hold personal data: a sample of it would outlive its deletion
    op.execute("alter table operations alter column parameters set statistics 0, alter column state set statistics 0")
    op.execute("alter table operations enable row level security, force row level security")
    op.execute(
        "create policy operations_tenant on operations to turnkeep_app"
        f" using (tenant_id = {TENANT}) with check (tenant_id = {TENANT})"
    )
    op.execute("create policy operations_ops on operations to turnkeep_ops using (true) with check (true)")
    op.execute("grant select, insert on operations to turnkeep_app")
    op.execute(
        "grant update (status, started_at, run, done, total, parameters, state, result, error, ended_at)"
        " on operations to turnkeep_app"
    )
    op.execute("grant select, insert, update, delete on operations to turnkeep_ops")



def downgrade() -> None:
    """Drop it."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("drop table operations")
