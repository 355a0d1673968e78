"""Summaries: text that stands for a range of turns in a context, and how far the turns are summarised.

Revises: 0009
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"

TABLE = """
create table summaries (
    tenant_id uuid not null,
    id uuid not null,
    conversation_id uuid not null,
    kind text not null,
    level integer not null,
    from_position bigint not null,
    to_position bigint not null,
    actors jsonb not null,
    text text,
    abstract text,
    lines json,
    tokens integer not null,
    model text,
    prompt_version text not null,
    replaced_by uuid,
    rev bigint not null,
    created_at timestamptz not null,
    constraint summaries_pkey primary key (tenant_id, id),
    constraint summaries_conversation_id_fkey foreign key (tenant_id, conversation_id)
        references conversations (tenant_id, id) on delete cascade,
    constraint summaries_kind_check check (kind in ('summary', 'highlights')),
    constraint summaries_range_check check (from_position <= to_position)
);
create index summaries_conversation_idx on summaries (tenant_id, conversation_id, to_position, id);
create index summaries_highlights_idx on summaries (tenant_id, conversation_id)
    where kind = 'highlights' and replaced_by is null;
"""
UNSAMPLED = ("kind", "actors", "text", "abstract", "model", "prompt_version")
COUNTERS = ("summarized_turns", "summarized_tokens", "erased_position")


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    for statement in TABLE.split(";\n"):
        if statement.strip():
            op.execute(statement)
    op.execute("alter table summaries " + ", ".join(f"alter column {name} set statistics 0" for name in UNSAMPLED))
    op.execute("alter table summaries enable row level security, force row level security")
    op.execute(
        "create policy summaries_tenant on summaries to turnkeep_app"
        f" using (tenant_id = {TENANT}) with check (tenant_id = {TENANT})"
    )
    op.execute("create policy summaries_ops on summaries to turnkeep_ops using (true) with check (true)")
    op.execute("grant select, insert, update, delete on summaries to turnkeep_app, turnkeep_ops")
    op.execute(
        "alter table conversation_heads "
        + ", ".join(f"add column {name} bigint not null default 0" for name in COUNTERS)
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("alter table conversation_heads " + ", ".join(f"drop column {name}" for name in COUNTERS))
    op.execute("drop table summaries")
    # their words stay nowhere; the owner's statements see no rows while row security binds it. Vectors go with entries
    op.execute("alter table index_entries no force row level security")
    op.execute("delete from index_entries where kind = 'summary'")
    op.execute("alter table index_entries force row level security")
