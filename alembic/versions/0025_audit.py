"""The audit: entries that are not sealed yet, sealed entries, and the ends of their chains.

The application can only insert, and read for `GET /v1/admin/audit`. It cannot give the time of an entry. The tables
have no foreign keys: entries stay when a tenant is deleted.

Revises: 0024
"""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"
DESCRIBED = """
    key_id uuid,
    actor text not null,
    action text not null,
    object_kind text,
    object_id text,
    conversation_id uuid,
    first_seq bigint,
    last_seq bigint,
    head_hash bytea,
    counts jsonb not null default '{}',
    request_id uuid"""
UNSEALED = f"""
create table audit_unsealed (
    tenant_id uuid not null,
    id uuid not null,
    recorded_at timestamptz not null default clock_timestamp(),{DESCRIBED},
    constraint audit_unsealed_pkey primary key (tenant_id, id)
)
"""
ENTRIES = f"""
create table audit_entries (
    tenant_id uuid not null,
    day date not null,
    number bigint not null,
    id uuid not null,
    recorded_at timestamptz not null,{DESCRIBED},
    hash bytea not null,
    constraint audit_entries_pkey primary key (tenant_id, day, number)
)
"""
DAYS = """
create table audit_days (
    tenant_id uuid not null,
    day date not null,
    ordinal integer not null,
    entries bigint not null,
    hash bytea not null,
    previous_day date,
    previous_entries bigint not null,
    previous_hash bytea not null,
    sealed_at timestamptz not null default now(),
    entries_deleted_at timestamptz,
    constraint audit_days_pkey primary key (tenant_id, day)
) with (fillfactor = 50)
"""
INDEXES = (
    "create index audit_entries_recorded_at_idx on audit_entries (tenant_id, recorded_at, id)",
    "create index audit_entries_conversation_idx on audit_entries (tenant_id, conversation_id, recorded_at)"
    " where conversation_id is not null",
    "create index audit_entries_object_idx on audit_entries (tenant_id, object_id, recorded_at)"
    " where object_id is not null",
    "create index audit_entries_request_idx on audit_entries (tenant_id, request_id) where request_id is not null",
    "create unique index audit_days_ordinal_key on audit_days (tenant_id, ordinal)",
)
# ids and hashes that callers may have chosen, or that say nothing to the planner
UNSAMPLED = {
    "audit_unsealed": ("object_id", "head_hash", "counts"),
    "audit_entries": ("object_id", "head_hash", "counts", "hash"),
    "audit_days": ("hash", "previous_hash"),
}
TABLES = ("audit_unsealed", "audit_entries", "audit_days")
GRANTS = (
    "grant insert (tenant_id, id, key_id, actor, action, object_kind, object_id, conversation_id, first_seq, last_seq,"
    " head_hash, counts, request_id) on audit_unsealed to turnkeep_app",
    "grant select on audit_unsealed, audit_entries to turnkeep_app",
    "grant select, insert, delete on audit_unsealed, audit_entries to turnkeep_ops",
    "grant select, insert, update on audit_days to turnkeep_ops",
)


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    for statement in (UNSEALED, ENTRIES, DAYS, *INDEXES):
        op.execute(statement)
    for table, columns in UNSAMPLED.items():
        for column in columns:
            op.execute(f"alter table {table} alter column {column} set statistics 0")
    for table in TABLES:
        op.execute(f"alter table {table} enable row level security, force row level security")
        op.execute(
            f"create policy {table}_tenant on {table} to turnkeep_app"
            f" using (tenant_id = {TENANT}) with check (tenant_id = {TENANT})"
        )
        op.execute(f"create policy {table}_ops on {table} to turnkeep_ops using (true) with check (true)")
    for statement in GRANTS:
        op.execute(statement)


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("drop table audit_days, audit_entries, audit_unsealed")
