"""Responses of the Responses API: the answer's turn, the turns before it, and what the request said besides its input.

Revises: 0035
"""

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"
TABLE = """
create table responses (
    tenant_id uuid not null,
    turn_id uuid not null,
    conversation_id uuid not null,
    previous_turn_id uuid,
    input_turn_ids uuid[] not null,
    owns_conversation boolean not null,
    request json not null,
    created_at timestamptz not null,
    constraint responses_pkey primary key (tenant_id, turn_id),
    constraint responses_conversation_id_fkey foreign key (tenant_id, conversation_id)
        references conversations (tenant_id, id) on delete cascade
);
create index responses_conversation_idx on responses (tenant_id, conversation_id);
"""


def upgrade() -> None:
    """Create the table."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '1min'")
    for statement in TABLE.split(";\n"):
        if statement.strip():
            op.execute(statement)
    op.execute("alter table responses enable row level security, force row level security")
    op.execute(
        "create policy responses_tenant on responses to turnkeep_app"
        f" using (tenant_id = {TENANT}) with check (tenant_id = {TENANT})"
    )
    op.execute("create policy responses_ops on responses to turnkeep_ops using (true) with check (true)")
    op.execute("grant select, insert, delete on responses to turnkeep_app")
    op.execute("grant select, insert, delete on responses to turnkeep_ops")


def downgrade() -> None:
    """Drop it."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("drop table responses")
