"""Jobs, and the dates that relative dates in a text mean.

Revises: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"

TABLES = """
create table jobs (
    tenant_id uuid not null,
    id uuid not null,
    kind text not null,
    subject_ids uuid[] not null default '{}',
    dedupe_key text,
    priority smallint not null default 0,
    state text not null default 'queued',
    attempts integer not null default 0,
    max_attempts integer not null,
    run_at timestamptz not null default now(),
    locked_by uuid,
    locked_until timestamptz,
    last_error text,
    created_at timestamptz not null default now(),
    constraint jobs_pkey primary key (tenant_id, id),
    constraint jobs_state_check check (state in ('queued', 'parked', 'cancelled')),
    constraint jobs_locked_check check ((locked_by is null) = (locked_until is null) and (locked_by is null or state = 'queued'))
) with (fillfactor = 70);
create unique index jobs_waiting_key on jobs (tenant_id, kind, dedupe_key)
    where dedupe_key is not null and state = 'queued' and locked_by is null;
create index jobs_due_idx on jobs (priority desc, run_at, id) where state = 'queued';
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)
    op.execute("alter table jobs enable row level security")
    op.execute("alter table jobs force row level security")
    op.execute(
        f"create policy jobs_tenant on jobs to turnkeep_app using (tenant_id = {TENANT}) with check (tenant_id = {TENANT})"
    )
    op.execute("create policy jobs_ops on jobs to turnkeep_ops using (true) with check (true)")
    op.execute("grant select, insert on jobs to turnkeep_app")
    op.execute("grant select, insert, update, delete on jobs to turnkeep_ops")
    op.execute("alter table index_entries add column dates jsonb")


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("alter table index_entries drop column dates")
    op.execute("drop table jobs")
