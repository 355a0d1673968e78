"""Open turns: who writes them, and what of their text is durable; an index to find what changed after a rev.

Revises: 0007
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"

TABLES = """
create table turn_streams (
    tenant_id uuid not null,
    turn_id uuid not null,
    conversation_id uuid not null,
    writer text not null,
    key_id uuid not null,
    epoch integer not null default 1,
    holder uuid not null,
    renewed_at timestamptz not null,
    constraint turn_streams_pkey primary key (tenant_id, turn_id),
    constraint turn_streams_turn_id_fkey
        foreign key (tenant_id, turn_id) references turns (tenant_id, id) on delete cascade
);
create index turn_streams_conversation_idx on turn_streams (tenant_id, conversation_id);
create table turn_chunks (
    tenant_id uuid not null,
    turn_id uuid not null,
    part text not null,
    start integer not null,
    length integer not null,
    text text not null,
    created_at timestamptz not null default clock_timestamp(),
    constraint turn_chunks_pkey primary key (tenant_id, turn_id, part, start),
    constraint turn_chunks_turn_id_fkey
        foreign key (tenant_id, turn_id) references turn_streams (tenant_id, turn_id) on delete cascade
);
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)
    op.execute("alter table turn_chunks alter column text set statistics 0")
    for table in ("turn_streams", "turn_chunks"):
        op.execute(f"alter table {table} enable row level security, force row level security")
        op.execute(
            f"create policy {table}_tenant on {table} to turnkeep_app"
            f" using (tenant_id = {TENANT}) with check (tenant_id = {TENANT})"
        )
        op.execute(f"create policy {table}_ops on {table} to turnkeep_ops using (true) with check (true)")
        op.execute(f"grant select, insert, update, delete on {table} to turnkeep_app, turnkeep_ops")
    with op.get_context().autocommit_block():
        op.execute(
            "create index concurrently if not exists turns_rev_idx on turns (tenant_id, conversation_id, rev, seq)"
            " where status = 'committed'"
        )


def downgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("drop index concurrently if exists turns_rev_idx")
    op.execute("set local lock_timeout = '4s'")
    op.execute("drop table turn_chunks")
    op.execute("drop table turn_streams")
