"""What tenants spend on chat models, by day, purpose and model.

Revises: 0008
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"

# counters are in no index, so that updates stay HOT
TABLE = """
create table model_usage (
    tenant_id uuid not null,
    day date not null,
    purpose text not null,
    model text not null,
    calls bigint not null,
    failed bigint not null,
    prompt_tokens bigint not null,
    completion_tokens bigint not null,
    cost numeric(24, 9) not null,
    constraint model_usage_pkey primary key (tenant_id, day, purpose, model),
    constraint model_usage_tenant_id_fkey foreign key (tenant_id) references tenants (tenant_id) on delete cascade
) with (fillfactor = 50)
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    op.execute(TABLE)
    op.execute("create index model_usage_day_idx on model_usage (day)")
    # a caller may name the model
    op.execute("alter table model_usage alter column model set statistics 0")
    op.execute("alter table model_usage enable row level security, force row level security")
    op.execute(
        "create policy model_usage_tenant on model_usage to turnkeep_app"
        f" using (tenant_id = {TENANT}) with check (tenant_id = {TENANT})"
    )
    op.execute("create policy model_usage_ops on model_usage to turnkeep_ops using (true) with check (true)")
    op.execute("grant select, insert, update on model_usage to turnkeep_app")
    op.execute("grant select, insert, update, delete on model_usage to turnkeep_ops")


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("drop table model_usage")
