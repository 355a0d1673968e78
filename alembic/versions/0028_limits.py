"""Limits that operators set for a tenant or a key, and what tenants store in a day.

Revises: 0027
"""

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"
LIMITS = """
create table tenant_limits (
    tenant_id uuid not null,
    rates jsonb not null,
    quotas jsonb not null,
    updated_at timestamptz not null default now(),
    constraint tenant_limits_pkey primary key (tenant_id),
    constraint tenant_limits_tenant_id_fkey foreign key (tenant_id) references tenants (tenant_id) on delete cascade
)
"""
# counters are in no index, so that updates stay HOT
USAGE = """
create table tenant_usage (
    tenant_id uuid not null,
    day date not null,
    turns bigint not null,
    bytes bigint not null,
    vectors bigint not null,
    constraint tenant_usage_pkey primary key (tenant_id, day),
    constraint tenant_usage_tenant_id_fkey foreign key (tenant_id) references tenants (tenant_id) on delete cascade
) with (fillfactor = 50)
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    op.execute("alter table api_keys add column rates jsonb")
    op.execute("alter table api_keys alter column rates set statistics 0")
    for name, statement in (("tenant_limits", LIMITS), ("tenant_usage", USAGE)):
        op.execute(statement)
        op.execute(f"alter table {name} enable row level security, force row level security")
        op.execute(
            f"create policy {name}_tenant on {name} to turnkeep_app"
            f" using (tenant_id = {TENANT}) with check (tenant_id = {TENANT})"
        )
        op.execute(f"create policy {name}_ops on {name} to turnkeep_ops using (true) with check (true)")
        op.execute(f"grant select on {name} to turnkeep_app")
        op.execute(f"grant select, insert, update, delete on {name} to turnkeep_ops")
    op.execute("alter table tenant_limits alter column rates set statistics 0, alter column quotas set statistics 0")


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("drop table tenant_usage")
    op.execute("drop table tenant_limits")
    op.execute("alter table api_keys drop column rates")
