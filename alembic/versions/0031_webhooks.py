"""Webhooks: receivers of events, deliveries, and the lanes that keep their order.

Revises: 0030
"""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"
TABLES = """
create table webhooks (
    tenant_id uuid not null,
    id uuid not null,
    url text not null,
    description text,
    event_types text[],
    project text,
    include_content boolean not null,
    is_enabled boolean not null default true,
    disabled_reason text,
    failing_since timestamptz,
    secret_version integer not null default 1,
    previous_secret_until timestamptz,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    constraint webhooks_pkey primary key (tenant_id, id),
    constraint webhooks_tenant_id_fkey foreign key (tenant_id) references tenants (tenant_id) on delete cascade,
    constraint webhooks_disabled_reason_check check (disabled_reason in ('request', 'failing', 'gone')),
    constraint webhooks_enabled_check check (is_enabled = (disabled_reason is null))
);
create table webhook_deliveries (
    tenant_id uuid not null,
    webhook_id uuid not null,
    event_id uuid not null,
    number bigint not null generated always as identity,
    event_type text not null,
    lane uuid not null,
    conversation_id uuid,
    object_id uuid not null,
    status text not null default 'pending',
    attempts integer not null default 0,
    last_status smallint,
    last_error text,
    recorded_at timestamptz not null,
    retry_until timestamptz not null,
    attempted_at timestamptz,
    delivered_at timestamptz,
    constraint webhook_deliveries_pkey primary key (tenant_id, webhook_id, event_id),
    constraint webhook_deliveries_status_check check (status in ('pending', 'delivered', 'dead'))
);
create unique index webhook_deliveries_number_key on webhook_deliveries (tenant_id, webhook_id, number);
create index webhook_deliveries_pending_idx on webhook_deliveries (tenant_id, webhook_id, lane, number)
    where status = 'pending';
create index webhook_deliveries_recorded_at_idx on webhook_deliveries (recorded_at);
create table webhook_lanes (
    tenant_id uuid not null,
    webhook_id uuid not null,
    lane uuid not null,
    due_at timestamptz not null,
    locked_by uuid,
    locked_until timestamptz,
    constraint webhook_lanes_pkey primary key (tenant_id, webhook_id, lane)
);
create index webhook_lanes_due_at_idx on webhook_lanes (due_at);
"""


def upgrade() -> None:
    """Create the tables."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '1min'")
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)
    # names that callers choose: a sample of them would outlive their deletion
    op.execute(
        "alter table webhooks alter column url set statistics 0, alter column description set statistics 0,"
        " alter column project set statistics 0"
    )
    for table in ("webhooks", "webhook_deliveries", "webhook_lanes"):
        op.execute(f"alter table {table} enable row level security, force row level security")
        op.execute(
            f"create policy {table}_tenant on {table} to turnkeep_app"
            f" using (tenant_id = {TENANT}) with check (tenant_id = {TENANT})"
        )
        op.execute(f"create policy {table}_ops on {table} to turnkeep_ops using (true) with check (true)")
        op.execute(f"grant select, insert, update, delete on {table} to turnkeep_ops")
    op.execute("grant select, insert, update, delete on webhooks, webhook_lanes to turnkeep_app")
    op.execute("grant select, insert on webhook_deliveries to turnkeep_app")
    op.execute(
        "grant update (status, attempts, last_status, last_error, retry_until, attempted_at, delivered_at)"
        " on webhook_deliveries to turnkeep_app"
    )


def downgrade() -> None:
    """Drop them."""
    op.execute("set local lock_timeout = '4s'")
    for table in ("webhook_lanes", "webhook_deliveries", "webhooks"):
        op.execute(f"drop table {table}")
